"""Images to features: the seam of the package."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from faverage.code import code_fingerprint
from faverage.vision.backbones import MOST_PARTS, Pooled, backbone_config
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
from faverage.vision.pools import centres_of, directions_of, pool
from faverage.vision.shards import Shards
from faverage.vision.transforms import Evaluate
from faverage.vision.views import View, get_views

if TYPE_CHECKING:
    from faverage.vision.model import BaseModel

__all__ = ["Extractor", "Eyes", "extract_features", "fit_pools"]

DType = Literal["float32", "float16"]

_MOST_FOR_POOLS = 512  # images
_MOST_PLACES = 128  # of an image
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
        if any(view.pool == "largest" for view in self.views) and not hasattr(backbone, "pools"):
            raise ValueError(
                f"a view of the 'largest' values needs a network that has them, with a method 'pools' as that of "
                f"faverage.vision.ResNet18; {type(backbone).__name__} has none: leave the view out"
            )
        for view in self.views:
            if view.fitted and not (isinstance(backbone, Pooled) and backbone.directions is not None):
                raise ValueError(
                    f"a view of the {view.pool!r} needs a network that has seen images for it: take what "
                    "faverage.vision.fit_pools returns, or leave the view out"
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
        d = int(getattr(self.network, "dimension", 0))
        return sum(width_of(view, self.network) or d for view in self.views)

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
    """Return the features ``(n, d_v)`` of each view of images ``(n, 3, s, s)``; a pass that they share is made once."""
    kinds: dict[View, set[str]] = {}
    for view in views:
        for look in view.looks:
            kinds.setdefault(look, set()).add(view.pool)
    seen = {look: _pools(network, look(images).contiguous(memory_format=layout), of) for look, of in kinds.items()}
    sides = [[seen[look][view.pool].float() for look in view.looks] for view in views]
    return [found[0] if len(found) == 1 else torch.stack(found).mean(0) for found in sides]


def _pools(network: nn.Module, x: Tensor, kinds: set[str]) -> dict[str, Tensor]:
    """Return what one pass gives, by the names of the pools."""
    if kinds == {"mean"}:
        return {"mean": network(x)}
    if kinds <= {"mean", "largest"}:
        return dict(zip(("mean", "largest"), network.pools(x), strict=True))  # type: ignore[operator]
    assert isinstance(network, Pooled)
    earlier = network.third_quarter(network.first_half(x))
    maps = network.last_quarter(earlier)
    of = {"texture": (earlier, network.textures)}
    return {kind: pool(kind, *of.get(kind, (maps, network.directions)), network.centres) for kind in kinds}


def width_of(view: View, network: nn.Module) -> int:
    """Return how many features a view has of a network; 0: as many as that."""
    if not view.fitted:
        return 0
    assert isinstance(network, Pooled)
    needed = {"covariance": network.directions, "texture": network.textures, "parts": network.centres}[view.pool]
    assert needed is not None
    k = needed.shape[1]
    return needed.numel() if view.pool == "parts" else k * (k + 1) // 2


def fit_pools(
    backbone: nn.Module,
    images: Array | Shards,
    indices: Any = None,
    *,
    transform: Evaluate,
    directions: int = 64,
    parts: int = 4,
    device: str | torch.device = "auto",
) -> nn.Module:
    """Return a copy of a backbone that knows how its channels vary within images, and what kinds of places these have.

    Its views may then have the word ``covariance``, for features that say which channels respond in the same places,
    ``texture``, for the same of finer channels before the last quarter, or ``parts``, for what is seen at one kind of
    place at a time. None takes a further pass; see ``faverage.vision.pools``. On photos of birds, all together add more
    than a second look.

    Args:
        backbone: one of ``backbone_names()``, other than several side by side; it is not changed.
        images: uint8 ``(N, S, S, 3)``, may be a memory map, or several as ``Shards``.
        indices: ``(n,)``, rows of images such as it will see, not those to test with; by default all. At most 512 of
            them, evenly spread, are looked at.
        transform: the evaluation transform, such as ``BaseModel.transform``.
        directions: k of covariance and texture, at most as many as there are channels; each has k (k + 1) / 2 features.
        parts: how many kinds of places; each has as many features as there are channels.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.

    >>> from faverage.vision import get_backbone
    >>> images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    >>> network = fit_pools(get_backbone("tiny"), images, transform=Evaluate(16), directions=8, parts=2, device="cpu")
    >>> views = ["plain", "covariance", "texture", "parts"]  # 128, 36, 36 and 256 features
    >>> extract_features(network, images, views=views, transform=Evaluate(16), device="cpu").shape
    (8, 456)
    """
    check_images(images)
    if not isinstance(backbone, Pooled):
        kind = type(backbone).__name__
        raise ValueError(f"only networks such as faverage.vision.ResNet18 have these pools; {kind} has not")
    if directions < 1 or not 1 <= parts <= MOST_PARTS:
        raise ValueError(f"directions must be 1 or more, and parts 1 to {MOST_PARTS}, got {directions} and {parts}")
    rows = check_indices(indices, len(images))
    if not len(rows):
        raise ValueError("no image to fit pools to: give at least one")
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_FOR_POOLS)).astype(np.int64)]
    see = Extractor(backbone, transform, device=device)
    compute, network = pick_precision("auto", see.device, transform.size), cast(Pooled, see.network)
    scatters, places = [np.zeros((d, d)) for d in (network.earlier, network.dimension)], []
    with torch.inference_mode(), fast_convolutions(see.device):
        for start in range(0, len(rows), see.batch_size):
            part = images[rows[start : start + see.batch_size]]
            with autocast(see.device, compute):
                x = see.prepare(torch.from_numpy(np.ascontiguousarray(part)).to(see.device))
                earlier = network.third_quarter(network.first_half(x.contiguous(memory_format=see.layout)))
                last = network.last_quarter(earlier).flatten(2)
            places.append(
                last.float().transpose(1, 2).flatten(0, 1).cpu().numpy()[:: 1 + last.shape[2] // _MOST_PLACES]
            )
            for scatter, maps in zip(scatters, (earlier.flatten(2).float(), last.float()), strict=True):
                maps = maps - maps.mean(2, keepdim=True)
                scatter += torch.einsum("ndp,nep->de", maps, maps).double().cpu().numpy() / maps.shape[2]
    found = copy.deepcopy(backbone)
    own = next(found.parameters())
    found.textures, found.directions = (directions_of(scatter, directions).to(own) for scatter in scatters)
    found.centres = centres_of(np.concatenate(places), parts).to(own)
    return found


def with_pools(
    model: BaseModel, views: Sequence[str | View], images: Array | Shards, rows: Any, *, device: str
) -> BaseModel:
    """Return a model whose backbone has what views need beside its weights; where they need nothing, as it is.

    Args:
        model: with a backbone that is trained.
        views: ways to look at images.
        images: uint8 ``(N, S, S, 3)``.
        rows: of those to fit to, ``(n,)``.
        device: where.
    """
    if not any(view.fitted for view in get_views(views)):
        return model
    backbone = fit_pools(model.backbone, images, rows, transform=model.transform, device=device)
    return replace(model, backbone=backbone)


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
