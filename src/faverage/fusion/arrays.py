"""What fusers do with arrays of scores: check, merge, split into folds, subsample, scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
SQUARINGS = 7  # of the steps between members in ``couple``: 128 steps

_KEPT_ROWS = 10_000  # rows of earlier data that partial_fit trains on again, at most,
_KEPT_SCORES = 1 << 22  # and how many scores they may hold
_MERGE_SCORES = 1 << 24  # up to this size equal rows are merged before training
_MOST = 1e12  # weights in a file that are larger were not learned
_CHUNK = 1 << 22  # scores worked on at a time where all of them are looked at


def check_scores(scores: ArrayLike) -> Array:
    """Return scores ``(n, K, N)`` as an array of real numbers, or raise ValueError.

    Numbers are neither cast nor copied here, since there may be too many for that: whoever works on a chunk casts it.
    """
    scores = np.asarray(scores)
    if scores.ndim != 3 or 0 in scores.shape[1:]:
        raise ValueError(f"scores must have shape (n, K, N): examples x models x classes, got {scores.shape}")
    if scores.dtype.kind not in "fiub":
        scores = scores.astype(np.float64)
    for rows in chunks(scores):
        part = scores[rows].astype(np.float32) if scores.dtype == np.float16 else scores[rows]
        low, high = np.fmin.reduce(part, axis=None), np.fmax.reduce(part, axis=None)
        if low < 0 or np.isinf(high):
            raise ValueError(f"scores must be finite and >= 0 (NaN: not known), found {low if low < 0 else high:g}")
    return scores


def chunks(scores: Array) -> Iterator[slice]:
    """Yield slices of rows that cover all scores ``(n, K, N)``."""
    step = max(1, _CHUNK // int(np.prod(scores.shape[1:])))
    for start in range(0, len(scores), step):
        yield slice(start, start + step)


def known_classes(scores: Array, weight: Array) -> Array:
    """Return which model knows which class, ``(K, N)``: those with a number in any row of scores that has weight.

    Scores are ``(n, K, N)``, weights ``(n,)``.
    """
    known = np.zeros(scores.shape[1:], dtype=bool)
    for rows in chunks(scores):
        known |= (~np.isnan(scores[rows])[weight[rows] > 0]).any(0)
    return known


def fill_gaps(scores: Array, known: Array) -> Array:
    """Return scores ``(n, K, N)`` in which a model that is missing for a row says the mean of those present.

    Only what the model knows, ``(K, N)``, is filled: what it never knew stays NaN, as does what nobody present knows.

    >>> scores = np.array([[[0.9, 0.1, np.nan], [0.5, 0.3, 0.2], [np.nan] * 3]])
    >>> fill_gaps(scores, np.array([[True, True, False], [True] * 3, [True] * 3]))[0]
    array([[0.9, 0.1, nan],
           [0.5, 0.3, 0.2],
           [0.7, 0.2, 0.2]])
    """
    gaps = np.isnan(scores)
    if not (gaps & known).any():
        return scores
    mean = np.where(gaps.all(1), np.nan, masked_mean(scores))
    return np.where(gaps & known, mean[:, None], scores)


def couple(scores: Array) -> Array:
    """Return scores ``(n, K, N)`` in which every model speaks of all classes, without learning anything.

    A model's probabilities x_k hold if the class is one of those it knows, S_k. So there is a consensus p with

        p(c) = mean over the models k that know c of p(S_k) x_k(c),    p(S_k) = Σ_{c ∈ S_k} p(c):

    the stationary distribution of steps from model to model (pairwise coupling, for sets of any size). What a model
    says of what it knows is scaled by p(S_k), and of everything else it says p. A class that nobody knows has
    1/N beside.

    >>> scores = np.array([[[0.9, 0.1, np.nan], [np.nan, 0.5, 0.5], [0.9, np.nan, 0.1]]])
    >>> couple(scores)[0].round(2)
    array([[0.82, 0.09, 0.09],
           [0.82, 0.09, 0.09],
           [0.82, 0.09, 0.09]])
    """
    here = ~np.isnan(scores)
    x = np.where(here, scores, 0.0)
    x /= np.maximum(x.sum(2, keepdims=True), 1.0)
    count = here.sum(1)
    part = x / np.maximum(count, 1)[:, None]
    steps = here.astype(np.float64) @ part.transpose(0, 2, 1)  # (n, K, K)
    for _ in range(SQUARINGS):
        steps = steps @ steps
        steps /= np.maximum(steps.max((1, 2), keepdims=True), 1e-300)  # where scores sum to less than one, it falls
    p = ((steps @ here.mean(2, keepdims=True)) * part).sum(1)  # from equal probabilities
    p = normalise(p) * (count > 0) + (count == 0) / scores.shape[2]
    mass = (here * p[:, None]).sum(2, keepdims=True)
    coupled: Array = np.where(here, mass * x, p[:, None])
    return coupled


def check_labels(scores: Array, y: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Array, Array]:
    """Return labels and weights, ``(n,)`` each, that fit the scores ``(n, K, N)``, or raise ValueError."""
    n, _, n_classes = scores.shape
    y = np.asarray(y)
    if n == 0:
        raise ValueError("scores must have at least one row to learn from")
    if y.shape != (n,) or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"y must be whole-number labels of shape ({n},), got {y.dtype} of shape {y.shape}")
    if y.min() < 0 or y.max() >= n_classes:
        raise ValueError(f"y must be labels in 0 … {n_classes - 1}, found {y.min() if y.min() < 0 else y.max()}")
    weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (n,) or not np.isfinite(weight).all() or weight.min() < 0 or weight.sum() <= 0:
        raise ValueError(f"sample_weight must be {n} finite, non-negative numbers, not all zero")
    return y.astype(np.int64), weight


def merge_rows(scores: Array, y: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Bring scores ``(n, K, N)``, labels and weights ``(n,)`` into a canonical form.

    Rows of weight 0 are dropped, equal rows merged, the rest sorted.
    So the order of the rows does not matter, and a weight of 2 is the same as a row that occurs twice, to the last bit.
    Data too large for that is returned as it is, uncopied, rows of weight 0 included.
    """
    if int((weight > 0).sum()) * int(np.prod(scores.shape[1:])) > _MERGE_SCORES:
        return scores, y, weight
    if (weight == 0).any():
        scores, y, weight = scores[weight > 0], y[weight > 0], weight[weight > 0]
    scores = scores.astype(np.float64)
    flat = np.nan_to_num(scores.reshape(len(scores), -1), nan=-1.0)
    direction = np.sqrt(np.arange(2, flat.shape[1] + 2) % 7.389)  # any fixed direction without ties
    order = np.lexsort((flat @ direction, y))
    flat, scores, y, weight = flat[order], scores[order], y[order], weight[order]
    new = np.concatenate([[True], (flat[1:] != flat[:-1]).any(1) | (y[1:] != y[:-1])])
    return scores[new], y[new], np.add.reduceat(weight, np.flatnonzero(new))


