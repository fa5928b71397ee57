"""Classifier heads on frozen features ``(n, d)``: the linear head of the base session, and nearest prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from faverage.fusion.arrays import softmax

__all__ = ["CosineHead", "LinearHead", "PrototypeHead", "Scorer", "scores_by", "unit"]

Array = NDArray[Any]


def unit(features: Array) -> Array:
    """Scale rows to length one (rows of zeros stay)."""
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    return np.asarray(features / np.where(length > 0, length, 1.0))


@dataclass
class LinearHead:
    """softmax(W f + b) on features as the backbone gives them: the base session's own classifier.

    Attributes:
        weight: ``(C, d)``.
        bias: ``(C,)``.
    """

    weight: Array
    bias: Array

    @property
    def n_classes(self) -> int:
        """C; the head knows the first C classes."""
        return len(self.weight)

    def scores(self, features: Array) -> Array:
        """Return probabilities ``(n, C)``."""
        return softmax(features @ self.weight.T + self.bias)


@dataclass
class CosineHead:
    """softmax(s cos(f, w_c)): the base classifier of a network that was trained with a cosine head.

    Attributes:
        weight: ``(C, d)``.
        scale: s.
    """

    weight: Array
    scale: float

    @property
    def n_classes(self) -> int:
        """C; the head knows the first C classes."""
        return len(self.weight)

    def scores(self, features: Array) -> Array:
        """Return probabilities ``(n, C)``."""
        return softmax(self.scale * unit(features) @ unit(self.weight).T)


@dataclass
class PrototypeHead:
    """Nearest prototypes as probabilities: softmin(τ ‖z − z̄_c‖²) with z = f/‖f‖ (equations 10–13 of the paper).

    Attributes:
        prototypes: ``(C, d)``, means of normalised features, not normalised again.
        temperature: τ.
        first: the class of the first prototype; the head knows the classes from there on.
    """

    prototypes: Array
    temperature: float
    first: int = 0

    @property
    def n_classes(self) -> int:
        """The number of classes up to the last one that the head knows."""
        return self.first + len(self.prototypes)

    def distances(self, features: Array) -> Array:
        """Return squared distances ``(n, C)`` of normalised features to the prototypes."""
        z = unit(features)
        squared = (z**2).sum(1, keepdims=True) + (self.prototypes**2).sum(1) - 2 * z @ self.prototypes.T
        return np.asarray(np.maximum(squared, 0.0))

    def scores(self, features: Array, own: tuple[Array, Array] | None = None) -> Array:
        """Return probabilities ``(n, C)``.

        Args:
            features: ``(n, d)``.
            own: classes ``(n,)``, and for each row the prototype ``(n, d)`` that stands for that class there; NaN where
                it is the usual one.
        """
        distances = self.distances(features)
        if own is not None:
            columns = own[0] - self.first
            inside = (columns >= 0) & (columns < distances.shape[1])
            rows = np.flatnonzero(inside & np.isfinite(own[1][:, 0]))
            distances[rows, columns[rows]] = ((unit(features[rows]) - own[1][rows]) ** 2).sum(1)
        return softmax(-self.temperature * distances)


Scorer = LinearHead | CosineHead | PrototypeHead


def scores_by(
    heads: Sequence[Scorer], features: Array, n_classes: int, own: tuple[Array, Array] | None = None
) -> Array:
    """Return what heads say of features: ``(n, K, N)``, NaN for classes that a head does not know.

    Args:
        heads: K of them.
        features: ``(n, d)``.
        n_classes: N.
        own: see ``PrototypeHead.scores``.
    """
    scores = np.full((len(features), len(heads), n_classes), np.nan, dtype=np.float32)
    for k, head in enumerate(heads):
        if isinstance(head, PrototypeHead):
            scores[:, k, head.first : head.n_classes] = head.scores(features, own)
        else:
            scores[:, k, : head.n_classes] = head.scores(features)
    return scores


def learn_temperature(head: PrototypeHead, features: Array, labels: Array) -> float:
    """Return the τ in 1 … 256 that minimises Σ log-loss + 5 (log τ/16)² of ``head`` on labelled features.

    The second term keeps τ near 16 where a small memory is separated without a mistake and would have it grow for ever.
    """
    return best_temperature(-head.distances(features), labels - head.first, np.ones(len(labels)), prior=5)


def best_temperature(logits: Array, labels: Array, weight: Array, *, prior: float = 0.0) -> float:
    """Return the τ in 1 … 256 that minimises Σ weight · log-loss of softmax(τ logits) + prior (log τ/16)²."""
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(labels))

    def loss(log_tau: float) -> float:
        z = np.exp(log_tau) * logits
        z -= z.max(1, keepdims=True)
        losses = np.log(np.exp(z).sum(1)) - z[rows, labels]
        return float((weight * losses).sum() + prior * (log_tau - np.log(16)) ** 2)

    found = minimize_scalar(loss, bounds=(0.0, float(np.log(256))), method="bounded", options={"xatol": 1e-3})
    return float(np.exp(found.x))


def calibrated(new: Array, base: Array, *, share: float, sharpness: float = 16.0) -> Array:
    """Return prototypes ``(m, d)`` of new classes, drawn towards those ``(C, d)`` of similar base classes.

    (1 − share) z̄ + share Σ_b a_b z̄_b,   a = softmax of sharpness · cosine. A mean of few shots is off at random; what
    it has in common with many well known classes is not.
    """
    if share == 0:
        return new
    weights = softmax(sharpness * unit(new) @ unit(base).T)
    return np.asarray((1 - share) * new + share * weights @ base, dtype=new.dtype)


def as_head(head: tuple[ArrayLike, ArrayLike] | CosineHead) -> LinearHead | CosineHead:
    """Return W and b as a head; a head stays as it is."""
    if isinstance(head, CosineHead):
        return head
    return LinearHead(np.asarray(head[0], dtype=np.float32), np.asarray(head[1], dtype=np.float32))


def fit_head(features: Array, numbers: Array, n_classes: int) -> LinearHead:
    """Return a linear softmax head, fitted by logistic regression."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=500).fit(features, numbers)
    weight, bias = model.coef_, model.intercept_
    if n_classes == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return LinearHead(weight.astype(np.float32), bias.astype(np.float32))
