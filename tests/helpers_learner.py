"""Drawn features for the tests of the few-shot learner, and what must stay as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from faverage.fscil import FewShotLearner, Knowledge

Array = np.ndarray[Any, Any]
Views = dict[str, Array]
D = 12


class World:
    """Ten classes of non-negative features around centres."""

    def __init__(self, seed: int = 0, n_classes: int = 10, noise: float = 0.5) -> None:
        self.rng, self.noise = np.random.default_rng(seed), noise
        self.centres = np.abs(self.rng.normal(size=(n_classes, 24)))

    def draw(self, classes: Sequence[int], n: int) -> tuple[Array, Array]:
        y = np.repeat(classes, n)
        return np.abs(self.centres[y] + self.noise * self.rng.normal(size=(len(y), 24))).astype(np.float32), y


def learned(fuser: Any = "afa", **options: Any) -> tuple[FewShotLearner, World]:
    """A learner with a base session of six classes and three sessions, of two, one and one."""
    world = World()
    learner = FewShotLearner(fuser=fuser, **options).fit_base(*world.draw([0, 1, 2, 3, 4, 5], 60))
    for session in ([6, 7], [8], [9]):
        learner.learn_session(*world.draw(session, 5))
    return learner, world


def views_of(
    classes: Sequence[int], n: int, seed: int, noise: tuple[float, ...] = (1.0, 1.0), widths: tuple[int, ...] = ()
) -> tuple[Views, Array]:
    """Features of views that see the same classes through noise of their own; a name says the number of the view."""
    centres = np.random.default_rng(99).normal(size=(len(noise), 8, D)) * 2
    rng = np.random.default_rng(seed)
    y = np.repeat(classes, n)
    views = {}
    for v, (centre, s) in enumerate(zip(centres, noise, strict=True)):
        x = np.abs(centre[y] + s * rng.normal(size=(len(y), D))).astype(np.float32)
        views[f"view {v}"] = x[:, : widths[v]] if widths else x
    return views, y


def taught_views(noise: tuple[float, ...] = (1.0, 1.0), widths: tuple[int, ...] = (), **options: Any) -> FewShotLearner:
    """A learner of several views, with four base classes and two sessions of two."""
    learner = FewShotLearner(**options).fit_base(*views_of([0, 1, 2, 3], 90, 0, noise, widths))
    for k, new in enumerate(([4, 5], [6, 7])):
        learner.learn_session(*views_of(new, 5, 1 + k, noise, widths))
    return learner


def arrays_of(known: Knowledge) -> dict[str, Any]:
    """Copies of everything that a knowledge holds."""
    found = {"classes": known.classes, "session": known.session.copy(), "labels": known.labels.copy()}
    found |= {"shot": known.shot.copy(), "counts": known.counts.copy()}
    for view in known.views:
        found |= {f"{view} x": known.views[view].copy(), f"{view} anchors": known.anchors[view].copy()}
    for i, one in enumerate(known.heads):
        found |= {f"{i} weight": one.head.weight.copy(), f"{i} classes": one.classes.copy()}
        found |= {f"{i} {name}": np.copy(value) for name, value in vars(one.head).items()}
    return found


def assert_same(known: Knowledge, before: dict[str, Any]) -> None:
    """A knowledge is, to the last bit, what ``arrays_of`` found."""
    now = arrays_of(known)
    assert now.keys() == before.keys()
    for name, value in before.items():
        assert np.array_equal(now[name], value), name


def assert_unchanged_by(learner: FewShotLearner, X: Any, verb: Callable[[], Any], words: str) -> None:
    """The verb is refused with one clear ValueError, and the learner is as it was: classes, answers, what to undo."""
    import pytest

    classes, sessions, depth = learner.classes, learner.sessions, len(learner._past)
    answers = learner.predict_proba(X) if classes else None
    before = arrays_of(learner.known) if classes else None
    with pytest.raises(ValueError, match=words):
        verb()
    assert (learner.classes, learner.sessions, len(learner._past)) == (classes, sessions, depth)
    if before is not None:
        assert np.array_equal(learner.predict_proba(X), answers)
        assert_same(learner.known, before)
