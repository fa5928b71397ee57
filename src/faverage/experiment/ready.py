"""Whether a file of ready features is what a run needs; each message names the array and what was expected."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.settings import ConfigError

__all__ = ["read_features"]

Array = NDArray[Any]
ARRAYS = ("test", "novel", "base_memory", "base_prototypes", "base_head_weight", "base_head_bias")
LABELLED = ("test", "novel", "base_memory")


def read_features(path: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the float32 arrays and the labels by their names."""
    if not path.is_file():
        raise ConfigError(f"no such file of features: {path}")
    needed = [*ARRAYS, *(f"{name}_labels" for name in LABELLED)]
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in needed if name not in file.files]
            if missing:
                raise ConfigError(f"{path} lacks the array '{missing[0]}'; needed are: {', '.join(needed)}")
            data = {name: np.asarray(file[name]) for name in needed}
    except ConfigError:
        raise
    except (ValueError, OSError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not a whole .npz file of arrays ({reason}): make or fetch it again") from None
    width = data["base_prototypes"].shape[-1] if data["base_prototypes"].ndim == 2 else 0
    for name in ARRAYS:
        array, flat = data[name], name == "base_head_bias"
        shape = f"({len(data['base_prototypes'])},)" if flat else f"(n, {width or 'd'})"
        if array.dtype.kind not in "fiu" or array.ndim != (1 if flat else 2) or not (flat or array.shape[1] == width):
            raise ConfigError(f"{path}: '{name}' must be numbers of shape {shape}, got {array.dtype} {array.shape}")
        if not len(array) or not np.isfinite(array).all():
            raise ConfigError(f"{path}: '{name}' must hold finite numbers, and some; got {array.shape}")
    n_base = len(data["base_prototypes"])
    for name in ("base_head_weight", "base_head_bias"):
        if len(data[name]) != n_base:
            raise ConfigError(f"{path}: '{name}' has {len(data[name])} rows, but there are {n_base} base_prototypes")
    labels = {name: _labels(path, f"{name}_labels", data[f"{name}_labels"], len(data[name])) for name in LABELLED}
    n_new = len(np.unique(labels["novel"]))
    _check_range(path, "base_memory_labels", labels["base_memory"], 0, n_base)
    _check_range(path, "novel_labels", labels["novel"], n_base, n_base + n_new)
    _check_range(path, "test_labels", labels["test"], 0, n_base + n_new)
    return {name: data[name].astype(np.float32) for name in ARRAYS}, labels


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
