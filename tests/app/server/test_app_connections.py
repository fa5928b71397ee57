"""Connections that are silent, slow, broken or too many: others are answered, and the log stays short."""

import logging
import socket
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from faverage.app.server.limits import Limits
from faverage.app.server.serve import SPARE, Throttle, most_connections
from helpers_app import BREAKING, heard, png, serving

HOST = b"Host: localhost\r\n"
OTHER = "127.0.0.2"


def post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + more
    return head + b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


def test_silent_connections_take_their_share_and_are_closed() -> None:
    with serving(limits=Limits(connections=8, head_seconds=0.6)) as server:
        silent = [server.connect(client=OTHER) for _ in range(6)]
        refused = [heard(connection) for connection in silent[2:]]  # a quarter of the connections is theirs
        assert all(said.startswith(b"HTTP/1.1 429 ") and b"Too many connections" in said for said in refused)
        assert server.get() == 200  # others are not concerned
        assert [heard(connection) for connection in silent[:2]] == [b"", b""]  # closed after a while
        assert server.get(client=OTHER) == 200
        full = [server.connect(client=f"127.0.0.{k // 2 + 3}") for k in range(8)]
        time.sleep(0.05)
        assert server.get() == 503
        for connection in (*silent, *full):
            connection.close()
    assert server.log.getvalue().count("refused") == 1  # one line for all


def test_a_head_that_does_not_end_is_ended() -> None:
    with serving(limits=Limits(head_seconds=0.5)) as server:
        start = time.monotonic()
        with server.connect(b"GET / HTTP/1.1\r\n" + HOST) as connection:
            connection.settimeout(0.05)
            said = b""
            while not said and time.monotonic() - start < 5:
                try:
                    said = connection.recv(4096)
                except TimeoutError:
                    connection.sendall(b"X-More: 1\r\n")  # a little now and then does not help
        assert said.startswith(b"HTTP/1.1 408 ") and 0.4 < time.monotonic() - start < 3
        with server.connect(b"GET /icon.svg HTTP/1.1\r\n" + HOST + b"\r\n") as connection:
            start = time.monotonic()
            assert heard(connection).startswith(b"HTTP/1.1 200 ")  # then nothing: it is closed as well
        assert 0.4 < time.monotonic() - start < 3
    assert not server.log.getvalue()


def test_slow_bodies_are_ended_and_take_no_more_than_their_share() -> None:
    limits = Limits(at_once=8, upload_seconds=0.8)
    with serving(limits=limits) as server:
        slow = post(b"/api/predict", b"")[:-5] + b"999\r\n\r\nx"
        uploads = [server.connect(slow, OTHER) for _ in range(12)]
        time.sleep(0.2)
        assert server.say(post(b"/api/predict", png("blue"), b"Connection: close\r\n")).startswith(b"HTTP/1.1 200 ")
        assert server.get(client=OTHER) == 200  # to ask is counted apart from to bring
        said = [connection.recv(4096)[:12] for connection in uploads]
        assert sorted(said) == [b"HTTP/1.1 408"] * 2 + [b"HTTP/1.1 429"] * 10
        for connection in uploads:
            connection.close()
    assert not server.log.getvalue()


def test_one_who_does_not_read_is_left() -> None:
    with serving(limits=Limits(upload_seconds=0.2, head_seconds=0.2, connections=4)) as server:
        with server.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall((b"GET /page.css HTTP/1.1\r\n" + HOST + b"\r\n") * 2000)
            time.sleep(0.8)
            assert server.get() == 200  # of four connections, one is each client's
    assert not server.log.getvalue()


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n", [400]),
        (b"\x00" * 70_000, [400]),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 200_000 + b"\r\n\r\n", [400]),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", [400]),
        (b"POST /api/undo HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", [400, 413]),
        (b"POST /api/undo HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", [400]),
        (b"POST /api/forget HTTP/1.1\r\n" + HOST + b"Content-Length: 160000000\r\n\r\n{", [413]),
        (b"POST /api/predict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", [400]),
        (b"POST /api/predict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n", [400]),
        (b"POST /api/predict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n", [400]),
        (b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", [400, 404]),
        (b"GET /docs HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", [200]),
        (b"POST /api/undo HTTP/1.1\r\n" + HOST + b"Origin: http://[::1\r\nContent-Length: 0\r\n\r\n", [403]),
        (b"GET /%00%ff/%2e%2e/\xc3 HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", [404, 405]),
    ],
)
def test_what_is_no_http_is_refused_without_noise(data, statuses) -> None:
    with serving(limits=Limits(head_seconds=0.3, upload_seconds=0.3)) as server:
        said = server.say(data)
        assert not said or int(said.split(b" ", 2)[1]) in statuses, said  # one that is cut off may hear nothing
        assert server.get() == 200
    assert "Traceback" not in server.log.getvalue() and len(server.log.getvalue()) < 400, server.log.getvalue()


def test_a_chunk_that_breaks_while_the_answer_is_made() -> None:
    with serving() as server:
        with server.connect(b"POST /api/predict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n") as late:
            time.sleep(0.1)  # the application waits for the body by now
            late.sendall(b"no number\r\n")
            assert heard(late).startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in server.log.getvalue()


def test_requests_one_after_the_other_without_waiting() -> None:
    with serving() as server:
        data = post(b"/api/predict", png("green")) * 3 + b"GET /api/health HTTP/1.1\r\n" + HOST
        said = server.say(data + b"Connection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200 ") == 4 and said.count(b'"answer":"green"') == 3
    assert not server.log.getvalue()


def test_clients_that_leave_are_no_news() -> None:
    with serving() as server:
        for data in (post(b"/api/predict", png())[:-9], post(b"/api/teach", b"--b")[:-1], post(b"/api/forget", b"{ ")):
            server.connect(data).close()
        time.sleep(0.2)
        form = b"Content-Type: multipart/form-data; boundary=b\r\nConnection: close\r\n"
        assert server.say(post(b"/api/predict", b"no form", form)).startswith(b"HTTP/1.1 400 ")
        assert server.get() == 200
    assert not server.log.getvalue()


def test_nobody_says_themselves_who_they_are() -> None:
    with serving(limits=Limits(local_per_second=0.1, local_burst=2)) as server:
        said = [server.get(more=f"X-Forwarded-For: 10.0.0.{k}\r\n") for k in range(3)]
    assert said == [200, 200, 429]


def test_a_failure_is_logged_once_for_many() -> None:
    with serving() as server:
        for _ in range(5):
            assert server.say(post(b"/api/predict", png(BREAKING), b"Connection: close\r\n"))[9:12] == b"500"
    assert server.log.getvalue().count("Traceback") == 1


def test_the_log_counts_what_it_held_back() -> None:
    throttle = Throttle(seconds=0.1)
    records = [logging.LogRecord("a", 30, "", 0, "too many %s", ("files",), None) for _ in range(4)]
    assert [throttle.filter(record) for record in records[:3]] == [True, False, False]
    time.sleep(0.12)
    assert throttle.filter(records[3]) and records[3].getMessage() == "too many files (and 2 more like this)"


def test_connections_leave_descriptors_to_the_files(monkeypatch) -> None:
    resource = pytest.importorskip("resource")
    for files, expected in ((256, 256 - SPARE), (1 << 20, 512), (64, 8), (resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert most_connections(Limits()) == expected
