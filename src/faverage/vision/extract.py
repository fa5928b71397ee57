"""Images to features: the seam of the package. Features are computed once, in parts, and kept on disk."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from faverage.storage import replacing
from faverage.vision._device import (
    Array,
    Precision,
    autocast,
    check_images,
    check_indices,
    fast_convolutions,
    fingerprint_images,
    fingerprint_weights,
    move,
    pick_device,
    pick_layout,
    pick_precision,
)
from faverage.vision._report import Report
from faverage.vision.augment import Evaluate

__all__ = ["extract_features"]

_PART = 16  # batches between two notes in the manifest


def extract_features(
    backbone: nn.Module,
    images: Array,
    indices: Any = None,
    *,
    transform: Evaluate,
    batch_size: int = 256,
    device: str | torch.device = "auto",
    precision: Precision = "auto",
    dtype: Literal["float32", "float16"] = "float32",
    cache: str | Path | None = None,
    progress: bool = False,
) -> Array:
    """Return the features ``(n, d)`` of images under the evaluation transform.

    With ``cache``, the features are a ``.npy`` file with a manifest ``.npy.json`` beside it. It is used again where
    weights, images, transform, precision and dtype are the same, and written anew where they are not. A killed
    extraction goes on at its last finished part.

    Args:
        backbone: module from images to features; it is copied, not changed.
        images: uint8 ``(N, S, S, 3)``, may be a memory map.
        indices: the n rows wanted, in their order; by default all.
        transform: the evaluation transform, such as ``BaseModel.transform``.
        batch_size: images at a time.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.
        precision: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU.
        dtype: of the result.
        cache: path of the ``.npy`` file; the result is then a read-only memory map of it.
        progress: draw a progress bar.

    Returns:
        ``(n, d)`` of ``dtype``.
    """
    check_images(images)
    rows = check_indices(indices, len(images))
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if dtype not in ("float32", "float16"):
        raise ValueError(f"unknown dtype {dtype!r}: use 'float32' or 'float16'")
    place = pick_device(device)
    compute = pick_precision(precision, place)
    layout = pick_layout("auto", place)
    network = move(copy.deepcopy(backbone), place, layout).eval()
    prepare = copy.deepcopy(transform).to(place)

    def features(chosen: Array) -> Array:
        with torch.inference_mode():
            batch = prepare(torch.from_numpy(images[chosen]).to(place))
            with autocast(place, compute):
                result: Array = network(batch.contiguous(memory_format=layout)).float().cpu().numpy()
        if not np.isfinite(result).all():
            raise FloatingPointError("the backbone gives features that are not numbers: check its weights")
        return result.astype(dtype)

    with fast_convolutions(place):
        dimension = features(rows[:1]).shape[1] if len(rows) else getattr(network, "dimension", 0)
        shape = (len(rows), dimension)
        if cache is None:
            memory = np.empty(shape, dtype)
            with Report("features", len(rows), show=progress) as report:
                for start in range(0, len(rows), batch_size):
                    part = rows[start : start + batch_size]
                    memory[start : start + len(part)] = features(part)
                    report.advance(len(part))
            return memory
        key = {
            "weights": fingerprint_weights(network),
            "images": fingerprint_images(images, rows),
            "transform": prepare.config(),
            "precision": str(compute).removeprefix("torch."),
            "shape": list(shape),
            "dtype": dtype,
        }
        file = _Cache(Path(cache), key)
        done = file.open()
        with Report("features", len(rows), done=done, show=progress) as report:
            for start in range(done, len(rows), batch_size):
                part = rows[start : start + batch_size]
                file.write(start, features(part))
                report.advance(len(part))
                if (start // batch_size) % _PART == _PART - 1:
                    file.note(start + len(part))
        return file.finish()


class _Cache:
    """A ``.npy`` file that is written in parts: ``PATH.partial`` grows, ``PATH.json`` says how far, PATH is whole.

    Args:
        path: of the finished file.
        key: what the features depend on.
    """

    def __init__(self, path: Path, key: dict[str, Any]) -> None:
        if path.suffix != ".npy":
            raise ValueError(f"cache must be the path of a .npy file, got {path}")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
        self.path, self.key = path, key
        self.partial = path.with_name(path.name + ".partial")
        self.manifest = path.with_name(path.name + ".json")
        self.total = int(key["shape"][0])
        self.array: Any = None

    def open(self) -> int:
        """Return how many rows are there already, and make room for the others."""
        noted = self._noted()
        if noted is None and self.path.exists():
            raise ValueError(
                f"{self.path} exists, but no manifest {self.manifest.name} of extract_features lies beside it: "
                "give another path, or delete the file"
            )
        if noted and noted["key"] == self.key:
            rows = int(noted["rows"])
            if rows == self.total and self.path.exists():
                return rows
            if rows and self.partial.exists():
                self.array = np.lib.format.open_memmap(self.partial, mode="r+")
                return rows
        self._say(0)
        self.path.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)
        self.array = np.lib.format.open_memmap(
            self.partial, mode="w+", dtype=np.dtype(self.key["dtype"]), shape=tuple(self.key["shape"])
        )
        if hasattr(os, "posix_fallocate"):  # a disk that fills up later would kill the process, without a word
            with self.partial.open("rb+") as file:
                os.posix_fallocate(file.fileno(), 0, self.partial.stat().st_size)
        return 0

    def write(self, start: int, features: Array) -> None:
        """Store the rows from ``start`` on."""
        self.array[start : start + len(features)] = features

    def note(self, rows: int) -> None:
        """Make sure that the first ``rows`` rows are on disk, and say so in the manifest."""
        self.array.flush()
        self._say(rows)

    def finish(self) -> Array:
        """Put the finished file in place and return it as a memory map."""
        if self.array is not None:
            self.array.flush()
            self.array = None
            self.partial.replace(self.path)
            self._say(self.total)
        result: Array = np.load(self.path, mmap_mode="r")
        return result

    def _noted(self) -> dict[str, Any] | None:
        """Return the manifest; None without one."""
        try:
            noted = json.loads(self.manifest.read_text())
            return noted if {"key", "rows"} <= noted.keys() else None
        except (OSError, ValueError, AttributeError):
            return None

    def _say(self, rows: int) -> None:
        with replacing(self.manifest) as partial:
            partial.write_text(json.dumps({"key": self.key, "rows": rows}, indent=1))
