"""Weights of the arithmetic mean for regression: on the simplex, with a scale and a constant, or of any sign.

Targets t and predictions z are brought to mean 0 and variance 1 of the target. With ω the sample weights, whose mean is
1, and 1/K the plain mean, w and c minimise

    Σ_i ω_i ( c + w · z_i − t_i )²  +  λ σ² | w − 1/K |²

where σ² is the mean squared error of the best member, given a scale and a constant of its own:

- simplex: w ≥ 0, Σ w = 1, c = 0: a prediction never leaves the range of the members;
- affine: w ≥ 0: an average on the simplex, times a scale Σ w, and a constant c;
- signed: any w and c: members may count against others, and the scale is free. This leaves the simplex.

All of it depends on the rows by sums of products alone, so that folds cost next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[Any]
SIMPLEX, AFFINE, SIGNED = "simplex", "affine", "signed"
STRENGTHS = (3125.0, 625.0, 125.0, 25.0, 5.0, 1.0)  # λ
_FOLDS = 5
NO_ERROR = 1e-10  # of the variance of the target: smaller errors are all the same
_ROUNDING = 1e-10


@dataclass(frozen=True)
class Candidate:
    """One way to fuse, fitted to everything.

    Attributes:
        kind: ``simplex``, ``affine`` or ``signed``; ``means`` where it is a network of several means.
        strength: its λ.
        loss: mean squared error on held-out rows, as a part of the variance of the target.
        weights: ``(K,)``; of a network ``(1,)``, its scale.
        constant: c, in the units of the target.
    """

    kind: str
    strength: float
    loss: float
    weights: Array
    constant: float = 0.0


def folds_of(n: int) -> Array:
    """Return the fold ``(n,)`` of each row; rows are sorted by target and dealt in turn."""
    return np.arange(n) % min(_FOLDS, n)


def centre_and_scale(y: Array, weight: Array) -> tuple[float, float]:
    """Return mean and standard deviation of targets ``(n,)``; a deviation that is rounding is called 1."""
    centre = float(weight @ y / weight.sum())
    scale = float(np.sqrt(weight @ (y - centre) ** 2 / weight.sum()))
    size = float(np.abs(y).max())
    return centre, scale if scale > 1e-12 * size else (size or 1.0)


def fit_linear(values: Array, y: Array, weight: Array, *, keep_range: bool = False) -> list[Candidate]:
    """Fit all kinds for all λ, each judged on held-out folds; of one row there is no loss.

    Args:
        values: predictions ``(n, K)``.
        y: targets ``(n,)``, sorted.
        weight: ``(n,)``, positive, with mean 1.
        keep_range: fit the simplex only.
    """
    n, k = values.shape
    centre, scale = centre_and_scale(y, weight)
    z, t = (values - centre) / scale, (y - centre) / scale
    offset = np.median(z, 0)  # taken off the members: products of a large one would drown all else
    x = np.concatenate([z - offset, np.ones((n, 1)), t[:, None]], 1)
    fold = folds_of(n)
    parts = np.stack([(x[fold == f].T * weight[fold == f]) @ x[fold == f] for f in range(int(fold.max()) + 1)])
    others = ~np.eye(len(parts), dtype=bool) if n > 1 else np.ones((1, 1), dtype=bool)  # one row: nothing to hold out
    every = np.stack([parts.sum(0), *(parts[rest].sum(0) for rest in others)])
    unit = max(_least_error(every[0]) / n, NO_ERROR)

    found = []
    for kind in (SIMPLEX,) if keep_range else (SIMPLEX, AFFINE, SIGNED):
        for strength in STRENGTHS:
            solutions = _solve(kind, every, strength * unit, offset)
            loss = float(_sums_of_squares(parts, solutions[1:]).sum()) / n
            weights = solutions[0, :k]
            constant = scale * (solutions[0, k] - weights @ offset) + centre * (1 - weights.sum())
            constant = 0.0 if kind == SIMPLEX else float(constant)
            found.append(Candidate(kind, strength, max(loss, NO_ERROR), weights, constant))
    return found


def simplex_weights(errors: Array) -> Array:
    """Return the w ``(B, K)`` on the simplex with the least wᵀEw, for positive definite E ``(B, K, K)``.

    By the conditions of optimality it is a multiple of the u ≥ 0 with the least uᵀEu − 2 Σ u.
    """
    weights = _minimise(errors, np.ones(errors.shape[:2]))
    scaled: Array = weights / weights.sum(1, keepdims=True)
    return scaled


def _sums_of_squares(products: Array, solutions: Array) -> Array:
    """Return Σ ω (c + w · z − t)² ``(B,)`` of solutions ``(B, K + 1)`` for products ``(B, K + 2, K + 2)``."""
    errors = np.concatenate([solutions, np.full((len(solutions), 1), -1.0)], 1)
    sums: Array = np.einsum("bi,bij,bj->b", errors, products, errors)
    return sums


def _solve(kind: str, products: Array, shrink: float, offset: Array) -> Array:
    """Return w and c ``(B, K + 1)`` for products ``(B, K + 2, K + 2)`` of z without its offset ``(K,)``, 1 and t."""
    k = len(offset)
    if kind == SIMPLEX:  # there the error w · z − t is w · (z − t)
        errors = np.concatenate([np.eye(k), offset[:, None], np.full((k, 1), -1.0)], 1)
        weights = simplex_weights(errors @ products @ errors.T + shrink * np.eye(k))
        return np.column_stack([weights, weights @ offset])
    gram, right, mean, target = _centred(products)
    weights = _minimise(gram + shrink * np.eye(k), right + shrink / k, non_negative=kind == AFFINE)
    return np.column_stack([weights, target - (mean * weights).sum(1)])


def _centred(products: Array) -> tuple[Array, Array, Array, Array]:
    """Return the products without what a constant takes up, ``(B, K, K)`` and ``(B, K)``; the means of z and of t."""
    sums = products[:, -2]
    n, own = sums[:, -2:-1], sums[:, :-2]
    gram = products[:, :-2, :-2] - own[:, :, None] * own[:, None] / n[:, None]
    return gram, products[:, :-2, -1] - own * sums[:, -1:] / n, own / n, sums[:, -1] / n[:, 0]


def _least_error(products: Array) -> float:
    """Return the least sum of squares of a single member with a scale and a constant, for ``(K + 2, K + 2)``."""
    (gram,), (right,), _, (target,) = _centred(products[None])
    variances, n = np.diag(gram), products[-2, -2]
    flat = variances <= 1e-12 * np.diag(products)[: len(gram)]
    explained = np.where(flat, 0.0, right**2 / np.where(flat, 1.0, variances))
    return float(products[-1, -1] - n * target**2 - explained.max())


def _minimise(gram: Array, right: Array, *, non_negative: bool = True) -> Array:
    """Return w ``(B, K)`` with the least wᵀGw − 2 wᵀr, for G ``(B, K, K)`` of any scales, which may be singular."""
    scale = np.sqrt(np.maximum(np.diagonal(gram, 0, 1, 2), _ROUNDING * NO_ERROR))
    values, vectors = np.linalg.eigh(gram / (scale[:, :, None] * scale[:, None]))
    roots = np.sqrt(np.maximum(values, _ROUNDING))
    target = (vectors.transpose(0, 2, 1) @ (right / scale)[:, :, None])[:, :, 0] / roots
    if non_negative:
        factors = (vectors * roots[:, None]).transpose(0, 2, 1)
        weights = np.stack([nnls(*pair)[0] for pair in zip(factors, target, strict=True)])
    else:
        weights = (vectors @ (target / roots)[:, :, None])[:, :, 0]
    scaled: Array = weights / scale
    return scaled
