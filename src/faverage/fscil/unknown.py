"""None of these: how usual an example would be for the classes that a learner knows.

Two numbers tell strangers apart: how near the nearest class is, and how sure the answer. Each is standardised by what
it is for the kept examples of known classes, every one of them left out of what it is compared with, and s is their
sum. The familiarity of an example is then a conformal p-value: the share of kept examples, each class counting alike,
that are no more usual than it,

    p = (Σ_i w_i [s_i ≤ s] + w̄) / (Σ_i w_i + w̄).

If the examples of known classes to come are like the kept ones, a share of at most a of them has p ≤ a: "none of these"
below a is wrong for at most that share. Few kept examples cannot have a small p; below 100 of them it is the tail of
Student's t, fitted to their s (with three examples' worth of what s usually is), so that one class of five shots is
enough. Classes are pooled: five shots say little about one class, but the shots of all classes say how far shots lie.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from faverage.fscil.heads import Array, PrototypeHead
from faverage.fscil.knowledge import Views
from faverage.fscil.members import Members

__all__ = ["Familiarity"]


ENOUGH = 100  # kept examples for which their own ranks are used
_PRIOR = 3  # examples' worth of what is usual before any was seen:
_USUAL = (0.25, 1.5)  # the standard deviations of log-distance, and of the log-odds of the answer


class _Kept(NamedTuple):
    """What the kept examples say: means and deviations of both numbers, then s and weights, sorted by s."""

    mean: Array
    deviation: Array
    s: Array
    weight: Array


class Familiarity:
    """How usual examples are for the known classes; made when it is first asked for.

    Args:
        members: of the learner.
        fuse: from what the members say ``(n, K, N)`` to probabilities ``(n, N)``.
    """

    def __init__(self, members: Members, fuse: Any) -> None:
        self.members, self.fuse = members, fuse

    def of(self, views: Views) -> Array:
        """Return p ``(n,)`` of features ``(n, d_v)``, by view; 1 where nothing is known about how examples vary."""
        kept = self._kept
        if kept is None:
            return np.ones(len(next(iter(views.values()))))
        s = self.usualness(views)
        if len(kept.s) >= ENOUGH:
            below = np.concatenate([[0.0], np.cumsum(kept.weight)])[np.searchsorted(kept.s, s, side="right")]
            each = kept.weight.mean()
            return np.asarray((below + each) / (kept.weight.sum() + each))
        from scipy.stats import t

        n, parts = len(kept.s), int((kept.deviation < np.inf).sum())
        mean = float(np.average(kept.s, weights=kept.weight))
        apart = float(np.average((kept.s - mean) ** 2, weights=kept.weight)) * n
        spread = np.sqrt((apart + _PRIOR * parts) / (n - 1 + _PRIOR) * (1 + 1 / n))
        return np.asarray(t.cdf((s - mean) / spread, n - 1 + _PRIOR))

    def usualness(self, views: Views) -> Array:
        """Return s ``(n,)``: about 0 for examples of known classes, and lower for strangers."""
        kept = self._kept
        if kept is None:
            return np.zeros(len(next(iter(views.values()))))
        return np.asarray(((self._numbers(views) - kept.mean) / kept.deviation).sum(1))

    @cached_property
    def _kept(self) -> _Kept | None:
        known = self.members.known
        rows = known.leavable
        if not len(rows):
            return None
        labels = known.labels[rows]
        weight = 1 / np.bincount(labels)[labels]
        numbers = self._numbers(known.kept.rows(rows), (rows, labels))
        mean = np.average(numbers, axis=0, weights=weight)
        square = np.average((numbers - mean) ** 2, axis=0, weights=weight) * len(rows)
        deviation = np.sqrt((square + _PRIOR * np.square(_USUAL)) / (len(rows) - 1 + _PRIOR))
        if len(known.classes) == 1:
            deviation[1] = np.inf  # a single class is always the answer
        s = ((numbers - mean) / deviation).sum(1)
        order = np.argsort(s, kind="stable")
        return _Kept(mean, deviation, s[order], weight[order])

    def _numbers(self, views: Views, left_out: tuple[Array, Array] | None = None) -> Array:
        """Return nearness and sureness ``(n, 2)``."""
        members, nearest = self.members, []
        looked, every = members.known.looked(views), np.arange(members.n_classes)
        for view, x in looked.seen.items():
            own = None if left_out is None else members.own(view, left_out[0], every, left_out[1])
            nearest.append(PrototypeHead(members.prototypes[view], 1.0).distances(x, own).min(1))
        near = -np.log(np.mean(nearest, 0) + 1e-6)
        sure = self.fuse(members.scores(looked, left_out)).max(1).astype(np.float64)
        return np.stack([near, np.log(sure + 1e-6) - np.log(1 - sure + 1e-6)], 1)
