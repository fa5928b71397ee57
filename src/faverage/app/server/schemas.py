"""What the server answers: the schemas that its OpenAPI page documents, and how the model's words fill them."""

from __future__ import annotations

import hashlib
import io
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from faverage.app.names import printable

if TYPE_CHECKING:
    from faverage.app.model import Answer, ClassInfo, Model, Taught

MOST_IDS = 100
_Id = Annotated[str, Field(pattern="^[0-9a-f]{24}$")]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class Failure(BaseModel):
    """What went wrong, in words."""

    model_config = _example(error="picture 2 (notes.jpg): this is no picture")
    error: str


class Name(BaseModel):
    """The name of a class."""

    model_config = _example(name="star")
    name: str = Field(max_length=400)


class Known(BaseModel):
    """A class that the model knows."""

    model_config = _example(
        id="0a1b2c3d4e5f6071",
        name="star",
        count=5,
        session=1,
        thumbnails=["/api/classes/0a1b2c3d4e5f6071/thumbnails/0.png?v=8d5e957f"],
    )
    id: str = Field(description="Its part of the addresses of its thumbnails.")
    name: str
    count: int = Field(description="Pictures that it was learned from.")
    session: int = Field(description="When it was learned; 0 is the base session.")
    thumbnails: list[str] = Field(description="Addresses of small pictures.")


class Drawing(BaseModel):
    """How a drawing should look to this model, judged by its thumbnails."""

    model_config = _example(likely=True, ground="white")
    likely: bool = Field(description="Whether the model knows drawings: pictures without colour on a plain ground.")
    ground: str = Field(description="white or black.")


class Change(BaseModel):
    """A change of the model."""

    model_config = _example(
        when="2026-05-04T09:30:00+00:00", what="teach", name="star", count=5, words="taught 'star' from 5 pictures"
    )
    when: str
    what: str = Field(description="teach, add, forget, rename, move, remove or merge.")
    name: str
    count: int = Field(description="Pictures that were given.")
    words: str


class Served(BaseModel):
    """A model that is served."""

    model_config = _example(name="birds", address="/m/birds/")
    name: str = Field(description="Name of its folder; with those above it where several have the same.")
    address: str = Field(description="Of its page; its API is below it, as in /m/birds/api/predict.")


class Models(BaseModel):
    """The models that are served, the first of them also at `/`."""

    models: list[Served]
    note: str | None = Field(description="What a person should know of them.")


class Classes(BaseModel):
    """What the model knows."""

    version: int = Field(description="Grows with every change of the model.")
    model: str = Field(description="Name of the model's folder.", examples=["digits-model"])
    classes: list[Known]
    drawing: Drawing
    last: Change | None = Field(description="The last change that can be undone.")


class Probability(BaseModel):
    """How probable a class is."""

    name: str
    probability: float


class HeadSays(BaseModel):
    """What one member of the model says of the picture."""

    head: str
    best: str = Field(description="The class that this one alone would answer.")
    probability: float = Field(description="What it gives to the answer; 0 where it does not know that class.")
    knows: bool = Field(True, description="Whether it knows the class that is the answer.")
    push: float | None = Field(
        None, description="How much it speaks for the answer and against the next best class, in log-odds."
    )


class MeanShare(BaseModel):
    """How much one kind of mean has to say."""

    model_config = _example(mean="geometric", share=0.4)
    mean: str
    share: float


class Nearest(BaseModel):
    """A kept example that is like the picture."""

    name: str = Field(description="Its class.")
    similarity: float = Field(description="Cosine of the features; 1 is the same.")
    picture: str | None = Field(description="Address of its picture, where that is kept.")


class Prediction(BaseModel):
    """The answer to one picture, and why."""

    answer: str
    top: list[Probability] = Field(description="Every class, the most probable first.")
    heads: list[HeadSays]
    familiarity: float = Field(
        description="How usual the picture would be for a known class: a share of at most a of the pictures of known "
        "classes has a familiarity of at most a."
    )
    nearest: list[Nearest] = Field(description="The most similar examples that the model keeps.")
    unknown: bool | None = Field(None, description="Whether it is none of these, at the rate that was asked for.")


