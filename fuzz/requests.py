"""Requests as bytes, and what can be wrong with them: words, paths, headers, frames, the way they are sent."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field
from random import Random

from fuzz.mutate import ODD, change_bytes

__all__ = ["CHANGES", "Asked", "put_form", "read_answer"]

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


def read_answer(link: socket.socket, head: bool) -> tuple[int | None, bytes]:
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


def put_form(asked: Asked, fields: list[tuple[bytes, bytes]], boundary: bytes = b"b") -> None:
    """Give a request a form: the words of each field, and what is in it."""
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


CHANGES = (_method, _path, _header, _header, _frame, _delivery, _raw)
