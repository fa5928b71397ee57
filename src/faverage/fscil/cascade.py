"""A cascade: few views look at every example, all of them only where the first answer is not sure.

How sure an answer is, is its probability less that of the next best class. The threshold comes from the examples that
the learner keeps, each scored as if nothing had been learned from it: it is such that a given share of them, every
class counting alike, lies below it and is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from faverage.fscil.heads import Array
from faverage.fscil.knowledge import as_views
from faverage.fscil.learner import FewShotLearner

__all__ = ["Cascade"]


class Cascade:
    """Predicts as a learner of several views does, with the first few of them alone where these are sure.

    It is made of a learner as that is now; make another one after the next lesson.

    Args:
        learner: of several views.
        first: names of the views that look at every example.
        share: of examples that the others look at, too; of new examples about as many, as far as these are like the
            kept ones.

    Attributes:
        quick: the learner of the first views, with a fuser of its own.
        threshold: how sure an answer must be to stay.

    >>> rng = np.random.default_rng(0)
    >>> centres = {"near": rng.normal(size=(4, 8)), "far": 3 * rng.normal(size=(4, 8))}  # far costs more, and sees more
    >>> y = np.arange(400) % 4
    >>> X = {view: c[y] + rng.normal(size=(400, 8)) for view, c in centres.items()}
    >>> def some(rows): return {view: x[rows] for view, x in X.items()}
    >>> learner = FewShotLearner().learn_session(some(slice(40)), y[:40])
    >>> cascade = Cascade(learner, ["near"], share=0.5)
    >>> tests = np.arange(40, 400)
    >>> asked = []
    >>> def far(rows):  # is only asked for the examples that need it
    ...     asked.extend(rows)
    ...     return {"far": X["far"][tests[rows]]}
    >>> said = cascade.predict({"near": X["near"][tests]}, far)
    >>> before = cascade.quick.predict({"near": X["near"][tests]})
    >>> bool((said == y[tests]).mean() > (before == y[tests]).mean() + 0.1), 0.4 < len(asked) / len(tests) < 0.6
    (True, True)
    """

    def __init__(self, learner: FewShotLearner, first: Sequence[str], share: float = 0.3) -> None:
        self.learner, self.quick = learner, learner.of_views(first)
        known = self.quick.known
        rows = known.leavable
        sure, weight = np.zeros(0), np.zeros(0)
        if len(rows):
            labels = known.labels[rows]
            scores = self.quick.scores_of(known.kept.rows(rows), (rows, labels))
            sure, weight = sureness(self.quick.fuse(scores)), 1 / np.bincount(labels)[labels]
        order = np.argsort(sure, kind="stable")
        self._sure, self._below = sure[order], np.cumsum(weight[order]) / max(weight.sum(), 1e-12)
        self.threshold = self.threshold_of(share)

    def threshold_of(self, share: float) -> float:
        """Return how sure an answer must be that a share of the kept examples is less sure."""
        if not 0 <= share <= 1:
            raise ValueError(f"share must lie in 0 … 1, got {share!r}")
        if share in (0, 1) or not len(self._sure):  # where nothing tells how sure answers are, all views look
            return -np.inf if share == 0 else np.inf
        return float(self._sure[min(int(np.searchsorted(self._below, share)), len(self._sure) - 1)])

    def predict_proba(
        self, X: Mapping[str, ArrayLike], more: Callable[[Array], Mapping[str, ArrayLike]] | None = None
    ) -> Array:
        """Return probabilities ``(n, N)`` of all classes, in the order of the learner's.

        Args:
            X: features ``(n, d_v)`` of the first views, by name; of all views where there is no ``more``.
            more: from numbers of examples ``(m,)`` to the features ``(m, d_v)`` of the other views of these.
        """
        there = {view: X[view] for view in self.quick.known.views if view in X}
        first = as_views(there or X, self.quick.known.widths)
        said = self.quick.predict_proba(first)
        again = np.flatnonzero(sureness(said) < self.threshold)
        if len(again):
            rest = {view: np.asarray(x)[again] for view, x in X.items()} if more is None else dict(more(again))
            views = {**rest, **{view: x[again] for view, x in first.items()}}
            said[again] = self.learner.fuse(self.learner.scores_of(as_views(views, self.learner.known.widths)))
        return said

    def predict(
        self, X: Mapping[str, ArrayLike], more: Callable[[Array], Mapping[str, ArrayLike]] | None = None
    ) -> Array:
        """Return the most probable label ``(n,)``; the arguments are those of ``predict_proba``."""
        best: Array = self.predict_proba(X, more).argmax(1)
        return self.learner.labels_of(best)


def sureness(probabilities: Array) -> Array:
    """Return by how much the best of N classes is ahead of the next, ``(n,)`` of probabilities ``(n, N)``."""
    if probabilities.shape[1] < 2:
        return np.ones(len(probabilities))
    two = np.partition(probabilities, -2, axis=1)[:, -2:]
    return np.asarray(two[:, 1] - two[:, 0])
