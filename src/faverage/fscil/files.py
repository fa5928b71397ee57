"""A learner on disk: one folder with ``learner.safetensors``, ``fuser.safetensors`` and ``backbone.safetensors``.

The first holds heads, memory and configuration; the last is there where the learner has a backbone of its own.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from faverage.fscil.fusers import ALONE, new_fuser
from faverage.fscil.heads import CosineHead, LinearHead, PrototypeHead
from faverage.fscil.images import ImageBackbone
from faverage.fscil.learner import FewShotLearner, check_steepness
from faverage.fscil.rehearsal import Memory
from faverage.fusion import Fuser, get_fuser, load_fuser
from faverage.storage import read_tensors, write_tensors

LARGEST = 1e12  # of any number in a learner; its square, summed over features and times the steepest τ, is still finite
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
        _check_labels(config["classes"], config["sessions"])
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


def check_array(name: str, array: NDArray[Any], *shape: int | None) -> None:
    """Raise ValueError unless an array of floating-point numbers has this shape (None: at least one) and is finite."""
    sizes = zip(array.shape, shape, strict=False)
    fits = array.ndim == len(shape) and all(n > 0 if wanted is None else n == wanted for n, wanted in sizes)
    if not fits or array.dtype.kind != "f" or array.dtype.itemsize < 4:
        wanted = ", ".join("n" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be numbers of shape ({wanted}), got {array.dtype} of shape {array.shape}")
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{name} has numbers that are not finite, or far too large")


def _check_labels(classes: Any, sessions: Any) -> None:
    """Raise ValueError unless these are different labels, and the numbers of them that each session brought."""
    if not isinstance(classes, list) or not all(isinstance(label, str | int | float) for label in classes):
        raise ValueError("the classes must be a list of text or numbers")
    if len(set(classes)) < len(classes) or any(isinstance(x, float) and not math.isfinite(x) for x in classes):
        raise ValueError("the classes must differ from each other")
    counts = sessions if isinstance(sessions, list) else []
    if not all(type(n) is int and n > 0 for n in counts) or sum(counts) != len(classes) or counts[:1] in ([], [1]):
        raise ValueError(f"the sessions {str(sessions)[:60]} do not bring the {len(classes)} classes")


def check_whole(learner: FewShotLearner) -> None:
    """Raise ValueError unless the parts of a learner that was read from files fit each other, and it gives answers."""
    memory, first, n, base = learner.memory, learner.heads[0], len(learner.classes), len(learner.sessions[0])
    check_array("the prototypes", learner.prototypes, n, None)
    d = learner.prototypes.shape[1]
    check_array("the weights of the base head", first.weight, base, d)  # type: ignore[union-attr]
    if hasattr(first, "bias"):
        check_array("the bias of the base head", first.bias, base)
    else:
        check_steepness("the scale of the base head", first.scale)  # type: ignore[union-attr]
    check_steepness("the temperature", learner.tau)
    check_array("the memory", memory.base, None, d)
    check_array("the residuals", memory.residuals, len(memory.base), d)
    labels = memory.base_labels
    if labels.shape != memory.base.shape[:1] or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= base:
        raise ValueError(f"the labels of the memory must be {len(memory.base)} numbers in 0 … {base - 1}")
    if not 0 <= memory.length <= LARGEST:
        raise ValueError(f"the length of features must be a finite number, got {memory.length!r}")
    if list(memory.shots) != list(range(base, n)):
        raise ValueError(
            f"there must be shots of the classes {base} … {n - 1}, got those of {str([*memory.shots])[:60]}"
        )
    for c, shots in memory.shots.items():
        check_array(f"the shots of class {c}", shots, None, d)
    if len(learner.heads) > 1 and learner.fitted is None and learner.fuser not in ALONE:
        raise ValueError("the fuser of its sessions is missing")
    if learner.fuser not in ALONE:
        new_fuser(learner.fuser, None, learner.fuser_options, padding=learner.padding, threshold=learner.threshold)
    if not all(type(n) is int and n >= 0 for n in (learner.stand_ins, learner.hold_out, learner.seed)):
        raise ValueError("stand_ins, hold_out and seed must be whole numbers")
    _check_answers(learner)


def _check_answers(learner: FewShotLearner) -> None:
    features = learner.memory.examples()[0]
    rows = np.linspace(0, len(features) - 1, min(len(features), 32)).astype(np.int64)
    try:
        said = learner.fuse(learner.scores_of(features[rows]))
    except Exception as error:  # every fuser has its own way to fail with weights that are not its own
        raise ValueError(f"the fuser does not fit the heads: {error}") from None
    if said.shape != (len(rows), len(learner.classes)) or not np.isfinite(said).all():
        raise ValueError("its answers are not finite numbers")
