"""Members that give a score for every pixel, as segmentation networks do: ``(n, C, H, W)``, fused pixel by pixel.

All pixels share the weights, so a sample of them is enough to learn from, and the rest is done in chunks: memory does
not depend on the number of images or their size. Maps may be memory maps, and so may the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from faverage.afa.explain import Explanation
from faverage.errors import UserError
from faverage.fusion.arrays import Array, softmax
from faverage.fusion.base import Fuser, get_fuser

__all__ = ["MapFuser", "MapScore"]

_CHUNK = 1 << 18  # scores, or labels, that are worked on at a time
_ROUNDING = {2: 5e-3, 4: 1e-4, 8: 1e-4}  # how far from one probabilities may sum to, by bytes of a number


class MapScore(NamedTuple):
    """How well maps agree with labels, over all pixels that are not ignored.

    Attributes:
        accuracy: share of the pixels that have the right class.
        mean_iou: mean of ``iou`` over the classes that occur.
        iou: ``(N,)``, intersection over union of each class; NaN where it occurs neither in labels nor in predictions.

    >>> MapScore(accuracy=0.75, mean_iou=0.5, iou=np.array([0.5, 0.5])).mean_iou
    0.5
    """

    accuracy: float
    mean_iou: float
    iou: Array


class MapFuser:
    """A fuser of maps ``(n, C, H, W)``, with one set of weights for all pixels.

    Pixels near each other are alike, so that the held-out pixels by which ``afa`` chooses are easier than those of new
    images: let the labelled maps be of many images rather than of large ones.

    Args:
        fuser: name of a fuser (``faverage.fusion.fuser_names()``), or a fuser.
        ignore: the label of pixels that are not learned from nor counted; None where there is none.
        pixels: how many labelled pixels to learn from. Half of them are spread evenly over the classes, for rare ones,
            the others drawn as classes occur; weights make up for it, so that probabilities are those of all pixels.
        seed: of the draw.

    Attributes:
        classes_: ``(N,)``, all labels that members know.
        fuser_: the fitted fuser, of scores ``(n, K, N)``.
        pixels_: ``(N,)``, how many pixels of each class it learned from.
        logits_: for each member, whether a softmax makes probabilities of its scores.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 3, (4, 16, 16))
    >>> noise = rng.dirichlet([1, 1, 1], (2, 4, 16, 16)).transpose(0, 1, 4, 2, 3)
    >>> good = 0.5 * np.eye(3)[truth].transpose(0, 3, 1, 2) + 0.5 * noise[0]
    >>> fuser = MapFuser("log-pool").fit([good[:2], noise[1, :2]], truth[:2])
    >>> found = fuser.evaluate([good[2:], noise[1, 2:]], truth[2:])
    >>> found.accuracy > 0.95, found.mean_iou > 0.9
    (True, True)
    """

    def __init__(
        self, fuser: str | Fuser = "afa", *, ignore: int | None = 255, pixels: int = 50_000, seed: int = 0
    ) -> None:
        if isinstance(pixels, bool) or not isinstance(pixels, int) or pixels < 1:
            raise UserError(f"pixels must be a whole number of at least 1, got {pixels!r}", what="pixels")
        if ignore is not None and (isinstance(ignore, bool) or not isinstance(ignore, int | np.integer)):
            raise UserError(f"ignore must be a whole-number label, or None, got {ignore!r}", what="ignore")
        self.fuser, self.ignore, self.pixels, self.seed = get_fuser(fuser), ignore, pixels, seed

    def fit(self, maps: Sequence[Any], labels: Any, classes: Sequence[Sequence[int]] | None = None) -> Self:
        """Learn from a sample of labelled pixels.

        Args:
            maps: of each of the K members scores ``(n, C, H, W)``; probabilities, or else they are taken as logits. NaN
                where a member does not know a class, or did not look at a pixel. A member that gives labels only may
                give them as whole numbers ``(n, H, W)``, and the label to ignore where it has none.
            labels: whole numbers ``(n, H, W)``; pixels of the label to ignore are left out.
            classes: for each member the labels of its channels; by default 0 … C-1 for all.
        """
        arrays = self._arrays(maps)
        labels = np.asarray(labels)
        self._check_labels(labels, arrays)
        self._columns, self.classes_ = self._read_classes(arrays, classes)
        self._dtype = labels.dtype if labels.dtype.kind in "iu" else np.dtype(np.uint8)
        counts = np.zeros(len(self.classes_), dtype=np.int64)
        for where in _chunks(labels.shape):
            codes = self._codes(labels[where])
            counts += np.bincount(codes[codes >= 0], minlength=len(counts))
        if not counts.any():
            raise UserError(f"all labels are {self.ignore}, the label to ignore: there is nothing to learn from")
        values, y = self._draw(arrays, labels, counts)
        self.logits_ = [v.dtype.kind == "f" and not _probabilities(v) for v in values]
        self.pixels_ = np.bincount(y, minlength=len(counts))
        weight = counts / np.maximum(self.pixels_, 1)
        scores = self._scores(values)
        self.fuser_ = get_fuser(self.fuser).fit(scores, y, (weight / weight[y].mean())[y])
        return self

    def predict_proba(self, maps: Sequence[Any], out: Array | None = None) -> Array:
        """Return fused probabilities ``(n, N, H, W)``.

        Args:
            maps: of each member ``(n, C, H, W)``, as for ``fit``.
            out: where to write them, such as a memory map ``(n, N, H, W)`` of ``np.lib.format.open_memmap``; by default
                a new array of float32.
        """
        arrays = self._arrays(maps, fitted=True)
        n, h, w = _size(arrays[0])
        out = _place(out, (n, len(self.classes_), h, w), np.dtype(np.float32), "f")
        for (images, rows), p in self._fused(arrays):
            out[images, :, rows] = p.transpose(0, 3, 1, 2)
        return out

    def predict(self, maps: Sequence[Any], out: Array | None = None) -> Array:
        """Return the most probable label of each pixel ``(n, H, W)``, in the type of the labels of ``fit``.

        Args:
            maps: of each member ``(n, C, H, W)``, as for ``fit``.
            out: where to write them, ``(n, H, W)``, as for ``predict_proba``.
        """
        arrays = self._arrays(maps, fitted=True)
        out = _place(out, _size(arrays[0]), self._dtype, "iu")
        for where, p in self._fused(arrays):
            out[where] = self.classes_[p.argmax(3)]
        return out

    def evaluate(self, maps: Sequence[Any], labels: Any) -> MapScore:
        """Return accuracy and intersection over union of what is predicted for maps ``(n, C, H, W)`` of each member.

        Labels are ``(n, H, W)``; those to ignore do not count.
        """
        arrays, labels = self._arrays(maps, fitted=True), np.asarray(labels)
        self._check_labels(labels, arrays)
        n = len(self.classes_)
        confusion = np.zeros((n, n), dtype=np.int64)  # labels by rows
        for where, p in self._fused(arrays):
            codes, found = self._codes(labels[where]), p.argmax(3)
            pairs = codes[codes >= 0] * n + found[codes >= 0]
            confusion += np.bincount(pairs, minlength=n * n).reshape(n, n)
        if not confusion.any():
            raise UserError(f"all labels are {self.ignore}, the label to ignore: there is nothing to compare with")
        right = np.diagonal(confusion)
        union = confusion.sum(0) + confusion.sum(1) - right
        iou = np.where(union > 0, right / np.maximum(union, 1), np.nan)
        return MapScore(float(right.sum() / confusion.sum()), float(np.nanmean(iou)), iou)

    def explain(self, models: Sequence[str] | None = None, classes: Sequence[Any] | None = None) -> Explanation:
        """Return which mean the fuser uses, and which member it trusts for which class; names may be given."""
        self._need_fit()
        if not hasattr(self.fuser_, "explain"):
            raise UserError(f"the fuser '{self.fuser_.name}' cannot be explained: take 'afa' or 'afa-paper'")
        said: Explanation = self.fuser_.explain(models, self.classes_.tolist() if classes is None else classes)
        return said

    # ------------------------------------------------------------------------------------------------------------------

    def _need_fit(self) -> None:
        if not hasattr(self, "fuser_"):
            raise UserError("the fuser of maps is not fitted yet: call fit(maps, labels) first")

    def _arrays(self, maps: Sequence[Any], fitted: bool = False) -> list[Array]:
        """Return what members gave as arrays, or raise UserError; nothing is copied."""
        if fitted:
            self._need_fit()
        if isinstance(maps, np.ndarray) and maps.ndim < 5:
            raise UserError(f"maps must be a list with one array a member, got one array of shape {maps.shape}")
        arrays = [np.asarray(one) for one in maps]
        if not arrays or (fitted and len(arrays) != len(self._columns)):
            wanted = f"of {len(self._columns)} members" if fitted else "of at least one member"
            raise UserError(f"maps must be a list {wanted}, got {len(arrays)}")
        for k, array in enumerate(arrays):
            kind = "f" if array.ndim == 4 else "iu"
            if array.ndim not in (3, 4) or array.dtype.kind not in kind:
                raise UserError(
                    f"member {k} must give floats (n, C, H, W), or labels as whole numbers (n, H, W), got "
                    f"{array.dtype} of shape {array.shape}",
                    hint="divide scores that are stored as whole numbers by the number that stands for one",
                )
            if _size(array) != _size(arrays[0]) or 0 in array.shape:
                raise UserError(
                    f"member {k} has shape {array.shape}, member 0 {arrays[0].shape}: n, H and W must agree"
                )
            if fitted and array.ndim == 4 and array.shape[1] != len(self._columns[k]):
                raise UserError(f"member {k} has {array.shape[1]} channels, in fit it had {len(self._columns[k])}")
        return arrays

    def _check_labels(self, labels: Array, arrays: list[Array]) -> None:
        if labels.dtype.kind not in "iub" or labels.shape != _size(arrays[0]):
            raise UserError(
                f"labels must be whole numbers of shape {_size(arrays[0])}, as the maps, got {labels.dtype} of shape "
                f"{labels.shape}",
                what="labels",
            )

    def _read_classes(self, arrays: list[Array], given: Any) -> tuple[list[Array], Array]:
        """Return the columns of each member's channels among all classes, and the classes ``(N,)``."""
        channels = {array.shape[1] for array in arrays if array.ndim == 4}
        if given is None:
            if len(channels) != 1:
                raise UserError(
                    f"members have {sorted(channels)} channels",
                    what="classes",
                    hint="give classes, for each member the labels of its channels",
                )
            given = [range(channels.pop())] * len(arrays)
        if len(given) != len(arrays):
            raise UserError(f"classes must be {len(arrays)} lists, one a member, got {len(given)}", what="classes")
        own = [np.asarray(list(one)) for one in given]
        for k, (one, array) in enumerate(zip(own, arrays, strict=True)):
            if one.ndim != 1 or one.dtype.kind not in "iu" or len(np.unique(one)) != len(one):
                raise UserError(f"classes of member {k} must be different whole numbers, got {list(given[k])}")
            if array.ndim == 4 and array.shape[1] != len(one):
                raise UserError(f"member {k} has {array.shape[1]} channels, but classes has {len(one)} labels for it")
        every = np.unique(np.concatenate(own))
        if self.ignore is not None and self.ignore in every:
            raise UserError(
                f"the label to ignore, {self.ignore}, is a class of a member",
                what="ignore",
                hint="give another label as ignore, or ignore=None where every pixel has a label",
            )
        return [np.searchsorted(every, one) for one in own], every

    def _codes(self, labels: Array) -> Array:
        """Return the positions of labels of any shape among the classes, -1 for those to ignore."""
        labels = labels.astype(np.int64)
        codes = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        strange = self.classes_[codes] != labels
        if self.ignore is not None:
            codes[labels == self.ignore] = -1
            strange &= labels != self.ignore
        if strange.any():
            raise UserError(
                f"labels have {labels[strange][0]}, which no member knows; members know {_some(self.classes_)}",
                what="labels",
                hint=f"set such pixels to {self.ignore}, which is ignored" if self.ignore is not None else "",
            )
        return codes

    def _draw(self, arrays: list[Array], labels: Array, counts: Array) -> tuple[list[Array], Array]:
        """Return what members say of sampled pixels, for each ``(p, C)`` or ``(p,)``, and their classes ``(p,)``.

        ``counts`` ``(N,)`` are the pixels of each class. Which of them are taken is drawn first, so that one pass over
        the labels finds them, and scores are read at these pixels only.
        """
        rng, half = np.random.default_rng(self.seed), self.pixels / 2
        wanted = np.ceil(half / int(np.count_nonzero(counts)) + half * counts / counts.sum()).astype(np.int64)
        drawn = [np.sort(rng.choice(c, min(c, k), replace=False)) for c, k in zip(counts, wanted, strict=True)]
        seen = np.zeros(len(counts), dtype=np.int64)
        values: list[list[Array]] = [[] for _ in arrays]
        classes = []
        for images, rows in _chunks(labels.shape):
            block = self._codes(labels[images, rows])
            codes = block.ravel()
            order = np.argsort(codes, kind="stable")
            here = np.bincount(codes[codes >= 0], minlength=len(counts))
            first = np.count_nonzero(codes < 0) + np.cumsum(here) - here  # where each class begins in that order
            ends = [np.searchsorted(d, [s, s + m]) for d, s, m in zip(drawn, seen, here, strict=True)]
            taken = [d[a:b] - s + f for d, (a, b), s, f in zip(drawn, ends, seen, first, strict=True)]
            seen += here
            picked = np.sort(order[np.concatenate(taken)])
            if len(picked):
                i, r, c = np.unravel_index(picked, block.shape)
                for found, array in zip(values, arrays, strict=True):
                    place = (images.start + i, *([slice(None)] * (array.ndim - 3)), rows.start + r, c)
                    found.append(np.asarray(array[place]))
                classes.append(codes[picked])
        return [np.concatenate(found) for found in values], np.concatenate(classes)

    def _fused(self, arrays: list[Array]) -> Iterator[tuple[tuple[slice, slice], Array]]:
        """Yield slices of images and rows, and the probabilities of the pixels there ``(images, rows, W, N)``."""
        for images, rows in _chunks(_size(arrays[0]), len(arrays) * len(self.classes_)):
            blocks = [a[images, rows] if a.ndim == 3 else a[images, :, rows].transpose(0, 2, 3, 1) for a in arrays]
            values = [b.ravel() if b.ndim == 3 else b.reshape(-1, b.shape[3]) for b in blocks]
            p = self.fuser_.predict_proba(self._scores(values))
            yield (images, rows), p.reshape(*blocks[0].shape[:3], -1)

    def _scores(self, values: list[Array]) -> Array:
        """Return probabilities ``(p, K, N)`` of what members say of pixels, for each ``(p, C)`` or ``(p,)``."""
        scores = np.full((len(values[0]), len(values), len(self.classes_)), np.nan)
        for k, (value, columns, logits) in enumerate(zip(values, self._columns, self.logits_, strict=True)):
            if value.ndim == 1:
                hot = value[:, None] == self.classes_[columns]
                silent = ~hot.any(1)
                if self.ignore is not None:
                    silent &= value != self.ignore
                if silent.any():
                    raise UserError(f"member {k} gives the label {value[silent][0]}, which is not one of its classes")
                scores[:, k, columns] = np.where(hot.any(1, keepdims=True), hot, np.nan)
                continue
            part = value.astype(np.float64)
            if np.fmax.reduce(part, axis=None) == np.inf:
                raise UserError(f"member {k} gives scores that are not finite")
            if logits:
                known = ~np.isnan(part)
                part = np.where(known, softmax(np.where(known, part, -1e300)), np.nan)
            elif np.fmin.reduce(part, axis=None) < 0:
                raise UserError(f"member {k} gave probabilities to learn from, but has a score below 0 here")
            scores[:, k, columns] = part
        return scores


