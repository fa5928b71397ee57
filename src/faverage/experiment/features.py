"""What the methods see of a benchmark: features of every session, the base head, the prototypes, the memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.config import ConfigError, RunConfig

__all__ = ["Features", "features_of_benchmark", "features_of_file"]

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much (0: not known)
_KEYS = ("test", "novel", "base_memory", "base_prototypes", "base_head_weight", "base_head_bias")


@dataclass
class Features:
    """Everything right of the backbone.

    Attributes:
        memory, memory_labels: held-out features of base classes.
        prototypes: ``(C, d)``.
        head: W and b of the base head.
        sessions: classes of each session, as numbers in order of arrival.
        train: for each later session its features and labels.
        test, test_labels: of all classes.
        class_names: by number.
        source: where the choice of shots comes from.
        skipped: number of images that could not be read.
        base: what base training said of itself, or None.
    """

    memory: Array
    memory_labels: Array
    prototypes: Array
    head: tuple[Array, Array]
    sessions: list[list[int]]
    train: list[tuple[Array, Array]]
    test: Array
    test_labels: Array
    class_names: list[str]
    source: str
    skipped: int = 0
    base: dict[str, Any] | None = None


def features_of_file(path: Path) -> Features:
    """Read ready features: ``base_*``, ``novel`` and ``test`` arrays with their labels; sessions of five classes."""
    if not path.is_file():
        raise ConfigError(f"no such file of features: {path}")
    try:
        data = {name: array for name, array in np.load(path).items()}
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} is not a .npz file of arrays: {error}") from None
    needed = [*_KEYS, "test_labels", "novel_labels", "base_memory_labels"]
    missing = [name for name in needed if name not in data]
    if missing:
        raise ConfigError(f"{path} lacks the array '{missing[0]}'; needed are: {', '.join(needed)}")
    f = {name: data[name].astype(np.float32) for name in _KEYS}
    labels = {name: data[f"{name}_labels"].astype(np.int64) for name in ("test", "novel", "base_memory")}
    n_base = len(f["base_prototypes"])
    new = np.unique(labels["novel"])
    groups = [new[i : i + 5].tolist() for i in range(0, len(new), 5)]
    rows = [np.isin(labels["novel"], group) for group in groups]
    return Features(
        f["base_memory"],
        labels["base_memory"],
        f["base_prototypes"],
        (f["base_head_weight"], f["base_head_bias"]),
        [list(range(n_base)), *groups],
        [(f["novel"][r], labels["novel"][r]) for r in rows],
        f["test"],
        labels["test"],
        [str(c) for c in range(int(labels["test"].max()) + 1)],
        f"ready features ({path.name})",
    )


def features_of_benchmark(config: RunConfig, out: Path, progress: Progress) -> Features:
    """Load the images, train the base session, extract features; each step goes on where a killed run left it."""
    from faverage.data import load_benchmark
    from faverage.fscil.heads import unit
    from faverage.vision import (
        Augment,
        extract_features,
        get_backbone,
        hold_out,
        load_weights,
        train_base,
        transforms_for,
    )

    progress("loading images", 0, 0)
    bench = load_benchmark(config.dataset, config.data, seed=config.seed, shots=config.shots)
    arrival = np.array(bench.seen(len(bench.sessions) - 1))
    number = np.full(len(bench.class_names), -1)
    number[arrival] = np.arange(len(arrival))
    labels = number[bench.labels]
    base = bench.sessions[0]
    rows = base.train
    kept = rows[hold_out(labels[rows], per_class=config.hold_out, seed=config.seed)]
    rest = np.setdiff1d(rows, kept)
    augment, transform = transforms_for(bench.images.shape[1], mean=bench.normalise[0], std=bench.normalise[1])
    if not config.flip:
        augment = Augment(**{**augment.config(), "flip": 0.0})
    backbone: Any = config.backbone
    if config.weights is not None:
        backbone = load_weights(get_backbone(config.backbone), config.weights)
    progress("training the base session", 0, 0)
    start = time.perf_counter()
    model = train_base(
        bench.images,
        labels,
        backbone=backbone,
        indices=rest,
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        schedule=config.schedule,
        weight_decay=config.weight_decay,
        augment=augment,
        transform=transform,
        device=config.device,
        seed=config.seed,
        checkpoint=out / "base-checkpoint.safetensors",
        progress=True,
        tensorboard=config.tensorboard,
    )
    seconds = time.perf_counter() - start
    model.save(out / "base.safetensors")
    progress("extracting features", 0, 0)
    wanted = np.unique(np.concatenate([np.concatenate([s.train, s.test]) for s in bench.sessions]))
    stored = extract_features(
        model.backbone,
        bench.images,
        wanted,
        transform=model.transform,
        device=config.device,
        cache=out / "features.npy",
        progress=True,
    )
    place = np.full(len(bench.labels), -1)
    place[wanted] = np.arange(len(wanted))

    def of(chosen: Array) -> tuple[Array, Array]:
        return np.asarray(stored[place[chosen]]), labels[chosen]

    base_features, base_labels = of(rest)
    means = np.stack([unit(base_features[base_labels == c]).mean(0) for c in range(len(base.classes))])
    weight = model.head_weight.detach().numpy()
    assert model.head_bias is not None  # a linear head has one
    bias = model.head_bias.detach().numpy()
    memory, memory_labels = of(kept)
    test, test_labels = of(bench.test_until(len(bench.sessions) - 1))
    return Features(
        memory,
        memory_labels,
        means,
        (weight, bias),
        [number[list(s.classes)].tolist() for s in bench.sessions],
        [of(s.train) for s in bench.sessions[1:]],
        test,
        test_labels,
        [bench.class_names[c] for c in arrival],
        bench.source,
        len(bench.skipped),
        {
            "epochs": config.epochs,
            "images_per_second": model.images_per_second,
            "seconds": seconds,
            "history": model.history,
        },
    )
