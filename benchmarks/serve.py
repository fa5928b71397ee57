"""Times of predictions over HTTP: 8 clients at once, then the same while another one teaches and undoes every second.

    .venv/bin/python benchmarks/serve.py [--seconds 60] [--clients 8] [--model FOLDER]

The server runs in a process of its own, as a user starts it, with the model of digits in a folder that is thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

LIMIT_MS = 50.0


class Client:
    """One connection that is kept open; as little as possible between the clock and the server."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "image/png") -> tuple[int, bytes]:
        """Return status and body of the answer."""
        if not hasattr(self, "reader"):
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
        return int(lines[0].split()[1]), await self.reader.readexactly(length)


def pictures(count: int = 64) -> list[bytes]:
    """Return digits as PNG files of 128 x 128 px, the size that the page sends."""
    from sklearn.datasets import load_digits

    found = []
    for image in load_digits().images[:count]:
        stream = io.BytesIO()
        pixels = Image.fromarray(np.rint(image * 255 / 16).astype(np.uint8))
        pixels.resize((128, 128), Image.Resampling.BICUBIC).convert("RGB").save(stream, "PNG")
        found.append(stream.getvalue())
    return found


def lesson(name: str, count: int = 5) -> tuple[bytes, str]:
    """Return a form that teaches a class, and its content type."""
    parts = [f'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n{name}\r\n'.encode()]
    random = np.random.default_rng(0)
    for k in range(count):
        pixels = np.zeros((128, 128, 3), np.uint8)
        pixels[30 + k : 50 + k, 20:110] = pixels[80 - k : 100 - k, 20:110] = 200 + random.integers(0, 55)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        head = f'--b\r\nContent-Disposition: form-data; name="images"; filename="{k}.png"\r\n\r\n'
        parts.append(head.encode() + stream.getvalue() + b"\r\n")
    return b"".join(parts) + b"--b--\r\n", "multipart/form-data; boundary=b"


async def predictions(port: int, clients: int, seconds: float) -> tuple[list[float], list[str]]:
    """Let the clients predict for so long; return the time of each request in ms, and what failed."""
    data, times, failed = pictures(), [], []
    end = time.perf_counter() + seconds

    async def one(k: int) -> None:
        client = Client(port)
        while (start := time.perf_counter()) < end:
            status, body = await client.ask("POST", "/api/predict", data[k % len(data)])
            times.append(1000 * (time.perf_counter() - start))
            if status != 200:
                failed.append(f"predict: {status} {body[:200]!r}")
            k += 1

    await asyncio.gather(*(one(7 * k) for k in range(clients)))
    return times, failed


async def lessons(port: int, seconds: float) -> tuple[list[float], list[str]]:
    """Teach a class, undo it a second later, and so on; return the time of each change in ms, and what failed."""
    client, times, failed = Client(port), [], []
    body, kind = lesson("two bars")
    begin = time.perf_counter()
    for k in range(int(seconds)):
        await asyncio.sleep(max(0.0, begin + k - time.perf_counter()))
        start = time.perf_counter()
        if start - begin > seconds:
            break
        given = ("/api/teach", body, kind) if k % 2 == 0 else ("/api/undo", b"", "text/plain")
        status, said = await client.ask("POST", *given)
        times.append(1000 * (time.perf_counter() - start))
        if status != 200:
            failed.append(f"{given[0]}: {status} {said[:200]!r}")
    return times, failed


def show(what: str, times: list[float], seconds: float | None = None) -> float:
    """Print one line; return the 99th percentile."""
    p50, p99 = np.percentile(times, [50, 99])
    pace = f", {len(times) / seconds:.0f} a second" if seconds else ""
    print(f"{what}: {len(times)} requests{pace}, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(times):.1f} ms")
    return float(p99)


async def measure(port: int, clients: int, seconds: float) -> int:
    """Run both parts; return 0 where everything held."""
    await predictions(port, clients, 2)  # warm up
    alone = min(seconds, 20.0)
    times, failed = await predictions(port, clients, alone)
    p99 = show(f"{clients} clients", times, alone)
    (times, more), (changes, wrong) = await asyncio.gather(predictions(port, clients, seconds), lessons(port, seconds))
    show(f"{clients} clients, while one teaches or undoes every second", times, seconds)
    show("teach and undo", changes)
    failed = [*failed, *more, *wrong]
    print(f"failed requests: {len(failed)}", *failed[:5], sep="\n  " if failed else "")
    _, body = await Client(port).ask("GET", "/api/metrics")
    said = json.loads(body)
    print(f"pictures a batch: {said['pictures'] / max(said['batches'], 1):.1f}")
    good = p99 < LIMIT_MS and not failed
    print(f"p99 under {LIMIT_MS:g} ms and no failed request: {'yes' if good else 'NO'}")
    return 0 if good else 1


def main() -> int:
    """Start the server, measure, stop it."""
    parser = argparse.ArgumentParser(description="Times of predictions over HTTP.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", type=Path, help="folder of a model; default: digits, made for this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-c", "from faverage.cli import main; main()", "serve", "--port", "0"]
        if given.model is None:
            from faverage.app.train import digits_model

            given.model = digits_model(Path(cache) / "digits").folder
        command.append(str(given.model))
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "FAVERAGE_CACHE": cache}
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                print(line.rstrip())
                if line.startswith("Serving "):
                    break
            else:
                return 1
            port = int(line.rpartition(":")[2])
            return asyncio.run(measure(port, given.clients, given.seconds))
        finally:
            server.send_signal(2)
            server.wait(10)


if __name__ == "__main__":
    sys.exit(main())
