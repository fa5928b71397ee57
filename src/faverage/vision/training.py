"""Base training: a backbone and its head on the images of the base session, one loop for CPU and GPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from faverage.vision._device import (
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
from faverage.vision._loop import COLUMNS, Checkpoint, Loop
from faverage.vision._report import Report
from faverage.vision._step import Objective, Step
from faverage.vision.augment import Augment, Evaluate, transforms_for
from faverage.vision.backbones import backbone_config, get_backbone
from faverage.vision.model import BaseModel, Head, HeadName, Network

__all__ = ["hold_out", "learning_rate", "train_base"]

Schedule = Literal["cosine", "paper"]


def hold_out(labels: Any, *, per_class: int = 20, at_most: float = 1 / 6, seed: int = 0) -> Array:
    """Choose the rehearsal memory: rows to keep out of base training.

    Args:
        labels: ``(n,)``, class of each image.
        per_class: images to keep of each class, at most.
        at_most: share of a class to keep, at most; a class of 5 images keeps none by default.
        seed: of the choice.

    Returns:
        The chosen rows, in growing order.

    >>> len(hold_out([0] * 500 + [1] * 30))
    25
    """
    if per_class < 0 or not 0 <= at_most < 1:
        raise ValueError(f"expected per_class from 0 and at_most in [0, 1), got {per_class} and {at_most}")
    labels = np.asarray(labels)
    generator = np.random.default_rng(seed)
    chosen = [np.zeros(0, dtype=np.int64)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(per_class, math.floor(len(rows) * at_most + 1e-9))
        chosen.append(generator.permutation(rows)[:count])
    return np.sort(np.concatenate(chosen))


def learning_rate(schedule: Schedule, lr: float, epoch: float, epochs: int) -> float:
    """Return the learning rate at ``epoch``, which may be a fraction.

    ``cosine`` goes from ``lr`` to 0 in half a wave; ``paper`` divides by 10 at 3/5 and at 4/5 of all epochs, which is
    30 and 40 of 50.

    >>> [learning_rate("paper", 1.0, epoch, 50) for epoch in (29, 30, 40)]
    [1.0, 0.1, 0.01]
    """
    if schedule == "cosine":
        return lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
    if schedule == "paper":
        drops = sum(math.floor(epoch) >= math.ceil(epochs * share) for share in (0.6, 0.8))
        return float(lr / 10**drops)
    raise ValueError(f"unknown schedule {schedule!r}: use 'cosine' or 'paper'")


def train_base(
    images: Array,
    labels: Any,
    *,
    backbone: str | nn.Module,
    indices: Any = None,
    head: HeadName = "linear",
    scale: float = 16.0,
    epochs: int = 50,
    batch_size: int = 128,
    lr: float = 0.1,
    schedule: Schedule = "cosine",
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    augment: Augment | None = None,
    transform: Evaluate | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 20.0,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    progress: bool = False,
    tensorboard: str | Path | None = None,
    precision: Precision = "auto",
    compile: bool | str = "auto",
    capture: bool | Literal["auto"] = "auto",
    channels_last: bool | Literal["auto"] = "auto",
) -> BaseModel:
    """Train a backbone and a head with SGD (Nesterov) on labelled images.

    An incomplete last batch is left out, unless it is the only one; which images it holds changes with each epoch.

    Args:
        images: uint8 ``(n, S, S, 3)``, may be a memory map. On a GPU they are uploaded whole, if they fit.
        labels: ``(n,)``; among the images to train on, every class from 0 to the largest must occur.
        backbone: a name for ``get_backbone``, or a module to start from; it is copied, not changed.
        indices: rows to train on; by default all.
        head: ``linear`` (on unnormalised features) or ``cosine`` (without bias, ``scale`` times the cosine).
        scale: of the cosine head.
        epochs: passes over the images.
        batch_size: images a step.
        lr: learning rate at the start.
        schedule: ``cosine`` or ``paper``, see ``learning_rate``.
        momentum: of SGD.
        weight_decay: on every parameter.
        augment: the training transform; by default ``transforms_for`` the side of the images.
        transform: the evaluation transform that the model keeps; by default likewise.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device.
        seed: of the first weights, the order of images and the augmentation.
        checkpoint: file to write after an epoch and to go on from after a kill. Every epoch draws from a generator of
            its own, so on a CPU the result is the same, bit for bit, as without the kill.
        checkpoint_seconds: write only if this much time went by since the last one; the last epoch is always written.
        on_epoch: called after each epoch with its number from 0 and its row of the history.
        progress: draw a progress bar.
        tensorboard: folder for TensorBoard's files; needs the package.
        precision: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU.
        compile: whether to use torch.compile, or its mode; ``auto``: on a GPU. Never on a CPU.
        capture: whether to record a step as a CUDA graph and replay it; ``auto``: on a GPU. Never on a CPU.
        channels_last: whether to lay out weights and activations channels last; ``auto``: on a GPU.

    Raises:
        FloatingPointError: if the loss is not a number after an epoch; the last checkpoint stays as it is.
        ValueError: if the input does not fit, or the checkpoint belongs to another training.
    """
    check_images(images)
    rows = check_indices(indices, len(images))
    targets = _check_labels(labels, len(images), rows)
    if epochs < 1 or batch_size < 2 or not lr > 0 or seed < 0 or len(rows) < 2:
        raise ValueError(
            "expected epochs from 1, batch_size from 2, lr above 0, seed from 0 and 2 images or more; "
            f"got {epochs}, {batch_size}, {lr}, {seed} and {len(rows)} images"
        )
    learning_rate(schedule, lr, 0, epochs)  # an unknown name fails here, before any work
    place = pick_device(device)
    dtype = pick_precision(precision, place)
    on_gpu = place.type == "cuda"
    usual = transforms_for(images.shape[1])
    augment = copy.deepcopy(augment or usual[0]).to(place)
    network = _start(backbone, int(targets.max()) + 1, head, scale, augment.size, seed)
    config = {
        "backbone": backbone_config(network.backbone) or {"name": type(network.backbone).__name__},
        "head": {"kind": head, "scale": scale, "n_classes": int(targets.max()) + 1},
        "augment": augment.config(),
        "training": {
            **{"epochs": epochs, "batch_size": batch_size, "lr": lr, "schedule": schedule},
            **{"momentum": momentum, "weight_decay": weight_decay, "seed": seed},
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
    move(network, place, layout).train()

    with fast_convolutions(place), torch.random.fork_rng(devices=[place] if on_gpu else []):
        objective = Objective(network, augment, place, dtype, layout)
        sizes = {"side": images.shape[1], "batch_size": min(batch_size, len(rows))}
        step = Step(objective, **sizes, momentum=momentum, weight_decay=weight_decay)
        history = saved.resume(step)
        done = len(history["loss"])
        rate = partial(_rate, schedule, lr, epochs)
        loop = Loop(
            step, Store(images, rows, place), torch.from_numpy(targets).to(place), augment, seed=seed, rate=rate
        )
        total = {"total": epochs * loop.steps, "done": done * loop.steps, "unit": loop.batch_size}
        with Report("training", **total, show=progress, tensorboard=tensorboard) as report:
            if on_gpu and done < epochs:
                mode = compile if isinstance(compile, str) and compile != "auto" else "default"
                step.speed_up(compile_mode=mode if compile else None, capture=bool(capture))
            for epoch in range(done, epochs):
                row = loop.epoch(epoch, report.advance)
                if not math.isfinite(row["loss"]):
                    kept = f"; {checkpoint} still holds an earlier, good state" if saved.exists() else ""
                    raise FloatingPointError(
                        f"the training loss is {row['loss']} in epoch {epoch + 1} of {epochs}: "
                        f"try a learning rate below {lr:g}{kept}"
                    )
                for name in COLUMNS:
                    history[name].append(row[name])
                saved.write(step, history, last=epoch + 1 == epochs)
                report.epoch(epoch, row)
                if on_epoch is not None:
                    on_epoch(epoch, row)
    ran = {"device": place.type, "precision": str(dtype).removeprefix("torch."), "step": step.variant}
    model = network.finished(transform or usual[1], history, {**saved.config, "ran": ran})
    model.images_per_second = loop.steps * loop.batch_size / max(median(history["seconds"]), 1e-9)
    return model


def _rate(schedule: Schedule, lr: float, epochs: int, epoch: float) -> float:
    return learning_rate(schedule, lr, epoch, epochs)


def _check_labels(labels: Any, n: int, rows: Array) -> Array:
    """Return the labels of ``rows`` as int64, every class from 0 to the largest among them."""
    found = np.asarray(labels)
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise ValueError(f"labels must be {n} whole numbers, one an image; got {found.dtype} of shape {found.shape}")
    targets = found[rows].astype(np.int64)
    if len(targets) and targets.min() < 0:
        raise ValueError(f"labels must not be negative, found {targets.min()}")
    empty = np.flatnonzero(np.bincount(targets) == 0)
    if len(empty):
        raise ValueError(
            f"no image to train on has label {empty[0]}, but labels go up to {targets.max()}: "
            "number the classes 0, 1, 2 … without gaps"
        )
    return targets


def _start(backbone: str | nn.Module, n_classes: int, head: HeadName, scale: float, size: int, seed: int) -> Network:
    """Return the network before training, on the CPU: fresh weights by the seed, or a copy of the given module."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))
        module = get_backbone(backbone) if isinstance(backbone, str) else copy.deepcopy(backbone).cpu()
        dimension = getattr(module, "dimension", None)
        if dimension is None:
            with torch.no_grad():
                dimension = module.eval()(torch.zeros(1, 3, size, size)).shape[1]
        return Network(module, Head(dimension, n_classes, head, scale=scale))
