"""Classifier heads on frozen features: the base session's own, nearest prototypes, and ridge regression on all views.

The ridge regression says of each of its examples, too, what it would say without that example:

    minimise over W, b   Σ_i v_i ‖y_i − W z_i − b‖² + λ ‖W‖²,   v_i = 1/n_c of the class, scaled to a mean of one

with y the classes as unit vectors and z the square roots of the features (with their signs), normalised in each view,
side by side and divided by √V. Without example i, the prediction of i is y_i − α_i / C_ii (n ≤ D; C the inverse of the
bordered kernel matrix, α its product with y) or y_i − e_i / (1 − h_i) (n > D; e the residuals, h the leverages): one
solution gives them all, exactly.

A class of m examples is then known from m − 1, less well than it will be to a new image: a new example lies at a
squared distance of σ² (1 + 1/m) from the mean of m in expectation, and one of the m at σ² (1 + 1/(m − 1)) from that of
the others. Moved towards it, to s times that mean and 1 − s times the example itself with s² = 1 − 1/m², it is at the
former. So s times the prediction without example i, and 1 − s times that with it, stand for those of a new example.

Classes of few examples pull weakly: it takes most images of new classes for base classes, and hardly ever one of a base
class for a new one. So what it says of new classes counts for much, and what it says of base classes for little: a
member for fusers that can trust it for the one kind and not for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from faverage.fusion.arrays import softmax

if TYPE_CHECKING:
    from faverage.vision import BaseModel

__all__ = ["CosineHead", "LinearHead", "PrototypeHead", "RidgeHead", "fit_ridge", "unit"]

Array = NDArray[Any]


def unit(features: Array) -> Array:
    """Scale rows ``(n, d)`` to length one (rows of zeros stay)."""
    length = np.linalg.norm(features, axis=-1, keepdims=True)
    return np.asarray(features / np.where(length > 0, length, 1.0))


def unit_roots(features: Array) -> Array:
    """Scale the square roots of rows ``(n, d)``, with their signs, to length one: large values count for less."""
    return unit(np.copysign(np.sqrt(np.abs(features)), features))


@dataclass
class LinearHead:
    """softmax(W f + b) on features as the backbone gives them: the base session's own classifier.

    Attributes:
        weight: ``(C, d)``.
        bias: ``(C,)``.

    >>> LinearHead(np.eye(2), np.zeros(2)).scores(np.array([[3.0, 0.0]])).round(2)
    array([[0.95, 0.05]])
    """

    weight: Array
    bias: Array

    @property
    def n_classes(self) -> int:
        """C; the head knows the first C classes."""
        return len(self.weight)

    def scores(self, features: Array) -> Array:
        """Return probabilities ``(n, C)`` of features ``(n, d)``."""
        return softmax(features @ self.weight.T + self.bias)

    def of_rows(self, rows: Array) -> LinearHead:
        """Return the head of some of the classes, a mask ``(C,)``."""
        return LinearHead(self.weight[rows], self.bias[rows])


@dataclass
class CosineHead:
    """softmax(s cos(f, w_c)): the base classifier of a network that was trained with a cosine head.

    Attributes:
        weight: ``(C, d)``.
        scale: s.
        whitened: whether it is of features as prototypes see them, where a learner whitens, see ``Whitening``; a head
            that was trained with its network is not.

    >>> CosineHead(np.eye(2), scale=5.0).scores(np.array([[3.0, 0.0]])).round(2)
    array([[0.99, 0.01]])
    """

    weight: Array
    scale: float
    whitened: bool = False

    @property
    def n_classes(self) -> int:
        """C; the head knows the first C classes."""
        return len(self.weight)

    def scores(self, features: Array) -> Array:
        """Return probabilities ``(n, C)`` of features ``(n, d)``."""
        return softmax(self.scale * unit(features) @ unit(self.weight).T)

    def of_rows(self, rows: Array) -> CosineHead:
        """Return the head of some of the classes, a mask ``(C,)``."""
        return CosineHead(self.weight[rows], self.scale, self.whitened)


@dataclass
class PrototypeHead:
    """Nearest prototypes as probabilities: softmin(τ ‖z − z̄_c‖²) with z = f/‖f‖ (equations 10–13 of the paper).

    Attributes:
        prototypes: ``(C, d)``, means of normalised features, not normalised again.
        temperature: τ.

    >>> PrototypeHead(np.eye(2), temperature=1.0).scores(np.array([[3.0, 0.0]])).round(2)
    array([[0.88, 0.12]])
    """

    prototypes: Array
    temperature: float

    def distances(self, features: Array, own: tuple[Array, Array] | None = None) -> Array:
        """Return squared distances ``(n, C)`` of normalised features to the prototypes.

        Args:
            features: ``(n, d)``.
            own: rows of the prototypes ``(n,)``, and for each example the prototype ``(n, d)`` that takes the place of
                that one there; NaN where it is the usual one. Rows below 0 are of no prototype here.
        """
        z = unit(features)
        squared = (z**2).sum(1, keepdims=True) + (self.prototypes**2).sum(1) - 2 * z @ self.prototypes.T
        distances = np.asarray(np.maximum(squared, 0.0))
        if own is not None:
            rows = np.flatnonzero((own[0] >= 0) & np.isfinite(own[1][:, 0]))
            distances[rows, own[0][rows]] = ((z[rows] - own[1][rows]) ** 2).sum(1)
        return distances

    def scores(self, features: Array, own: tuple[Array, Array] | None = None) -> Array:
        """Return probabilities ``(n, C)``; see ``distances`` for the arguments."""
        return softmax(-self.temperature * self.distances(features, own))


def learn_temperature(
    head: PrototypeHead, features: Array, labels: Array, own: tuple[Array, Array] | None = None
) -> float:
    """Return the τ in 1 … 256 that minimises Σ log-loss + 5 (log τ/16)² of ``head`` on labelled features ``(n, d)``.

    The second term keeps τ near 16 where a small memory is separated without a mistake and would have it grow for ever.
    """
    return best_temperature(-head.distances(features, own), labels, np.ones(len(labels)), prior=5)


def best_temperature(logits: Array, labels: Array, weight: Array, *, prior: float = 0.0) -> float:
    """Return the τ in 1 … 256 that minimises Σ weight · log-loss of softmax(τ logits) + prior (log τ/16)².

    Logits are ``(n, N)``, labels and weights ``(n,)``.
    """
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


def as_head(head: tuple[ArrayLike, ArrayLike] | LinearHead | CosineHead) -> LinearHead | CosineHead:
    """Return W ``(C, d)`` and b ``(C,)`` as a head; a head stays as it is."""
    if isinstance(head, LinearHead | CosineHead):
        return head
    return LinearHead(np.asarray(head[0], dtype=np.float32), np.asarray(head[1], dtype=np.float32))


def fit_head(features: Array, numbers: Array, n_classes: int) -> LinearHead:
    """Return a linear softmax head for features ``(n, d)`` and numbers of classes ``(n,)``, by logistic regression."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=500).fit(features, numbers)
    weight, bias = model.coef_, model.intercept_
    if n_classes == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return LinearHead(weight.astype(np.float32), bias.astype(np.float32))


