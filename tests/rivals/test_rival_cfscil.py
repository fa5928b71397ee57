"""C-FSCIL: softabs and every loss by hand, episodes, supports without gradient, the three modes of a session."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from faverage.rivals import CFSCIL
from faverage.rivals.cfscil import Episodes, alignment_loss, nudge, nudging_loss, retrain, similarities, softabs
from helpers_vision import drawn

TINY: dict[str, Any] = {
    "base": {"epochs": 4, "batch_size": 32, "lr": 0.05},
    "meta": {"epochs": 3, "lr": 0.1},
    "episode": {"count": 4, "queries": 4},
}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def soft(x: float) -> float:
    return sigmoid(10 * (x - 0.5)) + sigmoid(10 * (-x - 0.5))


def of_tanh(*rows: list[float]) -> torch.Tensor:
    """Return what has these values after tanh."""
    return torch.tensor(rows).atanh()


def test_softabs_by_hand_and_in_the_order_of_the_absolute_value() -> None:
    assert softabs(torch.tensor([0.5, -0.5, 0.0])).tolist() == pytest.approx([soft(0.5), soft(0.5), 2 * sigmoid(-5)])
    grid = softabs(torch.linspace(0, 1, 50))
    assert (grid.diff() > 0).all() and torch.allclose(softabs(-torch.linspace(0, 1, 50)), grid)


def test_similarities_by_hand() -> None:
    found = similarities(of_tanh([0.3, 0.4]), of_tanh([0.5, 0.0], [0.0, -0.5]))
    first, second = soft(0.6), soft(-0.8)
    assert found[0].tolist() == pytest.approx([first / (first + second), second / (first + second)], abs=1e-5)
    assert found.argmax(1).item() == 1  # the largest absolute cosine, whatever its sign


def test_loss_of_an_episode_by_hand() -> None:
    episodes = Episodes(nn.Identity(), ways=2, shots=2, queries=1, count=1)
    half = of_tanh([0.5, 0.0], [0.0, 0.5]) / 2  # two supports that sum to what has tanh 0.5
    support, queries = half.repeat_interleave(2, 0), of_tanh([0.3, 0.4], [0.3, 0.4])
    loss, right = episodes.loss((support, queries), torch.zeros(6), torch.zeros(6, 0))
    a = soft(0.6) / (soft(0.6) + soft(0.8))
    wrong, good = -2 * math.log(a), -2 * math.log(1 - a)  # of one query, both classes: t log s + (1 - t) log(1 - s)
    assert loss.item() == pytest.approx((wrong + good) / 4, abs=1e-5) and right.item() == 3


def test_episodes_have_all_supports_first() -> None:
    labels = np.arange(200) % 5
    rows = Episodes(nn.Identity(), ways=4, shots=2, queries=3, count=7).order(labels, 128, np.random.default_rng(0))
    assert rows.shape == (7, 20)
    for line in rows:
        support, queries = labels[line[:8]].reshape(4, 2), labels[line[8:]].reshape(4, 3)
        assert (support == support[:, :1]).all() and (queries == support[:, :1]).all()
        assert len(set(support[:, 0])) == 4 and len(set(line.tolist())) == 20


def test_supports_have_no_gradient_and_leave_the_statistics_alone() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12))
    episodes = Episodes(network, ways=2, shots=3, queries=2, count=1).train()
    images = torch.randn(10, 3, 2, 2)
    support, queries = episodes.embed(images, torch.zeros(10), torch.zeros(10, 0))
    assert torch.allclose(support, images[:6].flatten(1), atol=1e-4) and not support.requires_grad
    assert torch.allclose(queries.mean(0), torch.zeros(12), atol=1e-5) and queries.requires_grad
    assert torch.allclose(network[1].running_mean, 0.1 * images[6:].flatten(1).mean(0), atol=1e-6)
    assert network.training


def test_nudging_loss_by_hand() -> None:
    nudged, start = of_tanh([0.3, 0.4], [0.5, 0.0], [0.0, 0.5]), of_tanh([0.5, 0.0], [0.5, 0.0], [0.0, 0.5])
    between = [math.exp(4 * c) + math.exp(-4 * c) - 2 for c in (0.6, 0.8, 0.0)]
    assert nudging_loss(nudged, start).item() == pytest.approx(sum(between) / 3 + (1 - 0.6) / 3, abs=1e-4)


def test_nudging_takes_classes_apart() -> None:
    torch.manual_seed(0)
    start = torch.randn(4, 32) + 0.5
    found = nudge(start)
    assert nudging_loss(found, start) < 0.9 * nudging_loss(start, start) and not found.requires_grad
    assert (nn.functional.cosine_similarity(found.tanh(), start.tanh()) > 0.8).all()


def test_a_step_of_the_fc_by_hand() -> None:
    outputs, targets = of_tanh([0.3, 0.4], [0.5, 0.0]), of_tanh([0.5, 0.0], [0.5, 0.0])
    assert alignment_loss(outputs, targets).item() == pytest.approx(-(0.6 + 1) / 2, abs=1e-5)
    fc = nn.Linear(1, 2)
    with torch.no_grad():
        fc.weight.copy_(torch.tensor([[0.0], [0.0]]))
        fc.bias.copy_(torch.tensor([0.0, 1.0]))
    retrain(fc, torch.tensor([[2.0]]), torch.tensor([[1.0, 0.0]]), 1)
    slope = 1 / math.tanh(1.0)  # of the cosine in the first output: its target is along it, the output is not
    assert fc.bias.tolist() == pytest.approx([0.01 * slope, 1.0], abs=1e-6)
    assert fc.weight[0].item() == pytest.approx(0.02 * slope, abs=1e-6) and fc.weight[1].item() == 0


@pytest.mark.slow
def test_learns_shapes_and_a_session_trains_the_fc_alone() -> None:
    images, labels = drawn(240)
    test, truth = drawn(120, seed=7)
    base = labels < 3
    shots = images[labels == 3][:5]
    answers = {}
    for mode in (1, 2, 3):
        rival = CFSCIL("tiny", recipe={**TINY, "mode": mode}, device="cpu").fit_base(images[base], labels[base])
        loss = rival.trainings["c-fscil-meta"].history["loss"]
        assert len(loss) == 3 and loss[-1] < loss[0]
        assert np.allclose(rival.net.means[1], rival.features(images[labels == 1]).mean(0), atol=1e-5)
        backbone = {name: tensor.clone() for name, tensor in rival.net.backbone.state_dict().items()}
        fc = rival.net.fc.weight.detach().clone()
        rival.learn_session(shots, [3] * 5)
        assert all(torch.equal(tensor, backbone[name]) for name, tensor in rival.net.backbone.state_dict().items())
        assert torch.equal(rival.net.fc.weight, fc) == (mode == 1)
        assert np.allclose(rival.net.means[3], rival.features(shots).mean(0), atol=1e-5)
        assert torch.equal(rival.net.prototypes, rival.net.fc(rival.net.means).detach())
        answers[mode] = rival.predict_proba(test)
        said = rival.predict(test)
        assert (said == truth)[truth < 3].mean() > 0.7 and (said == truth)[truth == 3].mean() > 0.4
    assert not np.allclose(answers[2], answers[3], atol=1e-6)


def test_a_base_class_is_the_mean_of_some_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = drawn(40)
    rival = CFSCIL("tiny", recipe={**TINY, "images": 2}, device="cpu")
    monkeypatch.setattr(rival, "_train", lambda *_: None)
    seen = []
    real = rival.features
    monkeypatch.setattr(rival, "features", lambda X: (seen.append(len(X)), real(X))[1])
    rival.fit_base(images, labels)
    assert seen == [8]


def test_an_unknown_mode_is_refused() -> None:
    images, labels = drawn(12)
    with pytest.raises(ValueError, match="mode of c-fscil must be 1, 2 or 3, got 4"):
        CFSCIL("tiny", recipe={"mode": 4}, device="cpu").fit_base(images, labels)
