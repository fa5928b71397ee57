"""Pictures that people bring: from any bytes to clean RGB, to the squares that a model sees, to thumbnails."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from faverage.app.names import ModelError
from faverage.data.decode import LARGE, formats, to_rgb, to_square

Pixels = NDArray[np.uint8]

MAX_BYTES = 25_000_000
MAX_PIXELS = 50_000_000
ENOUGH = 768  # pixels of the shorter side that are kept
LONGEST = 16 * ENOUGH
THUMBNAIL = 64
MOST_THUMBNAILS = 5
_SMALL = 32  # pictures up to this size are enlarged pixel by pixel
_WEIGHTS = {"WEBP": 16, "JPEG2000": 20, "TIFF": 8}  # bytes a pixel that the decoder takes; others take 4
_TILE = 1024
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_picture(data: bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return a picture as plain RGB pixels, upright and without metadata; the first one of an animation.

    A large one is shrunk as it is opened, by a whole factor that leaves the shorter side at least 768 pixels: three
    times what a network for photos sees, so that its answers stay as they were.

    Args:
        data: the bytes of an image file.
        max_bytes: how many there may be.
        max_pixels: how large the picture may be; it is looked up before anything is unpacked.

    Raises:
        ModelError: not an image, of an unknown format, cut off, or too large.
    """
    with _opened(data, max_bytes, max_pixels) as (opened, _):
        opened.load()
        turn = _turn(opened)
        image = _shrunk(opened)
    return image if turn is None else image.transpose(turn)


def unpacking(data: bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return what ``open_picture`` will take: pixels to unpack, and bytes of memory at most; it raises the same errors.

    >>> unpacking(png(np.zeros((20, 10, 3), dtype=np.uint8)))
    (200, 800)
    """
    with _opened(data, max_bytes, max_pixels) as (opened, whole):
        pixels = opened.width * opened.height
        if opened.format in ("JPEG", "MPO"):  # one of several scans keeps the coefficients of the whole picture
            return (whole if opened.info.get("progressive") else pixels), 6 * whole + 4 * pixels
        weight = 16 if opened.mode in ("I", "F") else 4
        return pixels, max(weight, _WEIGHTS.get(str(opened.format), 0)) * pixels


def least(image: Image.Image, side: int, *, shown: bool) -> Image.Image:
    """Return the least of a picture that a model needs: the very square that it sees.

    If it is ``shown``, and a network for small images squeezes it, enough is kept for a thumbnail in proportion.
    """
    if not shown or side >= LARGE:
        return Image.fromarray(to_square(image, side))
    enough = max(2 * THUMBNAIL, 3 * side)
    scale = enough / min(image.size)
    if scale >= 1 and max(image.size) <= 4 * enough:
        return image
    width, height = (min(4 * enough, max(1, round(min(1.0, scale) * size))) for size in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


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


@contextmanager
def _opened(data: bytes, max_bytes: int, max_pixels: int) -> Iterator[tuple[Image.Image, int]]:
    """Give an image file of which only the head was read, and its pixels; what goes wrong with it is said in words."""
    if len(data) > max_bytes:
        raise ModelError(
            f"the file has {len(data) / 1e6:.1f} MB: at most {max_bytes / 1e6:g} MB are allowed; shrink it"
        )
    if not data:
        raise ModelError("the file is empty: expected an image, such as JPEG or PNG")
    try:
        with Image.open(io.BytesIO(data), formats=formats()) as opened:
            width, height = opened.size
            if width * height > max_pixels:
                raise ModelError(
                    f"the picture has {width:,} x {height:,} pixels: at most {max_pixels / 1e6:g} million are allowed; "
                    "shrink it"
                )
            opened.draft(None, (ENOUGH, ENOUGH))  # a JPEG is decoded small at once
            yield opened, width * height
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


def _turn(opened: Image.Image) -> Image.Transpose | None:
    """Return how to turn a picture as its camera noted; a note that cannot be read is no reason to lose the pixels."""
    try:
        return _TURNS.get(opened.getexif().get(0x0112, 1))
    except Exception:
        return None


def _shrunk(opened: Image.Image) -> Image.Image:
    """Return a copy in RGB, without metadata; tile by tile, since a conversion takes several times the memory."""
    factor = max(1, min(opened.size) // ENOUGH)
    across, down = (max(factor, -(-size // LONGEST)) for size in opened.size)
    if opened.mode in ("I", "F"):  # the brightest pixel of all decides what is white
        opened = to_rgb(opened)
    width, height = opened.size
    image = Image.new("RGB", (-(-width // across), -(-height // down)))
    step_x, step_y = across * max(1, _TILE // across), down * max(1, _TILE // down)
    for top in range(0, height, step_y):
        for left in range(0, width, step_x):
            tile = opened.crop((left, top, min(width, left + step_x), min(height, top + step_y)))
            image.paste(to_rgb(tile).reduce((across, down)), (left // across, top // down))
    return image


def _rgb(image: Any) -> Image.Image:
    if not isinstance(image, Image.Image):
        raise ModelError(f"pictures must be Pillow images, got {type(image).__name__}: open_picture makes one of bytes")
    if 0 in image.size:
        raise ModelError("the picture has no pixels: give another")
    return to_rgb(image)
