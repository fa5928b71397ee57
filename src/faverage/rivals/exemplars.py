"""Images that a rival keeps of earlier sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from faverage.rivals.parts import herding

__all__ = ["Exemplars"]

Array = NDArray[Any]


@dataclass
class Exemplars:
    """Kept images, uint8 ``(m, S, S, 3)``, and the numbers of their classes ``(m,)``.

    By default methods keep what is usual in few-shot class-incremental learning: 400 images of base classes in all and
    one of each new class.
    """

    images: Array
    numbers: Array

    @classmethod
    def of_base(cls, images: Array, numbers: Array, count: int, rng: np.random.Generator) -> Self:
        """Draw ``count`` of the images ``(n, S, S, 3)``, as evenly over their classes ``(n,)`` as possible."""
        order = rng.permutation(len(numbers))
        turn = np.empty(len(numbers), dtype=np.int64)  # the position of a row within its class, in random order
        for label in np.unique(numbers):
            own = order[numbers[order] == label]
            turn[own] = np.arange(len(own))
        rows = np.sort(order[np.argsort(turn[order], kind="stable")][:count])
        return cls(np.asarray(images[rows]), numbers[rows])

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> Self:
        """Take back what ``arrays`` gave: ``(m, S, S, 3)`` and ``(m,)``."""
        return cls(arrays["exemplars"], arrays["exemplar_numbers"])

    def arrays(self) -> dict[str, Array]:
        """Return both parts, ``(m, S, S, 3)`` and ``(m,)``, by name."""
        return {"exemplars": self.images, "exemplar_numbers": self.numbers}

    def joined(self, images: Array, numbers: Array) -> tuple[Array, Array]:
        """Return the exemplars, and further images ``(n, S, S, 3)`` with their classes ``(n,)`` after them."""
        return np.concatenate([self.images, images]), np.concatenate([self.numbers, numbers])

    def with_new(self, images: Array, numbers: Array, features: Array, count: int) -> Exemplars:
        """Add ``count`` images of each new class, chosen by herding on their features ``(n, d)``."""
        rows = []
        for label in np.unique(numbers):
            own = np.flatnonzero(numbers == label)
            rows.append(own[herding(features[own], count)])
        chosen = np.concatenate(rows)
        return Exemplars(*self.joined(images[chosen], numbers[chosen]))
