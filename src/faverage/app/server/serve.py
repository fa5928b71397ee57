"""The command ``faverage serve``: models behind their page, on this machine unless a token protects it."""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import os
import secrets
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faverage.app.names import ModelError, printable
from faverage.app.server.limits import LOOPBACK, Limits, Shares, who
from faverage.errors import install_line

if TYPE_CHECKING:
    import asyncio

    import uvicorn

    from faverage.app.model import Model

_WAITING = 512  # connections that the system keeps until they are accepted

ACCEPTS = 16  # connections that the event loop accepts in one go, before any of them can be refused

SPARE = 64 + 4 * ACCEPTS
"""File descriptors that are left to the model's files, and to connections which are about to be refused."""

_LOG = logging.getLogger("faverage.app")


def serve(
    models: Sequence[Path] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    *,
    backbone: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve models until it is interrupted.

    Args:
        models: their folders; one that does not exist becomes a model that knows nothing yet. None at all serves two
            that are kept in the user's cache: digits, and photos from nothing.
        host: the address to listen on; any but this machine's own needs a token.
        port: 0 takes one that is free.
        token: what clients have to show.
        backbone: of new models: their network, see ``faverage.app.own.ready_backbone``; of those whose network is code
            of one's own: that.
        say: hears what a person should know.

    Raises:
        ModelError: in words.
    """
    options = {"--host": host, "--port": None if port == 8000 else str(port), "--backbone": backbone}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    _check(host, token, shlex.join(["faverage", "serve", *map(str, models), *given]))
    try:
        import uvicorn  # noqa: F401

        import faverage.app.server.app as server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("faverage"):
            raise
        raise ModelError(f"serve needs {error.name}: {install_line('app')}") from None
    import torch

    from faverage.app.server.workers import threads_for

    loaded = _loaded(models, backbone)  # what is wrong with a folder is said before anything listens or is made
    listener = _listen(host, port)
    with listener:
        served, note = (_served(models, loaded, backbone, say), None) if models else _standard(say)
        torch.set_num_threads(threads_for(max(model.side for model in served)))
        app = server.create_app(*served, token=token, hosts=_names(host), note=note)
        address = _address(host, listener.getsockname()[1])
        what = served[0].folder if len(served) == 1 else f"{len(served)} models"
        say(f"Serving {what} at {address}" + (f"/?token={token}" if token else ""))
        for model, name in zip(served, server.names_of([model.folder for model in served]), strict=True):
            if len(served) > 1:
                say(f"  {name}: {model.folder}")
        say("Press Ctrl-C to stop.")
        try:
            http_server(app, Limits()).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        say("Stopped.")
        _leave()


def http_server(app: Any, limits: Limits) -> uvicorn.Server:
    """Return what carries an application: plain HTTP/1.1, with limits on connections and on what the log repeats."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            for listener in sockets or []:
                listener.listen(_WAITING)  # more may wait than are accepted in one go

    config = uvicorn.Config(
        app,
        http=protocol(limits),
        loop="asyncio",
        ws="none",
        proxy_headers=False,  # who a client is, it cannot say itself
        backlog=ACCEPTS,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )
    for name in ("python_multipart", "multipart"):  # they warn of every form that is broken
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("asyncio", "uvicorn.error", "faverage.app"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, Throttle) for known in logger.filters):
            logger.addFilter(Throttle())
    return Server(config)


def command(
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL", help="Folders of models.", show_default="digits, and photos from nothing"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="What others have to show, by header or on the page.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Of a new model: its network, as for train; of one whose network is code of your own: that.",
            show_default="efficientnet_lite0",
        ),
    ] = None,
) -> None:
    """Serve models with a page on which a person tries them and teaches them new classes.

    The page switches between several; a folder that does not exist becomes a new model of photos. Without MODEL, there
    are two: one that knows digits, to draw, and one for photos that knows nothing yet. They are made once, in the
    user's cache, and keep what they are taught.
    """
    serve(models or [], host, port, token, backbone=backbone, say=lambda words: typer.echo(printable(words)))


def _leave() -> None:
    """End the process even where a thread does not end, as one that waits for a disk; files are whole at any time."""
    from faverage.app.server.workers import THREADS

    deadline = time.monotonic() + 1.0
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _check(host: str, token: str | None, command: str) -> None:
    """Refuse to be reached by others without a token; ``command`` is what was typed."""
    if token is None and not _is_loopback(host):
        raise ModelError(
            f"{host} can be reached by others: give a token that they need, such as\n"
            f"  {command} --token {secrets.token_urlsafe(12)}\n"
            "or leave out --host to serve this machine alone"
        )
    if token is not None and (len(token) < 8 or not all("!" <= c <= "~" for c in token)):
        raise ModelError("--token: give at least 8 letters, digits or signs, without spaces")


