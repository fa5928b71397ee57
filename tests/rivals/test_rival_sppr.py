"""SPPR: refinement and relation by hand, episodes and their batches, and sessions without training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from faverage.rivals import SPPR
from faverage.rivals.sppr import Network, Relation, replaced
from helpers_vision import drawn

TINY = {"base": {"epochs": 8, "batch_size": 32, "lr": 0.2}, "episode": {"way": 1, "spare": 1}}


class Plain(torch.nn.Module):
    """A backbone that gives its input back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def network(n_base: int = 6, dimension: int = 4, **settings: int) -> Network:
    torch.manual_seed(0)
    usual = {"queries": 8, "way": 2, "shots": 3, "spare": 3, "episodes": 3}
    return Network(Plain(), n_base, n_base, dimension, **(usual | settings))


def unit(row: torch.Tensor) -> torch.Tensor:
    return row / row.pow(2).sum().sqrt()


def refined_by_loops(net: Network, own: torch.Tensor, others: torch.Tensor | None = None) -> torch.Tensor:
    """The attention of the module's docstring, one prototype and one key at a time."""
    part, d = net.attention, own.shape[1]
    tokens = [math.sqrt(d) * unit(row) for row in own]
    keys = tokens + [math.sqrt(d) * unit(row) for row in ([] if others is None else others)]
    result = []
    for token in tokens:
        scores = [float((part.query.weight @ token) @ (part.key.weight @ key)) / math.sqrt(d) for key in keys]
        weights = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
        mixed = sum(w * (part.value.weight @ key) for w, key in zip(weights, keys, strict=True))
        result.append(token + part.out.weight @ mixed + part.out.bias)
    return torch.stack(result)


def relation_by_loops(part: Relation, feature: torch.Tensor, prototype: torch.Tensor) -> float:
    """The relation in evaluation mode, on the concatenation itself."""
    x = part.first.weight @ torch.cat([unit(feature), unit(prototype)]) + part.first.bias
    for norm, layer in zip(part.norms, (part.second, part.last), strict=True):
        x = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        x = layer.weight @ x.clamp(min=0) + layer.bias
    return float(x)


@torch.no_grad()
def test_refinement_by_hand() -> None:
    net = network().eval()
    own = 3 * torch.randn(2, 4)
    assert torch.allclose(net.refine(own), refined_by_loops(net, own), atol=1e-5)
    others = torch.randn(3, 4)
    assert torch.allclose(net.refine(own, others), refined_by_loops(net, own, others), atol=1e-5)


@torch.no_grad()
def test_refinement_keeps_shapes_and_rows_apart() -> None:
    net = network().eval()
    stack = torch.randn(3, 6, 4)
    found = net.refine(stack)
    assert found.shape == (3, 6, 4)
    for one, of_stack in zip(stack, found, strict=True):  # episodes do not see each other
        assert torch.allclose(net.refine(one), of_stack, atol=1e-6)
    assert torch.allclose(net.refine(10 * stack), found, atol=1e-4)  # lengths do not matter


@torch.no_grad()
def test_relation_by_hand() -> None:
    torch.manual_seed(1)
    part = Relation(4, hidden=5).eval()
    for norm in part.norms:
        norm.running_mean.copy_(torch.randn(5))
        norm.running_var.copy_(torch.rand(5) + 0.5)
        norm.weight.copy_(torch.randn(5))
        norm.bias.copy_(torch.randn(5))
    features, prototypes = torch.randn(3, 4), torch.randn(2, 6, 4)
    found = part(features, prototypes)
    assert found.shape == (2, 3, 6)
    for k in range(2):
        for i in range(3):
            for c in range(6):
                wanted = relation_by_loops(part, features[i], prototypes[k, c])
                assert float(found[k, i, c]) == pytest.approx(wanted, abs=1e-5)


def test_support_means_replace_the_chosen_classes_and_no_others() -> None:
    prototypes, means = torch.arange(10.0).view(5, 2).requires_grad_(), torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    found = replaced(prototypes, torch.tensor([3, 0]), means)
    assert found.tolist() == [[-3.0, -4.0], [2.0, 3.0], [4.0, 5.0], [-1.0, -2.0], [8.0, 9.0]]
    found.sum().backward()
    assert prototypes.grad is not None and prototypes.grad[:, 0].tolist() == [0, 1, 1, 0, 1]
    assert prototypes[3].tolist() == [6.0, 7.0]  # the learned ones stay


