"""Time and memory of AFA's training step against N, K, J and the batch, and a cost model fitted to them.

    python benchmarks/scale_afa.py                     # about five minutes, at most 3 GB
    python benchmarks/scale_afa.py --json out.json     # the numbers as data

Every case runs in a process of its own, on one thread. Time is the median processor time of a step: other programs on
the machine do not count. Memory is how far the process grows (VmHWM) from before the network is made to after a ``fit``
of two epochs, so it holds weights, gradients, Adam's two moments, the two copies of the weights that ``fit`` goes back
to, and everything temporary. The scores themselves are not in it.

The model, with P parameters and B rows a step:

    seconds = a + b·J·B·K·N + c·B·P (block and full) + d·P
    bytes   = 4·(6·P + (1 + J)·B·K·N + 4·J·B·N) + rest

The seconds are fitted to the small cases with non-negative coefficients and relative errors. The bytes are counted: six
numbers a parameter, a batch of scores with one copy for each mean, and about four vectors a mean and row. The rest is
what temporaries and the loss of up to 2²² scores at a time take; it is fitted. The large cases at the end are not used
in the fits and show how far they can be trusted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faverage import AFA, fit
from faverage.afa.steps import Data, make_step

TRIPLE = ("arithmetic", "geometric", "harmonic")
SIZE = 20  # classes in a group of the structure block
BASE = {"N": 400, "K": 10, "J": 3, "B": 128}
VARIED = {"N": (100, 200, 400, 800), "K": (5, 20), "J": (6, 9), "B": (32, 512)}
LARGE = (
    ("per_class", {"N": 10_000, "K": 10, "J": 3, "B": 128}),
    ("block", {"N": 10_000, "K": 10, "J": 3, "B": 128}),
    ("per_class", {"N": 21_843, "K": 10, "J": 3, "B": 128}),
    ("block", {"N": 21_843, "K": 10, "J": 3, "B": 128}),
    ("full", {"N": 1000, "K": 20, "J": 3, "B": 128}),
)


def peak(*, reset: bool = False) -> int:
    """Return the most memory that this process has held since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(structure: str, case: dict[str, int]) -> dict[str, float]:
    """Train in this process; return parameters, bytes and seconds."""
    torch.set_num_threads(1)
    n, k, batch = case["N"], case["K"], case["B"]
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(2 * batch, k, n, generator=generator).softmax(-1)
    labels = torch.arange(2 * batch) % n
    groups = max(1, n // SIZE) if structure == "block" else None
    options: dict[str, Any] = {"means": TRIPLE * (case["J"] // 3), "structure": structure, "groups": groups}
    tiny = AFA(2, 3, structure="full")
    fit(tiny, torch.rand(8, 2, 3), torch.arange(8) % 3, epochs=1)  # loads what loads late
    before = peak(reset=True)
    network = AFA(k, n, **options)
    fit(network, scores, labels, epochs=2, batch_size=batch)
    grown = peak() - before
    network.validate = False
    step = make_step(network, Data.check(network, scores, labels), batch, 0.01)
    rows = torch.randperm(2 * batch, generator=generator).reshape(2, batch)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 4 or (len(times) < 60 and time.perf_counter() - began < 2):
        start = time.process_time()
        step(rows[len(times) % 2])
        times.append(time.process_time() - start)
    parameters = sum(p.numel() for p in network.parameters())
    return {"parameters": parameters, "bytes": grown, "seconds": statistics.median(times[1:])}


def child(structure: str, case: dict[str, int]) -> dict[str, Any]:
    """Measure one case in a fresh process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--case", json.dumps([structure, case])]
    found = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return {"structure": structure, **case, **found}


def work(row: dict[str, Any]) -> list[float]:
    """Return what the seconds are made of."""
    products = row["structure"] in ("block", "full")
    mapped = row["J"] * row["B"] * row["K"] * row["N"]
    return [1.0, mapped, row["B"] * row["parameters"] if products else 0.0, row["parameters"]]


def counted(row: dict[str, Any]) -> int:
    """Return the bytes that can be counted."""
    j, batch, k, n = row["J"], row["B"], row["K"], row["N"]
    return int(4 * (6 * row["parameters"] + (1 + j) * batch * k * n + 4 * j * batch * n))


def rest(row: dict[str, Any]) -> list[float]:
    """Return what the other bytes are made of: scores in the loss, which full works on at once; and a constant."""
    judged = 4.0 * min(2 * row["B"] * row["K"] * row["N"], 1 << 22)
    return [judged * (row["structure"] == "full"), judged * (row["structure"] != "full"), 1.0]


def relative_fit(features: list[list[float]], values: list[float], scale: list[float]) -> np.ndarray[Any, Any]:
    """Return non-negative coefficients with the least sum of squared errors, each divided by its scale."""
    from scipy.optimize import nnls

    scaled = np.array(features) / np.array(scale)[:, None]
    unit = np.abs(scaled).max(0)
    found: np.ndarray[Any, Any] = nnls(scaled / unit, np.array(values) / np.array(scale))[0] / unit
    return found


def table(rows: list[dict[str, Any]], seconds: Any, extra: Any) -> None:
    """Print measured and modelled numbers, and how far they are apart."""
    print("| structure | N | K | J | batch | parameters | step, ms | model, ms | off | MB | model, MB | off |")
    print("|---|" + "---:|" * 11)
    off: list[tuple[float, float]] = []
    for row in rows:
        t, m = float(np.dot(work(row), seconds)), counted(row) + float(np.dot(rest(row), extra))
        off.append((t / row["seconds"] - 1, m / row["bytes"] - 1))
        cells = [f"{row['seconds'] * 1e3:.3g}", f"{t * 1e3:.3g}", f"{off[-1][0]:+.0%}"]
        cells += [f"{row['bytes'] / 1e6:.0f}", f"{m / 1e6:.0f}", f"{off[-1][1]:+.0%}"]
        shape = [row["structure"], *(str(row[key]) for key in "NKJB"), f"{row['parameters']:,}"]
        print("| " + " | ".join(shape + cells) + " |")
    middle, worst = np.median(np.abs(off), 0), np.abs(off).max(0)
    print(f"\nTime off by {middle[0]:.0%} (median), {worst[0]:.0%} (worst); memory {middle[1]:.0%} and {worst[1]:.0%}.")


def main() -> None:
    """Measure, fit the model, print it with its residuals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(*json.loads(options.case))))
        return
    rows = []
    for structure in ("scalar", "per_class", "block", "full"):
        for key, values in VARIED.items():
            rows += [child(structure, {**BASE, key: value}) for value in values]
    times, sizes = [row["seconds"] for row in rows], [row["bytes"] for row in rows]
    seconds = relative_fit([work(row) for row in rows], times, times)
    extra = relative_fit([rest(row) for row in rows], [row["bytes"] - counted(row) for row in rows], sizes)
    large = [child(structure, case) for structure, case in LARGE]
    print(f"torch {torch.__version__}, float32, one thread, groups of {SIZE}\n")
    table(rows, seconds, extra)
    print("\nNot used in the fit:\n")
    table(large, seconds, extra)
    a, b, c, d = seconds
    print(f"\nseconds = {a:.2e} + {b:.2e}·J·B·K·N + {c:.2e}·B·P (block, full) + {d:.2e}·P")
    print(f"rest = {extra[0]:.1f} (full) or {extra[1]:.1f} (others) times 4·min(n·K·N, 2²²), + {extra[2] / 1e6:.0f} MB")
    if options.json:
        report = {"seconds": list(map(float, seconds)), "bytes": list(map(float, extra)), "cases": rows, "large": large}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
