"""What the two ensembles share: checks of input, folds, and fitting the members."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone

# Private names of scikit-learn, imported here only. They have no public counterpart: the base class of its own
# ensembles (``lr__C``, ``set_params(lr="drop")``), rows of any kind of X, and the checks of sample weights.
from sklearn.ensemble._base import _BaseHeterogeneousEnsemble
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import Bunch, _safe_indexing, indexable
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn

from faverage.estimators.members import Member, fit_member, predict_values, weight_argument

Array = NDArray[Any]
Split = tuple[Array, Array]
_FOLDS = 5


class Ensemble(_BaseHeterogeneousEnsemble):  # type: ignore[misc]
    """Named members, parameters such as ``lr__C``, and ``cv``, ``n_jobs`` and ``verbose`` for fitting them."""

    def _live_members(self) -> list[tuple[str, Any]]:
        """Return the members that are not dropped, or raise ValueError."""
        items = self.estimators
        if not isinstance(items, list | tuple) or not items:
            raise ValueError(f"estimators must be a non-empty list of (name, estimator) tuples, got {items!r}")
        for item in items:
            if not isinstance(item, list | tuple) or len(item) != 2 or not isinstance(item[0], str):
                raise ValueError(f"estimators must be a list of (name, estimator) tuples, found the entry {item!r}")
        self._validate_names([name for name, _ in items])
        live = [(name, model) for name, model in items if not (isinstance(model, str) and model == "drop")]
        if not live:
            raise ValueError("all estimators are dropped; at least one must stay")
        for name, model in live:
            if isinstance(model, type):
                raise ValueError(f"member '{name}' is the class {model.__name__}; expected an instance of it")
            if self._prefit:
                _check_fitted(name, model)
            elif not hasattr(model, "fit"):
                raise ValueError(
                    f"member '{name}' of type {type(model).__name__} has no method fit; modules and functions need "
                    "cv='prefit'"
                )
        return live

    @property
    def _prefit(self) -> bool:
        return isinstance(self.cv, str) and self.cv == "prefit"

    def _check_input(self, X: Any, y: Any, sample_weight: Any, reset: bool = True) -> tuple[Any, Array | None]:
        """Return X in a form that can be indexed, and the weights; note the features, or compare them with before."""
        validate_data(self, X, y, reset=reset, skip_check_array=True)
        X, _ = indexable(X, y)
        if sample_weight is None:
            return X, None
        weight: Array = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if weight.min() < 0 or not weight.any():
            raise ValueError("sample_weight must be non-negative numbers that are not all zero")
        return X, weight

    def _check_predict(self, X: Any) -> None:
        check_is_fitted(self)
        if getattr(X, "ndim", 2) == 1 and hasattr(self, "n_features_in_"):
            raise ValueError(
                f"X must have shape (n, {self.n_features_in_}), got {X.shape}. Reshape your data: X.reshape(1, -1) if "
                "it is one example"
            )
        validate_data(self, X, reset=False, skip_check_array=True)

    def _splits(self, X: Any, y: Array, default: Callable[[Array], Any]) -> list[Split]:
        """Return (training rows, test rows) of each fold; ``default(y)`` makes the folds of ``cv=None``."""
        rows = np.arange(len(y))
        given = self.cv
        cv = default(y) if given is None else check_cv(given, y, classifier=isinstance(self, ClassifierMixin))
        return [(rows[train], rows[test]) for train, test in cv.split(X, y)]

    def _out_of_fold(self, task: Any, live: list[tuple[str, Any]], splits: list[Split], *data: Any) -> list[list[Any]]:
        """Run ``task(name, unfitted model, training rows, test rows, *data)``; return results by fold and member."""
        results = Parallel(n_jobs=self.n_jobs, verbose=self.verbose)(
            delayed(task)(name, clone(model), *split, *data) for split in splits for name, model in live
        )
        return [results[i : i + len(live)] for i in range(0, len(results), len(live))]

    def _refit(self, live: list[tuple[str, Any]], X: Any, y: Array, weight: Array | None) -> list[Any]:
        """Return members fitted on everything."""
        models: list[Any] = Parallel(n_jobs=self.n_jobs, verbose=self.verbose)(
            delayed(fit_member)(name, clone(model), X, y, weight) for name, model in live
        )
        without = [name for name, model in live if weight is not None and weight_argument(model) is None]
        if without:
            names = ", ".join(f"'{name}'" for name in without)
            warnings.warn(f"these members take no sample_weight and were fitted without it: {names}", stacklevel=3)
        return models

    def _keep(self, live: list[tuple[str, Any]], models: list[Any]) -> None:
        self._names = [name for name, _ in live]
        self.estimators_ = models
        self.named_estimators_ = Bunch(**dict(self.estimators))
        self.named_estimators_.update(zip(self._names, models, strict=True))


def take(X: Any, rows: Array) -> Any:
    """Return the rows ``(m,)`` of X: an array, a sparse matrix, a data frame or a list."""
    return _safe_indexing(X, rows)


def check_shared(labels: Array, members: list[Member]) -> None:
    """Refuse fitted members that all know none of the labels ``(N,)`` of y; warn of each that knows none."""
    wanted = set(labels.tolist())
    strangers = [member for member in members if wanted.isdisjoint(member.classes.tolist())]
    if len(strangers) == len(members):
        known = "; ".join(f"member '{member.name}' knows {_some(member.classes)}" for member in members)
        raise ValueError(f"no member shares a label with y, which has {_some(labels)}; {known}")
    for member in strangers:
        warnings.warn(
            f"member '{member.name}' shares no label with y: it knows {_some(member.classes)}, y has {_some(labels)}",
            stacklevel=4,
        )


def fold_values(name: str, model: Any, train: Array, test: Array, X: Any, y: Array, weight: Array | None) -> Array:
    """Fit a regressor on rows ``train``; return predictions ``(r, m)`` of the r rows ``test``.

    ``y`` is ``(n,)`` or ``(n, m)``, ``weight`` ``(n,)``.
    """
    part = None if weight is None else weight[train]
    fit_member(name, model, take(X, train), y[train], part)
    return predict_values(name, model, take(X, test), 1 if y.ndim == 1 else y.shape[1])


def stratified_folds(y: Array) -> Any:
    """Return five folds that are alike in the classes of ``y`` ``(n,)``; fewer where the largest has fewer rows."""
    largest = int(np.bincount(y).max())
    if largest < 2:
        raise ValueError("every class of y has one row only; out-of-fold scores need a class with two")
    return StratifiedKFold(min(_FOLDS, largest))


def plain_folds(y: Array) -> Any:
    """Return five folds of ``y`` ``(n,)``, fewer where there are fewer rows."""
    if len(y) < 2:
        raise ValueError(f"out-of-fold predictions need at least two rows, got n_samples = {len(y)}")
    return KFold(min(_FOLDS, len(y)))


def _some(labels: Array, limit: int = 10) -> str:
    shown = ", ".join(repr(label) for label in labels.tolist()[:limit])
    return shown if len(labels) <= limit else f"{shown} and {len(labels) - limit} more"


def _check_fitted(name: str, model: Any) -> None:
    if isinstance(model, nn.Module) or not hasattr(model, "fit"):
        return
    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise NotFittedError(
            f"member '{name}' is not fitted, and cv='prefit' uses members as they are: fit it first, and wrap it in "
            "sklearn.frozen.FrozenEstimator where the ensemble is cloned"
        ) from error
