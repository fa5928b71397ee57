"""The part of loading that all benchmarks share: decode, leave out what is broken, form sessions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from faverage.data.benchmark import IMAGENET, Benchmark, Indices, Normalisation, draw_shots, shown
from faverage.data.decode import store_size
from faverage.data.protocol import check_shots, drawn_sessions, listed_sessions, split_test
from faverage.data.registry import Protocol, Request
from faverage.data.sources import Item
from faverage.data.store import open_store

__all__ = ["assemble", "assemble_files"]


def assemble_files(
    request: Request,
    name: str,
    image_size: int,
    class_names: Sequence[str],
    items: Sequence[Item],
    protocol: Protocol,
    lists: Sequence[Sequence[int]] | None = None,
    most_test: int | None = None,
) -> Benchmark:
    """Build a benchmark from image files.

    Args:
        request: What the caller asked for.
        name: The benchmark's name.
        image_size: Its usual image size, where the caller asks for none.
        class_names: The name of each label.
        items: All images that it may use.
        protocol: The numbers of classes.
        lists: For each session, positions in ``items`` of its training images; None: draw them.
        most_test: At most so many test images a class, where they are drawn too.
    """
    size = request.size or image_size
    images, kept, skipped = open_store(
        name,
        items,
        store_size(size),
        cache=request.cache,
        workers=request.workers,
        progress=request.progress,
    )
    if skipped:
        first = "; ".join(f"{shown(image)} ({reason})" for image, reason in skipped[:3])
        more = "; ..." if len(skipped) > 3 else ""
        warnings.warn(f"{name}: skipped {len(skipped):,} of {len(items):,} images: {first}{more}", stacklevel=4)
    labels = np.array([item.label for item in items], dtype=np.int64)
    parts = [items[i].test for i in kept]
    drawn = any(part is None for part in parts)
    return assemble(
        request,
        name,
        size,
        class_names,
        images,
        labels,
        None if drawn else np.array(parts, dtype=bool),
        protocol,
        kept=kept,
        lists=lists,
        skipped=skipped,
        most_test=most_test,
    )


def assemble(
    request: Request,
    name: str,
    image_size: int,
    class_names: Sequence[str],
    images: NDArray[np.uint8],
    labels: Indices,
    test: NDArray[np.bool_] | None,
    protocol: Protocol,
    *,
    kept: Indices | None = None,
    lists: Sequence[Sequence[int]] | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    normalise: Normalisation = IMAGENET,
    most_test: int | None = None,
) -> Benchmark:
    """Build a benchmark from decoded images.

    Args:
        request: What the caller asked for.
        name: The benchmark's name.
        image_size: Side of the images that a network sees.
        class_names: The name of each label.
        images: (n, S, S, 3) the stored images.
        labels: Label of every listed image, stored or not.
        test: (n,) whether a stored image is a test image; None: draw them.
        protocol: The numbers of classes.
        kept: (n,) position of each stored image among the listed ones; default all.
        lists: For each session, positions of its training images among the listed ones; None: draw them.
        skipped: Images that could not be used, with the reasons.
        normalise: Mean and standard deviation of each channel.
        most_test: At most so many test images a class, where they are drawn.
    """
    names = list(class_names)
    kept = np.arange(len(labels)) if kept is None else kept
    stored = labels[kept]
    if test is None:
        test = split_test(stored, names, request.shots, request.seed, most_test)
    shots = request.shots
    if lists is None:
        sessions = drawn_sessions(stored, test, names, protocol, shots, request.seed)
    else:
        index = {int(position): i for i, position in enumerate(kept)}
        sessions, shots = listed_sessions(lists, labels.tolist(), index, test, names, protocol)
        listed = shots if shots == request.shots else 1
        for session in sessions:
            train = session.train
            check_shots({c: train[stored[train] == c] for c in session.classes}, names, listed)
    source = "official lists" if lists is not None else f"seeded draw (seed {request.seed})"
    benchmark = Benchmark(name, image_size, names, stored, images, sessions, source, list(skipped), normalise)
    if len(sessions) > 1 and shots != request.shots:
        return draw_shots(benchmark, request.seed, request.shots)
    return benchmark
