"""The images of a benchmark as a run sees them: classes by arrival; what is for training, rehearsal, shots, tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.features import Splits

if TYPE_CHECKING:
    from faverage.data import Benchmark
    from faverage.experiment.config import RunConfig
    from faverage.vision import Augment, Evaluate

__all__ = ["Pictures", "load_pictures", "seen_by"]

Array = NDArray[Any]


@dataclass(kw_only=True)
class Pictures(Splits):
    """Images and who they are for.

    Attributes:
        images: all stored images, uint8 ``(n, S, S, 3)``.
        base: rows ``(m,)`` of the base session.
        kept: those of them, ``(h,)``, that are held out for rehearsal; rivals train on all of ``base``.
        augment: the training transform.
        transform: the evaluation transform.
    """

    images: Array
    base: Array
    kept: Array
    augment: Augment
    transform: Evaluate

    @cached_property
    def stamp(self) -> str:
        """What stands for all that a method sees: images, labels, and what is for what."""
        digest = hashlib.blake2b(json.dumps([self.sessions, self.class_names]).encode(), digest_size=6)
        rows = np.concatenate([self.base, *self.shots, self.test, self.spare])
        for array in (self.labels, rows, self.kept):
            digest.update(np.ascontiguousarray(array).data)
        for start in range(0, len(rows), 2048):
            digest.update(np.ascontiguousarray(self.images[rows[start : start + 2048]]).data)
        return digest.hexdigest()


def load_pictures(config: RunConfig) -> Pictures:
    """Load a benchmark; what is held out depends on the seed."""
    from faverage.data import load_benchmark
    from faverage.vision import hold_out

    bench = load_benchmark(config.dataset, config.data, seed=config.seed, shots=config.shots)
    arrival = np.array(bench.seen(len(bench.sessions) - 1))
    number = np.full(len(bench.class_names), -1)
    number[arrival] = np.arange(len(arrival))
    labels = number[bench.labels]
    base = bench.sessions[0]
    _check_base(bench, labels)
    kept = hold_out(labels[base.train], per_class=config.hold_out, small="last", seed=config.seed)
    mean, std = bench.normalise
    augment, transform = _transforms(config, bench.images.shape[1], mean, std)
    used = np.concatenate([np.concatenate([s.train, s.test]) for s in bench.sessions])
    spare = np.setdiff1d(np.flatnonzero(labels >= len(base.classes)), used) if config.draws > 1 else used[:0]
    return Pictures(
        images=bench.images,
        labels=labels,
        sessions=[number[list(s.classes)].tolist() for s in bench.sessions],
        base=base.train,
        kept=np.sort(base.train[kept]),
        shots=tuple(s.train for s in bench.sessions[1:]),
        test=bench.test_until(len(bench.sessions) - 1),
        spare=spare,
        augment=augment,
        transform=transform,
        class_names=[bench.class_names[c] for c in arrival],
        source=bench.source,
        skipped=len(bench.skipped),
    )


def seen_by(config: RunConfig, pictures: Pictures) -> Pictures:
    """Return the same images with the transforms of other settings."""
    mean, std = (values.flatten().tolist() for values in (pictures.transform.mean, pictures.transform.std))
    augment, transform = _transforms(config, pictures.images.shape[1], mean, std)
    return replace(pictures, augment=augment, transform=transform)


def _transforms(config: RunConfig, side: int, mean: Sequence[float], std: Sequence[float]) -> tuple[Augment, Evaluate]:
    from faverage.vision import Augment, transforms_for

    augment, transform = transforms_for(side, crop=config.crop, mean=mean, std=std)
    wanted = {"flip": augment.flip if config.flip else 0.0, "jitter": config.jitter, "area": (config.area, 1.0)}
    if any(getattr(augment, name) != value for name, value in wanted.items()):
        augment = Augment(**{**augment.config(), **wanted})
    return augment, transform


def _check_base(bench: Benchmark, labels: Array) -> None:
    """Raise DataError unless there are two base classes or more, each with an image to train on and one to keep."""
    from faverage.data.benchmark import DataError, shown

    base = bench.sessions[0]
    if len(base.classes) < 2:
        raise DataError(
            f"{bench.name}: the base session has one class, '{shown(bench.class_names[base.classes[0]])}', but at "
            "least 2 are needed: add classes (3 are the fewest, 2 of them base classes)"
        )
    for c, count in zip(base.classes, np.bincount(labels[base.train]), strict=True):
        if count < 2:
            raise DataError(
                f"{bench.name}: base class '{shown(bench.class_names[c])}' has {count} training image, but at least "
                "2 are needed, one to train on and one for rehearsal: add images, or leave the class out"
            )
