"""The routes behind the panels of the page: matrix, move, remove, rename, zips, merge; and what they refuse."""

import io
import json
import re
import shutil
import stat
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'app' is not installed")

from fastapi.testclient import TestClient
from PIL import Image

from faverage.app.model import Model
from faverage.app.server.app import STATIC, create_app
from faverage.app.server.limits import Limits
from faverage.app.why import Example, photograph_next
from faverage.app.zips import write_model_zip
from faverage.fscil import FewShotLearner
from helpers_app import png, small_model

COLOURS = {"yellow": (230, 220, 40), "grey": (120, 120, 120)}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture
def model(made, tmp_path) -> Model:
    shutil.copytree(made, tmp_path / "colours")
    return Model.load(tmp_path / "colours", device="cpu")


@pytest.fixture
def client(model):
    with TestClient(create_app(model), base_url="http://localhost") as client:
        yield client


def picture(colour, k: int = 0) -> bytes:
    pixels = np.random.default_rng(k).normal(colour, 12, (24, 24, 3)).clip(0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def teach(client, name: str, colour, count: int = 3) -> None:
    files = [("images", (f"{k}.png", picture(colour, k), "image/png")) for k in range(count)]
    answer = client.post("/api/teach", data={"name": name}, files=files)
    assert answer.status_code == 200, answer.text


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return stream.getvalue()


def send(client, path: str, data: bytes):
    return client.post(path, content=data, headers={"content-type": "application/zip"})


def refused(answer, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"], answer.text


def taught_ids(client, name: str) -> list[str]:
    return [one["id"] for one in client.get("/api/matrix").json()["examples"] if one["name"] == name]


# Pictures, matrix, advice ---------------------------------------------------------------------------------------------


def test_taught_pictures_are_kept_and_shown_beside_the_answer(client) -> None:
    teach(client, "yellow", COLOURS["yellow"])
    said = client.post("/api/predict", content=picture(COLOURS["yellow"], 9)).json()["answers"][0]
    near = said["nearest"][0]
    assert near["name"] == "yellow" and near["similarity"] > 0.9
    shown = client.get(near["picture"])
    assert shown.status_code == 200 and shown.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(shown.content)).size == (24, 24)
    base = [one for one in client.get("/api/matrix").json()["examples"] if one["name"] == "red"]
    assert base and all(one["picture"] is None for one in base)  # what the model came with


def test_every_kept_example_is_in_the_matrix_and_the_class_with_one_picture_comes_next(client) -> None:
    teach(client, "yellow", COLOURS["yellow"], 4)
    teach(client, "grey", COLOURS["grey"], 1)
    found = client.get("/api/matrix").json()
    assert found["classes"] == ["blue", "green", "red", "yellow", "grey"] and found["left_off"] == 0
    assert sum(one["name"] == "yellow" for one in found["examples"]) == 4
    assert [one["alone"] for one in found["examples"] if one["name"] == "grey"] == [True]
    assert found["next"]["name"] == "grey" and "only 1 picture" in found["next"]["words"]


def test_move_and_remove_change_counts_and_can_be_undone(client, model) -> None:
    teach(client, "yellow", COLOURS["yellow"], 4)
    teach(client, "grey", COLOURS["grey"], 3)
    first, second, *_ = taught_ids(client, "grey")
    said = client.post("/api/move", json={"ids": [first], "to": "yellow"})
    assert said.status_code == 200 and said.json()["words"] == "moved 1 picture to 'yellow'"
    assert client.post("/api/remove", json={"ids": [second]}).status_code == 200
    counts = {c.name: c.count for c in model.classes()}
    assert (counts["yellow"], counts["grey"]) == (5, 1) and first in taught_ids(client, "yellow")
    for _ in range(2):
        assert client.post("/api/undo").status_code == 200
    assert {second, first} <= set(taught_ids(client, "grey"))
    assert client.get(f"/api/pictures/{second}").status_code == 200  # undoing needs it


def test_what_no_state_has_is_deleted(client, model, monkeypatch) -> None:
    monkeypatch.setattr("faverage.app.model.KEPT_STATES", 1)
    teach(client, "yellow", COLOURS["yellow"], 2)
    gone = taught_ids(client, "yellow")[0]
    assert client.post("/api/remove", json={"ids": [gone]}).status_code == 200
    assert gone in model.pictures
    teach(client, "grey", COLOURS["grey"], 1)
    assert gone not in model.pictures and len(model.pictures.names()) == 2


def test_rename(client, model) -> None:
    teach(client, "yellow", COLOURS["yellow"])
    assert client.post("/api/rename", json={"name": "yellow", "new": "gold"}).json()["version"] == model.version
    assert [c.name for c in model.classes()][-1] == "gold" and len(taught_ids(client, "gold")) == 3
    refused(client.post("/api/rename", json={"name": "gold", "new": "red"}), 409, "knows 'red' already")
    refused(client.post("/api/rename", json={"name": "gold", "new": " "}), 422, "empty")
    refused(client.post("/api/rename", json={"name": "nothing", "new": "x"}), 404, "nothing")
    assert client.post("/api/rename", json={"name": "gold"}).status_code == 422


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/move", {"ids": [], "to": "red"}),
        ("/api/move", {"ids": ["../../model"], "to": "red"}),
        ("/api/move", {"ids": ["0" * 24]}),
        ("/api/move", {"ids": ["0" * 24] * 101, "to": "red"}),
        ("/api/remove", {"ids": "0" * 24}),
        ("/api/remove", {}),
    ],
)
def test_bad_ids_are_refused(client, model, path, body) -> None:
    version = model.version
    assert client.post(path, json=body).status_code == 422
    assert model.version == version


