"""LUCIR: its losses by hand, imprinting, frozen weights of old classes, the exemplars that it keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from faverage.rivals import LUCIR
from faverage.rivals.lucir import Increment, Network, less_forget, margin_ranking
from faverage.rivals.parts import Exemplars
from helpers_vision import drawn

TINY = {
    "base": {"epochs": 4, "batch_size": 32, "lr": 0.05},
    "increment": {"epochs": 4, "batch_size": 32, "lr": 0.01},
    "exemplars": {"base": 12},
}


class Plain(torch.nn.Module):
    """A backbone that gives its input back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_less_forget_by_hand() -> None:
    now, before = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    assert float(less_forget(now, before)) == pytest.approx(((1 - 0.6) + 0) / 2)


def test_margin_ranking_by_hand() -> None:
    cosines = torch.tensor([[0.9, 0.1, 0.5, 0.7, 0.3], [0.2, 0.6, 0.0, -0.5, 0.4], [0.9, 0.9, 0.1, 0.2, 0.3]])
    labels = torch.tensor([0, 1, 3])  # two classes are old; the third example is new and does not count
    first = (max(0, 0.5 - 0.9 + 0.7) + max(0, 0.5 - 0.9 + 0.5)) / 2
    second = (max(0, 0.5 - 0.6 + 0.4) + max(0, 0.5 - 0.6 + 0.0)) / 2
    found = margin_ranking(cosines, labels, 2, margin=0.5, top=2)
    assert float(found) == pytest.approx((first + second) / 2)
    assert float(margin_ranking(cosines, torch.tensor([2, 3, 4]), 2, margin=0.5, top=2)) == 0


def test_whole_loss_by_hand() -> None:
    network = Network(Plain(), torch.tensor([[1.0, 0.0]]), 1, 2)
    with torch.no_grad():
        network.new.copy_(torch.tensor([[0.0, 2.0]]))
        network.scale.fill_(2.0)
    increment = Increment(network, Plain(), 1, weight=3.0, margin=0.5, top=2)
    features, before = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0]])
    loss, right = increment.loss((features, before), torch.tensor([0]), torch.zeros(1, 0))
    entropy = -math.log(math.exp(1.2) / (math.exp(1.2) + math.exp(1.6)))
    assert loss.item() == pytest.approx(entropy + 3 * (1 - 0.8) + (0.5 - 0.6 + 0.8), abs=1e-6)
    assert int(right) == 0


def learner() -> tuple[LUCIR, np.ndarray, np.ndarray]:
    images, labels = drawn(240)
    base = labels < 3
    return LUCIR("tiny", recipe=TINY, device="cpu").fit_base(images[base], labels[base]), images, labels


def test_a_session_trains_the_backbone_and_the_new_weights_but_no_old_weight() -> None:
    rival, images, labels = learner()
    old = rival.net.weights().detach().clone()
    convolution = rival.net.backbone.convs[0].weight.detach().clone()
    shots = np.flatnonzero(labels == 3)[:5]
    rival.learn_session(images[shots], labels[shots])
    weights = rival.net.weights()
    assert weights.shape == (4, 128) and torch.equal(weights[:3], old)
    assert not torch.equal(rival.net.backbone.convs[0].weight, convolution)
    more = drawn(80, seed=5)[0][:5]
    old = weights.detach().clone()
    rival.learn_session(more, [9] * 5)  # weights of the fourth class are old by now
    assert torch.equal(rival.net.weights()[:4], old)


def test_new_weights_are_imprinted() -> None:
    images, labels = drawn(120)
    still = {**TINY, "increment": {"epochs": 1, "lr": 1e-12}}
    rival = LUCIR("tiny", recipe=still, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    shots = images[labels == 3][:5]
    features = rival.features(shots)
    mean = (features / np.linalg.norm(features, axis=1, keepdims=True)).mean(0)
    wanted = mean / np.linalg.norm(mean) * rival.net.weights().norm(dim=1).mean().item()
    rival.learn_session(shots, [3] * 5)
    assert np.allclose(rival.net.new.detach().numpy()[0], wanted, atol=1e-5)


def test_features_have_both_signs() -> None:
    rival, images, _ = learner()
    assert (rival.features(images[:20]) < 0).any()


def test_weight_of_less_forget_grows_with_old_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = Increment.__init__
    monkeypatch.setattr(Increment, "__init__", lambda self, *a, **k: (seen.append(k["weight"]), real(self, *a, **k))[1])
    rival, images, labels = learner()
    rival.learn_session(images[labels == 3][:5], [3] * 5)
    assert seen == [pytest.approx(10 * math.sqrt(3 / 1))]


def test_exemplars_are_even_and_one_a_new_class() -> None:
    rival, images, labels = learner()
    assert np.bincount(rival.arrays["exemplar_numbers"]).tolist() == [4, 4, 4]
    rival.learn_session(images[labels == 3][:5], [3] * 5)
    assert np.bincount(rival.arrays["exemplar_numbers"]).tolist() == [4, 4, 4, 1]
    small = Exemplars.of_base(images, labels, 7, np.random.default_rng(0))
    assert sorted(np.bincount(small.numbers).tolist()) == [1, 2, 2, 2]
