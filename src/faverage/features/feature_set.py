"""Everything right of the backbone: what each view sees of every example, and what the base session left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.features.splits import Splits
from faverage.fscil import CosineHead, LinearHead

if TYPE_CHECKING:
    from faverage.vision import Shards

__all__ = ["FeatureSet"]

Array = NDArray[Any]


@dataclass(kw_only=True)
class FeatureSet(Splits):
    """Features by view, with labels, splits, and prototypes and heads of the base session.

    Attributes:
        views: features ``(n, d_v)`` of all examples, by the name of the view; of ``Shards``, only rows that are asked
            for are read.
        memory: rows ``(m,)`` of examples of base classes that no network was trained on.
        prototypes: by view ``(C, d_v)``, means of normalised features of the base classes.
        heads: base head of each view.
        base: what base training of the first network said of itself; None for features from a file.
        networks: what that of each network said, where there are several.
    """

    views: dict[str, Array | Shards]
    memory: Array
    prototypes: dict[str, Array]
    heads: dict[str, LinearHead | CosineHead]
    base: dict[str, Any] | None = None
    networks: list[dict[str, Any]] | None = None

    def of(self, rows: Array) -> dict[str, Array]:
        """Return the features ``(m, d_v)`` of some rows ``(m,)``, by view."""
        return {view: np.asarray(x[rows]) for view, x in self.views.items()}

    def examples(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """Return the features ``(m, d_v)`` of some rows ``(m,)``, by view, and their labels ``(m,)``."""
        return self.of(rows), self.labels[rows]

    def save(self, path: str | Path) -> None:
        """Write what methods see to a ``.npz``: memory, shots, tests, prototypes and heads, but no spare examples.

        Where there are many, numbers are of half precision; arrays with one that is too large for that keep theirs.
        """
        from faverage.features.files import write

        write(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, views: Sequence[str] | None = None) -> FeatureSet:
        """Read what ``save`` wrote, or a file of one's own, as float32.

        Args:
            path: of the file.
            views: which of its views, in which order; by default all. A file without names of views has no choice.

        Raises:
            ConfigError: the file is not what it should be; the message names the array and what was expected.
        """
        from faverage.features.files import read

        return read(Path(path), views)
