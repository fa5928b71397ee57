"""The server as a target: raw bytes over a socket to a real process, every route of its openapi.json.

A request that arrives whole must be answered in time, never by a status of 500 and more (but 503, which means busy); a
refused one leaves the model's folder as it was. What does not arrive whole may be dropped; the server must go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from urllib.parse import unquote_to_bytes

from PIL import Image

from fuzz import examples as sound
from fuzz.common import check_probabilities
from fuzz.formats import change_png
from fuzz.mutate import ODD, change_bytes, change_json
from fuzz.requests import CHANGES, Asked, put_form, read_answer
from fuzz.target import Broken, Target, memory_of, snapshot

__all__ = ["server_targets"]

TOKEN = "a-token-of-the-campaign"
OPEN = {b"/", b"/page.css", b"/page.js", b"/icon.svg", b"/favicon.ico", b"/api/health"}
MOST_MEGABYTES = 1000
PATIENCE = 60.0  # seconds for an answer
PARTIAL = 0.3  # seconds that a request is left unfinished


class Server(Target):
    """``faverage serve`` with a model of its own."""

    refusals = (ConnectionRefusedError,)  # never raised: a refusal is a status
    megabytes = None  # the server's own are looked at instead
    seconds = 150.0

    def __init__(self, name: str, share: int, token: str | None) -> None:
        self.name, self.share, self.token = name, share, token
        self.peak = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self, examples: Path) -> None:
        """Write a model, and pictures that unpack to many pixels."""
        shutil.copytree(sound.model_folder(), examples / "model")
        (examples / "large.png").write_bytes(sound.as_bytes(Image.new("L", (6900, 6900)), "PNG", compress_level=1))

    def start(self, examples: Path) -> None:
        """Start the server on a copy of the model, and ask for its routes."""
        self.examples, self.home = examples, examples.parent.parent / self.name
        self.folder = self.home / "served"
        self.large = (examples / "large.png").read_bytes()
        self._begin()
        headers = [(b"Authorization", b"Bearer " + TOKEN.encode())]
        _, body = self._ask(Asked(b"GET", b"/openapi.json", [(b"Host", b"localhost"), *headers]))
        _, known = self._ask(Asked(b"GET", b"/api/classes", [(b"Host", b"localhost"), *headers]))
        thumbnails = [one["thumbnails"][0].encode() for one in json.loads(known)["classes"] if one["thumbnails"]]
        self.routes = [(b"GET", path) for path in (*sorted(OPEN), b"/docs", b"/openapi.json", *thumbnails)]
        for path, methods in json.loads(body)["paths"].items():
            self.routes += [(method.upper().encode(), path.encode()) for method in methods]

    def _begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.examples / "model", self.folder)
        self.sound = snapshot(self.folder)
        words = ["serve", str(self.folder), "--port", "0", *(["--token", self.token] if self.token else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        program = [sys.executable, "-c", "from faverage.cli import main; main()", *words]
        with (self.home / "server.log").open("wb") as log:
            self.process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if " at http://" not in line:
            raise RuntimeError(f"the server does not start: {line} {(self.home / 'server.log').read_text()}")
        self.port = int(line.split(" at http://")[1].split("/")[0].rpartition(":")[2])
        for _ in range(200):
            with contextlib.suppress(OSError, Broken):
                if self._healthy():
                    return
            time.sleep(0.05)
        raise RuntimeError("the server does not answer")

    def stop(self) -> None:
        """End the server."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    # ------------------------------------------------------------------------------------------------------------------

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Write down a request: sound, then changed in its words, its body, its frame or the way it is sent."""
        asked = self._sound(rng)
        for _ in range(rng.choice((1, 1, 1, 2))):
            rng.choice((*CHANGES, self._body, self._body))(rng, asked)
        self.asked = asked
        (work / "request").write_bytes(asked.data())
        how = {"pieces": asked.pieces, "times": asked.times, "cut": asked.cut, "framed": asked.framed}
        (work / "how.json").write_text(json.dumps({**how, "admitted": asked.admitted}) + "\n")

    def _sound(self, rng: Random) -> Asked:
        bringing = [(method, path) for method, path in self.routes if method == b"POST"]
        method, path = rng.choice(bringing if rng.random() < 0.5 else self.routes)
        path = path.replace(b"{id}", b"0123456789abcdef").replace(b"{k}", b"0")
        asked = Asked(method, path, [(b"Host", rng.choice((b"localhost", b"127.0.0.1:80")))])
        asked.admitted = self.token is None or rng.random() < 0.6
        if self.token is not None and asked.admitted:
            asked.headers.append((b"Authorization", b"Bearer " + self.token.encode()))
        image = sound.as_bytes(sound.picture(rng.randrange(9)), "PNG")
        if path == b"/api/predict" and rng.random() < 0.5:
            asked.headers.append((b"Content-Type", b"image/png"))
            asked.body = image
        elif path in (b"/api/predict", b"/api/teach"):
            fields = [(b'name="name"', b"new class")] if path == b"/api/teach" else []
            fields += [(b'name="images"; filename="a.png"\r\nContent-Type: image/png', image)] * rng.choice((1, 2, 3))
            put_form(asked, fields)
        elif path == b"/api/forget":
            asked.headers.append((b"Content-Type", b"application/json"))
            asked.body = json.dumps({"name": rng.choice(("white", "red", "nothing"))}).encode()
        return asked

    def _body(self, rng: Random, asked: Asked) -> None:
        """Change what is brought: the picture, the form, the JSON."""
        if asked.path == b"/api/forget":
            asked.body = rng.choice((change_json(rng, {"name": "white"}).encode("utf-8", "replace"), rng.choice(ODD)))
        elif asked.path == b"/api/teach" or b"multipart" in dict(asked.headers).get(b"Content-Type", b""):
            image = sound.as_bytes(sound.picture(rng.randrange(9)), "PNG")
            many = rng.random()
            asked.headers = [header for header in asked.headers if header[0] != b"Content-Type"]
            if many < 0.12:  # a small form, and sound, that unpacks to many pixels
                files = [(b'name="images"; filename="large.png"', self.large)] * rng.choice((6, 20))
                put_form(asked, [(b'name="name"', b"large"), *files])
                return
            if many < 0.5:
                file = rng.choice(sorted(sound.pictures()))
                pictures = [image, change_bytes(rng, sound.pictures()[file])]
            else:
                pictures = [image] * rng.choice((0, 1, 5, 21, 60))
            name = rng.choice((*ODD, b"white", b"red", b"new", b"n" * 81, b"n" * 5000))
            plain = rng.choice(ODD).replace(b"\r", b"").replace(b"\n", b"")
            fields = [(b'name="name"', name)] * rng.choice((0, 1, 1, 1, 2, 12))
            fields += [(b'name="images"; filename="' + plain + b'"', data) for data in pictures]
            if rng.random() < 0.2:
                fields.append((rng.choice((b"", b"name=", b'name="images"', b'name="x"; filename=', plain)), b"text"))
            rng.shuffle(fields)
            put_form(asked, fields, rng.choice((b"b", b"b", b"x" * 70, b'"quoted"', b"")))
            if rng.random() < 0.3:
                asked.body = change_bytes(rng, asked.body)
        elif asked.body:
            file = rng.choice(sorted(sound.pictures()))
            change = change_png if file.endswith("png") else change_bytes
            asked.body = self.large if rng.random() < 0.01 else change(rng, sound.pictures()[file])
        else:
            asked.body = rng.choice(ODD)

    # ------------------------------------------------------------------------------------------------------------------

    def read(self, rng: Random, work: Path) -> None:
        """Send it; look at the answer, the log, the memory and the folder."""
        asked = self.asked
        try:
            self._judge(asked)
        except Broken:
            self.stop()
            self._begin()  # the next input finds a sound server
            raise
        assert self.process is not None
        self.peak = max(self.peak, memory_of(self.process.pid))
        if self.peak > MOST_MEGABYTES:
            used, self.peak = self.peak, 0.0
            self.stop()
            self._begin()
            raise Broken(f"the server took more than {MOST_MEGABYTES} MB ({_route(asked)})\n{used:.0f} MB")

    def _judge(self, asked: Asked) -> None:
        start = (self.home / "server.log").stat().st_size
        status, body = self._ask(asked)
        if status is None and asked.framed:
            raise Broken(f"no answer ({_route(asked)})")
        if status is not None:
            self._check(asked, status, body)
        if not asked.framed or asked.times > 1:  # what it says of a client that left belongs to this input
            time.sleep(0.02)
            if not self._healthy():
                raise Broken("the server does not answer any more")
        with (self.home / "server.log").open("rb") as file:
            file.seek(start)
            words = file.read().decode("utf-8", "replace")
        if "Traceback" in words or " failed" in words:
            raise Broken(f"the server's log has an error: {_error_in(words)} ({_route(asked)})\n{words[-3000:]}")
        refused = status is not None and status >= 400 and asked.times == 1 and asked.framed
        if snapshot(self.folder) != self.sound:
            self._restore()
            if (
                refused
            ):  # or one that was left unfinished before was carried out meanwhile: see whether it happens again
                time.sleep(0.5)
                self._restore()
                again, _ = self._ask(asked)
                if again is not None and again >= 400 and snapshot(self.folder) != self.sound:
                    raise Broken(f"a file changed although the request was refused ({_route(asked)})")
                self._restore()
        if status is None or status >= 400:
            raise ConnectionRefusedError(f"status {status}")

    def _check(self, asked: Asked, status: int, body: bytes) -> None:
        """Look at a status and at what comes with it."""
        if status >= 500 and status != 503:
            log = (self.home / "server.log").read_text(errors="replace")
            raise Broken(f"status {status}: {_error_in(log)} ({_route(asked)})\n{log[-3000:]}")
        if body and asked.method != b"HEAD" and body[:1] in b"{[":
            try:
                said = json.loads(body, parse_constant=_no_number)
            except ValueError as error:
                raise Broken(f"the answer is not JSON ({_route(asked)}): {error}") from None
            if status >= 400 and not isinstance(said.get("error"), str):
                raise Broken(f"status {status} without words ({_route(asked)})")
            if status == 200 and asked.path == b"/api/predict":
                for answer in said["answers"]:
                    check_probabilities([one["probability"] for one in answer["top"]])
        path = unquote_to_bytes(asked.path.partition(b"?")[0])
        if self.token is not None and not asked.admitted and status < 300 and path not in OPEN and asked.raw is None:
            raise Broken(f"answered without the token ({_route(asked)})")

    def _restore(self) -> None:
        """Put the model back as it was; the server sees that model.json is another file."""
        with (self.folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            source = self.examples / "model"
            shutil.copytree(source / "states", self.folder / "states", dirs_exist_ok=True)
            for state in (self.folder / "states").iterdir():
                if not (source / "states" / state.name).exists():
                    shutil.rmtree(state)
            shutil.rmtree(self.folder / "pictures", ignore_errors=True)
            if (source / "pictures").exists():
                shutil.copytree(source / "pictures", self.folder / "pictures")
            shutil.copy(source / "model.json", self.folder / "fresh.json")
            (self.folder / "fresh.json").replace(self.folder / "model.json")

    def _healthy(self) -> bool:
        return self._ask(Asked(b"GET", b"/api/health", [(b"Host", b"localhost")]))[0] == 200

    def _ask(self, asked: Asked) -> tuple[int | None, bytes]:
        """Send a request and return the status and body of the first answer; None where none came."""
        data = asked.data()
        if asked.cut is not None:
            data = data[: int(len(data) * asked.cut)]
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as link:
            with contextlib.suppress(OSError):  # the server may hang up at any time
                step = max(1, len(data) // asked.pieces)
                for at in range(0, len(data), step):
                    link.sendall(data[at : at + step])
                    if asked.pieces > 1:
                        time.sleep(0.003)
            link.settimeout(PATIENCE if asked.framed else PARTIAL)
            return read_answer(link, asked.method == b"HEAD")


def _no_number(word: str) -> float:
    raise ValueError(f"{word} in JSON")


def _error_in(log: str) -> str:
    """Return the last error in a log, and the last line of the package that it went through."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("File ") and "/src/faverage/" in line]
    place = own[-1].rpartition("/src/")[2].replace('", line ', ":").partition(",")[0] if own else ""
    return f"{lines[-1].partition(':')[0]} at src/{place}" if place else lines[-1].partition(":")[0]


def _route(asked: Asked) -> str:
    path = asked.path.partition(b"?")[0]
    known = path if len(path) < 40 and path.isascii() else b"another path"
    return f"{asked.method[:10].decode('latin-1')} {known.decode('latin-1')}"


def server_targets() -> list[Target]:
    """A server of this machine alone, and one that wants its token."""
    return [Server("http", 1200, None), Server("http-token", 500, TOKEN)]
