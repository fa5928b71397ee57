"""Files of a model for the page: pictures and whole models as zips, out and in, and ONNX."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from faverage.app.names import ModelError
from faverage.app.server.guard import Refused, client_of
from faverage.app.server.limits import Limits
from faverage.app.server.schemas import Merged, Unzipped, errors, learned_answer
from faverage.app.server.workers import Workers
from faverage.app.zips import merge_zip, read_pictures, write_model_zip, write_pictures

if TYPE_CHECKING:
    from PIL.Image import Image

    from faverage.app.model import Model

ZIPS_AT_ONCE = 2  # that come in, of all clients together: what is in them takes memory
TOGETHER = 50  # pictures of a zip that are opened at a time
_CHUNK = 1 << 18
_ZIP = {"required": True, "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}


def _file(kind: str) -> dict[str, Any]:
    """Return how a route that answers with a file is described."""
    return {"response_class": Response, "responses": {200: {"content": {kind: {}}}, **errors(409)}}


def add_files(router: APIRouter, model: Model, workers: Workers, limits: Limits) -> None:
    """Add the routes."""

    async def download(write: Callable[[IO[bytes]], Any], name: str, kind: str) -> Response:
        file: IO[bytes] = tempfile.TemporaryFile()
        try:
            await workers.export(write, file)
        except (ModelError, ImportError) as error:
            file.close()
            missing = "the extra 'onnx' is not installed where this runs; 'faverage doctor' says how to"
            raise Refused(409, missing if isinstance(error, ImportError) else str(error)) from None
        size = file.seek(0, 2)
        headers = {"content-length": str(size), "content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(_chunks(file), media_type=kind, headers=headers)

    @contextmanager
    def place() -> Iterator[None]:
        if workers.threads.zips >= ZIPS_AT_ONCE:
            raise Refused(503, "Other zips are being read: try again in a moment.", {"retry-after": "5"})
        workers.threads.zips += 1
        try:
            yield
        finally:
            workers.threads.zips -= 1

    called = re.sub(r"[^A-Za-z0-9_-]", "-", model.folder.name) or "model"

    @router.get("/api/pictures.zip", **_file("application/zip"), summary="All pictures")
    async def pictures_out() -> Response:
        """A folder a class; the pictures are the squares that the model sees, not the files that were sent."""
        return await download(lambda file: write_pictures(model, file), f"{called}-pictures.zip", "application/zip")

    @router.get("/api/model.zip", **_file("application/zip"), summary="The whole model")
    async def model_out() -> Response:
        """The folder of the model, as it is now; unpacked, it can be served, or merged by another."""
        return await download(lambda file: write_model_zip(model, file), f"{called}.zip", "application/zip")

    @router.get("/api/model.onnx", **_file("application/octet-stream"), summary="The model as ONNX")
    async def onnx_out() -> Response:
        """From pixels to probabilities, for programs that know nothing of faverage."""
        return await download(lambda file: _write_onnx(model, file), f"{called}.onnx", "application/octet-stream")

    @router.post(
        "/api/pictures.zip",
        responses=errors(409, 413, 422),
        openapi_extra={"requestBody": _ZIP},
        summary="Teach from a zip of folders",
    )
    async def pictures_in(request: Request) -> Unzipped:
        """Each folder is a class; up to 1,000 pictures. One that cannot be read is named, and nothing is changed."""
        with await _body(request) as file, place():  # who sends slowly keeps nobody from it
            return await learn(client_of(request.scope), file)

    async def learn(client: str, file: IO[bytes]) -> Unzipped:
        try:
            found = await workers.export(read_pictures, file, limits.picture_bytes)
        except ModelError as error:
            raise Refused(422, str(error)) from None
        lessons: dict[str, list[Image]] = {}
        for start in range(0, len(found), TOGETHER):
            some = found[start : start + TOGETHER]
            with workers.room(client, len(some)):
                opened = await workers.open(client, [(path, data) for _, path, data in some], shown=len(some))
            for (name, _, _), image in zip(some, opened, strict=True):
                lessons.setdefault(name, []).append(image)
        taught = await workers.change(model.teach_many, lessons)
        version = await workers.version()
        went = [learned_answer(one, version) for one in taught]
        return Unzipped(pictures=len(found) - sum(one.again for one in taught), lessons=went, version=version)

    @router.post(
        "/api/merge",
        responses=errors(409, 413, 422),
        openapi_extra={"requestBody": _ZIP},
        summary="Merge another model",
    )
    async def merge(request: Request) -> Merged:
        """Send the zip of a model with the same backbone; a class that both know becomes one."""
        with await _body(request) as file, place(), tempfile.TemporaryDirectory() as scratch:
            new = await workers.change(merge_zip, model, file, Path(scratch))
        return Merged(new=new, version=await workers.version())


async def _body(request: Request) -> IO[bytes]:
    """Return the body of a request as a file, which vanishes when it is closed."""
    file: IO[bytes] = tempfile.TemporaryFile()
    try:
        async for chunk in request.stream():
            file.write(chunk)
        if not file.tell():
            raise Refused(422, "There is nothing in the request: send a zip file.")
    except BaseException:
        file.close()
        raise
    return file


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK):
            yield chunk


def _write_onnx(model: Model, file: IO[bytes]) -> None:
    from faverage.app.onnx import export_learner

    if not model.classes():
        raise ModelError("the model knows nothing yet: teach it a class first")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_learner(model, path)
        file.write(path.read_bytes())
