"""Arrays that are too large for memory: several files, read as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shards"]

Array = NDArray[Any]


class Shards:
    """Arrays, as a rule memory maps, one after the other along the first axis; only rows that are asked for are read.

    It takes the place of an array wherever rows are picked by number or slice.

    Args:
        parts: ``(n_i, ...)`` each, of one dtype, and of one shape except for the first axis.

    >>> both = Shards([np.arange(6).reshape(3, 2), np.arange(6, 10).reshape(2, 2)])
    >>> both.shape, both[[4, 0, 2]].tolist(), both[-1].tolist()
    ((5, 2), [[8, 9], [0, 1], [4, 5]], [8, 9])
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        if not parts:
            raise ValueError("Shards needs at least one array")
        self.parts = list(parts)
        kinds = {(part.dtype, part.shape[1:]) for part in self.parts}
        if len(kinds) > 1:
            raise ValueError(f"the arrays differ: {', '.join(sorted(f'{d} of shape (n, *{s})' for d, s in kinds))}")
        self.dtype = self.parts[0].dtype
        self.ends = np.cumsum([len(part) for part in self.parts])
        self.shape: tuple[int, ...] = (int(self.ends[-1]), *self.parts[0].shape[1:])
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        index = np.asarray(rows)
        if index.dtype == bool:
            if index.shape != (len(self),):
                raise IndexError(f"a mask for {len(self)} rows must have that many entries, got {index.shape}")
            index = np.flatnonzero(index)
        if index.ndim > 1 or (index.size and index.dtype.kind not in "iu"):
            raise IndexError(f"rows must be a number, a list of numbers, a mask or a slice, got {rows!r}")
        if index.ndim == 0:
            picked: Array = self[index[None]][0]
            return picked
        index = index.astype(np.int64)
        index = np.where(index < 0, index + len(self), index)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"rows must lie in 0 … {len(self) - 1}")
        place = np.searchsorted(self.ends, index, side="right")
        result = np.empty((len(index), *self.shape[1:]), self.dtype)
        for k in np.unique(place):
            chosen = place == k
            result[chosen] = self.parts[k][index[chosen] - (self.ends[k - 1] if k else 0)]
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:] if dtype is None else self[:].astype(dtype)
