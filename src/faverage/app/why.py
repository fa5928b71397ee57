"""What a learner answers and why, what it confuses, and which class needs another picture most."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.app.names import pictures_of
from faverage.app.pictures import example_id, example_ids
from faverage.fscil import FewShotLearner
from faverage.fscil.fusers import ALONE
from faverage.fscil.knowledge import Views
from faverage.fscil.why import Said

Array = NDArray[Any]

CLEAR_LOSS = 0.05
NEIGHBOURS = 6  # kept examples that an answer is shown with
FEW = 3  # with fewer pictures than this, more are the best advice, whatever is confused


@dataclass(frozen=True)
class Near:
    """A kept example that is like a picture."""

    label: str  # its class
    similarity: float  # the cosine of their features, the mean over views
    id: str  # its name, see ``faverage.app.pictures``
    kept: bool  # whether its picture is kept, too


@dataclass(frozen=True)
class Answer:
    """What a model says of one picture."""

    top: tuple[tuple[str, float], ...]  # all classes with their probabilities, the most probable first
    members: tuple[Said, ...]  # what each that was asked says, and speaks for the answer against the next best class
    familiarity: float = 1.0  # how usual it would be for a known class, a p-value: see ``faverage.fscil.unknown``
    nearest: tuple[Near, ...] = ()  # kept examples, the most similar first

    def unknown(self, rate: float) -> bool:
        """Return whether it is none of these; ``rate`` is the share of pictures of known classes that may be so."""
        return self.familiarity <= rate


def answers(learner: FewShotLearner, views: Views, pictures: Container[str] = ()) -> list[Answer]:
    """Return what a learner that knows a class says of features ``(n, d_v)``, by view.

    ``pictures`` are the names of examples whose pictures are kept.
    """
    sees = copy.copy(learner)
    sees.backbone = None  # what is given are features
    fused, heard, known, found = sees.predict_proba(views), set(asked(learner)), learner.known, []
    reasons = sees.why(views, neighbours=NEIGHBOURS)
    for p, order, why in zip(fused, np.argsort(-fused, 1, kind="stable"), reasons, strict=True):
        top = tuple((learner.classes[c], float(p[c])) for c in order)
        named = [(near, example_id(known.views, near.row)) for near in why.nearest]
        nearest = tuple(Near(near.label, near.similarity, name, name in pictures) for near, name in named)
        said = tuple(said for said in why.said if said.member in heard)
        found.append(Answer(top, said, why.familiarity, nearest))
    return found


def asked(learner: FewShotLearner) -> list[str]:
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
    said, labels = _left_out(learner), learner.known.labels
    return {label: said[labels == c] for c, label in enumerate(learner.classes)}


def _left_out(learner: FewShotLearner) -> Array:
    """Return what the learner answers to each kept picture ``(n,)``, as ``answered`` has it."""
    known = learner.known
    scores = learner.scores_of(known.kept, (np.arange(len(known.labels)), known.labels))
    return np.asarray(np.array(learner.classes, dtype=object)[learner.fuse(scores).argmax(1)])


def confusions(said: Mapping[str, Array]) -> tuple[dict[str, float], tuple[tuple[str, str, int], ...]]:
    """Return, of what ``answered`` returned, the share that is right by class, and (class, answer, how often).

    The most frequent confusion is the first.
    """
    right = {label: float((found == label).mean()) for label, found in said.items() if len(found)}
    wrong = Counter((label, other) for label, found in said.items() for other in found if other != label)
    return right, tuple((label, other, n) for (label, other), n in wrong.most_common())


def compared(before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[float | None, float | None, bool]:
    """Return the share of right answers before a change and after it, and whether that is clearly worse.

    Both are what ``answered`` returned, pictures that were added last; the shares are None where none were before.
    It is worse where the share falls by more than 5 points, and where more answers became wrong than right: by more
    than twice the square root of their number, which is how far chance goes.

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


