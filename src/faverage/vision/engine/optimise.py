"""The one loop that trains a network on images: any ``Trainable``, on a CPU or a GPU, resumed after a kill."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch

from faverage.errors import CheckpointError
from faverage.vision.engine.device import (
    Array,
    Precision,
    Store,
    check_images,
    check_indices,
    fast_convolutions,
    fingerprint_array,
    fingerprint_images,
    fingerprint_weights,
    move,
    pick_device,
    pick_layout,
    pick_precision,
)
from faverage.vision.engine.loop import COLUMNS, Checkpoint, Loop
from faverage.vision.engine.processes import Team, shared_norms
from faverage.vision.engine.report import Report
from faverage.vision.engine.step import Objective, Step, Trainable
from faverage.vision.shards import Shards
from faverage.vision.transforms import Augment, transforms_for

__all__ = ["Training", "learning_rate", "train_network"]

Schedule = Literal["cosine", "paper"] | dict[str, Any]


@dataclass
class Training:
    """What ``train_network`` returns: how the training went.

    Attributes:
        history: by epoch, ``loss`` and ``accuracy`` on the training batches, ``lr`` at its start, and ``seconds``.
        images_per_second: of the median epoch.
        config: everything that the result depends on, and under ``ran`` how it was computed.

    >>> class Share(Trainable):  # learns which share of all images is of class 1, whatever they show
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.logit = torch.nn.Parameter(torch.zeros(()))
    ...     def embed(self, images, labels, extra):
    ...         return self.logit.expand(len(images))
    ...     def loss(self, logits, labels, extra):
    ...         loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
    ...         return loss, ((logits > 0) == labels).sum()
    >>> images, labels = np.zeros((8, 8, 8, 3), dtype=np.uint8), np.array([0, 1, 1, 1, 0, 1, 1, 1])
    >>> training = train_network(Share(), images, labels, epochs=3, device="cpu")
    >>> list(training.history), training.history["accuracy"]
    (['loss', 'accuracy', 'lr', 'seconds'], [0.25, 0.75, 0.75])
    >>> training.config["training"]["lr"], training.config["ran"]["device"]
    (0.1, 'cpu')
    """

    history: dict[str, list[float]]
    images_per_second: float
    config: dict[str, Any]


def learning_rate(schedule: Schedule, lr: float, epoch: float, epochs: int) -> float:
    """Return the learning rate at ``epoch``, which may be a fraction.

    ``cosine`` goes from ``lr`` to 0 in half a wave; ``paper`` divides by 10 at 3/5 and at 4/5 of all epochs, which is
    30 and 40 of 50; ``{"at": shares, "times": factor}`` multiplies by the factor at each share of all epochs.

    >>> [learning_rate("paper", 1.0, epoch, 50) for epoch in (29, 30, 40)]
    [1.0, 0.1, 0.01]
    >>> learning_rate({"at": [0.4, 0.7], "times": 0.5}, 1.0, 7, 10)
    0.25
    """
    if schedule == "cosine":
        return lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
    steps: Any = {"at": (0.6, 0.8), "times": 0.1} if schedule == "paper" else schedule
    if not isinstance(steps, dict) or steps.keys() != {"at", "times"}:
        raise ValueError(f"unknown schedule {schedule!r}: use 'cosine', 'paper' or {{'at': shares, 'times': factor}}")
    drops = sum(math.floor(epoch) >= math.ceil(epochs * share - 1e-9) for share in steps["at"])
    return float(lr / (1 / steps["times"]) ** drops)


def train_network(
    network: Trainable,
    images: Array | Shards,
    labels: Any,
    *,
    indices: Any = None,
    epochs: int = 50,
    batch_size: int = 128,
    lr: float = 0.1,
    schedule: Schedule = "cosine",
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    augment: Augment | None = None,
    progressive: Sequence[int] = (),
    device: str | torch.device = "auto",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 20.0,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    progress: bool = False,
    what: str = "training",
    tensorboard: str | Path | None = None,
    precision: Precision = "auto",
    compile: bool | str = "auto",
    capture: bool | Literal["auto"] = "auto",
    channels_last: bool | Literal["auto"] = "auto",
    describe: dict[str, Any] | None = None,
    team: Team | None = None,
) -> Training:
    """Train a network, in place, with SGD (Nesterov) on labelled images; it ends on the CPU, in evaluation mode.

    An incomplete last batch is left out, unless it is the only one; which images it holds changes with each epoch.

    Args:
        network: with its loss.
        images: uint8 ``(n, S, S, 3)``, may be a memory map. On a GPU they are uploaded whole, if they fit.
        labels: ``(n,)``, whole numbers from 0.
        indices: ``(m,)``, rows to train on; by default all.
        epochs: passes over the images.
        batch_size: images a step.
        lr: learning rate at the start.
        schedule: see ``learning_rate``.
        momentum: of SGD; Nesterov's where it is above 0.
        weight_decay: on every parameter.
        augment: the training transform; by default ``transforms_for`` the side of the images.
        progressive: sides of crops that come before those of ``augment``, each for an equal share of the epochs: small
            ones first, since they train fast (progressive resizing).
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.
        seed: of the order of images, the augmentation, and what the network draws.
        checkpoint: file to write after an epoch and to go on from after a kill. Every epoch draws from a generator of
            its own, so on a CPU the result is the same, bit for bit, as without the kill.
        checkpoint_seconds: write only if this much time went by since the last one; the last epoch is always written.
        on_epoch: called after each epoch with its number from 0 and its row of the history.
        progress: draw a progress bar.
        what: the words before the bar.
        tensorboard: folder for TensorBoard's files; needs the package.
        precision: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU, and on a CPU that has it where crops have
            64 px or more.
        compile: whether to use torch.compile, or its mode; ``auto``: on a GPU. Never on a CPU.
        capture: whether to record a step as a CUDA graph and replay it; ``auto``: on a GPU. Never on a CPU.
        channels_last: whether to lay out weights and activations channels last; ``auto``: on a GPU.
        describe: what else a checkpoint should be compared by.
        team: the processes that share each batch; by default this one alone. How many they are does not change the
            result except for rounding: ``batch_size`` and ``lr`` are those of the whole batch, as batch norm sees it.
            The first one reads and writes the checkpoint. Steps of a team are neither compiled nor captured.

    Raises:
        FloatingPointError: if the loss is not a number after an epoch; the last checkpoint stays as it is.
        ValueError: if the input does not fit, or the checkpoint belongs to another training.

    >>> class Brightness(Trainable):  # learns from which brightness on an image is of class 1
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.level = torch.nn.Parameter(torch.tensor(-2.0))
    ...     def embed(self, images, labels, extra):
    ...         return images.mean((1, 2, 3)) - self.level
    ...     def loss(self, logits, labels, extra):
    ...         loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
    ...         return loss, ((logits > 0) == labels).sum()
    >>> labels = np.arange(24) % 2
    >>> images = np.full((24, 8, 8, 3), 40, dtype=np.uint8)
    >>> images[labels == 1] = 200
    >>> network = Brightness()
    >>> training = train_network(network, images, labels, epochs=8, batch_size=8, momentum=0.0, lr=1.0, device="cpu")
    >>> training.history["accuracy"][-1], network.training, -1 < network.level.item() < 1
    (1.0, False, True)
    """
    check_images(images)
    rows = check_indices(indices, len(images))
    targets = check_labels(labels, len(images))[rows]
    if epochs < 1 or batch_size < 2 or not lr > 0 or seed < 0 or len(rows) < 2:
        raise ValueError(
            "expected epochs from 1, batch_size from 2, lr above 0, seed from 0 and 2 images or more; "
            f"got {epochs}, {batch_size}, {lr}, {seed} and {len(rows)} images"
        )
    if any(side < 1 for side in progressive) or len(progressive) >= epochs:
        raise ValueError(
            f"progressive must be sides of crops from 1, fewer than the {epochs} epochs, got {list(progressive)}"
        )
    learning_rate(schedule, lr, 0, epochs)  # an unknown name fails here, before any work
    team = team or Team()
    place = team.device or pick_device(device)
    on_gpu = place.type == "cuda"
    augment = copy.deepcopy(augment or transforms_for(images.shape[1])[0]).to(place)
    dtype = pick_precision(precision, place, augment.size)
    config = {
        **(describe or {}),
        "augment": augment.config(),
        "training": {
            **{"epochs": epochs, "batch_size": batch_size, "lr": lr, "schedule": schedule},
            **{"momentum": momentum, "weight_decay": weight_decay, "seed": seed},
            **({"progressive": list(progressive)} if progressive else {}),
        },
    }
    if checkpoint is not None:
        config["fingerprint"] = {
            "start": fingerprint_weights(network),
            "images": fingerprint_images(images, rows),
            "labels": fingerprint_array(targets),
        }
    saved = Checkpoint(checkpoint, config, checkpoint_seconds)
    layout = pick_layout(channels_last, place)
    own = network.order(targets, batch_size, np.random.default_rng(0))
    size = _share(min(batch_size, len(rows)) if own is None else own.shape[1], own is None, team)
    move(network, place, layout).train()

    with (
        fast_convolutions(place),
        torch.random.fork_rng(devices=[place] if on_gpu else []),
        shared_norms(network, team),
    ):
        objective = Objective(network, augment, place, dtype, layout)
        options: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay, "team": team}
        step = Step(objective, side=images.shape[1], batch_size=size, **options)
        found = team.tell(team.first_does(lambda: _resume(saved, step)))
        if isinstance(found, CheckpointError):
            raise found
        history = found or {}
        team.copy_(step.state().values())
        done = len(history["loss"])
        store, on_place = Store(images, rows, place), torch.from_numpy(targets).to(place)
        rate = partial(_rate, schedule, lr, epochs)
        loop = Loop(step, store, on_place, augment, seed=seed, rate=rate, epochs=epochs, asked=batch_size)
        board = tensorboard if team.first else None
        total: dict[str, Any] = {"total": epochs * loop.steps, "done": done * loop.steps, "unit": loop.batch_size}
        with Report(what, **total, show=progress and team.first, past=history, tensorboard=board) as report:
            mode = compile if isinstance(compile, str) and compile != "auto" else "default"
            sides = (*progressive, augment.size)
            for epoch in range(done, epochs):
                side = sides[epoch * len(sides) // epochs]
                if epoch == done or side != augment.size:
                    augment.size = side
                    if on_gpu and team.size == 1:
                        step.speed_up(compile_mode=mode if compile else None, capture=bool(capture))
                row = loop.epoch(epoch, report.advance)
                if not math.isfinite(row["loss"]):
                    kept = f"; {checkpoint} still holds an earlier, good state" if saved.exists() else ""
                    raise FloatingPointError(
                        f"the training loss is {row['loss']} in epoch {epoch + 1} of {epochs}: "
                        f"try a learning rate below {lr:g}{kept}"
                    )
                for name in COLUMNS:
                    history[name].append(row[name])
                if team.first:
                    saved.write(step, history, last=epoch + 1 == epochs)
                report.epoch(epoch, row)
                if on_epoch is not None:
                    on_epoch(epoch, row)
    network.zero_grad(set_to_none=True)
    move(network, "cpu", torch.contiguous_format).eval()
    ran: dict[str, Any] = {"device": place.type, "precision": str(dtype).removeprefix("torch."), "step": step.variant}
    if team.size > 1:
        ran["processes"] = team.size
    speed = loop.steps * loop.batch_size / max(median(history["seconds"]), 1e-9)
    return Training(history, speed, {**saved.config, "ran": ran})


def check_labels(labels: Any, n: int) -> Array:
    """Return labels ``(n,)`` as int64, or raise ValueError."""
    found = np.asarray(labels)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise ValueError(f"labels must be {n} whole numbers, one an image; got {found.dtype} of shape {found.shape}")
    return found.astype(np.int64)


def _resume(saved: Checkpoint, step: Step) -> dict[str, list[float]] | CheckpointError:
    """Return the history up to the checkpoint, or why it cannot be used, for all processes to know."""
    try:
        return saved.resume(step)
    except CheckpointError as error:
        return error


def _share(size: int, plain: bool, team: Team) -> int:
    """Return how many images of a batch one process takes."""
    if team.size > 1 and not plain:
        raise ValueError("a network that makes its own batches cannot be trained by several processes: use one")
    if size % team.size:
        raise ValueError(
            f"a batch of {size} images cannot be shared evenly by {team.size} processes: "
            f"set batch_size to {max(size // team.size, 1) * team.size}"
        )
    return size // team.size


def _rate(schedule: Schedule, lr: float, epochs: int, epoch: float) -> float:
    return learning_rate(schedule, lr, epoch, epochs)
