"""Members of an ensemble: what they know, how to fit them, and how to read their outputs.

A member is a scikit-learn estimator (or a pipeline), a torch module, or a function from X to an array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit, softmax
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, has_fit_parameter
from torch import nn

from faverage.fusion.align import sort_labels

Array = NDArray[Any]
_METHODS = ("predict_proba", "decision_function", "predict")
_BATCH = 4096  # rows that a torch module gets at a time


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
    return labels, positions(y, labels), True


def positions(y: Array, labels: Array) -> Array:
    """Return where each of ``y`` ``(n,)`` stands among ``labels`` ``(N,)``."""
    column = {label: i for i, label in enumerate(labels.tolist())}
    return np.array([column[label] for label in y.tolist()], dtype=np.int64)


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
