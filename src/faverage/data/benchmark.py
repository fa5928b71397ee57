"""What a benchmark is: images, their labels, and the sessions in which classes arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from faverage.errors import DataError

__all__ = ["Benchmark", "DataError", "Session", "draw_shots"]

Indices = NDArray[np.int64]
Normalisation = tuple[tuple[float, float, float], tuple[float, float, float]]

IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def shown(name: str) -> str:
    r"""A name for messages, with unprintable characters, such as line breaks, escaped.

    >>> print(shown("a b"), shown("c\nd"))
    a b c\nd
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)


@dataclass(frozen=True, eq=False)
class Session:
    """One step of the protocol: the classes that are new in it, and their images.

    Attributes:
        classes: Labels of the new classes, ascending.
        train: ``(m,)``, indices of their training images (all of them in session 0, a few a class later).
        test: ``(t,)``, indices of their test images; ``Benchmark.test_until`` adds those of earlier sessions.

    >>> Session(classes=(6, 7), train=[0, 3, 8], test=[1, 2]).train
    array([0, 3, 8])
    """

    classes: tuple[int, ...]
    train: Indices
    test: Indices

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            indices = np.asarray(getattr(self, part))
            if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
                raise DataError(f"a session's {part} must be a list of indices, got {indices.dtype} {indices.shape}")
            object.__setattr__(self, part, indices.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Images, labels and sessions of few-shot class-incremental learning; session 0 is the base session.

    Stored images that no session uses are the pool from which ``draw_shots`` takes other shots.

    Attributes:
        name: The benchmark's name.
        image_size: Side, in pixels, of the images that a network sees; the stored side S may be larger.
        class_names: The name of each label.
        labels: ``(n,)``, label of every stored image.
        images: ``(n, S, S, 3)``, uint8, RGB; memory-mapped where it was decoded from files.
        sessions: The sessions in order.
        source: Where the choice of training images comes from.
        skipped: (image, reason) for every image that could not be used.
        normalise: Mean and standard deviation of each channel, for pixels in [0, 1].

    >>> from faverage.data import load_benchmark
    >>> digits = load_benchmark("digits")
    >>> digits.images.shape[1:], digits.seen(1), len(digits.test_until(0))
    ((16, 16, 3), (0, 1, 2, 3, 4, 5, 6, 7), 325)
    """

    name: str
    image_size: int
    class_names: list[str]
    labels: Indices
    images: NDArray[np.uint8]
    sessions: list[Session]
    source: str
    skipped: list[tuple[str, str]] = field(default_factory=list)
    normalise: Normalisation = IMAGENET

    def __post_init__(self) -> None:
        validate(self)

    def seen(self, k: int) -> tuple[int, ...]:
        """Labels of the classes known after session ``k``, in order of arrival."""
        return tuple(label for session in self._until(k) for label in session.classes)

    def test_until(self, k: int) -> Indices:
        """Indices ``(m,)`` of the test images of every class seen up to and including session ``k``."""
        return np.concatenate([session.test for session in self._until(k)])

    def pool(self, label: int) -> Indices:
        """Indices ``(m,)`` of the stored images of a class that are test images of no session."""
        of_class = np.flatnonzero(self.labels == label)
        return np.setdiff1d(of_class, self.test_until(len(self.sessions) - 1))

    def _until(self, k: int) -> list[Session]:
        if not 0 <= k < len(self.sessions):
            raise DataError(f"{self.name} has sessions 0 to {len(self.sessions) - 1}, got {k}")
        return self.sessions[: k + 1]


def validate(benchmark: Benchmark) -> None:
    """Raise DataError where a benchmark contradicts itself."""
    name, labels, images = benchmark.name, benchmark.labels, benchmark.images
    if images.ndim != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3 or images.dtype != np.uint8:
        raise DataError(f"{name}: images must be (n, S, S, 3) uint8, got {images.shape} {images.dtype}")
    if labels.shape != images.shape[:1]:
        raise DataError(f"{name}: {len(images)} images but labels of shape {labels.shape}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(benchmark.class_names):
        raise DataError(f"{name}: labels must be 0 to {len(benchmark.class_names) - 1}, found {set(labels.tolist())}")
    if not benchmark.sessions:
        raise DataError(f"{name} has no session")
    train = np.zeros(len(labels), dtype=bool)
    test = np.zeros(len(labels), dtype=bool)
    known: dict[int, int] = {}
    for k, session in enumerate(benchmark.sessions):
        for label in session.classes:
            if label in known:
                raise DataError(
                    f"{name}: session {k} repeats {_named(benchmark, {label})} of session {known[label]}; "
                    "a class may be new in one session only"
                )
            known[label] = k
        for used, indices, part in ((train, session.train, "train"), (test, session.test, "test")):
            _check_indices(benchmark, k, indices, part)
            if used[indices].any() or len(np.unique(indices)) != len(indices):
                raise DataError(f"{name}: session {k} uses an image twice for {part}")
            used[indices] = True
        absent = set(session.classes) - set(labels[session.train].tolist())
        if absent:
            raise DataError(f"{name}: {_named(benchmark, absent)} has no training image in session {k}")
    if (train & test).any():
        both = int(np.flatnonzero(train & test)[0])
        raise DataError(f"{name}: image {both} is both a training and a test image; take it off one of the two lists")


def _check_indices(benchmark: Benchmark, k: int, indices: Indices, part: str) -> None:
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(benchmark.labels):
        raise DataError(f"{benchmark.name}: session {k} has {part} indices outside 0 to {len(benchmark.labels) - 1}")
    foreign = set(benchmark.labels[indices].tolist()) - set(benchmark.sessions[k].classes)
    if foreign:
        raise DataError(f"{benchmark.name}: session {k} has {part} images of {_named(benchmark, foreign)}, not its own")


def _named(benchmark: Benchmark, labels: set[int]) -> str:
    return f"class '{shown(benchmark.class_names[min(labels)])}'"


def draw_shots(benchmark: Benchmark, seed: int, shots: int = 5) -> Benchmark:
    """The same benchmark with other few-shot images: a fresh draw for every session after the base session.

    Base session and test images stay as they are, so results of several draws can be compared.

    Args:
        benchmark: Any benchmark whose store holds more training images of a new class than the sessions use.
        seed: The same seed gives the same draw.
        shots: Training images of each new class.

    Raises:
        DataError: Where a class has fewer than ``shots`` training images, or no class has more.

    >>> from faverage.data import load_benchmark
    >>> digits = load_benchmark("digits")
    >>> other = draw_shots(digits, seed=1)
    >>> len(other.sessions[1].train), bool((other.sessions[1].train == digits.sessions[1].train).all())
    (10, False)
    """
    if shots < 1:
        raise DataError(f"shots must be at least 1, got {shots}")
    pools = {c: benchmark.pool(c) for session in benchmark.sessions[1:] for c in session.classes}
    for label, pool in pools.items():
        if len(pool) < shots:
            raise DataError(
                f"{benchmark.name}: {_named(benchmark, {label})} has {len(pool)} training images, too few "
                f"for {shots} shots; ask for fewer, or use a copy of the data that holds more than the listed shots"
            )
    used = Counter(benchmark.labels[i] for session in benchmark.sessions[1:] for i in session.train)
    if pools and all(len(pool) == shots == used[label] for label, pool in pools.items()):
        raise DataError(
            f"{benchmark.name}: every new class holds exactly its {shots} listed shots, so there is no other draw; "
            "use the full data set, which has all training images of the new classes"
        )
    sessions = benchmark.sessions[:1] + [
        replace(session, train=choose(pools, session.classes, shots, seed)) for session in benchmark.sessions[1:]
    ]
    return replace(benchmark, sessions=sessions, source=f"seeded draw (seed {seed})")


def choose(pools: dict[int, Indices], classes: Sequence[int], shots: int, seed: int) -> Indices:
    """Draw ``shots`` of the rows ``(m,)`` of each class, all in one array ``(classes · shots,)``.

    A class's draw depends on the seed and its label alone.
    """
    draws = [np.sort(np.random.default_rng([seed, c, 1]).permutation(pools[c])[:shots]) for c in classes]
    return np.concatenate(draws)
