"""The images of a benchmark as a run sees them: classes by arrival; what is for training, rehearsal, shots, tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.errors import ConfigError
from faverage.features import Splits, permuted

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
        detailed: the same images, with the detail that features are extracted from, ``(n, D, D, 3)``; D is S or more.
        base: rows ``(m,)`` of the base session.
        kept: those of them, ``(h,)``, that are held out for rehearsal; rivals train on all of ``base``.
        augment: the training transform.
        transform: the evaluation transform.
        any_base: whether every class has training images enough to be a base class in another order.
    """

    images: Array
    detailed: Array
    base: Array
    kept: Array
    augment: Augment
    transform: Evaluate
    any_base: bool = False

    @property
    def wanted(self) -> Array:
        """Rows ``(n,)``, each once and in order, of all images that features are extracted of."""
        return np.unique(np.concatenate([self.base, *self.shots, self.test, self.spare]))

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


def load_pictures(config: RunConfig, order: int = 0) -> Pictures:
    """Load a benchmark; what is held out depends on the seed.

    Args:
        config: of one seed.
        order: of all classes; another than 0, the official one, is for benchmarks with ``any_base``.
    """
    from faverage.data import load_benchmark
    from faverage.vision import hold_out

    load = partial(load_benchmark, config.dataset, config.data, seed=config.seed, shots=config.shots)
    bench, largest = load(), max(one.test_size or 0 for one in config.each)
    detailed = load(detail=largest).images if largest > bench.image_size else bench.images
    any_base = config.class_orders > 1 and _any_base(bench, config.shots)
    check_orders([list(s.classes) for s in bench.sessions], config, any_base)
    if order > 0:
        bench = _reordered(bench, config, order)
    arrival = np.array(bench.seen(len(bench.sessions) - 1))
    number = np.full(len(bench.class_names), -1)
    number[arrival] = np.arange(len(arrival))
    labels = number[bench.labels]
    base = bench.sessions[0]
    _check_base(bench, labels)
    kept = hold_out(labels[base.train], per_class=config.hold_out, small="last", seed=config.seed)
    mean, std = bench.normalise
    augment, transform = _transforms(config, bench.images, detailed, mean, std)
    used = np.concatenate([np.concatenate([s.train, s.test]) for s in bench.sessions])
    spare = np.setdiff1d(np.flatnonzero(labels >= len(base.classes)), used) if config.draws > 1 else used[:0]
    return Pictures(
        images=bench.images,
        detailed=detailed,
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
        order=order,
        any_base=any_base,
    )


def check_orders(sessions: Sequence[Sequence[int]], config: RunConfig, any_base: bool) -> None:
    """Raise ConfigError where the classes of a run have fewer orders than it asks for."""
    try:
        permuted(sessions if any_base else sessions[1:], config.seed, config.class_orders - 1)
    except ConfigError as error:
        kept = "ready features have a base head, and" if config.features else "some classes have too few images, so"
        reason = "" if any_base else f"{kept} base classes stay as they are; "
        raise ConfigError(f"class_orders: {reason}{error}: ask for fewer") from None


def _any_base(bench: Benchmark, shots: int) -> bool:
    """Return whether every class has the shots, and half as many training images as the smallest base class."""
    counts = np.array([len(bench.pool(c)) for c in bench.seen(len(bench.sessions) - 1)])
    return bool(counts.min() >= max(2, shots, counts[: len(bench.sessions[0].classes)].min() / 2))


def _reordered(bench: Benchmark, config: RunConfig, order: int) -> Benchmark:
    """Return a benchmark with all classes in another order: all training images of base classes, a draw of the rest."""
    from faverage.data.benchmark import Session, choose

    test = bench.test_until(len(bench.sessions) - 1)
    sessions = []
    for k, classes in enumerate(permuted([s.classes for s in bench.sessions], config.seed, order)):
        pools = {c: bench.pool(c) for c in classes}
        train = choose(pools, classes, config.shots, config.seed) if k else np.concatenate(list(pools.values()))
        sessions.append(Session(tuple(classes), train, test[np.isin(bench.labels[test], classes)]))
    return replace(bench, sessions=sessions)


def seen_by(config: RunConfig, pictures: Pictures) -> Pictures:
    """Return the same images with the transforms of other settings."""
    mean, std = (values.flatten().tolist() for values in (pictures.transform.mean, pictures.transform.std))
    augment, transform = _transforms(config, pictures.images, pictures.detailed, mean, std)
    return replace(pictures, augment=augment, transform=transform)


def _transforms(
    config: RunConfig, images: Array, detailed: Array, mean: Sequence[float], std: Sequence[float]
) -> tuple[Augment, Evaluate]:
    from faverage.vision import Augment, Evaluate, transforms_for

    side = images.shape[1]
    augment, transform = transforms_for(side, crop=config.crop, mean=mean, std=std)
    if config.test_size is not None or detailed.shape[1] != side:
        size = config.test_size or transform.size
        resize = round(size * (transform.resize or side) / transform.size)
        transform = Evaluate(size, resize=resize, mean=mean, std=std)
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
