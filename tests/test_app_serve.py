"""The command ``faverage serve``, in a process of its own, with a real model."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from faverage.app.model import Model, ModelError
from faverage.app.serve import serve
from helpers_app import png, small_model

COMMAND = [sys.executable, "-c", "from faverage.cli import main; main()", "serve"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("served") / "colours")


def start(*arguments: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for line in process.stdout:
        if line.startswith("Serving "):
            return process, line.split(" at ")[1].strip()
    raise AssertionError("the server did not start")


def post(address: str, data: bytes, kind: str = "image/png") -> dict:
    request = urllib.request.Request(address, data, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def lesson(name: str, *pictures: bytes) -> tuple[bytes, str]:
    parts = [f'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n{name}\r\n'.encode()]
    head = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    parts += [head + picture + b"\r\n" for picture in pictures]
    return b"".join(parts) + b"--b--\r\n", "multipart/form-data; boundary=b"


def test_a_real_model_is_asked_and_taught_by_many_and_ctrl_c_ends_it(folder) -> None:
    process, address = start(str(folder), "--port", "0")
    failed: list[str] = []
    try:
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                try:
                    answer = post(f"{address}/api/predict", png("blue"))["answers"][0]
                    assert (
                        len(answer["top"]) in (3, 4, 5) and abs(sum(t["probability"] for t in answer["top"]) - 1) < 1e-3
                    )
                except Exception as error:
                    failed.append(repr(error))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for name in ("yellow", "white"):
            taught = post(f"{address}/api/teach", *lesson(name, png(name), png(name, (40, 30))))
            assert taught["count"] == 2
        said = post(f"{address}/api/predict", png("yellow"))["answers"][0]
        assert said["answer"] == "yellow" and len(said["heads"]) == 3 and said["means"]
        assert json.load(urllib.request.urlopen(f"{address}/api/explain"))["trusted"]
        assert "white" in post(f"{address}/api/undo", b"")["undone"]
        stop.set()
        for reader in readers:
            reader.join(20)
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)[0]
    assert not failed and process.returncode == 0 and "Stopped." in rest and "Traceback" not in rest
    assert [c.name for c in Model.load(folder, device="cpu").classes()][3:] == ["yellow"]  # it was kept


def test_a_port_in_use_is_said_in_words(folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ModelError, match=f"port {port} .* in use.*--port {port + 1}"):
            serve(folder, port=port)


def test_other_addresses_that_cannot_work() -> None:
    with pytest.raises(ModelError, match="no such address"):
        serve(None, host="192.0.2.1", port=0, token="long-enough-token")
    with pytest.raises(ModelError, match="no such address"):
        serve(None, host="no.such.name.invalid", port=0, token="long-enough-token")


def test_what_is_missing_is_said_in_words(folder, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ModelError, match=r"pip install 'faverage\[app\]'"):
        serve(folder, port=0)


def test_without_a_model_the_digits_are_made_in_the_cache(monkeypatch, tmp_path, folder) -> None:
    import faverage.app.demo
    import faverage.app.serve as module

    made: list[Path] = []
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(
        faverage.app.demo, "digits_model", lambda where, progress: made.append(where) or Model.load(folder)
    )
    said: list[str] = []
    module._model(None, said.append)
    assert made == [tmp_path / "digits-model"] and "digits" in said[0]


def test_no_model_is_said_in_words(tmp_path) -> None:
    done = subprocess.run([*COMMAND, str(tmp_path / "none"), "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no model" in done.stderr and "Traceback" not in done.stderr
