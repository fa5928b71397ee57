"""What base training ends with: a backbone, its head, and the record of how it was trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.deprecation import renamed
from faverage.storage import read_tensors, write_tensors
from faverage.vision.backbones import backbone_config, get_backbone
from faverage.vision.engine.optimise import Training
from faverage.vision.engine.step import Trainable
from faverage.vision.transforms import Evaluate

__all__ = ["BaseModel", "Head"]

HeadName = Literal["linear", "cosine"]
LARGEST_SIDE = 4096  # of images


class Head(nn.Module):
    """Classifier on features: ``linear`` is W x + b; ``cosine`` is scale · cos(W, x), without bias.

    Args:
        dimension: of the features.
        n_classes: number of logits.
        kind: ``linear`` or ``cosine``.
        scale: of the cosine.

    >>> Head(8, 3, "cosine")(torch.rand(5, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(self, dimension: int, n_classes: int, kind: HeadName = "linear", *, scale: float = 16.0) -> None:
        super().__init__()
        if kind not in ("linear", "cosine"):
            raise ValueError(f"unknown head {kind!r}: use 'linear' or 'cosine'")
        self.kind, self.scale = kind, scale
        start = nn.Linear(dimension, n_classes, bias=kind == "linear")
        self.weight, self.bias = start.weight, start.bias

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(n, n_classes)`` of features ``(n, dimension)``."""
        if self.kind == "linear":
            return F.linear(features, self.weight, self.bias)
        return self.scale * F.linear(F.normalize(features), F.normalize(self.weight))


@dataclass
class BaseModel:
    """A trained backbone with its head, on the CPU and in evaluation mode.

    Attributes:
        backbone: module from normalised images to features ``(n, d)``.
        head: ``linear`` or ``cosine``.
        head_weight: ``(n_classes, d)``, for features that are not normalised.
        head_bias: ``(n_classes,)``; None for a cosine head.
        scale: of a cosine head; None for a linear one.
        transform: the evaluation transform, from stored images to what the backbone takes.
        history: by epoch, ``loss`` and ``accuracy`` on the training batches, ``lr`` at its start, and ``seconds``.
        images_per_second: of the median epoch.
        config: everything that the result depends on.

    >>> import tempfile
    >>> backbone, head = get_backbone("tiny", dimension=8), Head(8, n_classes=3)
    >>> weight, bias = head.weight.detach(), head.bias.detach()
    >>> model = BaseModel(backbone.eval(), "linear", weight, bias, None, Evaluate(8))  # train_base trains it
    >>> images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    >>> with torch.no_grad():
    ...     features = model.backbone(model.transform(images))
    >>> features.shape, model.logits(features).shape
    (torch.Size([2, 8]), torch.Size([2, 3]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = BaseModel.load(model.save(f"{folder}/model.safetensors"))
    >>> torch.equal(again.logits(features), model.logits(features))
    True
    """

    backbone: nn.Module
    head: HeadName
    head_weight: Tensor
    head_bias: Tensor | None
    scale: float | None
    transform: Evaluate
    history: dict[str, list[float]] = field(default_factory=dict)
    images_per_second: float = 0.0
    config: dict[str, Any] = field(default_factory=dict)

    def logits(self, features: Tensor) -> Tensor:
        """Return the head's logits ``(n, n_classes)`` of features ``(n, d)``."""
        if self.head == "linear":
            return F.linear(features, self.head_weight, self.head_bias)
        return (self.scale or 1.0) * F.linear(F.normalize(features), F.normalize(self.head_weight))

    def save(self, path: str | Path) -> Path:
        """Write the model as one safetensors file; the backbone must be one of ``backbone_names()``."""
        described = backbone_config(self.backbone)
        if described is None:
            kind = type(self.backbone).__name__
            raise ValueError(f"backbone {kind} has no config(): only backbones of get_backbone can be saved")
        tensors = {f"backbone.{name}": tensor for name, tensor in self.backbone.state_dict().items()}
        tensors["head.weight"] = self.head_weight
        if self.head_bias is not None:
            tensors["head.bias"] = self.head_bias
        about = {
            "backbone": described,
            "head": self.head,
            "scale": self.scale,
            "transform": self.transform.config(),
            "history": self.history,
            "images_per_second": self.images_per_second,
            "config": self.config,
        }
        return write_tensors(path, "BaseModel", about, tensors)

    @classmethod
    def load(cls, path: str | Path) -> BaseModel:
        """Read what ``save`` wrote."""
        about, tensors = read_tensors(path, "BaseModel")
        try:
            head = {name: tensors.pop(f"head.{name}", None) for name in ("weight", "bias")}
            weights = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}
            backbone = _filled(about["backbone"], weights)
            if head["weight"] is None:
                raise KeyError("head.weight")
            model = cls(
                backbone,
                about["head"],
                head["weight"].clone(),  # the file may be replaced meanwhile
                None if head["bias"] is None else head["bias"].clone(),
                about["scale"],
                Evaluate(**about["transform"]),
                dict(about["history"]),
                float(about["images_per_second"]),
                _of_today(about["config"]),
            )
            _check(model)
        except Exception as error:  # there is no end to what a file can hold
            raise ValueError(f"{path} does not describe a base model: {error}") from None
        return model


def _of_today(config: dict[str, Any]) -> dict[str, Any]:
    """Return the record of the training in today's words."""
    head = config.get("head")
    if not isinstance(head, dict) or "turned" not in head:
        return dict(config)
    renamed("turned", "rotations")
    return {**config, "head": {"rotations" if name == "turned" else name: value for name, value in head.items()}}


def _filled(described: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """Return a backbone with these weights; ValueError unless they are finite and have its shapes."""
    with torch.device("meta"):  # nothing is made that is larger than the file
        backbone = get_backbone(**described)
    wanted = backbone.state_dict()
    for name, tensor in wanted.items():
        found = weights.get(name)
        if found is None or (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"the weight {name} is missing, or has another shape or type than the backbone needs")
        if not bool(found.isfinite().all()) or (name.endswith("running_var") and bool((found < 0).any())):
            raise ValueError(f"the weight {name} has invalid numbers: some are not finite, or a variance is negative")
    backbone.to_empty(device="cpu").load_state_dict(weights)
    return backbone.eval()


def _check(model: BaseModel) -> None:
    """Raise ValueError unless head and transform can work behind and before the backbone."""
    weight, bias = model.head_weight, model.head_bias
    if weight.ndim != 2 or not len(weight) or weight.shape[1] != model.backbone.dimension:
        raise ValueError(f"the head has shape {tuple(weight.shape)}, expected (n, {model.backbone.dimension})")
    if model.head not in ("linear", "cosine") or (model.head == "linear") != (bias is not None):
        raise ValueError(f"the head is {model.head!r}, expected 'linear' with a bias or 'cosine' without")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"the bias of the head has shape {tuple(bias.shape)}, expected {tuple(weight.shape[:1])}")
    if not all(t.is_floating_point() and bool(t.isfinite().all()) for t in (weight, bias) if t is not None):
        raise ValueError("the head has numbers that are not finite")
    if model.head == "cosine" and not 0 < (model.scale or 0) < float("inf"):
        raise ValueError(f"the scale of the head must be a finite number > 0, got {model.scale!r}")
    transform = model.transform
    sizes = (transform.size, transform.size if transform.resize is None else transform.resize)
    if not all(type(side) is int and side <= LARGEST_SIDE for side in sizes):
        raise ValueError(f"images must have up to {LARGEST_SIDE} pixels a side, got {sizes}")
    if not all(bool(t.isfinite().all()) for t in (transform.mean, transform.std)):
        raise ValueError("the mean and std of the images must be finite")


class Network(Trainable):
    """Backbone and head in one, as they are trained: cross-entropy of the head's logits.

    Args:
        backbone: module from images to features.
        head: module from features to logits.
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(b, d)`` of images ``(b, 3, s, s)``."""
        features: Tensor = self.backbone(images)
        return features

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy and the number of right answers, ``()`` each, of features ``(b, d)``."""
        logits = self.head(embedded.float())
        return F.cross_entropy(logits, labels), (logits.detach().argmax(1) == labels).sum()

    def finished(self, transform: Evaluate, training: Training) -> BaseModel:
        """Return the trained parts as a ``BaseModel``."""
        linear = self.head.kind == "linear"
        return BaseModel(
            self.backbone,
            self.head.kind,
            self.head.weight.detach().clone(),
            self.head.bias.detach().clone() if linear else None,
            None if linear else self.head.scale,
            transform,
            training.history,
            training.images_per_second,
            training.config,
        )
