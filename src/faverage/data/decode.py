"""One image file to one square of RGB pixels, whatever its mode, depth or shape."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

__all__ = ["decode", "formats", "resize_stack", "store_size", "to_rgb", "to_square", "upright"]

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")  # none that runs another program

LARGE = 128
"""From this image size on, photos keep their proportions and a margin for the crop; below, they are squeezed."""


def store_size(image_size: int) -> int:
    """Side of the stored square for images that a network sees at ``image_size``.

    Small images are stored as they are seen; large ones with the usual margin of 256 for 224.

    >>> store_size(84), store_size(224)
    (84, 256)
    """
    return image_size if image_size < LARGE else round(image_size * 256 / 224)


def formats() -> list[str]:
    """Return the formats that are read, by their names in Pillow, as far as this Pillow has them."""
    Image.init()
    return [kind for kind in _FORMATS if kind in Image.OPEN]


def decode(data: bytes, side: int) -> NDArray[np.uint8]:
    """Decode an image file to a square ``(side, side, 3)``.

    Below 128 px the whole image is squeezed into the square, which is what the evaluation of mini-ImageNet does with
    its own resize; from 128 px on the shorter side is resized and the centre kept. The filter is bilinear with
    antialiasing; an image that has the right size already is not touched. Transparency is laid over white, and the
    EXIF orientation is applied.
    """
    with Image.open(io.BytesIO(data), formats=formats()) as opened:
        opened.load()
        return to_square(to_rgb(upright(opened)), side)


def to_square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Bring an RGB image to a square ``(side, side, 3)``, as ``decode`` says."""
    if image.size != (side, side):
        width, height = image.size
        box: tuple[float, float, float, float] = (0, 0, width, height)
        if side >= LARGE:
            short = min(width, height)
            left, top = (width - short) / 2, (height - short) / 2
            box = (left, top, left + short, top + short)
        image = image.resize((side, side), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8)


def upright(image: Image.Image) -> Image.Image:
    """Rotate an image as its EXIF orientation says; one that cannot be read is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert grey, palette, CMYK, transparent, 16-bit and floating-point images to RGB.

    >>> to_rgb(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode == "RGB":
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        pixels = np.array(image, dtype=np.float64)  # changed in place: such images may be large
        np.nan_to_num(pixels, copy=False)
        if image.mode == "F":
            scale = 255.0 if pixels.max() <= 1 else 1.0
        else:
            scale = 1 / 257 if image.mode.startswith("I;16") or pixels.max() > 255 else 1.0
        pixels *= scale
        np.clip(np.rint(pixels, out=pixels), 0, 255, out=pixels)
        image = Image.fromarray(pixels.astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def resize_stack(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resize images ``(n, s, s, 3)`` to ``(n, side, side, 3)``: whole multiples by repetition, others bilinearly."""
    before = images.shape[1]
    if side == before:
        return images
    if side % before == 0:
        return images.repeat(side // before, axis=1).repeat(side // before, axis=2)
    resized = (Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR) for image in images)
    return np.stack([np.asarray(image, dtype=np.uint8) for image in resized])