def test_changes_that_cannot_be(client, model) -> None:
    teach(client, "yellow", COLOURS["yellow"], 2)
    ids, version = taught_ids(client, "yellow"), model.version
    refused(client.post("/api/remove", json={"ids": ids}), 409, "no example left")
    refused(client.post("/api/move", json={"ids": ids, "to": "red"}), 409, "no example left")
    refused(client.post("/api/move", json={"ids": ids, "to": "yellow"}), 409, "already")
    refused(client.post("/api/move", json={"ids": ids, "to": "purple"}), 409, "does not know 'purple'")
    refused(client.post("/api/remove", json={"ids": ["0" * 24]}), 409, "no such picture")
    refused(client.post("/api/remove", content=b"x" * 5000), 413, "too large")
    assert model.version == version


@pytest.mark.parametrize("id", ["0" * 24, "x", "..%2f..%2fmodel.json", "a" * 5000])
def test_pictures_that_are_not_there(client, id) -> None:
    assert client.get(f"/api/pictures/{id}").status_code == 404


def test_a_link_in_place_of_a_picture_is_not_followed(client, model, tmp_path) -> None:
    teach(client, "yellow", COLOURS["yellow"], 2)
    file = model.pictures.path / f"{taught_ids(client, 'yellow')[0]}.png"
    (tmp_path / "secret").write_text("secret")
    file.unlink()
    file.symlink_to(tmp_path / "secret")
    assert client.get(f"/api/pictures/{file.stem}").status_code == 404


# Zips -----------------------------------------------------------------------------------------------------------------


def test_pictures_out_and_into_a_model_that_never_saw_them(client, made, tmp_path) -> None:
    teach(client, "yellow", COLOURS["yellow"], 4)
    teach(client, "a/b: 100%", COLOURS["grey"], 3)
    packed = client.get("/api/pictures.zip")
    assert packed.status_code == 200 and 'filename="colours-pictures.zip"' in packed.headers["content-disposition"]
    names = zipfile.ZipFile(io.BytesIO(packed.content)).namelist()
    assert len(names) == 7 and sum(name.startswith("yellow/") for name in names) == 4
    assert all(name.count("/") == 1 for name in names)
    shutil.copytree(made, tmp_path / "other")
    other = Model.load(tmp_path / "other", device="cpu")
    with TestClient(create_app(other), base_url="http://localhost") as second:
        said = send(second, "/api/pictures.zip", packed.content)
        assert [(one["name"], one["count"]) for one in said.json()["lessons"]] == [("yellow", 4), ("a/b: 100%", 3)]
        assert said.json()["pictures"] == 7 and said.json()["version"] == 2
        assert sorted(taught_ids(second, "yellow")) == sorted(taught_ids(client, "yellow"))  # the very same features
        assert second.post("/api/undo").status_code == 200  # one change


