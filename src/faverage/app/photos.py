"""Pictures that people bring: from any bytes to clean RGB, to the squares that a model sees, to thumbnails."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from faverage.app.names import ModelError
from faverage.data.decode import to_rgb, to_square, upright

__all__ = ["MAX_BYTES", "MAX_PIXELS", "open_picture", "png", "squares", "thumbnails"]

Pixels = NDArray[np.uint8]

MAX_BYTES = 25_000_000
MAX_PIXELS = 50_000_000
THUMBNAIL = 64
MOST_THUMBNAILS = 5
_SMALL = 32  # pictures up to this size are enlarged pixel by pixel
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000")  # none that runs another program


def open_picture(data: bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return a picture as plain RGB pixels, upright and without metadata; the first one of an animation.

    Args:
        data: the bytes of an image file.
        max_bytes: how many there may be.
        max_pixels: how large the picture may be; it is looked up before anything is unpacked.

    Raises:
        ModelError: not an image, of an unknown format, cut off, or too large.
    """
    if len(data) > max_bytes:
        raise ModelError(
            f"the file has {len(data) / 1e6:.1f} MB: at most {max_bytes / 1e6:g} MB are allowed; shrink it"
        )
    if not data:
        raise ModelError("the file is empty: expected an image, such as JPEG or PNG")
    Image.init()
    known = [kind for kind in _FORMATS if kind in Image.OPEN]
    try:
        with Image.open(io.BytesIO(data), formats=known) as opened:
            width, height = opened.size
            if width * height > max_pixels:
                raise ModelError(
                    f"the picture has {width:,} x {height:,} pixels: at most {max_pixels / 1e6:g} million are allowed; "
                    "shrink it"
                )
            opened.load()
            image = to_rgb(upright(opened))
            return Image.frombytes("RGB", image.size, image.tobytes())
    except ModelError:
        raise
    except UnidentifiedImageError:
        raise ModelError("this is not an image that can be read: expected JPEG, PNG, WebP, GIF, BMP or TIFF") from None
    except Image.DecompressionBombError:
        raise ModelError(
            f"the picture is far too large: at most {max_pixels / 1e6:g} million pixels are allowed"
        ) from None
    except Exception as error:  # decoders raise many kinds of error on broken bytes
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ModelError(f"the picture is broken or cut off ({reason}): save or fetch it again") from None


def squares(images: Sequence[Image.Image], side: int) -> Pixels:
    """Return pictures as a model stores them, uint8 ``(n, side, side, 3)``."""
    made = [to_square(_rgb(image), side) for image in images]
    return np.stack(made) if made else np.zeros((0, side, side, 3), dtype=np.uint8)


def thumbnails(images: Sequence[Image.Image | Pixels]) -> Pixels:
    """Return small squares of the first five pictures, uint8 ``(at most 5, 64, 64, 3)``; proportions are kept."""
    made = [np.zeros((0, THUMBNAIL, THUMBNAIL, 3), dtype=np.uint8)]
    for image in images[:MOST_THUMBNAILS]:
        picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
        how = Image.Resampling.NEAREST if max(picture.size) <= _SMALL else Image.Resampling.BILINEAR
        made.append(np.asarray(ImageOps.fit(_rgb(picture), (THUMBNAIL, THUMBNAIL), how), dtype=np.uint8)[None])
    return np.concatenate(made)


def png(pixels: Pixels) -> bytes:
    """Return pixels ``(h, w, 3)`` as the bytes of a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _rgb(image: Any) -> Image.Image:
    if not isinstance(image, Image.Image):
        raise ModelError(f"pictures must be Pillow images, got {type(image).__name__}: open_picture makes one of bytes")
    if 0 in image.size:
        raise ModelError("the picture has no pixels: give another")
    return to_rgb(image)
