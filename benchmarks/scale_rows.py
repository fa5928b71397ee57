"""Time and memory of fusers on scores that lie on disk: a million rows by default, in a memory map of half precision.

    python benchmarks/scale_rows.py /path/to/a/folder                # 1,000,000 x 10 x 100, a file of 2 GB
    python benchmarks/scale_rows.py /path/to/a/folder --rows 50000   # a quick look

The file is made in a temporary folder inside the given one and removed at the end. Each fuser is fitted and predicts
all rows in a process of its own, on one thread. "Own memory" is the peak of what the process itself holds (RssAnon);
"with the file's pages" also counts the parts of the file that happen to be in memory (VmHWM), which the system takes
back when it needs the room.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from faverage.fusion import get_fuser

LABELS = "labels.npy"


def make(file: Path, rows: int, models: int, classes: int, seed: int = 0) -> None:
    """Write scores of models of falling quality, and labels beside them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    quality = np.linspace(4, 1, models, dtype=np.float32)
    scores = np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=(rows, models, classes))
    for start in range(0, rows, 10_000):
        labels = y[start : start + 10_000]
        logits = rng.standard_normal((len(labels), models, classes), dtype=np.float32)
        logits[np.arange(len(labels)), :, labels] += quality
        np.exp(logits, out=logits)
        scores[start : start + 10_000] = logits / logits.sum(-1, keepdims=True)
    scores.flush()
    np.save(file.parent / LABELS, y)


def memory(field: str) -> int:
    """Return a field of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


class OwnMemory(threading.Thread):
    """Watches the process's own memory; ``peak`` is the most that it saw."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.start()

    def run(self) -> None:
        """Look a hundred times a second."""
        while True:
            self.peak = max(self.peak, memory("RssAnon"))
            time.sleep(0.01)


def measure(file: Path, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fit and predict in this process."""
    watch = OwnMemory()
    before = memory("RssAnon")
    scores, y = np.load(file, mmap_mode="r"), np.load(file.parent / LABELS)
    start = time.perf_counter()
    fuser = get_fuser(name, **options).fit(scores, y)
    fitted = time.perf_counter()
    p = fuser.predict_proba(scores)
    done = time.perf_counter()
    return {
        "fit": fitted - start,
        "predict": done - fitted,
        "start": before,
        "own": watch.peak,
        "all": memory("VmHWM"),
        "result": p.nbytes,
        "right": float((p.argmax(1) == y).mean()),
    }


def main() -> None:
    """Make the file, measure each fuser in a fresh process, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to make the temporary file")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--fusers", default='[["afa", {}], ["greedy", {}], ["afa-paper", {"epochs": 2}]]', help="JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.folder, *json.loads(options.child))))
        return
    size = 2 * options.rows * options.models * options.classes
    free = shutil.disk_usage(options.folder).free
    if free < 2 * size:
        sys.exit(f"{options.folder} has {free / 1e9:.1f} GB free; give a folder with {2 * size / 1e9:.1f} GB")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder) / "scores.npy"
        make(file, options.rows, options.models, options.classes)
        print(f"{options.rows:,} x {options.models} x {options.classes}, float16, {size / 1e9:.2f} GB, one thread\n")
        print("| fuser | fit, s | predict, s | own memory, GB | with the file's pages, GB | the result, GB |")
        print("|---|---:|---:|---:|---:|---:|")
        for fuser in json.loads(options.fusers):
            command = [sys.executable, __file__, str(file), "--child", json.dumps(fuser)]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
            found = json.loads(out)
            cells = [found["fit"], found["predict"], *(found[key] / 1e9 for key in ("own", "all", "result"))]
            label = " ".join([fuser[0], *(f"{k}={v}" for k, v in fuser[1].items())])
            print(f"| {label} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
