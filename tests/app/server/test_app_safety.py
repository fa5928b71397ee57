"""What the server refuses: strangers, other sites, floods, what is too large or too slow, and what is no picture."""

import asyncio
import io
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from PIL import Image
from starlette.testclient import TestClient

from faverage.app.model import ModelError
from faverage.app.server.app import create_app
from faverage.app.server.limits import Limits
from faverage.app.server.serve import serve
from helpers_app import BREAKING, SlowOpening, fake, png

TOKEN = "correct-horse-battery"


def open_client(model=None, *, client=("127.0.0.1", 5000), raises=True, **options):
    app = create_app(model or fake(), **options)
    return TestClient(app, base_url="http://localhost", client=client, raise_server_exceptions=raises)


def pictures(*data: bytes, name: str = "a.png"):
    return [("images", (name, one, "image/png")) for one in data]


def refused(answer, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert list(said) == ["error"]
    for word in words:
        assert word in said["error"], said
    assert "Traceback" not in answer.text and ".py" not in answer.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_another_address_needs_a_token(host) -> None:
    with pytest.raises(ModelError, match=rf"\n  faverage serve 'my model' --host {host} --port 80 --token \S+\n"):
        serve([Path("my model")], host=host, port=80)


@pytest.mark.parametrize("token", ["short", "with space in it", "ünïcode-token"])
def test_a_token_that_cannot_be_used_is_refused(token) -> None:
    with pytest.raises(ModelError, match="at least 8"):
        serve([], host="0.0.0.0", token=token)


def test_any_name_needs_a_token() -> None:
    with pytest.raises(ValueError, match="token"), open_client(hosts=None) as client:
        client.get("/")


def test_token_by_header_or_by_opening_the_page_with_it() -> None:
    with open_client(token=TOKEN) as client:
        for path in ("/api/classes", "/api/metrics", "/docs", "/openapi.json"):
            refused(client.get(path), 401, "token")
        refused(client.post("/api/predict", content=png()), 401, "token")
        refused(client.get("/api/classes", headers={"Authorization": "Bearer wrong"}), 401)
        refused(client.get("/api/classes", headers={"Authorization": f"Basic {TOKEN}"}), 401)
        refused(client.get(f"/api/classes?token={TOKEN}"), 401)
        assert client.get("/api/health").status_code == 200
        assert client.get("/").status_code == 200  # the page asks for the token by itself
        good = client.get("/api/classes", headers={"Authorization": f"Bearer {TOKEN}"})
        assert good.status_code == 200
        assert client.get("/?token=wrong", follow_redirects=False).status_code == 200
        refused(client.get("/api/classes"), 401)
        signed = client.get(f"/?token={TOKEN}", follow_redirects=False)
        assert signed.status_code == 303 and signed.headers["location"] == "/"
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
        assert client.get("/api/classes").status_code == 200


def test_host_header_against_dns_rebinding() -> None:
    with open_client() as client:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost@evil.example", ""):
            refused(client.get("/api/classes", headers={"host": host}), 421, "Host")
        for host in ("[::1].evil.example", "[::1]x", "[::1]:8000.evil.example"):
            refused(client.get("/api/classes", headers={"host": host}), 421, "Host")
        for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
            assert client.get("/api/classes", headers={"host": host}).status_code == 200, host
    with open_client(hosts=None, token=TOKEN) as client:
        good = {"host": "models.example", "Authorization": f"Bearer {TOKEN}"}
        assert client.get("/api/classes", headers=good).status_code == 200


def test_pages_of_other_sites_can_neither_read_nor_write() -> None:
    model = fake()
    with open_client(model) as client:
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            answer = client.post("/api/teach", data={"name": "x"}, files=pictures(png()), headers=headers)
            refused(answer, 403, "other sites")
        read = client.get("/api/classes", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in read.headers
        assert read.headers["cross-origin-resource-policy"] == "same-origin"
        preflight = client.options(
            "/api/teach", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        )
        assert preflight.status_code == 403 and "access-control-allow-origin" not in preflight.headers
        for origin in ("http://[::1", "http://[evil]x", "http://\u2100.example".encode()):
            refused(client.post("/api/undo", headers={"Origin": origin}), 403, "other sites")
        own = client.post("/api/predict", content=png(), headers={"Origin": "http://localhost"})
        assert own.status_code == 200
    assert model.version == 1


def test_every_answer_tells_the_browser_to_be_careful() -> None:
    with open_client() as client:
        for answer in (client.get("/"), client.get("/api/classes"), client.get("/docs"), client.get("/nowhere")):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"


def test_uploads_are_limited_in_bytes_and_in_number() -> None:
    model = fake()
    noise = Image.effect_noise((400, 400), 90)
    stream = io.BytesIO()
    noise.save(stream, "PNG")
    with open_client(model, limits=Limits(picture_bytes=50_000, pictures=3)) as client:
        refused(client.post("/api/predict", content=stream.getvalue()), 413, "larger than")
        refused(client.post("/api/predict", files=pictures(stream.getvalue(), name="big.png")), 413, "big.png")
        refused(client.post("/api/teach", data={"name": "x"}, files=pictures(*[png()] * 4)), 413, "At most 3")
        refused(client.post("/api/predict", content=b"x" * 1_300_000), 413, "too large")
        chunks = (b"x" * 100_000 for _ in range(20))  # no length is announced
        form = {"content-type": "multipart/form-data; boundary=b"}
        refused(client.post("/api/predict", content=chunks, headers=form), 413, "too large")
        assert client.post("/api/predict", files=pictures(*[png()] * 3)).status_code == 200
    assert model.version == 1
    assert Limits().picture_bytes == 8 * 2**20 and Limits().pictures == 20


def test_what_brings_no_pictures_is_short() -> None:
    with open_client() as client:
        kind = {"content-type": "application/json"}
        refused(client.post("/api/forget", json={"name": "x" * 5000}), 413, "4,096 bytes")
        chunks = (b" " * 1000 for _ in range(5))  # no length is announced
        refused(client.post("/api/forget", content=chunks, headers=kind), 413, "4,096 bytes")
        bodies = ['{"name": "\\ud800"}', '{"name": ' + "9" * 4000 + "}", "[" * 4000, '{"name": [' + "[" * 2000, "\x00"]
        for body in bodies:
            answer = client.post("/api/forget", content=body.encode(), headers=kind)
            refused(answer, 422 if body.startswith('{"name": "') else answer.status_code)
            assert answer.status_code in (400, 422)


@pytest.mark.parametrize("charset", ["unicode_escape", "undefined", "punycode", "no-such"])
def test_a_form_in_an_odd_alphabet(charset) -> None:
    model = fake()
    head = b"--b\r\nContent-Disposition: form-data; name="
    body = (
        head
        + b'"name"\r\n\r\n\\ud800 \xff\x00\r\n'
        + head
        + b'"images"; filename="\\ud800"\r\n\r\n'
        + png()
        + b"\r\n--b--\r\n"
    )
    with open_client(model) as client:
        kind = {"content-type": f"multipart/form-data; boundary=b; charset={charset}"}
        assert client.post("/api/teach", content=body, headers=kind).status_code in (400, 422)
    assert model.version == 1


def test_bytes_in_progress_are_limited_for_all_together() -> None:
    limits = Limits(picture_bytes=50_000, pictures=1, bytes_at_once=1_200_000)

    async def work(ask) -> None:
        held = asyncio.Event()

        async def slow():  # more than a megabyte that is here, and an end that is not
            yield head + b"x" * 1_000_000
            await held.wait()

        head = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        form = {"content-type": "multipart/form-data; boundary=b"}
        first = asyncio.create_task(ask("10.0.0.7").post("/api/predict", content=slow(), headers=form))
        await asyncio.sleep(0.1)
        answer = await ask("10.0.0.8").post("/api/predict", content=head + b"x" * 300_000, headers=form)
        refused(answer, 503, "try again")
        assert answer.headers["retry-after"]
        assert (await ask("10.0.0.8").post("/api/predict", content=png())).status_code == 200
        held.set()
        assert (await first).status_code == 422
        answer = await ask("10.0.0.8").post("/api/predict", content=head + b"x" * 300_000, headers=form)
        assert answer.status_code == 422  # the bytes of the first were given back

    ask_as_many(create_app(fake(), limits=limits), work)


def test_requests_in_progress_are_limited_by_client() -> None:
    async def work(ask) -> None:
        posts = [ask("10.0.0.7").post("/api/predict", content=png()) for _ in range(6)]
        posts += [ask("10.0.0.8").post("/api/predict", content=png()) for _ in range(2)]
        answers = await asyncio.gather(*posts)
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429, 200, 200]
        assert (await ask("10.0.0.7").get("/api/health")).status_code == 200

    ask_as_many(create_app(fake(delay=0.2), limits=Limits(at_once=8)), work)


def test_pictures_in_progress_are_limited() -> None:
    async def work(ask) -> None:
        posts = [ask(f"10.0.0.{k}").post("/api/predict", files=pictures(*[png()] * 3)) for k in range(3)]
        assert sorted(answer.status_code for answer in await asyncio.gather(*posts)) == [200, 200, 503]

    ask_as_many(create_app(fake(delay=0.2), limits=Limits(pictures=3, pictures_at_once=7)), work)


def ask_as_many(app, work) -> None:
    """Run work(ask) beside the application; ask(address) is a client with this address."""
    import httpx

    def ask(address: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address, 1)), base_url="http://localhost")

    asyncio.run(work(ask))


