"""Fusing of quantiles, and the scores of quantiles."""

import re

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from faverage.errors import UserError
from faverage.forecasts import (
    QuantileFuser,
    coverage,
    crps,
    interval_score,
    pinball_loss,
    quantiles_of_samples,
    weighted_interval_score,
)
from faverage.forecasts.quantiles import _Problem, columns_of, margins
from helpers_paths import ROOT

LEVELS = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
Z = norm.ppf(LEVELS)


def forecasts(n: int = 300, seed: int = 0, wide: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles ``(n, 3, 5)`` of a good, a noisy and a biased member, and y ``(n,)``; sizes differ by row."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.normal(size=n))
    noise = rng.normal(size=(n, 3)) * [0.3, 1.0, 0.3] + [0.0, 0.0, 2.0]
    y = size * rng.normal(size=n)
    centre = y[:, None] + size[:, None] * noise
    return centre[:, :, None] + wide * (size[:, None] * [0.3, 1.0, 0.3])[:, :, None] * Z, y


class TestScores:
    def test_wis_is_the_sum_of_interval_scores(self) -> None:
        q, y = forecasts(50)
        q = q[:, 0]
        parts = np.abs(y - q[:, 2]) / 2
        for low, high, alpha in ((0, 4, 0.05), (1, 3, 0.5)):
            parts += alpha / 2 * interval_score(y, q[:, low], q[:, high], 1 - alpha)
        np.testing.assert_allclose(weighted_interval_score(y, q, LEVELS), parts / 2.5)

    def test_crps_of_a_normal_distribution(self) -> None:
        y = np.array([-1.0, 0.3, 2.0])
        exact = y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - 1 / np.sqrt(np.pi)
        levels = (np.arange(1000) + 0.5) / 1000
        quantiles = np.tile(norm.ppf(levels), (3, 1))
        np.testing.assert_allclose(crps(y, quantiles, levels), exact, atol=2e-3)
        np.testing.assert_allclose(crps(y, quantiles), exact, atol=2e-3)

    def test_coverage_counts_the_ends(self) -> None:
        assert coverage([0.0, 1.0, 2.0, 3.0], [0.0] * 4, [1.0] * 4) == 0.5

    def test_refusals(self) -> None:
        with pytest.raises(UserError, match="increasing numbers between 0 and 1"):
            pinball_loss([1.0], [[1.0, 2.0]], [0.5, 0.5])
        with pytest.raises(UserError, match=r"\(n, 2\), one column a level, got shape \(1, 1\)"):
            pinball_loss([1.0], [[1.0]], [0.1, 0.9])
        with pytest.raises(UserError, match="coverage must be between 0 and 1"):
            interval_score([1.0], [0.0], [2.0], 95)


class TestFuser:
    def test_better_than_plain_averages_and_never_crossing(self) -> None:
        z, y = forecasts()
        new, truth = forecasts(seed=1)
        z[::3, 0] = new[::5, 0] = np.nan  # the good member is often missing
        fuser = QuantileFuser(LEVELS).fit(z, y)
        fused = fuser.predict(new)
        assert fuser.weights_[0] > fuser.weights_[1:].max()
        np.testing.assert_allclose(fuser.weights_.sum() + sum(fuser.pooled_weights_.values()), 1)
        assert (np.diff(fused, axis=1) >= 0).all()
        wis = [
            weighted_interval_score(truth, q, LEVELS).mean() for q in (fused, np.nanmean(new, 1), np.nanmedian(new, 1))
        ]
        assert wis[0] < 0.9 * min(wis[1:])

    def test_weights_are_those_of_the_linear_programme(self) -> None:
        z, y = forecasts(60)
        columns, _ = columns_of(z, LEVELS)
        n, c, q = columns.shape
        problem = _Problem(columns, y, LEVELS, np.ones(n), np.zeros(n, int), [0], np.full(c, 1 / c))
        found = problem._fit(np.arange(n), 0.0, problem.centre, problem.centre)
        tau = np.tile(LEVELS, n)
        errors = np.hstack([columns.transpose(0, 2, 1).reshape(-1, c), np.eye(n * q), -np.eye(n * q)])
        simplex = np.r_[np.ones(c), np.zeros(2 * n * q)][None]
        best = linprog(
            np.r_[np.zeros(c), tau, 1 - tau], A_eq=np.vstack([errors, simplex]), b_eq=np.r_[np.repeat(y, q), 1.0]
        )
        ours = pinball_loss(y, np.einsum("ncq,c->nq", columns, found), LEVELS).sum()
        assert best.fun <= ours * (1 + 1e-9) and ours < best.fun * 1.002

    def test_groups_have_weights_of_their_own_where_that_serves(self) -> None:
        z, y = forecasts(600)
        group = np.arange(600) % 2
        z[group == 1] = z[group == 1][:, [1, 0, 2]]  # the good member is another one there
        fuser = QuantileFuser(LEVELS).fit(z, y, groups=group, dates=np.arange(600) // 20)
        assert (
            fuser.group_weights_[0][0] > fuser.group_weights_[0][1]
            and fuser.group_weights_[1][1] > fuser.group_weights_[1][0]
        )
        assert fuser.shares_["weights by group"] > 0.9
        assert fuser.predict(z[:3], groups=[0, 1, 7]).shape == (3, 5)  # group 7 is new: the weights of all
        with pytest.raises(UserError, match="groups to predict if and only if fit had them"):
            fuser.predict(z)

    def test_calibrated_intervals_have_their_coverage(self) -> None:
        z, y = forecasts(600, wide=0.3)
        new, truth = forecasts(600, seed=1, wide=0.3)
        plain, moved = (QuantileFuser(LEVELS, calibrate=c).fit(z, y).predict(new) for c in (False, True))
        held = [(coverage(truth, q[:, 1], q[:, 3]), coverage(truth, q[:, 0], q[:, 4])) for q in (plain, moved)]
        assert held[0][1] < 0.85
        np.testing.assert_allclose(held[1], (0.5, 0.95), atol=0.05)
        assert (np.diff(moved, axis=1) >= 0).all()

    def test_margins_of_a_level_without_its_mirror_image(self) -> None:
        y = np.arange(1.0, 10.0)
        found = margins(np.zeros((9, 2)), y, np.array([0.5, 0.8]), np.ones(9), np.ones(9))
        np.testing.assert_array_equal(found, [0.0, 8.0])  # the ⌈10 · 0.8⌉-th of 9

    def test_few_rows(self) -> None:
        z, y = forecasts(2)
        assert np.isfinite(QuantileFuser(LEVELS, calibrate=True).fit(z[:1], y[:1]).predict(z)).all()
        exact = np.repeat(np.repeat(y[:, None, None], 3, 1), 5, 2)
        np.testing.assert_allclose(QuantileFuser(LEVELS).fit(exact, y).predict(exact), exact[:, 0])

    def test_units_do_not_matter(self) -> None:
        z, y = forecasts(100)
        expected = QuantileFuser(LEVELS, calibrate=True).fit(z, y).predict(z)
        found = QuantileFuser(LEVELS, calibrate=True).fit(1e6 * z - 1e7, 1e6 * y - 1e7).predict(1e6 * z - 1e7)
        np.testing.assert_allclose((found + 1e7) / 1e6, expected, atol=1e-5)

    def test_samples(self) -> None:
        samples = np.random.default_rng(0).normal(size=(2, 3, 4000))
        samples[0, 1, 0] = np.nan
        found = quantiles_of_samples(samples, LEVELS)
        assert np.isnan(found[0, 1]).all()
        np.testing.assert_allclose(found[1, 2], Z, atol=0.1)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda z, y: (z[:, :, ::-1], y), "quantiles of member 0 cross in row 0"),
            (lambda z, y: (z[:, :, :4], y), r"must be \(n, K, 5\)"),
            (lambda z, y: (np.where(np.arange(len(y))[:, None, None] == 3, np.nan, z), y), "row 3 has no member"),
            (lambda z, y: (np.where(z == z.max(), np.inf, z), y), "infinite"),
            (lambda z, y: (z, y[:-1]), r"y must have one value a row, shape \(20,\), got \(19,\)"),
            (lambda z, y: (z, np.full(len(y), np.nan)), "leave out rows whose truth is not known"),
        ],
    )
    def test_refusals(self, change, said) -> None:
        with pytest.raises(UserError, match=said):
            QuantileFuser(LEVELS).fit(*change(*forecasts(20)))
        with pytest.raises(UserError, match="not fitted yet"):
            QuantileFuser(LEVELS).predict(forecasts(20)[0])


def test_the_example_of_the_docs(capsys) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/forecasts.md").read_text(), re.DOTALL)
    space: dict = {}
    exec(compile(block, "docs/forecasts.md", "exec"), space)
    y, z = space["y"][space["new"]], space["z"][space["new"]]
    ours, *others = (
        weighted_interval_score(y, q, space["levels"]).mean()
        for q in (space["fused"], z.mean(1), *z.transpose(1, 0, 2))
    )
    assert round(ours, 1) == 2.8 and round(min(others), 1) == 2.9 and round(others[0], 1) == 4.1
    assert round(coverage(y, space["fused"][:, 0], space["fused"][:, -1]), 2) == 0.97
    assert capsys.readouterr().out
