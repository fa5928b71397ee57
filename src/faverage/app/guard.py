"""The door of the server: who may come in, how much they may bring, and what every answer says to a browser."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException

from faverage.app.limits import LOOPBACK, Limits, Rate
from faverage.app.meter import Meter

__all__ = ["COOKIE", "Guard", "Refused"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

COOKIE = "faverage"
OPEN = frozenset({"/", "/page.css", "/page.js", "/icon.svg", "/favicon.ico", "/api/health"})
"""What is answered without the token: the page, which holds nothing of the model, and the sign of life."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
_LOG = logging.getLogger("faverage.app")


class Refused(HTTPException):
    """A request that is not carried out: a status code, and words."""

    def __init__(self, status: int, words: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, words, headers)


class Guard:
    """Wraps the application.

    Args:
        app: what to protect.
        token: what a client has to show; None asks for nothing.
        limits: of a client.
        hosts: names under which the server may be addressed; None allows any, which needs a token.
        meter: counts and times what was asked.
    """

    def __init__(
        self, app: App, token: str | None, limits: Limits, hosts: Collection[str] | None, meter: Meter
    ) -> None:
        if hosts is None and token is None:
            raise ValueError("a server that answers to any name needs a token")
        self._app = app
        self._token = token
        self._cookie = hmac.new((token or "").encode(), b"cookie of faverage", hashlib.sha256).hexdigest()
        self._limits = limits
        self._hosts = None if hosts is None else {name.lower() for name in hosts} | LOOPBACK
        self._meter = meter
        self._rate = Rate(limits)
        self._running = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        start, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = _with_headers(message.get("headers", []))
            await send(message)

        try:
            self._admit(scope)
            self._running += 1
            try:
                await self._app(scope, self._limited(scope, receive), answer)
            finally:
                self._running -= 1
        except Refused as refusal:
            await _say(answer, refusal)
        except _SignedIn:
            cookie = f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
            await _say(answer, Refused(303, "Signed in.", {"location": "/", "set-cookie": cookie}))
        except Exception:
            _LOG.exception("%s %s failed", scope["method"], scope["path"])
            if status:
                raise
            await _say(answer, Refused(500, "Something went wrong inside the server; its log says what."))
        finally:
            route = scope.get("route")
            self._meter.add(getattr(route, "path", "other"), status, time.perf_counter() - start)

    def _admit(self, scope: MutableMapping[str, Any]) -> None:
        """Raise ``Refused`` where the request must not come in."""
        client = (scope.get("client") or ("unknown", 0))[0]
        seconds = self._rate.wait(client)
        if seconds:
            words = f"Too many requests: wait {seconds:.1f} s."
            raise Refused(429, words, {"retry-after": str(int(seconds) + 1)})
        if self._running >= self._limits.at_once:
            raise Refused(503, "The server is busy: try again in a moment.", {"retry-after": "1"})
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            raise Refused(421, "This server does not answer to the name in the Host header.")
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin")
            foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
            if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                raise Refused(403, "Pages of other sites may not use this server.")
        self._check_token(scope, headers)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limits.request_bytes:
            raise Refused(413, _too_large(self._limits))

    def _check_token(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> None:
        if self._token is None:
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
        if scope["path"] == "/" and given and _same(given[0], self._token):
            raise _SignedIn
        if scope["path"] in OPEN:
            return
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(shown.strip(), self._token):
            return
        if _same(_cookie(headers.get("cookie", "")), self._cookie):
            return
        raise Refused(401, "This server wants its token.", {"www-authenticate": "Bearer"})

    def _limited(self, scope: MutableMapping[str, Any], receive: Receive) -> Receive:
        """Return ``receive`` with a limit on bytes and on time; both end with the request's body."""
        seen, done = 0, False
        deadline = time.monotonic() + self._limits.upload_seconds

        async def limited() -> Message:
            nonlocal seen, done
            if done:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                seconds = f"{self._limits.upload_seconds:g} s"
                words = f"The request did not arrive within {seconds}: send fewer or smaller pictures."
                raise Refused(408, words, {"connection": "close"}) from None
            seen += len(message.get("body", b""))
            done = not message.get("more_body", False)
            if seen > self._limits.request_bytes:
                raise Refused(413, _too_large(self._limits), {"connection": "close"})
            return message

        return limited


class _SignedIn(Exception):
    """The page was opened with the right token."""


def _too_large(limits: Limits) -> str:
    each = limits.picture_bytes / 2**20
    return f"The request is too large: at most {limits.pictures} pictures of {each:g} MB each."


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _name(host: str) -> str:
    """Return the name of a Host header, without the port.

    >>> _name("LocalHost:8000"), _name("[::1]:80"), _name("::1"), _name("evil@localhost")
    ('localhost', '::1', '', 'evil@localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, _, port = host.partition(":")
    return name.lower().rstrip(".") if not port or port.isdecimal() else ""


def _with_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    have = {name.lower() for name, _ in headers}
    more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in have]
    return [*headers, *more]


async def _say(send: Send, refusal: Refused) -> None:
    body = json.dumps({"error": refusal.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in (refusal.headers or {}).items()]
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
