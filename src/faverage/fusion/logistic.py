"""Stacking by multinomial logistic regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize

from faverage.fusion.align import pad
from faverage.fusion.arrays import Array, folds_of, learned, log_softmax, number, subsample
from faverage.fusion.base import Fuser, register_fuser
from faverage.fusion.pools import check_positive

__all__ = ["Logistic"]

_CHOOSE_WORK = 1e9  # rows x features x classes of logistic: at most this much while choosing its options,
_FIT_WORK = 1e10  # and this much in the final fit
_SMALL_WORK = 2e7  # up to this much all folds are held out in turn; above it only the first, and 100 steps a fit
_FOLDS = 5
_WIDE = 512  # more features than this are not whitened
_FLOOR = 1e-4  # share of the uniform distribution in what logistic returns

Features = Literal["p", "log", "both"]
FEATURES: tuple[Features, ...] = ("p", "log", "both")
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)


class Linear(NamedTuple):
    """A fitted logistic regression: ``classes`` ``(C,)``, ``coef`` ``(C, d)`` and ``intercept`` ``(C,)``."""

    classes: Array
    coef: Array
    intercept: Array

    def predict(self, x: Array, n_classes: int) -> Array:
        """Map features ``(n, d)`` to probabilities ``(n, N)``; a small share of them is uniform over all N classes."""
        fused = np.full((len(x), n_classes), _FLOOR / n_classes)
        fused[:, self.classes] += (1 - _FLOOR) * np.exp(log_softmax(x @ self.coef.T + self.intercept))
        return fused


@register_fuser("logistic")
@dataclass(eq=False, kw_only=True)
class Logistic(Fuser):
    """Stacking: multinomial logistic regression on the K·N scores, p = softmax(B φ(x) + b).

    φ is one of ``p``, the scores; ``log``, ln(p + 0.001); ``both``, [p, 0.2 ln(p + 0.001)]. Unknown classes count as 0;
    a model that is missing for a row says the mean of those present. φ and the inverse strength C of the L2 penalty are
    those with the smallest 5-fold weighted log-loss; for each φ, C is raised through 0.01, 0.1, 1, 10, 100 as long as
    the loss falls. A hundredth of a percent of the result is uniform, so that a class that the training labels lack is
    not impossible. Large data is thinned.

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
            return pad(self._filled(rows), "zero"), labels, weights

        self.chosen: tuple[Features, float] = self._choose(*thinned(_CHOOSE_WORK))
        rows, labels, weights = thinned(_FIT_WORK)
        x = _features(rows, self.chosen[0])
        del rows  # they may be large, and x is larger still
        self._columns: Array = _varying(x)
        if len(self._columns) < x.shape[1]:
            x = x[:, self._columns]
        regression = _Regression(x, labels, weights[None], small=len(x) * work <= _SMALL_WORK)
        self.linear = regression.fit(self.chosen[1], precise=True)[0]

    def _choose(self, rows: Array, y: Array, weight: Array) -> tuple[Features, float]:
        """Return φ and C by cross-validation; on a single row, the scores and C = 1."""
        kinds: tuple[Features, ...] = FEATURES if self.features is None else (self.features,)
        strengths = STRENGTHS if self.C is None else (self.C,)
        best, chosen = math.inf, (kinds[0], 1.0 if self.C is None else self.C)
        if len(y) == 1 or len(kinds) == len(strengths) == 1:
            return chosen
        n_folds, small = min(_FOLDS, len(y)), 2 * rows.size * rows.shape[2] <= _SMALL_WORK
        fold = folds_of(y, n_folds)
        parts = range(n_folds if small else 1)
        for kind in kinds:
            x = _features(rows, kind)
            x = x[:, _varying(x)]
            regression = _Regression(x, y, np.stack([np.where(fold != i, weight, 0.0) for i in parts]), small=small)
            last = math.inf
            for strength in strengths:
                loss = 0.0
                for i, linear in zip(parts, regression.fit(strength), strict=True):
                    test = fold == i
                    p = linear.predict(x[test], rows.shape[2])[np.arange(int(test.sum())), y[test]]
                    loss -= float(weight[test] @ np.log(p))
                if loss < best:
                    best, chosen = loss, (kind, strength)
                if loss > last:
                    break
                last = loss
        return chosen

    def _predict(self, scores: Array) -> Array:
        x = _features(pad(self._filled(scores), "zero"), self.chosen[0])
        return self.linear.predict(x[:, self._columns], scores.shape[2])

    def _state(self) -> dict[str, Any]:
        return {"chosen": list(self.chosen), "columns": self._columns, **self.linear._asdict()}

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        kind, strength = state["chosen"]
        if kind not in FEATURES:
            raise ValueError(f"'chosen' names the features {kind!r}, expected one of {FEATURES}")
        self.chosen = (kind, number(strength, "chosen", low=0))
        self._columns = _places(state, "columns", n_models * n_classes * (2 if kind == "both" else 1))
        classes = _places(state, "classes", n_classes)
        coef = learned(state, "coef", (len(classes), len(self._columns)))
        self.linear = Linear(classes, coef, learned(state, "intercept", (len(classes),)))


