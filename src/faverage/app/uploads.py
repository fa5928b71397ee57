"""Pictures out of a request: counted, measured, and opened as what they are, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from faverage.app.guard import Refused
from faverage.app.limits import Limits
from faverage.app.model import ModelError, open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Upload", "open_all", "read_form", "read_predict"]

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
    try:
        form = await request.form(max_files=limits.pictures, max_fields=10, max_part_size=4096)
    except HTTPException as error:
        if isinstance(error, Refused):
            raise
        if "Too many files" in str(error.detail):
            raise Refused(413, f"At most {limits.pictures} pictures at a time.") from None
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
    finally:
        await form.close()
    if not uploads:
        raise Refused(422, "There is no picture in the request: put at least one in a field called images.")
    return name if isinstance(name, str) else None, uploads


def open_all(uploads: Sequence[Upload], limits: Limits) -> list[Image]:
    """Open every picture; the first that is none is refused by its name."""
    images = []
    for called, data in uploads:
        try:
            images.append(open_picture(data, max_bytes=limits.picture_bytes, max_pixels=limits.pixels))
        except ModelError as error:
            raise Refused(422, f"{called}: {error}") from None
    return images


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