@dataclass(frozen=True)
class Example:
    """A kept example."""

    id: str  # its name, see ``faverage.app.pictures``
    label: str  # its class
    answer: str  # what the model answers to it, having learned from the others alone
    kept: bool  # whether its picture is kept
    alone: bool  # whether it is the only one of its class, so that nothing is left to recognise it by


@dataclass(frozen=True)
class Next:
    """The class that would gain most from one more picture, and why, in one sentence."""

    name: str
    words: str


@dataclass(frozen=True)
class Examples:
    """What a model keeps at one version."""

    version: int
    classes: tuple[str, ...]
    examples: tuple[Example, ...]
    next: Next | None


def examples_of(learner: FewShotLearner, version: int, counts: Mapping[str, int], pictures: Container[str]) -> Examples:
    """Return the examples of a learner, which may know nothing.

    ``counts`` are the numbers of pictures that classes were learned from, ``pictures`` the names of examples whose
    pictures are kept.
    """
    if not learner.classes:
        return Examples(version, (), (), None)
    known, said = learner.known, _left_out(learner)
    behind = known.counts + known.shots
    found = tuple(
        Example(name, known.classes[c], str(answer), name in pictures, bool(shot and behind[c] == 1))
        for name, c, answer, shot in zip(example_ids(known), known.labels, said, known.shot, strict=True)
    )
    return Examples(version, tuple(known.classes), found, photograph_next(known.classes, counts, found))


def photograph_next(classes: Sequence[str], counts: Mapping[str, int], examples: Sequence[Example]) -> Next | None:
    """Return which class to photograph next: one with very few pictures, else the one that is recognised least.

    >>> of = lambda label, answers: [Example("", label, answer, True, False) for answer in answers]
    >>> seen = [*of("cat", ["cat"] * 5), *of("dog", ["dog", "dog", "dog", "cat", "cat"])]
    >>> photograph_next(["cat", "dog"], {"cat": 5, "dog": 5}, seen).words
    'Photograph “dog” next: of its 5 pictures, each left out in turn, 3 are recognised, and 2 are taken for “cat”.'
    >>> photograph_next(["cat", "dog"], {"cat": 5, "dog": 9}, seen[:8]).words
    'All of its pictures are recognised, each left out in turn: no class is in need. “cat” has the fewest pictures, 5.'
    >>> photograph_next(["cat", "dog"], {"cat": 5, "dog": 1}, seen).words
    'Photograph “dog” next: it has only 1 picture, and a class is known far better from five that differ.'
    """
    if not classes:
        return None
    own = {name: [e for e in examples if e.label == name] for name in classes}
    right = {name: sum(e.answer == name for e in found) for name, found in own.items()}

    def need(name: str) -> tuple[float, int]:  # a share of few pictures is drawn to one half
        return (right[name] + 1) / (len(own[name]) + 2), counts.get(name, 0)

    fewest = min(classes, key=lambda name: (counts.get(name, 0), need(name)))
    if counts.get(fewest, 0) < FEW:
        has = f"it has only {pictures_of(counts.get(fewest, 0))}"
        return Next(
            fewest, f"Photograph “{fewest}” next: {has}, and a class is known far better from five that differ."
        )
    missed = [name for name in classes if right[name] < len(own[name])]
    if not missed:
        return Next(
            fewest,
            "All of its pictures are recognised, each left out in turn: no class is in need. "
            f"“{fewest}” has the fewest pictures, {counts.get(fewest, 0)}.",
        )
    name = min(missed, key=need)
    other, times = Counter(e.answer for e in own[name] if e.answer != name).most_common(1)[0]
    of = f"of its {pictures_of(len(own[name]))}, each left out in turn, {right[name]} {_is(right[name])} recognised"
    return Next(name, f"Photograph “{name}” next: {of}, and {times} {_is(times)} taken for “{other}”.")


def _is(number: int) -> str:
    return "is" if number == 1 else "are"
