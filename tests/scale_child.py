"""Processes that fit and predict on scores in a file, with small chunks, and print how far their memory grew.

    python scale_child.py FOLDER FUSER…

There is one for each fuser, forked, so that torch is loaded once: a forked process counts its memory from there.
"""

import os
import sys
from pathlib import Path

import numpy as np

from faverage.fusion import afa, arrays, get_fuser, nets, pools


def peak() -> int:
    """Return the most memory that this process has held, in bytes, with the pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main(folder: str, name: str) -> None:
    """Warm up on few rows, so that every library is loaded, then measure."""
    arrays._CHUNK = 1 << 17
    for module, limit in ((afa, "_CHOOSE_SCORES"), (afa, "_FIT_SCORES"), (nets, "_LIMIT"), (pools, "_LIMIT")):
        setattr(module, limit, 1 << 17)
    arrays._KEPT_SCORES = 1 << 17
    options = {"afa-paper": {"epochs": 1}, "afa": {"structure": "scalar"}}.get(name, {})
    scores, y = np.load(f"{folder}/scores.npy", mmap_mode="r"), np.load(f"{folder}/y.npy")
    get_fuser(name, **options).fit(scores[:1000], y[:1000]).predict_proba(scores[:1000])
    before = peak()
    get_fuser(name, **options).fit(scores, y).predict_proba(scores)
    print(peak() - before, flush=True)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            main(sys.argv[1], name)
            os._exit(0)  # an error ends with its own code
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} failed")
