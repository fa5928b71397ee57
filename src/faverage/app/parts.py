"""What a model consists of between two changes, and what it says of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from numpy.typing import NDArray

from faverage.app.names import pictures_of
from faverage.fscil import FewShotLearner

__all__ = ["ClassInfo", "Now", "Taught"]

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
        right: share of them that the model recognises, each compared with the others where there are two or more.
        confused: (class, answer, how often) among all taught pictures and the held-out ones of base classes.
    """

    name: str
    count: int
    right: float
    confused: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class Now:
    """A model between two changes: nothing in it is ever changed."""

    record: dict[str, Any]
    signature: tuple[int, int, int]
    learner: FewShotLearner
    thumbnails: dict[str, Array]
    classes: tuple[ClassInfo, ...]


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
