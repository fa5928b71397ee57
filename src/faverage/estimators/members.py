"""Members of an ensemble: checks of input, folds, how to fit them, what they know, and how to read their outputs.

A member is a scikit-learn estimator (or a pipeline), a torch module, or a function from X to an array.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, clone

# Private names of scikit-learn, imported here only. They have no public counterpart: the base class of its own
# ensembles (``lr__C``, ``set_params(lr="drop")``), rows of any kind of X, and the checks of sample weights.
from sklearn.ensemble._base import _BaseHeterogeneousEnsemble
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, _safe_indexing, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)
from torch import nn

from faverage.fusion.align import sort_labels

Array = NDArray[Any]
Split = tuple[Array, Array]
_FOLDS = 5
_METHODS = ("predict_proba", "decision_function", "predict")
_BATCH = 4096  # rows that a torch module gets at a time


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


@dataclass(frozen=True)
class Member:
    """A fitted classifier and how to read it.

    Attributes:
        name: its name in the ensemble.
        model: the estimator, module or function.
        method: the method that is called; empty where the model itself is.
        own: ``(C,)``, its classes as the model names them, in the order of its columns.
        classes: ``(C,)``, the same classes as the ensemble names them.
        logits: whether a softmax makes probabilities of the outputs of a module or function.
    """

    name: str
    model: Any
    method: str
    own: Array
    classes: Array
    logits: bool = False

    def convert(self, outputs: Array) -> Array:
        """Make probabilities ``(n, N_k)`` of what the model returned, ``(n, N_k)`` or ``(n,)``."""
        if self.method == "predict":
            return self._one_hot(outputs)
        values = outputs.astype(np.float64)
        if self.method == "decision_function" and values.ndim == 1:
            positive = expit(values)
            values = np.stack([1 - positive, positive], 1)
        elif self.method == "decision_function":
            values = softmax(values, axis=1)
        if values.ndim != 2 or values.shape[1] != len(self.own):
            raise ValueError(
                f"member '{self.name}' must give (n, {len(self.own)}) scores, one column a class, got shape "
                f"{outputs.shape}; the attribute classes_ of a member names its columns"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"member '{self.name}' gives scores that are not finite")
        return softmax(values, axis=1) if self.logits else np.maximum(values, 0.0)

    def _one_hot(self, labels: Array) -> Array:
        hot: Array = np.asarray(labels).reshape(-1, 1) == self.own
        if not hot.any(1).all():
            stranger = np.asarray(labels).ravel()[~hot.any(1)][0]
            raise ValueError(f"member '{self.name}' predicts {stranger!r}, which is not one of its classes {self.own}")
        return hot.astype(np.float64)


def predict_values(name: str, model: Any, X: Any, n_outputs: int = 1) -> Array:
    """Return the predictions ``(n, m)`` of a fitted regressor, module or function for m outputs."""
    by_call = isinstance(model, nn.Module) or not hasattr(model, "predict")
    values: Array = call_model(name, model, "" if by_call else "predict", X)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[1] != n_outputs:
        wanted = "one value" if n_outputs == 1 else f"{n_outputs} values"
        raise ValueError(f"member '{name}' must give {wanted} a row, got shape {values.shape}")
    if not np.isfinite(values.astype(np.float64)).all():
        raise ValueError(f"member '{name}' gives predictions that are not finite")
    return values.astype(np.float64)


def weight_argument(model: Any) -> str | None:
    """Return the name under which ``model.fit`` takes sample weights, or None if it does not."""
    if has_fit_parameter(model, "sample_weight"):
        return "sample_weight"
    if isinstance(model, Pipeline) and has_fit_parameter(model.steps[-1][1], "sample_weight"):
        return f"{model.steps[-1][0]}__sample_weight"
    return None


def fit_member(name: str, model: Any, X: Any, y: Array, weight: Array | None) -> Any:
    """Fit an estimator to ``y`` ``(n,)`` or ``(n, m)``, with weights ``(n,)`` where it takes them, and return it."""
    argument = None if weight is None else weight_argument(model)
    try:
        return model.fit(X, y) if argument is None else model.fit(X, y, **{argument: weight})
    except ValueError as error:
        hint = "; a member for one target goes into MultiOutputRegressor" if y.ndim == 2 else ""
        raise ValueError(f"member '{name}': {error}{hint}") from error


def check_labels(y: Any) -> Array:
    """Return labels ``(n,)`` of any type as an array, or raise ValueError."""
    if isinstance(y, list | tuple) and len({type(label) for label in y}) > 1:
        y = np.array(y, dtype=object)
    y = column_or_1d(y, warn=True)
    if y.dtype.kind == "O":
        values = y.tolist()
        kinds = {type(label) for label in values}
        if any(label is None or label != label for label in values):
            raise ValueError("Input y contains NaN or None; every row needs a label")
        if len(kinds) > 1:
            if any(isinstance(label, float) and not label.is_integer() for label in values):
                raise ValueError("Unknown label type: continuous. Labels must be classes, not measurements")
            return np.asarray(y)
        y = y if kinds == {str} else np.array(values)
    check_classification_targets(y)
    return np.asarray(y)


def encode(y: Array) -> tuple[Array, Array, bool]:
    """Return the labels that occur in order, the position ``(n,)`` of each row's, and whether types are mixed."""
    if y.dtype.kind != "O" or len({type(label) for label in y.tolist()}) == 1:
        return *np.unique(y, return_inverse=True), False
    labels = _objects(sort_labels(set(y.tolist())))
    place = {label: i for i, label in enumerate(labels.tolist())}
    return labels, np.array([place[label] for label in y.tolist()], dtype=np.int64), True


