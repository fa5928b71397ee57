"""What the methods see of a benchmark: features of every session, the base head, the prototypes, the memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.config import RIVAL_METHODS, ConfigError, RunConfig
from faverage.experiment.pictures import Pictures, load_pictures
from faverage.experiment.ready import read_features
from faverage.experiment.rows import Rows

if TYPE_CHECKING:
    from faverage.vision import BaseModel, Shards, Team

__all__ = ["Features", "base_heads", "features_of_benchmark", "features_of_file", "train_on"]

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
        base: what base training said of itself, or None.
        pictures: the images, for methods that train on them; None for ready features.
    """

    memory: Array
    memory_labels: Array
    prototypes: Array
    head: Any
    sessions: list[list[int]]
    vectors: Array | Shards
    labels: Array
    rows: Rows
    class_names: list[str]
    source: str
    skipped: int = 0
    base: dict[str, Any] | None = None
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

    def redrawn(self, seed: int, draw: int) -> Features:
        """Return the same with other shots, and without the images; see ``Rows.redrawn``."""
        return replace(self, rows=self.rows.redrawn(self.labels, seed, draw), pictures=None)


def features_of_file(path: Path) -> Features:
    """Read ready features: ``base_*``, ``novel`` and ``test`` arrays with their labels; sessions of five classes."""
    f, labels = read_features(path)
    n_base = len(f["base_prototypes"])
    new = np.unique(labels["novel"])
    groups = [new[i : i + 5].tolist() for i in range(0, len(new), 5)]
    places = [np.flatnonzero(np.isin(labels["novel"], group)) for group in groups]
    tests = np.arange(len(labels["novel"]), len(labels["novel"]) + len(labels["test"]))
    return Features(
        f["base_memory"],
        labels["base_memory"],
        f["base_prototypes"],
        (f["base_head_weight"], f["base_head_bias"]),
        [list(range(n_base)), *groups],
        np.concatenate([f["novel"], f["test"]]),
        np.concatenate([labels["novel"], labels["test"]]),
        Rows(tuple(places), tests, tests[:0]),
        [str(c) for c in range(int(labels["test"].max()) + 1)],
        f"ready features ({path.name})",
    )


def features_of_benchmark(config: RunConfig, work: Path, progress: Progress, team: Team | None = None) -> Features:
    """Load the images, train the base session, extract features; each step goes on where a killed run left it.

    The processes of a team share training and extraction; the images are decoded by the first one.
    """
    from faverage.fscil.heads import unit
    from faverage.vision import Team, store_features

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
            no, none, no, (no, none), sessions, vectors, labels[wanted], stored_rows, *words, None, pictures
        )
    progress("training the base session", 0, 0)
    start = time.perf_counter()
    rest = np.setdiff1d(pictures.base, pictures.kept)
    model = train_on(config, pictures, rest, work / "base-checkpoint.safetensors", team)
    seconds = time.perf_counter() - start
    team.first_does(lambda: model.save(work / "base.safetensors"))
    progress("extracting features", 0, 0)
    folder = work / ("features" if config.draws == 1 else "features-with-spare")
    options: dict[str, Any] = {"transform": model.transform, "device": config.device, "team": team, "progress": True}
    stored = store_features(model.backbone, pictures.images, wanted, folder=folder, views=config.views, **options)

    base_features = np.asarray(stored[place[rest]])
    n_base = len(pictures.sessions[0])
    parts = [unit(part) for part in np.split(base_features, len(config.views), axis=1)]
    normalised = np.concatenate(parts, 1)
    means = np.stack([normalised[labels[rest] == c].mean(0) for c in range(n_base)])
    about = {
        "images": len(rest),
        "epochs": config.epochs,
        "crop": pictures.augment.size,
        "images_per_second": model.images_per_second,
        "seconds": seconds,
        "ran": model.config["ran"],
        "history": model.history,
    }
    return Features(
        np.asarray(stored[place[pictures.kept]]),
        labels[pictures.kept],
        means,
        base_heads(model, config.views) if config.many else _linear(model),
        pictures.sessions,
        stored,
        labels[wanted],
        stored_rows,
        *words,
        about,
        pictures,
    )


def _linear(model: BaseModel) -> tuple[Array, Array]:
    """Return W and b of a linear base head."""
    assert model.head_bias is not None
    return model.head_weight.detach().numpy(), model.head_bias.detach().numpy()


def base_heads(model: BaseModel, views: Sequence[str]) -> list[Any]:
    """Return the base head of each view; a turned view has that of its turn, where the network learned turns."""
    from faverage.fscil import CosineHead
    from faverage.vision import get_views, turn_heads

    if model.head == "linear":
        return [_linear(model) for _ in views]
    weights = turn_heads(model) if model.config["head"].get("turned") else [model.head_weight] * 4
    return [CosineHead(weights[view.turn].detach().numpy(), float(model.scale or 1.0)) for view in get_views(views)]


def train_on(
    config: RunConfig, pictures: Pictures, rows: Array, checkpoint: Path | None = None, team: Team | None = None
) -> BaseModel:
    """Train the base session of a run on some rows of its images."""
    from faverage.experiment.resume import trained
    from faverage.vision import Team, get_backbone, load_weights, train_base

    backbone: Any = config.backbone
    if config.weights is not None:
        try:
            backbone = load_weights(get_backbone(config.backbone), Path(config.weights).expanduser())
        except ValueError as error:
            reason = str(error).partition(" cannot be read as a checkpoint")[0]
            if reason != str(error):
                reason += " is no checkpoint: expected a state dict, as .safetensors or written by torch.save"
            raise ConfigError(f"weights: {reason}") from None
    train = partial(
        train_base,
        pictures.images,
        pictures.labels,
        backbone=backbone,
        indices=rows,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        schedule=config.schedule,
        weight_decay=config.weight_decay,
        augment=pictures.augment,
        transform=pictures.transform,
        device=config.device,
        seed=config.seed,
        checkpoint=checkpoint,
        progress=checkpoint is not None,
        tensorboard=config.tensorboard,
        team=team,
        turned=config.turned,
        head="cosine" if config.turned else "linear",
    )
    return train() if checkpoint is None else trained(train, checkpoint, team or Team())
