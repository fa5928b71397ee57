"""What the base session of a run will cost, said before it starts: passes of every network, and about how long."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faverage.experiment.code import features_folder, work_folder
from faverage.experiment.config import RIVAL_METHODS, RunConfig
from faverage.experiment.pictures import Pictures, seen_by
from faverage.experiment.rivals import rival_recipe
from faverage.storage import read_json, read_tensors
from faverage.vision.objectives import ROTATIONS
from faverage.vision.views import get_views, passes

if TYPE_CHECKING:
    import torch

    from faverage.vision import Augment

__all__ = ["Left", "flops", "in_words", "left_of"]

_LITTLE = 3e12  # operations that are not worth a probe: a minute or so of one core
_HOUR = 3600.0


@dataclass(frozen=True)
class Left:
    """What is left to do of one network.

    Attributes:
        backbone: its name.
        augment: its training transform.
        progressive: sides of crops before those, each for an equal share of the epochs.
        sides: of the stored images, and of those that features are extracted from.
        step: images a step.
        images: to train on.
        epochs: to train.
        rotations: in which it sees each training image.
        teachers: backbones of the networks that see the same images beside it, forward alone.
        wanted: images to extract features of.
        looked: passes of extraction, each forward alone.
        rival: whose network it is; empty: the run's own. Of rivals the first training of their base session counts.
    """

    backbone: str
    augment: Augment
    sides: tuple[int, int]
    step: int
    images: int
    epochs: int
    progressive: tuple[int, ...] = ()
    rotations: int = 1
    teachers: tuple[str, ...] = ()
    wanted: int = 0
    looked: int = 0
    rival: str = ""

    @property
    def seen(self) -> int:
        """Passes of training, each forward and backward; an epoch leaves its incomplete last batch out."""
        step = min(self.step, self.images)
        return self.epochs * (self.images // step * step) * self.rotations

    @property
    def crops(self) -> tuple[int, ...]:
        """Sides of its training crops, one after the other."""
        return (*self.progressive, self.augment.size)

    @property
    def operations(self) -> float:
        """Floating-point operations; a pass backward takes two passes forward."""
        each = [self.backbone] * 3 + list(self.teachers) if self.seen else []
        trained = self.seen * sum(flops(backbone, side) for backbone in each for side in self.crops) / len(self.crops)
        return trained + (self.looked * flops(self.backbone, self.sides[1]) if self.looked else 0)


def left_of(config: RunConfig, pictures: Pictures, work: Path) -> list[Left]:
    """Return what is left to do before the methods of one seed and order of the classes, for every network.

    Args:
        config: of one seed.
        pictures: the images.
        work: folder of the networks' folders, where what an earlier run left counts as done.
    """
    found: list[Left] = []
    rivals = [method for method in config.methods if method in RIVAL_METHODS]
    wanted = len(pictures.wanted)
    trained: set[Path] = set()  # a teacher may be another network of the run, too
    for one in config.each if len(rivals) < len(config.methods) else ():
        others = [*one.averaged, *(t for other in one.averaged or (one,) for t in other.taught)] if one.epochs else []
        found += [_training(other, seen_by(other, pictures), work, trained) for other in others]
        own = _training(one, seen_by(one, pictures) if config.networks else pictures, work, trained)
        folder = work_folder(one, work, pictures.order)
        rows = max(wanted - (0 if own.epochs else _rows_in(features_folder(one, folder), one.looks)), 0)
        found.append(replace(own, wanted=rows, looked=own.looked + rows * passes(one.looks)))
    for method in rivals:
        if any(work_folder(config, work, pictures.order).glob(f"{method}-*/base.json")):
            continue
        recipe, wants = rival_recipe(method, config)
        base: dict[str, Any] = recipe.get("base", {})
        found.append(
            Left(
                backbone=wants.get("backbone", config.backbone),
                augment=pictures.augment,
                sides=(pictures.images.shape[1], pictures.transform.size),
                step=base.get("batch_size", config.batch_size),
                images=len(pictures.base),
                epochs=base.get("epochs", 0),
                rival=method,
            )
        )
    return found


def _training(config: RunConfig, pictures: Pictures, work: Path, trained: set[Path]) -> Left:
    """Return what is left to train of one network, those before it apart; ``trained`` are the folders of these."""
    folder, rest = work_folder(config, work, pictures.order), len(np.setdiff1d(pictures.base, pictures.kept))
    done = config.epochs if folder in trained or config.averaged else _epochs_in(folder / "base-checkpoint.safetensors")
    trained.add(folder)
    return Left(
        backbone=config.backbone,
        augment=pictures.augment,
        sides=(pictures.images.shape[1], pictures.transform.size),
        progressive=tuple(config.progressive),
        rotations=ROTATIONS if config.rotations else 1,
        step=config.batch_size,
        images=rest,
        epochs=max(config.epochs - done, 0),
        teachers=tuple(one.backbone for one in config.taught),
        looked=rest if config.averaged or not config.epochs else 0,  # one that is not trained has means for a head
    )


def in_words(left: Sequence[Left], device: torch.device, processes: int = 1) -> str:
    """Return what is to be done, and about how long it takes here, in sentences; empty where there is nothing.

    The time is left out where there is little to do; otherwise the speed is measured, in about two seconds.

    Args:
        left: what every network of a run has left to do.
        device: of the run.
        processes: that share it.
    """
    operations = sum(one.operations for one in left)
    if not operations:
        return ""
    said = f"Base session: {'; '.join(_parts(left))}."
    if operations < _LITTLE:
        return said
    hardest = max(left, key=lambda one: one.operations)
    speed = processes * _passes_per_second(hardest, device)
    seconds = operations / (speed * 3 * flops(hardest.backbone, hardest.augment.size))
    on_gpu, rivals = device.type == "cuda", any(one.rival for one in left)
    faster = on_gpu and processes == 1  # a team's steps are not compiled
    bound = "About" if faster == rivals else "At most about" if faster else "At least about"
    measured = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
    said += (
        f" {bound} {_time(seconds)} on this {'GPU' if on_gpu else 'CPU'} ({measured} training passes a second, measured"
        f" now{', before compiling' if faster else ''}); what is found in the work folder is not done again."
    )
    if on_gpu or seconds < _HOUR:
        return said
    cheaper = {
        "a GPU": True,
        "ready features (--features FILE, written elsewhere by --save-features)": not rivals,  # they need images
        "fewer --epochs": any(one.epochs for one in left),
        "fewer passes an image (--passes N)": any(one.looked > one.wanted > 0 for one in left),
    }
    return f"{said}\nCheaper: {'; '.join(way for way, helps in cheaper.items() if helps)}."


def _parts(left: Sequence[Left]) -> list[str]:
    """Return what the networks of the run train, what they extract, and what rivals train, each in words."""
    own = [one for one in left if one.epochs and not one.rival]
    rivals = [one for one in left if one.rival]
    parts = []
    if own:
        epochs: Counter[str] = Counter()
        for one in own:
            epochs[f"of {one.images:,} images{' in four rotations' if one.rotations > 1 else ''}"] += one.epochs
        trained = " and ".join(f"{_count(n, 'epoch')} {of}" for of, n in epochs.items())
        kinds = " and ".join(dict.fromkeys(f"{one.backbone} at {', '.join(map(str, one.crops))} px" for one in own))
        parts.append(f"{_count(len(own), 'network')}, {trained}: {_many(sum(one.seen for one in own))} of {kinds}")
    if told := sum(one.seen * len(one.teachers) for one in own):
        parts.append(f"their teachers: {_many(told)}, forward alone")
    if looked := sum(one.looked for one in left):
        images = max(one.wanted or one.images for one in left if one.looked)
        parts.append(f"features of {images:,} images: {_many(looked)}")
    if rivals:
        names = ", ".join(dict.fromkeys(one.rival for one in rivals))
        parts.append(f"networks of {names}: at least {_many(sum(one.seen for one in rivals))}")
    return parts


class _Enough(Exception):
    """A probe took its time."""


def _passes_per_second(left: Left, device: torch.device) -> float:
    """Measure training steps of a network, of half a batch on a GPU and of as many images as are quick elsewhere.

    Steps are not compiled. The first of each size prepares the others, and the fastest counts.
    """
    import torch

    from faverage.vision import train_base

    on_gpu = device.type == "cuda"

    def seconds(n: int) -> float:
        rows: list[float] = []

        def on_epoch(_: int, row: dict[str, float]) -> None:
            rows.append(row["seconds"])
            if sum(rows[1:]) > 0.25 or (len(rows) > 1 and sum(rows) > 1 and not on_gpu):
                raise _Enough

        images = np.random.default_rng(0).integers(0, 256, (n, left.sides[0], left.sides[0], 3), dtype=np.uint8)
        options: dict[str, Any] = {"epochs": 1000, "batch_size": n, "lr": 1e-9, "compile": False, "capture": False}
        options |= {"augment": left.augment, "device": device, "on_epoch": on_epoch}
        with contextlib.suppress(_Enough):
            train_base(images, np.arange(n) % 2, backbone=left.backbone, **options)
        return min(rows)

    whole = max(left.step * left.rotations, 2)
    if on_gpu:
        n = max(whole // 2, 2)
        took = seconds(n)
        torch.cuda.empty_cache()  # how many images are kept there goes by what is free
        return n / took
    n, took = 2, seconds(2)
    for _ in range(2):  # the more images, the less an optimiser's step, which does not depend on them, counts
        more = min(int(n * 0.5 / took), whole)
        if more <= n:
            break
        n, took = more, seconds(more)
    return n / took


@functools.cache
def flops(backbone: str, side: int) -> int:
    """Return the floating-point operations of a backbone for one image of ``side`` px: two for a multiply and add.

    Convolutions and matrix products count, as ``torch.utils.flop_counter`` has them.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from faverage.vision import get_backbone

    with torch.random.fork_rng(devices=[]), torch.no_grad(), FlopCounterMode(display=False) as counter:
        get_backbone(backbone).eval()(torch.zeros(1, 3, side, side))
    return int(counter.get_total_flops())


def _epochs_in(checkpoint: Path) -> int:
    """Return how many epochs a checkpoint of base training has; 0 where there is none that can be read."""
    try:
        return len(read_tensors(checkpoint, "BaseCheckpoint")[0]["history"]["loss"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _rows_in(store: Path, views: Sequence[str]) -> int:
    """Return how many images have features in a folder of ``store_features``, with these views."""
    names, rows = [view.name for view in get_views(views)], 0
    for note in store.glob("part-*.json"):
        try:
            noted = read_json(note)
            rows += noted["shape"][0] if noted["key"]["views"] == names else 0
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return rows


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def _many(n: int) -> str:
    return f"{n:,} passes" if n < 1e6 else f"{n / 1e6:,.1f} million passes"


def _time(seconds: float) -> str:
    for unit, length in (("days", 24 * _HOUR), ("hours", _HOUR), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return "a minute or two"
