"""Which training finds new classes best? Base classes alone decide: first step, training and looking.

    python benchmarks/choose_recipe.py mini-imagenet --data ROOT --out FOLDER --trainings plain:100 rotations:40
    python benchmarks/choose_settings.py FOLDER

A third of the base classes is held out as pretend-new: a network is trained on the others, and looks at images of all
of them that it was not trained on. ``choose_settings.py`` then learns the pretend-new classes from five images each,
with any fuser and any setting. No test image and no class of a later session is looked at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.base import start_of
from faverage.experiment.config import RunConfig
from faverage.experiment.pictures import Pictures, load_pictures
from faverage.fscil import CosineHead, Whitening
from faverage.fscil.heads import base_heads, unit
from faverage.vision import Augment, BaseModel, average_weights, extract_features, hold_out, train_base
from faverage.vision.extraction import with_pools
from faverage.vision.together import by_view
from faverage.vision.views import seen_as

Array = NDArray[Any]
PARTS: dict[str, dict[str, Any]] = {
    "plain": {"head": "linear"},
    "cosine": {"head": "cosine"},
    "rotations": {"head": "cosine", "rotations": True},
    "signed": {"signed": True},  # without the last ReLU of the backbone
    "mix": {"mix": 0.5},
    "smooth": {"smoothing": 0.1},
    "contrast": {"contrast": 0.5},
    "again": {"seed": 1000},  # other first weights, order and augmentation
    "soup": {"soup": 2},  # the mean of two networks that start from the same --weights
    "retain": {"retain": 0.5},  # with half of these weights in it
}
VIEWS = ["plain", "rotate-90", "rotate-180", "rotate-270"]
HELD, NEW = 60, 100  # images of each known class that training does not see, and of each pretend-new class to look at


def settings_of(name: str) -> dict[str, Any]:
    """Return the options of ``train_base`` that a name such as ``rotations+mix:40`` stands for; 40 are the epochs.

    >>> settings_of("rotations+smooth:40")
    {'head': 'cosine', 'rotations': True, 'smoothing': 0.1, 'epochs': 40}
    """
    words, _, epochs = name.partition(":")
    found: dict[str, Any] = {}
    for word in words.split("+"):
        if word not in PARTS:
            raise SystemExit(f"unknown part {word!r} of the training {name!r}: use {', '.join(PARTS)}, with + between")
        found |= PARTS[word]
    return found | ({"epochs": int(epochs)} if epochs else {})


class Pretend:
    """A split of the base classes into known and pretend-new ones.

    Args:
        pictures: of the benchmark.
        seed: of the split, and of what is held out.
    """

    def __init__(self, pictures: Pictures, seed: int) -> None:
        self.pictures = pictures
        n_base = len(pictures.sessions[0])
        order = np.random.default_rng([seed, 7]).permutation(n_base)
        self.n_known = n_base - n_base // 3
        number = np.empty(n_base, dtype=np.int64)
        number[order] = np.arange(n_base)
        self.labels = np.where(pictures.labels < n_base, number[np.clip(pictures.labels, 0, n_base - 1)], -1)
        base, y = pictures.base, self.labels[pictures.base]
        kept = hold_out(y, per_class=HELD, at_most=0.3, seed=seed)
        known = y < self.n_known
        held = np.isin(np.arange(len(base)), kept)
        self.train, self.held = base[known & ~held], base[known & held]
        self.new = np.concatenate([base[y == c][:NEW] for c in range(self.n_known, n_base)])

    def look(
        self,
        model: BaseModel,
        views: list[str],
        device: str,
        whiten: float | None = None,
        learn_from: Sequence[str] = (),
    ) -> dict[str, dict[str, Array]]:
        """Return features ``(n, d_v)`` of what training did not see, as float16, prototypes and base heads.

        Those of view v have names that end in ``.v``. With a shrinkage to ``whiten`` features by, prototypes are of
        whitened ones. With views to ``learn_from`` there are as many features, means of what these see, for images
        that a learner learns from.
        """
        model = with_pools(model, views, self.pictures.images, self.train, device=device)
        learned = [[seen_as(view, look) for look in learn_from] or [view] for view in views]
        looks = list(dict.fromkeys([*views, *itertools.chain(*learned)]))
        options: dict[str, Any] = {"transform": model.transform, "views": looks, "device": device}
        y = self.labels[self.train]
        found: dict[str, dict[str, Array]] = {}
        for name, rows in (("train", self.train), ("held", self.held), ("new", self.new)):
            features = extract_features(model.backbone, self.pictures.images, rows, **options)
            every = by_view(features, looks, model.backbone)
            lesson = [np.mean([every[look] for look in names], 0) for names in learned]
            if name == "train":
                fits = [Whitening.fit(x, y, whiten) for x in lesson if whiten is not None]
                seen = [fit(x) for fit, x in zip(fits, lesson, strict=True)] if fits else lesson
                means = [np.stack([unit(x[y == c]).mean(0) for c in range(self.n_known)]) for x in seen]
                continue
            found[name] = {f"features.{v}": every[view].astype(np.float16) for v, view in enumerate(views)}
            found[name]["labels"] = self.labels[rows]
            if learn_from:
                found[name] |= {f"learned_from.{v}": x.astype(np.float16) for v, x in enumerate(lesson)}
        own = base_heads(model, views)
        for v, view in enumerate(views):
            head = own.get(view) or CosineHead(means[v], 16.0, bool(fits))
            cosine = isinstance(head, CosineHead)
            found["held"] |= {
                f"prototypes.{v}": means[v].astype(np.float32),
                f"head_weight.{v}": head.weight,
                f"head_bias.{v}": np.zeros(len(means[v])) if cosine else head.bias,
                f"scale.{v}": np.array(head.scale if cosine else 0.0),
                f"whitened.{v}": np.array(cosine and head.whitened),
                **({f"centre.{v}": fits[v].centre, f"matrix.{v}": fits[v].matrix} if fits else {}),
            }
        return found


def run(options: argparse.Namespace) -> None:
    """Train, look, write."""
    given = {name: getattr(options, name) for name in ("data", "device", "backbone", "weights")}
    config = RunConfig.build(options.dataset, None, given)
    pictures, batch_size = load_pictures(config), options.batch_size or config.batch_size
    options.out.mkdir(parents=True, exist_ok=True)
    for split, name in itertools.product(options.splits, options.trainings):
        kind = name if options.whiten is None else f"{name} whitened {options.whiten}"
        kind += "".join(f" {look}" for look in options.learn_from)
        file = options.out / f"{re.sub('[^a-z0-9]+', '-', kind)}.{split}"
        if file.with_suffix(f"{file.suffix}.json").exists():
            print(f"{name}, split {split}: there already", flush=True)
            continue
        pretend = Pretend(pictures, split)
        lesson = {"epochs": config.epochs, "seed": split} | settings_of(name)
        signed = lesson.pop("signed", False)
        own = replace(config, signed=signed, seed=split)
        augment = Augment(**{**pictures.augment.config(), "size": options.crop or pictures.augment.size})
        start = time.perf_counter()
        first = start_of(own) if own.weights or signed else config.backbone
        train = partial(
            train_base,
            *(pictures.images, pretend.labels),
            backbone=first,
            indices=pretend.train,
            **{"batch_size": batch_size, "lr": config.lr, "weight_decay": config.weight_decay},
            augment=augment,
            transform=pictures.transform,
            device=config.device,
        )
        how = {key: value for key, value in lesson.items() if key not in ("soup", "retain")}
        if how != lesson and own.weights is None:
            raise SystemExit(f"{name}: only networks that start from the same weights have a mean: give --weights")
        models = [train(**{**how, "seed": how["seed"] + 2000 * k}) for k in range(lesson.get("soup", 1))]
        model = models[0]
        if how != lesson:
            retain = lesson.get("retain", 0.0)
            shares = [retain, *[(1 - retain) / len(models)] * len(models)]
            backbone = average_weights([first, *(one.backbone for one in models)], shares)
            head = {"head": "cosine", "scale": 16.0, "config": {**model.config, "head": {"means": True}}}
            model = replace(model, backbone=backbone, **head)
        seconds = time.perf_counter() - start
        for part, arrays in pretend.look(
            model, options.views, config.device, options.whiten, options.learn_from
        ).items():
            np.savez(f"{file}.{part}.npz", **arrays)  # type: ignore[arg-type]
        passes = (4 if lesson.get("rotations") else 1) * model.images_per_second
        about = {
            **{
                "training": name,
                "whiten": options.whiten,
                "learn_from": options.learn_from,
                "split": split,
                "dataset": options.dataset,
                "views": options.views,
            },
            **{"lesson": lesson | {"signed": signed}, "crop": augment.size, "batch_size": batch_size},
            **{"seconds": seconds, "passes_per_second": passes},
            **{"loss": model.history["loss"][-1], "accuracy": model.history["accuracy"][-1]},
            "ran": model.config["ran"],
        }
        Path(f"{file}.json").write_text(json.dumps(about, indent=1) + "\n")
        said = f"{seconds:.0f} s, {passes:,.0f} passes/s, {model.config['ran']['step']}"
        print(f"{name}, split {split}: {said}, accuracy on training batches {about['accuracy']:.3f}", flush=True)


def main() -> None:
    """Parse the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--data")
    parser.add_argument("--out", type=Path, required=True, help="folder for what the networks saw")
    parser.add_argument("--trainings", nargs="+", default=["plain", "rotations"], help="PART+PART:EPOCHS")
    parser.add_argument("--views", nargs="+", default=VIEWS)
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument("--crop", type=int, help="side of the training crops")
    parser.add_argument("--batch-size", type=int, help="images; the learning rate stays")
    parser.add_argument("--whiten", type=float, help="shrinkage to whiten features by")
    parser.add_argument("--learn-from", nargs="+", default=[], help="views that images to learn from are seen in")
    parser.add_argument("--backbone")
    parser.add_argument("--weights", help="a checkpoint that the networks start from")
    parser.add_argument("--device", default="auto")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
