"""Classic learned combinations with one weight a model: the log-opinion pool and greedy selection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from faverage.fusion.align import pad
from faverage.fusion.arrays import Array, chunks, learned, log_softmax, subsample
from faverage.fusion.base import Fuser, register_fuser

__all__ = ["Greedy", "LogPool"]

_LIMIT = 1 << 24  # scores that log-pool learns from, at most
_TINY = 1e-9  # smallest probability in the loss of greedy


class Weighted(Fuser):
    """A fuser that learns one weight a model, ``weights`` of shape ``(K,)``."""

    weights: Array

    def _state(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        self.weights = learned(state, "weights", (n_models,), low=0)


@register_fuser("log-pool")
@dataclass(eq=False, kw_only=True)
class LogPool(Weighted):
    """The log-opinion pool, with one non-negative weight a model; unknown classes are padded uniformly.

        p_n ∝ Π_k (p_kn + ε)^{w_k},   w ≥ 0

    w minimises the weighted mean log-loss plus λ/2 · ‖w − 1/K‖², by L-BFGS-B from w = 1/K. The second term is small,
    but stops w from growing without end where the training rows can be separated.

    Args:
        eps: ε.
        shrink: λ.
    """

    eps: float = 1e-3
    shrink: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)
        check_positive("shrink", self.shrink)

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        scores, y, weight = subsample(scores, y, weight, _LIMIT)
        n, k, n_classes = scores.shape
        logs = np.ascontiguousarray(self._logs(scores).transpose(1, 0, 2)).reshape(k, n * n_classes)
        share = weight / weight.sum()
        rows = np.arange(n)

        def objective(w: Array) -> tuple[float, Array]:
            log_p = log_softmax((w @ logs).reshape(n, n_classes))
            residual = np.exp(log_p) * share[:, None]
            residual[rows, y] -= share
            apart = w - 1 / k
            loss = -(share @ log_p[rows, y]) + self.shrink / 2 * (apart @ apart)
            return float(loss), logs @ residual.ravel() + self.shrink * apart

        options = {"maxiter": 500, "ftol": 1e-13, "gtol": 1e-8}
        start = np.full(k, 1 / k)
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * k, options=options)
        self.weights = np.maximum(found.x, 0.0)

    def _logs(self, scores: Array) -> Array:
        logs: Array = np.log(pad(scores.astype(np.float64), "uniform") + self.eps)
        return logs

    def _predict(self, scores: Array) -> Array:
        fused: Array = np.exp(log_softmax(np.tensordot(self._logs(scores), self.weights, axes=(1, 0))))
        return fused


@register_fuser("greedy")
@dataclass(eq=False, kw_only=True)
class Greedy(Weighted):
    """Forward selection with replacement (Caruana et al., 2004): p ∝ Σ_k w_k p_k, w_k the share of model k.

    Each step adds the model that makes the weighted log-loss of the mean of the chosen ones smallest (the first of
    several); the result is the selection of the step with the smallest loss. Unknown classes are padded uniformly.

    Args:
        steps: how many models to add, counting repetitions.
    """

    steps: int = 50

    def __post_init__(self) -> None:
        if int(self.steps) != self.steps or self.steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, got {self.steps!r}")

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        hit, total = _label_scores(scores, y)
        uniform, share = 1 / scores.shape[2], weight / weight.sum()
        chosen_hit, chosen_total = np.zeros((len(y), 1)), np.zeros((len(y), 1))
        chosen: list[int] = []
        losses: list[float] = []
        for _ in range(self.steps):
            sums = chosen_total + total
            p = np.where(sums > 0, (chosen_hit + hit) / np.where(sums > 0, sums, 1.0), uniform)
            loss = -(share @ np.log(np.maximum(p, _TINY)))
            best = int(loss.argmin())
            chosen.append(best)
            losses.append(float(loss[best]))
            chosen_hit += hit[:, [best]]
            chosen_total += total[:, [best]]
        kept = chosen[: int(np.argmin(losses)) + 1]
        self.weights = np.bincount(kept, minlength=scores.shape[1]) / len(kept)

    def _predict(self, scores: Array) -> Array:
        fused: Array = np.tensordot(pad(scores, "uniform"), self.weights, axes=(1, 0))
        return fused


def _label_scores(scores: Array, y: Array) -> tuple[Array, Array]:
    """Return, uniformly padded, each model's score of the label and its sum over the classes, both ``(n, K)``."""
    hit, total = np.empty(scores.shape[:2]), np.empty(scores.shape[:2])
    for rows in chunks(scores):
        part = pad(scores[rows].astype(np.float64), "uniform")
        hit[rows] = part[np.arange(len(part)), :, y[rows]]
        total[rows] = part.sum(2)
    return hit, total


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless an option is a finite number > 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
