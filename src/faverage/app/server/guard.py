"""The door of the server: who may come in, how much they may bring, and what every answer says to a browser."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from faverage.app.server.limits import LOOPBACK, Limits, Meter, Rate, Shares, who

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

COOKIE = "faverage"
OPEN = frozenset({"/", "/page.css", "/page.js", "/icon.svg", "/favicon.ico", "/api/health"})
"""What is answered without the token: the page, which holds nothing of the model, and the sign of life."""
MODULES = "/js/"  # likewise: what the addresses of the page's modules begin with
PICTURES = frozenset({"/api/predict", "/api/teach"})
ZIPS = frozenset({"/api/pictures.zip", "/api/merge"})  # these and pictures take more than a note

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


def client_of(scope: MutableMapping[str, Any]) -> str:
    """Return who sent a request."""
    return who((scope.get("client") or ("unknown", 0))[0])


class Guard:
    """Wraps the application.

    Args:
        app: what to protect.
        token: what a client has to show; None asks for nothing.
        limits: of a client.
        hosts: names under which the server may be addressed; None allows any, which needs a token.
        meter: counts and times what was asked.
        under: what the addresses of each model begin with, where there are several, such as ``/m/birds``.
    """

    def __init__(
        self,
        app: App,
        token: str | None,
        limits: Limits,
        hosts: Collection[str] | None,
        meter: Meter,
        under: Collection[str] = (),
    ) -> None:
        if hosts is None and token is None:
            raise ValueError("a server that answers to any name needs a token")
        self._app = app
        self._token = token
        self._cookie = hmac.new((token or "").encode(), b"cookie of faverage", hashlib.sha256).hexdigest()
        self._limits = limits
        self._hosts = None if hosts is None else {name.lower() for name in hosts} | LOOPBACK
        self._meter = meter
        self._under = under
        self._rate = Rate(limits)
        each = max(1, limits.at_once // limits.share)
        self._bringing, self._asking = Shares(limits.at_once, each), Shares(limits.at_once, each)
        self._bytes = Shares(limits.bytes_at_once, max(limits.request_bytes, limits.bytes_at_once // limits.share))

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

        client, brought = client_of(scope), 0

        def bring(size: int) -> None:
            nonlocal brought
            status = self._bytes.take(client, size)
            if status:
                words = "The server has its hands full with other pictures: try again in a moment."
                raise Refused(status, words, {"retry-after": "2", "connection": "close"})
            brought += size

        try:
            headers = self._admit(scope, client)
            empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
            with self._place(self._asking if empty else self._bringing, client):
                await self._app(scope, self._limited(scope, receive, bring), answer)
        except Refused as refusal:
            await _say(answer, refusal)
        except _SignedIn as page:
            cookie = f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
            await _say(answer, Refused(303, "Signed in.", {"location": str(page), "set-cookie": cookie}))
        except ClientDisconnect:
            status = status or 499
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            if not status:
                await _say(answer, Refused(503, "The server stops.", {"connection": "close"}))
        except Exception:
            _LOG.exception("%s %s failed", scope["method"], scope["path"])
            if status:
                raise
            await _say(answer, Refused(500, "Something went wrong inside the server; its log says what."))
        finally:
            self._bytes.give(client, brought)
            route, at = getattr(scope.get("route"), "path", "other"), self._at(scope)
            known = route if route == "other" else at + route.removeprefix(at)  # versions of FastAPI differ in it
            self._meter.add(known, status, time.perf_counter() - start)

    @contextmanager
    def _place(self, places: Shares, client: str) -> Iterator[None]:
        status = places.take(client)
        if status:
            words = "The server is busy" if status == 503 else "You have asked for too much at once"
            raise Refused(status, f"{words}: try again in a moment.", {"retry-after": "1"})
        try:
            yield
        finally:
            places.give(client)

    def _admit(self, scope: MutableMapping[str, Any], client: str) -> dict[str, str]:
        """Return the headers, or raise ``Refused`` where the request must not come in."""
        seconds = self._rate.wait(client)
        if seconds:
            words = f"Too many requests: wait {seconds:.1f} s."
            raise Refused(429, words, {"retry-after": str(int(seconds) + 1)})
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            raise Refused(421, "This server does not answer to the name in the Host header.")
        if scope["method"] not in ("GET", "HEAD"):
            foreign = "origin" in headers and (_origin(headers["origin"]) or "none") != host.lower()
            if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                raise Refused(403, "Pages of other sites may not use this server.")
        self._check_token(scope, headers)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self._most(scope):
            raise Refused(413, self._too_large(scope), {"connection": "close"})
        return headers

    def _path(self, scope: MutableMapping[str, Any]) -> str:
        """Return the address that is asked for, as it is where one model is served."""
        return str(scope["path"]).removeprefix(self._at(scope))

    def _at(self, scope: MutableMapping[str, Any]) -> str:
        return next((at for at in self._under if scope["path"].startswith(f"{at}/")), "")

    def _most(self, scope: MutableMapping[str, Any]) -> int:
        return self._limits.request_bytes if self._path(scope) in PICTURES | ZIPS else self._limits.note_bytes

    def _too_large(self, scope: MutableMapping[str, Any]) -> str:
        if self._path(scope) in ZIPS:
            return f"The file is too large: at most {self._limits.request_bytes / 2**20:g} MB."
        if self._path(scope) not in PICTURES:
            return f"The request is too large: at most {self._limits.note_bytes:,} bytes here."
        each = self._limits.picture_bytes / 2**20
        return f"The request is too large: at most {self._limits.pictures} pictures of {each:g} MB each."

    def _check_token(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> None:
        if self._token is None:
            return
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
        path = self._path(scope)
        if path == "/" and given and _same(given[0], self._token):
            raise _SignedIn(scope["path"])
        if path in OPEN or path.startswith(MODULES):
            return
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(shown.strip(), self._token):
            return
        if _same(_cookie(headers.get("cookie", "")), self._cookie):
            return
        raise Refused(401, "This server wants its token.", {"www-authenticate": "Bearer"})

    def _limited(self, scope: MutableMapping[str, Any], receive: Receive, bring: Callable[[int], None]) -> Receive:
        """Return ``receive`` with a limit on bytes and on time, which end with the body; ``bring`` hears of bytes."""
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
            if seen > self._most(scope):
                raise Refused(413, self._too_large(scope), {"connection": "close"})
            bring(len(message.get("body", b"")))
            return message

        return limited


class _SignedIn(Exception):
    """The page, whose address this is, was opened with the right token."""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _name(host: str) -> str:
    """Return the name of a Host header, without the port; nothing where it is none.

    >>> _name("LocalHost:8000"), _name("[::1]:80"), _name("::1"), _name("[::1].evil.example"), _name("evil@localhost")
    ('localhost', '::1', '', '', 'evil@localhost')
    """
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name.lower() if not rest or (rest[0] == ":" and rest[1:].isdecimal()) else ""
    name, _, port = host.partition(":")
    return name.lower().rstrip(".") if not port or port.isdecimal() else ""


def _origin(header: str) -> str:
    """Return the name and port in an Origin header; nothing where it is none.

    >>> _origin("http://LocalHost:8000"), _origin("http://[::1"), _origin("null")
    ('localhost:8000', '', '')
    """
    try:
        return urlsplit(header).netloc.lower()
    except ValueError:
        return ""


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
