"""A learner on disk: one folder with ``learner.safetensors``, ``fuser.safetensors`` and ``backbone.safetensors``.

The first holds heads, memory and configuration; the last is there where the learner has a backbone of its own.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from faverage.fscil.checks import LARGEST, check_labels, check_whole
from faverage.fscil.heads import CosineHead, LinearHead, PrototypeHead
from faverage.fscil.images import ImageBackbone
from faverage.fscil.learner import FewShotLearner
from faverage.fscil.rehearsal import Memory
from faverage.fusion import Fuser, get_fuser, load_fuser
from faverage.storage import read_tensors, write_tensors

OPTIONS = (
    "fuser",
    "fuser_options",
    "rehearsal",
    "stand_ins",
    "spread",
    "balance",
    "calibration",
    "temperature",
    "padding",
    "threshold",
    "scope",
    "hold_out",
    "training",
    "seed",
)


def save_learner(learner: FewShotLearner, folder: Path) -> Path:
    """Write to a new folder beside ``folder``, then put it in its place: what is there is always whole."""
    if not learner.classes:
        raise ValueError("save needs a learner that knows its base classes: call fit_base(X, y) first")
    if isinstance(learner.fuser, Fuser):
        raise ValueError("a learner with a fuser object cannot be saved; give the fuser by name and fuser_options")
    try:
        json.dumps([learner.classes, learner.training])
    except TypeError:
        raise ValueError("class labels and training options must be text or numbers to be saved") from None
    first, *later = learner.heads
    assert not isinstance(first, PrototypeHead)
    eyes = learner.backbone
    model = eyes.model if isinstance(eyes, ImageBackbone) else None
    config = {
        "options": {name: getattr(learner, name) for name in OPTIONS},
        "backbone": "features" if eyes is None else "given" if model is None else "saved",
        "backbone_name": eyes.name if isinstance(eyes, ImageBackbone) else None,
        "classes": learner.classes,
        "sessions": [len(session) for session in learner.sessions],
        "scale": first.scale if isinstance(first, CosineHead) else None,
        "tau": learner.tau,
        "length": learner.memory.length,
        "heads": [[head.first, head.n_classes] for head in later if isinstance(head, PrototypeHead)],
        "fused": learner.fitted is not None,
    }
    memory = learner.memory
    arrays = {
        "weight": first.weight,
        **({"bias": first.bias} if isinstance(first, LinearHead) else {}),
        "prototypes": learner.prototypes,
        "base": memory.base,
        "base_labels": memory.base_labels,
        "residuals": memory.residuals,
        **{f"shots.{c}": shots for c, shots in memory.shots.items()},
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        write_tensors(fresh / "learner.safetensors", "learner", config, tensors)
        if learner.fitted is not None:
            learner.fitted.save(fresh / "fuser.safetensors")
        if model is not None:
            model.save(fresh / "backbone.safetensors")
        fresh.chmod(0o755)
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
            folder.rename(old / "learner")
            fresh.rename(folder)
            shutil.rmtree(old)
        else:
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def load_learner(folder: Path, backbone: Callable[[Any], Any] | None, device: str) -> FewShotLearner:
    """Read what ``save_learner`` wrote; ValueError where it is not whole, or its parts do not fit each other."""
    config, tensors = read_tensors(folder / "learner.safetensors", "learner")
    if config.get("backbone") == "given" and backbone is None:
        raise ValueError(
            f"the learner in {folder} was saved without its backbone, a module or a function: give it again with "
            "FewShotLearner.load(folder, backbone)"
        )
    try:
        arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}  # the file may be replaced meanwhile
        check_labels(config["classes"], config["sessions"])
        learner = FewShotLearner(config["backbone_name"] or backbone, device=device, **config["options"])
        if config["backbone"] == "saved" and backbone is None:
            from faverage.vision import BaseModel

            model = BaseModel.load(folder / "backbone.safetensors")
            if isinstance(learner.backbone, ImageBackbone):
                learner.backbone.model = model
            else:
                learner.backbone = ImageBackbone(model, {}, device)
        learner.classes, learner.tau = config["classes"], config["tau"]
        ends = np.cumsum(config["sessions"]).tolist()
        learner.sessions = [learner.classes[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        learner.prototypes = arrays["prototypes"]
        shots = {int(name.split(".")[1]): a for name, a in arrays.items() if name.startswith("shots.")}
        learner.memory = Memory(
            arrays["base"], arrays["base_labels"], arrays["residuals"], config["length"], dict(sorted(shots.items()))
        )
        weight, scale = arrays["weight"], config.get("scale")
        learner.heads = [LinearHead(weight, arrays["bias"]) if scale is None else CosineHead(weight, scale)]
        heads = [[a if learner.scope == "session" else 0, b] for a, b in pairwise(ends)]
        if config["heads"] != heads:
            raise ValueError(f"the heads {str(config['heads'])[:60]} do not belong to its sessions")
        learner.heads += [PrototypeHead(learner.prototypes[a:b], learner.tau, a) for a, b in heads]
        if config["fused"]:
            learner.fitted = read_fuser(folder / "fuser.safetensors", len(learner.heads), len(learner.classes))
        check_whole(learner)
    except OSError:
        raise
    except Exception as error:  # there is no end to what a file can hold
        raise ValueError(f"{folder} does not hold a learner of this version: {error}") from None
    return learner


def read_fuser(path: Path, n_models: int, n_classes: int) -> Fuser:
    """Read a fuser; ValueError unless it is one of so many models and classes, with finite weights."""
    try:
        config, tensors = read_tensors(path, "fuser")
        size = [n_models, n_classes]
        if config["size"] not in (size, [0, 0]) or config["fitted"] not in (size, None):
            raise ValueError(f"it fuses {config['size']} models and classes, expected {size}")
        learned = {name: tensor for name, tensor in tensors.items() if name.startswith("state.")}
        if not all(bool((tensor.double().abs() <= LARGEST).all()) for tensor in learned.values()):
            raise ValueError("its weights are not finite, or far too large")
        fuser = get_fuser(config["name"], **config["options"])
        if (getattr(fuser, "width", None) or 0) ** 2 > sum(tensor.numel() for tensor in tensors.values()):
            raise ValueError("its network is larger than the file")
        return load_fuser(path)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} does not describe a fuser of this version: {error}") from None