def union(arrays: list[Array]) -> Array:
    """Return all labels ``(N,)`` that occur in arrays of one dimension, each ``(m,)``, in order."""
    kinds = {"number" if a.dtype.kind in "iuf" else a.dtype.kind for a in arrays}
    if len(kinds) == 1 and "O" not in kinds:
        return np.unique(np.concatenate(arrays))
    return _objects(sort_labels({label for a in arrays for label in a.tolist()}))


def steady(scores: Array) -> Array:
    """Round scores, of any shape, to 36 bits (about eleven digits), so that the order of a sum does not matter.

    Fusers merge equal rows before they deal them to folds; without this, noise in the last bits would decide the folds.
    """
    part, exponent = np.frexp(scores)
    rounded: Array = np.ldexp(np.round(part * 2.0**36) / 2.0**36, exponent)
    return rounded


def _objects(labels: list[Any]) -> Array:
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def method_of(name: str, model: Any) -> str:
    """Return the best method of a classifier; empty where the model itself is to be called."""
    if isinstance(model, nn.Module):
        return ""
    one_against_one = getattr(_innermost(model), "decision_function_shape", None) == "ovo"  # no column a class
    for method in _METHODS:
        if hasattr(model, method) and not (one_against_one and method == "decision_function"):
            return method
    if callable(model):
        return ""
    raise ValueError(
        f"member '{name}' is of type {type(model).__name__}: expected an estimator with {', '.join(_METHODS[:2])} or "
        f"{_METHODS[2]}, a torch module, or a function from X to scores"
    )


def _innermost(model: Any) -> Any:
    """Return the estimator whose outputs these are: the last of a pipeline, the one frozen, the best of a search."""
    while True:
        if isinstance(model, Pipeline):
            model = model.steps[-1][1]
        elif isinstance(model, FrozenEstimator):
            model = model.estimator
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return model


def call_model(name: str, model: Any, method: str, X: Any, several: bool = False) -> Any:
    """Return what a model says of X as an array of any shape; of ``several`` outputs perhaps as a list of arrays."""
    try:
        if method:
            outputs = getattr(model, method)(X)
        else:
            outputs = _forward(model, X) if isinstance(model, nn.Module) else model(X)
        if several and isinstance(outputs, list | tuple) and np.ndim(outputs[0]) == 2:
            return [_array(part, numbers=not method) for part in outputs]
        return _array(outputs, numbers=not method)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"member '{name}': {error}") from error


def _array(outputs: Any, numbers: bool) -> Array:
    """Return outputs, which may be a tensor with a gradient, as an array; as float64 if they must be numbers."""
    if isinstance(outputs, torch.Tensor):
        outputs = outputs.detach().cpu()
        outputs = (outputs.double() if outputs.is_floating_point() else outputs).numpy()
    if not numbers:
        return np.asarray(outputs)
    if isinstance(outputs, tuple):
        raise ValueError("expected one array or tensor of outputs, got a tuple")
    try:
        return np.asarray(outputs, dtype=np.float64)
    except TypeError as error:
        raise ValueError(f"expected an array or tensor of numbers, got a {type(outputs).__name__}") from error


def _forward(module: nn.Module, X: Any) -> torch.Tensor:
    """Call a module in evaluation mode, without gradients; leave its modes as they were.

    It gets X in the type of its parameters, float32 where it has none.
    """
    state = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()]
    dtype, device = (state[0].dtype, state[0].device) if state else (torch.float32, torch.device("cpu"))
    plain = np.float64 if dtype == torch.float64 else np.float32
    inputs = torch.as_tensor(np.asarray(X.toarray() if issparse(X) else X, dtype=plain)).to(device, dtype)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            parts = [module(rows) for rows in inputs.split(_BATCH)]
        if not isinstance(parts[0], torch.Tensor):
            raise ValueError(f"expected one tensor of outputs, got a {type(parts[0]).__name__}")
        return torch.cat(parts)
    finally:
        for part, training in modes:
            part.training = training


def are_probabilities(outputs: Array) -> bool:
    """Return whether outputs of any shape are ``(n, N)`` with rows that sum to one."""
    return outputs.ndim == 2 and bool((outputs >= 0).all() and np.allclose(outputs.sum(1), 1, atol=1e-4))
