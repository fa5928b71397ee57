"""EEIL: its loss by hand, the balanced stage, a teacher that stays as it was, noise that falls."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from faverage.rivals import EEIL
from faverage.rivals.eeil import Increment, balanced, distilled
from faverage.vision import Head, train_network
from faverage.vision.model import Network
from helpers_vision import drawn

TINY = {
    "base": {"epochs": 4, "batch_size": 32, "lr": 0.05},
    "increment": {"epochs": 8, "batch_size": 16, "lr": 0.05},
    "balance": {"epochs": 6, "batch_size": 16},
    "exemplars": {"base": 12},
}


def increment(network: Network, before: Network, sizes: list[int], **options: Any) -> Increment:
    settings = {"temperature": 2.0, "noise": 0.3, "decay": 0.55, "batch_size": 4}
    return Increment(network, before, sizes, **{**settings, **options})


def linear(weight: list[list[float]], bias: list[float]) -> Network:
    network = Network(nn.Identity(), Head(len(weight[0]), len(weight)))
    with torch.no_grad():
        network.head.weight.copy_(torch.tensor(weight))
        network.head.bias.copy_(torch.tensor(bias))
    return network


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    powers = [math.exp(z / temperature) for z in logits]
    return [p / sum(powers) for p in powers]


def soft_entropy(logits: list[float], old: list[float]) -> float:
    pairs = zip(softmax(old, 2.0), softmax(logits, 2.0), strict=True)
    return -sum(q * math.log(p) for q, p in pairs)


def test_distillation_of_each_head_apart_by_hand() -> None:
    logits, old = [1.0, 3.0, -2.0, 0.5, 4.0], [2.0, 0.0, 5.0, -1.5]
    wanted = soft_entropy(logits[:2], old[:2]) + soft_entropy(logits[2:4], old[2:])  # the fifth class is new
    found = distilled(torch.tensor([logits]), torch.tensor([old]), [2, 2], 2.0)
    assert found.item() == pytest.approx(wanted, abs=1e-6)
    together = distilled(torch.tensor([logits]), torch.tensor([old]), [4], 2.0)
    assert together.item() == pytest.approx(soft_entropy(logits[:4], old), abs=1e-6)
    assert abs(together - found) > 0.1


def test_whole_loss_by_hand() -> None:
    network = linear([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.5, 0.0, -1.0])
    before = linear([[2.0, 0.0], [0.0, -1.0]], [0.0, 1.0])
    now, then = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    loss, right = increment(network, before, [2]).loss((now, then), torch.tensor([1, 2]), torch.zeros(2, 0))
    logits, old = [[1.5, 2.0, 2.0], [3.5, -1.0, 1.0]], [[2.0, 0.0], [0.0, -1.0]]
    entropy = -(math.log(softmax(logits[0])[1]) + math.log(softmax(logits[1])[2])) / 2
    soft = (soft_entropy(logits[0][:2], old[0]) + soft_entropy(logits[1][:2], old[1])) / 2
    assert loss.item() == pytest.approx(entropy + soft, abs=1e-5)
    assert right.item() == 1


def test_balanced_takes_as_many_as_the_fewest() -> None:
    rng = np.random.default_rng(0)
    numbers = np.repeat([0, 1, 2], [7, 3, 5])
    features = rng.normal(size=(15, 4)) + 1
    rows = balanced(features, numbers)
    assert np.bincount(numbers[rows]).tolist() == [3, 3, 3] and len(set(rows.tolist())) == 9
    assert np.bincount(numbers[balanced(features[:11], numbers[:11])]).tolist() == [1, 1, 1]


def test_noise_falls_with_epochs_as_stated() -> None:
    network = linear(torch.zeros(200, 100).tolist(), [0.0] * 200)
    before = copy.deepcopy(network)
    stage = increment(network, before, [200])
    sizes = []
    for epoch in (0, 1, 9):
        stage.start_epoch(epoch, 10)
        for part in (*network.parameters(), *before.parameters()):
            part.grad = torch.ones_like(part)
        stage.change_gradients()
        added = network.head.weight.grad - 1
        assert abs(added.mean().item()) < 0.005
        sizes.append(4 * added.std().item())  # of the gradient summed over a batch of 4
        assert torch.equal(before.head.weight.grad, torch.ones(200, 100))
    for size, epoch in zip(sizes, (0, 1, 9), strict=True):
        assert size**2 == pytest.approx(0.3 / (1 + epoch) ** 0.55, rel=0.04)


def test_the_teacher_stays_as_it_was() -> None:
    images, labels = drawn(64)
    rival = EEIL("tiny", device="cpu")
    network, before = (rival._seeded(lambda: rival.build([3, 1])) for _ in range(2))
    start = copy.deepcopy(before.state_dict())
    modes = []
    stage = increment(network, before, [3, 1])
    real = stage.embed

    def embed(*args: Any) -> Any:
        modes.append((network.training, before.training))
        return real(*args)

    stage.embed = embed  # type: ignore[method-assign]
    train_network(stage, images, labels, epochs=1, batch_size=32, lr=0.1, device="cpu")
    assert modes == [(True, False)] * 2
    assert all(torch.equal(tensor, start[name]) for name, tensor in before.state_dict().items())
    changed = [name for name, tensor in network.state_dict().items() if not torch.equal(tensor, start[name])]
    assert len(changed) == len(start)


@pytest.mark.slow
def test_two_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages of each session: their data, their teachers, the exemplars, and what was learned in the end."""
    images, labels = drawn(400)
    test, truth = drawn(120, seed=7)
    rival = EEIL("tiny", recipe=TINY, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    seen: list[tuple[str, list[int], list[int]]] = []
    teachers: list[dict[str, torch.Tensor]] = []
    students: list[dict[str, torch.Tensor]] = []
    real = EEIL._train

    def watch(self: EEIL, stage: Increment, images: Any, numbers: Any, section: str) -> Any:
        seen.append((section, np.bincount(numbers).tolist(), stage.sizes))
        teachers.append(copy.deepcopy(stage.before.state_dict()))
        done = real(self, stage, images, numbers, section)
        students.append(copy.deepcopy(stage.network.state_dict()))
        return done

    monkeypatch.setattr(EEIL, "_train", watch)
    base = copy.deepcopy(rival.net.state_dict())
    rival.learn_session(images[labels == 3][:5], [3] * 5)
    assert seen == [("increment", [4, 4, 4, 5], [3]), ("balance", [4, 4, 4, 4], [3, 1])]
    assert np.bincount(rival.arrays["exemplar_numbers"]).tolist() == [4, 4, 4, 1]
    assert all(torch.equal(tensor, base[name]) for name, tensor in teachers[0].items())
    assert all(torch.equal(tensor, students[0][name]) for name, tensor in teachers[1].items())
    assert all(torch.equal(tensor, students[1][name]) for name, tensor in rival.net.state_dict().items())
    said = rival.predict(test)
    assert (said == truth)[truth < 3].mean() > 0.7 and (said == truth)[truth == 3].mean() > 0.5
    rival.learn_session(255 - images[labels == 0][:6], [4, 4, 4, 5, 5, 5])
    assert seen[2:] == [("increment", [4, 4, 4, 1, 3, 3], [3, 1]), ("balance", [1] * 6, [3, 1, 2])]
    assert rival.net.head.weight.shape == (6, 128)


def test_new_rows_of_the_head_leave_the_old_ones() -> None:
    images, labels = drawn(60)
    rival = EEIL("tiny", recipe=TINY, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    wider = rival._wider(2)
    assert wider.head.weight.shape == (5, 128) and wider.head.bias.shape == (5,)
    assert torch.equal(wider.head.weight[:3], rival.net.head.weight)
    assert torch.equal(wider.head.bias[:3], rival.net.head.bias)
    assert wider.backbone is not rival.net.backbone
