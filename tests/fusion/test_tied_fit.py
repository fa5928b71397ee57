"""Tied weights: slopes, optimum, what is left out, groups of classes; and means of one's own as candidates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime, minimize
from torch import Tensor

import faverage.fusion.fits as fits
from faverage import Mean, register_mean
from faverage.afa.means import MEANS
from faverage.fusion import get_fuser, load_fuser
from faverage.fusion.arrays import log_softmax
from faverage.fusion.fits import LinearFit, ScalarFit, Tied

Array = np.ndarray[Any, Any]
SOFTENING = 1e-2


def members(n: int = 200, classes: int = 5, models: int = 3, seed: int = 0, gap: bool = False) -> tuple[Array, Array]:
    """Models of different quality; with a gap the first knows all classes, the others some."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    quality = rng.permutation(np.linspace(-0.5, 3, models))
    scores = np.exp(rng.normal(size=(n, models, classes)) + quality[:, None] * np.eye(classes)[y][:, None])
    if gap:
        unknown = rng.random((models, classes)) < 0.4
        unknown[0] = False
        scores[:, unknown] = np.nan
    return scores / np.nansum(scores, -1, keepdims=True), y


def tied_of(scores: Array, y: Array, softening: float = SOFTENING) -> Tied:
    known = ~np.isnan(scores).all(0)
    return Tied(np.where(np.isnan(scores), 1 / scores.shape[2], scores), y, known, softening)


def exact(scores: Array, y: Array, weight: Array, softening: float = SOFTENING, shrink: float = 1.0) -> Any:
    """The objective in double precision, written down once more: what it costs, and its number of weights."""
    classes = scores.shape[2]
    known = ~np.isnan(scores).all(0)
    logs = np.log((np.where(np.isnan(scores), 1 / classes, scores) + softening) / (1 + softening))
    patterns, group = np.unique(known.T, axis=0, return_inverse=True)
    size = int(patterns.sum())
    start = np.concatenate([*(np.full(c, 1 / max(c, 1)) for c in patterns.sum(1)), np.zeros(len(patterns))])

    def cost(t: Array) -> float:
        by_group = np.zeros(patterns.shape)
        by_group[patterns] = t[:size]
        logits = np.einsum("nkc,ck->nc", logs, by_group[group.ravel()]) + t[size:][group.ravel()]
        losses = -log_softmax(logits)[np.arange(len(y)), y]
        return float(weight @ losses + shrink / 2 * ((t - start) ** 2).sum())

    return cost, size, start


@pytest.mark.parametrize("gap", [False, True])
def test_slopes_are_those_of_the_loss(gap: bool) -> None:
    scores, y = members(120, gap=gap)
    rng = np.random.default_rng(1)
    weight = rng.exponential(size=len(y))
    tied = tied_of(scores, y)
    cost, size, start = exact(scores, y, weight)
    assert np.array_equal(tied.start, start)
    for _ in range(3):
        t = start + rng.normal(size=len(start)) * 0.3
        t[:size] = np.abs(t[:size])
        loss, gradient, hessian = tied._slopes(t, weight, 1.0)
        assert loss == pytest.approx(cost(t), rel=1e-5)
        assert np.allclose(gradient, approx_fprime(t, cost, 1e-6), rtol=1e-3, atol=1e-2)
        step = 1e-2  # wide steps: the slopes themselves are of single precision
        numeric = np.stack(
            [
                (tied._slopes(t + step * e, weight, 1.0)[1] - tied._slopes(t - step * e, weight, 1.0)[1]) / (2 * step)
                for e in np.eye(len(t))
            ]
        )
        assert np.allclose(hessian, numeric, rtol=1e-2, atol=5e-3 * np.abs(hessian).max())
        assert np.allclose(hessian, hessian.T, rtol=1e-4, atol=1e-3) and np.linalg.eigvalsh(hessian).min() > 0.99


@pytest.mark.parametrize("seed", range(12))
def test_the_solution_is_the_optimum(seed: int) -> None:
    scores, y = members(int(20 + 30 * seed), 2 + seed % 5, 1 + seed % 4, seed, gap=bool(seed % 2))
    weight = np.random.default_rng(seed).exponential(size=len(y)) + 0.1
    softening = (1e-2, 1e-3, 1e-4)[seed % 3]
    cost, size, start = exact(scores, y, weight, softening)
    bounds = [(0, None)] * size + [(None, None)] * (len(start) - size)
    best = minimize(
        cost, start, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-8, "maxfun": 10**6}
    )
    tied = tied_of(scores, y, softening)
    for found in (tied.fit(weight), tied.fit(weight, warm=start * 3 + 1)):  # wherever it starts
        assert (found[:size] >= 0).all()
        assert cost(found) <= best.fun * (1 + 1e-5)
        assert np.allclose(found, best.x, atol=1e-3 * max(1.0, np.abs(best.x).max()) * 3)
    assert np.allclose(
        tied.losses(found), -tied.linear(found).log_prob(_dense(scores))[np.arange(len(y)), y], atol=1e-4
    )


