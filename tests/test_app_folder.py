"""The folder of a model: killed writers, two writers, broken files; and pictures of every kind."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faverage.app.model import Model, ModelError, open_picture
from faverage.fscil import FewShotLearner
from helpers_model import data_of, folder_fixture, learner_of_shapes, made_fixture, model_fixture, pictures  # noqa: F401

HERE = Path(__file__).parent


def python(*arguments: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# Writers --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_killed_fifty_times_while_teaching_the_model_is_the_old_or_the_new_one(folder: Path) -> None:
    process = python(HERE / "kill_teacher.py", folder, 50)
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors[-2000:] + out
    assert out.startswith("50 kills")
    print(out)
    model = Model.load(folder, device="cpu")
    model.teach("after", pictures("cross", 1))
    left = {p.name for p in (folder / "states").iterdir()}
    assert left == set(json.loads((folder / "model.json").read_text())["states"])  # what was left behind is gone
    assert not list(folder.glob(".model.json.*"))


def test_two_processes_that_teach_at_once_wait_for_each_other(folder: Path) -> None:
    code = """if True:
        import sys, torch
        from faverage.app.model import Model
        from helpers_model import pictures
        torch.set_num_threads(1)
        model = Model.load(sys.argv[1], device="cpu")
        for i in range(4):
            model.teach(f"{sys.argv[2]}{i}", pictures(f"stripes {i}", 2))
    """
    both = [python("-c", code, folder, name) for name in "ab"]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    model = Model.load(folder, device="cpu")
    assert sorted(c.name for c in model.classes()[3:]) == [f"{n}{i}" for n in "ab" for i in range(4)]
    assert model.version == 9 and len(model.history()) == 9


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


# Broken folders -------------------------------------------------------------------------------------------------------


def test_only_json_and_safetensors_and_the_backbone_once(model: Model) -> None:
    model.teach("cross", pictures("cross", 1))
    files = [p.relative_to(model.folder).as_posix() for p in model.folder.rglob("*") if p.is_file()]
    assert sorted(files) == [
        ".lock",
        "base/backbone.safetensors",
        "base/learner.safetensors",
        "base/thumbnails.safetensors",
        "model.json",
        "states/000001/shots.safetensors",
        "states/000002/fuser.safetensors",
        "states/000002/shots.safetensors",
    ]


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Model.load(folder, device="cpu")
    return str(caught.value)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    none = refusal(tmp_path / "none")
    assert "does not exist" in none and "faverage train" in none
    (tmp_path / "file").write_text("x")
    assert "is a file" in refusal(tmp_path / "file")
    assert "no file model.json" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: "", "cannot be read"),
        (lambda text: "[]", "does not describe a model"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "has format 2"),
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
    content = (state / "shots.safetensors").read_bytes()
    (state / "shots.safetensors").write_bytes(content[:-9])
    assert "000002 is broken" in refusal(model.folder)
    (state / "shots.safetensors").write_bytes(content)
    (state / "fuser.safetensors").unlink()
    said = refusal(model.folder)
    assert "000002 is broken" in said and "fuser.safetensors" in said
    shutil.rmtree(state)
    said = refusal(model.folder)
    assert "the state 000002" in said and "is missing" in said
    (model.folder / "base" / "backbone.safetensors").write_bytes(b"x")
    said = refusal(model.folder)
    assert "base classes" in said and "backbone.safetensors" in said


def test_pickles_are_never_read(folder: Path) -> None:
    import pickle

    (folder / "base" / "learner.safetensors").write_bytes(pickle.dumps({"evil": 1}))
    assert "base classes" in refusal(folder)


def test_create_refuses_what_cannot_be_a_model(tmp_path: Path, made: Path) -> None:
    learner = FewShotLearner.load(made / "base", device="cpu")
    with pytest.raises(ModelError, match="exists already"):
        Model.create(made, learner, side=16)
    with pytest.raises(ModelError, match="learner of images"):
        Model.create(tmp_path / "m", FewShotLearner(), side=16)
    learner.classes = [1, 2, 3]
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
