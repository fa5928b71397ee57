"""How much a client may ask of the server and how often, and counts and times of what it was asked."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})  # names of this machine, as a browser writes them

_LATEST = 4096  # clients and times that are remembered


@dataclass(frozen=True)
class Limits:
    """What a client may ask for."""

    picture_bytes: int = 8 * 2**20  # size of one picture
    pixels: int = 50_000_000  # pixels of one picture, once unpacked
    pixels_together: int = 250_000_000  # of all pictures in one request; of a JPEG, those that it is shrunk to
    memory: int = 320_000_000  # bytes that unpacking one picture may take, which some formats need more of than others
    pictures: int = 20  # pictures in one request
    pictures_at_once: int = 320  # pictures in progress, of all clients together
    bytes_at_once: int = 192 * 2**20  # bytes of requests in progress, of all clients together
    note_bytes: int = 4096  # size of a request that brings no pictures
    upload_seconds: float = 30.0  # time in which a request must have arrived
    answer_seconds: float = 30.0  # time in which a prediction must be ready
    per_second: float = 30.0  # requests a second of one client, on average
    burst: int = 90  # requests of one client at once
    local_per_second: float = 5_000.0  # the same for a client on this machine
    local_burst: int = 10_000  # the same for a client on this machine
    at_once: int = 128  # requests in progress, of all clients together; those that bring something are counted apart
    share: int = 4  # one client gets a share of whatever is limited for all together: one in so many
    connections: int = 512  # open connections, of all clients together
    head_seconds: float = 10.0  # time in which a connection must have sent the head of its next request
    teachers: int = 16  # changes of the model that may wait for their turn

    @property
    def request_bytes(self) -> int:
        """Size of one request: all its pictures, and room for the rest of a form."""
        return self.pictures * self.picture_bytes + 2**20


def who(address: str) -> str:
    """Return the client behind an address; in IPv6 that is a whole network, since one client has all of its addresses.

    >>> who("10.0.0.7"), who("::ffff:10.0.0.7"), who("2001:db8::1:2:3:4"), who("::1"), who("unknown")
    ('10.0.0.7', '10.0.0.7', '2001:db8::', '::1', 'unknown')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_address(int(found) >> 64 << 64))


class Shares:
    """Places that clients take and give back: ``most`` in all, ``each`` of one client.

    >>> places = Shares(3, 2)
    >>> [places.take(client) for client in ("a", "a", "a", "b", "c")]
    [0, 0, 429, 0, 503]
    >>> places.give("a")
    >>> places.take("c")
    0
    """

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._taken: Counter[str] = Counter()
        self._all = 0

    def take(self, client: str, places: int = 1) -> int:
        """Take places; return 0, or the status with which to refuse: 429 where the client has its share, else 503."""
        if self._taken[client] + places > self._each:
            return 429
        if self._all + places > self._most:
            return 503
        self._taken[client] += places
        self._all += places
        return 0

    def give(self, client: str, places: int = 1) -> None:
        """Give places back."""
        self._all -= places
        self._taken[client] -= places
        if self._taken[client] <= 0:
            del self._taken[client]


class Rate:
    """A bucket of tokens a client: each request takes one, and they come back at a steady pace.

    >>> now = [0.0]
    >>> rate = Rate(Limits(per_second=1, burst=2), clock=lambda: now[0])
    >>> rate.wait("10.0.0.7"), rate.wait("10.0.0.7"), rate.wait("10.0.0.7")
    (0.0, 0.0, 1.0)
    >>> now[0] = 1.0
    >>> rate.wait("10.0.0.7")
    0.0
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
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
        if len(self._buckets) > _LATEST:  # those not seen for longest are forgotten first
            self._buckets.popitem(last=False)
        return 0.0 if enough else (1 - tokens) / pace


class Meter:
    """Keeps the number of requests by path and status, and the last times of each path.

    >>> meter = Meter()
    >>> for milliseconds in range(1, 101):
    ...     meter.add("/api/predict", 200, milliseconds / 1000)
    >>> meter.summary()["/api/predict"]["p50_ms"]
    50.0
    """

    def __init__(self) -> None:
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
        self._times.setdefault(path, deque(maxlen=_LATEST)).append(seconds)

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