@pytest.mark.parametrize("seed", range(4))
def test_models_that_say_nearly_the_same(seed: int) -> None:
    """A step would take many weights below zero at once; half of the models do not know the last two classes."""
    rng, classes, models = np.random.default_rng(seed), 10, 16
    y = np.concatenate([np.arange(240) % 8, 8 + np.arange(40) % 2])
    quality, doubt = rng.uniform(0, 4, models), rng.uniform(0, 6, (models, 1))
    logits = 2 * rng.normal(size=(280, 1, classes)) + quality[:, None] * np.eye(classes)[y][:, None]
    logits += 0.2 * rng.normal(size=(280, models, classes)) - doubt * (np.arange(classes) >= 8)
    scores = np.exp(logits)
    scores[:, :8, 8:] = np.nan
    scores /= np.nansum(scores, -1, keepdims=True)
    weight = np.where(y < 8, 1.0, 4.0)
    tied, (cost, size, start) = tied_of(scores, y), exact(scores, y, weight)
    found = tied.fit(weight)
    bounds = [(0, None)] * size + [(None, None)] * (len(start) - size)
    slopes = {"jac": lambda t: tied._slopes(t, weight, 1.0)[1], "bounds": bounds, "options": {"maxiter": 3000}}
    best = minimize(cost, start, method="L-BFGS-B", **slopes)
    assert (found[:size] >= 0).all() and cost(found) <= best.fun * (1 + 1e-4)


def _dense(scores: Array) -> Array:
    return np.where(np.isnan(scores), 1 / scores.shape[2], scores)


def test_a_model_that_misleads_has_no_weight() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    good = np.exp(rng.normal(size=(300, 3)) + 2 * np.eye(3)[y])
    bad = np.exp(rng.normal(size=(300, 3)) - 2 * np.eye(3)[y])
    scores = np.stack([good, bad], 1)
    scores /= scores.sum(-1, keepdims=True)
    fuser = get_fuser("afa", structure="tied").fit(scores, y)
    for fit in fuser.fits.values():
        assert (fit.weights >= 0).all() and (fit.weights[:, 1] == 0).all() and (fit.weights[:, 0] > 0).all()


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_left_out_is_a_fit_without_the_row(seed: int, gap: bool) -> None:
    scores, y = members(60, 4, seed=seed, gap=gap)
    tied, weight = tied_of(scores, y), np.ones(60)
    found = tied.fit(weight)
    inside, near = tied.losses(found), tied.left_out(found, weight)
    refitted = np.array(
        [tied.losses(tied.fit(np.where(np.arange(60) == i, 0.0, weight), warm=found))[i] for i in range(60)]
    )
    assert near.sum() == pytest.approx(refitted.sum(), rel=0.035)
    assert np.corrcoef(near - inside, refitted - inside)[0, 1] > 0.98  # row by row
    assert near.sum() > inside.sum() and np.median(np.abs(near - refitted)) < 0.01


def test_where_all_models_know_all_classes_it_is_a_log_opinion_pool() -> None:
    scores, y = members()
    (fit,) = get_fuser("afa", structure="tied", combine="best").fit(scores, y).fits.values()
    assert fit.structure == "per_class" and (fit.weights == fit.weights[0]).all() and (fit.bias == fit.bias[0]).all()
    (e,) = fit.softenings
    pool = np.einsum("nkc,k->nc", np.log((scores + e) / (1 + e)), fit.weights[0])
    assert np.allclose(fit.log_prob(scores), log_softmax(pool))


def test_groups_are_the_classes_that_the_same_models_know() -> None:
    scores, y = members(300, 6)
    scores[:, 1, [1, 4]] = np.nan
    scores[:, 2, [1, 2, 4]] = np.nan
    scores /= np.nansum(scores, -1, keepdims=True)
    fuser = get_fuser("afa", structure="tied").fit(scores, y)
    groups = [[0, 3, 5], [1, 4], [2]]
    for fit in fuser.fits.values():
        assert fit.weights.shape == (6, 3)
        for group in groups:
            assert (fit.weights[group] == fit.weights[group[0]]).all() and (fit.bias[group] == fit.bias[group[0]]).all()
        assert len(np.unique(fit.weights, axis=0)) == len(np.unique(fit.bias)) == 3
        assert not fit.weights[[1, 4], 1:].any() and fit.weights[2, 2] == 0


