"""From labelled images to sessions: official lists where they exist, seeded draws where they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from faverage.data.benchmark import DataError, Indices, Session, choose, shown
from faverage.data.registry import Protocol
from faverage.data.sources import read_lines

__all__ = ["drawn_sessions", "find_lists", "listed_sessions", "read_lists", "split_test"]

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
    labels: Sequence[int],
    kept: dict[int, int],
    test: NDArray[np.bool_],
    class_names: Sequence[str],
    protocol: Protocol,
) -> tuple[list[Session], int]:
    """Sessions as official lists give them.

    Args:
        lists: For each session, positions of its training images in the list of all images.
        labels: Label of each of all images.
        kept: Position in the list of all images -> index in the store, for the images that could be used.
        test: (n,) whether a stored image is a test image.
        class_names: The name of each label.
        protocol: The numbers of classes that the lists must have.

    Returns:
        The sessions, and the number of shots that the lists give each new class.
    """
    stored_labels = np.full(len(test), -1, dtype=np.int64)
    for position, index in kept.items():
        stored_labels[index] = labels[position]
    known: set[int] = set()
    sessions = []
    shots = 0
    for k, positions in enumerate(lists):
        counts = Counter(labels[position] for position in positions)
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
        train = np.array([kept[position] for position in positions if position in kept], dtype=np.int64)
        sessions.append(Session(classes, train, np.flatnonzero(test & np.isin(stored_labels, classes))))
    return sessions, shots


def drawn_sessions(
    labels: Indices, test: NDArray[np.bool_], class_names: Sequence[str], protocol: Protocol, shots: int, seed: int
) -> list[Session]:
    """Sessions of classes in the order of their labels, with all base images and a seeded draw of shots."""
    sessions = []
    for k, classes in enumerate(protocol.groups(len(class_names))):
        pools = {c: np.flatnonzero((labels == c) & ~test) for c in classes}
        check_shots(pools, class_names, shots)
        train = choose(pools, classes, shots, seed) if k else np.concatenate([pools[c] for c in classes])
        sessions.append(Session(classes, train, np.flatnonzero(test & np.isin(labels, classes))))
    return sessions


def check_shots(pools: dict[int, Indices], class_names: Sequence[str], shots: int) -> None:
    """Raise DataError where a class has fewer training images than shots."""
    for label, pool in pools.items():
        if len(pool) < shots:
            raise DataError(
                f"class '{shown(class_names[label])}' has {len(pool)} usable training images, fewer than {shots} "
                "shots; add images, ask for fewer shots, or leave the class out"
            )


def split_test(
    labels: Indices, class_names: Sequence[str], shots: int, seed: int, most: int | None = None
) -> NDArray[np.bool_]:
    """Draw the test images: 30 % of each class, at most ``most``, and never so many that shots are lacking.

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
