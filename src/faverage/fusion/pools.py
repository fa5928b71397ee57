"""Classic learned combinations with one weight a model: by performance, the log-opinion pool and greedy selection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from faverage.fusion.align import pad
from faverage.fusion.arrays import Array, chunks, learned, log_softmax, subsample
from faverage.fusion.base import Fuser, register_fuser

__all__ = ["Greedy", "LogPool", "Performance"]

_LIMIT = 1 << 24  # scores that log-pool learns from, at most
_TINY = 1e-9  # smallest probability in the loss of greedy
_LEAST = 1e-6  # weight of a model no better than chance: it decides only about classes that no better one knows


class Weighted(Fuser):
    """A fuser that learns one weight a model, ``weights`` of shape ``(K,)``."""

    weights: Array

    def _state(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        self.weights = learned(state, "weights", (n_models,), low=0)


@register_fuser("performance")
@dataclass(eq=False, kw_only=True)
class Performance(Weighted):
    """The mean with a weight for each model by its own accuracy on the labelled rows: its log-odds above chance.

        p_n ∝ Σ_{k in M_n} w_k x_kn / Σ_{k in M_n} w_k,   w_k ∝ max(ln(a_k / (1 − a_k)) + ln(N_k − 1), 0.000001)

    M_n are the models that know class n, as in the plain means. a_k = (h_k + 1) / (n_k + N_k) where model k, which
    knows N_k classes, is right in h_k of the n_k rows that it answers and whose class it knows (by Laplace's rule of
    succession; of m classes that share the highest score each counts 1/m). Log-odds weight the votes of independent
    models best (Nitzan & Paroush, 1982), and are those of AdaBoost (Freund & Schapire, 1997; for more than two classes
    Zhu et al., 2009); to average by accuracy is the idea of Opitz & Shavlik (1996).

    >>> right, wrong = [0.8, 0.2], [0.4, 0.6]
    >>> Performance().fit([[right, right], [right, right], [right, wrong]], [0, 0, 0]).weights.round(3)
    array([0.774, 0.226])
    """

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        n_known = np.maximum(np.asarray(self._known).sum(1), 2)  # one class alone is no choice: as if of two
        right, judged = np.zeros(scores.shape[1]), np.zeros(scores.shape[1])
        for rows in chunks(scores):
            part = np.nan_to_num(scores[rows].astype(np.float64), nan=-1.0)
            top = part.max(2, keepdims=True)
            own = part[np.arange(len(part)), :, y[rows]]
            right += weight[rows] @ np.where((own == top[:, :, 0]) & (own >= 0), 1 / (part == top).sum(2), 0.0)
            judged += weight[rows] @ (own >= 0)
        accuracy = (right + 1) / (judged + n_known)
        odds = np.maximum(np.log(accuracy / (1 - accuracy)) + np.log(n_known - 1), _LEAST)
        self.weights = odds / odds.sum()

    def _predict(self, scores: Array) -> Array:
        weight = np.where(np.isnan(scores), 0.0, self.weights[:, None])
        total = weight.sum(1)
        fused: Array = (weight * np.nan_to_num(scores)).sum(1) / np.where(total > 0, total, 1.0)
        return fused


@register_fuser("log-pool")
@dataclass(eq=False, kw_only=True)
class LogPool(Weighted):
    """The log-opinion pool, with one non-negative weight a model; unknown classes are padded uniformly.

    A model that is missing for a row says the mean of those present.

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
        logs: Array = np.log(pad(self._filled(scores), "uniform") + self.eps)
        return logs

    def _predict(self, scores: Array) -> Array:
        fused: Array = np.exp(log_softmax(np.tensordot(self._logs(scores), self.weights, axes=(1, 0))))
        return fused


@register_fuser("greedy")
@dataclass(eq=False, kw_only=True)
class Greedy(Weighted):
    """Forward selection with replacement (Caruana et al., 2004): p ∝ Σ_k w_k p_k, w_k the share of model k.

    Each step adds the model that makes the weighted log-loss of the mean of the chosen ones smallest (the first of
    several); the result is the selection of the step with the smallest loss. Unknown classes are padded uniformly; a
    model that is missing for a row says the mean of those present.

    Args:
        steps: how many models to add, counting repetitions.
    """

    steps: int = 50

    def __post_init__(self) -> None:
        if int(self.steps) != self.steps or self.steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, got {self.steps!r}")

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        hit, total = self._label_scores(scores, y)
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
        fused: Array = np.tensordot(pad(self._filled(scores), "uniform"), self.weights, axes=(1, 0))
        return fused

    def _label_scores(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """Return, uniformly padded, each model's score of the label and its sum over the classes, both ``(n, K)``."""
        hit, total = np.empty(scores.shape[:2]), np.empty(scores.shape[:2])
        for rows in chunks(scores):
            part = pad(self._filled(scores[rows]), "uniform")
            hit[rows] = part[np.arange(len(part)), :, y[rows]]
            total[rows] = part.sum(2)
        return hit, total


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless an option is a finite number > 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
