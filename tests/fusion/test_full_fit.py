"""Full matrices: the optimum, whatever the shape; one rule for folds and the final fit; candidates far behind."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import faverage.fusion.afa as afa
from faverage.fusion import get_fuser
from faverage.fusion.arrays import log_softmax
from faverage.fusion.fits import SOFT, Full

Array = np.ndarray[Any, Any]


def members(n: int, classes: int = 4, seed: int = 0, gap: bool = False) -> tuple[Array, Array]:
    """Three models of falling quality; with a gap each lacks one class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    scores = np.exp(rng.normal(size=(n, 3, classes)) + np.array([3.0, 1.5, 0.0])[:, None] * np.eye(classes)[y][:, None])
    if gap:
        for k in range(3):
            scores[:, k, k] = np.nan
    return scores / np.nansum(scores, -1, keepdims=True), y


@pytest.mark.parametrize(("n", "gap"), [(15, True), (15, False), (150, True), (150, False)])  # fewer rows than features
@pytest.mark.parametrize("shrink", [10.0, 0.3])
def test_the_solution_is_the_optimum(n: int, gap: bool, shrink: float) -> None:
    """Against the objective written down once more, without axes, by another way to it."""
    scores, y = members(n, gap=gap)
    known = ~np.isnan(scores).all(0)
    x = np.where(np.isnan(scores), 0.25, scores)
    weight, start = np.random.default_rng(1).integers(0, 3, n).astype(float), np.array([0.9, 0.4, 0.1])
    units = {SOFT: 0.5, 1.0: 1.0}
    logs = [(np.log((x + e) / (1 + e)) * unit)[:, known] for e, unit in units.items()]
    features = np.column_stack([*logs, np.ones(n)])
    model, column = np.nonzero(known)
    first = np.zeros((features.shape[1], 4))
    first[np.arange(len(model)), column] = start[model] / units[SOFT]

    def cost(t: Array) -> tuple[float, Array]:
        b = t.reshape(first.shape)
        log_p = log_softmax(features @ b)
        slope = features.T @ (weight[:, None] * (np.exp(log_p) - np.eye(4)[y])) + shrink * (b - first)
        return float(-weight @ log_p[np.arange(n), y] + shrink / 2 * ((b - first) ** 2).sum()), slope.ravel()

    options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9}
    best = minimize(cost, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    full = Full(x, y, known, (SOFT, 1.0))
    expected = log_softmax(features @ best.x.reshape(first.shape))
    found = full.fit(weight, start, shrink)
    for t in (found, full.fit(weight, start, shrink, warm=3 * found + 0.1)):  # wherever it starts
        np.testing.assert_allclose(np.exp(full.linear(t, start).log_prob(x)), np.exp(expected), atol=5e-3)


def test_folds_judge_the_networks_that_are_fitted_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 300 rows two copies are too much work, at the 240 rows of a fold they are not."""
    scores, y = members(300, gap=True)
    tried = []

    class Spy(Full):
        def __init__(self, x: Array, y: Array, known: Array, softenings: tuple[float, ...]) -> None:
            tried.append(softenings)
            super().__init__(x, y, known, softenings)

    monkeypatch.setattr(afa, "Full", Spy)
    monkeypatch.setattr(afa, "_WORK", 270 * 9 * 4 * 2)
    get_fuser("afa").fit(scores, y)
    assert set(tried) == {(SOFT,)}


@pytest.mark.parametrize("gap", [False, True])
def test_giving_up_candidates_far_behind_changes_nothing_in_use(gap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, y = members(600, gap=gap)
    fuser = get_fuser("afa").fit(scores, y)
    worst = max(fuser.losses.values()) - min(fuser.losses.values())
    assert worst > afa._BEHIND / 600  # some are far behind
    monkeypatch.setattr(afa, "_BEHIND", np.inf)
    whole = get_fuser("afa").fit(scores, y)
    assert fuser.weights == pytest.approx(whole.weights, abs=1e-3)
    assert fuser.losses.keys() == whole.losses.keys()
    np.testing.assert_allclose(fuser.predict_proba(scores), whole.predict_proba(scores), atol=1e-3)
