"""Lessons for a learner: verbs in any order with any arrays and labels. A refused one changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from fuzz.common import check_probabilities
from fuzz.target import Broken, Target

if TYPE_CHECKING:
    from faverage.fscil import FewShotLearner

__all__ = ["Lessons"]

WIDTHS = {"a": 6, "b": 4}
VERBS = ("learn", "learn", "learn", "learn", "fit_base", "forget", "rename", "undo", "merge", "predict", "why")
ARRAYS = ("sound",) * 6 + (
    "narrow", "one view", "no view", "more views", "plain", "nan", "infinite", "huge", "tiny", "zero", "short", "empty",
    "flat", "deep", "text", "whole", "same", "given before",
)  # fmt: skip
LABELS = ("letters",) * 6 + ("numbers", "one", "each its own", "too few", "nested", "nan", "none", "single", "mixed")
FUSERS = ("afa", "afa", "afa", "prototypes", "arithmetic", "log-pool", "vote")


class Lessons(Target):
    """Some verbs, one after the other."""

    name, share = "lessons", 400

    def __init__(self) -> None:
        from faverage.errors import UserError

        self.refusals = (ValueError, UserError)

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Write which verbs, with which arrays and labels."""
        verbs = [
            {
                "verb": rng.choice(VERBS),
                "arrays": rng.choice(ARRAYS),
                "labels": rng.choice(LABELS),
                "n": rng.choice((1, 2, 3, 5, 8)),
                "classes": rng.choice((1, 2, 2, 3, 4)),
                "label": rng.choice(("a", "b", "c", "d", 0, 1, None, "nobody", 1.5)),
                "new": rng.choice(("a", "z", 7, None, "", [1])),
                "seed": rng.randrange(1000),
            }
            for _ in range(rng.choice((2, 4, 6, 8)))
        ]
        options = {"fuser": rng.choice(FUSERS), "members": rng.choice((None, None, "views", "sessions"))}
        options |= {"rehearsal": rng.choice((None, None, "residual", "shots")), "calibration": rng.choice((0.0, 0.3))}
        options |= {"ridge": rng.choice((0.1, 0.1, None)), "scope": rng.choice(("all", "all", "session"))}
        options |= {"whiten": rng.choice((None, None, 0.5))}
        lesson = {"base": rng.random() < 0.4, "options": options, "verbs": verbs}
        (work / "lesson.json").write_text(json.dumps(lesson, indent=1))

    def read(self, rng: Random, work: Path) -> None:
        """A verb that is refused changes nothing; after one that is accepted, answers are probabilities."""
        from faverage.fscil import FewShotLearner

        lesson = json.loads((work / "lesson.json").read_text())
        learner = FewShotLearner(**lesson["options"])
        if lesson["base"]:
            learner.fit_base(_sound(4 * 32, 4, 99), np.repeat(list("abcd"), 32))
        refusal: ValueError | None = None
        accepted, before_it = 0, _sound(2, 1, 5)
        for given in lesson["verbs"]:
            before = _seen(learner)
            X = _arrays(given, before_it)
            try:
                _do(learner, given, X, _labels(given, len(_sound_rows(given))))
                accepted += 1
            except ValueError as error:
                refusal = error
                if not _same(before, _seen(learner)):
                    raise Broken(f"{given['verb']} was refused and changed the learner: {error}") from error
            else:
                before_it = X if given["arrays"] == "sound" else before_it
                _check(learner)
        if refusal is not None and not accepted:
            raise refusal