def folds_of(y: Array, n_folds: int) -> Array:
    """Deal the rows of each class to folds in turn; return each row's fold ``(n,)``.

    After ``merge_rows`` the rows of a class lie in the order of their scores, so folds are alike in class and score.
    """
    order = np.argsort(y, kind="stable")
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = np.arange(len(y)) % n_folds
    return fold


def subsample(scores: Array, y: Array, weight: Array, limit: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return rows of non-zero weight with at most ``limit`` scores in all, drawn evenly from the classes.

    Scores are ``(n, K, N)``, or anything else with n rows; labels and weights ``(n,)``.
    """
    most = max(1, limit // int(np.prod(scores.shape[1:])))
    counting = np.flatnonzero(weight > 0)
    if len(counting) <= most:
        return (scores, y, weight) if len(counting) == len(y) else (scores[counting], y[counting], weight[counting])
    order = counting[np.random.default_rng(seed).permutation(len(counting))]
    order = order[np.argsort(y[order], kind="stable")]
    rows = np.sort(order[np.linspace(0, len(order) - 1, most).astype(np.int64)])
    return scores[rows], y[rows], weight[rows]


def normalise(values: Array) -> Array:
    """Scale rows of ``(n, N)`` to sum to one; NaN counts as 0, and rows without any mass become uniform."""
    values = np.where(np.isnan(values), 0.0, values)
    total = values.sum(1, keepdims=True)
    safe: Array = np.where(total > 0, values / np.where(total > 0, total, 1.0), 1 / values.shape[1])
    return safe


def masked_mean(scores: Array) -> Array:
    """Return the mean ``(n, N)`` of scores ``(n, K, N)`` over the models that know a class; 0 where none does."""
    known = ~np.isnan(scores)
    count = known.sum(1)
    mean: Array = np.where(known, scores, 0.0).sum(1) / np.maximum(count, 1)
    return mean


def grown(scores: Array, n_models: int, n_classes: int) -> Array:
    """Return scores ``(n, K, N)`` with room for models and classes that came later, as NaN."""
    extra = (n_models - scores.shape[1], n_classes - scores.shape[2])
    return np.pad(scores, ((0, 0), (0, extra[0]), (0, extra[1])), constant_values=np.nan)


def sample(scores: Array, y: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return the rows of ``(n, K, N)`` to train on again later, with labels and weights that stand for all ``(n,)``.

    Where there are too many, each is kept with a chance in proportion to its weight, evenly over the classes, and those
    that are kept weigh alike: also after many such draws no row stands for most of the others.
    """
    most = max(1, min(_KEPT_ROWS, _KEPT_SCORES // int(np.prod(scores.shape[1:]))))
    rows = np.flatnonzero(weight > 0)
    kept = weight[rows]
    if len(rows) > most:
        rng = np.random.default_rng(crc32(weight.tobytes()))  # another one in every draw
        order = rng.permutation(len(rows))
        order = order[np.argsort(y[rows[order]], kind="stable")]
        rows, kept = rows[order], kept[order]
        chance = np.zeros(len(rows))
        while True:  # rows heavier than the threshold are all kept; the others share the rest
            sure = chance >= 1
            chance = np.where(sure, 1.0, kept * ((most - sure.sum()) / max(kept[~sure].sum(), 1e-300)))
            if not (chance[~sure] > 1).any():
                break
        taken = np.diff(np.floor(np.cumsum(chance) + rng.random()), prepend=0.0) > 0
        rows, kept = rows[taken], kept[taken] / chance[taken]
        rows, kept = rows[np.argsort(rows)], kept[np.argsort(rows)]
    return scores[rows].astype(np.float32), y[rows], kept * (weight.sum() / kept.sum())


def learned(
    state: dict[str, Any], name: str, shape: tuple[int, ...], low: float = -_MOST, high: float = _MOST
) -> Array:
    """Return what was learned, from a file: floats of any shape that is asked for, in this range; else ValueError."""
    value = state.get(name)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != shape:
        found = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"'{name}' must be floats of shape {shape}, got {found}")
    value = value.astype(np.float64, copy=False)
    if not ((value >= low) & (value <= high)).all():
        raise ValueError(f"'{name}' must be finite numbers from {low:g} to {high:g}")
    return value


def number(value: Any, name: str, low: float = -_MOST, high: float = _MOST) -> float:
    """Return a number from a file, or raise ValueError unless it is one in this range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"'{name}' must be a number from {low:g} to {high:g}, got {str(value)[:40]!r}")
    return float(value)


def softmax(z: Array) -> Array:
    """Return the softmax of ``(..., N)`` over the last dimension."""
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def log_softmax(z: Array) -> Array:
    """Return the log-softmax of ``(..., N)`` over the last dimension."""
    z = z - z.max(-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(-1, keepdims=True)))
