"""The structure ``tied``: the classes of a group share their weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage import AFA, explain, export_onnx, fit, load, save
from faverage.fusion import get_fuser, load_fuser

K, N = 3, 5
GROUPS = [4, 4, 0, 4, 0]


def probabilities(n: int = 8) -> torch.Tensor:
    return torch.rand(n, K, N, generator=torch.Generator().manual_seed(1)).softmax(-1)


def stirred(**options: Any) -> AFA:
    """A tied network with weights of its own, made by a few steps on labels by chance."""
    network = AFA(K, N, structure="tied", groups=GROUPS, **options)
    fit(network, probabilities(60), torch.arange(60) % N, epochs=5, lr=0.05)
    return network


@pytest.mark.parametrize("output", ["softmax", "power", "normalise"])
def test_tied_is_per_class_with_equal_rows(output: str) -> None:
    network = stirred(output=output)
    per_class = AFA(K, N, structure="per_class", output=output)
    for one, other in zip(per_class.branches, network.branches, strict=True):
        assert torch.equal(other.weight[0], other.weight[1]) and not torch.equal(other.weight[0], other.weight[2])
        one.weights.set_(other.weight.detach())
    per_class.aggregation.set_(network.mix.detach())
    if output == "power":
        per_class.log_temperature.data.copy_(network.log_temperature.data)
    assert torch.allclose(network(probabilities()), per_class(probabilities()), atol=1e-6)
    shares = [row[2] for row in explain(network).models.rows]
    assert shares == pytest.approx([row[2] for row in explain(per_class).models.rows])
    assert sum(p.numel() for p in network.parameters()) == 3 * 2 * (K + 1) + (output == "power")


@pytest.mark.parametrize("groups", [1, N])
def test_one_group_trains_as_scalar_and_groups_of_one_as_per_class(groups: int) -> None:
    scores, y = probabilities(60), torch.arange(60) % N
    tied = AFA(K, N, structure="tied", groups=groups)
    other = AFA(K, N, structure="scalar" if groups == 1 else "per_class")
    losses = [fit(network, scores, y, epochs=5, lr=0.05).train for network in (tied, other)]
    assert np.allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("constraint", ["projection", "softmax"])
def test_constraints_hold_after_training(constraint: str) -> None:
    network = stirred(constraint=constraint)
    for rows in network.rows():
        assert rows().min() >= 0 and rows().shape[0] == N and rows.raw.shape[0] == 2
        assert not rows.simplex or (rows().sum(-1) - 1).abs().max() < 2e-6


@pytest.mark.slow
def test_saved_loaded_and_exported(tmp_path: Path) -> None:
    network = stirred()
    again = load(save(network, tmp_path / "afa.safetensors"))
    assert torch.equal(again(probabilities()), network(probabilities())) and again.config()["groups"] == GROUPS
    assert export_onnx(network, tmp_path / "afa.onnx") <= 1e-5


def test_in_the_fuser_of_the_paper(tmp_path: Path) -> None:
    scores, y = probabilities(60).numpy(), np.arange(60) % N
    fuser = get_fuser("afa-paper", structure="tied", groups=GROUPS, epochs=5).fit(scores, y)
    loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
    np.testing.assert_array_equal(loaded.predict_proba(scores), fuser.predict_proba(scores))
    with pytest.raises(ValueError, match="structure 'tied' needs groups"):
        get_fuser("afa-paper", structure="tied")


def test_a_group_that_all_models_undervalue_is_lifted() -> None:
    """Every model gives the last two classes half of what it should; per group one number of A repairs it."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    scores = rng.dirichlet(np.ones(4), (400, 2)) * 0.6
    scores[np.arange(400), :, y] += 0.4
    scores[:, :, 2:] *= 0.5
    scores /= scores.sum(2, keepdims=True)
    plain, tied = (
        get_fuser("afa-paper", structure=s, groups=g, epochs=60).fit(scores, y).predict_proba(scores).argmax(1)
        for s, g in (("scalar", None), ("tied", [0, 0, 1, 1]))
    )
    assert (tied == y)[y >= 2].mean() > (plain == y)[y >= 2].mean() + 0.1
