"""Which examples a run learns from and is tested on, and fresh draws of the few shots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["Splits"]

Array = NDArray[Any]


@dataclass(kw_only=True)
class Splits:
    """Labelled examples, images or features, and what each is for.

    Attributes:
        labels: ``(n,)``, class of each example, as numbers in order of arrival; -1 for classes that no session has.
        sessions: classes of each session; the first is the base session.
        shots: rows ``(m_k,)`` of each session after the base session.
        test: rows ``(t,)`` of tests of all classes.
        spare: rows ``(s,)`` of further examples of new classes, neither shots nor test.
        class_names: by number.
        source: where the choice of shots comes from.
        skipped: number of images that could not be read.
    """

    labels: Array
    sessions: list[list[int]]
    shots: tuple[Array, ...]
    test: Array
    spare: Array
    class_names: list[str]
    source: str
    skipped: int = 0

    def redrawn(self, seed: int, draw: int) -> Self:
        """Return the same sessions with other shots; draw 0 is what is there.

        The shots of a class are drawn from its shots and spare examples, if those are at least twice as many as the
        shots. Otherwise its test examples are drawn from as well, and what is not drawn is its test.
        """
        if draw == 0:
            return self
        shots, test, spare = [], [self.test], [self.spare]
        for rows in self.shots:
            chosen = []
            for label in np.unique(self.labels[rows]):
                rng = np.random.default_rng([seed, draw, int(label)])
                own, spares, tests = (part[self.labels[part] == label] for part in (rows, self.spare, self.test))
                pool = np.sort(np.concatenate([own, spares]))
                fresh = len(pool) >= 2 * len(own)
                if not fresh:
                    pool = np.sort(np.concatenate([pool, tests]))
                new = np.sort(rng.choice(pool, len(own), replace=False))
                chosen.append(new)
                (spare if fresh else test).append(np.setdiff1d(pool, new))
            shots.append(np.concatenate(chosen))
        left_test, left_spare = (np.setdiff1d(np.concatenate(part), np.concatenate(shots)) for part in (test, spare))
        return replace(self, shots=tuple(shots), test=left_test, spare=left_spare)

    @property
    def drawn_from_test(self) -> bool:
        """Whether fresh draws take test examples of any class."""
        shots, spare = (np.bincount(self.labels[part]) for part in (np.concatenate(self.shots), self.spare))
        return any(spare[c : c + 1].sum() < count for c, count in enumerate(shots))