class Predictions(BaseModel):
    """One answer a picture, in their order."""

    model_config = _example(
        answers=[
            {
                "answer": "star",
                "top": [{"name": "star", "probability": 0.93}, {"name": "4", "probability": 0.04}],
                "heads": [
                    {"head": "base head", "best": "4", "probability": 0.1, "push": -0.2},
                    {"head": "prototypes", "best": "star", "probability": 0.97, "push": 3.1},
                ],
                "familiarity": 0.61,
                "nearest": [{"name": "star", "similarity": 0.92, "picture": "/api/pictures/0a1b2c3d4e5f60718293a4b5"}],
                "unknown": False,
            }
        ]
    )
    answers: list[Prediction]


class Confusion(BaseModel):
    """Stored examples of one class that the model takes for another."""

    true: str
    answered: str
    times: int


class Learned(BaseModel):
    """What was taught, and a quick check of it."""

    model_config = _example(
        name="star", count=5, kept=5, right=1.0, confused=[{"true": "4", "answered": "star", "times": 1}]
    )
    name: str
    count: int = Field(description="Pictures of the class that the model now has.")
    kept: int = Field(0, description="Those that it keeps; of base classes these are only some.")
    right: float = Field(description="Share of the kept ones that the model recognises, each left out in turn.")
    confused: list[Confusion]
    version: int = 0
    before: float | None = Field(None, description="Right answers to kept pictures of the classes known before, then.")
    after: float | None = Field(None, description="The same now.")
    worse: bool = Field(False, description="Whether these classes lost more than chance explains.")
    again: int = Field(0, description="Pictures that were left out, since the model keeps them already.")


class Forgotten(BaseModel):
    """The class that was forgotten."""

    model_config = _example(name="star", version=4)
    name: str
    version: int


class Undone(BaseModel):
    """The change that was taken back, in words."""

    model_config = _example(undone="taught 'star' from 5 pictures", version=5)
    undone: str
    version: int


class HeadShare(BaseModel):
    """How much one member has to say about a class."""

    model_config = _example(name="star", head="ridge", share=0.9)
    name: str
    head: str
    share: float


class Trusted(HeadShare):
    """The member and the mean with most to say about a class."""

    model_config = _example(name="star", head="ridge", share=0.9, mean="geometric")
    mean: str


class Explained(BaseModel):
    """How the model decides: shares that sum to one."""

    means: list[MeanShare]
    heads: list[HeadShare]
    trusted: list[Trusted]


class Health(BaseModel):
    """A sign of life."""

    model_config = _example(status="ok", faverage="0.1.0", version=3, classes=8)
    status: str
    faverage: str
    version: int
    classes: int


class Timing(BaseModel):
    """Requests to one address; the times are those of the last few thousand."""

    model_config = _example(count=120, failed=0, statuses={"200": 118, "422": 2}, p50_ms=8.2, p99_ms=21.0)
    count: int
    failed: int
    statuses: dict[str, int]
    p50_ms: float
    p99_ms: float


class Metrics(BaseModel):
    """Counts and times since the start."""

    faverage: str = Field(examples=["0.1.0"])
    version: int
    seconds: float
    batches: int
    pictures: int = Field(description="Pictures predicted, in all batches.")
    requests: dict[str, Timing] = Field(description="By address.")


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


class Merged(BaseModel):
    """What a model brought."""

    model_config = _example(new=["star"], version=8)
    new: list[str]
    version: int


class Unzipped(BaseModel):
    """What was taught from a zip."""

    pictures: int = Field(description="Those that it learned; others it kept already.")
    lessons: list[Learned] = Field(description="One a class.")
    version: int


