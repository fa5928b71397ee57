"""Proper scores of quantiles and intervals, one number a row, smaller is better; and how many intervals hold y.

``ρ_τ(e) = max(τ e, (τ − 1) e)`` is the pinball loss of ``e = y − q`` at the level τ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from faverage.errors import UserError

Array = NDArray[Any]


def check_levels(levels: ArrayLike) -> Array:
    """Return levels ``(Q,)`` as numbers, or refuse what is not strictly increasing between 0 and 1."""
    found = np.asarray(levels, dtype=np.float64)
    if found.ndim != 1 or len(found) == 0 or not ((found > 0) & (found < 1)).all() or (np.diff(found) <= 0).any():
        raise UserError(f"levels must be increasing numbers between 0 and 1, got {found.tolist()}", what="levels")
    return found


def pinball_loss(y: ArrayLike, quantiles: ArrayLike, levels: ArrayLike) -> Array:
    """Return the pinball loss ``(n, Q)`` of quantiles ``(n, Q)`` at levels ``(Q,)``, for y ``(n,)``.

    >>> pinball_loss([2.0], [[1.0, 4.0]], [0.5, 0.75])
    array([[0.5, 0.5]])
    """
    tau, q = check_levels(levels), np.asarray(quantiles, dtype=np.float64)
    error = np.asarray(y, dtype=np.float64)[:, None] - q
    if q.ndim != 2 or q.shape[1] != len(tau):
        raise UserError(f"quantiles must be (n, {len(tau)}), one column a level, got shape {q.shape}", what="quantiles")
    loss: Array = np.maximum(tau * error, (tau - 1) * error)
    return loss


def weighted_interval_score(y: ArrayLike, quantiles: ArrayLike, levels: ArrayLike) -> Array:
    """Return the weighted interval score ``(n,)`` of quantiles ``(n, Q)``: twice their mean pinball loss.

    With a median and pairs of levels α/2, 1 − α/2 this is the score of Bracher, Ray, Gneiting and Reich (2021):
    (|y − median| / 2 + Σ α/2 · interval score) / (pairs + 1/2).

    >>> weighted_interval_score([2.0], [[1.0, 4.0]], [0.5, 0.75])
    array([1.])
    """
    score: Array = 2 * pinball_loss(y, quantiles, levels).mean(1)
    return score


def interval_score(y: ArrayLike, low: ArrayLike, high: ArrayLike, coverage: float) -> Array:
    """Return the score ``(n,)`` of intervals from low to high ``(n,)`` that should hold y with probability coverage.

    It is the width, plus 2/(1 − coverage) times the distance of a y outside.

    >>> interval_score([1.0, 5.0], [0.0, 0.0], [4.0, 4.0], 0.5)
    array([4., 8.])
    """
    if not 0 < coverage < 1:
        raise UserError(f"coverage must be between 0 and 1, got {coverage}", what="coverage")
    y, low, high = (np.asarray(a, dtype=np.float64) for a in (y, low, high))
    outside = np.maximum(low - y, 0) + np.maximum(y - high, 0)
    score: Array = high - low + 2 / (1 - coverage) * outside
    return score


def coverage(y: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the part of y ``(n,)`` that lies in its interval from low to high ``(n,)``, ends included.

    >>> coverage([1.0, 5.0], [0.0, 0.0], [4.0, 4.0])
    0.5
    """
    return float(((np.asarray(y) >= np.asarray(low)) & (np.asarray(y) <= np.asarray(high))).mean())


def crps(y: ArrayLike, forecast: ArrayLike, levels: ArrayLike | None = None) -> Array:
    """Return the continuous ranked probability score ``(n,)``.

    Args:
        y: ``(n,)``.
        forecast: samples ``(n, S)``, or quantiles ``(n, Q)`` where ``levels`` are given.
        levels: ``(Q,)``; the score is then 2 ∫ ρ_τ dτ by the trapezoid rule, with the outermost losses for the tails.

    >>> samples = np.array([[0.0, 1.0, 2.0, 3.0]])
    >>> crps([1.5], samples)  # mean |x − y| − mean |x − x'| / 2
    array([0.375])
    """
    if levels is not None:
        tau = check_levels(levels)
        edges = np.concatenate([[0.0], (tau[1:] + tau[:-1]) / 2, [1.0]])
        score: Array = 2 * pinball_loss(y, forecast, tau) @ np.diff(edges)
        return score
    x = np.sort(np.asarray(forecast, dtype=np.float64), 1)
    if x.ndim != 2 or x.shape[1] == 0:
        raise UserError(f"samples must be (n, S), got shape {x.shape}", what="forecast")
    s = x.shape[1]
    spread = x @ (2 * np.arange(1, s + 1) - s - 1) / s**2  # half the mean |x − x'|
    score = np.abs(x - np.asarray(y, dtype=np.float64)[:, None]).mean(1) - spread
    return score


def quantiles_of_samples(samples: ArrayLike, levels: ArrayLike) -> Array:
    """Return quantiles ``(n, K, Q)`` of samples ``(n, K, S)``; NaN for a member with NaN in a row.

    >>> quantiles_of_samples([[[3.0, 1.0, 2.0]]], [0.25, 0.5])
    array([[[1.5, 2. ]]])
    """
    return np.moveaxis(np.quantile(np.asarray(samples, dtype=np.float64), check_levels(levels), axis=-1), 0, -1)
