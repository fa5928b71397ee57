"""From stored images to what a backbone takes, a whole batch in one go and on its device.

Both transforms take uint8 ``(n, S, S, 3)`` and give normalised float32 ``(n, 3, size, size)`` in channels-last order.
They are modules only so that their constants move with ``.to(device)``; there is nothing to train in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Augment", "Evaluate", "transforms_for"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Means of the three channels of ImageNet's photos, on a scale of 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Likewise the standard deviations."""
Crop = Literal["resized", "padded", "none"]


class _Normalise(nn.Module):
    """Keeps mean and std; scales bytes to [0, 1], and normalises them."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"mean and std need three numbers each, std above 0; got {mean} and {std}")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, 3, 1, 1), persistent=False)

    def unit(self, images: Tensor) -> Tensor:
        """Return ``(n, 3, S, S)`` in [0, 1] of uint8 ``(n, S, S, 3)``."""
        return images.permute(0, 3, 1, 2).float() / 255

    def normalise(self, x: Tensor) -> Tensor:
        """Subtract the mean, divide by std, and lay out channels last."""
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)

    def statistics(self) -> dict[str, list[float]]:
        """Return mean and std as plain numbers."""
        return {
            "mean": [round(v, 6) for v in self.mean.flatten().tolist()],
            "std": [round(v, 6) for v in self.std.flatten().tolist()],
        }


class Augment(_Normalise):
    """Random crop, flip and colour jitter for training.

    All randomness comes in as ``noise``, numbers in [0, 1) of shape ``(n, 8)`` that ``draw`` makes from a generator:
    area, ratio, two for the place of the crop, flip, brightness, contrast, saturation.

    Args:
        size: side of the result.
        crop: ``resized`` takes a part of random area and ratio, and scales it to ``size`` (bilinear); ``padded`` shifts
            the image by up to ``padding`` pixels, black beyond its edge; ``none`` scales the whole image.
        area: smallest and largest share of the image's area in a resized crop.
        ratio: smallest and largest width / height of a resized crop. For each area the ratio is drawn among those that
            fit into the image, evenly in its logarithm.
        flip: probability of a horizontal flip.
        jitter: brightness, contrast and saturation are each scaled by a number in 1 ± jitter, in this order.
        padding: of the padded crop, in pixels.
        mean: of the three channels, on a scale of 0 to 1.
        std: likewise.

    >>> augment = Augment(84)
    >>> images = torch.zeros(2, 84, 84, 3, dtype=torch.uint8)
    >>> augment(images, augment.draw(2, torch.Generator().manual_seed(0))).shape
    torch.Size([2, 3, 84, 84])
    """

    NOISE = 8

    def __init__(
        self,
        size: int,
        *,
        crop: Crop = "resized",
        area: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: float = 0.2,
        padding: int = 4,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__(mean, std)
        if crop not in ("resized", "padded", "none"):
            raise ValueError(f"unknown crop {crop!r}: use 'resized', 'padded' or 'none'")
        if not 0 < area[0] <= area[1] <= 1:
            raise ValueError(f"area must be two growing shares in (0, 1], got {area}")
        if not 0 < ratio[0] <= 1 <= ratio[1]:
            raise ValueError(f"ratio must be a number up to 1 and one from 1 on, got {ratio}")
        if not (0 <= flip <= 1 and 0 <= jitter < 1 and padding >= 0 and size >= 1):
            raise ValueError(
                f"expected flip in [0, 1], jitter in [0, 1), padding from 0 and size from 1; "
                f"got {flip}, {jitter}, {padding} and {size}"
            )
        self.size, self.crop, self.area, self.ratio = size, crop, tuple(area), tuple(ratio)
        self.flip, self.jitter, self.padding = flip, jitter, padding

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers ``(n, 8)`` for n images, on the generator's device."""
        return torch.rand(n, self.NOISE, generator=generator, device=generator.device)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return ``(n, 3, size, size)`` of uint8 ``images`` ``(n, S, S, 3)``, with ``noise`` ``(n, 8)``."""
        x = self._cut(self.unit(images), noise)
        if self.jitter:
            x = self._colour(x, 1 + self.jitter * (2 * noise[:, 5:8] - 1))
        return self.normalise(x)

    def boxes(self, noise: Tensor, side: int) -> tuple[Tensor, Tensor]:
        """Return size ``(n, 2)`` and centre ``(n, 2)`` of the crops as (x, y), in shares of an image of ``side`` px."""
        place = noise[:, 2:4]
        if self.crop == "resized":
            area = self.area[0] + (self.area[1] - self.area[0]) * noise[:, 0]
            low = area.clamp(min=self.ratio[0]).log()
            high = area.reciprocal().clamp(max=self.ratio[1]).log()
            ratio = (low + (high - low) * noise[:, 1]).exp()
            size = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)
            return size, size / 2 + (1 - size) * place
        whole = torch.ones_like(place)
        if self.crop == "none" or not self.padding:
            return whole, whole / 2
        shift = (place * (2 * self.padding + 1)).floor() - self.padding
        return whole, 0.5 + shift / side

    def _cut(self, x: Tensor, noise: Tensor) -> Tensor:
        """Sample the crops, flipped where noise says so."""
        size, centre = self.boxes(noise, x.shape[-1])
        mirror = torch.where(noise[:, 4:5] < self.flip, -1.0, 1.0)
        size = torch.cat([size[:, :1] * mirror, size[:, 1:]], 1)
        # grid_sample counts from -1 to 1 over the image; pixel centres are half a pixel inside. The grid is written
        # out, because affine_grid is a matrix product, which loses digits where TF32 or autocast is on.
        steps = (torch.arange(self.size, device=x.device, dtype=x.dtype) + 0.5) * (2 / self.size) - 1
        across = size[:, :1] * steps + (2 * centre[:, :1] - 1)
        down = size[:, 1:] * steps + (2 * centre[:, 1:] - 1)
        shape = (-1, self.size, self.size)
        grid = torch.stack([across[:, None, :].expand(shape), down[:, :, None].expand(shape)], 3)
        beyond = "zeros" if self.crop == "padded" else "border"
        return F.grid_sample(x, grid, mode="bilinear", padding_mode=beyond, align_corners=False)

    def _colour(self, x: Tensor, factors: Tensor) -> Tensor:
        """Scale brightness, contrast and saturation of ``(n, 3, s, s)`` by the columns of ``factors``."""
        brightness, contrast, saturation = (factors[:, i].view(-1, 1, 1, 1) for i in range(3))
        x = (x * brightness).clamp(0, 1)
        level = self._grey(x).mean((2, 3), keepdim=True)
        x = (level + (x - level) * contrast).clamp(0, 1)
        grey = self._grey(x)
        return (grey + (x - grey) * saturation).clamp(0, 1)

    @staticmethod
    def _grey(x: Tensor) -> Tensor:
        """Return the brightness of each pixel, ``(n, 1, s, s)``."""
        return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]

    def config(self) -> dict[str, Any]:
        """Return the arguments that make this transform, as JSON data."""
        return {
            "size": self.size,
            "crop": self.crop,
            "area": list(self.area),
            "ratio": list(self.ratio),
            "flip": self.flip,
            "jitter": self.jitter,
            "padding": self.padding,
            **self.statistics(),
        }


class Evaluate(_Normalise):
    """The transform for evaluation: scale to ``resize`` (bilinear, as PIL does), cut ``size`` out of the middle.

    Args:
        size: side of the result.
        resize: side to scale to first; by default the image stays as it is.
        mean: of the three channels, on a scale of 0 to 1.
        std: likewise.

    >>> Evaluate(16, resize=20)(torch.zeros(5, 32, 32, 3, dtype=torch.uint8)).shape
    torch.Size([5, 3, 16, 16])
    """

    def __init__(
        self,
        size: int,
        *,
        resize: int | None = None,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__(mean, std)
        if size < 1 or (resize is not None and resize < size):
            raise ValueError(f"expected size from 1 and resize of at least size, got size {size} and resize {resize}")
        self.size, self.resize = size, resize

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(n, 3, size, size)`` of uint8 ``images`` ``(n, S, S, 3)``."""
        x = self.unit(images)
        if self.resize is not None and x.shape[-1] != self.resize:
            x = F.interpolate(x.contiguous(), size=(self.resize, self.resize), mode="bilinear", antialias=True)
        side = x.shape[-1]
        if side < self.size:
            raise ValueError(f"cannot cut {self.size} px out of images of {side} px: give resize={self.size} or more")
        start = round((side - self.size) / 2)
        return self.normalise(x[:, :, start : start + self.size, start : start + self.size])

    def config(self) -> dict[str, Any]:
        """Return the arguments that make this transform, as JSON data."""
        return {"size": self.size, "resize": self.resize, **self.statistics()}


def transforms_for(
    side: int,
    *,
    crop: int | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
) -> tuple[Augment, Evaluate]:
    """Return the usual transforms for stored images of ``side`` px.

    Up to 32 px: crop with a padding of an eighth, no resize for evaluation. Up to 128 px: resized crop to ``side``;
    evaluation scales by 92 / 84 and cuts ``side`` out. Above: resized crop to 7/8 of ``side`` (224 of 256), and the
    same out of the middle for evaluation.

    Args:
        side: of the stored images.
        crop: side of the training crops, instead of the usual one; evaluation stays as it is.
        mean: of the three channels, on a scale of 0 to 1.
        std: likewise.

    >>> [t.config()["size"] for t in transforms_for(256)]
    [224, 224]
    """
    if side <= 32:
        augment = Augment(crop or side, crop="padded", padding=side // 8, mean=mean, std=std)
        return augment, Evaluate(side, mean=mean, std=std)
    size = side if side <= 128 else side * 7 // 8
    resize = round(side * 92 / 84) if side <= 128 else None
    return Augment(crop or size, mean=mean, std=std), Evaluate(size, resize=resize, mean=mean, std=std)
