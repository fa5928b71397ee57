"""Counts and times of what the server was asked."""

from __future__ import annotations

import time
from collections import Counter, deque

__all__ = ["Meter"]


class Meter:
    """Keeps the number of requests by path and status, and the last times of each path.

    >>> meter = Meter()
    >>> for milliseconds in range(1, 101):
    ...     meter.add("/api/predict", 200, milliseconds / 1000)
    >>> meter.summary()["/api/predict"]["p50_ms"]
    50.0
    """

    def __init__(self, keep: int = 4096) -> None:
        self._keep = keep
        self._counts: dict[str, Counter[int]] = {}
        self._times: dict[str, deque[float]] = {}
        self._start = time.monotonic()
        self.batches = 0
        self.pictures = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def add(self, path: str, status: int, seconds: float) -> None:
        """Note one request."""
        self._counts.setdefault(path, Counter())[status] += 1
        self._times.setdefault(path, deque(maxlen=self._keep)).append(seconds)

    def batch(self, pictures: int) -> None:
        """Note one batch of predictions."""
        self.batches += 1
        self.pictures += pictures

    def summary(self) -> dict[str, dict[str, object]]:
        """Return, by path: how many requests, how many failed (status 500 and above), and p50 and p99 in ms."""
        found: dict[str, dict[str, object]] = {}
        for path, counts in sorted(self._counts.items()):
            times = sorted(self._times[path])
            found[path] = {
                "count": counts.total(),
                "failed": sum(n for status, n in counts.items() if status >= 500),
                "statuses": {str(status): n for status, n in sorted(counts.items())},
                "p50_ms": round(1000 * _quantile(times, 0.5), 2),
                "p99_ms": round(1000 * _quantile(times, 0.99), 2),
            }
        return found


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[max(0, round(share * len(ordered)) - 1)]
