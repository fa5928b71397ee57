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
        weight: the rows' own weights ``(r,)``.
    """

    fusers: list[Fuser]
    scores: list[Array]
    codes: Array
    weights: list[Array | None]
    weight: Array

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


def rows_to_keep(weight: Array, width: int) -> Array:
    """Return the rows ``(r,)`` that are kept of those with non-zero weight ``(n,)``, each with ``width`` scores."""
    counting = np.flatnonzero(weight > 0)
    most = min(_ROWS, max(1, _SCORES // width))
    return np.random.default_rng(0).permutation(counting)[:most]
