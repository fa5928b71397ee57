"""Several networks that look at the same images, their features side by side: slower, and right more often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from faverage.vision.backbones import get_backbone
from faverage.vision.efficientnet import pretrained
from faverage.vision.model import BaseModel
from faverage.vision.transforms import Evaluate

__all__ = ["Together", "together"]

MOST = 4


class Together(nn.Module):
    """Backbones side by side: ``(n, 3, S, S)`` to ``(n, d_1 + … + d_k)``.

    Args:
        backbones: names for ``get_backbone``, which builds this from ``a+b``; networks that take images of any side.

    >>> Together(["tiny", "tiny"])(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 256])
    """

    def __init__(self, backbones: Sequence[str]) -> None:
        super().__init__()
        if isinstance(backbones, str) or not 2 <= len(backbones) <= MOST:
            raise ValueError(f"backbones must be a list of two to {MOST} names, got {str(backbones)[:200]}")
        self.names = list(backbones)
        self.parts = nn.ModuleList(get_backbone(name) for name in self.names)
        widths: list[int] = [cast(int, part.dimension) for part in self.parts]
        self.dimension = sum(widths)

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``(n, dimension)`` of normalised images ``(n, 3, S, S)``."""
        return torch.cat([part(x) for part in self.parts], 1)

    def config(self) -> dict[str, Any]:
        """Return what ``get_backbone`` needs to build this network again."""
        return {"name": "+".join(self.names)}


def together(names: Sequence[str]) -> BaseModel:
    """Return networks of ``pretrained_names()`` as one, all of which see images of the largest one's side.

    Only its features are of use: there is no head for all of them, and that of the result is of zeros.
    """
    models = [pretrained(name) for name in names]
    network = Together(names)
    for part, model in zip(network.parts, models, strict=True):
        part.load_state_dict(model.backbone.state_dict())
    sees = [model.transform for model in models]
    size, resize = max(t.size for t in sees), max(t.resize or t.size for t in sees)
    transform = Evaluate(size, resize=resize, **sees[0].statistics())
    about = {"pretrained": "ImageNet", "backbone": ",".join(names)}
    weight = torch.zeros(1, network.dimension)
    return BaseModel(network.eval(), "linear", weight, torch.zeros(1), None, transform, config=about)