def _size(array: Array) -> tuple[int, int, int]:
    """Return n, H and W of scores ``(n, C, H, W)`` or labels ``(n, H, W)``."""
    return array.shape[0], array.shape[-2], array.shape[-1]


def _chunks(size: tuple[int, ...], width: int = 1) -> Iterator[tuple[slice, slice]]:
    """Yield slices of images and of rows that cover n, H and W, with ``width`` numbers a pixel: images, or bands."""
    n, h, w = size
    most = max(1, _CHUNK // width)  # pixels
    images, rows = max(1, most // (h * w)), min(h, max(1, most // w))
    for i in range(0, n, images):
        for r in range(0, h, rows):
            yield slice(i, min(i + images, n)), slice(r, min(r + rows, h))


def _place(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], kinds: str) -> Array:
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype.kind not in kinds:
        found = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise UserError(f"out must be an array of shape {shape}, such as of {dtype}, got {found}", what="out")
    return out


def _probabilities(values: Array) -> bool:
    """Return whether scores of pixels ``(p, C)``, where they are known, are not negative and sum to one."""
    known = ~np.isnan(values).all(1)
    total = np.nansum(values[known], 1, dtype=np.float64)
    near = np.abs(total - 1) <= _ROUNDING.get(values.dtype.itemsize, 1e-4)
    return bool(np.fmin.reduce(values, axis=None, initial=0.0) >= 0 and near.all())


def _some(classes: Array) -> str:
    shown = ", ".join(str(c) for c in classes[:10])
    return shown if len(classes) <= 10 else f"{shown} and {len(classes) - 10} more"
