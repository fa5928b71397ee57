"""The examples that a model keeps, what it takes each of them for, and which class needs another picture most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from faverage.app.names import pictures_of
from faverage.app.pictures import example_ids
from faverage.app.why import left_out
from faverage.fscil import FewShotLearner

__all__ = ["Example", "Examples", "Next", "examples_of", "photograph_next"]

FEW = 3  # with fewer pictures than this, more are the best advice, whatever is confused


@dataclass(frozen=True)
class Example:
    """A kept example.

    Attributes:
        id: its name, see ``faverage.app.pictures``.
        label: its class.
        answer: what the model answers to it, having learned from the others alone.
        kept: whether its picture is kept.
        alone: whether it is the only one of its class, so that nothing is left to recognise it by.
    """

    id: str
    label: str
    answer: str
    kept: bool
    alone: bool


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
    """Return the examples of a learner.

    Args:
        learner: may know nothing.
        version: of the model.
        counts: number of pictures that each class was learned from.
        pictures: names of examples whose pictures are kept.
    """
    if not learner.classes:
        return Examples(version, (), (), None)
    known, said = learner.known, left_out(learner)
    behind = known.counts + np.bincount(known.labels[known.shot], minlength=len(known.classes))
    found = tuple(
        Example(name, known.classes[c], str(answer), name in pictures, bool(shot and behind[c] == 1))
        for name, c, answer, shot in zip(example_ids(known), known.labels, said, known.shot, strict=True)
    )
    return Examples(version, tuple(known.classes), found, photograph_next(known.classes, counts, found))


def photograph_next(classes: Sequence[str], counts: Mapping[str, int], examples: Sequence[Example]) -> Next | None:
    """Return which class to photograph next: one with very few pictures, else the one that is recognised least.

    Args:
        classes: all of them.
        counts: number of pictures that each was learned from.
        examples: what is kept of them.

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