def _places(state: dict[str, Any], name: str, n: int) -> Array:
    """Return different whole numbers below n from a file, at least one, or raise ValueError."""
    places = state.get(name)
    if not isinstance(places, np.ndarray) or places.ndim != 1 or places.dtype != np.int64 or not len(places):
        raise ValueError(f"'{name}' must be a list of whole numbers")
    if places.min() < 0 or places.max() >= n or len(np.unique(places)) < len(places):
        raise ValueError(f"'{name}' must be different whole numbers below {n}")
    return places


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


class _Regression:
    """Logistic regressions on the same rows with F sets of weights, all in one L-BFGS.

    Each minimises the weighted sum of losses plus ‖B‖²/2C (‖B‖²/C for two classes, of which one row would do, as in
    scikit-learn). Each fit starts where the last one ended. Small problems are solved in coordinates in which the
    Hessian of each class, at that start, is about the identity: a fifth of the steps.

    Args:
        x: features ``(n, d)``.
        y: labels ``(n,)``.
        weight: ``(F, n)``; rows of weight 0 do not count.
        small: take as many steps as needed; else a hundred at most.
    """

    def __init__(self, x: Array, y: Array, weight: Array, *, small: bool) -> None:
        self.classes, self.y = np.unique(y, return_inverse=True)
        self.weight, self.small = weight, small
        self.here = np.zeros((len(self.classes), len(weight)), dtype=bool)  # which class has rows in which set
        for f, w in enumerate(weight):
            self.here[self.y[w > 0], f] = True
        self.whiten = small and x.shape[1] <= _WIDE
        self.mean = weight.sum(0) @ x / weight.sum() if self.whiten else np.zeros(x.shape[1])
        self.x = x - self.mean if self.whiten else x
        self.coef = np.zeros((*self.here.shape, x.shape[1]))
        self.intercept = np.zeros(self.here.shape)

    def fit(self, strength: float, *, precise: bool = False) -> list[Linear]:
        """Return the F regressions for C = ``strength``."""
        shape, size = self.coef.shape, self.coef.size
        penalty = np.where(self.here.sum(0) == 2, 2.0, 1.0)[:, None] / strength  # (F, 1)
        turn, lift = self._turn(strength) if self.whiten else (None, np.ones((shape[0], 1)))
        rows, scale = np.arange(len(self.x)), 1 / self.weight.sum()

        def objective(t: Array) -> tuple[float, Array]:
            inner = t[:size].reshape(shape)
            coef = inner if turn is None else np.matmul(inner, turn)
            z = self._logits(coef, t[size:].reshape(shape[:2]) * lift)
            own = z[self.y, :, rows].T
            np.exp(z, out=z)
            total = z.sum(0)
            held = penalty * coef
            loss = float((self.weight * (np.log(total) - own)).sum()) + 0.5 * float((held * coef).sum())
            z *= self.weight / total
            z[self.y, :, rows] -= self.weight.T
            gradient = (z.reshape(-1, len(self.x)) @ self.x).reshape(shape) + held
            if turn is not None:
                gradient = np.matmul(gradient, turn.transpose(0, 2, 1))
            return loss * scale, np.concatenate([gradient.ravel(), (z.sum(2) * lift).ravel()]) * scale

        start = self.coef if turn is None else np.matmul(self.coef, np.linalg.inv(turn))
        first = np.concatenate([start.ravel(), (self.intercept / lift).ravel()])
        options = {"maxiter": 1000 if self.small else 100, "ftol": 1e-9 if precise else 1e-5, "gtol": 1e-6}
        if precise and self.small:  # to the last digits: equal data in other rows or weights gives equal numbers
            options |= {"ftol": 0, "gtol": 1e-11}
        t = minimize(objective, first, jac=True, method="L-BFGS-B", options=options).x
        inner = t[:size].reshape(shape)
        self.coef = inner if turn is None else np.matmul(inner, turn)
        self.intercept = t[size:].reshape(shape[:2]) * lift
        found = []
        for f, here in enumerate(self.here.T):
            coef = self.coef[here, f]
            found.append(Linear(self.classes[here], coef, self.intercept[here, f] - coef @ self.mean))
        return found

    def _logits(self, coef: Array, intercept: Array) -> Array:
        """Return logits ``(C, F, n)``, at most 0; classes that a set lacks are ruled out."""
        z: Array = (coef.reshape(-1, coef.shape[2]) @ self.x.T).reshape(*intercept.shape, -1)
        z += np.where(self.here, intercept, -1e9)[:, :, None]
        z -= z.max(0)
        return z

    def _turn(self, strength: float) -> tuple[Array, Array]:
        """Return for each class what makes its Hessian about the identity: coefficients = inner T, intercept = inner l.

        T is ``(C, d, d)``, l ``(C, 1)``.
        """
        p = np.exp(self._logits(self.coef, self.intercept))
        p /= p.sum(0)
        spread = (self.weight * p * (1 - p)).mean(1)  # (C, n)
        gram = np.matmul(self.x.T * spread[:, None], self.x) + np.eye(self.x.shape[1]) / strength
        return np.linalg.inv(np.linalg.cholesky(gram)), 1 / np.sqrt(spread.sum(1, keepdims=True) + 1e-3)