_WORDS = {
    400: "The form could not be read.",
    401: "This server wants its token.",
    404: "There is no such class, or no such picture.",
    409: "The model refuses this, and says why.",
    413: "The request is too large: too many pictures, too many bytes, or too many pixels.",
    415: "This is no form.",
    422: "A picture is no picture, or a name is no name.",
    429: "Too many requests of one client, or too much of it at once.",
    503: "The server is busy, or another process holds the model.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return how the OpenAPI page documents these statuses, and those that every address may answer with."""
    return {s: {"model": Failure, "description": _WORDS[s]} for s in sorted({*statuses, 401, 429, 503})}


def class_id(name: str) -> str:
    """Return the part of an address that stands for a class: the same as long as it has this name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def classes_answer(model: Model, at: str = "") -> Classes:
    """Return what the model knows; addresses begin with ``at``."""
    version, found = model.version, model.classes()
    known = [
        Known(id=class_id(c.name), name=c.name, count=c.count, session=c.session, thumbnails=_addresses(c, at))
        for c in found
    ]
    pictures = tuple(c.thumbnails[0] for c in found if c.thumbnails)[:12]
    return Classes(
        version=version,
        model=printable(model.folder.name),
        classes=known,
        drawing=_drawing(pictures),
        last=_last(model.history()),
    )


def learned_answer(taught: Taught, version: int) -> Learned:
    """Return what was taught, and how it went."""
    confused = [Confusion(true=a, answered=b, times=n) for a, b, n in taught.confused]
    return Learned(**{**vars(taught), "confused": confused, "version": version})


def prediction_answer(answer: Answer, unknown: float | None = None, at: str = "") -> dict[str, Any]:
    """Return the answer to one picture, as ``Prediction`` has it; ``unknown`` is the rate, ``at`` begins addresses."""
    return {
        "answer": answer.top[0][0],
        "top": [{"name": name, "probability": _rounded(p)} for name, p in answer.top],
        "heads": [
            {
                "head": said.member,
                "best": said.best,
                "probability": _rounded(said.probability or 0.0),
                "knows": said.probability is not None,
                "push": None if said.push is None else _rounded(said.push),
            }
            for said in answer.members
        ],
        "familiarity": _rounded(answer.familiarity),
        "nearest": [
            {
                "name": near.label,
                "similarity": _rounded(near.similarity),
                "picture": f"{at}/api/pictures/{near.id}" if near.kept else None,
            }
            for near in answer.nearest
        ],
        "unknown": None if unknown is None else answer.unknown(unknown),
    }


def _rounded(value: float) -> float:
    return round(value, 6) if value == value else 0.0


def _addresses(known: ClassInfo, at: str) -> list[str]:
    pieces = [hashlib.sha256(data).hexdigest()[:8] for data in known.thumbnails]
    place = f"{at}/api/classes/{class_id(known.name)}/thumbnails"
    return [f"{place}/{k}.png?v={piece}" for k, piece in enumerate(pieces)]


def _last(history: list[Any]) -> Change | None:
    """Return the last change that was not taken back.

    >>> taught = {"what": "teach", "class": "star", "pictures": 5, "words": "taught 'star'", "state": "000002"}
    >>> _last([{"what": "create"}, taught]).name, _last([{"what": "create"}, taught, {"what": "undo"}])
    ('star', None)
    """
    stack: list[list[dict[str, Any]]] = []
    for entry in history:
        if not isinstance(entry, dict):  # the file may have been written by anybody
            continue
        if entry.get("what") == "undo":
            stack = stack[:-1]
        elif stack and entry.get("state") and stack[-1][0].get("state") == entry["state"]:
            stack[-1].append(entry)  # several classes in one change
        elif entry.get("what") != "create":
            stack.append([entry])
    if not stack:
        return None
    last = stack[-1]
    return Change(
        when=str(last[0].get("when") or ""),
        what=str(last[0].get("what") or ""),
        name=", ".join(str(entry.get("class") or "") for entry in last),
        count=sum(n for entry in last if isinstance(n := entry.get("pictures"), int)),
        words=" and ".join(str(entry.get("words") or "") for entry in last),
    )


@lru_cache(4)
def _drawing(pictures: tuple[bytes, ...]) -> Drawing:
    """Judge by thumbnails whether the model knows drawings, and on which ground."""
    if not pictures:
        return Drawing(likely=False, ground="white")
    spread, edges = [], []
    for data in pictures:
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float64)
        spread.append(float(np.ptp(pixels, axis=2).mean()))
        rim = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        edges.append(float(np.median(rim)))
    plain = float(np.mean([edge < 40 or edge > 215 for edge in edges])) > 0.8
    ground = "black" if float(np.median(edges)) < 128 else "white"
    return Drawing(likely=plain and max(spread) < 12, ground=ground)
