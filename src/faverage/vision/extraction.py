"""Images to features: the seam of the package."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from faverage.code import code_fingerprint
from faverage.vision.backbones import backbone_config
from faverage.vision.engine.device import (
    LARGE_FOR_CPU,
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

if TYPE_CHECKING:
    from faverage.vision.model import BaseModel

__all__ = ["Extractor", "Eyes", "extract_features"]

DType = Literal["float32", "float16"]

_FEW = 32  # large images that a CPU takes at a time: its caches hold them


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
        indices: ``(n,)``, the rows wanted, in their order; by default all.
        transform: the evaluation transform, such as ``BaseModel.transform``.
        views: ways to look at each image, see ``View``; their features are side by side, ``(n, views x d)``.
        batch_size: images at a time; on a CPU at most 32, where they have 64 px or more.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.
        precision: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU.
        dtype: of the result.
        progress: draw a progress bar.

    >>> from faverage.vision import get_backbone
    >>> images = np.zeros((5, 16, 16, 3), dtype=np.uint8)
    >>> extract_features(get_backbone("tiny", dimension=8), images, transform=Evaluate(16), device="cpu").shape
    (5, 8)
    """
    check_images(images)
    options: dict[str, Any] = {"batch_size": batch_size, "device": device, "precision": precision, "dtype": dtype}
    extractor = Extractor(backbone, transform, views=views, **options)
    rows = check_indices(indices, len(images))
    with fast_convolutions(extractor.device), Report("features", len(rows), show=progress) as report:
        result = np.empty((len(rows), extractor.dimension(images, rows)), dtype)
        return extractor.into(result, images, rows, report.advance)


class Extractor:
    """A frozen backbone that is ready to be asked again and again, by several threads at once.

    It is moved to its device once; ``extract_features`` makes one for a single job.

    Args:
        backbone: module from images to features; it is copied, not changed.
        transform: the evaluation transform, such as ``BaseModel.transform``.
        views: ways to look at each image, see ``View``; their features are side by side.
        batch_size: images at a time; on a CPU at most 32, where they have 64 px or more.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.
        precision: of the computation: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU.
        dtype: of the features.

    >>> from faverage.vision import get_backbone
    >>> see = Extractor(get_backbone("tiny", dimension=8), Evaluate(16), device="cpu")
    >>> see(np.zeros((5, 16, 16, 3), dtype=np.uint8)).shape
    (5, 8)
    """

    def __init__(
        self,
        backbone: nn.Module,
        transform: Evaluate,
        *,
        views: Sequence[str | View] = ("plain",),
        batch_size: int = 256,
        device: str | torch.device = "auto",
        precision: Precision = "auto",
        dtype: DType = "float32",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if dtype not in ("float32", "float16"):
            raise ValueError(f"unknown dtype {dtype!r}: use 'float32' or 'float16'")
        self.views, self.device, self.dtype = get_views(views), pick_device(device), dtype
        self.batch_size, self.compute = batch_size, pick_precision(precision, self.device)
        self.layout = pick_layout("auto", self.device)
        if self.device.type == "cpu" and transform.size >= LARGE_FOR_CPU:  # channels last is faster, too
            self.batch_size = min(batch_size, _FEW)
            if backbone_config(backbone) is not None:  # a network of another kind may count on the usual layout
                self.layout = torch.channels_last
        if any(view.largest for view in self.views) and not hasattr(backbone, "pools"):
            raise ValueError(
                f"a view of the 'largest' values needs a network that has them, with a method 'pools' as that of "
                f"faverage.vision.ResNet18; {type(backbone).__name__} has none: leave the view out"
            )
        self.network = move(copy.deepcopy(backbone), self.device, self.layout).eval()
        self.prepare = copy.deepcopy(transform).to(self.device)

    def __call__(self, images: Array | Shards) -> Array:
        """Return the features ``(n, views x d)`` of images, uint8 ``(n, S, S, 3)``, finite or not."""
        check_images(images)
        starts = range(0, max(len(images), 1), self.batch_size)
        return np.concatenate([self._look(images[i : i + self.batch_size]).astype(self.dtype) for i in starts])

    def dimension(self, images: Array | Shards, rows: Array) -> int:
        """Return the number of features, by the first of the rows ``(n,)`` of images ``(N, S, S, 3)``, if any."""
        if len(rows):
            return int(self._look(images[rows[:1]]).shape[1])
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

    def into(self, result: Array, images: Array | Shards, rows: Array, advance: Callable[[int], None]) -> Array:
        """Fill ``result`` ``(n, views x d)`` with the features of rows ``(n,)`` of images ``(N, S, S, 3)``; return it.

        Raises:
            FloatingPointError: they are not finite.
        """
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            features = self._look(images[part])
            if not np.isfinite(features).all():
                raise FloatingPointError("the backbone gives features that are not numbers: check its weights")
            result[start : start + len(part)] = features.astype(self.dtype)
            advance(len(part))
        return result

    @torch.inference_mode()
    def _look(self, images: Array) -> Array:
        """Return the features of one batch."""
        batch = self.prepare(torch.from_numpy(np.ascontiguousarray(images)).to(self.device))
        with autocast(self.device, self.compute):
            seen = features_of(self.network, self.views, batch, self.layout)
        result: Array = torch.cat(seen, 1).cpu().numpy()
        return result


def features_of(
    network: nn.Module, views: Sequence[View], images: Tensor, layout: torch.memory_format = torch.contiguous_format
) -> list[Tensor]:
    """Return the features ``(n, d)`` of each view of images ``(n, 3, s, s)``; a pass that views share is made once."""
    largest = {look for view in views if view.largest for look in view.looks}
    seen: dict[View, tuple[Tensor, ...]] = {}
    for look in dict.fromkeys(look for view in views for look in view.looks):
        x = look(images).contiguous(memory_format=layout)
        seen[look] = network.pools(x) if look in largest else (network(x),)  # type: ignore[operator]
    sides = [[seen[look][view.largest].float() for look in view.looks] for view in views]
    return [found[0] if len(found) == 1 else torch.stack(found).mean(0) for found in sides]


class Eyes(Extractor):
    """The former name of an ``Extractor`` of a ``BaseModel``; it goes in version 0.3.

    >>> from faverage.vision import BaseModel, get_backbone
    >>> backbone = get_backbone("tiny", dimension=8)
    >>> model = BaseModel(backbone, "linear", torch.zeros(3, 8), torch.zeros(3), None, Evaluate(8))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     see = Eyes(model, device="cpu")
    >>> print(caught[0].message)
    faverage.vision.Eyes goes in version 0.3: use Extractor(model.backbone, model.transform)
    >>> see(np.zeros((2, 8, 8, 3), dtype=np.uint8)).shape
    (2, 8)
    """

    def __init__(self, model: BaseModel, device: str = "auto") -> None:
        warnings.warn(
            "faverage.vision.Eyes goes in version 0.3: use Extractor(model.backbone, model.transform)",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(model.backbone, model.transform, batch_size=128, device=device)
        self.model = model

    def __call__(self, images: Any) -> Array:
        """Return the features ``(n, d)`` of images ``(n, S, S, 3)``, which may be a list."""
        return super().__call__(np.asarray(images))
