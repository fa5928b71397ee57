"""Several networks that look at the same images: slower, and right more often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from faverage.vision.backbones import get_backbone
from faverage.vision.efficientnet import pretrained
from faverage.vision.extraction import width_of
from faverage.vision.model import BaseModel
from faverage.vision.transforms import Evaluate
from faverage.vision.views import get_views

__all__ = ["Together", "by_view", "together", "view_names"]

MOST = 4


class Together(nn.Module):
    """Backbones side by side: ``(n, 3, S, S)`` to ``(n, d_1 + … + d_k)``.

    Args:
        backbones: names for ``get_backbone``, which builds this from ``a+b``; networks that take images of any side.
        apart: whether a learner has the features of each as a view of its own; no two may then be the same.

    >>> Together(["tiny", "tiny"])(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 256])
    """

    def __init__(self, backbones: Sequence[str], *, apart: bool = False) -> None:
        super().__init__()
        if isinstance(backbones, str) or not 2 <= len(backbones) <= MOST:
            raise ValueError(f"backbones must be a list of two to {MOST} names, got {str(backbones)[:200]}")
        if apart and len(set(backbones)) < len(backbones):
            raise ValueError(f"backbones that are views must differ from each other, got {', '.join(backbones)}")
        self.names, self.apart = list(backbones), bool(apart)
        self.parts = nn.ModuleList(get_backbone(name) for name in self.names)
        self.widths: list[int] = [cast(int, part.dimension) for part in self.parts]
        self.dimension = sum(self.widths)

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``(n, dimension)`` of normalised images ``(n, 3, S, S)``."""
        return torch.cat([part(x) for part in self.parts], 1)

    def pools(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the largest value of each channel, ``(n, dimension)`` each, over all positions."""
        means, largest = zip(*(part.pools(x) for part in self.parts), strict=True)  # type: ignore[operator]
        return torch.cat(means, 1), torch.cat(largest, 1)

    def config(self) -> dict[str, Any]:
        """Return what ``get_backbone`` needs to build this network again."""
        config: dict[str, Any] = {"name": "+".join(self.names)}
        return {**config, "apart": True} if self.apart else config


def view_names(views: Sequence[str], network: nn.Module | None) -> list[str]:
    """Return what a learner calls its views: those of images, for each of several networks that are apart.

    >>> view_names(["plain", "flip"], Together(["tiny", "resnet18_small"], apart=True))
    ['tiny', 'resnet18_small', 'tiny: flip', 'resnet18_small: flip']
    """
    if not isinstance(network, Together) or not network.apart:
        return list(views)
    return [name if view == "plain" else f"{name}: {view}" for view in views for name in network.names]


def by_view(features: NDArray[Any], views: Sequence[str], network: nn.Module) -> dict[str, NDArray[Any]]:
    """Return what ``extract_features`` has side by side, ``(n, Σ d_v)``, as ``(n, d_v)`` by ``view_names``."""
    if isinstance(network, Together) and network.apart:
        widths = network.widths * len(views)
    else:
        fitted = [width_of(view, network) for view in get_views(views)]
        usual = (features.shape[1] - sum(fitted)) // max(fitted.count(0), 1)
        widths = [width or usual for width in fitted]
    parts = np.split(features, np.cumsum(widths)[:-1], axis=1)
    return dict(zip(view_names(views, network), parts, strict=True))


def together(names: Sequence[str]) -> BaseModel:
    """Return networks of ``pretrained_names()`` as one, apart, all of which see images of the largest one's side.

    Only its features are of use: there is no head for all of them, and that of the result is of zeros.

    >>> model = together(["efficientnet_lite0", "efficientnet_lite1"])
    >>> model.transform.size, model.backbone.dimension
    (240, 2560)
    >>> model.backbone.names, model.backbone.widths  # to a learner, each network is a view
    (['efficientnet_lite0', 'efficientnet_lite1'], [1280, 1280])
    """
    models = [pretrained(name) for name in names]
    network = Together(names, apart=True)
    for part, model in zip(network.parts, models, strict=True):
        part.load_state_dict(model.backbone.state_dict())
    sees = [model.transform for model in models]
    size, resize = max(t.size for t in sees), max(t.resize or t.size for t in sees)
    transform = Evaluate(size, resize=resize, **sees[0].statistics())
    about = {"pretrained": "ImageNet", "backbone": ",".join(names)}
    weight = torch.zeros(1, network.dimension)
    return BaseModel(network.eval(), "linear", weight, torch.zeros(1), None, transform, config=about)
