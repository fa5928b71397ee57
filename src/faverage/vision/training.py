"""Base training: a backbone and its head on the images of the base session, one loop for CPU and GPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from faverage.deprecation import renamed
from faverage.vision.backbones import backbone_config, get_backbone
from faverage.vision.engine.device import Array, check_images, check_indices
from faverage.vision.engine.optimise import check_labels, train_network
from faverage.vision.model import BaseModel, Head, HeadName, Network
from faverage.vision.objectives import ROTATIONS, Lesson
from faverage.vision.shards import Shards
from faverage.vision.transforms import Augment, Evaluate, transforms_for

__all__ = ["hold_out", "train_base"]


def hold_out(
    labels: Any,
    *,
    per_class: int = 20,
    at_most: float = 1 / 6,
    small: Literal["none", "drawn", "last"] = "none",
    seed: int = 0,
) -> Array:
    """Choose the rehearsal memory: rows to keep out of base training.

    Args:
        labels: ``(n,)``, class of each image.
        per_class: images to keep of each class, at most.
        at_most: share of a class to keep, at most.
        small: what to keep of a class of which that share is less than one image, as of 5: ``none``, one row that is
            ``drawn``, or the ``last`` one.
        seed: of the choice.

    Returns:
        The chosen rows ``(m,)``, in growing order.

    Raises:
        ValueError: one row of a class is to be kept, and it has no other.

    >>> len(hold_out([0] * 500 + [1] * 30))
    25
    >>> hold_out([0, 0, 1, 1], small="last").tolist()
    [1, 3]
    """
    if per_class < 0 or not 0 <= at_most < 1:
        raise ValueError(f"expected per_class from 0 and at_most in [0, 1), got {per_class} and {at_most}")
    labels = np.asarray(labels)
    generator = np.random.default_rng(seed)
    chosen = [np.zeros(0, dtype=np.int64)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        drawn = generator.permutation(rows)
        count = min(per_class, math.floor(len(rows) * at_most + 1e-9))
        if count == 0 and small != "none":
            if len(rows) < 2:
                raise ValueError(f"base class number {label} has one example; at least two are needed")
            # learners draw the one row, runs take the last: checkpoints, features and results of both depend on it
            drawn, count = drawn if small == "drawn" else rows[-1:], 1
        chosen.append(drawn[:count])
    return np.sort(np.concatenate(chosen))


def train_base(
    images: Array | Shards,
    labels: Any,
    *,
    backbone: str | nn.Module,
    indices: Any = None,
    head: HeadName = "linear",
    scale: float = 16.0,
    rotations: bool = False,
    mix: float = 0.0,
    smoothing: float = 0.0,
    contrast: float = 0.0,
    teachers: Sequence[nn.Module] = (),
    distil: float = 0.9,
    augment: Augment | None = None,
    transform: Evaluate | None = None,
    seed: int = 0,
    **options: Any,
) -> BaseModel:
    """Train a backbone and a head with SGD (Nesterov) on labelled images.

    Args:
        images: uint8 ``(n, S, S, 3)``, may be a memory map. On a GPU they are uploaded whole, if they fit.
        labels: ``(n,)``; among the images to train on, every class from 0 to the largest must occur.
        backbone: a name for ``get_backbone``, or a module to start from; it is copied, not changed.
        indices: ``(m,)``, rows to train on; by default all.
        head: ``linear`` (on unnormalised features) or ``cosine`` (without bias, ``scale`` times the cosine).
        scale: of the cosine head.
        rotations: learn classes and rotations together, see ``faverage.vision.objectives``: every image counts four
            times, and the head has four rows a class, those of its rotations.
        mix: share of images that carry a part of another one, with both labels (CutMix).
        smoothing: share of each target that is spread evenly over all classes.
        contrast: weight of a supervised contrastive term.
        teachers: backbones that are trained already; the network also learns to tell what they see, see
            ``faverage.vision.objectives``.
        distil: how much that counts, beside the labels, in (0, 1).
        augment: the training transform; by default ``transforms_for`` the side of the images.
        transform: the evaluation transform that the model keeps; by default likewise.
        seed: of the first weights, the order of images and the augmentation.
        **options: all that ``train_network`` takes: epochs, batch_size, lr, schedule, device, checkpoint, progress …

    Raises:
        FloatingPointError: if the loss is not a number after an epoch; the last checkpoint stays as it is.
        ValueError: if the input does not fit, or the checkpoint belongs to another training.

    >>> from faverage.vision import extract_features
    >>> labels = np.arange(24) % 2
    >>> images = np.full((24, 8, 8, 3), 40, dtype=np.uint8)
    >>> images[labels == 1] = 200  # class 0 is dark, class 1 is bright
    >>> model = train_base(images, labels, backbone="tiny", epochs=3, batch_size=8, device="cpu")
    >>> features = extract_features(model.backbone, images, transform=model.transform, device="cpu")
    >>> said = model.logits(torch.from_numpy(features)).argmax(1)
    >>> features.shape, bool((said.numpy() == labels).all())
    ((24, 128), True)
    """
    if "turned" in options:
        renamed("turned", "rotations")
        rotations = options.pop("turned")
    check_images(images)
    rows = check_indices(indices, len(images))
    targets = _check_classes(check_labels(labels, len(images))[rows])
    usual = transforms_for(images.shape[1])
    augment = augment or usual[0]
    n_classes = int(targets.max()) + 1
    network = _start(backbone, n_classes * (ROTATIONS if rotations else 1), head, scale, augment.size, seed)
    how = {"mix": mix, "smoothing": smoothing, "contrast": contrast} | ({"distil": distil} if teachers else {})
    lesson = _lesson(network, seed, rotations=rotations, teachers=teachers, **how)
    training = train_network(
        *(lesson, images, labels),
        indices=rows,
        augment=augment,
        seed=seed,
        describe={
            "backbone": backbone_config(network.backbone) or {"name": type(network.backbone).__name__},
            "head": {"kind": head, "scale": scale, "n_classes": n_classes} | ({"rotations": True} if rotations else {}),
            **({} if lesson is network else {"lesson": how}),
        },
        **options,
    )
    return network.finished(transform or usual[1], training)


def _lesson(
    network: Network,
    seed: int,
    *,
    rotations: bool,
    mix: float,
    smoothing: float,
    contrast: float,
    teachers: Sequence[nn.Module],
    distil: float = 0.0,
) -> Network | Lesson:
    """Return what is trained: the network as it is, or with how it is taught."""
    if not (0 <= mix <= 1 and 0 <= smoothing < 1 and contrast >= 0 and 0 <= distil < 1):
        raise ValueError(
            "expected mix in [0, 1], smoothing and distil in [0, 1) and contrast from 0, "
            f"got {mix}, {smoothing}, {distil} and {contrast}"
        )
    if not (rotations or mix or smoothing or contrast or distil):
        return network
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))
        return Lesson(
            network,
            rotations=rotations,
            mix=mix,
            smoothing=smoothing,
            contrast=contrast,
            teachers=[copy.deepcopy(teacher).cpu() for teacher in teachers],
            distil=distil,
        )


def _check_classes(targets: Array) -> Array:
    """Raise ValueError unless every class from 0 to the largest occurs."""
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
