"""What the page shows of the kept examples, and the changes that it makes to them: rename, move, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from faverage.app.server.guard import Refused
from faverage.app.server.workers import Workers

if TYPE_CHECKING:
    from faverage.app.examples import Examples as ExamplesOfModel
    from faverage.app.model import Model

__all__ = ["add_examples"]

MOST_IDS = 100
MOST_LISTED = 5000  # examples in one answer
_Id = Annotated[str, Field(pattern="^[0-9a-f]{24}$")]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class Kept(BaseModel):
    """A kept example."""

    model_config = _example(
        id="0a1b2c3d4e5f60718293a4b5", name="star", answered="4", picture="/api/pictures/0a1b2c3d4e5f60718293a4b5"
    )
    id: str
    name: str = Field(description="Its class.")
    answered: str = Field(description="What the model answers to it, having learned from the others alone.")
    picture: str | None = Field(description="Address of its picture, where that is kept.")
    alone: bool = Field(False, description="The only one of its class: there is nothing else to recognise it by.")


class Advice(BaseModel):
    """The class that would gain most from one more picture, and why."""

    model_config = _example(name="star", words="Photograph “star” next: it has only 1 picture, …")
    name: str
    words: str


class Matrix(BaseModel):
    """What is confused with what."""

    version: int
    classes: list[str]
    examples: list[Kept]
    left_off: int = Field(description="Examples that are not listed here, to keep the answer short.")
    next: Advice | None


class Renamed(BaseModel):
    """A class, and what it is to be called."""

    model_config = _example(name="star", new="starfish")
    name: str = Field(max_length=400)
    new: str = Field(max_length=400)


class Examples(BaseModel):
    """Names of kept examples."""

    model_config = _example(ids=["0a1b2c3d4e5f60718293a4b5"])
    ids: list[_Id] = Field(min_length=1, max_length=MOST_IDS)


class Moved(Examples):
    """Kept examples, and the class that they are to be given to."""

    model_config = _example(ids=["0a1b2c3d4e5f60718293a4b5"], to="star")
    to: str = Field(max_length=400)


class Changed(BaseModel):
    """The model after a change."""

    model_config = _example(words="moved 1 picture to 'star'", version=7)
    words: str
    version: int


def add_examples(
    router: APIRouter, model: Model, at: str, workers: Workers, errors: Any, changed: Any, cleaned: Any
) -> None:
    """Add the routes.

    Args:
        router: of the model.
        model: what is served.
        at: what its addresses begin with.
        workers: what works on it.
        errors: returns the documented errors of statuses.
        changed: runs a change of the model, and says in words why it is refused.
        cleaned: returns a clean name, or refuses it.
    """
    last: list[ExamplesOfModel] = []  # to work them out takes a while, and every page asks

    async def done() -> Changed:
        version, history = await workers.read(lambda: (model.version, model.history()))
        return Changed(words=str(history[-1].get("words") or ""), version=version)

    @router.get("/api/matrix", responses=errors(), summary="What is confused with what")
    async def matrix() -> Matrix:
        """Every kept example with what the model takes it for, and the class to photograph next."""
        known = await workers.read(getattr, model, "version")
        if not last or last[0].version != known:
            last[:] = [await workers.read(model.examples)]
        found = last[0]
        listed = [
            Kept(
                id=e.id,
                name=e.label,
                answered=e.answer,
                picture=f"{at}/api/pictures/{e.id}" if e.kept else None,
                alone=e.alone,
            )
            for e in found.examples[:MOST_LISTED]
        ]
        advice = None if found.next is None else Advice(name=found.next.name, words=found.next.words)
        return Matrix(
            version=found.version,
            classes=list(found.classes),
            examples=listed,
            left_off=len(found.examples) - len(listed),
            next=advice,
        )

    @router.get(
        "/api/pictures/{id}",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}, "image/png": {}}}, **errors(404)},
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

    @router.post("/api/rename", responses=errors(404, 409, 413, 422), summary="Give a class another name")
    async def rename(wanted: Renamed) -> Changed:
        """It stays the same class."""
        name, new = cleaned(wanted.name), cleaned(wanted.new)
        if all(known.name != name for known in await workers.read(model.classes)):
            raise Refused(404, f"There is no class called {name}.")
        await changed(workers, model.rename, name, new)
        return await done()

    @router.post("/api/move", responses=errors(409, 413, 422), summary="Move pictures to another class")
    async def move(wanted: Moved) -> Changed:
        """The model learns anew from what it keeps; up to 100 pictures at a time."""
        await changed(workers, model.move, wanted.ids, cleaned(wanted.to))
        return await done()

    @router.post("/api/remove", responses=errors(409, 413, 422), summary="Remove pictures")
    async def remove(wanted: Examples) -> Changed:
        """The model is then as if it had never seen them; up to 100 pictures at a time."""
        await changed(workers, model.remove, wanted.ids)
        return await done()
