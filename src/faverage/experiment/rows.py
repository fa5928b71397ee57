"""Which examples a run learns from and is tested on, and fresh draws of the few shots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rows"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Rows of one array of examples.

    Attributes:
        train: of each session after the base session, the shots.
        test: of all classes.
        spare: further examples of new classes, neither shots nor test.
    """

    train: tuple[Array, ...]
    test: Array
    spare: Array

    def redrawn(self, labels: Array, seed: int, draw: int) -> Rows:
        """Return the same sessions with other shots; draw 0 is what is there.

        The shots of a class are drawn from its shots and spare examples, if those are at least twice as many as the
        shots. Otherwise its test examples are drawn from as well, and what is not drawn is its test.

        Args:
            labels: class of every row of the array.
            seed: of the draw.
            draw: its number.
        """
        if draw == 0:
            return self
        train, test, spare = [], [self.test], [self.spare]
        for rows in self.train:
            chosen = []
            for label in np.unique(labels[rows]):
                rng = np.random.default_rng([seed, draw, int(label)])
                own = rows[labels[rows] == label]
                tests = self.test[labels[self.test] == label]
                spares = self.spare[labels[self.spare] == label]
                pool = np.sort(np.concatenate([own, spares]))
                fresh = len(pool) >= 2 * len(own)
                if not fresh:
                    pool = np.sort(np.concatenate([pool, tests]))
                new = np.sort(rng.choice(pool, len(own), replace=False))
                left = np.setdiff1d(pool, new)
                chosen.append(new)
                if fresh:
                    spare.append(left)
                else:
                    test.append(left)
            train.append(np.concatenate(chosen))
        shots = np.concatenate(train)
        return Rows(
            tuple(train),
            np.setdiff1d(np.unique(np.concatenate(test)), shots),
            np.setdiff1d(np.unique(np.concatenate(spare)), shots),
        )

    def drawn_from_test(self, labels: Array) -> bool:
        """Return whether fresh draws take test examples of any class."""
        for rows in self.train:
            for label in np.unique(labels[rows]):
                if (labels[self.spare] == label).sum() < (labels[rows] == label).sum():
                    return True
        return False
