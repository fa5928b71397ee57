"""Files of ready features: written by a run, read by another; each message names the array and what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.settings import ConfigError
from faverage.fscil import CosineHead
from faverage.storage import replacing
from faverage.vision.views import view_of_today

if TYPE_CHECKING:
    from faverage.experiment.features import Features

__all__ = ["Ready", "check_chosen", "file_views", "read_features", "write_features"]

Array = NDArray[Any]
VECTORS = ("test", "novel", "base_memory", "base_prototypes", "base_head_weight")
LABELLED = ("test", "novel", "base_memory")
BIAS, SCALE = "base_head_bias", "base_head_scale"
_MANY = 1 << 22  # numbers of a file that are written in half precision


@dataclass
class Ready:
    """What a file holds.

    Attributes:
        vectors: ``test``, ``novel``, ``base_memory`` and ``base_prototypes``, those of all views side by side.
        labels: of the first three.
        head: W and b of the base head; a list of heads, one a view, where the file has views.
        sessions: classes of each session.
    """

    vectors: dict[str, Array]
    labels: dict[str, Array]
    head: Any
    sessions: list[list[int]]


def file_views(path: Path) -> tuple[str, ...] | None:
    """Return the names of the views in a file; None where it has one view without a name."""
    with _opened(path) as file:
        return _names(path, np.asarray(file["views"])) if "views" in file.files else None


def read_features(path: Path, views: Sequence[str] | None = None) -> Ready:
    """Return float32 features and all that belongs to them.

    Args:
        path: of the file.
        views: which of its views, in which order; by default all. A file without views has no choice.
    """
    with _opened(path) as file:
        there = _names(path, np.asarray(file["views"])) if "views" in file.files else None
        cosine = there is not None and SCALE in file.files
        needed = [*VECTORS, SCALE if cosine else BIAS, *(f"{name}_labels" for name in LABELLED)]
        missing = [name for name in needed if name not in file.files]
        if missing:
            more = f" (or {SCALE})" if there is not None and missing[0] == BIAS else ""
            raise ConfigError(f"{path} lacks the array '{missing[0]}'{more}; needed are: {', '.join(needed)}")
        optional = [name for name in ("sessions", BIAS) if name in file.files and name not in needed]
        data = {name: np.asarray(file[name]) for name in (*needed, *optional)}
    _check_shapes(path, data, there)
    n_base = len(data["base_prototypes"])
    labels = {name: _labels(path, f"{name}_labels", data[f"{name}_labels"], len(data[name])) for name in LABELLED}
    n_all = n_base + len(np.unique(labels["novel"]))
    _check_range(path, "base_memory_labels", labels["base_memory"], 0, n_base)
    _check_range(path, "novel_labels", labels["novel"], n_base, n_all)
    _check_range(path, "test_labels", labels["test"], 0, n_all)
    sessions = _sessions(path, data.get("sessions"), n_base, n_all)
    if there is None:
        arrays = {name: data[name].astype(np.float32) for name in (*VECTORS, BIAS)}
        head: Any = (arrays.pop("base_head_weight"), arrays.pop(BIAS))
        return Ready(arrays, labels, head, sessions)
    chosen = there if views is None else tuple(views)
    check_chosen(path, chosen, there)
    places = [there.index(name) for name in chosen]
    arrays = {name: data[name][:, places].astype(np.float32) for name in VECTORS}
    weight = arrays.pop("base_head_weight")
    flat = {name: array.reshape(len(array), -1) for name, array in arrays.items()}
    scales = np.broadcast_to(data.get(SCALE, np.zeros(())), (len(there),))
    biases = data.get(BIAS, np.zeros((n_base, len(there)))).astype(np.float32)
    heads = [
        CosineHead(weight[:, v], float(scales[place])) if scales[place] > 0 else (weight[:, v], biases[:, place])
        for v, place in enumerate(places)
    ]
    return Ready(flat, labels, heads, sessions)


def check_chosen(path: Path, views: Sequence[str], there: Sequence[str]) -> None:
    """Raise ConfigError unless the views of a run, which count once each, are all in the file."""
    missing = [name for name in views if name not in there]
    if missing:
        raise ConfigError(f"views: {path} has no view '{missing[0]}'; it has: {'; '.join(there)}")
    if not views or len(set(views)) < len(views):
        raise ConfigError(f"views must be names of different views, at least one, got {list(views)}")


def write_features(features: Features, views: Sequence[str], path: Path) -> None:
    """Write what the methods see: memory, shots, tests, prototypes and heads, but no spare examples.

    Where there are many, numbers are of half precision; arrays with one that is too large for that keep theirs.

    Args:
        features: of one seed.
        views: names of all views, written where the base head is a list.
        path: a ``.npz``.
    """
    train = features.train
    arrays: dict[str, Array] = {
        "test": features.test,
        "novel": np.concatenate([x for x, _ in train]),
        "base_memory": features.memory,
        "base_prototypes": features.prototypes,
    }
    words: dict[str, Array] = {
        "test_labels": features.test_labels,
        "novel_labels": np.concatenate([y for _, y in train]),
        "base_memory_labels": features.memory_labels,
        "sessions": np.repeat(np.arange(len(features.sessions)), [len(classes) for classes in features.sessions]),
    }
    if not isinstance(features.head, list):
        arrays["base_head_weight"], arrays[BIAS] = features.head
    else:
        if len(set(features.widths or ())) > 1:
            raise ConfigError(f"--save-features: views of different widths, {features.widths}, fit into no one array")
        arrays = {name: array.reshape(len(array), len(views), -1) for name, array in arrays.items()}
        words["views"] = np.array(list(views))
        heads = [(h.weight, 0.0, h.scale) if isinstance(h, CosineHead) else (*h, 0.0) for h in features.head]
        scales = np.array([scale for _, _, scale in heads])
        arrays["base_head_weight"] = np.stack([weight for weight, _, _ in heads], 1)
        if scales.any():
            words[SCALE] = scales
        if not scales.all():
            n_base = len(arrays["base_prototypes"])
            arrays[BIAS] = np.stack([np.broadcast_to(bias, (n_base,)) for _, bias, _ in heads], 1)
    many = sum(array.size for array in arrays.values()) > _MANY
    stored: dict[str, Any] = {**{name: _short(array, many) for name, array in arrays.items()}, **words}
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **stored)


def _short(array: Array, half: bool) -> Array:
    fits = half and np.abs(array).max() <= np.finfo(np.float16).max
    return array.astype(np.float16 if fits else np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise ConfigError(f"no such file of features: {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except ConfigError:
        raise
    except Exception as error:  # zip, zlib and the headers of arrays have an error of their own for each thing wrong
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"{path} is not a whole .npz file of arrays ({reason}): make or fetch it again") from None


def _names(path: Path, array: Array) -> tuple[str, ...]:
    names = array.tolist() if array.dtype.kind == "U" and array.ndim == 1 else []
    plain = all(name == name.encode(errors="replace").decode() for name in names)
    if not names or len(set(names)) < len(names) or not plain:
        raise ConfigError(f"{path}: 'views' must be different names as text (V,), got {array.dtype} {array.shape}")
    return tuple(map(view_of_today, names))


def _check_shapes(path: Path, data: dict[str, Array], views: Sequence[str] | None) -> None:
    inner = () if views is None else (len(views),)
    prototypes = data["base_prototypes"]
    n_base = len(prototypes) if prototypes.ndim else 0
    width = prototypes.shape[-1] if prototypes.ndim == len(inner) + 2 else 0
    for name in (*VECTORS, BIAS):
        if name not in data:
            continue
        array, tail = data[name], inner if name == BIAS else (*inner, width)
        if array.dtype.kind not in "fiu" or array.ndim == 0 or array.shape[1:] != tail or 0 in tail:
            rows = str(n_base or "C") if name.startswith("base_head") else "n"
            sides = ", ".join([rows, *(str(side or "d") for side in tail)]) + ("" if tail else ",")
            raise ConfigError(f"{path}: '{name}' must be numbers of shape ({sides}), got {array.dtype} {array.shape}")
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(np.float32)).all()
        if not len(array) or not finite:
            raise ConfigError(f"{path}: '{name}' must hold finite numbers, and some; got {array.shape}")
        if name.startswith("base_head") and len(array) != n_base:
            raise ConfigError(f"{path}: '{name}' has {len(array)} rows, but there are {n_base} base_prototypes")
    scale = data.get(SCALE, np.ones(()))
    if scale.dtype.kind not in "fiu" or scale.shape not in ((), inner) or not (np.isfinite(scale) & (scale >= 0)).all():
        found = f"{scale.dtype} {scale.shape}" if scale.shape not in ((), inner) else repr(scale.tolist())
        raise ConfigError(f"{path}: '{SCALE}' must be a number > 0, or one a view (0: a linear head), got {found}")
    if not scale.all() and BIAS not in data:
        raise ConfigError(f"{path}: '{SCALE}' is 0 for a linear head, but there is no '{BIAS}'")
    if scale.all() and SCALE in data and BIAS in data:
        raise ConfigError(f"{path} has '{BIAS}' and '{SCALE}' for all views: heads are linear or cosine, leave one")


def _sessions(path: Path, given: Array | None, n_base: int, n_all: int) -> list[list[int]]:
    """Return the classes of each session; by default five to each after the base session."""
    if given is None:
        fives = [list(range(c, min(c + 5, n_all))) for c in range(n_base, n_all, 5)]
        return [list(range(n_base)), *fives]
    numbers = _labels(path, "sessions", given, n_all)
    steps = np.diff(numbers, prepend=0)
    if numbers[:n_base].any() or numbers[n_base] != 1 or not np.isin(steps, (0, 1)).all():
        raise ConfigError(f"{path}: 'sessions' must be 0 for the {n_base} base classes, then 1, 2, … in growing order")
    return [np.flatnonzero(numbers == k).tolist() for k in range(int(numbers[-1]) + 1)]


def _labels(path: Path, name: str, array: Array, n: int) -> Array:
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ConfigError(f"{path}: '{name}' must be {n} whole numbers, got {array.dtype} {array.shape}")
    return array.astype(np.int64)


def _check_range(path: Path, name: str, labels: Array, low: int, high: int) -> None:
    """Every class from ``low`` to ``high`` - 1 must occur, and no other."""
    absent, foreign = np.setdiff1d(np.arange(low, high), labels), np.setdiff1d(labels, np.arange(low, high))
    if len(absent) or len(foreign):
        found = f"{foreign[0]} is among them" if len(foreign) else f"{absent[0]} is not among them"
        raise ConfigError(f"{path}: '{name}' must have every class from {low} to {high - 1} and no other, but {found}")
