"""What a learner answers and why, and what it confuses."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.app.pictures import example_id
from faverage.fscil import FewShotLearner
from faverage.fscil.fusers import ALONE
from faverage.fscil.knowledge import Views
from faverage.fscil.why import Said

__all__ = ["Answer", "Near", "Said", "answered", "answers", "compared", "confusions", "left_out"]

Array = NDArray[Any]

CLEAR_LOSS = 0.05
NEIGHBOURS = 6  # kept examples that an answer is shown with


@dataclass(frozen=True)
class Near:
    """A kept example that is like a picture.

    Attributes:
        label: its class.
        similarity: the cosine of their features, the mean over views.
        id: its name, see ``faverage.app.pictures``.
        kept: whether its picture is kept, too.
    """

    label: str
    similarity: float
    id: str
    kept: bool


@dataclass(frozen=True)
class Answer:
    """What a model says of one picture.

    Attributes:
        top: all classes with their probabilities, the most probable first.
        members: what each member that was asked says, and how much it speaks for the answer and against the next best
            class.
        familiarity: how usual the picture would be for a known class, a p-value: see ``faverage.fscil.unknown``.
        nearest: kept examples, the most similar first.
    """

    top: tuple[tuple[str, float], ...]
    members: tuple[Said, ...]
    familiarity: float = 1.0
    nearest: tuple[Near, ...] = ()

    def unknown(self, rate: float) -> bool:
        """Return whether it is none of these; ``rate`` is the share of pictures of known classes that may be so."""
        return self.familiarity <= rate


def answers(learner: FewShotLearner, views: Views, pictures: Container[str] = ()) -> list[Answer]:
    """Return what the learner says of features ``(n, d_v)``, by view.

    Args:
        learner: that knows a class.
        views: the features.
        pictures: names of examples whose pictures are kept.
    """
    sees = copy.copy(learner)
    sees.backbone = None  # what is given are features
    fused, asked, known, found = sees.predict_proba(views), set(_asked(learner)), learner.known, []
    reasons = sees.why(views, neighbours=NEIGHBOURS)
    for p, order, why in zip(fused, np.argsort(-fused, 1, kind="stable"), reasons, strict=True):
        top = tuple((learner.classes[c], float(p[c])) for c in order)
        named = [(near, example_id(known.views, near.row)) for near in why.nearest]
        nearest = tuple(Near(near.label, near.similarity, name, name in pictures) for near, name in named)
        said = tuple(said for said in why.said if said.member in asked)
        found.append(Answer(top, said, why.familiarity, nearest))
    return found


def _asked(learner: FewShotLearner) -> list[str]:
    """Return the names of the members that have a say."""
    members = learner.members
    if learner.fuser in ALONE:
        return [members.names[members.place("base" if learner.fuser == "no-fine-tuning" else "prototypes")]]
    if learner.fitted is None and members.known.heads and not members.known.shot.any():
        return [member.name for member in members.members if member.kind == "base"]  # until something is taught
    return members.names


def answered(learner: FewShotLearner) -> dict[str, Array]:
    """Return for each class what the learner answers to the pictures that it keeps of it, ``(n,)``.

    These are the held-out pictures of base classes and all taught ones. A taught picture is left out: the members that
    answer have learned from the others alone.
    """
    if not learner.classes:
        return {}
    said, labels = left_out(learner), learner.known.labels
    return {label: said[labels == c] for c, label in enumerate(learner.classes)}


def left_out(learner: FewShotLearner) -> Array:
    """Return what the learner answers to each kept picture ``(n,)``, as ``answered`` has it."""
    known = learner.known
    scores = learner.scores_of(known.views, (np.arange(len(known.labels)), known.labels))
    return np.asarray(np.array(learner.classes, dtype=object)[learner.fuse(scores).argmax(1)])


def confusions(said: Mapping[str, Array]) -> tuple[dict[str, float], tuple[tuple[str, str, int], ...]]:
    """Return the share of right answers for each class, and (class, answer, how often), the most frequent first.

    Args:
        said: what ``answered`` returned.
    """
    right = {label: float((found == label).mean()) for label, found in said.items() if len(found)}
    wrong = Counter((label, other) for label, found in said.items() for other in found if other != label)
    return right, tuple((label, other, n) for (label, other), n in wrong.most_common())


def compared(before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[float | None, float | None, bool]:
    """Return the share of right answers before a change and after it, and whether that is clearly worse.

    None where there were no pictures before.

    It is where the share falls by more than 5 points, and where more answers became wrong than right: by more than
    twice the square root of their number, which is how far chance goes.

    Args:
        before: what ``answered`` returned.
        after: likewise; pictures that were added follow those that were there.

    >>> names = np.array(["a"] * 8 + ["b"] * 2, dtype=object)
    >>> compared({"a": names}, {"a": names[::-1]}), compared({"a": names}, {"a": names + "?"})
    ((0.8, 0.8, False), (0.8, 0.0, True))
    """
    if not sum(map(len, before.values())):
        return None, None, False
    was = np.concatenate([found == label for label, found in before.items()])
    now = np.concatenate([after[label][: len(found)] == label for label, found in before.items()])
    lost, gained = int((was & ~now).sum()), int((now & ~was).sum())
    worse = was.mean() - now.mean() > CLEAR_LOSS and lost - gained > 2 * math.sqrt(lost + gained)
    return float(was.mean()), float(now.mean()), bool(worse)
