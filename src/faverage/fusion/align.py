"""Models that know different classes: their outputs side by side, by label, as one ``(n, K, N)`` array.

NaN stands for "this model does not know this class", or, over a whole row of a model, "this model gave no answer".
Fusers take such arrays as they are; ``pad`` fills the gaps for whatever cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Aligned", "Padding", "align", "pad"]

Padding = Literal["inlierness", "uniform", "zero"]
Array = NDArray[Any]


class Aligned(NamedTuple):
    """Scores ``(n, K, N)`` with NaN where a model does not know a class, and the N labels.

    >>> both = align([[[0.9, 0.1]], [[0.7, 0.3]]], [["cat", "cow"], ["cow", "dog"]])
    >>> both.scores.shape, both.classes.tolist()
    ((1, 2, 3), ['cat', 'cow', 'dog'])
    """

    scores: Array
    classes: Array


def align(
    outputs: Sequence[ArrayLike],
    classes: Sequence[Sequence[Any] | Array],
    *,
    all_classes: Sequence[Any] | Array | None = None,
    padding: Padding | None = None,
    threshold: float = 0.5,
) -> Aligned:
    """Put the outputs of K models side by side, by label.

    Args:
        outputs: for each model an array ``(n, N_k)`` of probabilities.
        classes: for each model its N_k labels, in the order of its columns (scikit-learn's ``classes_``).
        all_classes: the N labels of the result, in order; by default all labels that occur, sorted.
        padding: fill the gaps at once, as ``pad`` does; None leaves NaN.
        threshold: of the padding ``inlierness``.

    >>> cats, dogs = [[0.9, 0.1]], [[0.3, 0.7]]
    >>> scores, labels = align([cats, dogs], [["cat", "cow"], ["dog", "cow"]])
    >>> labels.tolist()
    ['cat', 'cow', 'dog']
    >>> scores.tolist()
    [[[0.9, 0.1, nan], [nan, 0.7, 0.3]]]
    """
    if len(outputs) == 0 or len(outputs) != len(classes):
        raise ValueError(
            f"give as many lists of classes as outputs, at least one; got {len(classes)} and {len(outputs)}"
        )
    arrays = [np.asarray(output) for output in outputs]
    labels = [list(c) for c in classes]
    for k, (array, names) in enumerate(zip(arrays, labels, strict=True)):
        if array.ndim != 2 or array.shape[1] != len(names):
            raise ValueError(f"output {k} must have shape (n, {len(names)}), one column a class, got {array.shape}")
        if len(array) != len(arrays[0]):
            raise ValueError(f"output {k} has {len(array)} rows, output 0 has {len(arrays[0])}")
        if array.dtype.kind not in "fiub":
            raise ValueError(f"output {k} must be numbers, got {array.dtype}")
        if any(name is None or name != name for name in names):
            raise ValueError(f"classes of output {k} must be labels, found None or NaN")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"classes of output {k} name {twice!r} twice")
    every = sort_labels({name for names in labels for name in names}) if all_classes is None else list(all_classes)
    if len(set(every)) != len(every):
        raise ValueError("all_classes must not name a class twice")
    column = {name: i for i, name in enumerate(every)}
    dtype = np.result_type(np.float32, *(a.dtype for a in arrays))
    scores = np.full((len(arrays[0]), len(arrays), len(every)), np.nan, dtype=dtype)
    for k, (array, names) in enumerate(zip(arrays, labels, strict=True)):
        unknown = [name for name in names if name not in column]
        if unknown:
            raise ValueError(f"output {k} has the class {unknown[0]!r}, which is not among all_classes")
        scores[:, k, [column[name] for name in names]] = array
    if padding is not None:
        scores = pad(scores, padding, threshold)
    return Aligned(scores, label_array(every))


def pad(scores: ArrayLike, padding: Padding = "inlierness", threshold: float = 0.5) -> Array:
    """Fill the NaN of scores ``(n, K, N)``, model by model and row by row.

    With N_k the number of classes that model k knows and x its vector, which sums to one over them:

    - ``inlierness`` (section 3.4.2 of the paper): the known part keeps s = ½(N_k/N + 1) of the mass where max x ≥ t,
      else s = ½ N_k/N; the unknown classes share 1 − s. A model that knows all N classes stays as it is.
    - ``uniform``: every unknown class gets 1/N, the known part keeps N_k/N.
    - ``zero``: unknown classes get 0.

    With the first two each vector still sums to one. A model that gave no answer at all counts as uniform.

    >>> pad([[[0.6, 0.4, np.nan, np.nan]]]).round(3).tolist()
    [[[0.45, 0.3, 0.125, 0.125]]]
    >>> pad([[[0.6, 0.4, np.nan, np.nan]]], "uniform").tolist()
    [[[0.3, 0.2, 0.25, 0.25]]]
    """
    check_padding(padding, threshold)
    scores = np.asarray(scores)
    if scores.ndim != 3:
        raise ValueError(f"scores must have shape (n, K, N), got {scores.shape}")
    missing = np.isnan(scores)
    if not missing.any():
        return scores
    n_classes = scores.shape[-1]
    filled = np.where(missing, scores.dtype.type(0), scores)
    n_known = n_classes - missing.sum(-1, keepdims=True)
    share = n_known / n_classes
    if padding == "inlierness":
        share = 0.5 * (share + (filled.max(-1, keepdims=True) >= threshold))
        share = np.where(n_known == n_classes, 1.0, share)
    elif padding == "zero":
        share = np.ones_like(share)
    share = np.where(n_known == 0, 0.0, share)
    each = (1 - share) / np.maximum(n_classes - n_known, 1)
    return np.where(missing, each, filled * share).astype(scores.dtype, copy=False)


def check_padding(padding: Any, threshold: Any) -> None:
    """Raise ValueError unless these are options of ``pad``."""
    if padding not in ("inlierness", "uniform", "zero"):
        raise ValueError(f"padding must be 'inlierness', 'uniform' or 'zero', got {padding!r}")
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or threshold != threshold:
        raise ValueError(f"threshold must be a number, got {threshold!r}")


def sort_labels(labels: set[Any]) -> list[Any]:
    """Return labels in order; labels of types that do not compare are ordered by type, then as text."""
    try:
        return sorted(labels)
    except TypeError:
        return sorted(labels, key=lambda label: (type(label).__name__, str(label)))


def label_array(labels: list[Any]) -> Array:
    """Return labels as an array ``(N,)`` that keeps what they are: of objects where their types differ."""
    if len({type(label) for label in labels}) <= 1:
        return np.asarray(labels)
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array