def _is_loopback(host: str) -> bool:
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names(host: str) -> Collection[str] | None:
    """Return the names under which the server answers; None for any, where it listens on every address."""
    return None if host in ("0.0.0.0", "::", "") else {host.lower()} | LOOPBACK


def _address(host: str, port: int) -> str:
    """Return what to type into a browser.

    >>> _address("0.0.0.0", 80), _address("::1", 8000)
    ('http://localhost:80', 'http://[::1]:8000')
    """
    name = "localhost" if host in ("0.0.0.0", "::", "", "127.0.0.1") else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        kind = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=kind, backlog=_WAITING)
        # the two halves of an answer must not wait for each other: 40 ms a request otherwise
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror:
        raise ModelError(f"--host {host}: there is no such address") from None
    except OverflowError:
        raise ModelError(f"--port {port}: give a number from 0 to 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            words = f"port {port} of {host} is in use: stop what runs there, or choose another: --port {port + 1}"
        elif error.errno == errno.EACCES:
            words = f"port {port} needs more rights than you have: choose one from 1024, such as --port 8000"
        elif error.errno == errno.EADDRNOTAVAIL:
            words = f"--host {host}: this machine has no such address"
        else:
            words = f"cannot listen on {host}, port {port}: {error.strerror}"
        raise ModelError(words) from None


def _loaded(folders: Sequence[Path], backbone: str | None) -> dict[Path, Model]:
    """Return the models in those folders that exist; ModelError where one is no model, or is named twice."""
    from faverage.app.folder import Folder
    from faverage.app.model import Model
    from faverage.app.own import given_backbone

    if backbone is not None and not folders:
        raise ModelError("--backbone is the network of a model: name the folder of the model, too")
    real: dict[str, Path] = {}
    for folder in folders:
        place = os.path.realpath(folder)
        if place in real:
            raise ModelError(f"{real[place]} and {folder} are the same folder: name each model once")
        real[place] = folder
    there = {folder: Folder(folder).read() for folder in folders if folder.exists() or folder.is_symlink()}
    own = [folder for folder, record in there.items() if record.get("given") is not None]
    takers = own if own or len(there) < len(folders) else list(there)  # where none takes it, loading says so
    return {
        folder: Model.load(folder, backbone=given_backbone(backbone if folder in takers else None, folder))
        for folder in there
    }


def _served(
    folders: Sequence[Path], loaded: dict[Path, Model], backbone: str | None, say: Callable[[str], None]
) -> list[Model]:
    """Return the models in the order of their folders, and make those that do not exist."""
    from faverage.app.own import PHOTOS
    from faverage.app.train import empty_model

    served = []
    for folder in folders:
        if folder not in loaded:
            try:
                loaded[folder] = empty_model(folder, backbone=backbone)
            except ImportError as error:
                raise ModelError(f"there is no model in {folder}, and for a new one {error}") from None
            say(f"There was no model in {folder}: made a new, empty one, which sees with {backbone or PHOTOS}.")
            say("If its name was mistyped, press Ctrl-C and remove that folder.")
        served.append(loaded[folder])
    return served


def _standard(say: Callable[[str], None]) -> tuple[list[Model], str | None]:
    """Return the models that are served where none is named, and what the page says where one is missing."""
    from faverage.app.model import Model
    from faverage.app.train import digits_model, empty_model
    from faverage.storage import cache_folder

    folder, photos = cache_folder() / "digits-model", cache_folder() / "photos-model"
    if not folder.exists():
        say(f"No model was named: making one that knows digits, in {folder} (once, a few seconds)")
    digits = digits_model(folder)
    try:
        if not photos.exists():
            with suppress(ModelError):  # another process made it meanwhile; else loading says what is wrong
                empty_model(photos)
                say(f"For photos, made one that knows nothing yet, in {photos}")
        return [digits, Model.load(photos)], None
    except ImportError as error:
        say(f"Photos are left out: {error}.")  # the page may be seen by others, who need not know where things are
        return [digits], "Photos are left out: the extra 'photos' is not installed; 'faverage doctor' says how to."


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
    """Lets the same message through once in so many seconds, with the number of those that were held back."""

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
