"""FACT: its losses and its prediction by hand, the mask of virtual classes, mixing, and sessions without training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from faverage.rivals import FACT
from faverage.rivals.fact import Network, beta, blended, forecasting, pairs, reserving
from helpers_vision import drawn

TINY = {"base": {"epochs": 5, "batch_size": 32, "lr": 0.05}}


class Plain(torch.nn.Module):
    """A backbone whose halves double, and add one."""

    def first_half(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    def second_half(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def network(n_base: int = 2, n_virtual: int = 2, dimension: int = 2, **settings: float) -> Network:
    usual = {"scale": 2.0, "alpha": 0.5, "weight": 0.1, "start": 0.5}
    return Network(Plain(), n_base, n_virtual, n_base, dimension, **(usual | settings))


def entropy(logits: list[float], target: int) -> float:
    return math.log(sum(math.exp(v) for v in logits)) - logits[target]


def test_reserving_by_hand() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.5, 2.0], [0.2, 0.1, 0.3, -1.0], [1.0, 4.0, 2.0, 2.5]])
    allowed = torch.tensor([[True, False], [False, True], [False, False]])  # the third has none and does not count
    first = entropy([1.0, 0.5, 2.0], 1)  # without class 0; the better virtual class is not allowed
    second = entropy([0.2, 0.3, -1.0], 2)  # without class 1
    found = reserving(logits, torch.tensor([0, 1, 1]), allowed)
    assert float(found) == pytest.approx((first + second) / 2, abs=1e-6)
    assert float(reserving(logits, torch.tensor([0, 1, 1]), torch.zeros_like(allowed))) == 0


def test_forecasting_by_hand() -> None:
    mixed = torch.tensor([[0.5, 0.9, 2.0, 1.5], [3.0, 1.0, -1.0, 0.0], [9.0, 1.0, 2.0, 3.0]])
    first = entropy([0.5, 0.9, 2.0, 1.5], 2) + entropy([0.5, 0.9, 1.5], 1)
    second = entropy([3.0, 1.0, -1.0, 0.0], 3) + entropy([3.0, 1.0, -1.0], 0)
    differ = torch.tensor([True, True, False])
    assert float(forecasting(mixed, 2, differ)) == pytest.approx((first + second) / 2, abs=1e-6)


def test_whole_loss_by_hand() -> None:
    net = network()
    with torch.no_grad():
        net.base.copy_(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        net.virtual.copy_(torch.tensor([[-1.0, 0.0], [0.0, -1.0]]))
    net.ties.copy_(torch.tensor([[True, False], [False, True]]))
    features, mixed = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[-0.6, -0.8], [1.0, 0.0]])
    labels, extra = torch.tensor([0, 1]), torch.tensor([[0.5, 0.9], [0.5, 0.1]])  # each is the other's partner
    a, b = [1.2, 1.6, -1.2, -1.6], [0.0, 2.0, 0.0, -2.0]  # 2 cos
    base = (entropy(a[:2], 0) + entropy(b[:2], 1)) / 2
    reserve = (entropy(a[1:], 1) + entropy([b[0], b[2], b[3]], 2)) / 2
    c, d = [-1.2, -1.6, 1.2, 1.6], [2.0, 0.0, -2.0, 0.0]
    forecast = (entropy(c, 3) + entropy(c[:3], 0) + entropy(d, 3) + entropy(d[:3], 0)) / 2
    net.start_epoch(0, 4)
    loss, right = net.loss((features, mixed), labels, extra)
    assert loss.item() == pytest.approx(base, abs=1e-6) and int(right) == 1
    net.start_epoch(2, 4)
    loss, _ = net.loss((features, mixed), labels, extra)
    assert loss.item() == pytest.approx(base + 0.1 * (reserve + forecast), abs=1e-5)


def test_pairs_of_one_class_do_not_count() -> None:
    net = network()
    net.start_epoch(3, 4)
    features, extra = torch.randn(4, 2), torch.rand(4, 2)
    same = torch.zeros(4, dtype=torch.int64)
    losses = [net.loss((features, mixed), same, extra)[0].item() for mixed in (torch.randn(4, 2), torch.randn(4, 2))]
    assert losses[0] == losses[1]


def test_gamma_waits_for_its_share_of_all_epochs() -> None:
    net = network(start=0.15, weight=0.01)
    for epochs, first in ((1000, 150), (20, 3), (3, 1)):
        seen = []
        for epoch in range(epochs):
            net.start_epoch(epoch, epochs)
            seen.append(net.weight_now.item() > 0)
        assert seen == [epoch >= first for epoch in range(epochs)]


def test_halves_are_mixed_with_one_share_a_batch() -> None:
    images = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    extra = torch.tensor([[0.25, 0.5], [0.9, 0.1], [0.8, 0.3]])  # by the second column: rows 1, 2, 0
    features, mixed = network().embed(images, torch.tensor([0, 1, 0]), extra)
    assert torch.equal(features, 2 * images + 1)
    for i, j in enumerate([1, 2, 0]):
        assert torch.allclose(mixed[i], 0.25 * 2 * images[i] + 0.75 * 2 * images[j] + 1)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
def test_shares_follow_beta(alpha: float) -> None:
    from scipy import stats

    drawn_shares = network(alpha=alpha).draw(20000, torch.Generator().manual_seed(0))
    assert drawn_shares.shape == (20000, 2)
    assert stats.kstest(drawn_shares[:, 0].numpy(), stats.beta(alpha, alpha).cdf).pvalue > 0.01
    assert sorted(pairs(drawn_shares).tolist()) == list(range(20000))
    assert (beta(torch.zeros(3), torch.tensor([0.0, 0.25, 0.5]), alpha) >= 0).all()


def test_a_small_alpha_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha must be at least 0\.5, got 0\.2"):
        network(alpha=0.2)


def test_targets_stay_within_the_mask() -> None:
    torch.manual_seed(3)
    net = network(n_base=8, n_virtual=5, dimension=16, weight=1.0, start=0.0)
    assert net.ties.shape == (5, 8) and net.ties.sum(1).tolist() == [3] * 5
    features = torch.randn(64, 16)
    labels = torch.arange(64) % 8
    logits = (features @ torch.cat([net.base, net.virtual]).T).detach().requires_grad_()
    reserving(logits, labels, net.ties.T[labels]).backward()
    assert logits.grad is not None
    # the loss wants a higher logit for its target alone
    for label, slope in zip(labels.tolist(), logits.grad, strict=True):
        wanted = [k - 8 for k in torch.nonzero(slope < 0).flatten().tolist()]
        tied = torch.nonzero(net.ties[:, label]).flatten().tolist()
        assert len(wanted) == bool(tied) and set(wanted) <= set(tied)
        assert slope[label] == 0


def test_weights_start_orthogonal() -> None:
    net = network(n_base=6, n_virtual=4, dimension=32)
    all_rows = torch.cat([net.base, net.virtual])
    assert torch.allclose(all_rows @ all_rows.T, torch.eye(10), atol=1e-5)


def test_prediction_by_hand() -> None:
    features = torch.tensor([[3.0, 4.0]])
    prototypes, virtual = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 3.0], [0.8, 0.6], [1.0, 0.0]])
    # cosines with the virtual prototypes: 0.8, 0.96, 0.6; the two highest are kept
    through = [0.8 * 0.0 + 0.96 * 0.8, 0.8 * 1.0 + 0.96 * 0.6]
    direct = [16 * 0.6, 16 * 0.8]
    wanted = [
        0.1 * math.exp(through[c]) / sum(map(math.exp, through))
        + 0.9 * math.exp(direct[c]) / sum(map(math.exp, direct))
        for c in range(2)
    ]
    found = blended(features, prototypes, virtual, scale=16.0, share=0.1, top=2)
    assert found.tolist()[0] == pytest.approx(wanted, abs=1e-6)


@pytest.fixture(scope="module")
def learner() -> tuple[FACT, dict[str, torch.Tensor], np.ndarray]:
    images, labels = drawn(320)
    rival = FACT("tiny", recipe=TINY, total=5, device="cpu").fit_base(images[labels < 3], labels[labels < 3])
    before = {name: tensor.clone() for name, tensor in rival.net.state_dict().items()}
    shots = images[labels == 3][:5]
    return rival.learn_session(shots, [3] * 5), before, shots


def test_a_session_trains_nothing_and_adds_prototypes(
    learner: tuple[FACT, dict[str, torch.Tensor], np.ndarray],
) -> None:
    rival, before, shots = learner
    after = rival.net.state_dict()
    assert before.keys() == after.keys() and list(rival.trainings) == ["fact-base"]
    for name, tensor in before.items():
        if name != "prototypes":
            assert torch.equal(after[name], tensor), name
    assert torch.equal(after["prototypes"][:3], before["prototypes"])
    assert np.allclose(after["prototypes"][3:], rival.features(shots).mean(0)[None], atol=1e-6)
    assert rival.arrays == {}


def test_it_learns(learner: tuple[FACT, dict[str, torch.Tensor], np.ndarray]) -> None:
    images, labels = drawn(200, seed=7)
    right = learner[0].predict(images) == labels
    assert right[labels < 3].mean() > 0.8 and right[labels == 3].mean() > 0.5


def test_prototypes_of_base_classes_are_means() -> None:
    images, labels = drawn(90)
    images, labels = images[labels < 3], labels[labels < 3]
    short = {"base": {"epochs": 1, "batch_size": 32}}
    rival = FACT("tiny", recipe=short, device="cpu").fit_base(images, labels)
    assert np.allclose(rival.net.prototypes[1], rival.features(images[labels == 1]).mean(0), atol=1e-5)
    # nothing is known of what is to come: two thirds of the base classes, and sessions without end
    assert len(rival.net.virtual) == 2
    for k in range(3, 7):
        rival.learn_session(images[:2], [k, k])
    assert rival.predict_proba(images[:4]).shape == (4, 7)


def test_virtual_prototypes_stay_and_weights_learn() -> None:
    images, labels = drawn(64)
    recipe = {"base": {"epochs": 1, "batch_size": 32}, "start": 0.0}
    rival = FACT("tiny", recipe=recipe, total=6, device="cpu").fit_base(images, labels)
    start = FACT("tiny", recipe=recipe, total=6, device="cpu")
    start.sessions = [[0]]
    first = start._seeded(lambda: start.build([4]))
    assert rival.net.virtual.shape == (2, 128) and torch.equal(rival.net.ties, first.ties)
    assert torch.equal(rival.net.virtual, first.virtual)
    cosines = torch.nn.functional.cosine_similarity(rival.net.base, first.base)
    assert (cosines < 1 - 1e-6).all() and (cosines > 0.5).all()


def test_too_few_classes_in_all_are_refused() -> None:
    images, labels = drawn(16)
    with pytest.raises(ValueError, match="fact was told of 4 classes in all, and the base session has 4"):
        FACT("tiny", recipe=TINY, total=4, device="cpu").fit_base(images, labels)
