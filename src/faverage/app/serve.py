"""The command ``faverage serve``: a model behind its page, on this machine unless a token protects it."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faverage.app.limits import LOOPBACK
from faverage.app.names import ModelError

if TYPE_CHECKING:
    from faverage.app.model import Model

__all__ = ["command", "serve"]


def serve(
    model: Path | None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    *,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a model until it is interrupted.

    Args:
        model: its folder; None serves the digits model, which is made once in the user's cache.
        host: the address to listen on; any but this machine's own needs a token.
        port: 0 takes one that is free.
        token: what clients have to show.
        say: hears what a person should know.

    Raises:
        ModelError: in words.
    """
    _check(host, token)
    try:
        import uvicorn

        import faverage.app.server as server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("faverage"):
            raise
        raise ModelError(f"serve needs {error.name}: pip install 'faverage[app]'") from None
    import torch

    listener = _listen(host, port)
    with listener:
        served = _model(model, say)
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))  # the other half reads and writes requests
        app = server.create_app(served, token=token, hosts=_names(host))
        address = _address(host, listener.getsockname()[1])
        say(f"Serving {served.folder} at {address}" + (f"/?token={token}" if token else ""))
        say("Press Ctrl-C to stop.")
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        say("Stopped.")


def command(
    model: Annotated[
        Path | None, typer.Argument(help="A model's folder.", show_default="one that knows digits")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="What others have to show, by header or on the page.")] = None,
) -> None:
    """Serve a model with a page on which a person tries it and teaches it new classes.

    Without MODEL, one that knows digits is made first, which takes a few seconds once.
    """
    serve(model, host, port, token, say=typer.echo)


def _check(host: str, token: str | None) -> None:
    if token is None and not _is_loopback(host):
        raise ModelError(
            f"{host} can be reached by others: give a token that they need, such as\n"
            f"  faverage serve --host {host} --token {secrets.token_urlsafe(12)}\n"
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
        listener = socket.create_server((host, port), family=kind, backlog=512)
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


def _model(folder: Path | None, say: Callable[[str], None]) -> Model:
    from faverage.app.model import Model

    if folder is not None:
        return Model.load(folder)
    from faverage.app.demo import digits_model

    folder = Path(os.environ.get("FAVERAGE_CACHE") or "~/.cache/faverage").expanduser() / "digits-model"
    if not folder.exists():
        say(f"No model was named: making one that knows digits, in {folder} (once, a few seconds)")
    return digits_model(folder, progress=True)
