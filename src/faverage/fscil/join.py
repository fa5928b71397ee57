"""Learners with different backbones, joined by label: no image and no feature changes hands.

Features of different backbones do not compare, so nothing can be learned anew. But every learner knows how usual an
example is for its own classes (``faverage.fscil.unknown``), and such numbers do compare. With s_l that number and p_l
what learner l answers,

    p(c) ∝ Σ_l exp(s_l) p_l(c)      over the learners that know c.

Whoever finds the example more usual counts for more; a class that several know has the sum of their answers.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from faverage.fscil.heads import Array
from faverage.fscil.learner import FewShotLearner

__all__ = ["JoinedLearner", "join"]

_NOTE = "joined.json"


def join(*learners: FewShotLearner) -> JoinedLearner:
    """Return one learner that knows the classes of all.

    >>> rng = np.random.default_rng(0)
    >>> def learner(names):
    ...     centres = np.eye(8)[[ord(name) - 97 for name in names]]
    ...     return FewShotLearner().learn_session(
    ...         np.abs(np.repeat(centres, 5, 0) + 0.1 * rng.normal(size=(5 * len(names), 8))), np.repeat(list(names), 5)
    ...     )
    >>> both = join(learner("abc"), learner("cde"))
    >>> X = np.eye(8)[[0, 2, 4]]
    >>> both.classes, both.predict([X, X]).tolist()
    (['a', 'b', 'c', 'd', 'e'], ['a', 'c', 'e'])
    """
    return JoinedLearner(learners)


class JoinedLearner:
    """Several learners that answer together.

    X is what every learner takes, images, or a list of what each of them takes, in their order.

    Args:
        parts: the learners; each must know a class.

    >>> first = FewShotLearner().learn_session(np.eye(4)[[0, 0, 1, 1]], ["a", "a", "b", "b"])
    >>> second = FewShotLearner().learn_session(np.eye(4)[[1, 1, 2, 2]], ["b", "b", "c", "c"])
    >>> JoinedLearner([first, second]).classes
    ['a', 'b', 'c']
    """

    def __init__(self, parts: Sequence[FewShotLearner]) -> None:
        if len(parts) < 2 or not all(isinstance(part, FewShotLearner) for part in parts):
            raise ValueError(f"give at least two learners to join, got {len(parts)}")
        if not all(part.classes for part in parts):
            raise ValueError("a learner knows no class yet: teach it first, then join")
        self.parts = list(parts)
        self._changed: list[list[int]] = []  # parts that each change touched

    @property
    def classes(self) -> list[Any]:
        """Labels of all classes, each once, in the order of the learners."""
        return list(dict.fromkeys(label for part in self.parts for label in part.classes))

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities ``(n, N)``, in the order of ``classes``."""
        return self._answer(X)[0]

    def predict(self, X: Any, *, unknown: float | None = None) -> Array:
        """Return the most probable label ``(n,)``; with ``unknown``, None where no learner finds a class that fits."""
        fused, familiarity = self._answer(X)
        labels = np.empty(len(self.classes), dtype=object)
        labels[:] = self.classes
        found: Array = labels[fused.argmax(1)]
        if unknown is None:
            return np.asarray(found.tolist())
        if not 0 < unknown < 1:
            raise ValueError(f"unknown must be a rate between 0 and 1, such as 0.05, got {unknown!r}")
        found[familiarity <= unknown] = None
        return found

    def familiarity(self, X: Any) -> Array:
        """Return ``(n,)``: the largest of the familiarities of the learners, which keeps what each of them promises."""
        return self._answer(X)[1]

    def shares(self, X: Any) -> Array:
        """Return how much each learner counts for each example, ``(n, L)``; rows sum to one."""
        s = np.stack([part.usualness(x) for part, x in self._each(X)], 1)
        weight = np.exp(s - s.max(1, keepdims=True))
        return np.asarray(weight / weight.sum(1, keepdims=True))

    def learn_session(self, X: Any, y: Sequence[Any] | Array) -> Self:
        """Teach all learners the same examples with labels ``(n,)``; a failure changes nothing."""
        return self._change([partial(part.learn_session, x, y) for part, x in self._each(X)])

    def forget(self, label: Any) -> Self:
        """Forget a class, in every learner that knows it."""
        self._know(label)
        if any(part.classes == [label] for part in self.parts):
            raise ValueError(f"a learner knows nothing but {label!r}: leave that learner out instead")
        return self._change([partial(part.forget, label) if label in part.classes else None for part in self.parts])

    def rename(self, label: Any, new: Any) -> Self:
        """Give a class another label, in every learner that knows it."""
        self._know(label)
        if new in self.classes:
            raise ValueError(f"class {new!r} is known already: forget it first, or choose another name")
        return self._change(
            [partial(part.rename, label, new) if label in part.classes else None for part in self.parts]
        )

    def undo(self) -> Self:
        """Go back to what was before the last change of the joined learner."""
        if not self._changed or not all(self.parts[k]._past for k in self._changed[-1]):  # all of them, or none
            raise ValueError("there is nothing to undo")
        for k in self._changed.pop():
            self.parts[k].undo()
        return self

    def save(self, folder: str | Path) -> Path:
        """Write all learners to a folder, one below it for each; what is there is always whole."""
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as place:
            fresh = Path(place) / "new"
            fresh.mkdir()
            for k, part in enumerate(self.parts):
                part.save(fresh / f"learner-{k}")
            (fresh / _NOTE).write_text(json.dumps({"format": 1, "learners": len(self.parts)}) + "\n", encoding="utf-8")
            if folder.exists():
                folder.rename(Path(place) / "old")
            shutil.move(fresh, folder)
        return folder

    @classmethod
    def load(
        cls, folder: str | Path, backbones: Mapping[int, Callable[[Any], Any]] | None = None, *, device: str = "auto"
    ) -> JoinedLearner:
        """Read what ``save`` wrote; backbones that are modules or functions must be given again, by number."""
        folder = Path(folder)
        try:
            note = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
            count = note["learners"]
            if note["format"] != 1 or type(count) is not int or not 2 <= count <= 1000:
                raise ValueError("it was written by a later version, or is broken")
        except FileNotFoundError:
            raise ValueError(f"{folder} holds no joined learners: {_NOTE} is missing") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds no joined learners of this version: {error}") from None
        given = backbones or {}
        return cls([FewShotLearner.load(folder / f"learner-{k}", given.get(k), device=device) for k in range(count)])

    def _each(self, X: Any) -> list[tuple[FewShotLearner, Any]]:
        given = X if isinstance(X, list | tuple) else [X] * len(self.parts)
        if len(given) != len(self.parts):
            raise ValueError(
                f"give what each of the {len(self.parts)} learners takes, in their order, got {len(given)}"
            )
        return list(zip(self.parts, given, strict=True))

    def _answer(self, X: Any) -> tuple[Array, Array]:
        shares, place = self.shares(X), {label: c for c, label in enumerate(self.classes)}
        fused = np.zeros((len(shares), len(place)))
        familiar = np.zeros(len(shares))
        for k, (part, x) in enumerate(self._each(X)):
            columns = [place[label] for label in part.classes]
            fused[:, columns] += shares[:, k, None] * part.predict_proba(x)
            familiar = np.maximum(familiar, part.familiarity(x))
        return fused, familiar

    def _know(self, label: Any) -> None:
        if label not in self.classes:
            raise ValueError(f"class {label!r} is not known")

    def _change(self, verbs: Sequence[Callable[[], Any] | None]) -> Self:
        """Do a verb in each part that has one; where one fails, those that were done are undone."""
        done: list[int] = []
        try:
            for k, verb in enumerate(verbs):
                if verb is not None:
                    verb()
                    done.append(k)
        except Exception:
            for k in done:
                self.parts[k].undo()
            raise
        self._changed.append(done)
        return self
