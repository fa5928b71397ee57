"""Words of the version before still work, and a warning names the new one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import faverage.fscil
from faverage.experiment import RunConfig
from faverage.experiment.sweep.plan import Plan
from faverage.features import file_views
from faverage.fscil import FewShotLearner
from faverage.storage import read_tensors, write_tensors
from faverage.vision import BaseModel, View, get_views, rotation_heads, train_base, turn_heads
from helpers_run import command, said

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_strategy_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("strategy: ddp\nepochs: none\n")
    result = command("digits", "--config", file, "--strategy", "ddp")
    assert result.exit_code == 2 and "epochs must be a whole number" in said(result)
    warning = "Warning: 'strategy' has no effect: leave it out, it will be an error in version 0.3"
    assert said(result).count(warning) == 1
    assert "strategy" not in command("--help").stdout
    with pytest.warns(DeprecationWarning, match="'strategy' has no effect"):
        config = RunConfig.build("digits", None, {"strategy": "ddp"})
    assert config == RunConfig.build("digits", None, {})


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = "dataset: digits\nturned: true\nviews: [plain, 'mirror, turn-1']\n"
    text += "networks: [{}, {turned: false, views: [turn-3]}]\n"
    file.write_text(text)
    with pytest.warns(DeprecationWarning, match="'turned' is now 'rotations'") as found:
        old = RunConfig.build(None, file, {})
    assert len({str(one.message) for one in found}) == 3
    words = (("turned", "rotations"), ("mirror", "flip"), ("turn-1", "rotate-90"), ("turn-3", "rotate-270"))
    for before, now in words:
        text = text.replace(before, now)
    file.write_text(text)
    assert old == RunConfig.build(None, file, {}) and old.rotations and old.views == ("plain", "flip, rotate-90")
    file.write_text("turned: true\nepochs: 0\n")
    assert "Warning: 'turned' is now 'rotations'" in said(command("--config", file))
    file.write_text("turned: true\nrotations: true\n")
    assert "'turned' is the old name of 'rotations', and both are given" in said(command("--config", file))


def test_sweeps(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("over:\n  turned: [true, false]\n  views: [[plain], [turn-2, plain]]\n")
    with pytest.warns(DeprecationWarning, match="'turned' is now 'rotations'"):
        plan = Plan.read(file)
    assert plan.over == {"rotations": [True, False], "views": [["plain"], ["rotate-180", "plain"]]}


def test_views() -> None:
    with pytest.warns(DeprecationWarning, match=r"'mirror, turn-2' is now 'flip, rotate-180'"):
        (view,) = get_views(["mirror, turn-2"])
    assert view == View(180, flip=True)
    with pytest.warns(DeprecationWarning, match="'turn' is now 'rotation'"):
        assert View(turn=2, mirror=True) == view
    with pytest.warns(DeprecationWarning, match="'mirror' is now 'flip'"):
        assert (view.turn, view.mirror) == (2, True)


def test_files_of_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", views=np.array(["network 1: plain", "network 1: both, turn-1", "my mirror"]))
    with pytest.warns(DeprecationWarning, match=re.escape("'network 1: both, rotate-90'")):
        found = file_views(tmp_path / "f.npz")
    assert found == ("network 1: plain", "network 1: both, rotate-90", "my mirror")


def test_models(tmp_path: Path) -> None:
    images, labels = np.random.default_rng(0).integers(0, 255, (16, 16, 16, 3), np.uint8), np.arange(16) % 2
    options = {"backbone": "tiny", "epochs": 1, "batch_size": 8, "device": "cpu"}
    with pytest.warns(DeprecationWarning, match="'turned' is now 'rotations'"):
        model = train_base(images, labels, turned=True, **options)
    assert torch.equal(model.head_weight, train_base(images, labels, rotations=True, **options).head_weight)
    about, tensors = read_tensors(model.save(tmp_path / "model.safetensors"), "BaseModel")
    about["config"]["head"]["turned"] = about["config"]["head"].pop("rotations")
    write_tensors(tmp_path / "old.safetensors", "BaseModel", about, tensors)
    with pytest.warns(DeprecationWarning, match="'turned' is now 'rotations'"):
        again = BaseModel.load(tmp_path / "old.safetensors")
    with pytest.warns(DeprecationWarning, match="'turn_heads' is now 'rotation_heads'"):
        assert torch.equal(turn_heads(again), rotation_heads(model))


def test_learners(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="'draws' is now 'stand_ins'"):
        learner = FewShotLearner(fuser="prototypes", draws=7)
    rng = np.random.default_rng(0)
    learner.fit_base(rng.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 2).save(tmp_path / "l")
    file = tmp_path / "l" / "learner.safetensors"
    about, tensors = read_tensors(file, "learner")
    about["options"]["draws"] = about["options"].pop("stand_ins")
    write_tensors(file, "learner", json.loads(json.dumps(about)), {name: t.clone() for name, t in tensors.items()})
    with pytest.warns(DeprecationWarning, match="'draws' is now 'stand_ins'"):
        again = FewShotLearner.load(tmp_path / "l")
    with pytest.warns(DeprecationWarning, match="'draws' is now 'stand_ins'"):
        assert (again.stand_ins, again.draws) == (7, 7)


@pytest.mark.parametrize(("name", "words"), [("ViewLearner", "FewShotLearner takes any number"), ("Memory", "known")])
def test_names_that_are_gone_say_what_to_use(name: str, words: str) -> None:
    with pytest.raises(ImportError, match=rf"faverage\.fscil\.{name} is gone: .*{words}"):
        exec(f"from faverage.fscil import {name}")
    with pytest.raises(ImportError, match="is gone"):
        getattr(faverage.fscil, name)
    assert not hasattr(faverage.fscil, "Nothing")
