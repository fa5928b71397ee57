"""How should the base session be trained? Base classes alone decide: train on a part of each, measure on the rest.

    python benchmarks/choose_base.py mini-imagenet --data ROOT --try crop=64 crop=84,epochs=57 --json base.json
    python benchmarks/choose_base.py cub200 --data ROOT --weights resnet18.pth --try lr=0.01 lr=0.02,area=0.25

Each set of settings is laid over those of the data set and tried with several splits. No test image and no image of a
later session is looked at.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from faverage.experiment.base import train_on
from faverage.experiment.config import RunConfig
from faverage.experiment.pictures import load_pictures
from faverage.fscil.heads import unit
from faverage.vision import extract_features, hold_out


def measure(config: RunConfig, per_class: int) -> dict[str, Any]:
    """Train; return the accuracy on up to ``per_class`` other images of each class, and speed."""
    pictures = load_pictures(config)
    labels, base = pictures.labels, pictures.base
    kept = base[hold_out(labels[base], per_class=per_class, at_most=0.2, seed=config.seed)]
    rest = np.setdiff1d(base, kept)
    start = time.perf_counter()
    model = train_on(config, pictures, rest)
    seconds = time.perf_counter() - start
    options: dict[str, Any] = {"transform": model.transform, "device": config.device}
    seen = [np.asarray(extract_features(model.backbone, pictures.images, rows, **options)) for rows in (rest, kept)]
    means = np.stack([unit(seen[0][labels[rest] == c]).mean(0) for c in range(len(pictures.sessions[0]))])
    said = {
        "accuracy": model.logits(torch.from_numpy(seen[1])).argmax(1).numpy(),
        "by_prototypes": (unit(seen[1]) @ unit(means).T).argmax(1),
    }
    return {
        **{name: float((answers == labels[kept]).mean()) for name, answers in said.items()},
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
    parser.add_argument("--weights")
    parser.add_argument(
        "--try", nargs="+", default=[""], dest="tried", metavar="NAME=VALUE,…", help="settings of a run"
    )
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1], help="seeds of split and training")
    parser.add_argument("--held-out", type=int, default=100, help="images of each class, a fifth of it at most")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("data", "weights", "device")}
    rows: list[dict[str, Any]] = []
    for tried in options.tried:
        settings = {name: yaml.safe_load(value) for name, _, value in (s.partition("=") for s in tried.split(",") if s)}
        for split in options.splits:
            config = RunConfig.build(options.dataset, None, {**given, **settings, "seed": split})
            rows.append({"settings": settings, "split": split, **measure(config, options.held_out)})
            row = rows[-1]
            said = (
                f"{row['accuracy']:.2%} of {row['held_out']} held-out images, {row['by_prototypes']:.2%} by prototypes"
            )
            speed = f"{row['images_per_second']:,.0f} images/s, {row['seconds']:.0f} s"
            print(f"{tried or 'as it is'}, split {split}: {said}, {speed}", flush=True)
            if options.json:
                about = {"torch": torch.__version__, "dataset": options.dataset, "rows": rows}
                options.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
