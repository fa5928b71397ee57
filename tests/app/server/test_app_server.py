"""The API: what it answers, that readers and teachers do not disturb each other, that the event loop never waits."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from faverage.app.names import BusyError
from faverage.app.server.app import create_app
from faverage.app.server.limits import Limits, Meter
from faverage.app.server.serve import _listen
from helpers_app import BREAKING, FakeModel, drawing, fake, png


@pytest.fixture
def model() -> FakeModel:
    return fake()


@pytest.fixture
def client(model):
    with TestClient(create_app(model), base_url="http://localhost") as client:
        yield client


def pictures(*data: bytes):
    return [("images", (f"{k}.png", one, "image/png")) for k, one in enumerate(data)]


def teach(client, name="pink", *data: bytes):
    return client.post("/api/teach", data={"name": name}, files=pictures(*(data or (png("pink"),))))


def names(client) -> list[str]:
    return [known["name"] for known in client.get("/api/classes").json()["classes"]]


def test_classes_with_thumbnails(client) -> None:
    said = client.get("/api/classes").json()
    assert said["model"] == "fake-model" and said["version"] == 1 and said["last"] is None
    first = said["classes"][0]
    assert (first["name"], first["count"], first["session"]) == ("red", 1, 0)
    answer = client.get(first["thumbnails"][0])
    assert answer.headers["content-type"] == "image/png" and answer.content == png("red")
    assert "immutable" in answer.headers["cache-control"]


def test_a_model_of_drawings_is_noticed() -> None:
    for model, expected in (
        (fake(), {"likely": False, "ground": "white"}),
        (FakeModel({s: [drawing(s)] for s in ("ring", "bar")}), {"likely": True, "ground": "black"}),
    ):
        with TestClient(create_app(model), base_url="http://localhost") as client:
            found = client.get("/api/classes").json()["drawing"]
        assert found["likely"] is expected["likely"]
        if expected["likely"]:
            assert found == expected


def test_predict_a_form_and_a_raw_body(client) -> None:
    said = client.post("/api/predict", files=pictures(png("red"), png("blue"))).json()["answers"]
    assert [one["answer"] for one in said] == ["red", "blue"]
    assert sum(one["probability"] for one in said[0]["top"]) == pytest.approx(1, abs=1e-4)
    assert len(said[0]["top"]) == 3 and said[0]["heads"][1]["head"] == "prototypes"
    unknown_to_it = {"head": "base head", "best": "red", "knows": False, "probability": 0, "push": -0.25}
    assert said[0]["heads"][0] == unknown_to_it
    assert said[0]["familiarity"] == pytest.approx(1, abs=1e-3) and said[0]["unknown"] is None
    raw = client.post("/api/predict", content=png("green"), headers={"content-type": "image/png"}).json()
    assert raw["answers"][0]["answer"] == "green"


def test_predict_says_none_of_these_where_that_is_asked(client) -> None:
    said = client.post("/api/predict?unknown=0.05", files=pictures(png("red"), png("white"))).json()["answers"]
    assert [one["unknown"] for one in said] == [False, True] and said[1]["familiarity"] < 0.05
    for rate in ("0", "1", "nan", "x", ""):
        assert client.post(f"/api/predict?unknown={rate}", content=png()).status_code == 422, rate
    ignored = client.post("/api/predict", data={"unknown": "0.05"}, files=pictures(png()))
    assert ignored.status_code == 422 and "give it as ?unknown=0.05" in ignored.text


def test_teach_predict_forget_undo(client) -> None:
    said = teach(client, "  hot \n pink ", png("pink"), png("hotpink"))
    assert said.status_code == 200, said.text
    assert said.json() == {
        "name": "hot pink",
        "count": 2,
        "kept": 2,
        "right": 1.0,
        "confused": [{"true": "red", "answered": "hot pink", "times": 2}],
        "version": 2,
        "before": 0.9,
        "after": 0.5,
        "worse": False,
        "again": 0,
    }
    assert client.post("/api/predict", content=png("pink")).json()["answers"][0]["answer"] == "hot pink"
    listed = client.get("/api/classes").json()
    assert listed["classes"][-1]["session"] == 1 and listed["last"]["name"] == "hot pink"
    assert client.post("/api/forget", json={"name": "hot pink"}).json() == {"name": "hot pink", "version": 3}
    assert "hot pink" not in names(client)
    assert client.post("/api/undo").json() == {"undone": "forgot hot pink", "version": 4}
    assert "hot pink" in names(client)
    client.post("/api/undo")
    assert client.get("/api/classes").json()["last"] is None


def test_explain(client) -> None:
    assert client.get("/api/explain").status_code == 409
    teach(client)
    said = client.get("/api/explain").json()
    assert said["means"] == [{"mean": "arithmetic", "share": 1.0}]
    assert said["trusted"][0] == {"name": "red", "head": "base", "share": 1.0, "mean": "arithmetic"}


def test_health_and_metrics(client) -> None:
    assert client.get("/api/health").json()["status"] == "ok"
    for _ in range(3):
        client.post("/api/predict", content=png())
    client.post("/api/predict", content=b"no picture")
    client.get("/nowhere")
    said = client.get("/api/metrics").json()
    predict = said["requests"]["/api/predict"]
    assert predict["count"] == 4 and predict["failed"] == 0 and predict["statuses"] == {"200": 3, "422": 1}
    assert 0 < predict["p50_ms"] <= predict["p99_ms"]
    assert said["pictures"] == 3 and said["batches"] == 3 and said["version"] == 1


@pytest.mark.parametrize(
    ("path", "given", "status", "words"),
    [
        ("/api/forget", {"json": {"name": "no such"}}, 404, "no such"),
        ("/api/forget", {"json": {"name": "red"}}, 409, "base class"),
        ("/api/forget", {"json": {}}, 422, "name"),
        ("/api/forget", {"content": b"{", "headers": {"content-type": "application/json"}}, 422, "json"),
        ("/api/undo", {}, 409, "nothing to undo"),
        ("/api/teach", {"content": png()}, 415, "form"),
        ("/api/teach", {"data": {"name": "x"}, "files": [("other", ("a", b"a"))]}, 422, "no picture"),
        ("/api/teach", {"data": {"name": "red"}, "files": pictures(png())}, 409, "base class"),
        ("/api/predict", {"content": b""}, 422, "no picture"),
        (
            "/api/predict",
            {"content": b"rubbish", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            400,
            "form",
        ),
        ("/api/predict", {"content": b"rubbish", "headers": {"content-type": "multipart/form-data"}}, 400, "form"),
        ("/api/nothing", {}, 404, "nothing at this address"),
        ("/api/classes", {}, 405, "kind of request"),
    ],
)
def test_errors_are_words(client, path, given, status, words) -> None:
    answer = client.post(path, **given)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"] and words in answer.json()["error"].lower()


def test_the_page_and_its_parts_ask_nothing_of_others(client) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert "http://" not in answer.text and "https://" not in answer.text
    assert client.get("/icon.svg").headers["content-type"] == "image/svg+xml"


def test_the_api_is_documented(client) -> None:
    api = client.get("/openapi.json").json()
    for path in ("classes", "health", "metrics", "predict", "teach", "forget", "undo", "explain"):
        [operation] = api["paths"][f"/api/{path}"].values()
        assert operation["summary"] and operation["description"], path
        assert path == "health" or operation["responses"]["429"]["content"]["application/json"]["schema"], path
    assert "multipart/form-data" in api["paths"]["/api/teach"]["post"]["requestBody"]["content"]
    page = client.get("/docs").text
    assert "/api/teach" in page and "curl" in page and json.dumps("hot pink") not in page
    assert "<script" not in page and "https://" not in page


def serve_and(model: FakeModel, work) -> None:
    """Run work(ask) in the event loop of the application; ask(path, …) is awaited."""
    import httpx

    async def main() -> None:
        app = create_app(model)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await work(client)

    asyncio.run(main())


def test_predictions_that_arrive_together_are_one_batch() -> None:
    model = fake(delay=0.05)

    async def work(client) -> None:
        answers = await asyncio.gather(*(client.post("/api/predict", content=png("blue")) for _ in range(24)))
        assert {one.json()["answers"][0]["answer"] for one in answers} == {"blue"}

    serve_and(model, work)
    assert len(model.seen) < 12 and max(len(batch) for batch in model.seen) <= 16
    assert sum(len(batch) for batch in model.seen) == 24


def test_one_picture_that_breaks_the_model_does_not_spoil_the_others() -> None:
    async def work(client) -> None:
        colours = ["green"] * 5 + [BREAKING] + ["green"] * 5
        posts = (client.post("/api/predict", content=png(colour)) for colour in colours)
        answers = await asyncio.gather(*posts, return_exceptions=True)
        good = [one for one in answers if not isinstance(one, Exception) and one.status_code == 200]
        assert len(good) == 10

    serve_and(fake(delay=0.02), work)


def test_health_does_not_wait_for_the_files_of_the_model(model, client) -> None:
    held, classes = threading.Event(), model.classes
    model.classes = lambda: held.wait(10) and classes()
    try:
        start = time.monotonic()
        assert client.get("/api/health").json()["classes"] == 3  # what was known before
        assert client.get("/api/metrics").json()["version"] == 1
        assert time.monotonic() - start < 2
    finally:
        held.set()
    teach(client)
    assert client.get("/api/health").json() | {"faverage": ""} == {
        "status": "ok",
        "faverage": "",
        "version": 2,
        "classes": 4,
    }


def test_a_model_that_another_process_holds(model, client, monkeypatch) -> None:
    def teach_in_vain(*_):
        raise BusyError("another process changes the model: try again in a moment")

    monkeypatch.setattr(model, "teach", teach_in_vain)
    answer = teach(client)
    assert answer.status_code == 503 and "another process" in answer.json()["error"] and answer.headers["retry-after"]


def test_a_history_that_anybody_may_have_written(model, client) -> None:
    odd = ["words", None, 3, {}, {"what": ["undo"]}, {"what": "teach", "class": {"a": 1}, "pictures": "many"}]
    model._history += [*odd, {"what": "teach", "class": "x", "pictures": 10**30, "state": ["0"], "words": 5}]
    assert client.get("/api/classes").json()["last"]["name"] == "x"


def test_closing_waits_a_moment_for_the_change_and_not_for_ever(monkeypatch) -> None:
    import faverage.app.server.workers as batching

    monkeypatch.setattr(batching, "LAST_SECONDS", 0.5)
    held, made = threading.Event(), []

    async def main(work) -> None:
        workers = batching.Workers(fake(), Limits(), Meter())
        changes = [asyncio.create_task(workers.change(work)), asyncio.create_task(workers.change(made.append, 2))]
        await asyncio.sleep(0.05)
        await workers.threads.close()
        await asyncio.wait(changes, timeout=0)

    start = time.monotonic()
    asyncio.run(main(lambda: (time.sleep(0.2), made.append(1))))
    assert made == [1]  # what was begun is finished, what waited is not begun
    asyncio.run(main(lambda: held.wait(10)))
    assert time.monotonic() - start < 5
    held.set()


def test_the_event_loop_never_waits_for_the_model() -> None:
    async def longest_wait(client) -> float:
        slow = asyncio.gather(teach_async(client, "a"), client.post("/api/predict", content=png()))
        longest = 0.0
        while not slow.done():
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - start)
        await slow
        return longest

    async def work(client) -> None:
        # a busy machine may stand still once; a loop that waits for the model does so every time
        assert min([await longest_wait(client) for _ in range(3)]) < 0.2

    async def teach_async(client, name):
        return await client.post("/api/teach", data={"name": name}, files=pictures(png("pink")))

    serve_and(fake(delay=0.5), work)


def test_answers_do_not_wait_for_the_network() -> None:
    with _listen("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()):
            connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # 40 ms a request otherwise


def test_readers_go_on_while_others_teach_and_teachers_queue(model) -> None:
    model.delay = 0.02
    stop, seen, failed = threading.Event(), set(), []

    def read(client) -> None:
        while not stop.is_set():
            answer = client.post("/api/predict", content=png("pink"))
            if answer.status_code != 200:
                failed.append(answer.text)
            else:
                seen.add(len(answer.json()["answers"][0]["top"]))

    with TestClient(create_app(model), base_url="http://localhost") as client, ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, client) for _ in range(3)]
        taught = list(pool.map(lambda k: teach(client, f"class {k}").status_code, range(8)))
        stop.set()
        for reader in readers:
            reader.result()
    assert taught == [200] * 8 and not failed
    assert seen <= set(range(3, 12)) and model.most_teaching == 1 and model.version == 9


def test_teaching_says_what_it_costs_the_other_classes(client) -> None:
    for name, worse in (("noise", True), ("pink", False)):
        said = teach(client, name).json()
        assert (said["before"], said["after"], said["worse"]) == (0.9, 0.5, worse)
