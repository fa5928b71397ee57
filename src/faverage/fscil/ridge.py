"""A head of ridge regression on what all views see, and what it says of each of its examples without that example.

    minimise over W, b   Σ_i v_i ‖y_i − W z_i − b‖² + λ ‖W‖²,   v_i = 1/n_c of the class, scaled to a mean of one

with y the classes as unit vectors and z the square roots of the features (with their signs), normalised in each view,
side by side and divided by √V. Without example i, the prediction of i is y_i − α_i / C_ii (n ≤ D; C the inverse of the
bordered kernel matrix, α its product with y) or y_i − e_i / (1 − h_i) (n > D; e the residuals, h the leverages): one
solution gives them all, exactly.

Classes of few examples pull weakly: the head takes most images of new classes for base classes, and hardly ever one of
a base class for a new one. So what it says of new classes counts for much, and what it says of base classes for little:
a member for fusers that can trust it for the one kind and not for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.fscil.heads import best_temperature, unit
from faverage.fusion.arrays import softmax

__all__ = ["RidgeHead", "fit_ridge"]

Array = NDArray[Any]


@dataclass
class RidgeHead:
    """softmax(τ (W z + b)).

    Attributes:
        weight: ``(N, D)``.
        bias: ``(N,)``.
        temperature: τ.
    """

    weight: Array
    bias: Array
    temperature: float

    def scores(self, views: Sequence[Array]) -> Array:
        """Return probabilities ``(n, N)`` for features ``(n, d_v)`` of each view."""
        return softmax(self.temperature * (side_by_side(views) @ self.weight.T + self.bias))


def fit_ridge(views: Sequence[Array], labels: Array, n_classes: int, penalty: float) -> tuple[RidgeHead, Array]:
    """Return the head, and the probabilities ``(n, N)`` of each example by the head that is fitted without it.

    Args:
        views: features ``(n, d_v)`` of each view.
        labels: ``(n,)``, numbers of classes.
        n_classes: N.
        penalty: λ.
    """
    z, y = side_by_side(views).astype(np.float64), np.eye(n_classes)[labels]
    counts = 1 / np.bincount(labels, minlength=n_classes)[labels]
    weight, bias, left_out = (_dual if len(z) <= z.shape[1] else _primal)(z, y, counts / counts.mean(), penalty)
    tau = best_temperature(left_out, labels, counts)
    return RidgeHead(weight.astype(np.float32), bias.astype(np.float32), tau), softmax(tau * left_out)


def side_by_side(views: Sequence[Array]) -> Array:
    """Return z: rows of length one."""
    rows: Array = np.concatenate([unit(np.copysign(np.sqrt(np.abs(x)), x)) for x in views], 1)
    rows /= np.sqrt(len(views), dtype=rows.dtype)
    return rows


def _dual(z: Array, y: Array, v: Array, penalty: float) -> tuple[Array, Array, Array]:
    """Return W, b and left-out predictions, in time n³."""
    n = len(z)
    bordered = np.ones((n + 1, n + 1))
    bordered[:n, :n] = z @ z.T + np.diag(penalty / v)
    bordered[n, n] = 0
    inverse = np.linalg.inv(bordered)
    alpha = inverse[:n, :n] @ y
    return alpha.T @ z, inverse[n, :n] @ y, y - alpha / np.diag(inverse)[:n, None]


def _primal(z: Array, y: Array, v: Array, penalty: float) -> tuple[Array, Array, Array]:
    """Return the same, in time D³."""
    x = np.concatenate([z, np.ones((len(z), 1))], 1)
    weighted = v[:, None] * x
    inverse = np.linalg.inv(x.T @ weighted + penalty * np.diag([*np.ones(z.shape[1]), 0.0]))
    beta = inverse @ (weighted.T @ y)
    leverage = ((weighted @ inverse) * x).sum(1, keepdims=True)
    return beta[:-1].T, beta[-1], y - (y - x @ beta) / (1 - leverage)
