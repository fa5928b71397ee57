"""What ``faverage fuse`` costs on 1,000 rows of three models and ten classes, alone and beside busy processes.

    python benchmarks/fuse_load.py               # four busy processes

It makes the files, runs the command with the table of all fusers, and prints wall and processor time of both runs.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CODE = "from faverage.cli import main; main()"


def make(folder: Path, rows: int, models: int, classes: int) -> list[str]:
    """Write labels and predictions; return the words of the command."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, rows)
    names = [f"c{i}" for i in range(classes)]
    tables = {"labels": [["id", "label"], *([i, names[label]] for i, label in enumerate(y))]}
    for k in range(models):
        p = np.exp(1.5 * rng.normal(size=(rows, classes)) + (2 + 0.5 * k) * np.eye(classes)[y])
        p /= p.sum(1, keepdims=True)
        tables[f"model{k}"] = [["id", *names], *([i, *(f"{v:.6f}" for v in row)] for i, row in enumerate(p))]
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(table)
    files = [str(folder / f"{name}.csv") for name in tables]
    return ["fuse", "--labels", *files, "--out", str(folder / "fused.csv"), "--force"]


def timed(words: list[str]) -> tuple[float, float]:
    """Run the command; return its wall time and its processor time."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", CODE, *words], check=True, capture_output=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used


def main() -> None:
    """Run both, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1000), ("models", 3), ("classes", 10), ("busy", 4), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        words = make(Path(name), options.rows, options.models, options.classes)
        timed(words)  # files of the libraries are in memory from here on
        found = {"idle": [timed(words) for _ in range(options.repeats)]}
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
        try:
            found["busy"] = [timed(words) for _ in range(options.repeats)]
        finally:
            for process in busy:
                process.kill()
    print(f"{os.cpu_count()} cores, {options.busy} busy processes, medians of {options.repeats}")
    medians = {name: np.median(runs, 0) for name, runs in found.items()}
    for name, (wall, used) in medians.items():
        print(f"{name}: {wall:.1f} s, of which {used:.1f} s of processor")
    print(f"ratio of wall times: {medians['busy'][0] / medians['idle'][0]:.2f}")


if __name__ == "__main__":
    main()
