"""A learner over many views: rotations, flips, several backbones, each with heads of its own, and a fuser on top.

The heads of successive sessions share one backbone and its mistakes. Views differ, and so do their mistakes: which of
them to trust, for which class, is what the fuser learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from faverage.afa.explain import Explanation
from faverage.fscil.fusers import ALONE, check_fuser, explain_fuser, most_probable, new_fuser
from faverage.fscil.heads import CosineHead, RidgeHead, fit_ridge
from faverage.fscil.learner import FewShotLearner
from faverage.fusion import Fuser

__all__ = ["ViewLearner"]

Array = NDArray[Any]

# what ``afa`` is here: p ∝ (Σ_j A_j x̃_j)^T, with weights for base and for new classes; it contains the log-opinion pool
_TIED: dict[str, Any] = {
    "structure": "tied",
    "means": ["arithmetic", "geometric"],
    "output": "power",
    "mixing": "nonnegative",
    "scale": 1.0,
    "padding": "uniform",
    "lr": 0.03,
}


class ViewLearner:
    """Learns base classes once, then new classes from a few examples, from several feature vectors an image.

    X are features ``(n, D)``, those of all views side by side, as ``extract_features(..., views=...)`` gives them. Each
    view has two members: its base head, and the head of the nearest prototypes of all classes so far. One more sees all
    views: ridge regression on the memory and the shots.

    Args:
        views: names of the views, in the order of their columns; all have D / V columns, or give ``widths``.
        fuser: as for ``FewShotLearner``, but the weights of ``afa`` are tied, one a member for all base classes and one
            for all new ones; ``prototypes`` and ``no-fine-tuning`` are those of the first view alone.
        fuser_options: options of the fuser.
        widths: columns of each view, where they differ, as with several backbones.
        ridge: penalty of the ridge regression; None: there is no such member.
        **options: of ``FewShotLearner``, for every view: rehearsal (by default ``left-out``), balance, calibration,
            temperature, seed … A stand-in is drawn in all views at once.

    >>> rng = np.random.default_rng(0)
    >>> centres = rng.normal(size=(4, 16)) * 3
    >>> def examples(classes, n):
    ...     y = np.repeat(classes, n)
    ...     return np.abs(centres[y] + rng.normal(size=(len(y), 16))), y
    >>> learner = ViewLearner(["left", "right"]).fit_base(*examples([0, 1], 60))
    >>> learner = learner.learn_session(*examples([2, 3], 5))
    >>> X, y = examples([0, 1, 2, 3], 25)
    >>> bool((learner.predict(X) == y).mean() > 0.8), learner.members
    (True, ['left, base', 'left', 'right, base', 'right', 'ridge'])
    """

    def __init__(
        self,
        views: Sequence[str],
        fuser: str | Fuser = "afa",
        *,
        fuser_options: dict[str, Any] | None = None,
        widths: Sequence[int] | None = None,
        ridge: float | None = 0.1,
        **options: Any,
    ) -> None:
        if isinstance(views, str) or not views or len(set(views)) < len(views):
            raise ValueError(f"views must be a list of different names, got {views!r}")
        if widths is not None and (len(widths) != len(views) or min(widths) < 1):
            raise ValueError(f"widths must be {len(views)} numbers of columns, one a view, got {widths!r}")
        if ridge is not None and not 0 < ridge < np.inf:
            raise ValueError(f"ridge must be a finite number > 0, or None for no such member, got {ridge!r}")
        check_fuser(fuser)
        FewShotLearner(fuser="prototypes", **options)  # whatever cannot be is refused now
        self.views, self.fuser, self.fuser_options = list(views), fuser, dict(fuser_options or {})
        self.widths = None if widths is None else list(widths)
        self.ridge, self.options = ridge, options
        self.parts: list[FewShotLearner] = []
        self.beside: RidgeHead | None = None
        self.fitted: Fuser | None = None

    @property
    def classes(self) -> list[Any]:
        """Labels of all classes seen so far."""
        return self.parts[0].classes if self.parts else []

    @property
    def members(self) -> list[str]:
        """Names of what the fuser fuses: two a view, and ``ridge``."""
        pairs = [name for view in self.views for name in (f"{view}, base", view)]
        return pairs if self._penalty is None else [*pairs, "ridge"]

    def fit_base(
        self,
        X: ArrayLike,
        y: Sequence[Any] | Array,
        *,
        head: Sequence[tuple[ArrayLike, ArrayLike] | CosineHead] | None = None,
        prototypes: ArrayLike | None = None,
    ) -> Self:
        """Learn the base classes.

        Args:
            X: features ``(n, D)``.
            y: labels of any type.
            head: for each view W ``(C, d)`` and b ``(C,)`` of its base head, or a ``CosineHead``; by default they are
                fitted.
            prototypes: ``(C, D)``, means of features that are normalised in each view. X is then the memory: features
                that neither heads nor prototypes were made from.
        """
        if head is not None and len(head) != len(self.views):
            raise ValueError(f"head must be {len(self.views)} pairs of W and b, one a view, got {len(head)}")
        columns = self._columns(np.asarray(X))
        given = None if prototypes is None else self._split(np.asarray(prototypes), columns)
        self.parts, self.fitted = [], None
        for v, features in enumerate(self._split(np.asarray(X), columns)):
            part = FewShotLearner(fuser="prototypes", **self.options)  # one seed: all views keep the same images
            own = None if head is None else head[v]
            self.parts.append(part.fit_base(features, y, head=own, prototypes=None if given is None else given[v]))
        self._fit_ridge()
        return self

    def learn_session(self, X: ArrayLike, y: Sequence[Any] | Array) -> Self:
        """Learn new classes from a few examples of each; any number of classes and of shots."""
        if not self.parts:
            raise ValueError("learn_session needs the base classes: call fit_base(X, y) first")
        for part, features in zip(self.parts, self._split(np.asarray(X)), strict=True):
            part.learn_session(features, y)
        left_out = self._fit_ridge()
        self.fitted = self._fit_fuser(left_out)
        return self

    def member_scores(self, X: ArrayLike) -> Array:
        """Return what each member says: ``(n, K, N)``, NaN where a base head does not know a class."""
        views = self._split(np.asarray(X))
        pairs = zip(self.parts, views, strict=True)
        scores = [part.scores_of(features, _pair(part)) for part, features in pairs]
        return np.concatenate(scores if self.beside is None else [*scores, self.beside.scores(views)[:, None]], 1)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return probabilities ``(n, N)`` of all classes seen so far, in the order of ``classes``."""
        if not self.parts:
            raise ValueError("the learner knows no classes yet: call fit_base(X, y) first")
        scores = self.member_scores(X)
        if self.fuser in ALONE:
            return np.nan_to_num(scores[:, ALONE.index(str(self.fuser))])
        if self.fitted is None:  # the base session alone: all base heads alike
            return np.asarray(scores[:, : 2 * len(self.views) : 2].mean(1))
        return self.fitted.predict_proba(scores)

    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable label ``(n,)``."""
        return most_probable(self.predict_proba(X), self.classes)

    def explain(self) -> Explanation:
        """Return which member is trusted for which class, and with which mean."""
        return explain_fuser(self.fitted, self.members, self.classes)

    @property
    def _penalty(self) -> float | None:
        """Of the ridge regression; None where nothing asks for it."""
        return None if self.fuser in ALONE else self.ridge

    def _fit_ridge(self) -> Array | None:
        """Fit the member that sees all views; return what it says of memory and shots, each of them left out."""
        if self._penalty is None:
            return None
        kept = [part.memory.examples() for part in self.parts]
        views, labels = [features for features, _ in kept], kept[0][1]
        self.beside, left_out = fit_ridge(views, labels, len(self.classes), self._penalty)
        return left_out

    def _fit_fuser(self, left_out: Array | None) -> Fuser | None:
        if self.fuser in ALONE:
            return None
        options = self.fuser_options
        if self.fuser == "afa":
            options = {**_TIED, **options}
            if options["structure"] == "tied":
                n_base = len(self.parts[0].sessions[0])
                options = {"groups": [0] * n_base + [1] * (len(self.classes) - n_base), **options}
        fuser, _ = new_fuser(self.fuser, self.fitted, options, padding="inlierness")
        if fuser.trains:
            found = [part.rehearsed("left-out") for part in self.parts]
            pairs = zip(self.parts, found, strict=True)
            scores = [part.scores_of(one.features, _pair(part), (one.labels, one.own)) for part, one in pairs]
            if self.beside is not None and left_out is not None:
                beside = self.beside.scores([one.features for one in found])
                rows = found[0].left_out
                beside[rows >= 0] = left_out[rows[rows >= 0]]
                scores.append(beside[:, None])
            fuser.fit(np.concatenate(scores, 1), found[0].labels, found[0].weight)
        return fuser

    def _columns(self, X: Array) -> list[int]:
        if X.ndim != 2:
            raise ValueError(f"features must have shape (n, D), got {X.shape}")
        widths = self.widths or [X.shape[1] // len(self.views)] * len(self.views)
        if sum(widths) != X.shape[1] or min(widths) < 1:
            raise ValueError(f"{X.shape[1]} columns do not make {len(self.views)} views of {widths} columns")
        return widths

    def _split(self, X: Array, columns: list[int] | None = None) -> list[Array]:
        return np.split(X, np.cumsum(columns or self._columns(X))[:-1], axis=1)


def _pair(part: FewShotLearner) -> list[Any]:
    """Return the two members of a view: its base head, and its newest head of prototypes."""
    return [part.heads[0], part.heads[-1]]
