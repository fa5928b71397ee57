"""Backbones by name, several together, and modules of one's own, which a model's folder describes but does not hold."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from faverage.app.names import ModelError
from faverage.fscil import FewShotLearner
from faverage.fscil.images import ImageBackbone
from faverage.vision import BaseModel, Evaluate, backbone_names, pretrained, pretrained_names, transforms_for
from faverage.vision.backbones import backbone_config
from faverage.vision.engine.device import fingerprint_weights
from faverage.vision.together import together

PHOTOS = "efficientnet_lite0"  # what looks at photos unless something else is asked for
SIDE = 256  # of the squares for a module of one's own


def ready_backbone(name: str | None = None) -> BaseModel:
    """Return a network that sees without being trained.

    Args:
        name: one of ``pretrained_names()``, several of them with commas between, or ``package.module:build``, see
            ``import_backbone``; by default ``efficientnet_lite0``.

    Raises:
        ModelError: there is no such network.
        ImportError: its weights are not installed; the message says how to.
    """
    name = PHOTOS if name is None else name
    if ":" in name:
        found = import_backbone(name)
        return found if isinstance(found, BaseModel) else as_model(found, transforms_for(SIDE)[1])
    names = [part.strip() for part in name.split(",")]
    for part in names:
        if part not in pretrained_names():
            trained = "which has to be trained: --from-scratch" if part in backbone_names() else "which is not known"
            ready = ", ".join(pretrained_names())
            raise ModelError(f"there are no ready weights for the backbone '{part}', {trained}; choose from {ready}")
    if len(set(names)) < len(names):
        raise ModelError(f"the backbone '{name}' names a network twice: name each once")
    return pretrained(names[0]) if len(names) == 1 else together(names)


def import_backbone(name: str) -> nn.Module | BaseModel:
    """Return what ``package.module:build`` names: a module or a ``BaseModel``, or a function that makes one.

    The present folder is searched, too, as Python does for a script that lies there.
    """
    place, _, attribute = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(place)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(
            f"the backbone '{name}' cannot be imported ({error}): name it as package.module:build, where build returns "
            "a torch module"
        ) from None
    finally:
        if added:
            sys.path.remove(here)
    if not isinstance(found, nn.Module | BaseModel) and callable(found):
        found = found()
    if not isinstance(found, nn.Module | BaseModel):
        raise ModelError(f"the backbone '{name}' is {type(found).__name__}, expected a torch module")
    return found


def given_backbone(name: str | None, folder: Path) -> nn.Module | BaseModel | None:
    """Return what a person names as the network of the model in a folder, which must be ``package.module:build``."""
    if name is not None and ":" not in name:
        raise ModelError(f"--backbone must be package.module:build, got '{name}'; {folder} holds any other network")
    return None if name is None else import_backbone(name)


def is_own(eyes: Any) -> bool:
    """Return whether a backbone is a module of one's own: no name builds it again."""
    if not isinstance(eyes, ImageBackbone):
        return False
    return eyes.module is not None or (eyes.model is not None and backbone_config(eyes.model.backbone) is None)


def own_module(eyes: Any) -> nn.Module:
    """Return the module of a backbone for which ``is_own``."""
    found: nn.Module = eyes.module if eyes.model is None else eyes.model.backbone
    return found


def module_of(backbone: nn.Module | BaseModel | None) -> nn.Module | None:
    """Return the module of what a person gives as a backbone; ModelError where it is none."""
    if backbone is not None and not isinstance(backbone, nn.Module | BaseModel):
        raise ModelError(f"backbone must be a torch module or a BaseModel, got {type(backbone).__name__}")
    return backbone.backbone if isinstance(backbone, BaseModel) else backbone


def as_model(module: nn.Module | None, transform: Evaluate) -> BaseModel:
    """Return a module of one's own as a ``BaseModel``, whose head nobody asks."""
    assert module is not None
    return BaseModel(copy.deepcopy(module).eval(), "linear", torch.zeros(1, 1), torch.zeros(1), None, transform)


def without_model(learner: FewShotLearner) -> FewShotLearner:
    """Return a learner that is saved without its backbone; the given one is not changed."""
    new = copy.copy(learner)
    eyes = learner.backbone
    assert isinstance(eyes, ImageBackbone)
    new.backbone = ImageBackbone(own_module(eyes), {}, eyes.device, eyes.views)
    return new


def described(eyes: Any, side: int) -> dict[str, Any]:
    """Return what the folder of a model says of a module of one's own, by which it is known again."""
    module = own_module(eyes)
    transform = transforms_for(side)[1] if eyes.model is None else eyes.model.transform
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    return {"module": kind, "weights": fingerprint_weights(module), "transform": transform.config()}


def check_given(given: dict[str, Any] | None, backbone: nn.Module | None, folder: Path) -> None:
    """Raise ModelError unless ``backbone`` is given where a model needs it, and is the one that it was made with.

    ``given`` is what ``described`` returned; None where the folder holds its backbone.
    """
    if given is None:
        if backbone is not None:
            raise ModelError(f"{folder} holds its own backbone: leave out --backbone, in Python backbone=")
        return
    kind = str(given.get("module"))[:200]
    if backbone is None:
        raise ModelError(
            f"the backbone of {folder} is a module of one's own, {kind}: give it with --backbone package.module:build, "
            "in Python with Model.load(folder, backbone=module)"
        )
    if fingerprint_weights(backbone) != given.get("weights"):
        found = f"{type(backbone).__module__}.{type(backbone).__qualname__}"
        raise ModelError(
            f"the backbone that is given ({found}) is not the one of {folder} ({kind}), or has other weights: give it "
            "as it was when the model was made"
        )
