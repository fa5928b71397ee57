"""Whether probabilities mean what they say, on held-out rows.

Expected calibration error: the predicted class's probability against how often it is right, in bins of equal width,

    ECE = Σ_b n_b/n · |accuracy_b − confidence_b|.

Brier score Σ_c (p(c) − [y = c])², and its parts (Dimitriadis, Gneiting and Jordan, 2021): with q(c) the monotone
function of p(c) that fits best, and f(c) the share of class c among the rows,

    Brier(p) = miscalibration − discrimination + uncertainty
             = (Brier(p) − Brier(q)) − (Brier(f) − Brier(q)) + Brier(f).

The parts need no bins, and none is negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.report.reliability import Bin

__all__ = ["N_BINS", "Calibration", "calibration"]

Array = NDArray[Any]
N_BINS = 10


@dataclass(frozen=True)
class Calibration:
    """How far the probabilities of one fuser or model can be believed.

    Attributes:
        name: of the fuser or model.
        bins: those that have rows, by confidence.
        ece: expected calibration error.
        brier: Brier score, from 0 to 2.
        miscalibration: what a monotone correction of each class's probabilities would gain.
        discrimination: what these corrected probabilities gain over the shares of the classes.
        uncertainty: the Brier score of the shares of the classes.
    """

    name: str
    bins: tuple[Bin, ...]
    ece: float
    brier: float
    miscalibration: float
    discrimination: float
    uncertainty: float


def calibration(name: str, probabilities: Array, y: Array) -> Calibration:
    """Measure probabilities ``(n, N)`` of held-out rows against labels ``(n,)``.

    >>> found = calibration("sure", np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]]), np.array([0, 0, 1, 1]))
    >>> found.ece, found.brier, round(found.miscalibration - found.discrimination + found.uncertainty, 9)
    (0.25, 0.5, 0.5)
    """
    p = probabilities.astype(np.float64)
    best, right = p.max(1), p.argmax(1) == y
    place = np.minimum((best * N_BINS).astype(int), N_BINS - 1)
    parts = [place == b for b in np.unique(place)]
    bins = tuple(Bin(float(best[rows].mean()), float(right[rows].mean()), int(rows.sum())) for rows in parts)
    ece = sum(b.rows * abs(b.accuracy - b.confidence) for b in bins) / len(y)
    truth = np.eye(p.shape[1])[y]
    corrected = np.stack([_monotone(p[:, c], truth[:, c]) for c in range(p.shape[1])], 1)
    brier, least, plain = (float(((q - truth) ** 2).sum(1).mean()) for q in (p, corrected, truth.mean(0)))
    return Calibration(name, bins, ece, brier, brier - least, plain - least, plain)


def _monotone(p: Array, truth: Array) -> Array:
    """Return the values ``(n,)`` nearest to ``truth`` ``(n,)`` that rise with p ``(n,)`` and are equal where p is."""
    from scipy.optimize import isotonic_regression

    _, group, rows = np.unique(p, return_inverse=True, return_counts=True)
    means = np.bincount(group, truth) / rows
    found: Array = isotonic_regression(means, weights=rows).x[group]
    return found
