"""A module of one's own as backbone: created, loaded again, taught, exported; refused in words where it is another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from faverage.app.model import Model, ModelError
from faverage.app.onnx import export_learner
from faverage.fscil import FewShotLearner
from faverage.vision import BaseModel, Evaluate
from helpers_commands import call, refused, save
from helpers_model import NAMES, pictures
from helpers_vision import drawn

pytestmark = pytest.mark.usefixtures("own_cache")

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())

    def forward(self, x):
        return self.layers(x)

def build(seed=0):
    torch.manual_seed(seed)
    return Net()

def other():
    return build(1)

number = 3
"""


class Net(nn.Module):
    """Convolution, ReLU, means of nine fields."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


def learner(backbone: Any) -> FewShotLearner:
    images, labels = drawn(120)
    base = labels < 3
    return FewShotLearner(backbone, device="cpu").fit_base(images[base], NAMES[labels[base]])


@pytest.mark.parametrize("kind", ["module", "BaseModel"])
def test_a_model_with_a_module_is_made_loaded_taught_merged_and_undone(tmp_path: Path, kind: str) -> None:
    net: Any = Net()
    if kind == "BaseModel":
        net = BaseModel(net, "linear", torch.zeros(1, 1), torch.zeros(1), None, Evaluate(16, mean=[0.4] * 3))
    made = Model.create(tmp_path / "m", learner(net), side=16, device="cpu")
    asked = pictures("bar", 4)
    before = [answer.top for answer in made.predict(asked)]
    assert made.teach("cross", pictures("cross", 5)).count == 5
    again = Model.load(tmp_path / "m", device="cpu", backbone=Net())
    assert len(again.classes()) == 4
    assert again.undo() == "taught 'cross' from 5 pictures"
    assert [answer.top for answer in again.predict(asked)] == before
    Model.create(tmp_path / "n", learner(net), side=16, device="cpu").teach("stripes", pictures("stripes 2", 4))
    assert again.merge(tmp_path / "n") == ["stripes"]
    assert not (tmp_path / "m" / "base" / "backbone.safetensors").exists()


def test_an_empty_model_with_a_module(tmp_path: Path) -> None:
    Model.create(tmp_path / "m", FewShotLearner(Net(), device="cpu"), side=16)
    model = Model.load(tmp_path / "m", device="cpu", backbone=Net())
    model.teach_many({"a": pictures("cross"), "b": pictures("stripes 3")})
    assert model.predict(pictures("cross", 1, seed=9))[0].top[0][0] == "a"


def test_another_module_or_none_is_refused_in_words(tmp_path: Path, folder: Path) -> None:
    Model.create(tmp_path / "m", learner(Net()), side=16)
    with pytest.raises(ModelError, match=r"module of one's own, .*Net: give it with --backbone package.module:build"):
        Model.load(tmp_path / "m")
    with pytest.raises(ModelError, match=r"is not the one of .*, or has other weights"):
        Model.load(tmp_path / "m", backbone=Net(1))
    with pytest.raises(ModelError, match="must be a torch module or a BaseModel, got function"):
        Model.load(tmp_path / "m", backbone=learner)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="holds its own backbone: leave out"):
        Model.load(folder, backbone=Net())
    record = json.loads((tmp_path / "m" / "model.json").read_text())
    for wrong in (
        3,
        {"weights": "x"},
        {**record["given"], "transform": {"size": -1}},
        {**record["given"], "transform": {}},
    ):
        (tmp_path / "m" / "model.json").write_text(json.dumps({**record, "given": wrong}))
        with pytest.raises(ModelError):
            Model.load(tmp_path / "m", backbone=Net())


def test_commands_import_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_of_mine.py").write_text(CODE)
    for kind in ("square", "bar"):
        save(tmp_path / "photos" / kind, kind, 8)
    own = ("--backbone", "nets_of_mine:build")
    assert "knows 2 classes" in call("train", "photos", "--out", "m", "--device", "cpu", *own).stdout
    assert "now knows 3 classes" in call("teach", "m", "cross", save(tmp_path / "cross", "cross", 3), *own).stdout
    assert call("predict", "m", "cross", *own).stdout.count("\n") == 3
    assert "cross" in call("explain", "m", *own).stdout
    assert "Forgot 'cross'" in call("forget", "m", "cross", *own).stdout
    call("undo", "m", *own)
    call("teach", "new", "cross", "cross", *own)

    assert "a module of one's own, nets_of_mine.Net" in refused("predict", "m", "cross")
    assert "has other weights" in refused("predict", "m", "cross", "--backbone", "nets_of_mine:other")
    assert "is int, expected a torch module" in refused("predict", "m", "cross", "--backbone", "nets_of_mine:number")
    for name in ("nets_of_mine:none", "no_such_place:build", ":", "nets_of_mine:"):
        assert "cannot be imported" in refused("predict", "m", "cross", "--backbone", name)
    assert "must be package.module:build" in refused("predict", "m", "cross", "--backbone", "tiny")


@pytest.mark.slow
def test_it_is_exported(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = Model.create(tmp_path / "m", learner(Net()), side=16, device="cpu")
    model.teach("cross", pictures("cross", 5))
    assert export_learner(model, tmp_path / "m.onnx") < 1e-4
    images, _ = drawn(8)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {"images": images})
    np.testing.assert_allclose(found, model.learner.predict_proba(images), atol=1e-4)
    assert export_learner(learner(Net()), tmp_path / "l.onnx", side=16) < 1e-4
