"""The learner's eyes: images to features by a backbone that has a name, is a module, or was trained before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

if TYPE_CHECKING:
    from faverage.vision import BaseModel, Extractor

__all__ = ["ImageBackbone", "as_backbone"]

Array = NDArray[Any]


class ImageBackbone:
    """From uint8 images ``(n, S, S, 3)`` to features ``(n, d)`` of each view, by name.

    Networks of ``faverage.vision.together`` have views of their own.

    Args:
        backbone: a name of ``faverage.vision.pretrained_names``, whose weights are ready, or of ``backbone_names``,
            whose network the base session trains; or a module from normalised images to features, or a ``BaseModel``,
            used as they are. With training options every network that has a name is trained.
        training: options of ``faverage.vision.train_base``, for a name.
        device: where to train and to extract.
        views: ways to look at each image, see ``faverage.vision.View``.
    """

    def __init__(
        self,
        backbone: str | nn.Module | BaseModel,
        training: dict[str, Any],
        device: str,
        views: Sequence[str] = ("plain",),
    ) -> None:
        from faverage.vision import BaseModel, backbone_names, get_views, pretrained, pretrained_names

        if isinstance(backbone, str) and backbone in pretrained_names() and not training:
            backbone = pretrained(backbone)
        self.name = backbone if isinstance(backbone, str) else None
        if self.name is not None and self.name not in backbone_names():
            raise ValueError(f"unknown backbone {self.name!r}: choose from {', '.join(backbone_names())}")
        if training and self.name is None:
            raise ValueError("training options are for a backbone given by name; a module is used as it is")
        self.model = backbone if isinstance(backbone, BaseModel) else None
        self.module = backbone if isinstance(backbone, nn.Module) else None
        self.training, self.device = training, device
        self.views = [view.name for view in get_views(views)]
        self._extractor: Extractor | None = None

    def fit(self, images: Array, numbers: Array, rows: Array, seed: int) -> ImageBackbone:
        """Train a backbone given by name on ``rows`` ``(m,)`` of images with class numbers ``(n,)``.

        The trained one is returned; this one stays as it is, for a learner to go back to.
        """
        from faverage.vision import train_base
        from faverage.vision.extraction import with_pools

        assert self.name is not None
        options = {"device": self.device, "seed": seed, **self.training}
        trained = copy(self)
        trained._extractor = None
        model = train_base(images, numbers, backbone=self.name, indices=rows, **options)
        trained.model = with_pools(model, self.views, images, rows, device=self.device)
        return trained

    def same(self, other: ImageBackbone) -> bool:
        """Return whether another one gives the same features."""
        from faverage.vision.engine.device import fingerprint_weights
        from faverage.vision.together import view_names

        mine, theirs = (one.model.backbone if one.model is not None else one.module for one in (self, other))
        if view_names(self.views, mine) != view_names(other.views, theirs):
            return False
        if mine is None or theirs is None:
            return mine is theirs and self.name == other.name
        transforms = [one.model.transform.config() for one in (self, other) if one.model is not None]
        if len(transforms) == 2 and transforms[0] != transforms[1]:
            return False
        return mine is theirs or fingerprint_weights(mine) == fingerprint_weights(theirs)

    def ready(self, *, batch_size: int) -> Extractor:
        """Move a trained backbone to its device, once for all the images to come; return what looks at them."""
        from faverage.vision import Extractor

        if self.model is None:
            raise ValueError("only a backbone with a BaseModel can be made ready")
        model = self.model
        options: dict[str, Any] = {"views": self.views, "batch_size": batch_size, "device": self.device}
        self._extractor = Extractor(model.backbone, model.transform, **options)
        return self._extractor

    def __call__(self, images: Any) -> dict[str, Array]:
        """Return the features ``(n, d)`` of images under the evaluation transform, by view."""
        from faverage.vision import extract_features, transforms_for
        from faverage.vision.together import by_view

        images = images if isinstance(images, np.ndarray) else np.asarray(images)
        if self._extractor is not None:
            return by_view(self._extractor(images), self.views, self._extractor.network)
        if self.model is not None:
            module, transform = self.model.backbone, self.model.transform
        elif self.module is not None:
            module = self.module
            transform = transforms_for(images.shape[1] if images.ndim == 4 else 1)[1]
        else:
            raise ValueError(f"the backbone '{self.name}' is not trained yet: call fit_base(X, y) first")
        features = extract_features(module, images, transform=transform, views=self.views, device=self.device)
        return by_view(features, self.views, module)


def as_backbone(
    backbone: Any, training: dict[str, Any], device: str, views: Sequence[str] = ("plain",)
) -> Callable[[Any], Any] | None:
    """Return a function from what the learner is given to features; None where that are features already."""
    if isinstance(backbone, str | nn.Module) or hasattr(backbone, "head_weight"):
        return ImageBackbone(backbone, training, device, views)
    if training:
        raise ValueError("training options are for a backbone given by name, such as backbone='resnet18_small'")
    if backbone is not None and not callable(backbone):
        raise ValueError(f"backbone must be a name, a module or a function, got {type(backbone).__name__}")
    function: Callable[[Any], Any] | None = backbone
    return function