def test_a_class_that_no_model_knows_has_a_bias_alone() -> None:
    scores, y = members(200, 4)
    scores[:, :, 3] = np.nan
    scores /= np.nansum(scores, -1, keepdims=True)
    for structure in ("tied", "auto"):
        fuser = get_fuser("afa", structure=structure).fit(scores, y)
        p = fuser.predict_proba(scores)
        assert np.isfinite(p).all() and np.allclose(p.sum(1), 1)
    for fit in get_fuser("afa", structure="tied").fit(scores, y).fits.values():
        assert not fit.weights[3].any()


@pytest.mark.parametrize("gap", [False, True])
def test_rows_of_weight_zero_do_not_matter(gap: bool) -> None:
    scores, y = members(150, gap=gap)
    weight = np.where(np.arange(150) < 100, 1.0, 0.0)
    tied = tied_of(scores, y)
    few = tied_of(scores[:100], y[:100])
    assert np.allclose(tied.fit(weight), few.fit(np.ones(100)), atol=1e-3)
    near = tied.left_out(tied.fit(weight), weight)
    assert np.allclose(near[100:], tied.losses(tied.fit(weight))[100:], atol=1e-6)  # they were never inside
    strange = scores.copy()
    strange[100:] = 1 / 5
    a, b = (get_fuser("afa", structure="tied").fit(s, y, weight) for s in (scores[:, :, :], strange))
    short = get_fuser("afa", structure="tied").fit(scores[:100], y[:100])
    assert a.losses == short.losses and np.array_equal(a.predict_proba(scores), short.predict_proba(scores))
    assert np.array_equal(b.predict_proba(scores), a.predict_proba(scores))


def test_a_weight_of_two_is_the_row_twice() -> None:
    scores, y = members(80, gap=True)
    weight = np.where(np.arange(80) % 3 == 0, 2.0, 1.0)
    rows = np.repeat(np.arange(80), weight.astype(int))
    one = get_fuser("afa", structure="tied").fit(scores, y, weight)
    two = get_fuser("afa", structure="tied").fit(scores[rows], y[rows])
    assert np.allclose(one.predict_proba(scores), two.predict_proba(scores), atol=1e-6)


def test_all_tied_ones_are_candidates_where_models_know_different_classes() -> None:
    shared, gaps = members(), members(gap=True)
    assert [name for name in get_fuser("afa").fit(*shared).losses if name.startswith("tied")] == ["tied 0.001"]
    losses = get_fuser("afa").fit(*gaps).losses
    assert {"tied 0.01", "tied 0.001", "tied 0.0001"} < set(losses) and np.isfinite(list(losses.values())).all()


def test_few_rows_are_enough() -> None:
    scores, y = members(gap=True)
    for n in (1, 2, 3):
        p = get_fuser("afa", structure="tied").fit(scores[:n], y[:n]).predict_proba(scores)
        assert np.isfinite(p).all() and np.allclose(p.sum(1), 1)
    sure = np.eye(5)[y][:, None].repeat(2, 1)  # scores of 0 and 1
    assert (get_fuser("afa", structure="tied").fit(sure, y).predict(sure) == y).all()
    alone = get_fuser("afa", structure="tied").fit(np.ones((5, 2, 1)), np.zeros(5, dtype=int))
    assert np.allclose(alone.predict_proba(np.ones((2, 2, 1))), 1)


@pytest.mark.parametrize("gap", [False, True])
def test_tied_weights_on_disk(tmp_path: Path, gap: bool) -> None:
    scores, y = members(gap=gap)
    fuser = get_fuser("afa", structure="tied").fit(scores, y)
    again = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
    assert again.options() == fuser.options() and again.weights == fuser.weights
    assert np.array_equal(again.predict_proba(scores), fuser.predict_proba(scores))


def test_what_models_push_is_the_log_odds() -> None:
    scores, y = members(gap=True)
    fuser = get_fuser("afa", structure="tied", combine="best").fit(scores, y)
    p, (fit,) = fuser.predict_proba(scores), fuser.fits.values()
    first, second = np.argsort(-p, axis=1)[:, :2].T
    rows = np.arange(len(y))
    pushed = fuser.contributions(scores, first, second)
    odds = np.log(p[rows, first] / p[rows, second])
    assert np.allclose(pushed.sum(1) + fit.bias[first] - fit.bias[second], odds)
    assert get_fuser("afa", structure="full").fit(scores, y).contributions(scores, first, second) is None


# Means of one's own ---------------------------------------------------------------------------------------------------


class Cubic(Mean):
    """f(x) = x³."""

    def __call__(self, x: Tensor) -> Tensor:
        return x**3

    def inverse(self, y: Tensor) -> Tensor:
        return y.relu() ** (1 / 3)


