"""IDLVQ-C: its losses by hand, references that start at means and move with their images, what is stored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from faverage.rivals import IDLVQ
from faverage.rivals.idlvq import Increment, Network, margin_loss, nearest, squared_distances
from faverage.vision import extract_features
from helpers_vision import drawn

TINY: dict[str, Any] = {"base": {"epochs": 8, "batch_size": 32, "lr": 0.05}, "increment": {"epochs": 4}}


def network(old: list[list[float]], new: list[list[float]], intra: float = 2.0) -> Network:
    return Network(nn.Identity(), torch.tensor(old).reshape(-1, 2), torch.tensor(new), intra)


def test_distances_against_plain_differences() -> None:
    features, references = torch.randn(5, 7), torch.randn(3, 7)
    wanted = (features[:, None] - references).square().sum(2)
    assert torch.allclose(squared_distances(features, references), wanted, atol=1e-5)
    assert (squared_distances(references, references) >= 0).all()


def test_base_loss_by_hand() -> None:
    net = network([], [[0.0, 0.0], [0.3, 0.4]])
    assert net.gamma().item() == pytest.approx(0.1)
    loss, right = net.loss(torch.tensor([[0.3, 0.0]]), torch.tensor([1]), torch.zeros(1, 0))
    entropy = math.log(1 + math.exp((0.16 - 0.09) / 0.1))
    assert loss.item() == pytest.approx(entropy + 2 * 0.16, abs=1e-5) and int(right) == 0
    with torch.no_grad():
        net.slow.fill_(10 * math.log(2))
    loss, right = net.loss(torch.tensor([[0.3, 0.0]]), torch.tensor([0]), torch.zeros(1, 0))
    assert loss.item() == pytest.approx(math.log(1 + math.exp((0.09 - 0.16) / 0.2)) + 2 * 0.09, abs=1e-5)
    assert int(right) == 1
    assert net.embed(torch.tensor([[2.0, 4.0, 6.0, 8.0]]), torch.zeros(1), torch.zeros(1)).tolist() == [[1, 2, 3, 4]]


def test_margin_loss_by_hand() -> None:
    distances = torch.tensor([[0.5, 2.0, 1.0], [3.0, 2.5, 9.0], [0.0, 4.0, 5.0]])
    found = margin_loss(distances, torch.tensor([0, 0, 0]), 1.0)
    assert found.item() == pytest.approx(((1 + 0.5 - 1.0) + (1 + 3.0 - 2.5) + 0) / 3)


def test_session_loss_by_hand() -> None:
    net = network([[0.0, 0.0]], [[0.3, 0.4]])
    increment = Increment(net, nn.Identity(), forget=3.0, margin=1.0)
    features = torch.tensor([[0.1, 0.0], [0.3, 0.0]], requires_grad=True)  # of a stored image, of a shot
    before = torch.tensor([[0.0, 0.2], [9.0, 9.0]])
    loss, right = increment.loss((features, before), torch.tensor([0, 1]), torch.zeros(2, 0))
    stored = max(0.0, 1 + (0.01 - 0.20) / 0.1)
    shot = max(0.0, 1 + (0.16 - 0.09) / 0.1)
    assert loss.item() == pytest.approx((stored + shot) / 2 + 2 * 0.16 + 3 * (0.01 + 0.04), abs=1e-5)
    assert int(right) == 1
    loss.backward()
    assert net.slow.grad is None and net.new.grad is not None and features.grad is not None


def test_the_nearest_image_of_each_class() -> None:
    features = np.array([[0.0], [1.0], [5.0], [2.0], [4.0]])
    assert nearest(features, np.array([0, 0, 1, 1, 1]), np.array([[0.8], [1.0]])).tolist() == [1, 3]


def learner(**increment: Any) -> tuple[IDLVQ, np.ndarray, np.ndarray]:
    images, labels = drawn(240)
    base = labels < 3
    recipe = {**TINY, "increment": {**TINY["increment"], **increment}}
    return IDLVQ("tiny", recipe=recipe, device="cpu").fit_base(images[base], labels[base]), images, labels


def test_features_are_divided_by_the_root_of_their_dimension() -> None:
    rival, images, _ = learner()
    raw = extract_features(rival.net.backbone, images[:4], transform=rival.transform, device="cpu")
    assert np.allclose(rival.features(images[:4]), raw / math.sqrt(128))


def test_known_references_move_with_their_stored_images() -> None:
    rival, images, labels = learner(lr=0.01)
    stored = rival.arrays["exemplars"]
    assert rival.arrays["exemplar_numbers"].tolist() == [0, 1, 2]
    rows = nearest(rival.features(images[labels < 3]), labels[labels < 3], rival.net.new.detach().numpy())
    assert np.array_equal(stored, images[labels < 3][rows])
    references, before = rival.net.references().detach().clone(), rival.features(stored)
    statistics = rival.net.backbone.norms[0].running_mean.clone()
    rival.learn_session(images[labels == 3][:5], [3] * 5)
    drift = rival.features(stored) - before
    assert np.abs(drift).max() > 1e-3
    assert torch.allclose(rival.net.old, references + torch.from_numpy(drift), atol=1e-6)
    assert torch.equal(rival.net.backbone.norms[0].running_mean, statistics)
    assert rival.arrays["exemplar_numbers"].tolist() == [0, 1, 2, 3] and np.array_equal(
        rival.arrays["exemplars"][:3], stored
    )


def test_new_references_start_at_the_means_of_the_shots() -> None:
    rival, images, labels = learner(epochs=1, lr=1e-12)
    shots = images[labels == 3][:5]
    wanted, gamma = rival.features(shots).mean(0), rival.net.gamma().item()
    rival.learn_session(shots, [3] * 5)
    assert np.allclose(rival.net.new.detach().numpy()[0], wanted, atol=1e-6)
    assert rival.net.gamma().item() == gamma != 0.1


@pytest.mark.slow
def test_learns_shapes_and_new_ones() -> None:
    rival, images, labels = learner(epochs=20)
    test, truth = drawn(120, seed=7)
    rival.learn_session(images[labels == 3][:5], [3] * 5)
    said = rival.predict(test)
    assert (said == truth)[truth < 3].mean() > 0.7 and (said == truth)[truth == 3].mean() > 0.5
    distances = np.square(rival.features(test)[:, None] - rival.net.references().detach().numpy()).sum(2)
    assert np.array_equal(said, distances.argmin(1))
