"""One training step: restored, not sped up, traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from faverage.vision import get_backbone, transforms_for
from faverage.vision.engine.device import Store
from faverage.vision.engine.loop import Loop
from faverage.vision.engine.step import Objective, Step
from faverage.vision.model import Head, Network
from helpers_vision import drawn


def test_trial_steps_leave_no_trace() -> None:
    images, labels = drawn(64)
    augment, _ = transforms_for(16)
    device = torch.device("cpu")
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, device, torch.float32, torch.contiguous_format)
    step = Step(objective, side=16, batch_size=32, momentum=0.9, weight_decay=5e-4)
    loop = Loop(
        step, Store(images, np.arange(64), device), torch.from_numpy(labels), augment, seed=0, rate=lambda epoch: 0.1
    )
    before = {name: tensor.clone() for name, tensor in step.state().items()}
    row = loop.epoch(0, lambda: None)
    assert not torch.equal(step.state()["head.weight"], before["head.weight"])
    step.restore(before)
    assert all(torch.equal(before[name], tensor) for name, tensor in step.state().items())
    assert loop.epoch(0, lambda: None)["loss"] == row["loss"]
    with pytest.raises(ValueError, match="does not fit"):
        step.restore({})


def test_what_cannot_be_sped_up_stays_plain_and_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", broken)
    augment, _ = transforms_for(16)
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, torch.device("cpu"), torch.float32, torch.contiguous_format)
    step = Step(objective, side=16, batch_size=8, momentum=0.9, weight_decay=5e-4)
    before = {name: tensor.clone() for name, tensor in step.state().items()}
    with pytest.warns(UserWarning) as caught:
        step.speed_up(compile_mode="default", capture=True)
    words = [str(warning.message) for warning in caught]
    assert any("torch.compile failed" in w and "no compiler here" in w for w in words)
    assert any("capture failed" in w for w in words)
    assert step.variant == "plain"
    assert all(torch.equal(before[name], tensor) for name, tensor in step.state().items())
    step()
    assert step.totals[0] > 0


def test_objective_traces_as_one_graph() -> None:
    augment, _ = transforms_for(16)
    device = torch.device("cpu")
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, device, torch.bfloat16, torch.contiguous_format)
    batch, noise = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8), torch.rand(4, 8)
    labels = torch.arange(4)
    expected, _ = objective(batch, labels, noise)
    traced = torch.compile(objective, backend="eager", fullgraph=True, dynamic=False)
    assert torch.allclose(traced(batch, labels, noise)[0], expected, atol=1e-2)


def test_every_side_and_network_is_compiled_however_many_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = 0

    def count(graph: Any, inputs: Any, **options: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **options: real(module, backend=count, dynamic=False))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    augment, _ = transforms_for(16)
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, torch.device("cpu"), torch.float32, torch.contiguous_format)
    step = Step(objective, side=16, batch_size=4, momentum=0.9, weight_decay=5e-4)
    for number in range(1, 11):  # torch keeps eight versions of a function, and does not compile a ninth
        before, augment.size = compiled, 7 + number
        step.speed_up(compile_mode="default", capture=False)
        assert compiled > before and step.variant == "compiled"
