"""The base session: every network trained, and what it sees of all images, as one feature set."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from faverage.errors import ConfigError
from faverage.experiment.code import features_folder, work_folder
from faverage.experiment.config import RIVAL_METHODS, RunConfig
from faverage.experiment.pictures import Pictures, load_pictures, seen_by
from faverage.experiment.resume import read_left, trained, with_weights, write_left
from faverage.features import FeatureSet
from faverage.fscil.heads import CosineHead, base_heads, unit
from faverage.fscil.whitening import Whitening
from faverage.vision.backbones import average_weights, backbone_config, get_backbone

if TYPE_CHECKING:
    from faverage.vision import BaseModel, Shards, Team

__all__ = ["Progress", "features_of_benchmark", "train_on"]

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much (0: not known)


def features_of_benchmark(
    config: RunConfig, folders: Sequence[Path], progress: Progress, team: Team | None = None, order: int = 0
) -> tuple[FeatureSet, Pictures]:
    """Load the images, train the base session, extract features; each step goes on where a killed run left it.

    The processes of a team share training and extraction; the images are decoded by the first one. Where all methods
    are rivals, which train networks of their own, there are no views.

    Args:
        config: of one seed.
        folders: of each network, for what it leaves on disk.
        progress: hears what is being done.
        team: the processes; by default this one alone.
        order: of all classes; 0 is the official one.
    """
    from faverage.vision import Team

    team = team or Team()
    progress("loading images", 0, 0)
    pictures = team.first_does(lambda: load_pictures(config, order)) or load_pictures(config, order)
    wanted = pictures.wanted
    none = FeatureSet(
        views={},
        labels=pictures.labels[wanted],
        sessions=pictures.sessions,
        memory=np.searchsorted(wanted, pictures.kept),
        shots=tuple(np.searchsorted(wanted, rows) for rows in pictures.shots),
        test=np.searchsorted(wanted, pictures.test),
        spare=np.searchsorted(wanted, pictures.spare),
        prototypes={},
        heads={},
        class_names=pictures.class_names,
        source=pictures.source,
        skipped=pictures.skipped,
        order=order,
    )
    if set(config.methods) <= set(RIVAL_METHODS):
        return none, pictures
    seen = []
    for k, (one, folder) in enumerate(zip(config.each, folders, strict=True), 1):
        which = f", order {order}" if order else ""
        which += f", network {k} of {len(folders)}" if config.networks else ""

        def say(what: str, which: str = which) -> None:
            progress(f"{what}{which}", 0, 0)

        folder.mkdir(parents=True, exist_ok=True)
        try:
            own = seen_by(one, pictures) if config.networks else pictures
            seen.append(_see(one, own, none, wanted, folder, say, team))
        except ConfigError as error:
            if not config.networks:
                raise
            raise ConfigError(f"networks: {k}: {error}") from None
    return _joined(config, seen), pictures


def _joined(config: RunConfig, seen: Sequence[FeatureSet]) -> FeatureSet:
    """Return the views of all networks as those of one feature set."""

    def of_all(name: str) -> dict[str, Any]:
        return dict(zip(config.view_names, (x for one in seen for x in getattr(one, name).values()), strict=True))

    pairs = zip(config.networks, seen, strict=False)
    networks = [{**(one.base or {}), "settings": network} for network, one in pairs]
    return replace(
        seen[0],
        views=of_all("views"),
        prototypes=of_all("prototypes"),
        heads=of_all("heads"),
        whitening=of_all("whitening") if config.whiten is not None else {},
        learned_from=of_all("learned_from") if config.learn_from else {},
        networks=networks or None,
    )


def _see(
    config: RunConfig,
    pictures: Pictures,
    none: FeatureSet,
    wanted: Array,
    folder: Path,
    say: Callable[[str], None],
    team: Team,
) -> FeatureSet:
    """Train the network of a run that has one, and extract its features; each goes on where a killed run left it.

    Args:
        config: with one network.
        pictures: as this network sees them.
        none: the feature set before any network.
        wanted: rows ``(n,)`` of its images.
        folder: of the network.
        say: hears what is being done.
        team: of processes that share it.
    """
    from faverage.vision import Shards, store_features
    from faverage.vision.extraction import with_pools
    from faverage.vision.together import by_view

    say("training the base session")
    start = time.perf_counter()
    rest = np.setdiff1d(pictures.base, pictures.kept)
    model = train_on(config, pictures, rest, folder / "base-checkpoint.safetensors", team)
    model = with_pools(model, config.views, pictures.detailed, rest, device=config.device)
    # epochs before a kill count, too
    seconds = max(time.perf_counter() - start, sum(model.history["seconds"]))
    team.first_does(lambda: model.save(folder / "base.safetensors"))
    say("extracting features")
    store = features_folder(config, folder)
    options: dict[str, Any] = {"transform": model.transform, "device": config.device, "team": team, "progress": True}
    start = time.perf_counter()
    stored = store_features(model.backbone, pictures.detailed, wanted, folder=store, views=config.looks, **options)
    features_seconds = team.first_does(lambda: _longest(store.with_suffix(".json"), time.perf_counter() - start))
    parts = [by_view(part, config.looks, model.backbone) for part in stored.parts]
    every = {look: Shards([part[look] for part in parts]) for look in config.looks}
    views: dict[str, Array | Shards] = {view: every[view] for view in config.views}
    learned_from = {view: _mean([every[look] for look in config.learned(view)]) for view in views}
    n_base, trained_on, labels = len(pictures.sessions[0]), np.searchsorted(wanted, rest), pictures.labels[rest]
    maps, prototypes, heads, own = {}, {}, {}, base_heads(model, config.views)
    for view, x in learned_from.items():
        learned = np.asarray(x[trained_on])
        if config.whiten is not None:
            maps[view] = Whitening.fit(learned, labels, config.whiten)
            learned = maps[view](learned)
        prototypes[view] = class_means(learned, labels, n_base)
        heads[view] = own.get(view) or CosineHead(prototypes[view], 16.0, whitened=view in maps)
    about = {
        "images": len(rest),
        "backbone": config.backbone,
        "epochs": config.epochs,
        "crop": pictures.augment.size,
        "views": list(config.views),
        "images_per_second": model.images_per_second,
        "seconds": seconds,
        "features_seconds": features_seconds,
        "ran": model.config["ran"],
        "history": model.history,
    }
    found = replace(none, views=views, prototypes=prototypes, heads=heads, base=about, whitening=maps)
    return replace(found, learned_from=learned_from) if config.learn_from else found


def _mean(looks: Sequence[Shards]) -> Array | Shards:
    """Return the mean ``(n, d)`` of several looks at the same images; a single one is not read."""
    if len(looks) == 1:
        return looks[0]
    total = looks[0][:].astype(np.float32)
    for look in looks[1:]:
        total += look[:]
    return np.asarray(total / len(looks))


def _longest(file: Path, seconds: float) -> float:
    """Return how long something took when it was done, since to find it done takes moments; keep it in a file."""
    before = read_left(file, "the time is taken again")
    if before is None or before["seconds"] < seconds:
        write_left(file, {"seconds": seconds})
    return max(seconds, before["seconds"] if before is not None else 0.0)


def train_on(
    config: RunConfig, pictures: Pictures, rows: Array, checkpoint: Path | None = None, team: Team | None = None
) -> BaseModel:
    """Train the base session of a run on some rows of its images; without epochs, take the network as it is.

    Args:
        config: with one network; its teachers, or those that it is the mean of, are trained before it, or found where
            they were trained already.
        pictures: as this network sees them.
        rows: of the images, ``(n,)``.
        checkpoint: in the network's folder, see ``work_folder``; None keeps nothing on disk.
        team: of processes that share it.
    """
    from faverage.vision import Team, train_base

    def trained_before(one: RunConfig) -> BaseModel:
        own = None
        if checkpoint is not None:
            own = work_folder(one, checkpoint.parent.parent, pictures.order) / checkpoint.name
            own.parent.mkdir(parents=True, exist_ok=True)
        return train_on(one, seen_by(one, pictures), rows, own, team)

    if not config.epochs:
        return with_means(start_of(config), config, pictures, rows)
    if config.averaged:
        models = [trained_before(one) for one in config.averaged]
        shares = [config.retain, *[(1 - config.retain) / len(models)] * len(models)]
        backbone = average_weights([start_of(config), *(model.backbone for model in models)], shares)
        return with_means(backbone, config, pictures, rows, models)
    teachers = [trained_before(one).backbone for one in config.taught]
    start = start_of(config) if config.weights or config.signed or teachers else None
    if start is not None and teachers and config.taught[0].backbone == config.backbone:
        start.load_state_dict(teachers[0].state_dict())
    train = partial(
        train_base,
        pictures.images,
        pictures.labels,
        backbone=start or config.backbone,
        teachers=teachers,
        indices=rows,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        schedule=config.schedule,
        weight_decay=config.weight_decay,
        augment=pictures.augment,
        progressive=config.progressive,
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
        head="cosine" if config.rotations else config.head,
    )
    return train() if checkpoint is None else trained(train, checkpoint, team or Team())


def start_of(config: RunConfig) -> nn.Module:
    """Return the backbone before base training, with the weights of the settings, or fresh ones by the seed."""
    options = {"last_relu": False} if config.signed else {}
    if config.weights is not None:
        return with_weights(config.backbone, config.weights, **options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.training_seed)
        return get_backbone(config.backbone, **options)


def with_means(
    backbone: nn.Module, config: RunConfig, pictures: Pictures, rows: Array, behind: Sequence[BaseModel] = ()
) -> BaseModel:
    """Return a backbone whose head was not trained: mean features of some rows, by their cosines.

    Args:
        backbone: as its weights are, or the mean of those behind it.
        config: of a run with one network.
        pictures: as this network sees them.
        rows: of the images, ``(n,)``.
        behind: the trained networks that it is the mean of; its history is theirs, one after the other.
    """
    from faverage.vision import BaseModel, extract_features

    found = extract_features(backbone, pictures.detailed, rows, transform=pictures.transform, device=config.device)
    means = class_means(found, pictures.labels[rows], len(pictures.sessions[0]))
    names = ("loss", "accuracy", "lr", "seconds")
    return BaseModel(
        backbone.eval(),
        "cosine",
        torch.from_numpy(means),
        None,
        16.0,
        pictures.transform,
        {name: [value for model in behind for value in model.history[name]] for name in names},
        float(np.mean([model.images_per_second for model in behind])) if behind else 0.0,
        {
            "backbone": backbone_config(backbone),
            "head": {"kind": "cosine", "means": True},
            "ran": behind[0].config["ran"] if behind else {"step": "none"},
        },
    )


def class_means(features: Array, labels: Array, n_classes: int) -> Array:
    """Return the mean ``(C, d)`` of each class, of features ``(n, d)`` scaled to length one, with labels ``(n,)``."""
    scaled = unit(features)
    return np.stack([scaled[labels == c].mean(0) for c in range(n_classes)])
