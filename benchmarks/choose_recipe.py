"""Which training, which views and which settings find new classes best? Base classes alone decide.

    python benchmarks/choose_recipe.py mini-imagenet --data ROOT --trainings plain turned --json choose.json

A third of the base classes is held out as pretend-new: a network is trained on the others, then learns the held-out
ones from five images each, and is measured on other images of both. No test image and no class of a later session is
looked at. Every training is measured with every setting, over several draws of the five images.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed

from faverage.experiment.config import RunConfig
from faverage.experiment.features import base_heads
from faverage.experiment.pictures import Pictures, load_pictures
from faverage.fscil import ViewLearner, session_metrics
from faverage.fscil.heads import unit
from faverage.fusion import get_fuser
from faverage.vision import BaseModel, extract_features, hold_out, train_base

TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {"head": "linear"},
    "cosine": {"head": "cosine"},
    "turned": {"head": "cosine", "turned": True},
}
TURNS = ["plain", "turn-1", "turn-2", "turn-3"]
PER_CLASS = {"structure": "per_class", "output": "power"}
FUSERS: dict[str, Any] = {
    **{name: name for name in ("prototypes", "arithmetic", "geometric", "log-pool", "logistic", "afa")},
    "afa, power": get_fuser("afa-paper", **PER_CLASS, epochs=40),
    "afa, geometric power": get_fuser("afa-paper", **PER_CLASS, means=["geometric"], epochs=40),
    "afa, chosen by itself": get_fuser("afa"),
}
SETTINGS: dict[str, list[Any]] = {
    "fuser": list(FUSERS),
    "spread": [1.0],
    "calibration": [0.0],
    "balance": [1.0],
}
KNOBS = {"spread": [0.7, 0.85, 1.15, 1.3], "calibration": [0.1, 0.2, 0.35, 0.5], "balance": [0.5, 0.7, 1.4, 2.0]}
MEMORY = 20  # held-out images of each class that rehearsal may see; the others measure


def settings(views: list[str]) -> list[dict[str, Any]]:
    """Return what to compare: all fusers, and ``afa`` with one knob turned at a time."""
    grid = [dict(zip(SETTINGS, values, strict=True)) for values in itertools.product(*SETTINGS.values())]
    plain = {"fuser": "afa", "spread": 1.0, "calibration": 0.0, "balance": 1.0}
    grid += [{**plain, name: value} for name, values in KNOBS.items() for value in values]
    return [{**one, "views": views} for one in grid]


class Pretend:
    """A split of the base classes, and what a network trained on the known ones sees of all of them.

    Args:
        pictures: of the benchmark.
        seed: of the split, and of what is held out.
        per_class: images of each class that are kept out of training.
    """

    def __init__(self, pictures: Pictures, seed: int, per_class: int) -> None:
        self.pictures = pictures
        n_base = len(pictures.sessions[0])
        order = np.random.default_rng([seed, 7]).permutation(n_base)
        self.n_known = n_base - n_base // 3
        number = np.empty(n_base, dtype=np.int64)
        number[order] = np.arange(n_base)
        self.labels = np.where(pictures.labels < n_base, number[np.clip(pictures.labels, 0, n_base - 1)], -1)
        base, y = pictures.base, self.labels[pictures.base]
        kept = hold_out(y, per_class=per_class, at_most=0.3, seed=seed)
        known = y < self.n_known
        held = np.isin(np.arange(len(base)), kept)
        self.train, self.held, self.new = base[known & ~held], base[known & held], base[~known]

    def look(self, model: BaseModel, views: list[str], device: str) -> dict[str, Any]:
        """Return features of all parts, prototypes and base heads, those of all views side by side."""
        options: dict[str, Any] = {"transform": model.transform, "views": views, "device": device}
        images = self.pictures.images
        train, held, new = (
            extract_features(model.backbone, images, rows, **options) for rows in (self.train, self.held, self.new)
        )
        parts = np.split(train, len(views), axis=1)
        y = self.labels[self.train]
        means = [np.stack([unit(part[y == c]).mean(0) for c in range(self.n_known)]) for part in parts]
        return {"held": held, "new": new, "prototypes": np.concatenate(means, 1), "heads": base_heads(model, views)}

    def measure(self, seen: dict[str, Any], setting: dict[str, Any], draw: int, width: int) -> dict[str, float]:
        """Learn all pretend-new classes from five images each, in one session; return the metrics."""
        columns = np.concatenate([np.arange(v * width, (v + 1) * width) for v in setting["places"]])
        rng = np.random.default_rng([draw, 3])
        y_held, y_new = self.labels[self.held], self.labels[self.new]
        memory = np.concatenate([rng.permutation(np.flatnonzero(y_held == c))[:MEMORY] for c in range(self.n_known)])
        shots = np.concatenate([rng.permutation(np.flatnonzero(y_new == c))[:5] for c in np.unique(y_new)])
        options = {name: setting[name] for name in ("spread", "calibration", "balance")}
        learner = ViewLearner(setting["views"], FUSERS[setting["fuser"]], seed=draw, **options)
        chosen = [seen["heads"][v] for v in setting["places"]]
        learner.fit_base(
            seen["held"][memory][:, columns],
            y_held[memory],
            head=chosen,
            prototypes=seen["prototypes"][:, columns],
        )
        learner.learn_session(seen["new"][shots][:, columns], y_new[shots])
        tests = np.setdiff1d(np.arange(len(y_held)), memory)
        per_class = len(tests) // self.n_known
        rest = [np.setdiff1d(np.flatnonzero(y_new == c), shots)[:per_class] for c in np.unique(y_new)]
        others = np.concatenate(rest)
        X = np.concatenate([seen["held"][tests], seen["new"][others]])[:, columns]
        truth = np.concatenate([y_held[tests], y_new[others]])
        said = learner.predict(X)
        sessions = [np.arange(self.n_known), np.unique(y_new)]
        found = session_metrics(truth, said, sessions)
        return {name: found[name] for name in ("f1", "accuracy", "base", "new")}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, look, measure."""
    given = {name: getattr(options, name) for name in ("data", "device", "backbone")}
    config = RunConfig.build(options.dataset, None, given)
    pictures = load_pictures(config)
    rows: list[dict[str, Any]] = []
    trained: list[dict[str, Any]] = []
    for split, name in itertools.product(range(options.splits), options.trainings):
        pretend = Pretend(pictures, split, options.held_out)
        training, _, epochs = name.partition(":")
        start = time.perf_counter()
        model = train_base(
            *(pictures.images, pretend.labels),
            backbone=config.backbone,
            indices=pretend.train,
            epochs=int(epochs or config.epochs),
            **{"batch_size": config.batch_size, "lr": config.lr, "weight_decay": config.weight_decay},
            augment=pictures.augment,
            transform=pictures.transform,
            device=config.device,
            seed=split,
            **TRAININGS[training],
        )
        seconds = time.perf_counter() - start
        seen = pretend.look(model, options.views, config.device)
        width = seen["held"].shape[1] // len(options.views)
        about = {"training": name, "split": split, "seconds": seconds, "images_per_second": model.images_per_second}
        trained.append({**about, "loss": model.history["loss"][-1], "looking": time.perf_counter() - start - seconds})
        print(f"{name}, split {split}: {seconds:.0f} s, {model.images_per_second:,.0f} images/s", flush=True)
        subsets = [
            options.views[:count] for count in dict.fromkeys([1, *options.counts]) if count <= len(options.views)
        ]
        todo = [
            (setting | {"places": [options.views.index(view) for view in setting["views"]]}, draw)
            for views in subsets
            for setting in settings(views)
            for draw in range(options.draws)
        ]
        jobs = Parallel(n_jobs=options.jobs)
        found = jobs(delayed(pretend.measure)(seen, setting, draw, width) for setting, draw in todo)
        for (setting, draw), metrics in zip(todo, found, strict=True):
            rows.append({"training": name, "split": split, "draw": draw, **setting, **metrics})
        show(rows, name)
        if options.json:
            about = {"torch": torch.__version__, "config": config.to_dict(), "trained": trained, "rows": rows}
            options.json.write_text(json.dumps(about, indent=1) + "\n")
    return {"trained": trained, "rows": rows}


def show(rows: list[dict[str, Any]], training: str) -> None:
    """Print mean F1, base and new accuracy of each setting, over splits and draws."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["training"] == training:
            knobs = [f"{k} {row[k]}" for k in KNOBS if row[k] != SETTINGS[k][0]]
            groups.setdefault(", ".join([f"{len(row['views'])} views", row["fuser"], *knobs]), []).append(row)
    for name, group in groups.items():
        means = {k: 100 * float(np.mean([row[k] for row in group])) for k in ("f1", "base", "new")}
        print(
            f"  {training}, {name}: F1 {means['f1']:.2f}, base {means['base']:.2f}, new {means['new']:.2f}", flush=True
        )


def main() -> None:
    """Parse the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--data")
    parser.add_argument("--trainings", nargs="+", default=list(TRAININGS), help="NAME or NAME:EPOCHS")
    parser.add_argument("--views", nargs="+", default=TURNS)
    parser.add_argument("--counts", type=int, nargs="+", default=[4], help="how many of the views to fuse")
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=60, help="images of each class")
    parser.add_argument("--backbone")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--json", type=Path)
    run(parser.parse_args())


if __name__ == "__main__":
    main()
