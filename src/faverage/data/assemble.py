"""From labelled images to a benchmark: official lists where they exist, seeded draws where they do not."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from faverage.data.benchmark import (
    IMAGENET,
    Benchmark,
    DataError,
    Indices,
    Normalisation,
    Session,
    choose,
    draw_shots,
    shown,
)
from faverage.data.decode import LARGE, store_size
from faverage.data.registry import Protocol, Request
from faverage.data.sources import Item, read_lines
from faverage.data.store import open_store

__all__ = ["assemble", "assemble_files", "drawn_sessions", "find_lists", "listed_sessions", "read_lists", "split_test"]


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
    """Build a benchmark from image files, ``items``: all that it may use, among which ``lists`` are positions.

    ``image_size`` is its usual one, where the caller asks for none; the other arguments are those of ``assemble``.
    """
    size = request.size or image_size
    side = store_size(size if size < LARGE else max(size, request.detail or 0))
    images, kept, skipped = open_store(
        name, items, side, cache=request.cache, workers=request.workers, progress=request.progress
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
        images: ``(n, S, S, 3)``, the stored images.
        labels: ``(m,)``, label of every listed image, stored or not.
        test: ``(n,)``, whether a stored image is a test image; None: draw them.
        protocol: The numbers of classes.
        kept: ``(n,)``, position of each stored image among the listed ones; default all.
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
        sessions, shots = listed_sessions(lists, labels, kept, test, names, protocol)
        listed = shots if shots == request.shots else 1
        for session in sessions:
            train = session.train
            check_shots({c: train[stored[train] == c] for c in session.classes}, names, listed)
    source = "official lists" if lists is not None else f"seeded draw (seed {request.seed})"
    benchmark = Benchmark(name, image_size, names, stored, images, sessions, source, list(skipped), normalise)
    if len(sessions) > 1 and shots != request.shots:
        return draw_shots(benchmark, request.seed, request.shots)
    return benchmark


TEST_SHARE = 0.3


def find_lists(root: Path, folder: Path, dataset: str) -> Path | None:
    """The folder with ``session_1.txt`` of a dataset, in the usual places below the data folder."""
    places = [root, root / "data", folder, folder / "data", folder.parent]
    candidates = [place / "index_list" / dataset for place in places] + [folder / "split"]
    return next((path for path in candidates if (path / "session_1.txt").is_file()), None)


def read_lists(folder: Path, protocol: Protocol) -> list[list[str]]:
    """Lines of ``session_1.txt`` (the base session) to ``session_<sessions + 1>.txt``."""
    lists = []
    for number in range(1, protocol.sessions + 2):
        path = folder / f"session_{number}.txt"
        if not path.is_file():
            raise DataError(
                f"{path} is absent: the protocol has a base session and {protocol.sessions} more, so lists "
                f"session_1.txt to session_{protocol.sessions + 1}.txt are needed"
            )
        lists.append(read_lines(path))
    return lists


def listed_sessions(
    lists: Sequence[Sequence[int]],
    labels: Indices,
    kept: Indices,
    test: NDArray[np.bool_],
    class_names: Sequence[str],
    protocol: Protocol,
) -> tuple[list[Session], int]:
    """Sessions as official lists give them.

    Args:
        lists: For each session, positions of its training images in the list of all images.
        labels: ``(m,)``, label of each of all images.
        kept: ``(n,)``, position of each stored image in the list of all images.
        test: ``(n,)``, whether a stored image is a test image.
        class_names: The name of each label.
        protocol: The numbers of classes that the lists must have.

    Returns:
        The sessions, and the number of shots that the lists give each new class.
    """
    index = {int(position): i for i, position in enumerate(kept)}
    known: set[int] = set()
    sessions = []
    shots = 0
    for k, positions in enumerate(lists):
        counts = Counter(labels[list(positions)].tolist())
        classes = tuple(sorted(counts))
        repeated = known & set(classes)
        if repeated:
            raise DataError(
                f"session_{k + 1}.txt repeats class '{shown(class_names[min(repeated)])}', which an earlier session "
                "has taught already; a class may be new in one session only"
            )
        expected = protocol.way if k else protocol.base
        if len(classes) != expected:
            raise DataError(
                f"session_{k + 1}.txt has images of {len(classes)} classes, the protocol says {expected}; correct the "
                f"list, or give {'way' if k else 'base'}={len(classes)}"
            )
        known |= set(classes)
        shots = max([shots, *counts.values()]) if k else 0
        train = np.array([index[position] for position in positions if position in index], dtype=np.int64)
        sessions.append(Session(classes, train, np.flatnonzero(test & np.isin(labels[kept], classes))))
    return sessions, shots


def drawn_sessions(
    labels: Indices, test: NDArray[np.bool_], class_names: Sequence[str], protocol: Protocol, shots: int, seed: int
) -> list[Session]:
    """Sessions of classes in the order of their labels, with all base images and a seeded draw of shots.

    ``labels`` ``(n,)`` and ``test`` ``(n,)``, whether it is a test image, are of the stored images.
    """
    sessions = []
    for k, classes in enumerate(protocol.groups(len(class_names))):
        pools = {c: np.flatnonzero((labels == c) & ~test) for c in classes}
        check_shots(pools, class_names, shots)
        train = choose(pools, classes, shots, seed) if k else np.concatenate([pools[c] for c in classes])
        sessions.append(Session(classes, train, np.flatnonzero(test & np.isin(labels, classes))))
    return sessions


def check_shots(pools: dict[int, Indices], class_names: Sequence[str], shots: int) -> None:
    """Raise DataError where a class has fewer training images, rows ``(m,)`` each, than shots."""
    for label, pool in pools.items():
        if len(pool) < shots:
            raise DataError(
                f"class '{shown(class_names[label])}' has {len(pool)} usable training images, fewer than {shots} "
                "shots; add images, ask for fewer shots, or leave the class out"
            )


def split_test(
    labels: Indices, class_names: Sequence[str], shots: int, seed: int, most: int | None = None
) -> NDArray[np.bool_]:
    """Draw the test images, as a mask ``(n,)``: 30 % of each class, at most ``most``, always leaving enough shots.

    A class's draw depends on the seed, its label and the order of its images alone.
    """
    test = np.zeros(len(labels), dtype=bool)
    for label, name in enumerate(class_names):
        own = np.flatnonzero(labels == label)
        count = min(max(1, round(TEST_SHARE * len(own))), len(own) - shots, len(own) if most is None else most)
        if count < 1:
            raise DataError(
                f"class '{shown(name)}' has {len(own)} usable images; {shots} shots and a test image need {shots + 1}: "
                "add images, ask for fewer shots, or leave the class out"
            )
        test[np.random.default_rng([seed, label, 0]).permutation(own)[:count]] = True
    return test
