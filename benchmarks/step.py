"""Cost of one AFA training step, against forward and backward alone and against the naive step, in one run.

    make bench                                    # this machine's CPU, one thread
    python benchmarks/step.py --device cuda       # a GPU
    python benchmarks/step.py --json out.json     # the numbers as data

All times are medians over repeats that alternate between the variants, so that a busy machine slows them alike.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from faverage import AFA
from faverage.afa.steps import Data, make_step


def sort_projection(rows: torch.Tensor) -> torch.Tensor:
    """Project rows onto the simplex the textbook way: sort, cumulative sum, threshold."""
    ordered, _ = rows.sort(-1, descending=True)
    excess = ordered.cumsum(-1) - 1
    rank = torch.arange(1, rows.shape[-1] + 1, device=rows.device)
    count = (ordered - excess / rank > 0).sum(-1, keepdim=True)
    return (rows - excess.gather(-1, count - 1) / count).relu()


def naive_step(network: AFA, data: Data, lr: float) -> Callable[[torch.Tensor], Any]:
    """Return the step as one would first write it: default Adam, projection by sort."""
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        data.losses(network, rows).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for matrix in network.rows():
                matrix.raw.copy_(sort_projection(matrix.raw) if matrix.simplex else matrix.raw.relu())

    return step


def measure(n_outputs: int, device: str, *, n_models: int = 10, batch: int = 128, lr: float = 0.01) -> dict[str, Any]:
    """Time the variants for one size; milliseconds."""
    generator = torch.Generator().manual_seed(0)
    rows_of_data = 4 * batch
    scores = torch.rand(rows_of_data, n_models, n_outputs, generator=generator).softmax(-1)
    labels = torch.randint(n_outputs, (rows_of_data,), generator=generator)

    def fresh() -> tuple[AFA, Data]:
        network = AFA(n_models, n_outputs).to(device)
        network.validate = False
        return network, Data.check(network, scores, labels).to(torch.device(device))

    network, data = fresh()

    def forward_backward(rows: torch.Tensor) -> None:
        network.zero_grad(set_to_none=True)
        data.losses(network, rows).mean().backward()

    ours, naive = fresh(), fresh()
    variants = {
        "forward+backward": forward_backward,
        "whole step": make_step(*ours, batch, lr),
        "naive step": naive_step(*naive, lr),
    }
    batches = torch.randperm(rows_of_data, generator=generator).reshape(4, batch).to(device)
    times = interleaved(variants, batches, device, repeats=9 if n_outputs < 1000 else 5)
    matrix = ours[0].rows()[0]().detach()
    residual = float((matrix.sum(-1) - 1).abs().max())
    whole = times["whole step"]
    return {
        "N": n_outputs,
        **times,
        "whole / forward+backward": whole / times["forward+backward"],
        "naive / whole": times["naive step"] / whole,
        "largest |row sum - 1|": residual,
    }


def interleaved(
    variants: dict[str, Callable[[torch.Tensor], Any]], batches: torch.Tensor, device: str, repeats: int
) -> dict[str, float]:
    """Return the median milliseconds of each variant; each round times every variant in turn."""
    on_gpu = device != "cpu"
    inner = 100 if on_gpu else 4
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(repeats + 1):
        for name, run in variants.items():
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for i in range(inner):
                run(batches[i % len(batches)])
            if on_gpu:
                torch.cuda.synchronize()
            if round_:  # the first round warms up
                times[name].append((time.perf_counter() - start) / inner * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def machine(device: str) -> str:
    """Return the name of what was measured."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, one thread"


def main() -> None:
    """Measure, print a Markdown table, and optionally write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="100,300,1000", help="numbers of classes N")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine(options.device)}; torch {torch.__version__}; K = 10, J = 3, batch 128, full structure, float32\n")
    columns = ["forward+backward", "whole step", "naive step", "whole / forward+backward", "naive / whole"]
    print("| N | " + " | ".join(f"{c}{'' if '/' in c else ', ms'}" for c in columns) + " |")
    print("|---:|" + "---:|" * len(columns))
    results = []
    for size in map(int, options.sizes.split(",")):
        results.append(measure(size, options.device))
        print(f"| {size} | " + " | ".join(f"{results[-1][c]:.3g}" for c in columns) + " |", flush=True)
    if options.json:
        report = {"machine": machine(options.device), "torch": torch.__version__, "results": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