@pytest.fixture
def cubic() -> Iterator[str]:
    register_mean("cubic")(Cubic)
    yield "cubic"
    MEANS.unregister("cubic")


@pytest.mark.parametrize("gap", [False, True])
def test_a_mean_of_ones_own_is_a_candidate(cubic: str, gap: bool) -> None:
    scores, y = members(gap=gap)
    fuser = get_fuser("afa", means=("arithmetic", "geometric", cubic)).fit(scores, y)
    assert {"cubic, T", "all, T", "both, T"} <= set(fuser.losses)
    assert set(get_fuser("afa").fit(scores, y).losses) == set(fuser.losses) - {"cubic, T", "all, T"}
    alone = get_fuser("afa", means=(cubic,)).fit(scores, y)
    assert alone.weights == {"cubic, T": 1.0} and [row[0] for row in alone.explain().means.rows] == ["cubic"]
    scalar = get_fuser("afa", structure="scalar", means=("arithmetic", cubic), combine="best").fit(scores, y)
    assert set(scalar.losses) == {"cubic, T", "all, T"}
    shares = get_fuser("afa", means=("arithmetic", cubic)).fit(scores, y).explain().means.rows
    assert {row[0] for row in shares} == {"arithmetic", "cubic"} and sum(row[1] for row in shares) == pytest.approx(1)


@pytest.mark.parametrize("means", [("cubic",), ("arithmetic", "geometric", "cubic"), ("harmonic", "power", "cubic")])
def test_networks_with_a_mean_of_ones_own_predict_the_same(cubic: str, means: tuple[str, ...]) -> None:
    scores, y = members()
    fuser = get_fuser("afa", means=means).fit(scores, y)
    total = np.zeros((len(y), 5))
    for fit, (share, network) in zip(fuser.fits.values(), fuser.networks(), strict=True):
        inputs = scores if isinstance(fit, ScalarFit) else fit.members(scores)
        total += share * network(torch.from_numpy(inputs)).detach().numpy()
    assert np.abs(total - fuser.predict_proba(scores)).max() < 1e-6


def test_a_mean_of_ones_own_on_disk(cubic: str, tmp_path: Path) -> None:
    scores, y = members()
    fuser = get_fuser("afa", means=("arithmetic", cubic)).fit(scores, y)
    file = fuser.save(tmp_path / "fuser.safetensors")
    again = load_fuser(file)
    assert again.means == ("arithmetic", "cubic")
    assert np.array_equal(again.predict_proba(scores), fuser.predict_proba(scores))
    MEANS.unregister(cubic)
    with pytest.raises(ValueError, match="does not describe a fuser of this version: unknown mean 'cubic'"):
        load_fuser(file)


@pytest.mark.parametrize("means", [("cubic",), ("arithmetic", "geometric", "cubic"), ("harmonic",)])
def test_slopes_of_a_fit_with_a_mean_of_ones_own(
    cubic: str, means: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, y = members(60)
    weight = np.random.default_rng(0).exponential(size=60)
    caught: list[Any] = []

    def catch(objective: Any, start: Array, *_: Any) -> Array:
        caught.append((objective, start))
        return start

    monkeypatch.setattr(fits, "lbfgs", catch)
    ScalarFit.fit(scores, y, weight, means, temperature=True, shrink=1.0, floor=1e-3)
    objective, start = caught[0]
    rng = np.random.default_rng(1)
    for _ in range(3):
        t = start + 0.5 * rng.normal(size=len(start))
        numeric = np.array([(objective(t + e)[0] - objective(t - e)[0]) / 2e-6 for e in 1e-6 * np.eye(len(t))])
        assert np.allclose(objective(t)[1], numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "both", "all", "tied"])
def test_a_mean_by_the_name_of_a_candidate_is_refused(name: str) -> None:
    register_mean(name)(type("Other", (Cubic,), {}))
    try:
        with pytest.raises(ValueError, match=f"'{name}' is what afa calls a network of its own"):
            get_fuser("afa", means=("arithmetic", name))
    finally:
        MEANS.unregister(name)


@pytest.mark.parametrize("structure", ["tied", "per_class", "full"])
def test_a_structure_without_a_network_for_the_means_is_refused(cubic: str, structure: str) -> None:
    scores, y = members()
    for means in (("arithmetic",), (cubic,), ("arithmetic", cubic)):
        words = f"the structure '{structure}' has no network with the means {', '.join(means)}"
        with pytest.raises(ValueError, match=words):
            get_fuser("afa", structure=structure, means=means).fit(scores, y)
    fuser = get_fuser("afa", structure=structure, means=("geometric", cubic)).fit(scores, y)
    assert all(isinstance(fit, LinearFit) for fit in fuser.fits.values())
