"""The folder of a model: killed writers, two writers, broken files; and pictures of every kind."""

from __future__ import annotations

import io
import json
import os
import random
import re
import select
import shutil
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faverage.app.folder import Folder
from faverage.app.model import Model, ModelError, open_picture
from faverage.app.names import BusyError
from faverage.fscil import FewShotLearner, LinearHead
from faverage.fscil.files import as_tensors
from faverage.storage import read_tensors, write_tensors
from helpers_model import data_of, learner_of_shapes, mutated, pictures
from helpers_paths import TESTS


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return found


# Writers --------------------------------------------------------------------------------------------------------------


Campaign = Callable[[str, int, Path], dict[str, Any]]


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    """Run one of folder_campaigns, which says what must hold; FAVERAGE_CAMPAIGN gives a longer one.

    All run in one process, whose children are forked: threads of this process would not survive that.
    """
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(TESTS / "folder_campaigns.py"), "answer"]
    process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    asked, answered = process.stdin, process.stdout

    def ask(kind: str, count: int, folder: Path) -> dict[str, Any]:
        times = int(os.environ.get("FAVERAGE_CAMPAIGN", count))
        asked.write(json.dumps([kind, times, 0, str(folder)]) + "\n")
        asked.flush()
        ready, _, _ = select.select([answered], [], [], 180 + 3 * times)
        assert ready, "the campaign does not end"
        line = answered.readline()
        assert line, "the process of the campaigns is gone"
        found: dict[str, Any] = json.loads(line)
        assert "broken" not in found, found["broken"]
        return found

    with process:
        yield ask
        process.kill()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_killed_while_it_changes_the_model_is_the_old_or_the_new_one(campaign: Campaign, folder: Path) -> None:
    found = campaign("kill", 40, folder)
    assert found["kills"] >= 30 and found["in the middle"] > 0 and all(found["during"].values())
    model = Model.load(folder, device="cpu")
    model.teach("after", pictures("cross", 1))
    left = {p.name for p in (folder / "states").iterdir()}
    assert left == set(json.loads((folder / "model.json").read_text())["states"])  # what was left behind is gone
    assert not list(folder.glob(".model.json.*"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_files_that_cannot_grow_leave_the_old_state(campaign: Campaign, folder: Path) -> None:
    found = campaign("limit", 12, folder)
    assert sum(found["refused"].values()) + found["changes made"] >= 12 and found["refused"]
    assert {p.name for p in (folder / "states").iterdir()} == set(record(folder)["states"])


@pytest.mark.slow
def test_a_disk_without_room_says_so(campaign: Campaign, folder: Path) -> None:
    found = campaign("full", 6, folder)
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert all("No space left" in words for words in found["refused"])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_two_processes_that_change_a_model_at_once_wait_for_each_other(campaign: Campaign, folder: Path) -> None:
    found = campaign("race", 6, folder)
    model = Model.load(folder, device="cpu")
    assert found["changes"] + found["refused"] >= 12 and len(model.history()) == model.version == found["changes"] + 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_lock_that_is_held_refuses_in_words_and_changes_nothing(campaign: Campaign, folder: Path) -> None:
    found = campaign("lock", 8, folder)
    assert found["changes"] + found["refused"] >= 8 and found["changes"] and found["refused"]


def test_a_writer_that_fails_leaves_the_model_as_it_was(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faverage.app.folder.write_tensors", full)
    with pytest.raises(ModelError, match=r"cannot be written \(No space left on device\): the model is as it was"):
        model.teach("cross", pictures("cross", 1))
    monkeypatch.undo()
    assert model.version == 1 and Model.load(model.folder, device="cpu").version == 1
    assert model.teach("cross", pictures("cross", 1)).count == 1


def test_a_folder_that_must_not_be_changed_can_be_asked(folder: Path) -> None:
    (folder / ".lock").unlink(missing_ok=True)
    (folder / ".lock").mkdir()  # stands for a folder without the right to write, which root has everywhere
    model = Model.load(folder, device="cpu")
    assert len(model.predict(pictures("cross", 1))) == 1
    for change in (model.undo, lambda: model.teach("a", pictures("cross", 1)), lambda: model.forget("a")):
        with pytest.raises(ModelError, match="cannot be changed"):
            change()


def test_a_folder_that_is_taken_away_does_not_stop_readers(model: Model) -> None:
    shutil.rmtree(model.folder)
    assert len(model.predict(pictures("cross", 1))) == 1 and model.version == 1


def test_a_lock_that_is_held_is_said_in_words(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faverage.app.folder.LOCK_SECONDS", 0.05)
    with Folder(model.folder).locked(), pytest.raises(BusyError, match=r"try again in a moment; .* end the process"):
        model.undo()  # as another process would: the lock is one of the file
    with model._files.locked(), pytest.raises(BusyError, match="held by another change"):
        model.teach("cross", pictures("cross", 1))  # another thread of this process
    assert model.teach("cross", pictures("cross", 1)).count == 1


def test_a_model_that_was_made_anew_in_its_place_is_read_whole(model: Model, tmp_path: Path) -> None:
    images = np.stack([np.asarray(p) for kind in ("cross", "stripes 1") for p in pictures(kind, 12)])
    learner = FewShotLearner("tiny", training={"epochs": 1, "device": "cpu"}, device="cpu")
    other = Model.create(tmp_path / "other", learner.fit_base(images, ["x"] * 12 + ["y"] * 12), side=16, device="cpu")
    expected = other.predict(pictures("cross", 2))
    before, now = model.folder / "base", model._now
    before.rename(tmp_path / "before")
    (other.folder / "base").rename(before)  # the new base, and still the old record
    assert len(model.predict(pictures("cross", 1))[0].top) == 3 and model._now is now
    with pytest.raises(ModelError, match=r"are not those of model\.json"):
        Model.load(model.folder, device="cpu")
    shutil.rmtree(model.folder / "states")
    (other.folder / "states").rename(model.folder / "states")
    (other.folder / "model.json").replace(model.folder / "model.json")
    assert [c.name for c in model.classes()] == ["x", "y"] and model.predict(pictures("cross", 2)) == expected
    assert model.teach("new", pictures("stripes 2", 2)).count == 2


def test_a_model_that_is_replaced_while_pictures_are_opened_is_not_taught(model: Model, tmp_path: Path) -> None:
    def opened() -> Any:
        yield from pictures("cross", 1)
        file = model.folder / "base" / "thumbnails.safetensors"
        content, told = read_tensors(file, "thumbnails")[1], record(model.folder)
        write_tensors(file, "thumbnails", {}, {name: 255 - pixels for name, pixels in content.items()})
        del told["base_id"]
        (model.folder / "model.json").write_text(json.dumps(told))

    with pytest.raises(BusyError, match="was replaced by another model just now"):
        model.teach("new", opened())
    assert model.version == 1


def test_folders_of_earlier_versions_load_and_get_an_id(folder: Path) -> None:
    old = record(folder)
    expected = old.pop("base_id")
    (folder / "model.json").write_text(json.dumps(old))
    model = Model.load(folder, device="cpu")
    model.teach("cross", pictures("cross", 1))
    assert record(folder)["base_id"] == expected


def as_of_version_one(folder: Path) -> None:
    """Write the folder of a model that was taught two sessions as version 0.1 did, by hand."""
    model = Model.load(folder, device="cpu")
    known, told = model.learner.known, record(folder)
    base, n = known.session == 0, int((known.session == 0).sum())
    held = ~known.shot
    head = known.heads[0].head
    assert isinstance(head, LinearHead)
    config, _ = read_tensors(folder / "base" / "learner.safetensors", "learner")
    options = {k: v for k, v in config["options"].items() if k not in ("views", "members", "ridge")}
    old = {
        "options": {**options, "fuser_options": {"epochs": 3}},
        "backbone": "saved",
        "backbone_name": None,
        "classes": list(known.classes)[:n],
        "sessions": [n],
        "scale": None,
        "tau": 16.0,
        "length": 1.0,
        "heads": [],
        "fused": False,
    }
    features = known.views["plain"]
    arrays = {
        "weight": head.weight,
        "bias": head.bias,
        "prototypes": known.anchors["plain"][base],
        "base": features[held],
        "base_labels": known.labels[held],
        "residuals": features[held],
    }
    write_tensors(folder / "base" / "learner.safetensors", "learner", old, as_tensors(arrays))
    taught = [[c for c in session if c not in old["classes"]] for session in known.sessions[1:]]
    shots, states = {}, model.folder / "states"
    for i, label in enumerate(label for session in taught for label in session):
        shots |= {f"shots.{i}": features[known.labels == known.number(label)]}
        shots |= {f"thumbnails.{i}": model._now.state.thumbnails[label]}
    shutil.rmtree(states)
    for name, sessions in (("000001", []), ("000003", taught)):
        (states / name).mkdir(parents=True)
        about = {"sessions": sessions, "fused": bool(sessions)}
        given = as_tensors(shots) if sessions else {}
        write_tensors(states / name / "shots.safetensors", "taught", about, given)
    told |= {"format": 1, "base": [{"name": c, "count": 60} for c in old["classes"]], "states": ["000001", "000003"]}
    told["base_id"] = Folder(folder).base_id()
    (folder / "model.json").write_text(json.dumps(told))


def test_a_model_of_the_version_before_is_read_taught_and_undone(model: Model) -> None:
    model.teach("cross", pictures("cross"))
    model.teach("stripes", pictures("stripes 1", 3))
    expected, classes = model.predict(pictures("cross", 3)), model.classes()
    as_of_version_one(model.folder)
    with pytest.warns(UserWarning, match=r"written by version .*: its fuser was fitted again") as seen:
        old = Model.load(model.folder, device="cpu")
    assert len(seen) == 1 and old.classes() == classes and old.version == 3
    for mine, theirs in zip(old.predict(pictures("cross", 3)), expected, strict=True):
        assert mine.top[0][0] == theirs.top[0][0]
        assert dict(mine.top) == pytest.approx(dict(theirs.top), abs=0.05)  # other numbers behind the prototypes
    old.teach("bar", pictures("bar", 2, seed=3))
    old.rename("stripes", "lines")
    assert record(model.folder)["format"] == 2 and [c.count for c in old.classes()] == [62, 60, 60, 5, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Model.load(model.folder, device="cpu").predict(pictures("bar", 2)) == old.predict(pictures("bar", 2))
    with pytest.warns(UserWarning, match="fitted again"):
        old.undo()
        old.undo()
    assert old.classes() == classes
    old.undo()
    assert [c.name for c in Model.load(model.folder, device="cpu").classes()] == ["bar", "frame", "square"]


def test_broken_states_of_the_version_before_are_refused(model: Model) -> None:
    model.teach("cross", pictures("cross"))
    model.teach("stripes", pictures("stripes 1", 3))
    as_of_version_one(model.folder)
    file = model.folder / "states" / "000003" / "shots.safetensors"
    config, tensors = read_tensors(file, "taught")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for about, given, words in (
        ({"sessions": [["cross"], ["cross"]]}, tensors, "taught twice"),
        ({"sessions": [["cross"], ["bar"]]}, tensors, "'bar' is a base class, and was taught"),
        ({"sessions": [["cross"], ["a\x1b"]]}, tensors, "name of a class"),
        ({}, {**tensors, "shots.1": tensors["shots.1"][:, 1:]}, "shots of class 'stripes' must be numbers of shape"),
        ({}, {k: v for k, v in tensors.items() if k != "thumbnails.0"}, "thumbnails.0"),
    ):
        write_tensors(file, "taught", {**config, **about}, given)
        said = refusal(model.folder)
        assert "000003 is broken" in said and words in said


def test_a_state_is_as_small_as_what_was_taught(model: Model) -> None:
    model.teach("cross", pictures("cross", 1))
    model.rename("square", "box")
    sizes = [file.stat().st_size for file in sorted((model.folder / "states").glob("*/known.safetensors"))]
    assert sizes[0] < 4_000 and sizes[2] < sizes[0] + 16_000  # a picture of 12 kB, and its features


def test_rows_that_a_state_takes_from_its_base_are_checked(model: Model) -> None:
    model.teach("cross", pictures("cross", 1))
    file = model.folder / "states" / "000002" / "known.safetensors"
    config, tensors = read_tensors(file, "known")
    for name in ("features.0.rows", "thumbnails.rows"):
        for wrong in (tensors[name] + 10_000, tensors[name] - 10_000, tensors[name].float()):
            write_tensors(file, "known", config, {**tensors, name: wrong})
            assert "are not those of its base" in refusal(model.folder)
    for change in ({"counts": [1]}, {"counts": [-1] * 4}, {"shown": [9] * 4}, {"shown": [1] * 4}, {"format": 3}):
        write_tensors(file, "known", {**config, **change}, tensors)
        assert "000002 is broken" in refusal(model.folder)


# Folders from elsewhere -----------------------------------------------------------------------------------------------


def test_a_received_model_removes_nothing_outside_itself(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(folder / "states", outside)
    for name in ("precious", "000077"):
        (outside / name).mkdir()
    model = Model.load(folder, device="cpu")
    shutil.rmtree(folder / "states")
    (folder / "states").symlink_to(outside)
    assert "states is a link" in refusal(folder)
    for change in (lambda: model.teach("cross", pictures("cross", 1)), model.undo):
        with pytest.raises(ModelError):
            change()
    assert {p.name for p in outside.iterdir()} == {"000001", "000077", "precious"}


@pytest.mark.parametrize(
    "part", ["base", "base/backbone.safetensors", "states/000001", "states/000001/known.safetensors", "model.json"]
)
def test_parts_that_are_links_are_refused(folder: Path, tmp_path: Path, part: str) -> None:
    (folder / part).rename(tmp_path / "moved")
    (folder / part).symlink_to(tmp_path / "moved")
    assert f"{part} is a link" in refusal(folder)
    (folder / part).unlink()
    (folder / part).symlink_to(folder / part)  # a link to itself
    assert f"{part} is a link" in refusal(folder)


def test_a_lock_that_is_a_link_is_not_followed(model: Model, tmp_path: Path) -> None:
    (model.folder / ".lock").unlink(missing_ok=True)
    (model.folder / ".lock").symlink_to(tmp_path / "made by the lock")
    with pytest.raises(ModelError, match="lock is a link"):
        model.undo()
    assert not (tmp_path / "made by the lock").exists()


def test_only_states_of_our_own_names_are_removed_and_the_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    for name in ("notes", "000099"):
        (folder / "states" / name).mkdir()
    (tmp_path / "link").symlink_to(folder)
    Model.load(tmp_path / "link", device="cpu").teach("cross", pictures("cross", 1))
    assert {p.name for p in (folder / "states").iterdir()} == {"000001", "000002", "notes"}


def test_a_record_that_is_no_file_is_refused(folder: Path) -> None:
    (folder / "model.json").unlink()
    os.mkfifo(folder / "model.json")
    assert "not a regular file" in refusal(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 10**13),
        ("version", -1),
        ("version", True),
        ("side", 10**9),
        ("side", 0),
        ("states", ["٠٠٠٠٠١"]),
        ("base", [{"name": "square", "count": -3}]),
        ("base", ["square"]),
        ("history", {"when": 1}),
        ("history", [{"when": 5}]),
        ("history", [{"pictures": [1]}]),
    ],
)
def test_a_record_of_absurd_values_is_refused(folder: Path, key: str, value: object) -> None:
    (folder / "model.json").write_text(json.dumps({**record(folder), key: value}))
    assert f"'{key}' is missing or is not what it must be" in refusal(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"side": ' + "9" * 5000 + "}", '{"kind": "\\ud800"}'])
def test_a_record_of_hostile_json_is_refused(folder: Path, text: str) -> None:
    (folder / "model.json").write_text(text)
    assert "cannot be read" in refusal(folder)


@pytest.mark.slow
def test_any_mutation_is_refused_or_answers_with_numbers(tmp_path: Path, made: Path) -> None:
    folder, rng, images = tmp_path / "model", random.Random(0), pictures("cross", 1)
    shutil.copytree(made, folder)
    model = Model.load(folder, device="cpu")
    model.teach("cross", pictures("cross", 2))
    told = record(folder)
    del told["base_id"]  # a hash that does not fit would refuse every change of the base
    (folder / "model.json").write_text(json.dumps(told))
    files = [folder / "model.json", *sorted(folder.glob("base/*")), *sorted(folder.glob("states/000002/*"))]
    accepted = 0
    for _ in range(150):
        file = rng.choice(files)
        content = file.read_bytes()
        file.write_bytes(mutated(content, rng))
        try:
            (answer,) = Model.load(folder, device="cpu").predict(images)
            numbers = [p for _, p in answer.top] + [answer.familiarity]
            numbers += [number or 0.0 for said in answer.members for number in (said.probability, said.push)]
            assert np.isfinite(numbers).all()
            accepted += 1
        except ModelError:
            pass
        file.write_bytes(content)
    assert 15 < accepted < 100


# Broken folders -------------------------------------------------------------------------------------------------------


def test_only_json_safetensors_and_taught_pictures_and_the_backbone_once(model: Model) -> None:
    model.teach("cross", pictures("cross", 1))
    files = [p.relative_to(model.folder).as_posix() for p in model.folder.rglob("*") if p.is_file()]
    (picture,) = [file for file in files if file.startswith("pictures/")]  # of the one that was taught
    assert re.fullmatch(r"pictures/[0-9a-f]{24}\.png", picture)
    assert sorted(files) == [
        ".lock",
        "base/backbone.safetensors",
        "base/learner.safetensors",
        "base/thumbnails.safetensors",
        "model.json",
        picture,
        "states/000001/known.safetensors",
        "states/000002/fuser.safetensors",
        "states/000002/known.safetensors",
    ]


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Model.load(folder, device="cpu")
    return str(caught.value)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    none = refusal(tmp_path / "none")
    assert "does not exist" in none and "misspelt?" in none
    assert all(f"faverage {command}" in none for command in ("serve", "teach", "train"))
    (tmp_path / "file").write_text("x")
    assert "is a file" in refusal(tmp_path / "file")
    assert "no file model.json" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: "", "cannot be read"),
        (lambda text: "[]", "does not describe a model"),
        (lambda text: text.replace('"format": 2', '"format": 3'), "has format 3"),
        (lambda text: text.replace('"000001"', '"../../x"'), "incomplete"),
        (lambda text: text.replace('"side": 16', '"side": null'), "incomplete"),
    ],
)
def test_a_broken_record_is_refused(folder: Path, change, words: str) -> None:  # type: ignore[no-untyped-def]
    file = folder / "model.json"
    file.write_text(change(file.read_text()))
    said = refusal(folder)
    assert words in said and str(folder) in said


def test_missing_and_broken_parts_are_named(model: Model) -> None:
    model.teach("cross", pictures("cross", 1))
    state = model.folder / "states" / "000002"
    content = (state / "known.safetensors").read_bytes()
    (state / "known.safetensors").write_bytes(content[:-9])
    assert "000002 is broken" in refusal(model.folder)
    (state / "known.safetensors").write_bytes(content)
    (state / "fuser.safetensors").unlink()
    said = refusal(model.folder)
    assert "000002 is broken" in said and "fuser.safetensors" in said
    shutil.rmtree(state)
    said = refusal(model.folder)
    assert "the state 000002" in said and "is missing" in said
    (model.folder / "base" / "backbone.safetensors").write_bytes(b"x")
    said = refusal(model.folder)
    assert "made with" in said and "backbone.safetensors" in said


def test_pickles_are_never_read(folder: Path) -> None:
    import pickle

    (folder / "base" / "learner.safetensors").write_bytes(pickle.dumps({"evil": 1}))
    assert "made with" in refusal(folder)


def test_create_refuses_what_cannot_be_a_model(tmp_path: Path, made: Path) -> None:
    learner = FewShotLearner.load(made / "base", device="cpu")
    with pytest.raises(ModelError, match="exists already"):
        Model.create(made, learner, side=16)
    with pytest.raises(ModelError, match="learner of images"):
        Model.create(tmp_path / "m", FewShotLearner(), side=16)
    learner.rename("bar", 1)
    with pytest.raises(ModelError, match="needs a plain name"):
        Model.create(tmp_path / "m", learner, side=16)
    assert list(tmp_path.iterdir()) == []


def test_create_takes_sessions_that_were_learned_before(tmp_path: Path) -> None:
    learner = learner_of_shapes()
    images = np.stack([np.asarray(p) for p in pictures("cross")])
    learner.learn_session(images, ["cross"] * 5)
    model = Model.create(tmp_path / "m", learner, side=16, device="cpu")
    assert [c.name for c in model.classes()][-1] == "cross" and model.classes()[-1].count == 5
    found = [[dict(a.top)[c] for c in learner.classes] for a in model.predict(pictures("cross", 3))]
    expected = learner.predict_proba(np.stack([np.asarray(p) for p in pictures("cross", 3)]))
    np.testing.assert_allclose(found, expected, atol=1e-5)


# Pictures -------------------------------------------------------------------------------------------------------------


def bomb(side: int) -> bytes:
    """A PNG that says it has side x side pixels, in a few hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def test_pictures_of_every_mode_become_plain_rgb() -> None:
    for kind, mode in (("JPEG", "CMYK"), ("PNG", "I;16"), ("PNG", "LA"), ("PNG", "P"), ("PNG", "1"), ("TIFF", "F")):
        opened = open_picture(data_of(Image.new(mode, (7, 5)), kind))
        assert opened.mode == "RGB" and opened.size == (7, 5), mode
    assert open_picture(data_of(Image.new("RGB", (1, 1), "red"))).getpixel((0, 0)) == (255, 0, 0)
    assert open_picture(data_of(Image.new("RGBA", (1, 1), (0, 0, 0, 0)))).getpixel((0, 0)) == (255, 255, 255)
    deep = Image.fromarray(np.full((3, 3), 65535, dtype=np.uint16))
    assert open_picture(data_of(deep)).getpixel((1, 1)) == (255, 255, 255)


def test_orientation_is_applied_and_metadata_dropped() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "where I live"
    data = data_of(Image.new("RGB", (8, 4)), "JPEG", exif=exif.tobytes(), comment=b"secret")
    opened = open_picture(data)
    assert opened.size == (4, 8) and not opened.info and not dict(opened.getexif())
    assert b"where I live" not in data_of(opened, "JPEG")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"this is a text file", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (data_of(Image.effect_noise((90, 90), 50), "JPEG")[:900], "broken or cut off"),
        (data_of(Image.effect_noise((90, 90), 50), "PNG")[:900], "broken or cut off"),
        (bomb(9000), "9,000 x 9,000 pixels"),
        (bomb(60000), "far too large"),
        (bytes(26_000_000), "26.0 MB"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_picture_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        open_picture(data)


def test_limits_can_be_set() -> None:
    data = data_of(Image.new("RGB", (20, 20)))
    with pytest.raises(ModelError, match=r"at most 0\.0001 million"):
        open_picture(data, max_pixels=100)
    with pytest.raises(ModelError, match="MB"):
        open_picture(data, max_bytes=10)
    frames = io.BytesIO()
    Image.new("L", (4, 4)).save(frames, "GIF", save_all=True, append_images=[Image.new("L", (4, 4), 255)])
    assert open_picture(frames.getvalue()).getpixel((0, 0)) == (0, 0, 0)  # the first frame
