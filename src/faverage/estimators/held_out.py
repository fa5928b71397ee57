"""What the fusers of a classifier say of rows that neither they nor the members had seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.fusion import Fuser, get_fuser
from faverage.fusion.arrays import folds_of

Array = NDArray[Any]
_FOLDS = 5
_ROWS, _SCORES = 10_000, 1 << 22  # rows that are kept, at most, and how many scores they may hold


@dataclass
class HeldOut:
    """A sample of the out-of-fold scores that the fusers learned from.

    Attributes:
        fusers: one an output; new ones of their options are fitted, fold by fold.
        scores: out-of-fold scores of the members, for each output ``(r, K, N_j)``.
        codes: positions of the labels ``(r, m)``.
        weights: of the rows in fitting, for each output ``(r,)``, or None.
        weight: the rows' own weights ``(r,)``, or None.
    """

    fusers: list[Fuser]
    scores: list[Array]
    codes: Array
    weights: list[Array | None]
    weight: Array | None

    @cached_property
    def fused(self) -> list[Array]:
        """Probabilities of each output ``(r, N_j)``: those of a fold by a fuser that was fitted on the other folds."""
        return [_held_out(*part) for part in zip(self.fusers, self.scores, self.codes.T, self.weights, strict=True)]


def _held_out(fuser: Fuser, scores: Array, y: Array, weight: Array | None) -> Array:
    fold = folds_of(y, min(_FOLDS, len(y)))
    if weight is None:
        return fuser.held_out(scores, y, fold)
    fused = np.empty((len(y), scores.shape[2]))
    for part in np.unique(fold):
        train = fold != part
        fused[~train] = get_fuser(fuser).fit(scores[train], y[train], weight[train]).predict_proba(scores[~train])
    return fused


def rows_to_keep(rows: Array, weight: Array | None, width: int) -> Array:
    """Return which of the out-of-fold scores are kept, ``(r,)``, in random order.

    Args:
        rows: the row ``(n,)`` that each is of; one that several folds tested is kept once.
        weight: ``(n,)``; those of weight 0 are not kept.
        width: how many scores there are of each.
    """
    first = np.unique(rows, return_index=True)[1]
    counting = first if weight is None else first[weight[first] > 0]
    return np.random.default_rng(0).permutation(counting)[: min(_ROWS, max(1, _SCORES // width))]
