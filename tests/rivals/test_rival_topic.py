"""TOPIC: steps of the neural gas and each term of the loss by hand, what stays frozen, and two sessions."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.rivals import TOPIC
from faverage.rivals.topic import Gas, Increment, Network, last_block, max_loss, min_loss, nearest
from faverage.vision import EfficientNetLite, ResNet18, TinyNet
from helpers_vision import drawn

TINY = {
    "base": {"epochs": 4, "batch_size": 32, "lr": 0.05},
    "increment": {"epochs": 10, "lr": 0.03},
    "gas": {"nodes": 12, "passes": 1},
}


def gas(nodes: list[list[float]], lifetime: int = 2) -> Gas:
    start = np.array(nodes)
    return Gas(start, np.full((len(start),) * 2, -1), rate=0.5, reach=1.0, lifetime=lifetime)


def test_a_step_of_the_gas_by_hand() -> None:
    found = gas([[4.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    found.step(np.array([0.0, 0.0]))  # ranks 2, 0, 1
    e = math.e
    assert np.allclose(found.nodes, [[4 * (1 - 0.5 / e**2), 0], [0.5, 0], [0, 2 * (1 - 0.5 / e)]])
    assert found.ages.tolist() == [[-1, -1, -1], [-1, -1, 0], [-1, 0, -1]]
    assert np.allclose(found.distances(np.zeros((1, 2))), (found.nodes**2).sum(1) / 2)  # lengths are kept up to date


def test_edges_age_and_go_by_hand() -> None:
    found = gas([[0.0], [1.0], [2.0]])
    found.link(0, 1)
    found.link(0, 2)
    assert found.ages.tolist() == [[-1, 1, 0], [1, -1, -1], [0, -1, -1]]
    found.link(1, 0)  # an edge that is used is young again; edges of other nodes do not age
    assert found.ages.tolist() == [[-1, 0, 0], [0, -1, -1], [0, -1, -1]]
    for _ in range(3):
        found.link(0, 1)
    assert found.ages.tolist() == [[-1, 0, -1], [0, -1, -1], [-1, -1, -1]]  # the other one was older than 2


def test_many_nodes_move_as_few_do() -> None:
    """Only the nearest nodes are moved; the others would not have been, within the digits of float32."""
    rng = np.random.default_rng(0)
    start, feature = rng.normal(size=(60, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    found = Gas(start.copy(), np.full((60, 60), -1), rate=0.02, reach=1.0, lifetime=200)
    found.step(feature)
    ranks = ((start - feature) ** 2).sum(1).argsort().argsort()
    wanted = start + 0.02 * np.exp(-ranks)[:, None] * (feature - start)
    assert np.allclose(found.nodes, wanted, atol=1e-7) and (found.nodes != start).any(1).sum() < 20


def test_the_gas_spreads_over_the_features() -> None:
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(8, 4))
    features = centres[np.arange(800) % 8] + rng.normal(size=(800, 4))
    found = Gas.of_features(features, rng, nodes=8, passes=3, rate=0.1, reach=1.0, lifetime=50)
    start = Gas.of_features(features, rng, nodes=8, passes=0, rate=0.1, reach=1.0, lifetime=50)
    missed = [((features[:, None] - g.nodes) ** 2).sum(2).min(1).mean() for g in (start, found)]
    assert missed[1] < missed[0] / 2
    assert len(Gas.of_features(features[:5], rng, nodes=8, passes=1, rate=0.1, reach=1.0, lifetime=50).nodes) == 5


def test_classes_and_images_of_nodes_by_hand() -> None:
    found = gas([[0.0], [10.0], [16.0]])
    features, numbers = np.array([[1.0], [-2.0], [0.5], [9.0], [12.0]]), np.array([1, 1, 0, 2, 0])
    classes = found.classes(features, numbers)
    assert classes.tolist() == [1, 0, 0]  # two of three; a tie; one that wins nothing is next to the last feature
    assert nearest(found.distances(features), numbers, classes).tolist() == [0, 4, 4]


def test_min_and_max_loss_by_hand() -> None:
    features, own = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 0.0], [3.0, 2.0]])
    assert float(min_loss(features, own)) == pytest.approx((1 + 9) / 2)
    nodes = torch.tensor([[0.0, 0.0], [0.6, 0.0], [0.6, 0.3]])
    edges = torch.tensor([[1, 0], [2, 1], [2, 0]])
    assert float(max_loss(nodes, edges, 0.4)) == pytest.approx(((0.4 - 0.36) + (0.4 - 0.09) + 0) / 3, abs=1e-6)


class Plain(torch.nn.Module):
    """A backbone that gives its input back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def increment(anchors: list[list[float]], before: list[list[float]], **options: Any) -> Increment:
    network = Network(Plain(), 2, [2, 1])
    with torch.no_grad():
        network.heads[0].copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        network.heads[1].copy_(torch.tensor([[2.0, 0.0]]))
    settings: dict[str, Any] = {"anchor": 0.0, "weights": (0.0, 0.0), "margin": 0.5, "node_rate": 3.0}
    return Increment(
        network,
        anchors=torch.tensor(anchors),
        before=torch.tensor(before),
        old=torch.tensor([[0.6, 0.6]]),
        new=torch.tensor([[0.5, 0.5]]),
        edges=torch.tensor([[1, 0]]),
        weight_decay=0.1,
        **settings | options,
    )


