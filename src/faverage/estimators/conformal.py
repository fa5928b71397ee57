"""Sets of labels that hold the true one with a stated probability: split conformal prediction.

A row's score is 1 − p(true label), on rows that were held out (the least ambiguous sets of Sadinle, Lei and Wasserman,
2019). With r such rows, a label is in the set of a new row if 1 − p(label) is at most the ⌈(r + 1) · coverage⌉-th
smallest of their scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def threshold(held_out: Array, y: Array, weight: Array | None, coverage: float) -> float:
    """Return the largest 1 − p of a label that is in the set; infinity where there are too few rows to leave any out.

    Args:
        held_out: probabilities ``(r, N)``.
        y: positions of the true labels ``(r,)``.
        weight: positive, ``(r,)``, or None; a new row counts as one of mean weight.
        coverage: between 0 and 1.

    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> y = np.array([0, 0, 1])
    >>> [round(threshold(p, y, None, coverage), 6) for coverage in (0.5, 0.75, 0.9)]
    [0.2, 0.7, inf]
    """
    weight = np.ones(len(y)) if weight is None else weight
    scores = 1 - held_out[np.arange(len(y)), y]
    order = np.argsort(scores)
    below = np.cumsum(weight[order])
    rank = int(np.searchsorted(below, coverage * (below[-1] + weight.mean()) * (1 - 1e-12)))
    return float(scores[order[rank]]) if rank < len(order) else np.inf


def sets_of(p: Array, chosen: Array, limit: float) -> Array:
    """Return which labels are in each row's set, ``(n, N)`` booleans, from probabilities ``(n, N)``.

    The label that is predicted, ``chosen`` ``(n,)``, always is: no set is empty.
    """
    inside: Array = 1 - p <= limit
    inside[np.arange(len(p)), chosen] = True
    return inside
