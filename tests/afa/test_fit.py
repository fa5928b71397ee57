"""The training loop: it recovers planted averages, keeps its constraints, and behaves."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from faverage import AFA, FAverage, fit, get_mean
from faverage.afa.explain import shares
from faverage.afa.steps import _Adam
from faverage.fusion.nets import Perceptron

MEANS = ("arithmetic", "geometric", "harmonic", {"name": "power", "q": 4})
K, N = 3, 4


def labelled(n: int = 120, k: int = 2, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Model 0 is right most of the time, the others guess."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    noise = torch.rand(n, k, classes, generator=generator)
    noise[:, 0] += 1.5 * nn.functional.one_hot(y, classes)
    return noise / noise.sum(-1, keepdim=True), y


@pytest.mark.slow
@pytest.mark.parametrize("planted", range(len(MEANS)), ids=["arithmetic", "geometric", "harmonic", "power"])
@pytest.mark.parametrize("structure", ["scalar", "per_class", "full"])
def test_planted_average_is_recovered(planted: int, structure: str) -> None:
    generator = torch.Generator().manual_seed(planted)
    scores = torch.rand(200, K, N, generator=generator)
    if MEANS[planted] in ("geometric", "harmonic"):
        scores = scores**3  # plenty of small numbers, where these two differ
    truth = AFA(K, N, means=[MEANS[planted]], structure=structure, output="identity")
    weight = torch.rand(truth.averages[0].weight.shape, generator=generator) ** 2
    truth.averages[0].weights.set_(weight / weight.sum(1, keepdim=True))
    targets = truth(scores).detach()

    network = AFA(K, N, means=MEANS, structure=structure, output="identity")
    # Adam at a constant rate may jump out of an optimum again, when depends on rounding: keep the best epoch
    history = fit(network, scores, targets, epochs=400, batch_size=200, lr=0.03, validation=(scores, targets))
    by_mean, _ = shares(network)
    assert by_mean.mean(0).argmax() == planted and by_mean.mean(0)[planted] > 0.75
    found = network.averages[planted].weight.detach()
    if structure == "full" and planted == 0:
        # A linear map has many factorisations A_j W_j, and a branch whose row of W is one-hot is linear whatever its
        # mean: only the sum of A_j W_j over the branches is determined by the data, and that must be the planted W.
        found = sum(
            network.mix.detach()[:, j * N : (j + 1) * N] @ network.averages[j].weight.detach() for j in range(4)
        )
    error = (found - truth.averages[0].weight.detach()).abs()
    assert error.max() < 0.06 and error.mean() < 0.012
    assert history.validation[history.best_epoch] < 0.01 * history.train[0]


@pytest.mark.parametrize("constraint", ["projection", "softmax"])
@pytest.mark.parametrize("structure", ["full", "per_class", "scalar", "block"])
def test_constraints_hold_after_every_step(structure: str, constraint: str, monkeypatch) -> None:
    scores, y = labelled()
    groups = [0, 1, 0] if structure == "block" else None
    network = AFA(2, 3, structure=structure, constraint=constraint, groups=groups)
    seen = []
    project = network.project_

    def watched() -> None:
        project()
        assert all(bool((a.weight >= 0).all()) for a in network.averages) and bool((network.mix >= 0).all())
        seen.append(max((a.weight.sum(1) - 1).abs().max().item() for a in network.averages))

    monkeypatch.setattr(network, "project_", watched)
    fit(network, scores, y, epochs=5, batch_size=16, lr=0.1)
    assert len(seen) == 5 * 8 and max(seen) < 2e-6


def test_no_row_stands_still_where_gradients_share_a_sign() -> None:
    """Adam makes such steps equal, and the projection would undo them: the harmonic branch is the first to freeze."""
    scores, y = labelled()
    network = AFA(2, 3, structure="scalar")
    fit(network, scores, y, epochs=60, lr=0.02)
    for average in network.averages:
        assert average.weight[0, 0] > 0.8, average.mean


def test_same_seed_same_numbers_and_other_seed_other_numbers() -> None:
    scores, y = labelled()

    def run(seed: int) -> tuple[list[float], torch.Tensor]:
        network = AFA(2, 3)
        history = fit(network, scores, y, epochs=3, batch_size=32, seed=seed, validation=0.2)
        return history.train + history.validation, network.mix.detach()

    first, again, other = run(1), run(1), run(2)
    assert first[0] == again[0] and torch.equal(first[1], again[1])
    assert first[0] != other[0]


def test_weights_count_as_repeats() -> None:
    scores, y = labelled(40)
    weight = torch.tensor([3.0, 1.0]).repeat(20)
    repeated = torch.arange(40).repeat_interleave(weight.long())
    one, two = AFA(2, 3), AFA(2, 3)
    fit(one, scores, y, sample_weight=weight, batch_size=1000, epochs=5)
    fit(two, scores[repeated], y[repeated], batch_size=1000, epochs=5)
    assert torch.allclose(one.mix, two.mix, atol=1e-5)


def test_a_row_of_weight_zero_does_not_count() -> None:
    scores, y = labelled(40)
    weight = torch.ones(40)
    weight[-1] = 0
    spoiled = scores.clone()
    spoiled[-1] = torch.tensor([0.0, 1.0, 0.0])
    one, two = AFA(2, 3), AFA(2, 3)
    fit(one, scores, y, sample_weight=weight, batch_size=1000, epochs=5)
    fit(two, spoiled, y, sample_weight=weight, batch_size=1000, epochs=5)
    assert torch.allclose(one.mix, two.mix, atol=1e-6)


def test_weights_that_are_mostly_zero_can_be_split() -> None:
    scores, y = labelled(40)
    weight = torch.zeros(40)
    weight[:6] = 1
    assert len(fit(AFA(2, 3), scores, y, sample_weight=weight, validation=0.3, epochs=2).validation) == 2


def test_one_average_trains_on_numbers_of_any_sign() -> None:
    values = torch.randn(60, 2, 1)
    average = FAverage(2, 1)
    fit(average, values, 0.8 * values[:, 0] + 0.2 * values[:, 1], epochs=100, lr=0.02)
    assert average.weight[0, 0].item() == pytest.approx(0.8, abs=0.02)
    with pytest.raises(ValueError, match=r"needs log_prob\(scores\), which FAverage"):
        fit(average, values, torch.zeros(60, dtype=torch.long))
    with pytest.raises(ValueError, match="Identity has no parameters"):
        fit(nn.Identity(), values, values[:, 0])


def test_early_stopping_keeps_the_best_epoch() -> None:
    torch.manual_seed(0)
    scores, y = torch.rand(60, 5, 4), torch.arange(60) % 4  # nothing to learn: held-out loss turns up soon
    network = AFA(5, 4)
    history = fit(network, scores, y, validation=0.3, patience=5, epochs=200, lr=0.1)
    assert history.stopped == "early" and len(history.train) < 200
    assert history.best_epoch == -1 or history.best_epoch == int(np.argmin(history.validation))
    held = fit(AFA(5, 4), scores, y, validation=(scores, y), epochs=2)
    assert len(held.validation) == 2


def test_held_out_part_takes_its_share_of_each_class() -> None:
    from faverage.afa.steps import Data

    y = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    data = Data.check(AFA(2, 3), torch.rand(100, 2, 3), y)
    train, held = data.split(0.2, seed=3)
    assert torch.bincount(held.targets).tolist() == [10, 6, 4] and len(train.targets) == 80


def test_divergence_stops_with_a_message_and_keeps_good_weights() -> None:
    class Fragile(nn.Module):
        """Learns for a while; its loss is infinite once its one weight passes 0.5."""

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            return (self.w + 0 / (self.w < 0.5)) * scores.new_ones(len(scores), 1)

    network = Fragile()
    with pytest.warns(RuntimeWarning, match=r"diverged in epoch 6 .* keeps the weights of epoch 4.*below 0\.1"):
        history = fit(network, torch.rand(8, 1, 1), torch.ones(8), epochs=50, lr=0.1)
    assert history.stopped == "diverged" and history.best_epoch == 4 and len(history.train) == 6
    assert 0 < network.w < 0.5


def test_absurd_learning_rate_leaves_a_finite_network() -> None:
    scores, y = labelled()
    network = AFA(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fit(network, scores, y, lr=1e30, epochs=3)
    assert bool(network(scores).isfinite().all())


def test_any_module_with_log_prob_trains() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def log_prob(self, scores: torch.Tensor) -> torch.Tensor:
            return self.layer(scores.flatten(1)).log_softmax(-1)

    scores, y = labelled()
    history = fit(Linear(), scores.numpy(), y.numpy(), epochs=20, lr=0.05)
    assert history.train[-1] < 0.8 * history.train[0]


def test_weight_decay_ends_where_the_penalised_loss_is_flat() -> None:
    scores, y = labelled()
    network = Perceptron(2, 3, [])  # softmax regression: one optimum
    fit(network, scores, y, epochs=600, lr=0.03, weight_decay=0.05)
    network.zero_grad()
    (-network.log_prob(scores)[torch.arange(len(y)), y]).mean().backward()
    for parameter in network.parameters():
        assert (parameter.grad + 0.05 * parameter).abs().max() < 1e-3
    assert network.layers[0].weight.grad.abs().max() > 0.01


def test_double_networks_and_regression_with_one_output() -> None:
    values = torch.rand(100, 2, 1, dtype=torch.float64)
    target = get_mean("geometric").average(values, torch.tensor([0.8, 0.2]), dim=1)[:, 0]
    network = AFA(2, 1, output="identity").double()
    history = fit(network, values, target, epochs=100, lr=0.02)
    assert history.train[-1] < 1e-3 * history.train[0] and network.mix.dtype == torch.float64


def test_progress_says_where_it_is(capsys, monkeypatch) -> None:
    monkeypatch.setattr("faverage.progress.PATIENCE_SECONDS", 0.0)
    scores, y = labelled()
    history = fit(AFA(2, 3), scores, y, epochs=3, progress=True)
    said = capsys.readouterr().err
    assert len(history.train) == 3 and "training: 33 %, 1 of 3" in said and f"loss {history.train[0]:.4f}" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": torch.rand(5, 6)}, r"scores must have shape \(n, K, N\)"),
        ({"scores": torch.rand(0, 2, 3)}, "no size of 0"),
        ({"scores": torch.rand(6, 3, 3)}, r"scores must have shape \(n, 2, 3\)"),
        ({"scores": torch.full((6, 2, 3), float("nan"))}, "scores must not contain NaN"),
        ({"scores": torch.full((6, 2, 3), float("inf"))}, "scores must be finite"),
        ({"scores": torch.full((6, 2, 3), -1.0)}, "scores must be >= 0"),
        ({"targets": torch.tensor([0, 1, 2, 0, 1, 3])}, "labels in 0 … 2, found 3"),
        ({"targets": torch.tensor([0, 1, 2, 0, 1, -1])}, "labels in 0 … 2, found -1"),
        ({"targets": torch.tensor([0, 1])}, "one entry for each of the 6 rows"),
        ({"targets": torch.rand(6), "loss": "cross-entropy"}, "whole-number labels"),
        ({"targets": torch.rand(6)}, r"targets must have shape \(6, 3\)"),
        ({"targets": torch.full((6, 3), float("nan"))}, "targets must be finite"),
        ({"loss": "hinge"}, "loss must be"),
        ({"sample_weight": torch.ones(5)}, "sample_weight must have shape"),
        ({"sample_weight": -torch.ones(6)}, "sample_weight must be finite, non-negative"),
        ({"sample_weight": torch.zeros(6)}, "not all zero"),
        ({"epochs": 0}, "epochs must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"lr": 0}, "lr must be"),
        ({"lr": "a"}, "lr must be"),
        ({"weight_decay": -1e-3}, "weight_decay must be"),
        ({"weight_decay": float("inf")}, "weight_decay must be"),
        ({"seed": None}, "seed must be a whole number"),
        ({"epochs": None}, "epochs must be"),
        ({"validation": None}, "validation must be a share"),
        ({"targets": torch.tensor(1)}, "got a number"),
        ({"lr": float("nan")}, "lr must be"),
        ({"validation": 1.0}, "validation must be a share"),
        ({"validation": 0.01}, "leaves no rows"),
        ({"validation": (1,)}, "validation as a tuple"),
        ({"patience": 3}, "patience needs held-out data"),
    ],
)
def test_bad_input_is_named(change: dict, words: str) -> None:
    arguments = {"scores": torch.rand(6, 2, 3), "targets": torch.arange(6) % 3, **change}
    with pytest.raises(ValueError, match=words):
        fit(AFA(2, 3), **arguments)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, {"structure": "block", "groups": 3}], ids=["full", "block"])
def test_captured_step_agrees_with_the_cpu(options: dict) -> None:
    scores, y = labelled(500, k=4, classes=20)
    on_cpu, on_gpu = AFA(4, 20, **options), AFA(4, 20, **options)
    histories = [fit(n, scores, y, epochs=10, validation=0.2, device=d) for n, d in ((on_cpu, "cpu"), (on_gpu, "cuda"))]
    assert np.allclose(histories[0].train, histories[1].train, rtol=1e-2)
    assert (on_cpu.mix - on_gpu.mix.cpu()).abs().max() < 0.05
    for average in on_gpu.averages:
        assert average.weight.min() >= 0 and (average.weight.sum(1) - 1).abs().max() < 2e-6


def test_a_watcher_hears_of_every_epoch() -> None:
    from faverage.afa.train import watched

    heard: list[tuple[int, int]] = []
    scores, y = labelled()
    with watched(lambda done, total: heard.append((done, total))):
        fit(AFA(2, 3), scores, y, epochs=3)
    fit(AFA(2, 3), scores, y, epochs=2)
    assert heard == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_own_optimiser_is_torchs_bit_for_bit(weight_decay: float) -> None:
    both = [[nn.Parameter(torch.arange(6.0).reshape(2, 3)), nn.Parameter(torch.ones(4))] for _ in range(2)]
    own = _Adam(both[0], 0.01, weight_decay)
    theirs = torch.optim.Adam(both[1], lr=0.01, weight_decay=weight_decay, fused=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        for one, other in zip(*both, strict=True):
            gradient = torch.randn(one.shape, generator=generator)
            one.grad = other.grad = None if step % 3 == 0 and one.ndim == 1 else gradient
        own.step()
        theirs.step()
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))
