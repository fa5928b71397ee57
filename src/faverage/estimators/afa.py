"""Ensembles for scikit-learn users: members of any kind, fused by a fuser of ``faverage.fusion``.

They are used as scikit-learn's ``StackingClassifier`` and ``StackingRegressor`` are:

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_wine(return_X_y=True)
    >>> members = [("nb", GaussianNB()), ("logistic", LogisticRegression(solver="newton-cholesky"))]
    >>> model = AFAClassifier(members).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, column_or_1d

from faverage.afa.explain import Explanation, from_shares, names_of
from faverage.afa.network import DEFAULT_MEANS, MeanSpec
from faverage.estimators.ensemble import (
    Ensemble,
    check_shared,
    fold_scores,
    fold_values,
    plain_folds,
    stratified_folds,
    take,
)
from faverage.estimators.members import check_labels, encode, positions, predict_values, read_member, steady, union
from faverage.estimators.regression import build_means, fit_regression
from faverage.fusion import FUSERS, Fuser, get_fuser
from faverage.fusion.align import align

__all__ = ["AFAClassifier", "AFARegressor"]

Array = NDArray[Any]


class AFAClassifier(ClassifierMixin, Ensemble):  # type: ignore[misc]
    """Several classifiers, fused by a learned average of their probabilities.

    The fuser learns from out-of-fold probabilities; then the members are fitted again on everything. Members that know
    different classes (``cv="prefit"``, or a class that a fold misses) are put side by side by label.

    Args:
        estimators: a list of (name, estimator). A member without ``predict_proba`` is read by ``decision_function``, or
            else by the labels that it predicts. ``"drop"`` leaves a member out.
        fuser: name of a fuser (``faverage.fusion.fuser_names()``), or a fuser.
        fuser_options: options of the fuser.
        cv: number of stratified folds, a splitter, or an iterable of (training rows, test rows); None means 5 folds.
            Rows in no test part are not used by the fuser. ``"prefit"``: members are fitted already and used as they
            are. They may then also be torch modules, which get a tensor of their parameters' type, or functions from X
            to an array or tensor ``(n, N_k)``; outputs that are not probabilities are taken as logits. Their columns
            are the attribute ``classes_`` if they have one, else the sorted labels of y. To clone such an ensemble (a
            grid search does), wrap estimators in ``sklearn.frozen.FrozenEstimator``.
        n_jobs: fits at a time.
        verbose: how much joblib tells.

    Attributes:
        classes_: the N labels: those of y and those that prefit members know.
        estimators_: the K fitted members.
        named_estimators_: the same by name.
        fuser_: the fitted fuser.
        n_features_in_: number of features.
        feature_names_in_: their names, where X has them.
    """

    def __init__(
        self,
        estimators: Sequence[tuple[str, Any]],
        *,
        fuser: str | Fuser = "afa",
        fuser_options: dict[str, Any] | None = None,
        cv: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimators = estimators
        self.fuser = fuser
        self.fuser_options = fuser_options
        self.cv = cv
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the members, and the fuser on their out-of-fold probabilities.

        Args:
            X: examples ``(n, features)`` of any kind that the members take.
            y: labels ``(n,)``: numbers, strings, booleans.
            sample_weight: ``(n,)``, for the members that take weights and for the fuser.
        """
        live = self._live_members()
        fuser = get_fuser(self.fuser, **(self.fuser_options or {}))
        X, weight = self._check_input(X, y, sample_weight)
        labels, codes, mixed = encode(check_labels(y))
        if self._prefit:
            read = [read_member(name, model, X, labels) for name, model in live]
            self._members = [member for member, _ in read]
            check_shared(labels, self._members)
            self.classes_ = union([labels, *(member.classes for member in self._members)])
            codes = positions(labels, self.classes_)[codes]
            rows = np.arange(len(codes))
            scores = self._align([s for _, s in read], [member.classes for member in self._members])
            models = [model for _, model in live]
        else:
            self._need_two_classes(codes if weight is None else codes[weight > 0])
            self.classes_ = labels
            names = labels if mixed else None
            targets = codes if mixed else labels[codes]
            splits = self._splits(X, codes, stratified_folds)
            folds = self._out_of_fold(fold_scores, live, splits, X, targets, weight, names)
            scores = np.concatenate([self._align(*zip(*fold, strict=True)) for fold in folds])
            rows = np.concatenate([test for _, test in splits])
            models = self._refit(live, X, targets, weight)
            one = take(X, rows[:1])
            pairs = zip(live, models, strict=True)
            known = np.unique(targets)
            self._members = [read_member(name, model, one, known, names)[0] for (name, _), model in pairs]
        self._keep(live, models)
        self.fuser_ = fuser.fit(steady(scores), codes[rows], None if weight is None else weight[rows])
        return self

    def member_scores(self, X: Any) -> Array:
        """Return the members' probabilities ``(n, K, N)``, with NaN where a member does not know a class."""
        self._check_predict(X)
        return self._align([m.scores(X) for m in self._members], [m.classes for m in self._members])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class ``(n, N)``."""
        scores = self.member_scores(X)
        return self.fuser_.predict_proba(scores)

    def predict(self, X: Any) -> Array:
        """Return the most probable label ``(n,)`` of each row."""
        best: Array = self.predict_proba(X).argmax(1)
        labels: Array = self.classes_[best]
        return labels

    def explain(self) -> Explanation:
        """Return which mean the fuser uses, and which member it trusts for which class."""
        check_is_fitted(self)
        if not hasattr(self.fuser_, "explain"):
            able = ", ".join(f"'{name}'" for name, kind in FUSERS.items() if hasattr(kind, "explain"))
            raise ValueError(f"the fuser '{self.fuser_.name}' cannot be explained; these can: {able}")
        explanation: Explanation = self.fuser_.explain(models=self._names, classes=self.classes_.tolist())
        return explanation

    def _align(self, outputs: Sequence[Array], classes: Sequence[Array]) -> Array:
        return align(outputs, classes, all_classes=self.classes_).scores

    def _need_two_classes(self, codes: Array) -> None:
        if len(np.unique(codes)) < 2:
            raise ValueError("y has one class only among rows of non-zero weight; at least two classes are needed")


class AFARegressor(RegressorMixin, Ensemble):  # type: ignore[misc]
    """Several regressors, fused by a learned average of their predictions.

    Candidates are averages on the simplex, the same with a scale and a constant, and weights of any sign, all shrunk to
    the plain mean; and the network of all means, where these promise less error. Each has a share of the prediction by
    its squared loss on held-out parts of the out-of-fold predictions. What a member says outside the range of the
    target by more than a tenth of it, and far from the bulk of its own predictions, is clipped. Fitting is
    deterministic.

    Args:
        estimators: a list of (name, estimator); ``"drop"`` leaves a member out.
        means: the means to choose from; without the arithmetic one, the network of the others is the only candidate.
        keep_range: choose among averages on the simplex only. A prediction then always lies between the least and the
            largest prediction of the members for that row.
        cv: number of folds, a splitter, an iterable of splits, or ``"prefit"``, as for ``AFAClassifier``; None means 5
            folds. Prefit modules and functions give ``(n,)`` or ``(n, m)``.
        n_jobs: fits at a time.
        verbose: how much joblib tells.

    Attributes:
        estimators_: the K fitted members.
        named_estimators_: the same by name.
        shares_: share of each kind of candidate that is in use: ``simplex``, ``affine`` (with a scale and a constant),
            ``signed``, ``means`` (the network of all means).
        network_: the ``faverage.AFA`` on the simplex: that of all means where these are in use, else of the arithmetic
            one. It works on predictions scaled to the range of the out-of-fold ones.
        shrinkage_: the strength of the pull to the plain mean in the candidate with the largest share.
        n_features_in_: number of features.
        feature_names_in_: their names, where X has them.

    Where y is ``(n, m)``, each output has weights of its own, and ``shares_``, ``network_`` and ``shrinkage_`` are
    lists with one entry an output.
    """

    def __init__(
        self,
        estimators: Sequence[tuple[str, Any]],
        *,
        means: Sequence[MeanSpec] = DEFAULT_MEANS,
        keep_range: bool = False,
        cv: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimators = estimators
        self.means = means
        self.keep_range = keep_range
        self.cv = cv
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the members, and the weights of their average on out-of-fold predictions.

        Args:
            X: examples ``(n, features)`` of any kind that the members take.
            y: targets ``(n,)``, or ``(n, m)`` for members that take several.
            sample_weight: ``(n,)``, for the members that take weights and for the average.
        """
        live = self._live_members()
        means = build_means(self.means)
        X, weight = self._check_input(X, y, sample_weight)
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        if y.ndim == 1 or y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        target = y.reshape(len(y), -1).astype(np.float64)  # (n, m)
        if self._prefit:
            rows, models = np.arange(len(y)), [model for _, model in live]
            values = np.stack([predict_values(name, model, X, target.shape[1]) for name, model in live], 1)
        else:
            splits = self._splits(X, y, plain_folds)
            folds = self._out_of_fold(fold_values, live, splits, X, y, weight)
            values = np.concatenate([np.stack(fold, 1) for fold in folds])
            rows = np.concatenate([test for _, test in splits])
            models = self._refit(live, X, y, weight)
        self._keep(live, models)
        self._one = y.ndim == 1
        self._fused = [
            fit_regression(values[:, :, i], column, None if weight is None else weight[rows], means,
                           keep_range=self.keep_range)
            for i, column in enumerate(target[rows].T)
        ]  # fmt: skip
        self.shares_, self.network_, self.shrinkage_ = (
            found[0] if self._one else found
            for found in ([getattr(f, name) for f in self._fused] for name in ("shares", "network", "shrinkage"))
        )
        return self

    def member_scores(self, X: Any) -> Array:
        """Return the members' predictions ``(n, K, m)``, as they are: before clipping."""
        self._check_predict(X)
        pairs = zip(self._names, self.estimators_, strict=True)
        return np.stack([predict_values(name, model, X, len(self._fused)) for name, model in pairs], 1)

    def predict(self, X: Any) -> Array:
        """Return the fused predictions, ``(n,)`` or ``(n, m)`` as y was."""
        values = self.member_scores(X)
        fused = np.stack([f(values[:, :, i]) for i, f in enumerate(self._fused)], 1)
        return fused[:, 0] if self._one else fused

    def explain(self) -> Explanation:
        """Return which mean is used and which member is trusted, for each output.

        They are averages over the candidates by their shares. In one with a scale or with signs, a member's share is
        that of its weight, without sign, times the spread of its predictions.
        """
        check_is_fitted(self)
        means = build_means(self.means)
        by_mean, by_member = zip(*(f.importance(means) for f in self._fused), strict=True)
        outputs = ["value"] if self._one else [f"output {i}" for i in range(len(self._fused))]
        tables = torch.from_numpy(np.stack(by_mean)), torch.from_numpy(np.stack(by_member))
        return from_shares(*tables, names_of(means), self._names, outputs)