def base_heads(model: BaseModel, views: Sequence[str]) -> dict[str, LinearHead | CosineHead]:
    """Return the base head of each view, by name; for those of other pools than the mean none was trained.

    A rotated view has that of its rotation, where the network learned them. Nor has a network a trained head whose
    weights were averaged, or are as it was given them.
    """
    from faverage.vision import get_views, rotation_heads

    if model.config.get("head", {}).get("means"):
        return {}
    own = {name: view for name, view in zip(views, get_views(views), strict=True) if not view.pooled}
    if model.head == "linear":
        assert model.head_bias is not None
        head = LinearHead(model.head_weight.detach().numpy(), model.head_bias.detach().numpy())
        return dict.fromkeys(own, head)
    weights = rotation_heads(model) if model.config["head"].get("rotations") else [model.head_weight] * 4
    scale = float(model.scale or 1.0)
    return {name: CosineHead(weights[view.rotation // 90].detach().numpy(), scale) for name, view in own.items()}


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
        return softmax(self.temperature * self.outputs(views))

    def outputs(self, views: Sequence[Array]) -> Array:
        """Return W z + b ``(n, N)``: about 1 for the class of an example, and 0 for the others."""
        return np.asarray(side_by_side(views) @ self.weight.T + self.bias)


def fit_ridge(
    views: Sequence[Array],
    labels: Array,
    n_classes: int,
    penalty: float,
    anchors: tuple[Sequence[Array], Array] | None = None,
) -> tuple[RidgeHead, Array]:
    """Return the head, and the outputs ``(n, N)`` that each example would have, were it new.

    Args:
        views: features ``(n, d_v)`` of each view.
        labels: ``(n,)``, numbers of classes.
        n_classes: N.
        penalty: λ.
        anchors: means of further examples, ``(C, d_v)`` of each view, and their classes ``(C,)``: each counts as one
            more example.
    """
    n, seen, classes = len(labels), views, labels
    if anchors is not None:
        seen = [np.concatenate([x, means]) for x, means in zip(views, anchors[0], strict=True)]
        classes = np.concatenate([labels, anchors[1]])
    z, y = side_by_side(seen), np.eye(n_classes)[classes]
    counts = np.bincount(classes, minlength=n_classes)[classes]
    v = 1 / counts
    weight, bias, left_out = (_dual if len(z) <= z.shape[1] else _primal)(z, y, v / v.mean(), penalty)
    head = RidgeHead(weight.astype(np.float32), bias.astype(np.float32), 1.0)
    s = np.sqrt(1 - np.where(counts > 1, 1 / counts**2, 0.0))[:n, None]  # of one example nothing is left without it
    as_new = s * left_out[:n] + (1 - s) * (z[:n] @ head.weight.T + head.bias)
    head.temperature = best_temperature(as_new, labels, v[:n])
    return head, as_new.astype(np.float32)


def side_by_side(views: Sequence[Array]) -> Array:
    """Return z ``(n, D)``, rows of length one, of the features ``(n, d_v)`` of all views."""
    rows: Array = np.concatenate([unit_roots(x) for x in views], 1)
    rows /= np.sqrt(len(views), dtype=rows.dtype)
    return rows


def _dual(z: Array, y: Array, v: Array, penalty: float) -> tuple[Array, Array, Array]:
    """Return W, b and left-out predictions, in time n³."""
    n = len(z)
    bordered = np.ones((n + 1, n + 1))
    bordered[:n, :n] = z @ z.T  # single precision is enough for products of rows of length one
    bordered[np.arange(n), np.arange(n)] += penalty / v
    bordered[n, n] = 0
    inverse = np.linalg.inv(bordered)
    alpha = inverse[:n, :n] @ y
    return alpha.T.astype(z.dtype) @ z, inverse[n, :n] @ y, y - alpha / np.diag(inverse)[:n, None]


def _primal(z: Array, y: Array, v: Array, penalty: float) -> tuple[Array, Array, Array]:
    """Return the same, in time D³."""
    x = np.concatenate([z, np.ones((len(z), 1))], 1, dtype=np.float64)
    weighted = v[:, None] * x
    inverse = np.linalg.inv(x.T @ weighted + penalty * np.diag([*np.ones(z.shape[1]), 0.0]))
    beta = inverse @ (weighted.T @ y)
    leverage = ((weighted @ inverse) * x).sum(1, keepdims=True)
    return beta[:-1].T, beta[-1], y - (y - x @ beta) / (1 - leverage)
