"""What every fuser is: ``fit`` on labelled scores, ``predict_proba``, growth, and a file on disk.

A fuser takes scores ``(n, K, N)``: n examples, K models, N classes, NaN where a model does not know a class (or, over a
whole row of a model, gave no answer: ``_filled`` puts the mean of the models present in its place). A new one defines
``_fit`` and ``_predict``, and is registered by name: ``register_fuser`` has an example.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from faverage.fusion.arrays import (
    Array,
    check_labels,
    check_scores,
    chunks,
    fill_gaps,
    grown,
    known_classes,
    masked_mean,
    merge_rows,
    normalise,
    sample,
)
from faverage.fusion.online import WeightHistory, ages, check_half_life, shares_of
from faverage.registry import Registry
from faverage.storage import read_tensors, write_tensors
from faverage.threads import few_threads

__all__ = ["FUSERS", "Fuser", "fuser_names", "get_fuser", "load_fuser", "register_fuser", "unpack_fuser"]

FUSERS: Registry[type[Fuser]] = Registry("fuser", named=True)
"""Every fuser by its name: a dict of classes."""
F = TypeVar("F", bound="type[Fuser]")
_ENOUGH = 1 / 8  # of all weight that rows of a stream hold before the fuser is fitted to them
_LEAST = 1 / 64  # of the mean weight of new rows: older rows of a stream are dropped below it, after six half-lives
_TINY = 1e-15  # smallest probability in a loss


class Fuser:
    """One way to fuse K score vectors into one. Options are the constructor's arguments.

    Attributes:
        n_models: K, once fitted or grown.
        n_classes: N, likewise.
        weight_history: the models' shares and the losses over the calls of ``partial_fit``; None before the first.

    >>> from faverage.fusion import get_fuser
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(60) % 3
    >>> right, random = 0.7 * np.eye(3)[y] + 0.1, rng.dirichlet([1, 1, 1], 60)
    >>> scores = np.stack([right, random], axis=1)  # (n, K, N)
    >>> fuser = get_fuser("performance").fit(scores, y)
    >>> fuser.predict_proba(scores).shape, bool((fuser.predict(scores) == y).all()), fuser.n_models
    ((60, 3), True, 2)
    """

    name: ClassVar[str] = ""
    trains: ClassVar[bool] = True
    n_models: int = 0
    n_classes: int = 0
    weight_history: WeightHistory | None = None
    _fitted: tuple[int, int] | None = None  # K and N that _fit saw; add_model and add_class leave it behind
    _known: Array | None = None  # (K, N), which model knew which class then; files of older versions lack it
    _kept: tuple[Array, Array, Array] | None = None  # scores, labels and weights for partial_fit
    _waiting: float = 0.0  # weight of kept rows that came after the last fit

    def fit(self, scores: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from labelled scores, forgetting what was learned before.

        Args:
            scores: ``(n, K, N)``, non-negative, NaN where a model does not know a class. They may be a memory map, as
                of ``np.load(file, mmap_mode="r")``: what a fuser needs is read in parts, and nothing is copied whole.
            y: labels ``(n,)`` in 0 … N-1.
            sample_weight: ``(n,)``; a weight of 2 counts as the same row twice.
        """
        scores = check_scores(scores)
        y, weight = check_labels(scores, y, sample_weight)
        self._kept = self.weight_history = None
        self._train(scores, y, weight)
        return self

    def partial_fit(
        self, scores: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, *, half_life: float | None = None
    ) -> Self:
        """Learn from more scores, with up to 10,000 earlier rows: memory does not grow with the stream.

        A model that is missing has NaN. For one that is new, or a new class, call ``add_model`` or ``add_class`` first.

        Args:
            scores: ``(n, K, N)``, as for ``fit``; with a half-life, in the order of time.
            y: labels ``(n,)``.
            sample_weight: ``(n,)``.
            half_life: a row counts half after so many newer ones, so that models whose quality changes are followed;
                ``math.inf`` forgets nothing. The fuser is then fitted again when rows since its last fit hold an
                eighth of all weight, so that small batches cost little. None: nothing is forgotten, and every call
                fits again.
        """
        scores = check_scores(scores)
        y, weight = check_labels(scores, y, sample_weight)
        if self._fitted is not None and (scores.shape[1] != self.n_models or scores.shape[2] != self.n_classes):
            raise ValueError(
                f"scores have {scores.shape[1]} models and {scores.shape[2]} classes, the fuser {self.n_models} and "
                f"{self.n_classes}; call add_model or add_class first"
            )
        if self.trains and self._fitted is not None and self._kept is None:
            raise ValueError(
                "this fuser was saved without the rows it learned from, so it cannot learn more: fit it again"
            )
        n, loss = len(y), math.nan
        if self._fitted is not None:
            p = self.predict_proba(scores)[np.arange(n), y]
            loss = float(-np.log(np.maximum(p, _TINY)) @ weight / weight.sum())
        least = 0.0
        if half_life is not None:
            half_life = check_half_life(half_life)
            least = _LEAST * float(weight.mean())
            weight = weight * ages(n, half_life)
        fresh = float(weight.sum())
        if self._kept is not None:
            old, old_y, old_weight = self._kept
            left = 1.0 if half_life is None else 0.5 ** (n / half_life)
            old = grown(old, self.n_models, self.n_classes)
            scores, y = np.concatenate([old, scores]), np.concatenate([old_y, y])
            weight, self._waiting = np.concatenate([left * old_weight, weight]), left * self._waiting + fresh
        if weight.min() < least:
            scores, y, weight = scores[weight >= least], y[weight >= least], weight[weight >= least]
        settled = self._fitted == (self.n_models, self.n_classes)
        if half_life is None or not self.trains or not settled or self._waiting >= _ENOUGH * weight.sum():
            self._train(scores, y, weight)
        else:
            self._kept = sample(*merge_rows(scores, y, weight))
        if self.weight_history is None:
            self.weight_history = WeightHistory()
        self.weight_history.add(n, shares_of(self), loss)
        return self

    def predict_proba(self, scores: ArrayLike) -> Array:
        """Return fused probabilities ``(n, N)`` of scores ``(n, K, N)``, which may be a memory map; rows sum to one."""
        scores = check_scores(scores)
        n, k, classes = scores.shape
        if self.trains and self._fitted is None:
            raise ValueError(f"the fuser '{self.name}' is not fitted yet: call fit(scores, y) first")
        if self._fitted is not None and (k, classes) != (self.n_models, self.n_classes):
            raise ValueError(
                f"scores must have shape (n, {self.n_models}, {self.n_classes}): examples x models x classes, "
                f"got {scores.shape}"
            )
        fused = np.empty((n, classes))
        with few_threads(_work(scores)):
            for rows in chunks(scores):
                fused[rows] = self._fuse(scores[rows])
        return fused

    def held_out(self, scores: ArrayLike, y: ArrayLike, fold: Array) -> Array:
        """Return probabilities ``(n, N)``: those of each fold by a fuser of these options, fitted on the other folds.

        Args:
            scores: ``(n, K, N)``, as for ``fit``.
            y: labels ``(n,)``.
            fold: the fold of each row, ``(n,)``.
        """
        scores = check_scores(scores)
        y, _ = check_labels(scores, y, None)
        fused = np.empty((len(y), scores.shape[2]))
        with few_threads(_work(scores)):
            for part in np.unique(fold):
                train = fold != part
                fused[~train] = get_fuser(self).fit(scores[train], y[train]).predict_proba(scores[~train])
        return fused

    def predict(self, scores: ArrayLike) -> Array:
        """Return the most probable class ``(n,)`` of each row of scores ``(n, K, N)``."""
        labels: Array = self.predict_proba(scores).argmax(1)
        return labels

    def add_model(self, n: int = 1) -> Self:
        """Make room for n more models at the end. They count for nothing until ``partial_fit`` has seen them."""
        self._need_fit("add_model")
        self.n_models += _count("add_model", n)
        return self

    def add_class(self, n: int = 1) -> Self:
        """Make room for n more classes at the end.

        Until ``partial_fit`` has seen labelled rows of them, a new class gets the mean probability of the models that
        know it, and the old classes share the rest in the proportions that were learned.
        """
        self._need_fit("add_class")
        self.n_classes += _count("add_class", n)
        return self

    def options(self) -> dict[str, Any]:
        """Return the constructor's arguments: ``get_fuser(f.name, **f.options())`` is an unfitted copy."""
        return asdict(self) if is_dataclass(self) and not isinstance(self, type) else {}

    def settled(self) -> dict[str, Any]:
        """Return options that the last fit chose and that a later fit on similar scores may keep."""
        return {}

    def forget_rows(self) -> None:
        """Drop the sample of training rows that ``partial_fit`` needs, so that the file is smaller."""
        self._kept = None

    def save(self, path: str | Path) -> Path:
        """Write the fuser to one safetensors file; ``load_fuser`` reads it back.

        The file holds the sample of training rows that ``partial_fit`` needs, up to 10,000.
        """
        return write_tensors(path, "fuser", *self.pack())

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what ``save`` writes, JSON data and tensors of any shapes; ``unpack_fuser`` is its inverse."""
        if self.trains:
            self._need_fit("save")
        state = self._state()
        config = {
            "name": self.name,
            "options": self.options(),
            "size": [self.n_models, self.n_classes],
            "fitted": list(self._fitted) if self._fitted else None,
            "state": {k: v for k, v in state.items() if not isinstance(v, np.ndarray)},
        }
        arrays = {f"state.{k}": v for k, v in state.items() if isinstance(v, np.ndarray)}
        if self._known is not None:
            arrays["known"] = self._known
        if self._kept is not None:
            arrays |= {f"kept.{i}": a for i, a in enumerate(self._kept)}
        return config, {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    # What a fuser defines --------------------------------------------------------------------------------------------

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        """Learn from checked scores ``(n, K, N)`` (with NaN), labels and weights ``(n,)``.

        Large data comes as it was given: in any type of number, perhaps on disk, with rows of weight 0. ``chunks`` and
        ``subsample`` of ``faverage.fusion.arrays`` keep it from being copied whole.
        """

    def _predict(self, scores: Array) -> Array:
        """Return non-negative scores ``(n, N)`` of checked scores; they are scaled to sum to one afterwards."""
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        """Return what was learned: arrays, and plain JSON data, by name."""
        return {}

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        """Take back what ``_state`` returned, for K models and N classes.

        It comes from a file, which may be broken: raise ValueError for anything that ``_predict`` could not work with.
        """

    # ------------------------------------------------------------------------------------------------------------------

    def _train(self, scores: Array, y: Array, weight: Array) -> None:
        if self.trains:
            with few_threads(_work(scores)):
                used = merge_rows(scores, y, weight)
                fresh = copy.copy(self)  # a failed fit leaves the fuser as it was
                fresh._known = known_classes(used[0], used[2])
                fresh._fit(*used)
                self.__dict__.update(fresh.__dict__)
                self._kept, self._waiting = sample(*used), 0.0
        self.n_models, self.n_classes = scores.shape[1:]
        self._fitted = (self.n_models, self.n_classes)

    def _fuse(self, scores: Array) -> Array:
        """Return probabilities of one chunk: what was learned on the first classes, a mean for classes added since."""
        scores = scores.astype(np.float64)
        k, n = self._fitted or scores.shape[1:]
        fused = normalise(self._predict(scores[:, :k, :n]))
        if n == scores.shape[2]:
            return fused
        added = masked_mean(scores[:, :, n:])
        added /= np.maximum(added.sum(1, keepdims=True), 1)
        return np.concatenate([fused * (1 - added.sum(1, keepdims=True)), added], 1)

    def _filled(self, scores: Array) -> Array:
        """Return scores ``(n, K, N)`` in double precision, with what present models say for one that is missing."""
        scores = scores.astype(np.float64, copy=False)
        return scores if self._known is None else fill_gaps(scores, self._known)

    def _need_settled(self, verb: str) -> None:
        """Raise ValueError unless everything that the fuser has room for was learned."""
        self._need_fit(verb)
        if self._fitted != (self.n_models, self.n_classes):
            raise ValueError(
                f"{verb} speaks of what was learned; models or classes were added since: call partial_fit first"
            )

    def _need_fit(self, verb: str) -> None:
        if self._fitted is None:
            raise ValueError(f"{verb} needs a fitted fuser: call fit(scores, y) first")


def _work(scores: Array) -> float:
    """Return the work of one pass over the scores with a full matrix, K·N inputs to N outputs."""
    return float(scores.size * scores.shape[2])


def _count(verb: str, n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"{verb} takes a whole number of at least 1, got {n!r}")
    return n


def register_fuser(name: str) -> Callable[[F], F]:
    """Class decorator: make a fuser known to ``get_fuser`` and everything that takes ``fuser=``.

    >>> @register_fuser("median")
    ... class Median(Fuser):
    ...     trains = False
    ...     def _predict(self, scores):
    ...         return np.nanmedian(scores, axis=1)
    >>> get_fuser("median").predict_proba([[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]])
    array([[0.7, 0.3]])
    >>> FUSERS.unregister("median")
    """
    return FUSERS.register(name)


def fuser_names() -> list[str]:
    """Return the registered names, in order of registration.

    >>> {"afa", "afa-paper", "logistic", "log-pool"} <= set(fuser_names())
    True
    """
    return FUSERS.names()


def get_fuser(fuser: str | Fuser, **options: Any) -> Fuser:
    """Return a new fuser by name, or an unfitted copy of a given one.

    >>> scores = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.6, 0.4]]])  # (n, K, N)
    >>> get_fuser("arithmetic").fit(scores, [0, 1]).predict_proba(scores)
    array([[0.65, 0.35],
           [0.4 , 0.6 ]])
    """
    if isinstance(fuser, Fuser):
        options = {**fuser.options(), **options}
        fuser = fuser.name
    kind = FUSERS.get(fuser)
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"fuser '{fuser}' does not take the options {sorted(options)}: {error}") from None


def load_fuser(path: str | Path) -> Fuser:
    """Read a fuser that ``Fuser.save`` wrote.

    >>> import tempfile
    >>> scores = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.6, 0.4]]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fuser = load_fuser(get_fuser("performance").fit(scores, [0, 1]).save(f"{folder}/fuser.safetensors"))
    >>> fuser.name, fuser.predict(scores).tolist()
    ('performance', [0, 1])
    """
    config, tensors = read_tensors(path, "fuser")
    try:
        return unpack_fuser(config, tensors)
    except ValueError as error:
        raise ValueError(f"{path} does not describe a fuser of this version: {error}") from None


def unpack_fuser(config: Any, tensors: dict[str, Tensor]) -> Fuser:
    """Return the fuser that ``Fuser.pack`` described, with tensors of any shapes; ValueError where they do not fit."""
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        fuser = get_fuser(config["name"], **config["options"])
        size = tuple(config["size"])
        fitted = None if config["fitted"] is None else tuple(config["fitted"])
        for pair in (size, fitted or size):
            if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in pair):
                raise ValueError(f"it has the size {pair}, expected numbers of models and classes")
        if fitted is None and (fuser.trains or size != (0, 0)):
            raise ValueError(f"it has the size {size}, but was never fitted")
        if fitted is not None and not (1 <= fitted[0] <= size[0] and 1 <= fitted[1] <= size[1]):
            raise ValueError(f"it was fitted to the size {fitted}, which {size} cannot have grown from")
        fuser.n_models, fuser.n_classes = size
        fuser._fitted = fitted
        state = {name.removeprefix("state."): a for name, a in arrays.items() if name.startswith("state.")}
        fuser._set_state({**config["state"], **state}, *(fitted or size))
        if "known" in arrays:
            fuser._known = arrays["known"]
            if fuser._known.dtype != bool or fuser._known.shape != fitted:
                raise ValueError(f"'known' must say yes or no of {fitted} models and classes")
        if "kept.0" in arrays:
            scores = check_scores(arrays["kept.0"])
            if scores.shape[1] > size[0] or scores.shape[2] > size[1]:
                raise ValueError(f"its kept rows have shape {scores.shape}, but its size is {size}")
            fuser._kept = (scores, *check_labels(scores, arrays["kept.1"], arrays["kept.2"]))
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from None
    except (TypeError, AttributeError, IndexError, OverflowError, RuntimeError, MemoryError) as error:
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None
    return fuser
