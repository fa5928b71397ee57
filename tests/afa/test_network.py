"""Shapes, parameter counts, constraints and special cases of the networks."""

import math

import pytest
import torch

from faverage import AFA, FAverage, get_mean, mean_names
from faverage.afa.weights import Rows

STRUCTURES = ("full", "per_class", "scalar")
OUTPUTS = ("softmax", "normalise", "power", "identity")
CONSTRAINTS = ("projection", "softmax")
K, N = 3, 4


def probabilities(n: int = 6, k: int = K, classes: int = N) -> torch.Tensor:
    return torch.rand(n, k, classes).softmax(-1)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", mean_names())
def test_one_average_at_its_start_is_the_plain_mean(name: str, structure: str) -> None:
    scores = probabilities()
    assert torch.allclose(FAverage(K, N, name, structure)(scores), get_mean(name).average(scores, dim=1), atol=1e-6)


def test_full_average_is_the_papers_equation() -> None:
    scores, average = probabilities().double(), FAverage(K, N, "geometric").double()
    weight = torch.rand(N, K * N, dtype=torch.float64)
    average.weights.set_(weight / weight.sum(1, keepdim=True))
    omega = average.weight.reshape(N, K, N)
    mixed = sum(torch.log(scores[:, k] + 1e-3) @ omega[:, k].T for k in range(K))
    assert torch.allclose(average(scores), mixed.exp() - 1e-3)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_shapes_counts_and_constraints(structure: str, output: str, constraint: str) -> None:
    network = AFA(K, N, structure=structure, output=output, constraint=constraint)
    fused = network(probabilities())
    assert fused.shape == (6, N)
    size = {"full": 3 * N * N * (K + 1), "per_class": 3 * N * (K + 1), "scalar": 3 * (K + 1)}[structure]
    assert sum(p.numel() for p in network.parameters()) == size + (output == "power")
    for average in network.averages:
        assert average.weight.min() >= 0 and torch.allclose(average.weight.sum(1), torch.ones(1), atol=1e-6)
    assert network.mix.min() >= 0
    if output != "identity":
        assert torch.allclose(fused.sum(1), torch.ones(6), atol=1e-5) and fused.min() >= 0
        assert torch.allclose(network.log_prob(probabilities()).exp().sum(1), torch.ones(6), atol=1e-5)
    else:
        with pytest.raises(ValueError, match="no probabilities"):
            network.log_prob(probabilities())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_aggregate_is_the_papers_equation(structure: str) -> None:
    network, scores = AFA(K, N, structure=structure), probabilities()
    parts = [average(scores) for average in network.averages]
    assert torch.allclose(network.aggregate(scores), 10 / 3 * sum(parts), atol=1e-5)
    assert torch.allclose(network(scores), (10 / 3 * sum(parts)).softmax(-1), atol=1e-5)


def test_both_constraints_start_close_to_each_other() -> None:
    scores = probabilities()
    for structure in STRUCTURES:
        a, b = (AFA(K, N, structure=structure, constraint=c)(scores) for c in CONSTRAINTS)
        assert (a - b).abs().max() < 0.05


