"""SAVC: contrast, fantasies, queue, keys, local views and prediction by hand; sessions without training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from faverage.rivals import SAVC
from faverage.rivals.rival import merged
from faverage.rivals.savc import FANTASIES, Contrast, Strong, aggregated, contrast, fantasies, hue, inside
from faverage.vision import Augment
from helpers_vision import drawn

TINY = merged(SAVC.recipes["shared"], SAVC.recipes["shared/digits"], "savc")


class Sums(torch.nn.Module):
    """A backbone whose features are the sums of the channels, scaled."""

    dimension = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum((2, 3)) * self.weight


def learner(**changes: Any) -> Contrast:
    recipe = merged(TINY, {"contrast": {"queue": 5, "dimension": 2}, **changes}, "savc")
    return Contrast(Sums(), 3, Augment(8, crop="none", flip=0, jitter=0, mean=(0, 0, 0), std=(1, 1, 1)), recipe)


def test_contrast_by_hand() -> None:
    queries, keys = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.6, 0.8], [0.8, 0.6]])
    queue = torch.tensor([[0.8, -0.6], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    same = torch.tensor([[True, False, False, False], [False, False, False, True]])
    filled = torch.tensor([True, True, True, False])
    near = [[0.6, 0.8, 0.0, -1.0], [0.6, -0.6, 1.0, 0.0]]  # the own key, then the queue
    first = [math.log(1 + math.exp(-2 * p) * (math.exp(0.0) + math.exp(-2.0))) for p in near[0][:2]]
    second = math.log(1 + math.exp(-2 * 0.6) * sum(math.exp(2 * n) for n in near[1][1:]))
    found = contrast(queries, keys, queue, same, filled, 0.5)
    assert float(found) == pytest.approx((sum(first) / 2 + second) / 2, abs=1e-6)


def test_an_empty_queue_costs_nothing() -> None:
    queries = torch.nn.functional.normalize(torch.randn(3, 2)).requires_grad_()
    loss = contrast(queries, queries.detach(), torch.zeros(4, 2), torch.zeros(3, 4).bool(), torch.zeros(4).bool(), 0.07)
    loss.backward()
    assert loss.item() == 0 and queries.grad is not None and (queries.grad == 0).all()


def test_fantasies_by_hand() -> None:
    images = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    plain, turned = fantasies(images, "rotation2")
    assert torch.equal(plain, images) and torch.equal(turned, images.flip(2, 3))
    twelve = fantasies(images, "rot_color_perm12")
    assert len(twelve) == 12 and torch.equal(twelve[0], images)
    assert torch.equal(twelve[1], images[:, [1, 2, 0]]) and torch.equal(twelve[2], images[:, [2, 0, 1]])
    assert torch.equal(twelve[7], images[:, [1, 2, 0]].flip(2, 3))  # 180°, GBR
    assert len({tuple(seen.flatten().tolist()) for seen in twelve}) == 12


def test_the_queue_forgets_the_oldest() -> None:
    net = learner()
    first, second, third = torch.randn(3, 2), torch.randn(4, 2), torch.randn(6, 2)
    net.enqueue(first, torch.tensor([0, 1, 2]))
    assert torch.equal(net.queue[:3], first) and net.queue_labels.tolist() == [0, 1, 2, -1, -1]
    net.enqueue(second, torch.tensor([3, 4, 5, 0]))
    assert torch.equal(net.queue[3:], second[:2]) and torch.equal(net.queue[:2], second[2:])
    assert net.queue_labels.tolist() == [5, 0, 2, 3, 4] and int(net.next) == 2
    net.enqueue(third, torch.arange(6))  # more than it holds
    assert net.queue_labels.tolist() == [4, 5, 1, 2, 3] and torch.equal(net.queue[2:], third[1:4])
    assert {"queue", "queue_labels", "next", "key.0.weight"} <= net.state_dict().keys()  # what a checkpoint keeps


def test_keys_follow_and_do_not_learn() -> None:
    net = learner(contrast={"momentum": 0.9, "queue": 5, "dimension": 2})
    assert not any(parameter.requires_grad for parameter in net.key.parameters())
    with torch.no_grad():
        net.query[0].weight.copy_(torch.tensor([2.0, 1.0, -1.0]))
    net.follow()
    assert torch.allclose(net.key[0].weight, torch.tensor([1.1, 1.0, 0.8]))
    before = net.key[0].weight.clone()
    images, labels = torch.randint(0, 255, (2, 8, 8, 3), dtype=torch.uint8), torch.tensor([0, 2])
    extra = net.draw(2, torch.Generator().manual_seed(0))
    for _ in range(2):  # the first step has an empty queue
        net.loss(net.embed(images, labels, extra), labels, extra)[0].backward()
    assert torch.allclose(net.key[0].weight, before + 0.19 * (net.query[0].weight - before))
    assert net.query[0].weight.grad is not None and net.query[0].weight.grad.isfinite().all()
    assert net.queue_labels.tolist() == [4, 1, 5, 5, 0]  # 0, 4, 1, 5 twice


@torch.no_grad()
def test_whole_loss_by_hand() -> None:
    net = learner(views={"count": 2}).eval()
    net.queue[:2], net.queue_labels[:2] = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([4, 1])
    m, labels = 2, torch.tensor([2, 0])
    targets = [4, 0, 5, 1]  # m y + t, one fantasy after the other
    local, query, keys, plain = torch.randn(2 * 4, 3), torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)
    unit = torch.nn.functional.normalize
    own, queries, locals_ = unit(net.key[1](keys)), unit(net.query[1](query)), unit(net.query[1](local))
    queue = net.queue[:2].clone()

    def one(q: torch.Tensor, i: int) -> float:
        near = {"own": float(q @ own[i]), 4: float(q @ queue[0]), 1: float(q @ queue[1])}
        others = sum(math.exp(near[c] / 0.07) for c in (4, 1) if c != targets[i])
        positives = [near["own"], *(near[c] for c in (4, 1) if c == targets[i])]
        return sum(math.log(1 + math.exp(-p / 0.07) * others) for p in positives) / len(positives)

    logits = 16 * torch.nn.functional.cosine_similarity(plain[:, None], net.weights, dim=2)
    entropy = torch.nn.functional.cross_entropy(logits, torch.tensor(targets)).item()
    whole = sum(one(queries[i], i) for i in range(4)) / 4
    parts = sum(one(locals_[4 * v + i], i) for v in range(2) for i in range(4)) / 8
    loss, right = net.loss((local, query, keys, plain), labels, torch.zeros(2, 0))
    assert loss.item() == pytest.approx(entropy + 0.2 * whole + 0.8 * parts, rel=1e-5)
    assert float(right) == int((logits.argmax(1) == torch.tensor(targets)).sum()) / m
    assert net.queue_labels.tolist() == [4, 0, 5, 1, -1] and torch.allclose(net.queue[:4], own)


@torch.no_grad()
def test_views_have_the_order_of_their_labels() -> None:
    net = learner(views={"count": 3})
    images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    images[0, :, :, 0], images[1, :, :, 1] = 200, 100
    images[:, :4] //= 2  # the upper half is darker, so that a rotation can be seen
    seen: list[torch.Tensor] = []
    net.query[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    extra = torch.full((2, net.extras), 0.9)  # colours stay as they are
    local, query, keys, plain = net.embed(images, torch.tensor([0, 1]), extra)
    assert [len(part) for part in (local, query, keys, plain)] == [12, 4, 4, 4]
    for views in seen:
        red = views[:, 0].mean((1, 2)) > views[:, 1].mean((1, 2))
        assert red.tolist() == [True, False] * (len(views) // 2)
    assert torch.equal(seen[2][2:], seen[2][:2].flip(2, 3)) and not torch.equal(seen[2][2:], seen[2][:2])
    assert [views.shape[-1] for views in seen] == [4, 8, 8]


def test_local_views_are_inside_the_crop_of_the_key() -> None:
    size, key_size = torch.tensor([[0.2, 0.2]]), torch.tensor([[0.5, 0.5]])
    key_centre = torch.tensor([[0.25, 0.75]])
    far, near, nearer = [1.0, 0.0], [0.6, 0.5], [0.1, 0.9]
    # of the second, x is from 0.48 to 0.68 and y from 0.4 to 0.6: a tenth of a half
    assert inside(size, torch.tensor([[far, near, nearer]]), key_size, key_centre).tolist() == [pytest.approx(nearer)]
    near = [0.5, 0.6]  # 0.4 to 0.6, 0.48 to 0.68: half of 0.9
    assert inside(size, torch.tensor([[far, near, nearer]]), key_size, key_centre).tolist() == [pytest.approx(near)]
    middle = [(0.25 - 0.1) / 0.8, (0.75 - 0.1) / 0.8]
    assert inside(size, torch.tensor([[far, far]]), key_size, key_centre).tolist() == [pytest.approx(middle)]


def test_colours_of_strong_views() -> None:
    images = torch.randint(0, 255, (4, 8, 8, 3), dtype=torch.uint8)
    strong = Strong(8, [1.0, 1.0], Augment(8, flip=0.5, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)))
    noise = torch.full((4, 11), 0.9)
    noise[1, 8], noise[2, 10], noise[3, 4] = 0.1, 0.1, 0.1  # changed, grey, flipped
    as_is = (images.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    found = strong(images, noise)
    assert torch.allclose(found[0], as_is[0], atol=1e-4) and not torch.allclose(found[1], as_is[1], atol=0.1)
    assert torch.allclose(found[2], found[2, :1].expand(3, 8, 8)) and torch.allclose(
        found[3], as_is[3].flip(2), atol=1e-4
    )
    third = torch.full((4, 1, 1, 1), 2 * math.pi / 3)
    assert torch.allclose(hue(as_is, third), as_is.roll(1, 1), atol=1e-5)  # a third of the circle: red becomes green


def test_prediction_by_hand() -> None:
    features = torch.tensor([[3.0, 4.0, 0.0, 2.0]])  # two fantasies of two features
    prototypes = torch.tensor([[1.0, 0.0, 0.0, 5.0], [0.0, 2.0, 1.0, 0.0]])
    assert aggregated(features, prototypes, 2).tolist() == [pytest.approx([(0.6 + 1.0) / 2, (0.8 + 0.0) / 2])]


@pytest.fixture(scope="module")
def taught() -> tuple[SAVC, dict[str, torch.Tensor], np.ndarray]:
    images, labels = drawn(160)
    recipe = merged(TINY, {"base": {"epochs": 4}}, "savc")
    rival = SAVC("tiny", recipe=recipe, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    before = {name: tensor.clone() for name, tensor in rival.net.state_dict().items()}
    shots = images[labels == 3][:5]
    return rival.learn_session(shots, [3] * 5), before, shots


@pytest.mark.slow
def test_a_session_trains_nothing_and_adds_prototypes(
    taught: tuple[SAVC, dict[str, torch.Tensor], np.ndarray],
) -> None:
    rival, before, shots = taught
    after = rival.net.state_dict()
    assert before.keys() == after.keys() and list(rival.trainings) == ["savc-base"]
    for name, tensor in before.items():
        if name != "prototypes":
            assert torch.equal(after[name], tensor), name
    assert after["prototypes"].shape == (4, 2 * 128) and torch.equal(after["prototypes"][:3], before["prototypes"])
    upside_down = rival.features(np.ascontiguousarray(shots[:, ::-1, ::-1]))[:, :128]
    means = [rival.features(shots)[:, :128].mean(0), upside_down.mean(0)]
    assert np.allclose(after["prototypes"][3], np.concatenate(means), atol=1e-4)
    images, labels = drawn(200, seed=7)
    right = rival.predict(images) == labels
    assert right[labels < 3].mean() > 0.8 and right[labels == 3].mean() > 0.5


def test_unknown_fantasies_are_refused() -> None:
    images, labels = drawn(16)
    with pytest.raises(ValueError, match="savc has no fantasies 'mirror'; known are: rotation2, rot_color_perm12"):
        SAVC("tiny", recipe={"fantasies": "mirror"}, device="cpu").fit_base(images, labels)


def test_a_prediction_passes_every_fantasy_once() -> None:
    assert [SAVC.passes({"fantasies": name}) for name in FANTASIES] == [2, 12]
