"""The base classes of a model: from a folder of photos, or from a finished run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from faverage.app.folder import check_absent
from faverage.app.model import Model
from faverage.app.names import ModelError, clean_name
from faverage.data.benchmark import shown
from faverage.data.sources import Item, class_folders, class_items
from faverage.data.store import open_store
from faverage.fscil import FewShotLearner
from faverage.fscil.heads import base_heads, unit
from faverage.vision import (
    BaseModel,
    Team,
    backbone_names,
    extract_features,
    get_backbone,
    hold_out,
    load_weights,
    train_base,
)
from faverage.vision import transforms_for as usual_transforms

__all__ = ["Trained", "base_learner", "train_from_run", "train_model"]

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]

SIDES = {"resnet18_small": 84, "resnet18_large": 256}  # side of the stored squares
TINY = 32
LAYOUT = "expected one sub-folder a class, such as IMAGES/cat/1.jpg and IMAGES/dog/2.png"


@dataclass(frozen=True)
class Trained:
    """A new model, and how well it does on the pictures that were held out.

    Attributes:
        model: in its folder.
        accuracy: share of right answers.
        held_out: number of these pictures.
    """

    model: Model
    accuracy: float
    held_out: int


def train_model(
    folder: Path,
    out: Path,
    *,
    epochs: int | None = None,
    backbone: str | None = None,
    weights: Path | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Trained:
    """Train on a folder with one sub-folder a class, and write the model to ``out``.

    A training that was stopped goes on where it was.

    Args:
        folder: of the photos, of any size; of ``train`` and ``test`` in it, the first is used.
        out: the folder of the model; it must not exist yet.
        epochs: passes over the photos; by default 50, or 20 for ``tiny``.
        backbone: a name; by default ``resnet18_small``, and ``tiny`` where no photo is larger than 32 pixels.
        weights: a checkpoint for the backbone to start from.
        device: where to train.
        seed: of everything that is drawn.
        progress: hears what is being done.
    """
    check_absent(out)
    if backbone is not None and backbone not in backbone_names():
        raise ModelError(f"unknown backbone '{backbone}': choose from {', '.join(backbone_names())}")
    names, items = _classes(folder)
    progress("looking at the photos", 0, 0)
    largest = _largest(items)
    name = backbone or ("tiny" if largest <= TINY else "resnet18_small")
    side = SIDES.get(name) or max(8, min(largest, TINY))
    network: Any = name if weights is None else load_weights(get_backbone(name), weights)
    images, kept, skipped = open_store("photos", items, side)
    if skipped:
        first = "; ".join(f"{shown(image)} ({reason})" for image, reason in skipped[:3])
        warnings.warn(f"left out {len(skipped):,} of {len(items):,} files: {first}", stacklevel=2)
    numbers = np.array([items[i].label for i in kept])
    for c, count in enumerate(np.bincount(numbers, minlength=len(names))):
        if count < 2:
            what = f"{count} photo{'' if count == 1 else 's'} that can be read"
            raise ModelError(
                f"the class '{names[c]}' has {what}: at least 2 are needed; add some, or remove the folder"
            )
    aside = np.isin(np.arange(len(numbers)), hold_out(numbers, small="drawn", seed=seed))
    batch = int(min(128, max(8, (~aside).sum() // 16)))
    augment, transform = usual_transforms(side, crop=64 if side == 84 else None)
    progress("training", 0, 0)
    checkpoint = out.parent / f".{out.name}.training.safetensors"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    train = partial(
        train_base,
        *(images, numbers),
        backbone=network,
        indices=np.flatnonzero(~aside),
        epochs=epochs or (20 if name == "tiny" else 50),
        batch_size=batch,
        lr=0.1 * batch / 128 if name != "tiny" and batch > 32 else 0.025,
        augment=augment,
        transform=transform,
        device=device,
        seed=seed,
        checkpoint=checkpoint,
        progress=True,
    )
    from faverage.experiment.resume import trained

    model = trained(train, checkpoint, Team())
    progress("learning the classes", 0, 0)
    made = _finish(model, out, images, numbers, names, aside, device, seed)
    checkpoint.unlink(missing_ok=True)
    return made


def train_from_run(run: Path, out: Path, *, device: str = "auto", progress: Progress = lambda *_: None) -> Trained:
    """Make a model of the base session of a finished ``faverage run``; its images are needed once more."""
    from faverage.experiment.pictures import load_pictures
    from faverage.experiment.run import finished_run

    check_absent(out)
    config, file = finished_run(run)
    model = BaseModel.load(file)
    progress("loading images", 0, 0)
    pictures = load_pictures(config)
    names = [_clean(pictures.class_names[c]) for c in pictures.sessions[0]]
    rows = pictures.base
    aside = np.isin(rows, pictures.kept)
    progress("learning the classes", 0, 0)
    return _finish(model, out, pictures.images[rows], pictures.labels[rows], names, aside, device, config.seed)


def base_learner(
    model: BaseModel, images: Array, numbers: Array, names: Sequence[str], aside: Array, *, device: str, seed: int
) -> FewShotLearner:
    """Return a learner of base classes whose backbone and head are trained.

    Args:
        model: trained on what is not held out.
        images: uint8 ``(n, S, S, 3)``.
        numbers: class of each, in 0 … C-1.
        names: of the C classes.
        aside: mask of the images that were held out; they become the memory.
        device: where to look at the images.
        seed: of the learner.
    """
    rest = np.flatnonzero(~aside)
    features = extract_features(model.backbone, images, rest, transform=model.transform, device=device, progress=True)
    means = np.stack([unit(features[numbers[rest] == c]).mean(0) for c in range(len(names))])
    order = np.argsort(np.array(names))  # a learner has its base classes in this order
    head = base_heads(model, ["plain"])[0].of_rows(order)
    labels = np.array(names)[numbers[aside]]
    return FewShotLearner(model, device=device, seed=seed).fit_base(
        images[aside], labels, head=head, prototypes=means[order]
    )


def _finish(
    model: BaseModel, out: Path, images: Array, numbers: Array, names: list[str], aside: Array, device: str, seed: int
) -> Trained:
    learner = base_learner(model, images, numbers, names, aside, device=device, seed=seed)
    said = learner.predict(images[aside])
    own = {name: np.flatnonzero(numbers == c) for c, name in enumerate(names)}
    made = Model.create(
        out,
        learner,
        side=images.shape[1],
        counts={name: len(rows) for name, rows in own.items()},
        thumbnails={name: [images[i] for i in rows[:5]] for name, rows in own.items()},
        device=device,
    )
    accuracy = float((said == np.array(names)[numbers[aside]]).mean())
    return Trained(made, accuracy, int(aside.sum()))


def _classes(folder: Path) -> tuple[list[str], list[Item]]:
    """Return the clean names of the classes and their image files."""
    if not folder.is_dir():
        raise ModelError(f"the folder {folder} does not exist: {LAYOUT}")
    parts = {sub.name: sub for sub in class_folders(folder)}
    if "train" in parts and set(parts) <= {"train", "test", "val"}:
        folder = parts["train"]
    found, items = class_items(folder)
    if len(found) < 2:
        words = "no sub-folder" if not found else "one sub-folder"
        raise ModelError(f"{folder} has {words}, at least 2 classes are needed: {LAYOUT}")
    if not items:
        raise ModelError(f"{folder} has {len(found)} sub-folders, but no images in them: {LAYOUT}")
    names = [_clean(name) for name in found]
    for name in names:
        if names.count(name) > 1:
            raise ModelError(f"{folder} has {names.count(name)} sub-folders for the class '{name}': make them one")
    return names, items


def _clean(name: str) -> str:
    try:
        return clean_name(name)
    except ModelError as error:
        raise ModelError(f"the class '{shown(name)}': {error}") from None


def _largest(items: Sequence[Item]) -> int:
    """Return the longest side among the photos, looking at a few hundred of them at most."""
    largest = 0
    for item in items[:: max(1, len(items) // 300)]:
        if not item.file.is_file():  # a pipe would make us wait
            continue
        try:
            with Image.open(item.file) as opened:
                largest = max(largest, *opened.size)
        except Exception:  # what cannot be read is left out later, with words
            continue
    return largest or SIDES["resnet18_small"]
