"""The base session of one network: trained, and what it sees of all images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.errors import CheckpointError, ConfigError
from faverage.experiment.config import RunConfig
from faverage.experiment.pictures import Pictures
from faverage.fscil.heads import base_heads

if TYPE_CHECKING:
    from faverage.vision import BaseModel, Shards, Team

__all__ = ["Beside", "Seen", "see", "train_on"]

Array = NDArray[Any]


@dataclass
class Seen:
    """What one network sees.

    Attributes:
        vectors: features of the wanted images, those of its views side by side.
        prototypes: ``(C, D)``, means of features that are normalised in each view.
        heads: base head of each view.
        about: what training said of itself.
    """

    vectors: Shards
    prototypes: Array
    heads: list[Any]
    about: dict[str, Any]


class Beside:
    """Features of several networks side by side; only rows that are asked for are read.

    >>> both = Beside([np.zeros((3, 2)), np.ones((3, 1))])
    >>> both.shape, both[[2]].tolist()
    ((3, 3), [[0.0, 0.0, 1.0]])
    """

    def __init__(self, parts: Sequence[Array | Shards]) -> None:
        self.parts = list(parts)
        self.shape = (len(self.parts[0]), sum(part.shape[1] for part in self.parts))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        return np.concatenate([np.asarray(part[rows]) for part in self.parts], axis=-1)


def see(
    config: RunConfig, pictures: Pictures, wanted: Array, folder: Path, say: Callable[[str], None], team: Team
) -> Seen:
    """Train the network of a run that has one, and extract its features; each goes on where a killed run left it.

    Args:
        config: with one network.
        pictures: as this network sees them.
        wanted: rows of the images, in growing order, those of the base session among them.
        folder: of the network.
        say: hears what is being done.
        team: of processes that share it.
    """
    from faverage.fscil.heads import unit
    from faverage.vision import store_features

    say("training the base session")
    start = time.perf_counter()
    rest = np.setdiff1d(pictures.base, pictures.kept)
    model = train_on(config, pictures, rest, folder / "base-checkpoint.safetensors", team)
    seconds = time.perf_counter() - start
    team.first_does(lambda: model.save(folder / "base.safetensors"))
    say("extracting features")
    store = folder / ("features" if config.draws == 1 else "features-with-spare")
    options: dict[str, Any] = {"transform": model.transform, "device": config.device, "team": team, "progress": True}
    stored = store_features(model.backbone, pictures.images, wanted, folder=store, views=config.views, **options)
    parts = np.split(np.asarray(stored[np.searchsorted(wanted, rest)]), len(config.views), axis=1)
    normalised = np.concatenate([unit(part) for part in parts], 1)
    n_base = len(pictures.sessions[0])
    means = np.stack([normalised[pictures.labels[rest] == c].mean(0) for c in range(n_base)])
    about = {
        "images": len(rest),
        "backbone": config.backbone,
        "epochs": config.epochs,
        "crop": pictures.augment.size,
        "views": list(config.views),
        "images_per_second": model.images_per_second,
        "seconds": seconds,
        "ran": model.config["ran"],
        "history": model.history,
    }
    return Seen(stored, means, base_heads(model, config.views), about)


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
        except CheckpointError as error:
            expected = "expected a state dict, as .safetensors or written by torch.save"
            raise ConfigError(f"weights: {error.what} is no checkpoint", what="weights", hint=expected) from None
        except ValueError as error:
            raise ConfigError(f"weights: {error}", what="weights") from None
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
        seed=config.training_seed,
        checkpoint=checkpoint,
        progress=checkpoint is not None,
        tensorboard=config.tensorboard,
        team=team,
        rotations=config.rotations,
        mix=config.mix,
        smoothing=config.smoothing,
        head="cosine" if config.rotations else "linear",
    )
    return train() if checkpoint is None else trained(train, checkpoint, team or Team())
