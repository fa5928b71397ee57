"""What a model consists of between two changes, and what it says of them."""

from __future__ import annotations

import copy
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.app.folder import Folder, small_pictures
from faverage.app.names import ModelError, check_stored, pictures_of
from faverage.app.photos import png
from faverage.fscil import FewShotLearner
from faverage.fscil.checks import check_array
from faverage.fscil.relearn import base_of
from faverage.storage import read_tensors
from faverage.vision.engine.device import pick_device

__all__ = ["Base", "ClassInfo", "Now", "Taught", "load_base"]

Array = NDArray[Any]

MOST_SESSIONS = 8  # taught sessions with a head of their own; older ones share the first, so that teaching stays quick


@dataclass(frozen=True)
class ClassInfo:
    """What a model knows of a class.

    Attributes:
        name: of the class.
        count: number of pictures that it was learned from.
        session: 0 is the base session.
        thumbnails: up to five small PNG files.
    """

    name: str
    count: int
    session: int
    thumbnails: tuple[bytes, ...]


@dataclass(frozen=True)
class Taught:
    """How it went.

    Attributes:
        name: of the class.
        count: pictures that it is now learned from.
        right: share of them that the model recognises, each left out in turn and compared with the others; a single
            one cannot be left out.
        confused: (class, answer, how often) among all taught pictures and the held-out ones of base classes.
        before: share of right answers to these pictures of the classes that were known before, before the change.
        after: the same after it.
        worse: whether those classes lost more than chance explains, see ``faverage.app.why.compared``.
    """

    name: str
    count: int
    right: float
    confused: tuple[tuple[str, str, int], ...]
    before: float
    after: float
    worse: bool


@dataclass(frozen=True)
class Base:
    """What a model was made with.

    Attributes:
        id: hash of its files.
        learner: of the base classes alone, with its backbone on the device.
        counts: number of pictures of each class.
        shown: their thumbnails.
    """

    id: str
    learner: FewShotLearner
    counts: dict[str, int]
    shown: dict[str, tuple[bytes, ...]]

    def look(self, squares: Array) -> Array:
        """Return the features of squares, uint8 ``(n, side, side, 3)``."""
        assert self.learner.backbone is not None
        features: Array = self.learner.backbone(squares)
        return features


@dataclass(frozen=True)
class Now:
    """A model between two changes: nothing in it is ever changed."""

    base: Base
    record: dict[str, Any]
    signature: tuple[int, int, int]
    learner: FewShotLearner
    thumbnails: dict[str, Array]
    classes: tuple[ClassInfo, ...]

    @property
    def side(self) -> int:
        """Side of the squares that pictures are brought to."""
        return int(self.record["side"])


def load_base(files: Folder, record: dict[str, Any], device: str) -> Base:
    """Read what a model was made with; ModelError where it is broken, or is not what the record belongs to."""
    try:
        learner = base_of(FewShotLearner.load(files.base, device=device))
        learner.classes = [check_stored(label) for label in learner.classes]
        _check_device(device)
        learner.backbone.ready(batch_size=128)  # type: ignore[union-attr]
        _, tensors = read_tensors(files.base / "thumbnails.safetensors", "thumbnails")
        pictures = [small_pictures(tensors[str(i)]) if str(i) in tensors else () for i in range(len(learner.classes))]
        shown = {c: tuple(map(png, pixels)) for c, pixels in zip(learner.classes, pictures, strict=True)}
        counts = {b["name"]: b["count"] for b in record.get("base") or []}
        base = Base(files.base_id(), learner, counts, shown)
        noise = np.random.default_rng(0).integers(0, 256, (1, record["side"], record["side"], 3), dtype=np.uint8)
        check_array("what the network makes of noise", base.look(noise), 1, learner.prototypes.shape[1])
    except ModelError:
        raise
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RuntimeError, MemoryError) as error:
        raise ModelError(
            f"the base classes in {files.base} cannot be read ({error}): restore the folder from a copy"
        ) from None
    if record.get("base_id") not in (None, base.id):
        raise ModelError(
            f"the base classes in {files.base} are not those of model.json: restore the folder from a copy"
        )
    return base


def _check_device(device: str) -> None:
    try:
        pick_device(device)
    except ValueError as error:  # that there is no such device is not the folder's fault
        raise ModelError(f"{error} (in a command: --device cpu)") from None


def spelled(name: str, classes: list[str]) -> str:
    """Return a clean name as the model has it, which may be in decomposed characters."""
    return next((c for c in classes if unicodedata.normalize("NFC", c) == name), name)


def merged(sessions: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Return at most ``MOST_SESSIONS`` sessions: the oldest ones become one."""
    sessions = [session for session in sessions if session]
    extra = len(sessions) - MOST_SESSIONS
    if extra <= 0:
        return sessions
    first: dict[str, Array] = {}
    for session in sessions[: extra + 1]:
        first |= session
    return [first, *sessions[extra + 1 :]]


def light(learner: FewShotLearner) -> Any:
    """Return the fuser without the rows that it was fitted to, which a model never needs again."""
    fuser = copy.copy(learner.fitted)
    if fuser is not None:
        fuser._kept = None
    return fuser


def entry(what: str, name: str | None, count: int, words: str) -> dict[str, Any]:
    """Return a line of the history."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"when": when, "what": what, "class": name, "pictures": count, "words": words}


def told(name: str, count: int, known: bool) -> dict[str, Any]:
    """Return the line of the history for pictures of a new class, or of one that was known."""
    if known:
        return entry("add", name, count, f"added {pictures_of(count)} to '{name}'")
    return entry("teach", name, count, f"taught '{name}' from {pictures_of(count)}")