def test_large_pictures_are_opened_one_by_one_and_small_ones_beside_them(monkeypatch) -> None:
    import faverage.app.server.workers as batching

    slowly, order = SlowOpening(), []

    async def work(ask) -> None:
        async def post(address: str, *data: bytes) -> None:
            assert (await ask(address).post("/api/predict", files=pictures(*data))).status_code == 200
            order.append(address)

        large = png(size=(2000, 1500))
        greedy = [asyncio.create_task(post("10.0.0.7", large, large)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await asyncio.gather(post("10.0.0.8", png(), png()), post("10.0.0.9", large), *greedy)

    monkeypatch.setattr(batching, "open_one", slowly)
    ask_as_many(create_app(fake()), work)
    assert slowly.most == 1 and order[:2] == ["10.0.0.8", "10.0.0.9"] and len(order) == 5


def test_pixels_are_limited_together_and_memory_by_format() -> None:
    with open_client(limits=Limits(pixels_together=20_000, memory=100_000)) as client:
        refused(client.post("/api/predict", files=pictures(*[png(size=(100, 100))] * 3)), 413, "together")
        assert client.post("/api/predict", files=pictures(*[png(size=(100, 100))] * 2)).status_code == 200
        refused(client.post("/api/predict", content=png(size=(100, 100), kind="WEBP")), 413, "too many pixels")


def test_pixels_are_limited() -> None:
    with open_client(limits=Limits(pixels=10_000)) as client:
        refused(client.post("/api/predict", content=png(size=(101, 100))), 422, "the picture")
        assert client.post("/api/predict", content=png(size=(100, 100))).status_code == 200


def test_a_slow_upload_is_ended() -> None:
    app = create_app(fake(), limits=Limits(upload_seconds=0.2))
    sent = []

    async def receive():
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/predict", "raw_path": b"/api/predict"}
    scope |= {"query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)}
    scope |= {"scheme": "http", "server": ("localhost", 80), "root_path": "", "http_version": "1.1"}
    start = time.monotonic()
    asyncio.run(app(scope, receive, send))
    assert time.monotonic() - start < 2
    assert sent[0]["status"] == 408 and b"did not arrive" in sent[1]["body"]


def test_what_is_no_picture_is_refused_by_name_and_changes_nothing() -> None:
    model = fake()
    with open_client(model) as client:
        whole = png(size=(64, 64), kind="JPEG")
        for data in (b"just words", b"<svg xmlns='http://www.w3.org/2000/svg'/>", whole[: len(whole) // 2], b""):
            files = [*pictures(png()), *pictures(data, name="../../etc/notes.jpg")]
            answer = client.post("/api/teach", data={"name": "x"}, files=files)
            refused(answer, 422, "picture 2 (notes.jpg)")
            assert "etc/" not in answer.text
    assert model.version == 1


@pytest.mark.parametrize("name", ["", "   ", "\x00", "a\x07b", "x" * 81])
def test_names_that_are_none_are_refused(name) -> None:
    model = fake()
    with open_client(model) as client:
        refused(client.post("/api/teach", data={"name": name}, files=pictures(png())), 422)
        refused(client.post("/api/teach", files=pictures(png())), 422)
    assert model.version == 1


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "<script>alert(1)</script>", "100 % – ünïcode 🌟"])
def test_no_path_comes_from_a_name(name) -> None:
    with open_client() as client:
        assert client.post("/api/teach", data={"name": name}, files=pictures(png("pink"))).status_code == 200
        known = client.get("/api/classes").json()["classes"][-1]
        assert known["name"] == name and known["id"].isalnum()
        assert client.get(known["thumbnails"][0]).status_code == 200
        refused(client.get("/api/classes/..%2F..%2Fetc/thumbnails/0.png"), 404)
        assert client.post("/api/forget", json={"name": name}).status_code == 200


def test_pictures_are_encoded_anew_without_metadata() -> None:
    model = fake()
    exif = Image.Exif()
    exif[0x010E] = "SECRET PLACE"
    data = png("pink", kind="JPEG", exif=exif, comment=b"SECRET PLACE")
    assert b"SECRET PLACE" in data
    with open_client(model) as client:
        client.post("/api/teach", data={"name": "x"}, files=pictures(data))
        client.post("/api/predict", content=data)
        known = client.get("/api/classes").json()["classes"][-1]
        assert b"SECRET" not in client.get(known["thumbnails"][0]).content
    [seen] = model.seen[-1]
    assert seen.mode == "RGB" and not seen.info and not dict(seen.getexif())


def test_no_stack_trace_reaches_a_client() -> None:
    with open_client(raises=False) as client:
        answer = client.post("/api/predict", content=png(BREAKING))
    refused(answer, 500, "inside the server")
    assert "secret" not in answer.text and answer.headers["x-content-type-options"] == "nosniff"


def test_a_client_that_asks_too_often_has_to_wait() -> None:
    limits = Limits(per_second=1, burst=3)
    with open_client(client=("10.0.0.7", 1), limits=limits) as client:
        statuses = [client.get("/api/health").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        answer = client.get("/api/health")
        refused(answer, 429, "wait")
        assert int(answer.headers["retry-after"]) >= 1
    with open_client(limits=limits) as client:  # on this machine: generous
        assert {client.get("/api/health").status_code for _ in range(200)} == {200}
