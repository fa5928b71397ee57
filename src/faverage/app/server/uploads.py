"""Pictures out of a request: counted, measured, and opened as what they are, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from faverage.app.names import ModelError
from faverage.app.photos import least, open_picture, unpacking
from faverage.app.server.guard import Refused
from faverage.app.server.limits import Limits

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Upload", "open_light", "open_one", "read_form", "read_predict"]

T = TypeVar("T")

LIGHT = 8_000_000
"""Bytes of memory that a picture may take to be opened beside others; a larger one waits for its turn."""

Upload = tuple[str, bytes]
"""What a picture is called in messages, and its bytes."""


async def read_predict(request: Request, limits: Limits) -> list[Upload]:
    """Return the pictures of a form, or the one picture that is the body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return (await read_form(request, limits))[1]
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        _check_size("the picture", len(data), limits)
    if not data:
        raise Refused(422, "There is no picture in the request.")
    return [("the picture", bytes(data))]


async def read_form(request: Request, limits: Limits) -> tuple[str | None, list[Upload]]:
    """Return the field ``name``, if there is one, and the pictures in the fields ``images``."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Refused(415, "Send a form (multipart/form-data) with the pictures in fields called images.")
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=limits.pictures, max_fields=10, max_part_size=4096
    )
    parser.spool_max_size = limits.request_bytes  # in memory, which is counted: files would need descriptors
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise Refused(413, f"At most {limits.pictures} pictures at a time.") from None
        raise Refused(400, "The form could not be read.") from None
    except (ValueError, LookupError):  # a part that is not text in the charset that it claims
        raise Refused(400, "The form could not be read.") from None
    try:
        name = form.get("name")
        uploads: list[Upload] = []
        for number, value in enumerate(form.getlist("images"), 1):
            if not isinstance(value, UploadFile):
                raise Refused(422, f"picture {number}: this is text, not a file.")
            called = _called(number, value.filename)
            _check_size(called, value.size or 0, limits)
            uploads.append((called, await value.read()))
            await value.close()  # the bytes are not needed twice
    finally:
        await form.close()
    if not uploads:
        raise Refused(422, "There is no picture in the request: put at least one in a field called images.")
    return name if isinstance(name, str) else None, uploads


def open_light(uploads: Sequence[Upload], limits: Limits, side: int, shown: int) -> list[Image | None]:
    """Open the pictures that take little memory; None stands for one that has to wait for its turn.

    Args:
        uploads: the pictures; the first that is none is refused by its name, and nothing is opened.
        limits: of a picture, and of all of them together.
        side: of what the model sees; nothing more is kept.
        shown: of so many, enough is kept to show them.
    """
    pixels, heavy = 0, []
    for called, data in uploads:
        found, memory = _said(called, unpacking, data, limits)
        pixels += found
        if memory > limits.memory:
            raise Refused(413, f"{called}: too many pixels for this format; shrink it, or send it as JPEG.")
        heavy.append(memory > LIGHT)
    if pixels > limits.pixels_together:
        most = f"{limits.pixels_together / 1e6:g} million pixels"
        raise Refused(413, f"The pictures have more than {most} together: send fewer, or smaller ones.")
    return [
        None if waits else open_one(upload, limits, side, number < shown)
        for number, (upload, waits) in enumerate(zip(uploads, heavy, strict=True))
    ]


def open_one(upload: Upload, limits: Limits, side: int, shown: bool) -> Image:
    """Open one picture, and keep the least of it that is needed."""
    return least(_said(upload[0], open_picture, upload[1], limits), side, shown=shown)


def _said(called: str, work: Callable[..., T], data: bytes, limits: Limits) -> T:
    try:
        return work(data, max_bytes=limits.picture_bytes, max_pixels=limits.pixels)
    except ModelError as error:
        raise Refused(422, f"{called}: {error}") from None


def _check_size(called: str, size: int, limits: Limits) -> None:
    if size > limits.picture_bytes:
        raise Refused(413, f"{called} is larger than {limits.picture_bytes / 2**20:g} MB.")


def _called(number: int, filename: str | None) -> str:
    r"""Return a name for messages, with nothing odd in it.

    >>> _called(2, "C:\\fotos\\cat.jpg"), _called(1, None)
    ('picture 2 (cat.jpg)', 'picture 1')
    """
    last = (filename or "").replace("\\", "/").rpartition("/")[2]
    plain = "".join(c for c in last if c.isprintable())[:60]
    return f"picture {number} ({plain})" if plain else f"picture {number}"
