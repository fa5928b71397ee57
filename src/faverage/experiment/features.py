"""What the methods see of a benchmark: features of every session, the base head, the prototypes, the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.base import Beside, Seen, see, train_on
from faverage.experiment.config import RIVAL_METHODS, ConfigError, RunConfig
from faverage.experiment.pictures import Pictures, load_pictures, seen_by
from faverage.experiment.ready import read_features
from faverage.experiment.rows import Rows

if TYPE_CHECKING:
    from faverage.vision import Shards, Team

__all__ = ["Features", "features_of_benchmark", "features_of_file", "train_on"]

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much (0: not known)


@dataclass
class Features:
    """Everything right of the backbone.

    Attributes:
        memory, memory_labels: held-out features of base classes.
        prototypes: ``(C, d)``.
        head: W and b of the base head; a list of heads for a learner of views, whose features are side by side.
        sessions: classes of each session, as numbers in order of arrival.
        vectors, labels: features of shots, tests and spare examples, and their classes.
        rows: which of them are what.
        class_names: by number.
        source: where the choice of shots comes from.
        skipped: number of images that could not be read.
        base: what base training of the first network said of itself, or None.
        networks: what that of each network said, where there are several.
        pictures: the images, for methods that train on them; None for ready features.
    """

    memory: Array
    memory_labels: Array
    prototypes: Array
    head: Any
    sessions: list[list[int]]
    vectors: Array | Shards | Beside
    labels: Array
    rows: Rows
    class_names: list[str]
    source: str
    skipped: int = 0
    base: dict[str, Any] | None = None
    networks: list[dict[str, Any]] | None = None
    pictures: Pictures | None = None

    @property
    def train(self) -> list[tuple[Array, Array]]:
        """For each later session its features and labels."""
        return [(np.asarray(self.vectors[rows]), self.labels[rows]) for rows in self.rows.train]

    @property
    def test_labels(self) -> Array:
        """Labels of all tests."""
        return self.labels[self.rows.test]

    @property
    def test(self) -> Array:
        """Features of all tests."""
        return np.asarray(self.vectors[self.rows.test])

    @property
    def widths(self) -> list[int] | None:
        """Columns of each view; None where there are none."""
        if not isinstance(self.head, list):
            return None
        return [(head[0] if isinstance(head, tuple) else head.weight).shape[1] for head in self.head]

    def redrawn(self, seed: int, draw: int) -> Features:
        """Return the same with other shots, and without the images; see ``Rows.redrawn``."""
        return replace(self, rows=self.rows.redrawn(self.labels, seed, draw), pictures=None)


def features_of_file(path: Path, views: Sequence[str] | None = None) -> Features:
    """Read ready features: ``base_*``, ``novel`` and ``test`` arrays with their labels.

    Args:
        path: of the file.
        views: which of its views, where it has some; by default all.
    """
    ready = read_features(path, views)
    vectors, labels = ready.vectors, ready.labels
    places = [np.flatnonzero(np.isin(labels["novel"], group)) for group in ready.sessions[1:]]
    tests = np.arange(len(labels["novel"]), len(labels["novel"]) + len(labels["test"]))
    return Features(
        vectors["base_memory"],
        labels["base_memory"],
        vectors["base_prototypes"],
        ready.head,
        ready.sessions,
        np.concatenate([vectors["novel"], vectors["test"]]),
        np.concatenate([labels["novel"], labels["test"]]),
        Rows(tuple(places), tests, tests[:0]),
        [str(c) for c in range(int(labels["test"].max()) + 1)],
        f"ready features ({path.name})",
    )


def features_of_benchmark(
    config: RunConfig, folders: Sequence[Path], progress: Progress, team: Team | None = None
) -> Features:
    """Load the images, train the base session, extract features; each step goes on where a killed run left it.

    The processes of a team share training and extraction; the images are decoded by the first one.

    Args:
        config: of one seed.
        folders: of each network, for what it leaves on disk.
        progress: hears what is being done.
        team: the processes; by default this one alone.
    """
    from faverage.vision import Team

    team = team or Team()
    progress("loading images", 0, 0)
    pictures = team.first_does(lambda: load_pictures(config)) or load_pictures(config)
    labels, rows = pictures.labels, pictures.rows
    wanted = np.unique(np.concatenate([pictures.base, *rows.train, rows.test, rows.spare]))
    place = np.full(len(labels), -1)
    place[wanted] = np.arange(len(wanted))
    stored_rows = Rows(tuple(place[part] for part in rows.train), place[rows.test], place[rows.spare])
    words = (pictures.class_names, pictures.source, pictures.skipped)
    if set(config.methods) <= set(RIVAL_METHODS):  # nobody asks for features
        no, none = np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)
        vectors = np.zeros((len(wanted), 1), dtype=np.float32)
        sessions = pictures.sessions
        return Features(
            no, none, no, (no, none), sessions, vectors, labels[wanted], stored_rows, *words, pictures=pictures
        )
    seen = _see_all(config, pictures, wanted, folders, progress, team)
    stored = Beside([one.vectors for one in seen]) if len(seen) > 1 else seen[0].vectors
    heads = [head for one in seen for head in one.heads]
    pairs = zip(config.networks, seen, strict=False)
    return Features(
        np.asarray(stored[place[pictures.kept]]),
        labels[pictures.kept],
        np.concatenate([one.prototypes for one in seen], 1),
        heads if config.many else heads[0],
        pictures.sessions,
        stored,
        labels[wanted],
        stored_rows,
        *words,
        seen[0].about,
        [{**one.about, "settings": network} for network, one in pairs] or None,
        pictures,
    )


def _see_all(
    config: RunConfig, pictures: Pictures, wanted: Array, folders: Sequence[Path], progress: Progress, team: Team
) -> list[Seen]:
    """Train every network, one after the other."""
    if not config.networks:
        return [see(config, pictures, wanted, folders[0], lambda what: progress(what, 0, 0), team)]
    seen = []
    for k, (one, folder) in enumerate(zip(config.each, folders, strict=True), 1):

        def say(what: str, which: str = f"network {k} of {len(folders)}") -> None:
            progress(f"{what}, {which}", 0, 0)

        folder.mkdir(parents=True, exist_ok=True)
        try:
            seen.append(see(one, seen_by(one, pictures), wanted, folder, say, team))
        except ConfigError as error:
            raise ConfigError(f"networks: {k}: {error}") from None
    return seen
