"""What the server answers, as its OpenAPI page documents it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Classes",
    "Explained",
    "Failure",
    "Forgotten",
    "Health",
    "Known",
    "Learned",
    "Metrics",
    "Name",
    "Predictions",
    "Undone",
]


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
    session: int = Field(description="When it was learned; 0 is the base session, whose classes cannot be forgotten.")
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
    what: str = Field(description="teach, add or forget.")
    name: str
    count: int = Field(description="Pictures that were given.")
    words: str


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
    """What one head says of the picture."""

    head: str
    best: str = Field(description="The class that this head alone would answer.")
    probability: float = Field(description="What it gives to the answer.")


class MeanShare(BaseModel):
    """How much one kind of mean has to say about the answered class."""

    model_config = _example(mean="geometric", share=0.4)
    mean: str
    share: float


class Prediction(BaseModel):
    """The answer to one picture, and why."""

    answer: str
    top: list[Probability] = Field(description="Every class, the most probable first.")
    heads: list[HeadSays]
    means: list[MeanShare]


class Predictions(BaseModel):
    """One answer a picture, in their order."""

    model_config = _example(
        answers=[
            {
                "answer": "star",
                "top": [{"name": "star", "probability": 0.93}, {"name": "4", "probability": 0.04}],
                "heads": [
                    {"head": "base", "best": "4", "probability": 0.1},
                    {"head": "session 1", "best": "star", "probability": 0.97},
                ],
                "means": [{"mean": "arithmetic", "share": 0.8}, {"mean": "geometric", "share": 0.2}],
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

    model_config = _example(name="star", count=5, right=1.0, confused=[{"true": "4", "answered": "star", "times": 1}])
    name: str
    count: int = Field(description="Pictures of the class that the model now has.")
    right: float = Field(description="Share of its pictures that the model recognises, each left out in turn.")
    confused: list[Confusion]
    version: int = 0
    before: float | None = Field(None, description="Right answers to kept pictures of the classes known before, then.")
    after: float | None = Field(None, description="The same now.")
    worse: bool = Field(False, description="Whether these classes lost more than chance explains.")


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
    """How much one head has to say about a class."""

    model_config = _example(name="star", head="session 1", share=0.9)
    name: str
    head: str
    share: float


class Trusted(BaseModel):
    """The head and the mean with most to say about a class."""

    model_config = _example(name="star", head="session 1", share=0.9, mean="geometric")
    name: str
    head: str
    share: float
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
