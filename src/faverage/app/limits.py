"""How much a client may ask of the server, and how often."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LOOPBACK", "Limits", "Rate"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names of this machine, as a browser writes them."""


@dataclass(frozen=True)
class Limits:
    """What a client may ask for.

    Attributes:
        picture_bytes: size of one picture.
        pixels: pixels of one picture, once unpacked.
        pictures: pictures in one request.
        upload_seconds: time in which a request must have arrived.
        answer_seconds: time in which a prediction must be ready.
        per_second: requests a second of one client, on average.
        burst: requests of one client at once.
        local_per_second: the same for a client on this machine.
        local_burst: the same for a client on this machine.
        at_once: requests in progress, of all clients together.
        teachers: changes of the model that may wait for their turn.
    """

    picture_bytes: int = 8 * 2**20
    pixels: int = 50_000_000
    pictures: int = 20
    upload_seconds: float = 30.0
    answer_seconds: float = 30.0
    per_second: float = 30.0
    burst: int = 90
    local_per_second: float = 5_000.0
    local_burst: int = 10_000
    at_once: int = 128
    teachers: int = 16

    @property
    def request_bytes(self) -> int:
        """Size of one request: all its pictures, and room for the rest of a form."""
        return self.pictures * self.picture_bytes + 2**20


class Rate:
    """A bucket of tokens a client: each request takes one, and they come back at a steady pace.

    Args:
        limits: the pace and the size of the buckets.
        clock: seconds that only grow.
        most: clients to remember; the ones not seen for longest are forgotten first.

    >>> now = [0.0]
    >>> rate = Rate(Limits(per_second=1, burst=2), clock=lambda: now[0])
    >>> rate.wait("10.0.0.7"), rate.wait("10.0.0.7"), rate.wait("10.0.0.7")
    (0.0, 0.0, 1.0)
    >>> now[0] = 1.0
    >>> rate.wait("10.0.0.7")
    0.0
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, most: int = 4096) -> None:
        self._limits = limits
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> tokens, when counted

    def wait(self, client: str) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        local = client in LOOPBACK
        pace = self._limits.local_per_second if local else self._limits.per_second
        size = self._limits.local_burst if local else self._limits.burst
        now = self._clock()
        tokens, since = self._buckets.pop(client, (float(size), now))
        tokens = min(float(size), tokens + (now - since) * pace)
        enough = tokens >= 1
        self._buckets[client] = (tokens - enough, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if enough else (1 - tokens) / pace
