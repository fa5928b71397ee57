"""Benchmarks by name, and what a caller may ask of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faverage.data.benchmark import Benchmark, DataError
from faverage.registry import Registry

__all__ = ["BENCHMARKS", "Protocol", "Request", "benchmark_names", "load_benchmark", "register_benchmark"]


@dataclass(frozen=True)
class Protocol:
    """Numbers of a protocol: ``base`` classes first, then ``sessions`` times ``way`` new classes.

    With ``uneven``, the last session may have fewer classes.

    >>> Protocol(base=4, way=2, sessions=2, uneven=True).groups(7)
    [(0, 1, 2, 3), (4, 5), (6,)]
    """

    base: int
    way: int
    sessions: int
    uneven: bool = False

    @property
    def classes(self) -> int:
        """Number of classes in all sessions together."""
        return self.base + self.way * self.sessions

    def groups(self, classes: int) -> list[tuple[int, ...]]:
        """Labels of each session when ``classes`` classes arrive in order."""
        least = self.classes - (self.way - 1 if self.uneven and self.sessions else 0)
        if classes < least:
            raise DataError(
                f"found {classes} classes, but {self.base} base classes and {self.sessions} sessions of {self.way} "
                f"new classes need {least}; complete the data, or ask for fewer with base=, way= or sessions="
            )
        starts = [0, *range(self.base, min(classes, self.classes), self.way)]
        return [tuple(range(a, b)) for a, b in zip(starts, [*starts[1:], min(classes, self.classes)], strict=True)]


@dataclass(frozen=True)
class Request:
    """What ``load_benchmark`` was asked for; see there."""

    root: str | Path | None = None
    seed: int = 0
    shots: int = 5
    cache: str | Path | None = None
    workers: int | None = None
    progress: bool = True
    size: int | None = None
    base: int | None = None
    way: int | None = None
    sessions: int | None = None
    detail: int | None = None

    def __post_init__(self) -> None:
        sizes = {"workers": 1, "size": 1, "base": 1, "way": 1, "sessions": 0, "detail": 1}
        for name, least in {"seed": 0, "shots": 1, **sizes}.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise DataError(f"{name} must be a whole number of at least {least}, got {value!r}")

    def protocol(self, usual: Protocol) -> Protocol:
        """The usual protocol of a benchmark, with the numbers that were asked for."""
        return Protocol(
            usual.base if self.base is None else self.base,
            usual.way if self.way is None else self.way,
            usual.sessions if self.sessions is None else self.sessions,
            usual.uneven,
        )


Loader = Callable[[Request], Benchmark]
BENCHMARKS: Registry[Loader] = Registry("benchmark", error=DataError)
"""Every benchmark's loader by its name."""


def register_benchmark(name: str) -> Callable[[Loader], Loader]:
    """Decorator that adds a loader under a name.

    >>> @register_benchmark("few-digits")
    ... def few_digits(request):
    ...     return load_benchmark("digits", base=2, way=2, sessions=1)
    >>> [session.classes for session in load_benchmark("few-digits").sessions]
    [(0, 1), (2, 3)]
    >>> BENCHMARKS.unregister("few-digits")
    """
    return BENCHMARKS.register(name)


def benchmark_names() -> list[str]:
    """Names that ``load_benchmark`` takes, in alphabetical order.

    >>> from faverage.data import benchmark_names
    >>> "digits" in benchmark_names(), "mini-imagenet" in benchmark_names()
    (True, True)
    """
    return sorted(BENCHMARKS)


def load_benchmark(
    name: str,
    root: str | Path | None = None,
    *,
    seed: int = 0,
    shots: int = 5,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    size: int | None = None,
    base: int | None = None,
    way: int | None = None,
    sessions: int | None = None,
    detail: int | None = None,
) -> Benchmark:
    """Load a benchmark; images are decoded once and memory-mapped from then on.

    Args:
        name: One of ``benchmark_names()``.
        root: Folder of the data, or a folder above it; default ``$FAVERAGE_DATA``.
        seed: Seed of every draw. Official lists, where they exist, do not depend on it: see ``draw_shots``.
        shots: Training images of each new class. Another number than that of the official lists is drawn.
        cache: Folder of the decoded images; default ``$FAVERAGE_CACHE``, else the user's cache.
        workers: Threads that decode.
        progress: Show a progress bar where decoding takes more than two seconds.
        size: Image size in pixels; default the benchmark's own.
        base: Number of base classes; default the protocol's.
        way: Number of new classes a session; default the protocol's.
        sessions: Number of sessions after the base session; default the protocol's.
        detail: Image size that photos are to be stored for, where it is above their own: for networks that see them
            larger, with more detail, than is usual.

    Raises:
        DataError: Where data is absent or not what its protocol says.

    >>> digits = load_benchmark("digits")
    >>> [session.classes for session in digits.sessions]
    [(0, 1, 2, 3, 4, 5), (6, 7), (8, 9)]
    """
    return BENCHMARKS.get(name)(Request(root, seed, shots, cache, workers, progress, size, base, way, sessions, detail))
