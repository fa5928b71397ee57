"""The whole learner as ONNX: it says what Python says, wherever it came from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from faverage.app.model import Model, ModelError
from faverage.app.onnx import export_learner
from faverage.app.photos import squares
from faverage.fscil import FewShotLearner
from faverage.vision import Evaluate
from faverage.vision.extraction import with_pools
from helpers_model import NAMES, pictures
from helpers_paths import ROOT
from helpers_vision import drawn, quick

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime")


def run(path: Path, images: np.ndarray) -> tuple[np.ndarray, dict[str, str]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"images": images})
    return found, session.get_modelmeta().custom_metadata_map


def test_a_taught_model_says_the_same_as_onnx(model: Model, tmp_path: Path) -> None:
    model.teach("cross", pictures("cross"))
    model.teach("stripes é", pictures("stripes 1"))
    file = tmp_path / "model.onnx"
    assert export_learner(model, file) < 1e-5
    images = pictures("cross", 9, seed=3) + pictures("square", 4)
    found, about = run(file, squares(images, 16))
    classes = json.loads(about["classes"])
    assert classes == [c.name for c in model.classes()] and about["side"] == "16"
    expected = [[dict(answer.top)[name] for name in classes] for answer in model.predict(images)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert run(file, squares(images[:1], 16))[0].shape == (1, 5)

    photo = tmp_path / "photo.png"
    images[0].save(photo)
    command = [sys.executable, "-X", "importtime", str(ROOT / "examples" / "onnx_predict.py"), str(file), str(photo)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.startswith(f"{photo}: {model.predict(images[:1])[0].top[0][0]} ")
    assert "torch" not in said.stderr and "faverage" not in said.stderr  # onnxruntime, NumPy and Pillow alone


class OneLayer(nn.Module):
    """A backbone that is written in a moment: here it is what comes before and after it that differs."""

    dimension = 16

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 16, 5, stride=3)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.layer(images)).mean((2, 3))


def scaled(fuser: str, **options: Any) -> FewShotLearner:
    """A learner whose evaluation scales images of 40 px to 36 and cuts out 32."""
    images, labels = drawn(200 if "whiten" in options else 80, 40)
    # with tiny, networks of many kinds are chosen; and it has the largest values
    views = options.get("views", ["plain"])
    tiny = options.get("fuser_options", {}).get("structure") == "auto" or {"largest", "covariance"} & set(views)
    given = {"backbone": "tiny" if tiny else OneLayer(), "epochs": 1, "transform": Evaluate(32, resize=36)}
    base = quick(images[labels < 3], labels[labels < 3], **given)
    base = with_pools(base, views, images, np.flatnonzero(labels < 3), device="cpu")
    learner = FewShotLearner(base, fuser, device="cpu", **options)
    learner.fit_base(images[labels < 3], NAMES[labels[labels < 3]])
    learner.learn_session(images[labels == 3][:5], ["cross"] * 5)
    return learner.learn_session(squares(pictures("stripes 1", side=40), 40), ["stripes"] * 5)


@pytest.mark.parametrize(
    ("fuser", "options"),
    [
        ("afa-paper", {"scope": "session", "fuser_options": {"epochs": 3}}),
        ("afa-paper", {"members": "views", "fuser_options": {"epochs": 3, "padding": "uniform"}}),
        ("afa-paper", {"fuser_options": {"epochs": 3, "padding": "zero"}}),
        ("afa", {"fuser_options": {"structure": "auto"}}),
        ("afa", {"fuser_options": {"structure": "full"}}),
        ("afa", {"fuser_options": {"structure": "scalar", "means": ["arithmetic", "geometric", "harmonic"]}}),
        ("afa", {"views": ["plain", "rotate-90", "both, zoom-0.8"], "ridge": 1.0}),
        ("afa", {"views": ["plain", "flip"], "whiten": 0.5}),
        # shrunk: a pool that is sure multiplies the rounding of features by its weights, 38 together
        ("log-pool", {"views": ["plain", "flip"], "ridge": None, "fuser_options": {"shrink": 0.01}}),
        ("log-pool", {"views": ["plain", "largest", "both, largest"], "fuser_options": {"shrink": 0.01}}),
        ("afa", {"views": ["plain", "covariance", "both, texture", "both, parts"]}),
        ("prototypes", {"scope": "session"}),
        ("no-fine-tuning", {"views": ["rotate-180"]}),
    ],
)
def test_every_fuser_scope_padding_and_scaling(tmp_path: Path, fuser: str, options: dict[str, Any]) -> None:
    learner = scaled(fuser, **options)
    assert len(learner.known.whitening) == (2 if "whiten" in options else 0)
    export_learner(learner, tmp_path / "x.onnx", side=40)
    images = drawn(16, 40, seed=4)[0]
    found, _ = run(tmp_path / "x.onnx", images)
    np.testing.assert_allclose(found, learner.predict_proba(images), atol=1e-4)
    if options.get("fuser_options") == {"structure": "auto"}:
        kinds = [hasattr(fit, "softenings") for fit in map(learner.fitted.fits.get, learner.fitted.weights)]
        assert set(kinds) == {True, False}  # log-linear fits and networks are mixed


def test_a_model_that_was_not_taught_yet(model: Model, tmp_path: Path) -> None:
    export_learner(model, tmp_path / "x.onnx")
    images = squares([Image.new("RGB", (3, 9), "red"), *pictures("bar", 3)], 16)
    np.testing.assert_allclose(run(tmp_path / "x.onnx", images)[0], model.learner.predict_proba(images), atol=1e-5)


def test_what_cannot_be_exported_leaves_no_file(model: Model, tmp_path: Path) -> None:
    model.teach("cross", pictures("cross", 1))
    learner = FewShotLearner.load(model.folder / "base", device="cpu")
    learner.fuser = "vote"
    learner.learn_session(squares(pictures("cross"), 16), ["cross"] * 5)
    with pytest.raises(ModelError, match="fuser 'vote' cannot be written"):
        export_learner(learner, tmp_path / "x.onnx")
    with pytest.raises(ModelError, match="trained backbone"):
        export_learner(FewShotLearner(), tmp_path / "x.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        export_learner(model, tmp_path / "no" / "x.onnx")
    with pytest.raises(ModelError, match="differs from the learner"):
        export_learner(model, tmp_path / "x.onnx", tolerance=-1)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
