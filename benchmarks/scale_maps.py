"""Time and memory of fusing segmentation maps that lie on disk, for growing numbers of images.

    python benchmarks/scale_maps.py /path/to/a/folder                # 16, 64 and 256 images, files of 1.1 GB in all
    python benchmarks/scale_maps.py /path/to/a/folder --images 4 8   # a quick look

Four members give logits of eight classes in half precision; the last two know five classes each. Each number of images
is a process of its own on one thread: fit on the first half, probabilities of all images into a memory map, accuracy
and mean IoU on the second half. Times are of the processor. "Own memory" is the peak of RssAnon above that after the
imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scale_rows import OwnMemory, memory

from faverage.fusion import MapFuser

SIDE, N = 256, 8
KNOWN = [list(range(8)), list(range(8)), [0, 1, 2, 3, 4], [0, 4, 5, 6, 7]]


def make(folder: Path, images: int, seed: int = 0) -> None:
    """Write labels of regions around random points, a border to ignore, and noisy logits of each member."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), -1)
    labels = np.empty((images, SIDE, SIDE), dtype=np.uint8)
    shapes = [(images, len(known), SIDE, SIDE) for known in KNOWN]
    out = [
        np.lib.format.open_memmap(folder / f"{k}.npy", mode="w+", dtype=np.float16, shape=shape)
        for k, shape in enumerate(shapes)
    ]
    for i in range(images):
        centres = rng.integers(0, SIDE, (12, 2))
        nearest = ((grid[:, :, None] - centres) ** 2).sum(-1).argmin(-1)
        truth = np.minimum(rng.geometric(0.3, 12) - 1, N - 1)[nearest]
        labels[i] = truth
        labels[i, :2] = 255
        for k, known in enumerate(KNOWN):
            skill = np.roll(np.linspace(2.5, 0.3, N), 2 * k)[truth] * (truth == np.array(known)[:, None, None])
            out[k][i] = rng.standard_normal((len(known), SIDE, SIDE), dtype=np.float32) + skill
    np.save(folder / "labels.npy", labels)


def measure(folder: Path, fuser: str) -> dict[str, float]:
    """Fit, predict and judge in this process."""
    before = memory("RssAnon")
    watch = OwnMemory()
    maps = [np.load(folder / f"{k}.npy", mmap_mode="r") for k in range(len(KNOWN))]
    labels = np.load(folder / "labels.npy", mmap_mode="r")
    half, out = len(labels) // 2, folder / "fused.npy"
    fused = np.lib.format.open_memmap(out, mode="w+", dtype=np.float16, shape=(len(labels), N, SIDE, SIDE))
    start = time.process_time()
    model = MapFuser(fuser).fit([m[:half] for m in maps], labels[:half], KNOWN)
    fitted = time.process_time()
    model.predict_proba(maps, out=fused)
    done = time.process_time()
    found = model.evaluate([m[half:] for m in maps], labels[half:])
    rate = labels.size / (done - fitted) / 1e6
    own = (watch.peak - before) / 1e6
    return {
        "fit": fitted - start, "rate": rate, "own": own, "accuracy": 100 * found.accuracy, "iou": 100 * found.mean_iou
    }  # fmt: skip


def main() -> None:
    """Make the files, measure each size in a fresh process, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to make the temporary files")
    parser.add_argument("--images", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--fusers", nargs="+", default=["afa", "arithmetic"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.folder, options.child)))
        return
    print(
        "| fuser | images | files, MB | fit, s | million pixels a second | own memory, MB | accuracy % | mean IoU % |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for images in options.images:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            make(Path(folder), images)
            size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
            for fuser in options.fusers:
                command = [sys.executable, __file__, folder, "--child", fuser]
                env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
                found = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)
                cells = f"{found['fit']:.1f} | {found['rate']:.2f} | {found['own']:.0f} | {found['accuracy']:.1f}"
                print(f"| {fuser} | {images} | {size:.0f} | {cells} | {found['iou']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
