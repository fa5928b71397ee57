"""Connections to the server: how many there may be, how long one may be silent, and how often the log says the same."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

from faverage.app.server.limits import Limits, Shares, who

__all__ = ["ACCEPTS", "Throttle", "most_connections", "protocol"]

ACCEPTS = 16
"""Connections that the event loop accepts in one go, before any of them can be refused."""

SPARE = 64 + 4 * ACCEPTS
"""File descriptors that are left to the model's files, and to connections which are about to be refused."""

_LOG = logging.getLogger("faverage.app")


def most_connections(limits: Limits) -> int:
    """Return how many connections may be open: what is allowed, or what the system has file descriptors for."""
    try:
        import resource
    except ImportError:  # Windows
        return limits.connections
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits.connections if files < 0 else min(limits.connections, max(8, files - SPARE))


def protocol(limits: Limits) -> Any:
    """Return uvicorn's class of HTTP connections, with limits on their number and on their silence."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    most = most_connections(limits)
    places = Shares(most, max(1, most // limits.share))

    class Connection(H11Protocol):
        _client: str | None = None
        _timer: asyncio.TimerHandle | None = None  # until the head of the next request must be here
        _stuck: asyncio.TimerHandle | None = None  # until the client must have read what was sent

        def connection_made(self, transport: Any) -> None:
            client = who(str((transport.get_extra_info("peername") or ("unknown",))[0]))
            status = places.take(client)
            if status:
                _LOG.warning("a connection was refused: %s", "all are taken" if status == 503 else "of a greedy client")
                transport.write(_last_words(status, "Too many connections: try again in a moment."))
                transport.close()
                return
            self._client = client
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._client is None:
                return
            places.give(self._client)
            self._client = None
            for timer in (self._timer, self._stuck):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True  # whatever the application still has to say
                self.cycle.message_event.set()
            try:
                super().send_400_response(msg)
            except h11.LocalProtocolError:  # in the middle of an answer
                self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self.loop.call_later(limits.upload_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stuck is not None:
                self._stuck.cancel()

        def _watch(self) -> None:
            if self._client is None:
                return
            if self.cycle is not None and not self.cycle.response_complete:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            elif self._timer is None:
                self._timer = self.loop.call_later(limits.head_seconds, self._expire)

        def _expire(self) -> None:
            if not self.transport.is_closing():
                if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                    words = f"The head of the request did not arrive within {limits.head_seconds:g} s."
                    self.transport.write(_last_words(408, words))
                self.transport.close()
            self._timer = self.loop.call_later(limits.upload_seconds, self.transport.abort)

    return Connection


def _last_words(status: int, words: str) -> bytes:
    reason = {408: "Request Timeout", 429: "Too Many Requests", 503: "Service Unavailable"}[status]
    body = json.dumps({"error": words})
    more = "" if status == 408 else "retry-after: 2\r\n"
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}{more}connection: close\r\n\r\n{body}".encode()


class Throttle(logging.Filter):
    """Lets the same message through once in a while, with the number of those that were held back.

    Args:
        seconds: between two of the same.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._seen: dict[object, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to write a message."""
        kind = record.exc_info[0] if record.exc_info else None
        key = record.name, kind, str(record.msg).partition("\n")[0][:60]
        now = time.monotonic()
        since, missed = self._seen.get(key, (float("-inf"), 0))
        if now - since < self._seconds:
            self._seen[key] = since, missed + 1
            return False
        if len(self._seen) >= 256:
            self._seen.clear()
        self._seen[key] = now, 0
        if missed:
            record.msg, record.args = f"{record.getMessage()} (and {missed:,} more like this)", ()
        return True
