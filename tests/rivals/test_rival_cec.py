"""CEC: adapted cosines by plain loops, the episode's loss, turned classes, sessions that train nothing."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from faverage.rivals import CEC
from faverage.rivals.cec import Adapt, Graph, adapted_cosines
from faverage.rivals.parts import Attention
from faverage.vision import get_backbone, train_network
from helpers_vision import drawn

TINY = {
    "base": {"epochs": 4, "batch_size": 32, "lr": 0.05},
    "adapt": {"epochs": 3, "lr": 0.01},
    "episode": {"count": 6, "queries": 4},
}


def attention(dimension: int, *, silent: bool = False, dropout: float = 0.0) -> Attention:
    """Return attention with weights that are not at their start, or one whose tokens hear nothing."""
    part = Attention(dimension, dropout=dropout)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_(0.5)
        if silent:
            for parameter in part.out.parameters():
                parameter.zero_()
            part.norm.weight.fill_(1.0)
            part.norm.bias.zero_()
    return part


def adapt(graph: Graph, **options: Any) -> Adapt:
    settings: dict[str, Any] = {"ways": 2, "queries": 1, "count": 3, "scale": 16.0, "weight_decay": 0.0}
    return Adapt(graph, **{**settings, "backbone_rate": 1.0, **options})


def by_hand(part: Attention, tokens: list[list[float]]) -> list[list[float]]:
    """Adapt tokens with nothing but floats."""
    named = {name: parameter.tolist() for name, parameter in part.named_parameters()}

    def times(name: str, vector: list[float]) -> list[float]:
        return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in named[name]]

    asks, keys, values = ([times(f"{name}.weight", token) for token in tokens] for name in ("query", "key", "value"))
    result = []
    for token, ask in zip(tokens, asks, strict=True):
        raw = [math.exp(sum(a * b for a, b in zip(ask, key, strict=True)) / math.sqrt(len(token))) for key in keys]
        mixed = [sum(r / sum(raw) * value[i] for r, value in zip(raw, values, strict=True)) for i in range(len(token))]
        said = [x + b for x, b in zip(times("out.weight", mixed), named["out.bias"], strict=True)]
        total = [x + y for x, y in zip(token, said, strict=True)]
        mean = sum(total) / len(total)
        spread = math.sqrt(sum((x - mean) ** 2 for x in total) / len(total) + 1e-5)
        scaled = [(x - mean) / spread for x in total]
        result.append([w * x + b for w, x, b in zip(named["norm.weight"], scaled, named["norm.bias"], strict=True)])
    return result


def cos(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_adapted_cosines_against_plain_loops() -> None:
    part = attention(4)
    prototypes, queries = torch.randn(3, 4), torch.randn(2, 4)
    found = adapted_cosines(part, prototypes, queries)
    for i in range(2):
        *nodes, query = by_hand(part, [*prototypes.tolist(), queries[i].tolist()])
        assert found[i].tolist() == pytest.approx([cos(query, node) for node in nodes], abs=1e-4)


def test_adapted_cosines_are_those_of_attention_over_all_tokens() -> None:
    part = Attention(32)
    prototypes, queries = torch.randn(7, 32), torch.randn(5, 32)
    tokens = part(torch.cat([prototypes.expand(5, 7, 32), queries[:, None]], 1))
    wanted = nn.functional.cosine_similarity(tokens[:, -1:], tokens[:, :-1], dim=-1)
    assert torch.allclose(adapted_cosines(part, prototypes, queries), wanted, atol=1e-5)


def test_dropout_hits_what_prototypes_and_query_hear() -> None:
    prototypes, queries = torch.randn(3, 8), torch.randn(2, 8)
    part = attention(8, dropout=1.0)  # nothing is heard in training, and everything in evaluation
    heard = adapted_cosines(part.eval(), prototypes, queries)
    found = adapted_cosines(part.train(), prototypes, queries)
    assert torch.allclose(
        found, nn.functional.cosine_similarity(part.norm(queries)[:, None], part.norm(prototypes), -1)
    )
    assert not torch.allclose(found, heard, atol=0.01)


def test_loss_by_hand() -> None:
    # silent attention only normalises: (1, 2, 3) to (-1, 0, 1) and (3, 0, 0) to (2, -1, -1), up to their lengths
    graph = Graph(nn.Identity(), attention(3, silent=True), torch.zeros(1, 3))
    episode = adapt(graph, ways=1, scale=2.0)
    a, b = [1.0, 2.0, 3.0], [3.0, 0.0, 0.0]
    between = -3 / math.sqrt(2 * 6)
    loss, right = episode.loss(torch.tensor([a, a, b, b]), torch.zeros(2), torch.zeros(2, 1))
    good = math.log(1 + math.exp(2 * (between - 1)))
    assert loss.item() == pytest.approx(good, abs=1e-4) and right.item() == 2
    bad = math.log(1 + math.exp(2 * (1 - between)))
    loss, right = episode.loss(torch.tensor([a, a, b, a]), torch.zeros(2), torch.zeros(2, 1))
    assert loss.item() == pytest.approx((good + bad) / 2, abs=1e-4) and right.item() == 1


def test_turned_classes_are_new_ones_with_targets_of_their_own() -> None:
    episode = adapt(Graph(nn.Identity(), attention(6, silent=True), torch.zeros(1, 6)), ways=3, queries=2)
    images = torch.randn(9, 3, 4, 4)
    extra = torch.rand(9, 1)
    extra[[0, 3, 6], 0] = torch.tensor([0.0, 0.5, 0.999])  # the first number of a class counts for all of it
    found = episode.doubled(images, extra)
    assert found.shape == (18, 3, 4, 4) and torch.equal(found[:9], images)
    for i in range(9):
        quarters = (1, 2, 3)[i // 3]
        assert np.array_equal(found[9 + i], np.rot90(images[i].numpy(), quarters, (1, 2)))
    assert episode.targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    features = torch.eye(6).repeat_interleave(3, 0)  # as if each of the six classes had a direction of its own
    assert episode.loss(features, torch.zeros(9), extra)[1].item() == 9
    features[9:12] = features[0:3]  # the first class turned looks as it does upright
    assert episode.loss(features, torch.zeros(9), extra)[1].item() == pytest.approx(9 * 10 / 12)


def test_episodes_hold_a_support_image_and_queries_of_each_class() -> None:
    labels = np.arange(200) % 5
    rows = adapt(Graph(nn.Identity(), Attention(4), torch.zeros(1, 4)), ways=4, queries=6, count=7).order(
        labels, 128, np.random.default_rng(0)
    )
    assert rows.shape == (7, 4 * 7)
    for line in rows.reshape(7, 4, 7):
        assert (labels[line] == labels[line[:, :1]]).all() and len(set(labels[line[:, 0]])) == 4
        assert len(set(line.ravel().tolist())) == 28
    assert len({tuple(line) for line in rows.tolist()}) == 7


def test_adaptation_trains_attention_and_backbone_but_no_statistics() -> None:
    images, labels = drawn(80)
    graph = Graph(get_backbone("tiny"), Attention(128, dropout=0.5), torch.zeros(4, 128))
    before = copy.deepcopy(graph.state_dict())
    train_network(adapt(graph, ways=4, queries=2), images, labels, epochs=1, lr=0.01, device="cpu")
    changed = {name for name, tensor in graph.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name, _ in graph.named_parameters()}


def test_a_rate_of_the_backbone_is_a_learning_rate_of_its_own() -> None:
    graph = Graph(nn.Linear(4, 4), Attention(4), torch.zeros(1, 4))
    twin = copy.deepcopy(graph)
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    one = torch.optim.SGD(graph.parameters(), lr=0.02, **options)
    groups = [{"params": twin.attention.parameters()}, {"params": twin.backbone.parameters(), "lr": 0.2}]
    two = torch.optim.SGD(groups, lr=0.02, **options)
    for _ in range(3):
        inputs = torch.randn(4, 4)
        for net, optimizer in ((graph, one), (twin, two)):
            optimizer.zero_grad()
            episode = adapt(net, ways=1, weight_decay=0.1, backbone_rate=10.0 if net is graph else 1.0)
            episode.loss(net.backbone(inputs), torch.zeros(2), torch.zeros(2, 1))[0].backward()
            episode.change_gradients()
            optimizer.step()
    for name, tensor in graph.state_dict().items():
        assert torch.allclose(tensor, twin.state_dict()[name], atol=1e-5), name


@pytest.mark.slow
def test_learns_shapes_and_a_session_only_adds_prototypes() -> None:
    images, labels = drawn(240)
    test, truth = drawn(120, seed=7)
    longer = {**TINY, "adapt": {"epochs": 8, "lr": 0.02}, "episode": {"count": 20, "queries": 4}}
    rival = CEC("tiny", recipe=longer, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    loss = rival.trainings["cec-adapt"].history["loss"]
    assert sum(loss[-3:]) < 0.95 * sum(loss[:3])
    prototypes = rival.net.prototypes.clone()
    for label in range(3):
        assert np.allclose(prototypes[label], rival.features(images[labels == label]).mean(0), atol=1e-5)
    parameters = {name: p.detach().clone() for name, p in rival.net.named_parameters()}
    statistics = {name: b.clone() for name, b in rival.net.backbone.named_buffers()}
    shots = images[labels == 3][:5]
    rival.learn_session(shots, [3] * 5)
    assert all(torch.equal(p, parameters[name]) for name, p in rival.net.named_parameters())
    assert all(torch.equal(b, statistics[name]) for name, b in rival.net.backbone.named_buffers())
    assert rival.net.prototypes.shape == (4, 128) and torch.equal(rival.net.prototypes[:3], prototypes)
    assert np.allclose(rival.net.prototypes[3], rival.features(shots).mean(0), atol=1e-5)
    said = rival.predict(test)
    assert (said == truth)[truth < 3].mean() > 0.7 and (said == truth)[truth == 3].mean() > 0.5
    one_by_one = np.concatenate([rival.predict_proba(test[i : i + 1]) for i in range(5)])
    assert np.allclose(one_by_one, rival.predict_proba(test)[:5], atol=1e-5)  # an answer does not depend on others