def test_zips_that_are_refused_change_nothing(client, model) -> None:
    version, good = model.version, picture(COLOURS["grey"])
    link = zipfile.ZipInfo("cat/link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr(link, "/etc/passwd")
    locked = bytearray(zipped({"cat/1.png": good}, zipfile.ZIP_STORED))
    locked[locked.rfind(b"PK\x01\x02") + 8] |= 1
    bomb = zipped({f"cat/{k}.png": bytes(45_000_000) for k in range(10)})
    assert len(bomb) < 500_000  # 450 MB
    for data, words in (
        (b"just words", "not a zip"),
        (zipped({}), "no picture in the zip"),
        (zipped({"cat.png": good}), "lies in no folder"),
        (zipped({"../cat/1.png": good}), "only plain folders"),
        (zipped({"/etc/1.png": good}), "only plain folders"),
        (zipped({"C:\\cat\\1.png": good}), "only plain folders"),
        (zipped({"cat/1.png": good, "cat/notes.png": b"words"}), "cat/notes.png"),
        (zipped({"cat/large.png": bytes(9 * 2**20)}), "larger than 8 MB"),
        (zipped({f"cat/{k}.png": b"" for k in range(10_000)}), "10,000 files"),
        (bomb, "would unpack to 450 MB"),
        (stream.getvalue(), "is a link"),
        (bytes(locked), "password"),
        (zipped({"cat/1.png": good}, zipfile.ZIP_LZMA), "unusual way"),
        (zipped({"cat/1.png": good})[:-30], "not a zip"),
    ):
        refused(send(client, "/api/pictures.zip", data), 422, words)
    refused(send(client, "/api/pictures.zip", b""), 422, "nothing")
    assert model.version == version and not model.pictures.names()


def test_a_broken_entry_of_a_zip(client) -> None:
    data = bytearray(zipped({"cat/1.png": picture(COLOURS["grey"])}, zipfile.ZIP_STORED))
    data[60] ^= 255
    refused(send(client, "/api/pictures.zip", bytes(data)), 422, "cannot be read")
    data = zipped({"cat/1.png": b"x"})
    place = data.rfind(b"PK\x05\x06")
    long = data[: place + 12] + struct.pack("<I", 50_000_000) + data[place + 16 :]
    refused(send(client, "/api/pictures.zip", long), 422, "too many files")


def test_what_systems_leave_in_zips_is_passed_over(client) -> None:
    files = {"zoo/cat/1.png": picture(COLOURS["grey"]), "__MACOSX/zoo/cat/._1.png": b"x", "zoo/.DS_Store": b"x"}
    assert send(client, "/api/pictures.zip", zipped(files)).json()["lessons"][0]["name"] == "cat"


def test_few_zips_are_read_at_once(client, monkeypatch) -> None:
    monkeypatch.setattr("faverage.app.server.files.ZIPS_AT_ONCE", 0)
    for path in ("/api/pictures.zip", "/api/merge"):
        refused(send(client, path, zipped({"cat/1.png": png()})), 503, "try again")
    monkeypatch.setattr("faverage.app.server.workers.EXPORTS", 0)
    refused(client.get("/api/model.zip"), 503, "try again")


def test_too_large_a_file(model) -> None:
    small = Limits(pictures=1, picture_bytes=1000)
    with TestClient(create_app(model, limits=small), base_url="http://localhost") as client:
        refused(send(client, "/api/merge", bytes(2**20 + 2000)), 413, "The file is too large")


# Models ---------------------------------------------------------------------------------------------------------------


def test_a_model_goes_out_and_is_merged_by_another_with_its_pictures(client, made, tmp_path) -> None:
    teach(client, "yellow", COLOURS["yellow"], 3)
    teach(client, "grey", COLOURS["grey"], 2)
    client.post("/api/forget", json={"name": "grey"})
    packed = client.get("/api/model.zip").content
    zipfile.ZipFile(io.BytesIO(packed)).extractall(tmp_path / "unpacked")
    again = Model.load(tmp_path / "unpacked" / "colours", device="cpu")
    assert [c.name for c in again.classes()][-1] == "yellow" and len(again.pictures.names()) == 3
    assert b"grey" not in (tmp_path / "unpacked/colours/model.json").read_bytes()  # what was forgotten stays here
    shutil.copytree(made, tmp_path / "other")
    other = Model.load(tmp_path / "other", device="cpu")
    with TestClient(create_app(other), base_url="http://localhost") as second:
        assert send(second, "/api/merge", packed).json() == {"new": ["yellow"], "version": 2}
        assert len(other.pictures.names()) == 3
        assert second.post("/api/undo").status_code == 200


def stranger(folder: Path) -> bytes:
    """Return the zip of a model that sees with another network."""
    learner = FewShotLearner("tiny", training={"epochs": 1, "device": "cpu", "batch_size": 16}, seed=5)
    images = np.random.default_rng(5).integers(0, 256, (48, 16, 16, 3), dtype=np.uint8)
    model = Model.create(folder, learner.fit_base(images, np.repeat(["a", "b"], 24)), side=16, device="cpu")
    stream = io.BytesIO()
    write_model_zip(model, stream)
    return stream.getvalue()


def test_models_that_are_refused(client, model, made, tmp_path) -> None:
    def packed(change=None, top: str = "m/") -> bytes:
        files = {f"{top}{p.relative_to(made).as_posix()}": p.read_bytes() for p in made.rglob("*") if p.is_file()}
        if change is not None:
            record = json.loads(files[f"{top}model.json"])
            files[f"{top}model.json"] = json.dumps(record | change).encode()
        return zipped(files)

    later = send(client, "/api/merge", packed({"format": 99, "faverage": "9.0"}))
    refused(later, 409, "upgrade faverage")
    assert "/tmp" not in later.text and str(tmp_path) not in later.text
    version = model.version
    refused(send(client, "/api/merge", stranger(tmp_path / "stranger")), 409, "different backbones")
    refused(send(client, "/api/merge", packed({"kind": "recipe"})), 409, "does not describe a model")
    refused(send(client, "/api/merge", zipped({"a/1.png": png()})), 409, "no model in the zip")
    refused(send(client, "/api/merge", zipped({"../model.json": b"{}"})), 409, "only plain folders")
    refused(send(client, "/api/merge", zipped({"model.json": b"{}"})), 409, "model")
    refused(send(client, "/api/merge", b"words"), 409, "not a zip")
    assert model.version == version


@pytest.mark.slow
def test_onnx(client) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    teach(client, "yellow", COLOURS["yellow"], 3)
    found = client.get("/api/model.onnx")
    assert found.status_code == 200, found.text
    session = onnxruntime.InferenceSession(found.content)
    assert "yellow" in session.get_modelmeta().custom_metadata_map["classes"]


# Files of the page ----------------------------------------------------------------------------------------------------


def test_every_module_is_served_without_the_token_and_asks_nobody_else(model) -> None:
    app = create_app(model, token="correct-horse-battery")
    with TestClient(app, base_url="http://localhost") as client:
        for file in [STATIC / "page.js", *sorted((STATIC / "js").glob("*.js"))]:
            path = "/" + file.relative_to(STATIC).as_posix()
            answer = client.get(path)
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/javascript")
            for wanted in re.findall(r'(?:from|import) "(\.[^"]+)"', answer.text):
                assert (file.parent / wanted).is_file(), wanted
            assert "://" not in answer.text
        assert client.get("/js/../../model.py").status_code in (401, 404)
        assert client.get("/js/nothing.js").status_code == 404
        for path in ("/api/matrix", "/api/pictures.zip", "/api/model.zip", "/api/model.onnx"):
            assert client.get(path).status_code == 401


def test_the_class_with_most_wrong_answers_comes_next_however_few_pictures_another_has() -> None:
    def of(label: str, answers: list[str]) -> list[Example]:
        return [Example("", label, answer, True, False) for answer in answers]

    seen = [*of("star", ["star"] * 5), *of("8", ["8"] * 18 + ["1"] * 2), *of("1", ["1"] * 20)]
    found = photograph_next(["star", "8", "1"], {"star": 5, "8": 20, "1": 20}, seen)
    assert found is not None and found.name == "8" and "2 are taken for “1”" in found.words
    assert photograph_next([], {}, []) is None
