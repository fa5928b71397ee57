"""Images per second of base training on random images: plain, compiled, captured, and both.

    python benchmarks/train_speed.py                                # the GPU if there is one
    python benchmarks/train_speed.py --modes default max-autotune-no-cudagraphs
    python benchmarks/train_speed.py --device cpu --side 32 --steps 4 --backbone tiny
    python benchmarks/train_speed.py --json out.json --profile 25   # the numbers as data; the 25 costliest kernels
    python benchmarks/train_speed.py --crop 64 --rotations --batch-size 64 --steps 200   # training of --recipe best

Each variant trains for some epochs of ``--steps`` steps. The first epoch warms up; the speed is that of the median of
the others, from gathering the batch to the optimiser's step. Compiling is not counted in it but shown beside it. The
share is that of the rate of large matrix products, measured in the same run: three times the arithmetic of a forward
pass, for every pass of an image.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from faverage.vision import get_backbone, train_base, transforms_for


def measure(options: argparse.Namespace, images: np.ndarray, labels: np.ndarray, **variant: Any) -> dict[str, Any]:
    """Train with one variant of the step and return its speed."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = train_base(
            *(images, labels),
            backbone=get_backbone(options.backbone),
            epochs=1 + options.epochs,
            batch_size=options.batch_size,
            device=options.device,
            precision=options.precision,
            lr=0.01,
            augment=transforms_for(options.side, crop=options.crop)[0],
            rotations=options.rotations,
            head="cosine" if options.rotations else "linear",
            **variant,
        )
    whole = time.perf_counter() - start
    seconds = model.history["seconds"]
    size = min(options.batch_size, len(images))
    return {
        "asked": variant,
        "ran": model.config["ran"],
        "images_per_second": len(images) // size * size / statistics.median(seconds[1:]),
        "spread": [len(images) / max(seconds[1:]), len(images) / min(seconds[1:])],
        "seconds_to_start": whole - sum(seconds),
        "last_loss": model.history["loss"][-1],
        "gpu_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None,
        "warnings": sorted({str(w.message) for w in caught if "failed" in str(w.message)}),
    }


def matrix_rate(device: str, precision: str) -> float:
    """Return the floating-point operations a second of large matrix products, the best of ten."""
    on_gpu = device != "cpu" and torch.cuda.is_available()
    n, kind = (8192, torch.bfloat16) if on_gpu and precision != "float32" else (2048, torch.float32)
    a, b = (torch.randn(n, n, device="cuda" if on_gpu else "cpu", dtype=kind) for _ in range(2))
    seconds = []
    for _ in range(13):
        start = time.perf_counter()
        a @ b
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return float(2 * n**3 / min(seconds[3:]))


def work(options: argparse.Namespace) -> float:
    """Return the floating-point operations that training spends on one image."""
    size = transforms_for(options.side, crop=options.crop)[0].size
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        get_backbone(options.backbone).eval()(torch.zeros(1, 3, size, size))
    return 3.0 * counter.get_total_flops() * (4 if options.rotations else 1)


def profile(options: argparse.Namespace, images: np.ndarray, labels: np.ndarray, **variant: Any) -> str:
    """Return a table of the costliest kernels of a training of one short epoch after a warm-up epoch."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    recorder = torch.profiler.profile(activities=activities)

    def record(epoch: int, row: dict[str, float]) -> None:
        recorder.start() if epoch == 0 else recorder.stop()

    few = slice(0, 20 * options.batch_size)
    train_base(
        *(images[few], labels[few]),
        backbone=get_backbone(options.backbone),
        epochs=2,
        batch_size=options.batch_size,
        device=options.device,
        precision=options.precision,
        on_epoch=record,
        **variant,
    )
    order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    return str(recorder.key_averages().table(sort_by=order, row_limit=options.profile, max_name_column_width=90))


def variants(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the variants to compare: on a CPU there is only the plain one."""
    if options.device == "cpu" or (options.device == "auto" and not torch.cuda.is_available()):
        return [{"compile": False, "capture": False}]
    modes = [{"compile": mode, "capture": capture} for mode in options.modes for capture in (False, True)]
    return [{"compile": False, "capture": False}, {"compile": False, "capture": True}, *modes]


def main() -> None:
    """Parse the options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", default="resnet18_small")
    parser.add_argument("--side", type=int, default=84, help="of the stored images, in pixels")
    parser.add_argument("--crop", type=int, help="side of the training crops")
    parser.add_argument("--rotations", action="store_true", help="every image in four rotations")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100, help="an epoch")
    parser.add_argument("--epochs", type=int, default=3, help="measured, after one that warms up")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--modes", nargs="*", default=["default"], help="modes of torch.compile to try")
    parser.add_argument("--profile", type=int, default=0, metavar="ROWS", help="show the costliest kernels, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    generator = np.random.default_rng(0)
    n = options.steps * options.batch_size
    images = generator.integers(0, 256, (n, options.side, options.side, 3), dtype=np.uint8)
    labels = np.arange(n) % min(60, n)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() and options.device != "cpu" else None
    print(f"torch {torch.__version__}, {gpu or platform.processor() or 'CPU'}: {options.backbone} at {options.side} px")
    rate = matrix_rate(options.device, options.precision)
    print(f"large matrix products: {rate / 1e12:,.1f} TFLOP/s")
    rows: list[dict[str, Any]] = []
    for variant in variants(options):
        row = measure(options, images, labels, **variant)
        row["ratio"] = row["images_per_second"] / rows[0]["images_per_second"] if rows else 1.0
        row["share"] = row["images_per_second"] * work(options) / rate
        rows.append(row)
        mode = f" ({variant['compile']})" if variant["compile"] else ""
        print(
            f"{row['ran']['step'] + mode:40s} {row['images_per_second']:10,.0f} images/s  x{row['ratio']:.2f}"
            f"  {row['share']:.0%} of the matrix rate  ready after {row['seconds_to_start']:.1f} s",
            *row["warnings"],
            sep="\n  " if row["warnings"] else " ",
            flush=True,
        )
    if options.json:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        about = {"torch": torch.__version__, "gpu": gpu, "matrix_rate": rate, "settings": settings, "rows": rows}
        options.json.write_text(json.dumps(about, indent=1) + "\n")
    if options.profile:
        best = max(rows, key=lambda row: row["images_per_second"])["asked"]
        print(profile(options, images, labels, **{**best, "capture": False}))


if __name__ == "__main__":
    main()