def test_batches_are_queries_and_then_support() -> None:
    labels = np.repeat(np.arange(6), [10, 10, 10, 10, 10, 2])
    net = network()
    for given in (8, 8 + 15):  # the size of the whole batch makes no difference
        rows = net.order(labels, given, np.random.default_rng(0))
        assert rows.shape == (52 // 8, 8 + 5 * 3)
        assert len(set(rows[:, :8].flatten().tolist())) == 6 * 8
        for batch in rows:
            support = batch[8:].reshape(5, 3)
            classes = labels[support]
            assert (classes == classes[:, :1]).all() and len(set(classes[:, 0].tolist())) == 5
            assert all(len(set(line.tolist())) == 3 for line in support if labels[line[0]] != 5)
    assert network(queries=100).order(labels, 100, np.random.default_rng(0)).shape == (1, 52 + 15)


def test_few_base_classes_make_small_episodes() -> None:
    for n_base, way, drawn_classes in ((6, 2, 5), (5, 2, 5), (4, 1, 4), (2, 1, 2), (60, 2, 5)):
        net = network(n_base=n_base)
        assert (net.way, net.drawn) == (way, drawn_classes)


def test_whole_loss_by_hand() -> None:
    net = network(n_base=4, way=2, shots=2, spare=1, episodes=2).eval()
    features = torch.randn(3 + 6, 4)
    labels = torch.tensor([0, 3, 1, 2, 2, 0, 0, 3, 3])  # three queries, then two shots of each of 2, 0 and 3
    extra = torch.zeros(9, 2)
    extra[3::2] = torch.tensor([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2]])  # the lowest two: 2 and 0, then 3 and 0
    shots = {2: features[3:5], 0: features[5:7], 3: features[7:9]}
    with torch.no_grad():
        loss, right = net.loss(features, labels, extra)
        total, hits = 0.0, 0
        for chosen in ((2, 0), (3, 0)):
            prototypes = net.prototypes.clone()
            for c in chosen:
                prototypes[c] = (unit(shots[c][0]) + unit(shots[c][1])) / 2
            refined = refined_by_loops(net, prototypes)
            for i in range(3):
                logits = [relation_by_loops(net.relation, features[i], row) for row in refined]
                total += math.log(sum(map(math.exp, logits))) - logits[labels[i]]
                hits += max(range(4), key=lambda c: logits[c]) == labels[i]
    assert loss.item() == pytest.approx(total / 6, abs=1e-5)
    assert right.item() / 9 == pytest.approx(hits / 6)


def test_every_class_of_the_support_is_chosen_at_times(monkeypatch: pytest.MonkeyPatch) -> None:
    import faverage.rivals.sppr as module

    seen: list[tuple[int, ...]] = []
    real = module.replaced
    monkeypatch.setattr(module, "replaced", lambda p, c, m: (seen.append(tuple(sorted(c.tolist()))), real(p, c, m))[1])
    net = network()
    labels = np.repeat(np.arange(6), 10)
    rows = net.order(labels, 8, np.random.default_rng(0))
    for batch in rows:
        given = torch.from_numpy(labels[batch])
        net.loss(torch.randn(len(batch), 4), given, net.draw(len(batch), torch.Generator().manual_seed(int(batch[0]))))
        support = set(given[8:].tolist())
        assert all(set(chosen) <= support and len(set(chosen)) == 2 for chosen in seen[-3:])
    assert len(seen) == 3 * len(rows) and len(set(seen)) > 5


@pytest.fixture(scope="module")
def learner() -> tuple[SPPR, dict[str, torch.Tensor], np.ndarray]:
    images, labels = drawn(320)
    rival = SPPR("tiny", recipe=TINY, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    before = {name: tensor.clone() for name, tensor in rival.net.state_dict().items()}
    shots = images[labels == 3][:5]
    return rival.learn_session(shots, [3] * 5), before, shots


def test_a_session_trains_nothing_and_appends_refined_prototypes(
    learner: tuple[SPPR, dict[str, torch.Tensor], np.ndarray],
) -> None:
    rival, before, shots = learner
    after = rival.net.state_dict()
    assert before.keys() == after.keys() and list(rival.trainings) == ["sppr-base"]
    for name, tensor in before.items():
        if name != "refined":
            assert torch.equal(after[name], tensor), name
    assert after["refined"].shape == (4, 128) and torch.equal(after["refined"][:3], before["refined"])
    features = torch.from_numpy(rival.features(shots))
    mean = torch.stack([unit(row) for row in features]).mean(0, keepdim=True)
    with torch.no_grad():
        assert torch.allclose(after["refined"][3:], refined_by_loops(rival.net, mean, rival.net.prototypes), atol=1e-4)
        assert torch.allclose(after["refined"][:3], refined_by_loops(rival.net, rival.net.prototypes), atol=1e-4)
    assert rival.arrays == {}


def test_it_learns(learner: tuple[SPPR, dict[str, torch.Tensor], np.ndarray]) -> None:
    images, labels = drawn(200, seed=7)
    right = learner[0].predict(images) == labels
    assert right[labels < 3].mean() > 0.8 and right.mean() > 0.6
    training = learner[0].trainings["sppr-base"]
    assert 0.8 < training.history["accuracy"][-1] <= 1
    assert training.config["training"]["momentum"] == 0
