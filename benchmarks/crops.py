"""Which side should training crops have? Base classes alone decide: train on a part of each, measure on the rest.

    python benchmarks/crops.py mini-imagenet --data ROOT --sides 64 72 84 --json crops.json

Random resized crops show objects larger than the evaluation does, so smaller crops than the images may be better as
well as cheaper. No test image and no image of a later session is looked at.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faverage.experiment.base import train_on
from faverage.experiment.config import RunConfig
from faverage.experiment.pictures import load_pictures
from faverage.vision import extract_features, hold_out


def measure(config: RunConfig, side: int, per_class: int) -> dict[str, Any]:
    """Train with crops of ``side`` px; return accuracy on ``per_class`` other images of each class, and speed."""
    pictures = load_pictures(replace(config, crop=side))
    labels, base = pictures.labels, pictures.base
    kept = base[hold_out(labels[base], per_class=per_class, at_most=0.2, seed=config.seed)]
    rest = np.setdiff1d(base, kept)
    start = time.perf_counter()
    model = train_on(config, pictures, rest)
    seconds = time.perf_counter() - start
    options: dict[str, Any] = {"transform": model.transform, "device": config.device}
    features = extract_features(model.backbone, pictures.images, kept, **options)
    said = model.logits(torch.from_numpy(np.asarray(features))).argmax(1).numpy()
    return {
        "side": side,
        "accuracy": float((said == labels[kept]).mean()),
        "held_out": len(kept),
        "trained_on": len(rest),
        "seconds": seconds,
        "images_per_second": model.images_per_second,
        "last_training_loss": model.history["loss"][-1],
        "ran": model.config["ran"],
    }


def main() -> None:
    """Parse the options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--data")
    parser.add_argument("--sides", type=int, nargs="+", default=[64, 72, 84])
    parser.add_argument("--held-out", type=int, default=100, help="images of each class, a fifth of it at most")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--backbone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("data", "epochs", "backbone", "device", "seed")}
    config = RunConfig.build(options.dataset, None, given)
    rows = []
    for side in options.sides:
        rows.append(measure(config, side, options.held_out))
        row = rows[-1]
        print(
            f"{side} px: {row['accuracy']:.2%} of {row['held_out']} held-out images, "
            f"{row['images_per_second']:,.0f} images/s, {row['seconds']:.0f} s",
            flush=True,
        )
        if options.json:
            about = {"torch": torch.__version__, "config": config.to_dict(), "rows": rows}
            options.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
