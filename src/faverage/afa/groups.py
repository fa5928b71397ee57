"""Groups of classes for the structure ``block``: which classes the models take for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["groups_by_confusion"]

Array = NDArray[Any]

_TOP = 10  # classes of each row that count as confused with its label, the most probable ones
_CHUNK = 1 << 22  # scores worked on at a time


def groups_by_confusion(scores: ArrayLike, y: ArrayLike, size: int) -> list[int]:
    """Propose groups of at most ``size`` classes that the models confuse.

    The affinity of classes a and b is the mean probability that rows of class a give to b plus that of b to a, counting
    the ten most probable wrong classes of each row. Pairs of groups that are each other's nearest, by their mean
    affinity, are merged as long as the result is not too large: average linkage on a sparse graph, with a cap. What is
    left is then packed into groups that are as full as can be, which costs little and keeps the sizes alike.

    Args:
        scores: ``(n, K, N)``, or probabilities ``(n, N)``, NaN where a class is not known; may be a memory map. Rows
            that the models were not trained on say most.
        y: labels ``(n,)`` in 0 … N-1.
        size: the largest group, from 1 to N.

    Returns:
        The group of each class, for ``AFA(..., structure="block", groups=...)``.

    >>> p = np.array([[0.6, 0.0, 0.4, 0.0], [0.0, 0.7, 0.0, 0.3], [0.5, 0.0, 0.5, 0.0], [0.0, 0.2, 0.0, 0.8]])
    >>> groups_by_confusion(p, [0, 1, 2, 3], size=2)
    [0, 1, 0, 1]
    """
    scores, y = np.asarray(scores), np.asarray(y)
    if scores.ndim not in (2, 3) or 0 in scores.shape or scores.dtype.kind not in "fiub":
        raise ValueError(f"scores must be numbers of shape (n, K, N) or (n, N), got {scores.dtype} {scores.shape}")
    n_classes = scores.shape[-1]
    if y.shape != (len(scores),) or y.dtype.kind not in "iu":
        raise ValueError(f"y must be whole-number labels of shape ({len(scores)},), got {y.dtype} of shape {y.shape}")
    if y.min() < 0 or y.max() >= n_classes:
        raise ValueError(f"y must be labels in 0 … {n_classes - 1}, found {y.min() if y.min() < 0 else y.max()}")
    if isinstance(size, bool) or int(size) != size or not 1 <= size <= n_classes:
        raise ValueError(f"size must be a whole number from 1 to the {n_classes} classes, got {size!r}")
    return _packed(_agglomerated(_affinity(scores, y.astype(np.int64)), int(size)), int(size))


def _affinity(scores: Array, y: Array) -> Any:
    """Return the symmetric sparse matrix ``(N, N)`` of affinities."""
    from scipy.sparse import coo_matrix, csr_matrix

    n_classes = scores.shape[-1]
    top = min(_TOP, n_classes - 1)
    total = csr_matrix((n_classes, n_classes))
    if top == 0:
        return total
    step = max(1, _CHUNK // int(np.prod(scores.shape[1:])))
    for i in range(0, len(y), step):
        p, labels = np.nan_to_num(scores[i : i + step].astype(np.float32)), y[i : i + step]
        p = p.sum(1) if p.ndim == 3 else p
        rows = np.arange(len(p))
        p /= np.maximum(p.sum(1, keepdims=True), 1e-30)
        p[rows, labels] = 0
        columns = np.argpartition(p, n_classes - top, axis=1)[:, -top:]
        values = np.take_along_axis(p, columns, 1).astype(np.float64).ravel()
        where = (np.repeat(labels, top)[values > 0], columns.ravel()[values > 0])
        total = total + coo_matrix((values[values > 0], where), shape=total.shape).tocsr()
    count = np.maximum(np.bincount(y, minlength=n_classes), 1)
    mean = coo_matrix(total)
    mean.data = mean.data / count[mean.row]
    return (mean + mean.T).tocsr()


def _agglomerated(affinity: Any, size: int) -> Array:
    """Return the cluster of each class: average linkage, no cluster larger than ``size``."""
    from scipy.sparse import coo_matrix

    cluster = np.arange(affinity.shape[0])
    sizes = np.ones(len(cluster), dtype=np.int64)
    while True:
        pairs = affinity.tocoo()
        keep = (pairs.row != pairs.col) & (sizes[pairs.row] + sizes[pairs.col] <= size)
        a, b, value = pairs.row[keep], pairs.col[keep], pairs.data[keep]
        if len(a) == 0:
            return cluster
        mean = value / (sizes[a] * sizes[b])
        best = np.full(len(sizes), -np.inf)
        np.maximum.at(best, a, mean)
        nearest = np.full(len(sizes), len(sizes))
        at_best = mean == best[a]
        np.minimum.at(nearest, a[at_best], b[at_best])  # of several, the first
        partner = np.append(nearest, -1)
        mutual = np.flatnonzero((partner[nearest] == np.arange(len(sizes))) & (nearest > np.arange(len(sizes))))
        into = np.arange(len(sizes))
        if len(mutual):
            into[nearest[mutual]] = mutual
        else:  # rounding can hide that the strongest pair is mutual
            strongest = int(mean.argmax())
            into[max(a[strongest], b[strongest])] = min(a[strongest], b[strongest])
        kept, number = np.unique(into, return_inverse=True)
        cluster = number[cluster]
        sizes = np.bincount(cluster)
        affinity = coo_matrix((value, (number[a], number[b])), shape=(len(kept), len(kept))).tocsr()


def _packed(cluster: Array, size: int) -> list[int]:
    """Put whole clusters together into groups of at most ``size``, the largest first, each where it fits best."""
    sizes = np.bincount(cluster)
    room: list[list[int]] = [[] for _ in range(size + 1)]  # groups by the room left in them
    group = np.empty(len(sizes), dtype=np.int64)
    n_groups = 0
    for c in np.argsort(-sizes, kind="stable"):
        need = int(sizes[c])
        left = next((r for r in range(need, size) if room[r]), size)
        if left == size:
            group[c] = n_groups
            n_groups += 1
        else:
            group[c] = room[left].pop()
        room[left - need].append(int(group[c]))
    _, first, number = np.unique(group[cluster], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    found: list[int] = rank[number].tolist()
    return found
