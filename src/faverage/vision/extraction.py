"""Images to features: the seam of the package."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from faverage.code import code_fingerprint
from faverage.vision.engine.device import (
    Array,
    Precision,
    autocast,
    check_images,
    check_indices,
    fast_convolutions,
    fingerprint_weights,
    move,
    pick_device,
    pick_layout,
    pick_precision,
)
from faverage.vision.engine.report import Report
from faverage.vision.shards import Shards
from faverage.vision.transforms import Evaluate
from faverage.vision.views import View, get_views

__all__ = ["Look", "extract_features"]

DType = Literal["float32", "float16"]


def extract_features(
    backbone: nn.Module,
    images: Array | Shards,
    indices: Any = None,
    *,
    transform: Evaluate,
    views: Sequence[str | View] = ("plain",),
    batch_size: int = 256,
    device: str | torch.device = "auto",
    precision: Precision = "auto",
    dtype: DType = "float32",
    progress: bool = False,
) -> Array:
    """Return the features ``(n, d)`` of images under the evaluation transform.

    Args:
        backbone: module from images to features; it is copied, not changed.
        images: uint8 ``(N, S, S, 3)``, may be a memory map, or several as ``Shards``.
        indices: the n rows wanted, in their order; by default all.
        transform: the evaluation transform, such as ``BaseModel.transform``.
        views: ways to look at each image, see ``View``; their features are side by side, ``(n, views x d)``.
        batch_size: images at a time.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.
        precision: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU.
        dtype: of the result.
        progress: draw a progress bar.
    """
    look = Look(backbone, images, transform, views, batch_size, pick_device(device), precision, dtype)
    rows = check_indices(indices, len(images))
    with fast_convolutions(look.place), Report("features", len(rows), show=progress) as report:
        result = np.empty((len(rows), look.dimension(rows)), dtype)
        return look.into(result, rows, report.advance)


class Look:
    """A backbone that looks at images: from rows to features, in batches.

    Args:
        backbone: copied, not changed.
        images: uint8 ``(N, S, S, 3)``.
        transform: for evaluation.
        views: ways to look at each image.
        batch_size: images at a time.
        place: the device.
        precision: of the computation.
        dtype: of the features.
    """

    def __init__(
        self,
        backbone: nn.Module,
        images: Array | Shards,
        transform: Evaluate,
        views: Sequence[str | View],
        batch_size: int,
        place: torch.device,
        precision: Precision,
        dtype: DType,
    ) -> None:
        check_images(images)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if dtype not in ("float32", "float16"):
            raise ValueError(f"unknown dtype {dtype!r}: use 'float32' or 'float16'")
        self.views = get_views(views)
        self.images, self.batch_size, self.place, self.dtype = images, batch_size, place, dtype
        self.compute, self.layout = pick_precision(precision, place), pick_layout("auto", place)
        self.network = move(copy.deepcopy(backbone), place, self.layout).eval()
        self.prepare = copy.deepcopy(transform).to(place)

    def dimension(self, rows: Array) -> int:
        """Return d, by looking at one image."""
        if len(rows):
            return int(self(rows[:1]).shape[1])
        return int(getattr(self.network, "dimension", 0)) * len(self.views)

    def key(self, dimension: int) -> dict[str, Any]:
        """Return what the features depend on beside the images."""
        return {
            "code": code_fingerprint("faverage.vision.extraction", type(self.network).__module__),
            "weights": fingerprint_weights(self.network),
            "transform": self.prepare.config(),
            "views": [view.name for view in self.views],
            "precision": str(self.compute).removeprefix("torch."),
            "dimension": dimension,
            "dtype": self.dtype,
        }

    def into(self, result: Array, rows: Array, advance: Callable[[int], None]) -> Array:
        """Fill ``result`` with the features of the rows, and return it."""
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            result[start : start + len(part)] = self(part)
            advance(len(part))
        return result

    def __call__(self, rows: Array) -> Array:
        """Return the features of some rows, all at once."""
        with torch.inference_mode():
            batch = self.prepare(torch.from_numpy(self.images[rows]).to(self.place))
            with autocast(self.place, self.compute):
                seen = [self._see(view, batch) for view in self.views]
            result: Array = torch.cat(seen, 1).cpu().numpy()
        if not np.isfinite(result).all():
            raise FloatingPointError("the backbone gives features that are not numbers: check its weights")
        return result.astype(self.dtype)

    def _see(self, view: View, batch: torch.Tensor) -> torch.Tensor:
        looks = [self.network(look(batch).contiguous(memory_format=self.layout)).float() for look in view.looks]
        return looks[0] if len(looks) == 1 else torch.stack(looks).mean(0)
