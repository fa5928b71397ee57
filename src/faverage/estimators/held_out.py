"""What a classifier learns from rows that neither its fusers nor their members had seen: sets of labels, and offsets.

A set holds the true label with a stated probability (split conformal prediction). A row's score is 1 − p(true label)
(the least ambiguous sets of Sadinle, Lei and Wasserman, 2019). With r held-out rows, a label is in the set of a new row
if 1 − p(label) is at most the ⌈(r + 1) · coverage⌉-th smallest of their scores.

Offsets serve a metric. The fuser minimises a proper loss, and its probabilities stay as they are. Which class to
predict is another matter: the most probable one is best for accuracy, not for balanced accuracy or F1. So the label of
row i is

    argmax_c  log p_i(c) + b_c

with offsets b that are best for the metric on held-out rows, by coordinate search, if they help at all: those found on
one half of the rows must gain on the other half. For two classes this is a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import get_scorer

from faverage.errors import UserError
from faverage.fusion import Fuser, get_fuser
from faverage.fusion.arrays import folds_of

Array = NDArray[Any]
Metric = str | Callable[[Array, Array], float]
_FOLDS = 5
_ROWS, _SCORES = 10_000, 1 << 22  # rows that are kept, at most, and how many scores they may hold
_CANDIDATES, _EVALUATIONS = 30, 1000  # values that are tried for an offset, and for all offsets together
_SMOOTH = 3  # neighbours on each side over which the metric is averaged: a narrow peak is luck
_SWEEPS = 2
_LEAST = 1e-12  # log-probabilities count smaller ones as this


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


def conformal_quantile(scores: Array, weight: Array, coverage: float) -> float:
    """Return what the score of a new row exceeds with probability 1 − coverage, by scores ``(r,)`` of held-out rows.

    It is infinite where there are too few rows. Weights ``(r,)`` are positive; a new row counts as one of mean weight.

    >>> [conformal_quantile(np.array([0.2, 0.1, 0.7]), np.ones(3), coverage) for coverage in (0.5, 0.75, 0.9)]
    [0.2, 0.7, inf]
    """
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(weight[order])
    rank = int(np.searchsorted(below, coverage * (below[-1] + weight.mean()) * (1 - 1e-12)))
    return float(scores[order[rank]]) if rank < len(order) else np.inf


def threshold(held_out: Array, y: Array, weight: Array | None, coverage: float) -> float:
    """Return the largest 1 − p of a label that is in the set.

    Args:
        held_out: probabilities ``(r, N)``.
        y: positions of the true labels ``(r,)``.
        weight: positive, ``(r,)``, or None.
        coverage: between 0 and 1.
    """
    return conformal_quantile(
        1 - held_out[np.arange(len(y)), y], np.ones(len(y)) if weight is None else weight, coverage
    )


def sets_of(p: Array, chosen: Array, limit: float) -> Array:
    """Return which labels are in each row's set, ``(n, N)`` booleans, from probabilities ``(n, N)``.

    The label that is predicted, ``chosen`` ``(n,)``, always is: no set is empty.
    """
    inside: Array = 1 - p <= limit
    inside[np.arange(len(p)), chosen] = True
    return inside


def log_scores(p: Array) -> Array:
    """Return the log-probabilities ``(n, N)`` that offsets are added to."""
    logs: Array = np.log(np.maximum(p, _LEAST))
    return logs


def tune(probabilities: list[Array], measure: Callable[[list[Array], Array], float]) -> list[Array]:
    """Return offsets ``(N_j,)`` of each output for a metric; zeros where those of one half do not help on the other.

    Args:
        probabilities: of each output ``(n, N_j)``, rows in random order.
        measure: from positions of predicted labels, ``(r,)`` for each output, and rows ``(r,)`` to the metric's value.
    """
    rows = np.arange(len(probabilities[0]))
    gain = 0.0
    for half, other in ((rows[::2], rows[1::2]), (rows[1::2], rows[::2])):
        found = find_offsets([p[half] for p in probabilities], lambda codes, part=half: measure(codes, part))  # type: ignore[misc]
        held = [log_scores(p[other]) for p in probabilities]
        tuned = [(p + b).argmax(1) for p, b in zip(held, found, strict=True)]
        gain += measure(tuned, other) - measure([p.argmax(1) for p in held], other)
    if gain <= 0:
        return [np.zeros(p.shape[1]) for p in probabilities]
    return find_offsets(probabilities, lambda codes: measure(codes, rows))


def find_offsets(probabilities: list[Array], measure: Callable[[list[Array]], float]) -> list[Array]:
    """Return the offsets ``(N_j,)`` of each output that are best for a metric on these rows.

    Args:
        probabilities: of each output ``(n, N_j)``.
        measure: from positions of predicted labels, ``(n,)`` for each output, to the value of the metric.

    >>> p, y = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]), np.array([0, 0, 1, 1])
    >>> (offsets,) = find_offsets([p], lambda codes: float((codes[0] == y).mean()))
    >>> (np.log(p) + offsets).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    logs = [log_scores(p) for p in probabilities]
    offsets = [np.zeros(p.shape[1]) for p in probabilities]
    codes = [p.argmax(1) for p in logs]
    best = measure(codes)
    most = min(_CANDIDATES, max(8, _EVALUATIONS // sum(map(len, offsets))))
    for _ in range(_SWEEPS):
        before = best
        for j, p in enumerate(logs):
            for c in range(1 if p.shape[1] == 2 else 0, p.shape[1]):
                others = p + offsets[j]
                others[:, c] = -np.inf
                rival, need = others.argmax(1), others.max(1) - p[:, c]  # c is predicted where its offset exceeds need
                tried = np.sort(np.append(_between(need, most), offsets[j][c]))
                choices = [np.where(value > need, c, rival) for value in tried]
                values = _smooth(np.array([measure([*codes[:j], choice, *codes[j + 1 :]]) for choice in choices]))
                here = int(np.searchsorted(tried, offsets[j][c]))
                if values.max() > values[here]:
                    top = np.flatnonzero(values == values.max())
                    here = int(top[np.abs(tried[top] - offsets[j][c]).argmin()])
                offsets[j][c], codes[j] = tried[here], choices[here]
        best = measure(codes)
        if best <= before:
            break
    return [b - b.mean() for b in offsets]


def metric_of(metric: Any) -> Callable[[Array, Array, Array | None], float]:
    """Return a function from labels, predicted labels, both ``(n,)`` or ``(n, m)``, and weights ``(n,)`` to a value."""
    scorer = type(get_scorer("accuracy"))
    if not isinstance(metric, str | scorer):
        if not callable(metric):
            raise UserError(
                f"metric must be the name of a scorer, or a function of labels and predicted labels, got {metric!r}"
            )
        return lambda y, predicted, weight: _number(metric, metric(y, predicted))
    try:
        score: Any = get_scorer(metric)
    except ValueError as error:
        raise UserError(f"metric: {error}", what="metric") from None

    if score._response_method != "predict":
        raise UserError(
            f"the metric {metric} is of probabilities, and offsets only decide which label is predicted",
            what="metric",
            hint="leave it out (the fuser minimises the log-loss already), or give a metric of labels, such as "
            "'balanced_accuracy' or 'f1_macro'",
        )

    def value(y: Array, predicted: Array, weight: Array | None) -> float:
        weights = {} if weight is None else {"sample_weight": weight}
        try:  # what the scorer does once it has the labels, of which earlier versions ask too much before
            return _number(metric, score._sign * score._score_func(y, predicted, **score._kwargs, **weights))
        except (TypeError, ValueError) as error:
            raise UserError(f"metric {metric}: {error}", what="metric") from error

    return value


def _between(need: Array, most: int) -> Array:
    """Return values ``(t,)``, at most ``most``, between the needed offsets ``(n,)``, and one beyond each end."""
    found = np.unique(need)
    middles = np.concatenate([found[:1] - 1, (found[1:] + found[:-1]) / 2, found[-1:] + 1])
    picked: Array = middles[np.unique(np.linspace(0, len(middles) - 1, most).round().astype(int))]
    return picked


def _smooth(values: Array) -> Array:
    width = min(_SMOOTH, (len(values) - 1) // 8)  # few candidates are few rows: nothing to average over
    if not width:
        return values
    kernel = np.ones(2 * width + 1) / (2 * width + 1)
    return np.round(np.convolve(np.pad(values, width, mode="edge"), kernel, "valid"), 12)


def _number(metric: Any, value: Any) -> float:
    if not np.isscalar(value) or not np.isfinite(float(value)):  # type: ignore[arg-type]
        raise UserError(f"the metric {metric} must return a finite number, got {value!r}", what="metric")
    return float(value)  # type: ignore[arg-type]
