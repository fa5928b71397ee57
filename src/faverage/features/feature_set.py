"""Which examples are for what, and all that methods see of them: features by view, and what the base session left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from faverage.errors import ConfigError
from faverage.fscil import CosineHead, LinearHead

if TYPE_CHECKING:
    from faverage.vision import Shards

__all__ = ["FeatureSet", "Splits", "permuted"]

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
        order: which order of arrival the classes have; 0 is the official one.

    >>> splits = Splits(
    ...     labels=np.repeat([0, 1, 2], 6),
    ...     sessions=[[0, 1], [2]],
    ...     shots=(np.array([12, 13]),),
    ...     test=np.array([4, 5, 10, 11, 16, 17]),
    ...     spare=np.array([14, 15]),
    ...     class_names=["cat", "dog", "fox"],
    ...     source="by hand",
    ... )
    >>> [splits.redrawn(seed=0, draw=draw).shots[0].tolist() for draw in range(3)]  # other examples of the fox
    [[12, 13], [13, 15], [12, 15]]
    >>> splits.drawn_from_test
    False
    """

    labels: Array
    sessions: list[list[int]]
    shots: tuple[Array, ...]
    test: Array
    spare: Array
    class_names: list[str]
    source: str
    skipped: int = 0
    order: int = 0

    def reordered(self, seed: int, order: int) -> Self:
        """Return the same examples with later classes in another order of arrival; base classes keep their session.

        The sessions have the sizes that they had, and each class its shots and tests. Order 0 is what is there.
        """
        if order == self.order:
            return self
        base, *later = self.sessions
        arrival = np.concatenate([base, *permuted(later, seed, order)])
        labels = np.where(self.labels < 0, -1, np.argsort(arrival)[self.labels])
        shots = np.concatenate(self.shots)
        return replace(
            self,
            labels=labels,
            shots=tuple(shots[np.isin(labels[shots], classes)] for classes in later),
            class_names=[self.class_names[c] for c in arrival],
            order=order,
        )

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


def permuted(sessions: Sequence[Sequence[int]], seed: int, order: int) -> list[list[int]]:
    """Return the classes of all sessions in another order: sessions of the same sizes, classes ascending in each.

    The orders 0 (what is given), 1, 2, … of a seed differ in which classes a session has.

    Raises:
        ConfigError: there are not so many.

    >>> permuted([[0, 1], [2, 3]], seed=0, order=1)
    [[1, 2], [0, 3]]
    """
    found = [[sorted(classes) for classes in sessions]]
    every = [c for classes in sessions for c in classes]
    rng = np.random.default_rng([seed, len(every)])
    for _ in range(100 * order + 1):  # few classes have few orders
        if len(found) > order:
            return found[order]
        drawn = iter(rng.permutation(every).tolist())
        new = [sorted(islice(drawn, len(classes))) for classes in sessions]
        if new not in found:
            found.append(new)
    counts = f"{len(every)} classes in {len(sessions)} session{'' if len(sessions) == 1 else 's'}"
    raise ConfigError(f"{counts} have {len(found)} different orders, and {order + 1} are asked for")


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

    >>> import tempfile
    >>> from faverage.fscil import FewShotLearner
    >>> labels = np.arange(30) % 3  # cat and dog are base classes, the fox comes in a session
    >>> points = np.eye(3)[labels] + 0.1 * np.random.default_rng(0).normal(size=(30, 3))
    >>> features = FeatureSet(
    ...     views={"plain": points},
    ...     labels=labels,
    ...     sessions=[[0, 1], [2]],
    ...     memory=np.flatnonzero(labels[:15] < 2),
    ...     shots=(np.array([2, 5, 8, 11, 14]),),
    ...     test=np.arange(15, 30),
    ...     spare=np.array([], dtype=int),
    ...     prototypes={"plain": np.eye(3)[:2]},
    ...     heads={"plain": CosineHead(np.eye(3)[:2], scale=10.0)},
    ...     class_names=["cat", "dog", "fox"],
    ...     source="by hand",
    ... )
    >>> learner, base = FewShotLearner(fuser="geometric"), {"head": features.heads, "prototypes": features.prototypes}
    >>> learner = learner.fit_base(*features.examples(features.memory), **base)
    >>> learner = learner.learn_session(*features.examples(features.shots[0]))
    >>> test, truth = features.examples(features.test)
    >>> learner.predict(test).tolist() == truth.tolist()
    True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     features.save(f"{folder}/features.npz")
    ...     FeatureSet.load(f"{folder}/features.npz").sessions
    [[0, 1], [2]]
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