def test_power_output_with_the_geometric_mean_is_the_log_opinion_pool() -> None:
    network = AFA(K, N, means=[{"name": "geometric", "eps": 0.01}], structure="scalar", output="power", floor=0.01)
    weight = torch.tensor([[0.5, 0.2, 0.3]])
    network.averages[0].weights.set_(weight)
    with torch.no_grad():
        network.log_temperature.fill_(0.7)
    scores = probabilities()
    pool = (scores + 0.01).pow(torch.tensor(0.7).exp() * weight.reshape(1, K, 1)).prod(1)
    assert torch.allclose(network(scores), pool / pool.sum(1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize("mixing", ["nonnegative", "simplex"])
def test_mixing_can_be_chosen(mixing: str) -> None:
    for output in OUTPUTS:
        network = AFA(K, N, output=output, mixing=mixing)
        with torch.no_grad():
            network.aggregation.raw.add_(torch.randn_like(network.mix))
        network.project_()
        assert network.mix.min() >= 0
        on_simplex = torch.allclose(network.mix.sum(1), torch.ones(N), atol=1e-5)
        assert on_simplex == (mixing == "simplex")


def test_network_keeps_predictions_inside_the_members_range_for_regression() -> None:
    network = AFA(K, 1, output="identity")
    values = torch.rand(50, K, 1) * 5
    fused = network(values)
    assert bool((fused <= values.amax(1) + 1e-4).all()) and bool((fused >= values.amin(1) - 1e-4).all())


def test_gradcheck_of_the_whole_network() -> None:
    network = AFA(2, 3, means=["arithmetic", "geometric", "harmonic", {"name": "power", "q": 2}]).double()
    names, start = zip(*((n, p.detach().clone().requires_grad_()) for n, p in network.named_parameters()), strict=True)
    scores = probabilities(3, 2, 3).double()

    def run(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(network, dict(zip(names, values, strict=True)), (scores,))

    assert torch.autograd.gradcheck(run, start)


def test_config_rebuilds_the_network() -> None:
    network = AFA(K, N, means=["arithmetic", {"name": "power", "q": 3}], structure="per_class", output="normalise")
    assert AFA(**network.config()).config() == network.config()
    assert '"per_class"' in repr(network)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: AFA(0, 3), "n_models must be a whole number of at least 1, got 0"),
        (lambda: AFA(3, 0), "n_outputs must be"),
        (lambda: AFA(2.5, 3), "n_models"),
        (lambda: AFA(2, 3, means=[]), "means must be a non-empty list"),
        (lambda: AFA(2, 3, means="arithmetic"), "means must be a non-empty list"),
        (lambda: AFA(2, 3, means=["mode"]), "unknown mean 'mode'"),
        (lambda: AFA(2, 3, structure="diagonal"), "structure must be one of 'full', 'per_class', 'scalar'"),
        (lambda: AFA(2, 3, output="sigmoid"), "output must be one of"),
        (lambda: AFA(2, 3, constraint="none"), "constraint must be one of"),
        (lambda: AFA(2, 3, mixing="free"), "mixing must be"),
        (lambda: AFA(2, 3, scale=0), "scale must be"),
        (lambda: AFA(2, 3, floor=0), "floor must be"),
        (lambda: AFA(2, 3)(torch.rand(5, 3, 2)), r"scores must have shape \(n, 2, 3\).*got \(5, 3, 2\)"),
        (lambda: AFA(2, 3)(torch.rand(5, 6)), r"got \(5, 6\)"),
        (lambda: AFA(2, 3)(torch.ones(5, 2, 3, dtype=torch.long)), "floating-point"),
        (lambda: AFA(2, 3)([[1.0]]), "got list"),
        (lambda: AFA(2, 3)(torch.full((1, 2, 3), math.nan)), "scores must not contain NaN"),
        (lambda: AFA(2, 3)(torch.full((1, 2, 3), math.inf)), "scores must be finite"),
        (lambda: AFA(2, 3)(torch.full((1, 2, 3), -0.1)), "scores must be >= 0 for the mean 'geometric'"),
        (lambda: FAverage(2, 3, "harmonic")(torch.full((1, 2, 3), -0.1)), "scores must be >= 0"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_negative_scores_are_fine_where_every_mean_takes_them() -> None:
    assert torch.allclose(
        AFA(2, 1, means=["arithmetic"], output="identity")(torch.tensor([[[-3.0], [1.0]]])), -torch.ones(1)
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, 2), "sum to one"),
        (torch.tensor([[2.0, -1.0], [0.5, 0.5]]), "non-negative"),
        (torch.full((2, 3), 1 / 3), r"shape \(2, 2\)"),
    ],
)
def test_weights_outside_the_set_are_refused(value: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rows(torch.eye(2), simplex=True).set_(value)
