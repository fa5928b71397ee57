"""train, teach, predict, explain, forget, rename, merge, undo, export on the command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faverage.app.model import Model
from faverage.app.train import digits_model
from faverage.storage import cache_folder
from helpers_commands import call, refused
from helpers_model import NAMES, data_of, learner_of_shapes, pictures
from helpers_run import few_digits
from tools.digits_model import draw

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


def save(folder: Path, kind: str, n: int = 5, seed: int = 7, side: int = 16) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(pictures(kind, n, seed, side)):
        image.save(folder / f"{i}.png")
    return folder


def photos(root: Path, n: int = 24, side: int = 16) -> Path:
    for name in NAMES[:3]:
        save(root / name, name, n, side=side)
    return root


def names(folder: Path) -> list[str]:
    return [c.name for c in Model.load(folder, device="cpu").classes()]


# From photos to answers -----------------------------------------------------------------------------------------------


def test_train_teach_predict_forget_undo_export(tmp_path: Path) -> None:
    model = tmp_path / "models" / "shapes"
    root = photos(tmp_path / "photos", 40)
    (root / "square" / "notes.jpg").write_text("no photo")
    made = call("train", root, "--out", model, "--epochs", 6)
    assert "knows 3 classes and recognises" in made.stdout and "18 pictures that were held out" in made.stdout
    assert "Warning: left out 1 of 121 files: photos/square/notes.jpg" in made.stderr
    record = json.loads((model / "model.json").read_text())
    assert record["side"] == 16 and record["classes"] == ["bar", "frame", "square"]
    assert [c.count for c in Model.load(model, device="cpu").classes()] == [40, 40, 40]
    assert [p.name for p in model.parent.iterdir()] == ["shapes"]  # no checkpoint is left

    files = sorted(save(tmp_path / "new", "cross").iterdir())
    said = call("teach", model, "a cross", *files[:3]).stdout
    assert "Taught 'a cross' from 3 pictures" in said and "now knows 4 classes" in said
    said = call("teach", model, "a cross", tmp_path / "new").stdout
    assert (
        "Taught 'a cross' from 5 pictures" in said and "Left out 3 pictures of 'a cross' that the model keeps" in said
    )
    assert "all of these pictures already" in refused("teach", model, "a cross", tmp_path / "new")
    many = tmp_path / "many"
    for i in range(2):
        save(many / f"stripes {i}", f"stripes {i}", 2)
    assert "now knows 6 classes" in call("teach", model, many).stdout

    lines = call("predict", model, *files[:2], many / "stripes 1", "--top", 2).stdout.splitlines()
    assert len(lines) == 4 and lines[0].startswith(f"{files[0]}: a cross ") and lines[0].count(",") == 1
    rows = json.loads(call("predict", model, files[0], "--json", "--top", 9).stdout)
    assert rows[0]["image"] == str(files[0]) and len(rows[0]["top"]) == 6
    assert rows[0]["top"][0]["class"] == "a cross" and rows[0]["heads"][0]["head"] == "base head"
    assert rows[0]["heads"][1]["push"] > 0 and 0 < rows[0]["familiarity"] <= 1 and "unknown" not in rows[0]

    said = call("explain", model).stdout
    for words in ("| a cross", "session 2", "added 2 pictures to 'a cross'", "Most trusted by class", "geometric"):
        assert words in said
    assert "Forgot 'stripes 0'" in call("forget", model, "stripes 0").stdout
    assert names(model)[3:] == ["a cross", "stripes 1"]
    assert call("undo", model).stdout == "Undone: forgot 'stripes 0'.\n"
    assert "taught 'stripes 0' from 2 pictures and taught" in call("undo", model).stdout
    pytest.importorskip("onnxruntime")
    assert "(n, 16, 16, 3) in" in call("export", model, tmp_path / "m.onnx").stdout
    assert (tmp_path / "m.onnx").stat().st_size > 10_000


def test_a_long_teaching_shows_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of_shapes("afa-paper")  # the fuser that is trained step by step
    folder = Model.create(tmp_path / "model", learner, side=16, device="cpu").folder
    monkeypatch.setattr("faverage.progress.PATIENCE_SECONDS", 0.0)
    said = call("teach", folder, "cross", save(tmp_path / "cross", "cross", 2)).stderr
    assert "teaching: " in said and " left" in said


def test_the_same_seed_makes_the_same_model(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 12)
    weights = []
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        call("train", root, "--out", tmp_path / out, "--epochs", 1, "--seed", seed)
        weights.append((tmp_path / out / "base" / "backbone.safetensors").read_bytes()[-4000:])
    assert weights[0] == weights[1] != weights[2]
    call("train", root, "--out", tmp_path / "d", "--epochs", 1, "--weights", tmp_path / "a/base/backbone.safetensors")


def test_a_stopped_training_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import faverage.app.train as room

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    root, out = photos(tmp_path / "photos", 12), tmp_path / "models" / "m"
    monkeypatch.setattr(room, "_finish", stop)
    assert "goes on where it was" in call("train", root, "--out", out, "--epochs", 2, code=130).stderr
    monkeypatch.undo()
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path / "cache"))
    (checkpoint,) = out.parent.iterdir()
    monkeypatch.setattr("faverage.vision.engine.loop.Loop.epoch", stop)  # nothing is left to train
    call("train", root, "--out", out, "--epochs", 2)
    assert len(names(out)) == 3 and not checkpoint.exists()


def test_the_size_of_the_photos_chooses_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import faverage.app.train as room

    seen: list[tuple[Any, int, int]] = []
    real = room.train_base
    monkeypatch.setattr(room, "_seconds", lambda *_: 1.0)

    def quick(images: Any, labels: Any, **options: Any) -> Any:
        seen.append((options["backbone"], images.shape[1], options["augment"].size))
        return real(images, labels, **{**options, "backbone": "tiny", "epochs": 1})

    monkeypatch.setattr(room, "train_base", quick)
    for i, (side, given) in enumerate([(16, None), (40, None), (16, "resnet18_large"), (40, "tiny")]):
        root = photos(tmp_path / f"photos {i}", 4, side)
        call("train", root, "--out", tmp_path / f"m{i}", *(["--backbone", given] if given else ["--from-scratch"]))
    assert seen == [("tiny", 16, 16), ("resnet18_small", 84, 64), ("resnet18_large", 256, 224), ("tiny", 32, 32)]
    call("teach", tmp_path / "m1", "cross", save(tmp_path / "cross", "cross", 2))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sklearn.datasets.load_digits", few_digits)


@pytest.mark.usefixtures("few")
def test_from_a_run_that_learned_turned_images(tmp_path: Path) -> None:
    call("run", "digits", "--recipe", "best", "--epochs", 2, "--views", 1, "--jobs", 1, "--out", tmp_path / "run")
    call("train", "--from-run", tmp_path / "run", "--out", tmp_path / "model")
    learner = Model.load(tmp_path / "model").learner
    head = learner.known.heads[0].head
    assert head.weight.shape[0] == 6 and head.scale == 16.0


@pytest.mark.usefixtures("few")
def test_from_a_finished_run(tmp_path: Path) -> None:
    fast = ("--epochs", 1, "--methods", "prototypes", "--jobs", 1)
    call("run", "digits", *fast, "--out", tmp_path / "run")
    said = call("train", "--from-run", tmp_path / "run", "--out", tmp_path / "model").stdout
    assert "knows 6 classes" in said and names(tmp_path / "model") == list("012345")
    assert "leave out --epochs" in refused(
        "train", "--from-run", tmp_path / "run", "--out", tmp_path / "b", "--epochs", 3
    )
    for base in (tmp_path / "run" / "work").glob("*/base.safetensors"):
        base.unlink()
    assert "base.safetensors is missing" in refused("train", "--from-run", tmp_path / "run", "--out", tmp_path / "b")
    assert "no finished run" in refused("train", "--from-run", tmp_path, "--out", tmp_path / "b")


def test_the_embedded_model_knows_digits_and_learns_symbols(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    model = digits_model(tmp_path / "digits")
    rng = np.random.default_rng(9)
    digits = load_digits()
    fresh = [Image.fromarray(draw(digits.images[i] / 16, rng, 140)) for i in range(100)]
    right = [a.top[0][0] == str(t) for a, t in zip(model.predict(fresh), digits.target, strict=False)]
    assert np.mean(right) > 0.9 and digits_model(tmp_path / "digits").version == 1
    taught = model.teach("triangle", [triangle(rng) for _ in range(5)])
    assert taught.right >= 0.8
    assert np.mean([a.top[0][0] == "triangle" for a in model.predict([triangle(rng) for _ in range(20)])]) > 0.8
    right = [a.top[0][0] == str(t) for a, t in zip(model.predict(fresh), digits.target, strict=False)]
    assert np.mean(right) > 0.85


def triangle(rng: np.random.Generator) -> Image.Image:
    from PIL import ImageDraw

    image = Image.new("RGB", (280, 280), "white")
    points = np.array([(140, 45), (235, 230), (45, 230)]) + rng.normal(0, 8, (3, 2))
    corners = [tuple(p) for p in (*points, points[0], points[1])]
    ImageDraw.Draw(image).line(corners, fill="black", width=int(rng.integers(14, 24)), joint="curve")
    return image


def test_teach_says_what_was_left_out_and_what_it_costs(folder: Path, tmp_path: Path) -> None:
    said = call("teach", folder, "cross", save(tmp_path / "cross", "cross")).stdout
    assert " of 5, each left out in turn." in said and "it recognised 100 %, and now " in said
    assert "clearly worse" not in said
    said = call("teach", folder, "twin", save(tmp_path / "twin", "square", 40)).stdout
    assert f"Warning: that is clearly worse. Undo it with 'faverage undo {folder}'" in said
    said = call("teach", folder, "one", save(tmp_path / "one", "stripes 1", 1)).stdout
    assert "Taught 'one' from 1 picture.\n" in said  # nothing can be left out


def test_rename_merge_and_base_classes(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    said = call("teach", folder, "square", save(tmp_path / "square", "square", 3, seed=5)).stdout
    assert "Taught 'square' from 63 pictures; of the 13 that it keeps, it recognises " in said
    assert "'square' is now 'box'" in call("rename", folder, "square", "box").stdout
    call("teach", other, "cross", save(tmp_path / "cross", "cross"))
    call("forget", other, "square")
    said = call("merge", folder, other).stdout
    assert f"{other} brought 'cross'. {folder} now knows 4 classes." in said
    assert names(folder) == ["bar", "frame", "box", "cross"] and names(other) == ["bar", "frame", "cross"]
    assert call("undo", folder).stdout == "Undone: merged another model, which brought 'cross'.\n"
    assert call("undo", folder).stdout == "Undone: renamed 'square' to 'box'.\n"


def test_none_of_these(folder: Path, tmp_path: Path) -> None:
    known, strange = save(tmp_path / "known", "square", 4), save(tmp_path / "strange", "stripes 1", 2)
    lines = call("predict", folder, known, strange, "--unknown", 0.05).stdout.splitlines()
    assert sum(": none of these (else " in line for line in lines[:4]) <= 1
    assert all(": none of these (else " in line for line in lines[4:])
    rows = json.loads(call("predict", folder, strange, "--unknown", 0.05, "--json").stdout)
    assert [row["unknown"] for row in rows] == [True, True] and all(row["familiarity"] <= 0.05 for row in rows)


# Refusals -------------------------------------------------------------------------------------------------------------


def test_train_refuses_in_words(tmp_path: Path) -> None:
    root, out = photos(tmp_path / "photos", 3), tmp_path / "m"
    assert "give --out MODEL" in refused("train", root)
    assert "exactly one of them" in refused("train", "--out", out)
    assert "does not exist" in refused("train", tmp_path / "none", "--out", out)
    assert "no sub-folder" in refused("train", root / "bar", "--out", out)
    assert "exists already" in refused("train", root, "--out", root)
    assert "unknown backbone 'big': choose from" in refused("train", root, "--out", out, "--backbone", "big")
    assert "no such file" in refused("train", root, "--out", out, "--weights", tmp_path / "w.pth")
    assert "unknown device" in refused("train", root, "--out", out, "--device", "tpu9", "--epochs", 1)
    (root / "\x1bodd").mkdir()
    assert "cannot be shown" in refused("train", root, "--out", out)
    (root / "\x1bodd").rename(root / "lonely")
    (root / "lonely" / "1.png").write_bytes(data_of(Image.new("L", (9, 9))))
    assert "'lonely' has 1 photo that can be read" in refused("train", root, "--out", out)
    (root / "lonely" / "1.png").rename(root / "lonely" / "1.txt")
    assert "'lonely' has 0 photos" in refused("train", root, "--out", out)
    assert not out.exists()


def test_teach_refuses_in_words_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    before = (folder / "model.json").read_bytes()
    good = tmp_path / "good.png"
    pictures("cross", 1)[0].save(good)
    text, cut = tmp_path / "text.jpg", tmp_path / "cut.png"
    text.write_text("this is a text file")
    cut.write_bytes(data_of(Image.effect_noise((60, 60), 40))[:700])
    (tmp_path / "empty").mkdir()
    assert f"{text}: this is not an image" in refused("teach", folder, "new", good, text)
    assert f"{cut}: the picture is broken or cut off" in refused("teach", folder, "new", cut)
    assert "no such file" in refused("teach", folder, "new", tmp_path / "none.png")
    assert "no images in the folder" in refused("teach", folder, "new", tmp_path / "empty")
    assert "there is no photo of 'new'" in refused("teach", folder, "new")
    assert "has no sub-folders" in refused("teach", folder, tmp_path / "empty")
    assert "name of the class is empty" in refused("teach", folder, " ", good)
    assert "not an image" in refused("teach", tmp_path / "none", "new", text) and not (tmp_path / "none").exists()
    both = tmp_path / "both"
    for name in ("p", "q"):
        (both / name).mkdir(parents=True)
        shutil.copy(good, both / name / f"{name}.png")
    assert f"{both}/q/q.png: an example of 'q' is the same as one of 'p'" in refused("teach", folder, both)
    assert (folder / "model.json").read_bytes() == before
    call("teach", folder, "../../up", good)
    assert names(folder)[-1] == "../../up"


def test_others_refuse_in_words(folder: Path, tmp_path: Path) -> None:
    assert "nothing to undo" in refused("undo", folder)
    assert "does not know 'dog'; it knows: 'bar', 'frame', 'square'" in refused("forget", folder, "dog")
    assert "does not know 'dog'" in refused("rename", folder, "dog", "cat")
    assert "knows 'bar' already" in refused("rename", folder, "square", "bar")
    assert "no file model.json" in refused("merge", folder, tmp_path)
    assert "both are the same model" in refused("merge", folder, folder / ".." / folder.name)
    assert "does not exist" in refused("merge", folder, tmp_path / "none")
    for rate in (0, 1, 2, "nan"):
        assert "must be a rate between 0 and 1" in refused("predict", folder, tmp_path, "--unknown", rate)
    assert "no such file" in refused("predict", folder, tmp_path / "none.png")
    assert "does not exist" in refused("predict", tmp_path / "none", tmp_path / "none.png")
    assert "does not exist" in refused("export", folder, tmp_path / "no" / "m.onnx")
    photo = tmp_path / "zebra.jpg"
    pictures("cross", 1)[0].save(photo)
    before = photo.read_bytes()
    assert f"--csv {photo} must end in .csv" in refused("predict", folder, photo, "--csv", photo)
    assert f"Error: {photo} must end in .onnx" in refused("export", folder, photo)
    for option in ("--csv", "--html"):
        assert f"{option} {photo} must end in .{option[2:]}" in refused("evaluate", folder, tmp_path, option, photo)
        assert f"{option} {tmp_path} is a folder: give a file" in refused(
            "evaluate", folder, tmp_path, option, tmp_path
        )
    assert photo.read_bytes() == before
    assert "There is nothing to explain yet" in call("explain", folder).stdout
    (folder / "model.json").write_text('{"kind"')
    for command in (("undo",), ("explain",), ("forget", "x"), ("predict", tmp_path)):
        assert "model.json cannot be read" in refused(command[0], folder, *command[1:])


def test_links_that_go_round_are_refused_in_words(folder: Path, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 2)
    (root / "bar" / "again").symlink_to(root)  # below a class, links are not followed
    assert len(call("predict", folder, root / "bar").stdout.splitlines()) == 2
    (root / "up").symlink_to(tmp_path)
    for command in (("train", root, "--out", tmp_path / "m"), ("teach", folder, root)):
        assert "photos/up is a link to a folder that contains it: remove the link" in refused(*command)
    (root / "up").unlink()
    (root / "bar" / "self.png").symlink_to(root / "bar" / "self.png")
    assert "Too many levels of symbolic links" in refused("teach", folder, "new", root / "bar")
    assert "self.png: Too many levels of symbolic links" in call("predict", folder, root, code=1).stderr
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert "does not exist" in refused("predict", tmp_path / "self", root)


def test_names_cannot_steer_the_terminal(folder: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\x1b[31m\xff")
    place = save(tmp_path / odd, "cross", 1)
    for output in (call("predict", folder, place).stdout, refused("predict", folder, tmp_path / odd / "none")):
        assert r"\u001b[31m\udcff" in output and "\x1b" not in output
    rows = json.loads(call("predict", folder, place, "--json").stdout)
    assert rows[0]["image"] == str(place / "0.png")
    file = folder / "model.json"
    record = json.loads(file.read_text())
    record["history"][0]["words"] = "made \x1b]0;title\x07 \x9b2J"
    file.write_text(json.dumps(record))
    said = call("explain", folder).stdout
    assert r"made \u001b]0;title\u0007 \u009b2J" in said


def test_a_device_that_is_not_there_is_not_the_folders_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = refused("predict", folder, folder, "--device", "cuda")
    assert "torch sees no GPU here" in said and "--device cpu" in said and "restore" not in said


def test_who_reads_the_output_may_leave(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("typer.echo", gone)
    result = call("explain", folder, code=1)
    assert result.output == ""


def test_a_huge_file_is_not_read_whole(folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(1 << 40)
    assert "huge.png: the file has 25.0 MB: at most 25 MB" in refused("predict", folder, tmp_path / "huge.png")


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for own, shared, expected in (
        ("", "", tmp_path / ".cache" / "faverage"),
        ("", "relative", tmp_path / ".cache" / "faverage"),
        ("", str(tmp_path / "x"), tmp_path / "x" / "faverage"),
        ("~/own", str(tmp_path / "x"), tmp_path / "own"),
    ):
        monkeypatch.setenv("FAVERAGE_CACHE", own)
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert cache_folder() == expected