def _sound(n: int, classes: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes if n % max(classes, 1) else np.repeat(np.arange(classes), n // classes)
    return {
        view: np.abs(np.random.default_rng(7).normal(size=(8, d))[y] * 2 + rng.normal(size=(n, d))).astype(np.float32)
        for view, d in WIDTHS.items()
    }


def _sound_rows(given: dict[str, Any]) -> range:
    return range(given["n"] * given["classes"])


def _arrays(given: dict[str, Any], before: dict[str, Any]) -> Any:
    """Return features that are sound, or wrong in one way."""
    views = _sound(len(_sound_rows(given)), given["classes"], given["seed"])
    first = views["a"]
    change: dict[str, Callable[[], Any]] = {
        "sound": lambda: views,
        "narrow": lambda: {**views, "a": first[:, :3]},
        "one view": lambda: {"a": first},
        "no view": lambda: {},
        "more views": lambda: {**views, "c": first},
        "plain": lambda: first,
        "nan": lambda: {**views, "a": np.where(first > first.min(), first, np.nan)},
        "infinite": lambda: {**views, "a": np.where(first > first.min(), first, np.inf)},
        "huge": lambda: {view: x.astype(np.float64) * 1e37 for view, x in views.items()},
        "tiny": lambda: {view: x * np.float32(1e-40) for view, x in views.items()},
        "zero": lambda: {view: x * 0 for view, x in views.items()},
        "short": lambda: {**views, "b": views["b"][:-1]},
        "empty": lambda: {view: x[:0] for view, x in views.items()},
        "flat": lambda: {view: x[0] for view, x in views.items()},
        "deep": lambda: {view: x[:, :, None] for view, x in views.items()},
        "text": lambda: {view: x.astype(str) for view, x in views.items()},
        "whole": lambda: {view: (x * 10).astype(np.uint8) for view, x in views.items()},
        "same": lambda: {view: np.repeat(x[:1], len(x), 0) for view, x in views.items()},
        "given before": lambda: before,
    }
    return change[given["arrays"]]()


def _labels(given: dict[str, Any], n: int) -> Any:
    """Return labels that are sound, or wrong in one way."""
    numbers = np.repeat(np.arange(given["classes"]), given["n"])
    letters = [str(letter) for letter in np.array(list("abcd"))[numbers]]
    change: dict[str, Any] = {
        "letters": letters,
        "numbers": numbers,
        "one": ["a"] * n,
        "each its own": [f"class {i}" for i in range(n)],
        "too few": letters[:-1],
        "nested": [[letter] for letter in letters],
        "nan": np.where(numbers == 0, np.nan, numbers),
        "none": [None] * n,
        "single": "a",
        "mixed": [*letters[:-1], 7],
    }
    return change[given["labels"]]


def _do(learner: FewShotLearner, given: dict[str, Any], X: Any, y: Any) -> None:
    from faverage.fscil import FewShotLearner

    verb = given["verb"]
    if verb == "learn":
        learner.learn_session(X, y)
    elif verb == "fit_base":
        learner.fit_base(X, y)
    elif verb == "forget":
        learner.forget(given["label"])
    elif verb == "rename":
        learner.rename(given["label"], given["new"])
    elif verb == "undo":
        learner.undo()
    elif verb == "merge":
        learner.merge(FewShotLearner().learn_session(X, y))
    elif verb == "predict":
        learner.predict(X, unknown=0.05)
    else:
        learner.why(X)


def _seen(learner: FewShotLearner) -> tuple[Any, ...]:
    """Return all that a refused verb must leave alone."""
    if not learner.classes:
        return ([], [], len(learner._past))
    known = learner.known
    arrays = [*known.views.values(), *known.anchors.values(), known.labels, known.shot, known.counts, known.session]
    asked = {view: _sound(4, 4, 1)[view] for view in known.views} if known.widths == WIDTHS else None
    answers = None if asked is None else learner.predict_proba(asked)
    return learner.classes, learner.sessions, len(learner._past), [np.copy(a) for a in arrays], answers


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    if one[:3] != other[:3] or len(one) != len(other):
        return False
    if len(one) == 3:
        return True
    same = all(np.array_equal(a, b) for a, b in zip(one[3], other[3], strict=True))
    return same and (one[4] is None or np.array_equal(one[4], other[4]))


def _check(learner: FewShotLearner) -> None:
    """Raise Broken unless a learner that knows anything answers soundly."""
    if not learner.classes:
        return
    rng = np.random.default_rng(3)
    asked = {view: rng.normal(size=(3, d)) for view, d in learner.known.widths.items()}
    answers, familiar = learner.predict_proba(asked), learner.familiarity(asked)
    check_probabilities(answers)
    if answers.shape != (3, len(learner.classes)) or learner.predict(asked).shape != (3,):
        raise Broken("another number of answers than of classes")
    if not np.isfinite(familiar).all() or familiar.min() < 0 or familiar.max() > 1:
        raise Broken("a familiarity that is no share")
    if sum(len(session) for session in learner.sessions) != len(learner.classes):
        raise Broken("sessions do not hold the classes")
