"""A process that fits and predicts on scores in a file, with small chunks, and prints how far its memory grew."""

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
    print(peak() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
