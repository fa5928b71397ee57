"""What only a GPU can show: the compiled and captured step, bfloat16, rivals and a whole run there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.experiment import RunConfig, run
from faverage.rivals import RIVALS, get_rival
from faverage.rivals.rival import merged
from faverage.vision import extract_features
from helpers_vision import drawn, quick

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("backbone", ["tiny", "resnet18_small"])
def test_the_fast_step_learns_what_the_plain_one_learns(backbone: str) -> None:
    images, labels = drawn(256)
    settings = {"backbone": backbone, "device": "cuda", "epochs": 3, "precision": "float32", "lr": 0.001}
    plain = quick(images, labels, **settings, compile=False, capture=False)
    fast = quick(images, labels, **settings)
    assert plain.config["ran"]["step"] == "plain" and fast.config["ran"]["step"] == "compiled+captured"
    assert np.allclose(plain.history["loss"], fast.history["loss"], rtol=0.01)
    half = quick(images, labels, **{**settings, "precision": "auto"})
    assert half.config["ran"]["precision"] == "bfloat16"
    assert np.allclose(plain.history["loss"], half.history["loss"], rtol=0.02)


@pytest.mark.parametrize("lesson", [{"rotations": True}, {"rotations": True, "mix": 0.5, "contrast": 0.5}])
def test_training_on_turned_images(lesson: dict[str, Any]) -> None:
    images, labels = drawn(256)
    settings = {"device": "cuda", "epochs": 3, "lr": 0.001, "head": "cosine", **lesson}
    plain = quick(images, labels, **settings, precision="float32", compile=False, capture=False)
    fast = quick(images, labels, **settings)
    assert fast.config["ran"]["step"] == "compiled+captured"
    assert np.allclose(plain.history["loss"], fast.history["loss"], rtol=0.02)


def test_training_goes_on_after_a_kill(tmp_path: Path) -> None:
    images, labels = drawn(256)
    settings = {"device": "cuda", "epochs": 4, "precision": "float32"}
    whole = quick(images, labels, **settings)

    class Killed(Exception):
        pass

    def stop(epoch: int, row: dict[str, float]) -> None:
        if epoch == 1:
            raise Killed

    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Killed):
        quick(images, labels, **settings, checkpoint=file, checkpoint_seconds=0, on_epoch=stop)
    again = quick(images, labels, **settings, checkpoint=file)
    assert len(again.history["loss"]) == 4 and np.allclose(again.history["loss"], whole.history["loss"], rtol=0.05)


def test_features_are_those_of_the_cpu() -> None:
    images, labels = drawn(64)
    model = quick(images, labels, device="cuda", epochs=2)
    options = {"transform": model.transform}
    slow = extract_features(model.backbone, images, device="cpu", **options)
    fast = extract_features(model.backbone, images, device="cuda", precision="float32", **options)
    assert np.allclose(slow, fast, atol=1e-2 * np.abs(slow).max())


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_rivals_compiled_and_captured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import faverage.rivals.rival as base

    monkeypatch.setattr(base, "_FEW_STEPS", 0)
    cls = get_rival(name)
    recipe = merged(cls.recipes["shared"], cls.recipes["shared/digits"], name)
    for section, settings in recipe.items():
        if isinstance(settings, dict) and "epochs" in settings:
            recipe[section] = {**settings, "epochs": 6 if section == "base" else 2}
    recipe["base"] |= {"batch_size": 32}
    images, labels = drawn(320)
    rival = cls("tiny", recipe=recipe, total=4, device="cuda").fit_base(images[labels < 3], labels[labels < 3])
    rival.learn_session(images[labels == 3][:5], [3] * 5)
    ran = {what: training.config["ran"]["step"] for what, training in rival.trainings.items()}
    assert set(ran.values()) == {"compiled+captured"}, ran
    test, truth = drawn(120, seed=7)
    said = rival.predict(test)
    assert (said == truth)[truth < 3].mean() > 0.6


def test_a_whole_run(tmp_path: Path) -> None:
    run(RunConfig.build("digits", None, {"device": "cuda", "epochs": 8, "methods": "cec,prototypes,afa"}), tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["device"] != "cpu" and found["base"]["ran"]["step"] == "compiled+captured"
    assert all(method["sessions"][0]["f1"] > 0.9 for method in found["methods"].values())
