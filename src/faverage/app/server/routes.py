"""The routes of one model: predict, read, change, what the page shows of kept examples; and what a request brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from faverage import __version__
from faverage.app.names import ModelError, clean_name
from faverage.app.server import schemas
from faverage.app.server.guard import Refused, client_of
from faverage.app.server.limits import Limits, Meter
from faverage.app.server.schemas import class_id, classes_answer, learned_answer, prediction_answer
from faverage.app.server.workers import Upload, Workers

if TYPE_CHECKING:
    from faverage.app.model import Model
    from faverage.app.why import Examples

MOST_LISTED = 5000  # examples in one answer
_PICTURES = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "1 to 20 pictures."}
_PREDICT = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {"images": _PICTURES}, "required": ["images"]}
        },
        "image/*": {"schema": {"type": "string", "format": "binary"}},
    },
}
_TEACH = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string", "examples": ["star"]}, "images": _PICTURES},
                "required": ["name", "images"],
            }
        }
    },
}


def add_predict(router: APIRouter, at: str, workers: Workers, limits: Limits) -> None:
    """Add the route that says what is on pictures; ``at`` begins addresses."""

    @router.post(
        "/api/predict",
        response_model=schemas.Predictions,
        responses=schemas.errors(400, 409, 413, 422),
        openapi_extra={"requestBody": _PREDICT},
        summary="Say what is on pictures, and why",
    )
    async def predict(
        request: Request,
        unknown: Annotated[
            float | None, Query(gt=0, lt=1, description="Rate of wrong 'none of these', as 0.05.")
        ] = None,
    ) -> Response:
        """Send a form with up to 20 pictures in fields called `images`, or one picture as the body.

        With `?unknown=0.05`, the answer says whether a picture is none of the classes; it says so of at most that
        share of the pictures of known classes.
        """
        uploads = await _read_predict(request, limits)
        client = client_of(request.scope)
        with workers.room(client, len(uploads)):
            images = await workers.open(client, uploads)
            try:
                answers = await workers.predict(images)
            except ModelError as error:
                raise Refused(409, str(error)) from None
        # the answer is put together by hand: checking it against its own model costs more than predicting
        return JSONResponse({"answers": [prediction_answer(answer, unknown, at) for answer in answers]})


def add_reading(
    router: APIRouter, model: Model, at: str, workers: Workers, meter: Meter, served: schemas.Models
) -> None:
    """Add what is read of a model and of the server; ``at`` begins addresses."""

    @router.get("/api/models", responses=schemas.errors(), summary="Which models are served")
    async def models() -> schemas.Models:
        """Each with its name and its address."""
        return served

    @router.get("/api/classes", responses=schemas.errors(), summary="What the model knows")
    async def classes() -> schemas.Classes:
        """Every class with its number of pictures and its thumbnails, and the last change."""
        return await workers.read(classes_answer, model, at)

    @router.get(
        "/api/classes/{id}/thumbnails/{k}.png",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}, **schemas.errors(404)},
        summary="A small picture of a class",
    )
    async def thumbnail(id: str, k: int) -> Response:
        """The addresses are in the answer of `/api/classes`."""
        for known in await workers.read(model.classes):
            if class_id(known.name) == id and 0 <= k < len(known.thumbnails):
                headers = {"cache-control": "private, max-age=31536000, immutable"}
                return Response(known.thumbnails[k], media_type="image/png", headers=headers)
        raise Refused(404, "There is no such picture.")

    @router.get("/api/explain", responses=schemas.errors(409), summary="How the model decides")
    async def explain() -> schemas.Explained:
        """The share of each mean, of each member for each class, and the most trusted member of each class."""
        try:
            said = await workers.read(model.explain)
        except ModelError as error:
            raise Refused(409, str(error)) from None
        return schemas.Explained(
            means=[schemas.MeanShare(mean=str(m), share=s) for m, s in said.means.rows],
            heads=[schemas.HeadShare(name=str(c), head=str(h), share=s) for c, h, s in said.models.rows],
            trusted=[
                schemas.Trusted(name=str(c), head=str(h), share=s, mean=str(m)) for c, h, s, m in said.trusted.rows
            ],
        )

    @router.get("/api/health", summary="A sign of life")
    async def health() -> schemas.Health:
        """Answers without a token."""
        version, known = await workers.known()
        return schemas.Health(status="ok", faverage=__version__, version=version, classes=known)

    @router.get("/api/metrics", responses=schemas.errors(), summary="Counts and times")
    async def metrics() -> schemas.Metrics:
        """Requests by address, with median and 99th percentile of their times."""
        requests = {path: schemas.Timing.model_validate(found) for path, found in meter.summary().items()}
        return schemas.Metrics(
            faverage=__version__,
            version=(await workers.known())[0],
            seconds=round(meter.seconds, 1),
            batches=meter.batches,
            pictures=meter.pictures,
            requests=requests,
        )


def add_changes(router: APIRouter, model: Model, workers: Workers, limits: Limits) -> None:
    """Add the routes that teach, forget and undo."""

    @router.post(
        "/api/teach",
        responses=schemas.errors(400, 409, 413, 415, 422),
        openapi_extra={"requestBody": _TEACH},
        summary="Teach a class from a few pictures",
    )
    async def teach(request: Request) -> schemas.Learned:
        """One picture is enough, five are better. A class that is known gets more pictures.

        Those who predict meanwhile are answered by the model as it was before. Two who teach take turns.
        """
        given, uploads = await _read_form(request, limits)
        name = _cleaned(given)
        client = client_of(request.scope)
        with workers.room(client, len(uploads)):
            images = await workers.open(client, uploads, shown=len(uploads))
            taught = await workers.change(model.teach, name, images)
        return learned_answer(taught, await workers.version())

    @router.post("/api/forget", responses=schemas.errors(404, 409, 413, 422), summary="Forget a class")
    async def forget(wanted: schemas.Name) -> schemas.Forgotten:
        """The others stay as they are."""
        name = _cleaned(wanted.name)
        await _check_known(model, workers, name)
        await workers.change(model.forget, name)
        return schemas.Forgotten(name=name, version=await workers.version())

    @router.post("/api/undo", responses=schemas.errors(409), summary="Take back the last change")
    async def undo() -> schemas.Undone:
        """The change before it is then the last one."""
        undone = await workers.change(model.undo)
        return schemas.Undone(undone=undone, version=await workers.version())


def add_examples(router: APIRouter, model: Model, at: str, workers: Workers) -> None:
    """Add what the page shows of kept examples, and the changes that it makes to them; ``at`` begins addresses."""
    last: list[Examples] = []  # to work them out takes a while, and every page asks

    async def done() -> schemas.Changed:
        version, history = await workers.read(lambda: (model.version, model.history()))
        return schemas.Changed(words=str(history[-1].get("words") or ""), version=version)

    @router.get("/api/matrix", responses=schemas.errors(), summary="What is confused with what")
    async def matrix() -> schemas.Matrix:
        """Every kept example with what the model takes it for, and the class to photograph next."""
        known = await workers.version()
        if not last or last[0].version != known:
            last[:] = [await workers.read(model.examples)]
        found = last[0]
        listed = [
            schemas.Kept(
                id=e.id,
                name=e.label,
                answered=e.answer,
                picture=f"{at}/api/pictures/{e.id}" if e.kept else None,
                alone=e.alone,
            )
            for e in found.examples[:MOST_LISTED]
        ]
        advice = None if found.next is None else schemas.Advice(**vars(found.next))
        return schemas.Matrix(
            version=found.version,
            classes=list(found.classes),
            examples=listed,
            left_off=len(found.examples) - len(listed),
            next=advice,
        )

    @router.get(
        "/api/pictures/{id}",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}, "image/png": {}}}, **schemas.errors(404)},
        summary="The picture of a kept example",
    )
    async def picture(id: str) -> Response:
        """The addresses are in the answers of `/api/matrix` and `/api/predict`."""
        store = model.pictures
        data = await workers.read(store.read, id)
        if data is None:
            raise Refused(404, "There is no such picture.")
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(data, media_type=store.kind, headers=headers)

    @router.post("/api/rename", responses=schemas.errors(404, 409, 413, 422), summary="Give a class another name")
    async def rename(wanted: schemas.Renamed) -> schemas.Changed:
        """It stays the same class."""
        name, new = _cleaned(wanted.name), _cleaned(wanted.new)
        await _check_known(model, workers, name)
        await workers.change(model.rename, name, new)
        return await done()

    @router.post("/api/move", responses=schemas.errors(409, 413, 422), summary="Move pictures to another class")
    async def move(wanted: schemas.Moved) -> schemas.Changed:
        """The model learns anew from what it keeps; up to 100 pictures at a time."""
        await workers.change(model.move, wanted.ids, _cleaned(wanted.to))
        return await done()

    @router.post("/api/remove", responses=schemas.errors(409, 413, 422), summary="Remove pictures")
    async def remove(wanted: schemas.Examples) -> schemas.Changed:
        """The model is then as if it had never seen them; up to 100 pictures at a time."""
        await workers.change(model.remove, wanted.ids)
        return await done()


async def _check_known(model: Model, workers: Workers, name: str) -> None:
    if all(known.name != name for known in await workers.read(model.classes)):
        raise Refused(404, f"There is no class called {name}.")


# What is in a request -------------------------------------------------------------------------------------------------


async def _read_predict(request: Request, limits: Limits) -> list[Upload]:
    """Return the pictures of a form, or the one picture that is the body."""
    if _is_form(request):
        return (await _read_form(request, limits, query="unknown"))[1]
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        _check_size("the picture", len(data), limits)
    if not data:
        raise Refused(422, "There is no picture in the request.")
    return [("the picture", bytes(data))]


async def _read_form(request: Request, limits: Limits, query: str = "") -> tuple[str | None, list[Upload]]:
    """Return the field ``name``, if there is one, and the pictures in the fields ``images``.

    A field called ``query``, which is part of the address, is refused rather than ignored.
    """
    if not _is_form(request):
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
        if query and query in form:
            raise Refused(422, f"{query} is no field of the form: give it as ?{query}=0.05")
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


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "multipart/form-data"


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


def _cleaned(name: str | None) -> str:
    """Return the name of a class in its one spelling, or refuse it."""
    try:
        return clean_name(name or "")
    except ModelError as error:
        raise Refused(422, str(error)) from None
