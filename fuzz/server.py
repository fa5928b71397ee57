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
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import unquote_to_bytes

from PIL import Image

from fuzz import examples as sound
from fuzz.engine import Broken, Target, memory_of, snapshot
from fuzz.files import check_probabilities
from fuzz.mutate import ODD, change_bytes, change_json, change_png

__all__ = ["server_targets"]

TOKEN = "a-token-of-the-campaign"
OPEN = {b"/", b"/page.css", b"/page.js", b"/icon.svg", b"/favicon.ico", b"/api/health"}
MOST_MEGABYTES = 1000
PATIENCE = 20.0  # seconds for an answer
PARTIAL = 0.3  # seconds that a request is left unfinished
Header = tuple[bytes, bytes]


@dataclass
class Asked:
    """A request, and whether the server can know where it ends."""

    method: bytes
    path: bytes
    headers: list[Header]
    body: bytes = b""
    version: bytes = b"HTTP/1.1"
    framed: bool = True
    admitted: bool = True  # whether it shows the token
    pieces: int = 1
    times: int = 1
    cut: float | None = None
    raw: bytes | None = None
    length: list[Header] | None = field(default=None)

    def data(self) -> bytes:
        """The bytes to send."""
        if self.raw is not None:
            return self.raw
        length = self.length
        if length is None:
            length = [(b"Content-Length", str(len(self.body)).encode())] if self.body or self.method == b"POST" else []
        lines = [b" ".join((self.method, self.path, self.version))]
        lines += [name + b": " + value for name, value in (*self.headers, *length)]
        return (b"\r\n".join(lines) + b"\r\n\r\n" + self.body) * self.times


class Server(Target):
    """``faverage serve`` with a model of its own."""

    refusals = (ConnectionRefusedError,)  # never raised: a refusal is a status
    megabytes = None  # the server's own are looked at instead
    seconds = 90.0

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
            rng.choice((_method, _path, _header, _header, self._body, self._body, _frame, _delivery, _raw))(rng, asked)
        self.asked = asked
        (work / "request").write_bytes(asked.data())

    def _sound(self, rng: Random) -> Asked:
        method, path = rng.choice(self.routes)
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
            _form(asked, fields)
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
            if many < 0.01:
                pictures = [self.large] * rng.choice((1, 20))
            elif many < 0.5:
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
            asked.headers = [header for header in asked.headers if header[0] != b"Content-Type"]
            _form(asked, fields, rng.choice((b"b", b"b", b"x" * 70, b'"quoted"', b"")))
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
        if status is None and not self._healthy():
            raise Broken("the server does not answer any more")
        with (self.home / "server.log").open("rb") as file:
            file.seek(start)
            words = file.read().decode("utf-8", "replace")
        if "Traceback" in words or " failed" in words:
            last = [line for line in words.splitlines() if line.strip()][-1]
            raise Broken(f"the server's log has an error: {last.split(':')[0]} ({_route(asked)})\n{words}")
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
            own = [line.strip() for line in log.splitlines() if "/faverage/" in line and "line" in line]
            place = own[-1].rpartition("/faverage/")[2].replace('", line ', ":").split(",")[0] if own else ""
            last = next((line for line in reversed(log.splitlines()) if line.strip()), "")
            raise Broken(
                f"status {status}: {last.split(':')[0]} at src/faverage/{place} ({_route(asked)})\n{log[-3000:]}"
            )
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
            return _answer(link, asked.method == b"HEAD")


def _answer(link: socket.socket, head: bool) -> tuple[int | None, bytes]:
    """Read one answer, after those of the kind 100."""
    got = b""
    with contextlib.suppress(OSError):
        while True:
            while b"\r\n\r\n" not in got:
                part = link.recv(65536)
                if not part:
                    return None, got
                got += part
            top, _, rest = got.partition(b"\r\n\r\n")
            words = top.split(b"\r\n")[0].split()
            status = int(words[1])
            if status < 200:
                got = rest
                continue
            fields = {
                name.strip().lower(): value.strip()
                for name, _, value in (h.partition(b":") for h in top.split(b"\r\n"))
            }
            length = int(fields.get(b"content-length", b"0"))
            while len(rest) < length and not head:
                part = link.recv(65536)
                if not part:
                    break
                rest += part
            return status, rest[:length]
    return None, got


def _no_number(word: str) -> float:
    raise ValueError(f"{word} in JSON")


def _route(asked: Asked) -> str:
    path = asked.path.partition(b"?")[0]
    known = path if len(path) < 40 and path.isascii() else b"another path"
    return f"{asked.method[:10].decode('latin-1')} {known.decode('latin-1')}"


def _form(asked: Asked, fields: list[tuple[bytes, bytes]], boundary: bytes = b"b") -> None:
    parts = [
        b"--" + boundary + b"\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data for head, data in fields
    ]
    asked.body = b"\r\n".join([*parts, b"--" + boundary + b"--\r\n"])
    asked.headers.append((b"Content-Type", b"multipart/form-data; boundary=" + boundary))


def _plain(rng: Random) -> bytes:
    """Return odd text that can stand in a line of a request."""
    return rng.choice(ODD).replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")[:5000]


def _method(rng: Random, asked: Asked) -> None:
    methods = (
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"DELETE",
        b"OPTIONS",
        b"PATCH",
        b"TRACE",
        b"get",
        b"M-SEARCH",
        b"X" * 300,
    )
    asked.method = rng.choice(methods)


