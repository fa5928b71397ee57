"""Stacking by multinomial logistic regression."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from faverage.align import pad
from faverage.fusion.arrays import Array, folds_of, log_softmax, subsample
from faverage.fusion.base import Fuser, register_fuser
from faverage.fusion.pools import check_positive

__all__ = ["Logistic"]

_CHOOSE_WORK = 1e9  # rows x features x classes of logistic: at most this much while choosing its options,
_FIT_WORK = 1e10  # and this much in the final fit
_SMALL_WORK = 2e7  # up to this much all folds are held out in turn; above it only the first, and 100 steps a fit
_FOLDS = 5
_FLOOR = 1e-4  # share of the uniform distribution in what logistic returns

Features = Literal["p", "log", "both"]
FEATURES: tuple[Features, ...] = ("p", "log", "both")
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)


class Linear(NamedTuple):
    """A fitted logistic regression: for each of its ``classes`` a row of ``coef`` and an entry of ``intercept``."""

    classes: Array
    coef: Array
    intercept: Array

    def predict(self, x: Array, n_classes: int) -> Array:
        """Map features to probabilities ``(n, N)``; a small share of them is uniform over all N classes."""
        fused = np.full((len(x), n_classes), _FLOOR / n_classes)
        fused[:, self.classes] += (1 - _FLOOR) * np.exp(log_softmax(x @ self.coef.T + self.intercept))
        return fused


@register_fuser("logistic")
@dataclass(eq=False, kw_only=True)
class Logistic(Fuser):
    """Stacking: multinomial logistic regression on the K·N scores, p = softmax(B φ(x) + b).

    φ is one of ``p``, the scores; ``log``, ln(p + 0.001); ``both``, [p, 0.2 ln(p + 0.001)]. Unknown classes count as 0.
    φ and the inverse strength C of the L2 penalty are those with the smallest 5-fold weighted log-loss; for each φ, C
    is raised through 0.01, 0.1, 1, 10, 100 as long as the loss falls. A hundredth of a percent of the result is
    uniform, so that a class that the training labels lack is not impossible. Large data is thinned.

    Args:
        features: φ; None chooses.
        C: inverse strength of the penalty; None chooses.

    Attributes:
        chosen: φ and C of the fitted model.
        linear: its coefficients.
    """

    features: Features | None = None
    C: float | None = None

    def __post_init__(self) -> None:
        if self.features not in (None, *FEATURES):
            raise ValueError(f"features must be one of {FEATURES} or None, got {self.features!r}")
        if self.C is not None:
            check_positive("C", self.C)

    def settled(self) -> dict[str, Any]:
        """Return φ and C."""
        return dict(zip(("features", "C"), self.chosen, strict=True))

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        _, k, n_classes = scores.shape
        work = 2 * k * n_classes**2

        def thinned(most_work: float) -> tuple[Array, Array, Array]:
            n_rows = int(max(most_work // work, _FOLDS * n_classes))
            rows, labels, weights = subsample(scores, y, weight, n_rows * k * n_classes)
            return pad(rows.astype(np.float64), "zero"), labels, weights

        self.chosen: tuple[Features, float] = self._choose(*thinned(_CHOOSE_WORK))
        rows, labels, weights = thinned(_FIT_WORK)
        x = _features(rows, self.chosen[0])
        del rows  # they may be large, and x is larger still
        self._columns: Array = _varying(x)
        if len(self._columns) < x.shape[1]:
            x = x[:, self._columns]
        self.linear = _regress(_model(len(x) * work), x, labels, weights, self.chosen[1])

    def _choose(self, rows: Array, y: Array, weight: Array) -> tuple[Features, float]:
        """Return φ and C by cross-validation; on a single row, the scores and C = 1."""
        kinds: tuple[Features, ...] = FEATURES if self.features is None else (self.features,)
        strengths = STRENGTHS if self.C is None else (self.C,)
        best, chosen = math.inf, (kinds[0], 1.0 if self.C is None else self.C)
        if len(y) == 1 or len(kinds) == len(strengths) == 1:
            return chosen
        n_folds, work = min(_FOLDS, len(y)), 2 * rows.size * rows.shape[2]
        fold = folds_of(y, n_folds)
        for kind in kinds:
            x = _features(rows, kind)
            x = x[:, _varying(x)]
            models = [_model(work) for _ in range(n_folds if work <= _SMALL_WORK else 1)]
            last = math.inf
            for strength in strengths:
                loss = 0.0
                for i, model in enumerate(models):
                    train, test = fold != i, fold == i
                    linear = _regress(model, x[train], y[train], weight[train], strength)
                    p = linear.predict(x[test], rows.shape[2])[np.arange(int(test.sum())), y[test]]
                    loss -= float(weight[test] @ np.log(p))
                if loss < best:
                    best, chosen = loss, (kind, strength)
                if loss > last:
                    break
                last = loss
        return chosen

    def _predict(self, scores: Array) -> Array:
        x = _features(pad(scores, "zero"), self.chosen[0])
        return self.linear.predict(x[:, self._columns], scores.shape[2])

    def _state(self) -> dict[str, Any]:
        return {"chosen": list(self.chosen), "columns": self._columns, **self.linear._asdict()}

    def _set_state(self, state: dict[str, Any]) -> None:
        kind, strength = state["chosen"]
        self.chosen, self._columns = (kind, strength), state["columns"]
        self.linear = Linear(state["classes"], state["coef"], state["intercept"])


def _features(rows: Array, kind: Features) -> Array:
    """Return φ ``(n, K·N)``, or ``(n, 2·K·N)`` for both, of scores without NaN."""
    flat = rows.reshape(len(rows), -1)
    if kind == "p":
        return flat
    logs: Array = np.log(flat + 1e-3)
    return logs if kind == "log" else np.concatenate([flat, 0.2 * logs], 1)


def _varying(x: Array) -> Array:
    """Return the columns that are not constant, and the first where all are."""
    columns = np.flatnonzero(x.max(0) > x.min(0))
    return columns if len(columns) else np.zeros(1, dtype=np.int64)


def _model(work: float) -> Any:
    """Return an unfitted model that will start each fit where its last one ended."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(warm_start=True, max_iter=1000 if work <= _SMALL_WORK else 100)


def _regress(model: Any, x: Array, y: Array, weight: Array, strength: float) -> Linear:
    """Fit; that the last digits are missing when the iterations are used up is no reason to warn."""
    from sklearn.exceptions import ConvergenceWarning

    classes = np.unique(y)
    if len(classes) == 1:
        return Linear(classes, np.zeros((1, x.shape[1])), np.zeros(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(C=strength).fit(x, y, sample_weight=weight)
    coef, intercept = model.coef_, model.intercept_
    if len(classes) == 2:  # one row, the logit of the second class
        coef, intercept = np.concatenate([0 * coef, coef]), np.concatenate([0 * intercept, intercept])
    return Linear(classes, coef.copy(), intercept.copy())
