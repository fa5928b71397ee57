"""Whitening: features in which what differs within a class counts for less than what differs between classes.

With u the square roots of features (with their signs), scaled to length one, m their mean and S their covariance within
the base classes, the whitened features are

    ((1 − s) S / σ² + s I)^(−1/2) (u − m),   σ² = tr(S) / d

where the shrinkage s tames directions in which the images at hand hardly differ. A class that comes later has too few
examples for a covariance of its own, but images of a new class differ much as those of a base class do: by light, pose
and background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from faverage.fscil.heads import Array, unit, unit_roots

__all__ = ["Whitening", "whitenings"]

_ENOUGH = 100  # degrees of freedom of a covariance; with fewer, what was seen looks too much like what is to come


@dataclass
class Whitening:
    """A map of features, fitted to examples of base classes.

    Attributes:
        centre: ``(d,)``, the mean of what is whitened.
        matrix: ``(d, d)``.

    >>> from faverage.fscil.heads import unit
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) % 2
    >>> features = rng.normal(size=(200, 8)) * [9, 1, 1, 1, 1, 1, 1, 1]  # the first says nothing, loudly
    >>> features[:, 1] += np.where(labels == 1, 3.0, -3.0)
    >>> new = rng.normal(size=(100, 8)) * [9, 1, 1, 1, 1, 1, 1, 1]
    >>> new[:50, 2] += 3.0  # two new classes, told apart by another one
    >>> new[50:, 2] -= 3.0
    >>> whiten = Whitening.fit(features, labels, shrinkage=0.1)
    >>> def found(x):
    ...     means = [unit(x[:50][:5]).mean(0), unit(x[50:][:5]).mean(0)]
    ...     return float(np.mean((unit(x) @ np.transpose(means)).argmax(1) == np.repeat([0, 1], 50)))
    >>> found(new) < found(whiten(new))
    True
    """

    centre: Array
    matrix: Array

    @classmethod
    def fit(cls, features: Array, labels: Array, shrinkage: float = 0.8) -> Self:
        """Fit to labelled examples of base classes.

        Args:
            features: ``(n, d)``; not those that a learner rehearses with, which would then look easier than new ones.
            labels: ``(n,)``.
            shrinkage: s, above 0 and at most 1; with 1 features are centred, and no more.
        """
        classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if features.ndim != 2 or len(features) != len(numbers) or len(features) <= len(classes):
            raise ValueError(
                f"expected features (n, d) and n labels, more than there are classes, got features of shape "
                f"{features.shape} and {len(numbers)} labels of {len(classes)} classes"
            )
        if not 0 < shrinkage <= 1:
            raise ValueError(f"shrinkage must be above 0 and at most 1, got {shrinkage}")
        u = unit_roots(np.asarray(features, dtype=np.float64))
        means = np.zeros((len(classes), u.shape[1]))
        np.add.at(means, numbers, u)
        within = u - (means / counts[:, None])[numbers]
        covariance = within.T @ within / (len(u) - len(classes))
        level = np.trace(covariance) / len(covariance)
        if not level > 0:  # all of a class are alike
            covariance, level = np.eye(len(covariance)), 1.0
        values, vectors = np.linalg.eigh((1 - shrinkage) * covariance / level + shrinkage * np.eye(len(covariance)))
        matrix = (vectors / np.sqrt(values)) @ vectors.T
        return cls(u.mean(0).astype(np.float32), matrix.astype(np.float32))

    def __call__(self, features: Array) -> Array:
        """Return ``(n, d)`` of features ``(n, d)``."""
        return np.asarray((unit_roots(np.asarray(features, dtype=np.float32)) - self.centre) @ self.matrix)

    def inverse(self, whitened: Array) -> Array:
        """Return features ``(n, d)`` of length one that are whitened like rows ``(n, d)``."""
        try:
            back = np.linalg.inv(self.matrix.astype(np.float64))
        except np.linalg.LinAlgError:  # of a file that was changed
            raise ValueError("the matrix of the whitening has no inverse: train the model again") from None
        roots = whitened @ back + self.centre
        return np.asarray(unit(roots * np.abs(roots)), dtype=np.float32)

    def same(self, other: Whitening) -> bool:
        """Return whether the other is this map once more."""
        return np.array_equal(self.centre, other.centre) and np.array_equal(self.matrix, other.matrix)


def whitenings(views: Mapping[str, Array], labels: Array, shrinkage: float) -> dict[str, Whitening]:
    """Return a map for each view, fitted to features ``(n, d_v)`` with labels ``(n,)``.

    There are none where the examples are fewer than 100 more than their classes: features stay as they are.
    """
    if len(labels) - len(np.unique(labels)) < _ENOUGH:
        return {}
    return {view: Whitening.fit(x, labels, shrinkage) for view, x in views.items()}