def _path(rng: Random, asked: Asked) -> None:
    odd = "".join(f"%{byte:02x}" for byte in rng.choice(ODD)[:300]).encode()
    paths = (
        *(
            asked.path + b"?" + odd,
            asked.path + b"/" + odd,
            b"/" + odd,
            asked.path + b"/",
            b"/" + asked.path,
            b"/a" * 2000,
        ),
        *(
            b"/..%2f..%2fetc/passwd",
            b"/static/../../model.json",
            b"/%00",
            b"/api/classes/" + odd + b"/thumbnails/0.png",
        ),
        *(
            b"/api/classes/x/thumbnails/-1.png",
            b"/api/classes/x/thumbnails/" + b"9" * 5000 + b".png",
            b"/?token=" + odd,
        ),
        *(b"http://localhost" + asked.path, b"*", b"/%ff%fe", b"/api/undo", b"/" + b"%61pi/health", b"/\xc3\xa9"),
    )
    asked.path = rng.choice(paths)
    asked.framed &= not any(byte < 33 or byte > 126 for byte in asked.path)


def _header(rng: Random, asked: Asked) -> None:
    odd = _plain(rng)
    name, value = rng.choice(
        (
            *(
                (b"Host", value)
                for value in (b"", b"evil.example", b"localhost:x", b"[::1]:80", b"[", b"localhost.", odd)
            ),
            *((b"Origin", value) for value in (b"null", b"http://evil.example", b"http://localhost", b"http://[", odd)),
            *((b"Authorization", value) for value in (b"Bearer", b"Bearer ", b"Basic eDp4", b"Bearer \xff\xfe", odd)),
            *(
                (b"Cookie", value)
                for value in (b"faverage=x", b'faverage="', b"=;;=", b"a" * 9000, b"faverage=\xff", odd)
            ),
            *((b"Content-Type", value) for value in (b"multipart/form-data", b"text/plain", b"application/json", odd)),
            (b"Content-Type", b"multipart/form-data; boundary=" + rng.choice((b"", b"x" * 3000, b'"', b"\xff"))),
            (b"Content-Type", b"application/json; charset=" + rng.choice((b"utf-16", b"idna", b"rot13", b"x"))),
            *((b"Sec-Fetch-Site", value) for value in (b"cross-site", b"same-origin", odd)),
            *(
                (b"Range", value)
                for value in (b"bytes=0-1", b"bytes=-1", b"bytes=9-1", b"bytes=0-1,3-4", b"bytes=" + b"9" * 5000)
            ),
            *((b"If-None-Match", odd), (b"If-Modified-Since", odd), (b"Accept-Encoding", b"gzip, br"), (b"X-Odd", odd)),
            *(
                (b"Expect", b"100-continue"),
                (b"Upgrade", b"websocket"),
                (b"Connection", b"Upgrade"),
                (b"X-Many", b"a" * 30_000),
            ),
        )
    )
    if name == b"Host" and rng.random() < 0.7:
        asked.headers = [header for header in asked.headers if header[0] != b"Host"]
    asked.headers += [(name, value)] * rng.choice((1, 1, 1, 2))
    if name == b"Host" and rng.random() < 0.1:
        asked.headers = []
    ways = any(not 32 <= byte <= 126 for byte in value) or len(asked.headers) != len({n for n, _ in asked.headers})
    asked.framed &= not ways and value == value.strip() and bool(value) and name not in (b"Upgrade", b"Connection")


def _frame(rng: Random, asked: Asked) -> None:
    size = str(len(asked.body)).encode()
    what = rng.randrange(7)
    if what == 0:
        lengths = (
            b"-1",
            b"+5",
            b"0x10",
            b"1e3",
            b"",
            b"9" * 30,
            b"9" * 5000,
            b"1000000000000",
            size + b" ",
            "١".encode(),
        )
        asked.length = [(b"Content-Length", rng.choice(lengths))]
    elif what == 1:
        asked.length = [(b"Content-Length", size), (b"Content-Length", rng.choice((size, b"0", b"7")))]
    elif what == 2:
        asked.length = [(b"Content-Length", size), (b"Transfer-Encoding", b"chunked")]
    elif what == 3:
        asked.length = [(b"Transfer-Encoding", rng.choice((b"chunked", b"gzip, chunked", b"identity", b"xchunked")))]
        pieces = [asked.body[at : at + 700] for at in range(0, len(asked.body), 700)]
        asked.body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        if rng.random() < 0.5:
            asked.body = rng.choice(
                (
                    b"-1\r\n\r\n",
                    b"ffffffffffffffffff\r\n",
                    b"zz\r\n",
                    b"5;" + b"x" * 9000,
                    change_bytes(rng, asked.body),
                )
            )
    elif what == 4:
        asked.version = rng.choice((b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9", b"", b"HTTP/1.1 x"))
    elif what == 5:
        asked.raw = rng.choice(
            (
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\r\n" * 50,
                b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
                b"GET /\r\n\r\n",
            )
        )
    else:
        asked.raw = asked.data().replace(b"\r\n", b"\n")
    asked.framed = False


def _delivery(rng: Random, asked: Asked) -> None:
    what = rng.randrange(3)
    if what == 0:
        asked.pieces = rng.choice((2, 10, 40))
    elif what == 1:
        asked.cut, asked.framed = rng.random(), False
    else:
        asked.times = rng.choice((2, 3, 20))


def _raw(rng: Random, asked: Asked) -> None:
    head, _, body = asked.data().partition(b"\r\n\r\n")
    asked.raw, asked.framed = change_bytes(rng, head) + b"\r\n\r\n" + body, False


def server_targets() -> list[Target]:
    """A server of this machine alone, and one that wants its token."""
    return [Server("http", 1200, None), Server("http-token", 500, TOKEN)]
