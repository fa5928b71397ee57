"""The learner on images: a backbone by name, as a module, as a trained model; saved and loaded with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.fscil import FewShotLearner
from faverage.vision import get_backbone
from helpers_vision import drawn, quick

pytestmark = pytest.mark.slow

TRAINING = {"epochs": 6, "batch_size": 32, "lr": 0.05}
NAMES = np.array(["square", "bar", "frame", "cross"])


def shapes(labels: list[int], n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    images, found = drawn(4 * n, seed=seed)
    rows = np.isin(found, labels)
    return images[rows], NAMES[found[rows]]


def taught(backbone: Any, **options: Any) -> FewShotLearner:
    learner = FewShotLearner(backbone, device="cpu", **options).fit_base(*shapes([0, 1, 2], 80, 0))
    return learner.learn_session(*shapes([3], 5, 1))


def test_a_name_is_trained_on_the_base_images_and_learns_a_new_class() -> None:
    learner = taught("tiny", training=TRAINING)
    X, y = shapes([0, 1, 2, 3], 25, 2)
    said = learner.predict(X)
    assert (said == y).mean() > 0.6 and (said[y == "cross"] == "cross").mean() > 0.4
    assert learner.backbone.model.config["training"]["epochs"] == 6
    again = taught("tiny", training=TRAINING)
    assert np.array_equal(again.predict_proba(X), learner.predict_proba(X))


@pytest.mark.parametrize("view", ["largest", "covariance", "texture", "parts"])
def test_a_head_is_fitted_to_a_view_that_training_gives_none(view: str, tmp_path: Path) -> None:
    learner = taught("tiny", training=TRAINING, views=["plain", view])
    assert [one.view for one in learner.known.heads] == ["plain", view]
    X, y = shapes([0, 1, 2], 25, 2)
    head = learner.known.heads[1].head
    said = np.array(learner.classes)[head.scores(learner.features(X)[view]).argmax(1)]
    assert (said == y).mean() > 0.6
    learner.save(tmp_path / "learner")
    again = FewShotLearner.load(tmp_path / "learner", device="cpu")
    assert np.array_equal(again.predict_proba(X), learner.predict_proba(X))


def test_held_out_images_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    import faverage.vision

    real = faverage.vision.train_base
    monkeypatch.setattr(faverage.vision, "train_base", lambda *a, **k: seen.append(len(k["indices"])) or real(*a, **k))
    learner = FewShotLearner("tiny", training=TRAINING, device="cpu").fit_base(*shapes([0, 1], 60, 0))
    assert seen == [100] and len(learner.known.labels) == 20  # a sixth of 60 is kept of each class


@pytest.mark.parametrize("kind", ["name", "model"])
def test_save_brings_the_backbone(tmp_path: Path, kind: str) -> None:
    images, labels = drawn(160)
    learner = taught("tiny", training=TRAINING) if kind == "name" else taught(quick(images, labels, epochs=1))
    X, _ = shapes([0, 1, 2, 3], 6, 2)
    again = FewShotLearner.load(learner.save(tmp_path / "learner"), device="cpu")
    assert np.allclose(again.predict_proba(X), learner.predict_proba(X), atol=1e-6)
    more = shapes([3], 5, 7)[0]
    assert again.learn_session(more, ["fifth"] * 5).predict_proba(X).shape == (24, 5)


def test_a_module_is_used_as_it_is_and_given_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = get_backbone("tiny", dimension=32)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    learner = taught(module)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    folder = learner.save(tmp_path / "learner")
    with pytest.raises(ValueError, match="saved without its backbone"):
        FewShotLearner.load(folder)
    X, _ = shapes([0, 1, 2, 3], 3, 2)
    assert np.allclose(FewShotLearner.load(folder, module).predict_proba(X), learner.predict_proba(X), atol=1e-6)


def test_fit_base_again_with_other_features() -> None:
    learner = FewShotLearner().fit_base(np.random.default_rng(0).random((40, 8)), np.arange(40) % 2)
    learner.fit_base(np.random.default_rng(0).random((40, 5)), np.arange(40) % 2)
    assert learner.known.prototypes("plain").shape == (2, 5) and learner.sessions == [[0, 1]]


def test_undo_brings_the_backbone_back() -> None:
    learner = FewShotLearner("tiny", training=TRAINING, device="cpu").fit_base(*shapes([0, 1], 30, 0))
    X, _ = shapes([0, 1], 5, 2)
    answers, backbone = learner.predict_proba(X), learner.backbone
    learner.fit_base(*shapes([2, 3], 30, 1))
    assert learner.backbone is not backbone
    learner.undo()
    assert learner.backbone is backbone and np.array_equal(learner.predict_proba(X), answers)
    learner.undo()
    with pytest.raises(ValueError, match="is not trained yet"):
        learner.learn_session(X, ["a"] * len(X))


def test_a_base_session_that_fails_after_training_leaves_the_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = FewShotLearner("tiny", training=TRAINING, device="cpu").fit_base(*shapes([0, 1], 30, 0))
    X, _ = shapes([0, 1], 5, 2)
    answers = learner.predict_proba(X)

    def fail(*_: Any) -> None:
        raise ValueError("no base session")

    with monkeypatch.context() as patch:
        patch.setattr("faverage.fscil.learner.Knowledge.of_base", fail)
        with pytest.raises(ValueError, match="no base session"):
            learner.fit_base(*shapes([2, 3], 30, 1))
    assert np.array_equal(learner.predict_proba(X), answers)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FewShotLearner("resnet99"), "unknown backbone 'resnet99'"),
        (lambda: FewShotLearner(7), "backbone must be a name, a module or a function, got int"),
        (lambda: FewShotLearner(training={"epochs": 3}), "training options are for a backbone given by name"),
        (lambda: FewShotLearner(get_backbone("tiny"), training={"lr": 1}), "training options are for a backbone"),
        (lambda: FewShotLearner("tiny").fit_base(np.zeros((8, 4)), [0, 1] * 4), "images must be uint8 of shape"),
        (lambda: FewShotLearner("tiny").backbone(drawn(4)[0]), "not trained yet"),
        (
            lambda: FewShotLearner("tiny").fit_base(*drawn(40), prototypes=np.zeros((4, 128))),
            "brings its own head and prototypes",
        ),
    ],
)
def test_bad_input_is_named(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