def test_each_term_of_the_loss_by_hand() -> None:
    shots, labels, extra = torch.tensor([[3.0, 4.0]]), torch.tensor([2]), torch.zeros(1, 0)
    anchors, before = [[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.6, 0.8]]
    terms = {
        "anchor": (3.0, 3 * (0 + 0 + 0.36 + 0.04) / 4),  # (2, 0) has the same direction as before
        "weights": ((2.0, 5.0), 2 * (0.01 + 0.09) + 5 * (0.5 - 0.02)),
    }
    entropy = -math.log(math.exp(1.2) / (math.exp(0.6) + math.exp(0.8) + math.exp(1.2)))
    for name, (weight, wanted) in terms.items():
        part = increment(anchors, before, **{name: weight})
        loss, right = part.loss(part.embed(shots, labels, extra), labels, extra)
        assert loss.item() == pytest.approx(entropy + wanted, abs=1e-6), name
        assert int(right) == 1
    trial = torch.tensor([0])  # as a GPU's first steps have it
    assert part.loss(part.embed(shots, trial, extra), trial, extra)[0].isfinite()


def test_nodes_have_a_rate_of_their_own_and_no_decay() -> None:
    part = increment([[1.0, 0.0]], [[1.0, 0.0]])
    for each in part.parameters():
        each.grad = torch.ones_like(each)
    part.change_gradients()
    decayed = part.new.grad + 0.1 * part.new.detach()  # as the optimiser does
    assert torch.allclose(decayed, torch.full((1, 2), 3.0))
    assert torch.equal(part.network.heads[1].grad, torch.ones(1, 2))


def test_the_last_block_of_every_backbone() -> None:
    resnet, tiny, lite = ResNet18("small", width=4), TinyNet(), EfficientNetLite(0)
    assert last_block(resnet) == [resnet.layer4[1]]
    assert last_block(tiny) == [tiny.convs[3], tiny.norms[3]]
    assert last_block(lite) == [lite._conv_head, lite._bn1]
    assert last_block(torch.nn.Flatten()) == []


def test_two_sessions_train_their_own_head_and_the_last_block_alone(tmp_path: Path) -> None:
    images, labels = drawn(240)
    rival = TOPIC("tiny", recipe=TINY, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    assert np.isin(rival.arrays["node_numbers"], [0, 1, 2]).all() and rival.arrays["node_images"].shape[0] == 12
    learned = {"backbone.convs.3.weight", "backbone.norms.3.weight", "backbone.norms.3.bias"}
    for k, shots in enumerate([images[labels == 3][:5], 255 - images[labels == 0][:5]], 1):
        before, kept = copy.deepcopy(rival.net.state_dict()), rival.arrays
        rival.learn_session(shots, [f"new {k}"] * 5)
        after, grown = rival.net.state_dict(), rival.arrays
        changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        assert changed == learned  # no running statistics, no earlier head
        assert after.keys() - before.keys() == {f"heads.{k}"} and after[f"heads.{k}"].norm() > 0.1
        m = len(kept["nodes"])
        assert np.array_equal(grown["nodes"][:m], kept["nodes"]) and grown["node_numbers"][m:].tolist() == [2 + k]
        assert any(np.array_equal(grown["node_images"][m], shot) for shot in shots)
        neighbours = np.flatnonzero(grown["node_ages"][m] >= 0)
        assert 1 <= len(neighbours) <= 5 and m not in neighbours
        assert np.array_equal(grown["node_ages"], grown["node_ages"].T)
    again = TOPIC.load(rival.save(tmp_path / "topic.safetensors"), device="cpu")
    assert again.arrays.keys() == grown.keys() and all(
        np.array_equal(again.arrays[name], grown[name]) for name in grown
    )
    test, truth = drawn(80, seed=7)
    assert (rival.predict(test)[truth == 3] == "new 1").mean() > 0.5


def test_one_shot_of_one_class_is_enough() -> None:
    images, labels = drawn(60)
    rival = TOPIC("tiny", recipe=TINY, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    assert rival.learn_session(images[labels == 3][:1], [3]).predict_proba(images[:2]).shape == (2, 4)


def test_the_anchor_holds_features_of_the_nodes() -> None:
    images, labels = drawn(240)
    moved = []
    for anchor in (0.0, 350.0):
        recipe = {**TINY, "increment": {"epochs": 30, "lr": 0.05}, "anchor": anchor}
        rival = TOPIC("tiny", recipe=recipe, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
        nodes = rival.arrays["node_images"]
        before = rival._unit(nodes)
        rival.learn_session(images[labels == 3][:5], [3] * 5)
        moved.append(float(((rival._unit(nodes) - before) ** 2).sum()))
    assert moved[1] < moved[0] / 2
