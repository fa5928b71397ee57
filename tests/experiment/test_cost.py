"""What a run says of its cost before base training: the passes that it will make, and nothing where none is left."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.experiment import RunConfig, cost
from faverage.experiment.code import work_folder
from faverage.experiment.cost import Left, in_words, left_of
from faverage.experiment.pictures import load_pictures
from faverage.experiment.run import _features
from faverage.vision import Augment, Team, TinyNet
from faverage.vision.engine.loop import Checkpoint
from helpers_run import ready

pytestmark = pytest.mark.usefixtures("own_cache")

CPU = torch.device("cpu")
GIVEN = {"methods": ["prototypes"], "jobs": 1, "device": "cpu", "batch_size": 64}
TWO = {
    "rotations": True,
    "views": ["both", "rotate-90"],
    "networks": [{"epochs": 1}, {"epochs": 1, "rotations": False}],
}
TRAINED = {"rotations": 4, "step": 64, "images": 28_800, "epochs": 150}
BEST = Left("tiny", Augment(8), (10, 10), **TRAINED, wanted=40_200, looked=321_600)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> dict[bool, int]:
    """How many images networks see in training (True) and otherwise, but for single ones; nothing is measured."""
    counts = {True: 0, False: 0}
    forward = TinyNet.forward

    def counted(self: TinyNet, x: torch.Tensor) -> torch.Tensor:
        counts[self.training] += len(x) if len(x) > 1 else 0
        return forward(self, x)

    monkeypatch.setattr(TinyNet, "forward", counted)
    monkeypatch.setattr(cost, "_passes_per_second", lambda *_: pytest.fail("there was little to do"))
    return counts


def said(out: Path, **given: Any) -> list[str]:
    """Carry out a run up to its methods, and return its sentences, which come before anything is trained."""
    heard: list[str] = []
    _features(RunConfig.build("digits", None, GIVEN | given), out, lambda what, *_: heard.append(what), Team())
    sentences = [line for line in heard if line.endswith(".")]
    assert heard[1 : 1 + len(sentences)] == sentences
    return sentences


def numbers(sentence: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) passes", sentence)]


def test_the_passes_are_those_of_the_run(tmp_path: Path, passes: dict[bool, int]) -> None:
    (line,) = said(tmp_path, **TWO)
    assert numbers(line) == [passes[True], passes[False]] and min(passes.values()) > 500
    assert line.startswith("Base session: 2 networks, 1 epoch of ")
    assert not said(tmp_path, **TWO)  # all of it is in the work folder
    passes.update({True: 0, False: 0})
    (line,) = said(tmp_path, **TWO | {"views": ["flip"]})  # other features of the same networks
    assert "network" not in line and numbers(line) == [passes[False]] and passes[True] == 0


def test_teachers_are_trained_once_and_look_beside(tmp_path: Path, passes: dict[bool, int]) -> None:
    first = {"epochs": 1, "start": 1}
    (line,) = said(tmp_path, networks=[{"epochs": 2, "teachers": [first, {"epochs": 1}]}, first])
    trained, told, extracted = numbers(line)
    assert (trained, told + extracted) == (passes[True], passes[False]) and "3 networks, 4 epochs" in line


def test_networks_of_a_soup_are_trained_once(tmp_path: Path, passes: dict[bool, int]) -> None:
    torch.save(TinyNet().state_dict(), tmp_path / "tiny.pt")
    given = {"weights": str(tmp_path / "tiny.pt"), "epochs": 1, "head": "cosine"}
    (line,) = said(tmp_path, **given, networks=[{"soup": [{}, {"start": 1}], "retain": 0.5}, {"start": 1}])
    assert numbers(line) == [passes[True], passes[False]] and "2 networks, 2 epochs" in line


def test_a_killed_training_has_less_left(
    tmp_path: Path, passes: dict[bool, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpoint.write

    def stop_after_one(self: Checkpoint, step: Any, history: dict[str, list[float]], *, last: bool) -> None:
        write(self, step, history, last=True)
        if len(history["loss"]) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoint, "write", stop_after_one)
        said(tmp_path, epochs=3)
    passes.update({True: 0, False: 0})
    (line,) = said(tmp_path, epochs=3)
    assert "1 network, 2 epochs of" in line and numbers(line) == [passes[True], passes[False]]


def test_smaller_crops_cost_less() -> None:
    plain = replace(BEST, wanted=0, looked=0)
    grown = replace(plain, progressive=(4,))
    assert grown.seen == plain.seen
    each = [cost.flops("tiny", side) for side in (4, 8)]
    assert grown.operations == pytest.approx(plain.operations * np.mean(each) / each[1])
    assert "tiny at 4, 8 px" in cost._parts([grown])[0]


def test_ready_features_cost_nothing(tmp_path: Path) -> None:
    assert not said(tmp_path / "out", features=str(ready(tmp_path / "features.npz")))


def test_rivals_train_at_least_their_base_session(tmp_path: Path) -> None:
    config = RunConfig.build("digits", None, GIVEN | {"methods": ["fact"]})
    pictures = load_pictures(config)
    (left,) = left_of(config, pictures, tmp_path)
    assert (left.rival, left.epochs, left.images) == ("fact", 20, len(pictures.base))
    assert "Base session: networks of fact: at least" in in_words([left], CPU)
    folder = work_folder(config, tmp_path) / "fact-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "base.json").touch()
    assert not left_of(config, pictures, tmp_path)


def test_the_time_and_what_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_passes_per_second", lambda *_: 12.0)
    monkeypatch.setattr(cost, "flops", lambda *_: 10**9)
    two = [BEST, replace(BEST, epochs=130)]
    assert in_words(two, CPU).splitlines() == [
        "Base session: 2 networks, 280 epochs of 28,800 images in four rotations: 32.3 million passes of tiny at 8 px; "
        "features of 40,200 images: 643,200 passes. About 31 days on this CPU (12 training passes a second, measured "
        "now); what is found in the work folder is not done again.",
        "Cheaper: a GPU; ready features (--features FILE, written elsewhere by --save-features); fewer --epochs; "
        "fewer passes an image (--passes N).",
    ]
    gpu = in_words(two, torch.device("cuda"))
    assert "At most about 31 days on this GPU (12 training passes" in gpu and "Cheaper" not in gpu
    assert "About 8 days" in in_words(two, CPU, processes=4)
    rival = in_words([replace(BEST, rival="fact", looked=0)], CPU)
    assert "At least about" in rival and "Cheaper: a GPU; fewer --epochs." in rival


def test_the_probe_is_short_and_leaves_no_trace() -> None:
    before, start = torch.random.get_rng_state(), time.perf_counter()
    assert cost._passes_per_second(replace(BEST, step=2, rotations=1), CPU) > 1
    assert time.perf_counter() - start < 5
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_slow_first_step_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_at_first(*_: Any, on_epoch: Any, **__: Any) -> None:
        for epoch, seconds in enumerate([4.0, 0.5, 0.2, 0.2]):
            on_epoch(epoch, {"seconds": seconds})

    monkeypatch.setattr("faverage.vision.train_base", slow_at_first)
    assert cost._passes_per_second(replace(BEST, step=2, rotations=1), CPU) == 2 / 0.5
