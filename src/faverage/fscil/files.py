"""A learner on disk: one folder with ``learner.safetensors``, ``fuser.safetensors`` and ``backbone.safetensors``.

The first holds what the learner knows and its options; the second is there where there is something to fuse, the last
where the learner has a backbone of its own. ``pack`` and ``unpack`` are what it knows as JSON and arrays, for other
files that hold the same.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from faverage.fscil.fusers import ALONE, new_fuser
from faverage.fscil.heads import Array, CosineHead, LinearHead
from faverage.fscil.images import ImageBackbone
from faverage.fscil.knowledge import BaseHead, Knowledge
from faverage.fscil.learner import FewShotLearner, _State, check_steepness
from faverage.fscil.whitening import Whitening
from faverage.fusion import Fuser, get_fuser, load_fuser
from faverage.storage import parse_json, read_tensors, write_tensors

FORMAT = 3  # of what is known, 2 where nothing is whitened; files without a number are of the version before
LARGEST = 1e12  # of any number in a learner; its square, summed over features and times the steepest τ, is still finite
OPTIONS = (
    *("fuser", "fuser_options", "views", "members", "rehearsal", "stand_ins", "spread", "balance", "balance_of"),
    *("calibration", "temperature", "ridge", "whiten", "padding", "threshold", "scope", "hold_out", "training", "seed"),
)


def save_learner(learner: FewShotLearner, folder: Path) -> Path:
    """Write to a new folder beside ``folder``, then put it in its place: what is there is always whole."""
    if isinstance(learner.fuser, Fuser):
        raise ValueError("a learner with a fuser object cannot be saved; give the fuser by name and fuser_options")
    try:
        json.dumps([learner.classes, learner.training])
    except TypeError:
        raise ValueError("class labels and training options must be text or numbers to be saved") from None
    eyes = learner.backbone
    model = eyes.model if isinstance(eyes, ImageBackbone) else None
    if not learner.classes and model is None and getattr(eyes, "module", None) is None:
        raise ValueError("save needs a learner that knows a class: call learn_session(X, y), or fit_base(X, y) first")
    about, arrays = pack(learner.known if learner.classes else None)
    config = {
        "options": {name: getattr(learner, "members_kind" if name == "members" else name) for name in OPTIONS},
        "backbone": "features" if eyes is None else "given" if model is None else "saved",
        "backbone_name": eyes.name if isinstance(eyes, ImageBackbone) else None,
        "fused": learner.fitted is not None,
        **about,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        write_tensors(fresh / "learner.safetensors", "learner", config, as_tensors(arrays))
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
    parts = read_parts(folder, backbone, device)
    try:
        if parts.known is None:
            return parts.learner
        fuser = read_fuser(folder / "fuser.safetensors", len(parts.known.classes)) if parts.fused else None
        learner = with_knowledge(parts.learner, parts.known, fuser)
        check_answers(learner)
    except OSError:
        raise
    except Exception as error:  # there is no end to what a file can hold
        raise ValueError(f"{folder} does not hold a learner of this version: {error}") from None
    if parts.old_version is not None:
        warn_of_old_version(folder, parts.old_version)
    return learner


@dataclass(frozen=True)
class Parts:
    """What is in the folder of a learner.

    Attributes:
        learner: its options and its backbone; it knows nothing yet.
        known: what it knows; None where that is nothing.
        fused: whether there is a fuser.
        old_version: the version that wrote the folder in its own way; None for this one's.
    """

    learner: FewShotLearner
    known: Knowledge | None
    fused: bool
    old_version: str | None


def read_parts(folder: Path, backbone: Callable[[Any], Any] | None, device: str) -> Parts:
    """Read all of a learner but its fuser, arrays of any shape; nothing is fitted; errors are those of loading."""
    file = folder / "learner.safetensors"
    config, tensors = read_tensors(file, "learner")
    if config.get("backbone") == "given" and backbone is None:
        raise ValueError(
            f"the learner in {folder} was saved without its backbone, a module or a function: give it again with "
            "FewShotLearner.load(folder, backbone)"
        )
    try:
        arrays = as_arrays(tensors)
        old_version, known = None, None
        if "format" not in config:
            old_version = str(parse_json(_header(file)).get("version"))[:20]
            config, known = known_of_old_version(config, arrays)
        else:
            known = unpack(config, arrays)
        learner = FewShotLearner(config["backbone_name"] or backbone, device=device, **config["options"])
        if config["backbone"] == "saved" and backbone is None:
            from faverage.vision import BaseModel

            model = BaseModel.load(folder / "backbone.safetensors")
            if isinstance(learner.backbone, ImageBackbone):
                learner.backbone.model = model
            else:
                learner.backbone = ImageBackbone(model, {}, device, learner.views)
        _check_options(learner)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{folder} does not hold a learner of this version: {error}") from None
    return Parts(learner, known, bool(config.get("fused")) and old_version is None, old_version)


def with_knowledge(learner: FewShotLearner, known: Knowledge, fuser: Fuser | None = None) -> FewShotLearner:
    """Return a learner of the same options and backbone that knows this instead; ``learner`` is not changed.

    Args:
        learner: where its fuser settled something, that is kept.
        known: classes and examples.
        fuser: of exactly these; by default it is fitted.
    """
    new = copy.copy(learner)
    new._state, new._past = _State.of(learner, known, fuser), []
    return new


# What is known --------------------------------------------------------------------------------------------------------


def pack(known: Knowledge | None) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what is known as JSON data and arrays of any shape; ``unpack`` is its inverse."""
    if known is None:
        return {"format": 2, "classes": []}, {}
    heads = []
    for one in known.heads:
        cosine = one.head if isinstance(one.head, CosineHead) else None
        whitened = {"whitened": True} if cosine is not None and cosine.whitened else {}
        heads.append({"view": one.view, "scale": None if cosine is None else cosine.scale, **whitened})
    config = {
        "format": FORMAT if known.whitening else 2,
        "classes": list(known.classes),
        "session": known.session.tolist(),
        "views": list(known.views),
        "heads": heads,
    }
    arrays = {"labels": known.labels, "shot": known.shot, "counts": known.counts}
    for i, view in enumerate(known.views):
        arrays |= {f"features.{i}": known.views[view], f"anchors.{i}": known.anchors[view].astype(np.float32)}
        if view in known.whitening:
            arrays |= {f"whitening.{i}.{name}": array for name, array in vars(known.whitening[view]).items()}
    for i, one in enumerate(known.heads):
        arrays |= {f"heads.{i}.weight": one.head.weight, f"heads.{i}.classes": one.classes.astype(np.int64)}
        if isinstance(one.head, LinearHead):
            arrays[f"heads.{i}.bias"] = one.head.bias
    return config, arrays


def unpack(config: dict[str, Any], arrays: dict[str, Array]) -> Knowledge | None:
    """Return the knowledge that ``pack`` described, in arrays of any shape; None where it is of no class.

    Every part is checked: ValueError says what is wrong, LookupError and TypeError that something is missing.
    """
    if type(config["format"]) is not int or config["format"] not in (2, FORMAT):
        raise ValueError(
            f"it has format {str(config['format'])[:20]}, this version reads formats up to {FORMAT}: upgrade faverage"
        )
    classes, session, views = config["classes"], config.get("session"), config.get("views")
    check_labels(classes)
    if not classes:
        return None
    _check_sessions(session, len(classes))
    if not isinstance(views, list) or not views or not all(isinstance(view, str) for view in views):
        raise ValueError("the views must be a list of names")
    if len(set(views)) < len(views):
        raise ValueError("the views must differ from each other")
    n, features, anchors, whitening = len(arrays["labels"]), {}, {}, {}
    for i, view in enumerate(views):
        features[view], anchors[view] = arrays[f"features.{i}"], arrays[f"anchors.{i}"]
        width = features[view].shape[-1] if features[view].ndim == 2 and features[view].shape[-1] else None
        check_array(f"the features of the view '{view}'", features[view], n, width)
        check_array(f"the anchors of the view '{view}'", anchors[view], len(classes), width)
        if config["format"] == FORMAT:
            centre, matrix = arrays[f"whitening.{i}.centre"], arrays[f"whitening.{i}.matrix"]
            check_array(f"the centre of the whitening of the view '{view}'", centre, width)
            check_array(f"the matrix of the whitening of the view '{view}'", matrix, width, width)
            whitening[view] = Whitening(centre, matrix)
    _check_numbers("the labels", arrays["labels"], n, 0, len(classes) - 1)
    _check_numbers("the numbers of examples behind the anchors", arrays["counts"], len(classes), 0, 1e12)
    shot = arrays["shot"]
    if shot.shape != (n,) or shot.dtype != np.bool_:
        raise ValueError(f"whether an example is a shot must be {n} truth values, got {shot.dtype} {shot.shape}")
    heads = []
    for i, about in enumerate(config["heads"]):
        weight, rows, scale = arrays[f"heads.{i}.weight"], arrays[f"heads.{i}.classes"], about["scale"]
        if about["view"] not in views:
            raise ValueError(f"the base head {i} is of the unknown view {str(about['view'])[:40]!r}")
        _check_numbers(f"the classes of the base head {i}", rows, len(rows), 0, len(classes) - 1)
        if len(set(rows.tolist())) < len(rows) or len(rows) < 2:
            raise ValueError(f"the base head {i} must know at least two classes, each once")
        check_array(f"the weights of the base head {i}", weight, len(rows), features[about["view"]].shape[1])
        if scale is None:
            check_array(f"the bias of the base head {i}", arrays[f"heads.{i}.bias"], len(rows))
            head: LinearHead | CosineHead = LinearHead(weight, arrays[f"heads.{i}.bias"])
        else:
            check_steepness(f"the scale of the base head {i}", scale)
            head = CosineHead(weight, float(scale), about.get("whitened") is True)
        heads.append(BaseHead(about["view"], head, rows))
    return Knowledge(
        tuple(classes),
        np.array(session, dtype=np.int64),
        features,
        arrays["labels"],
        shot,
        anchors,
        arrays["counts"],
        tuple(heads),
        whitening,
    )


def as_tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    """Return arrays of any shapes as tensors, to be written."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def as_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, Array]:
    """Return tensors of any shapes that were read as arrays of their own: the file may be replaced meanwhile."""
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


# The version before; delete these three with version 0.4 --------------------------------------------------------------


def known_of_old_version(config: dict[str, Any], arrays: dict[str, Array]) -> tuple[dict[str, Any], Knowledge]:
    """Return the configuration and the knowledge of a learner of version 0.1, which had one head a session.

    Args:
        config: its JSON data: options, classes, how many of them each session brought, the scale of a cosine head.
        arrays: the base head ``(C, d)``, all prototypes ``(N, d)``, what was held out ``(n, d)`` with labels ``(n,)``,
            and the shots ``(m, d)`` of each later class.
    """
    classes, sessions = config["classes"], config["sessions"]
    check_labels(classes)
    counts = sessions if isinstance(sessions, list) else []
    if not all(type(n) is int and n > 0 for n in counts) or sum(counts) != len(classes) or counts[:1] in ([], [1]):
        raise ValueError(f"the sessions {str(sessions)[:60]} do not bring the {len(classes)} classes")
    base, weight, scale = counts[0], arrays["weight"], config.get("scale")
    check_array("the prototypes", arrays["prototypes"], len(classes), weight.shape[-1])
    check_array("the weights of the base head", weight, base, arrays["prototypes"].shape[1])
    width = weight.shape[1]
    check_array("the memory", arrays["base"], None, width)
    _check_numbers("the labels of the memory", arrays["base_labels"], len(arrays["base"]), 0, base - 1)
    if scale is None:
        check_array("the bias of the base head", arrays["bias"], base)
    else:
        check_steepness("the scale of the base head", scale)
    head = LinearHead(weight, arrays["bias"]) if scale is None else CosineHead(weight, float(scale))
    means = arrays["prototypes"][:base].astype(np.float32)
    held_out, labels = arrays["base"].astype(np.float32), arrays["base_labels"].astype(np.int64)
    known = Knowledge.of_base(classes[:base], {"plain": held_out}, labels, {"plain": means}, {"plain": head})
    ends = np.cumsum(counts).tolist()
    sessions = [{classes[c]: arrays[f"shots.{c}"] for c in range(a, b)} for a, b in pairwise(ends)]
    known = add_sessions_of_old_version(known, sessions)
    options = dict(config["options"])
    if options.get("fuser") in ("afa", "afa-paper"):  # 'afa' was another fuser then, with other options
        options["fuser_options"] = {} if options["fuser"] == "afa" else options.get("fuser_options")
    return {**config, "options": options}, known


def add_sessions_of_old_version(known: Knowledge, sessions: list[dict[Any, Array]]) -> Knowledge:
    """Return what is known with the sessions of version 0.1: their classes with the features of their shots ``(m, d)``.

    That version let the same picture have two labels, so that is not looked at here.
    """
    shots = {label: x for session in sessions for label, x in session.items()}
    for label, x in shots.items():
        check_array(f"the shots of class {label!r}", x, None, known.widths["plain"])
        if label in known.classes:
            raise ValueError(f"class {label!r} is a base class, and was taught")
    numbers = np.repeat(len(known.classes) + np.arange(len(shots)), [len(x) for x in shots.values()])
    brought = np.repeat(1 + np.arange(len(sessions)), [len(session) for session in sessions])
    rows = [known.views["plain"][:0], *(x.astype(np.float32) for x in shots.values())]
    return known.with_shots(list(shots), brought, {"plain": np.concatenate(rows)}, numbers)


def warn_of_old_version(folder: Path, version: str) -> None:
    """Say that a folder was read that another version wrote in its own way."""
    warnings.warn(
        f"{folder} was written by version {version}: its fuser was fitted again; save the learner, or change the "
        "model, and it is written as this version does (version 0.4 will not read the old one)",
        stacklevel=4,
    )


# ----------------------------------------------------------------------------------------------------------------------


def read_fuser(path: Path, n_classes: int) -> Fuser:
    """Read a fuser; ValueError unless it is one of so many classes, with finite weights."""
    try:
        config, tensors = read_tensors(path, "fuser")
        size, fitted = config["size"], config["fitted"]
        if size != [0, 0] and (size[1] != n_classes or fitted not in (size, None)):
            raise ValueError(f"it fuses {str(size)[:40]} models and classes, expected {n_classes} classes")
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


def check_array(name: str, array: Array, *shape: int | None) -> None:
    """Raise ValueError unless an array of any shape has this one (None: at least 1), and finite floats."""
    sizes = zip(array.shape, shape, strict=False)
    fits = array.ndim == len(shape) and all(n > 0 if wanted is None else n == wanted for n, wanted in sizes)
    if not fits or array.dtype.kind != "f" or array.dtype.itemsize < 4:
        wanted = ", ".join("n" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be numbers of shape ({wanted}), got {array.dtype} of shape {array.shape}")
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{name} has numbers that are not finite, or far too large")


def _check_numbers(name: str, array: Array, n: int, least: float, most: float) -> None:
    """Raise ValueError unless these are n whole numbers in a range."""
    fine = array.shape == (n,) and array.dtype == np.int64
    if not fine or (n and not (array.min() >= least and array.max() <= most)):
        raise ValueError(f"{name} must be {n} whole numbers in {least:g} … {most:g}, got {array.dtype} {array.shape}")


def check_labels(classes: Any) -> None:
    """Raise ValueError unless these are different labels."""
    if not isinstance(classes, list) or not all(isinstance(label, str | int | float) for label in classes):
        raise ValueError("the classes must be a list of text or numbers")
    if len(set(classes)) < len(classes) or any(isinstance(x, float) and not math.isfinite(x) for x in classes):
        raise ValueError("the classes must differ from each other")


def _check_sessions(session: Any, n_classes: int) -> None:
    """Raise ValueError unless these are the sessions of the classes in order of arrival, none of them empty."""
    whole = isinstance(session, list) and len(session) == n_classes and all(type(k) is int for k in session)
    steps = np.diff([session[0], *session]) if whole else np.zeros(0)
    if not whole or session[0] not in (0, 1) or not set(steps.tolist()) <= {0, 1}:
        raise ValueError(f"the sessions {str(session)[:60]} do not bring the {n_classes} classes")


def _check_options(learner: FewShotLearner) -> None:
    if not all(type(n) is int and n >= 0 for n in (learner.stand_ins, learner.hold_out, learner.seed)):
        raise ValueError("stand_ins, hold_out and seed must be whole numbers")
    if learner.fuser not in ALONE:
        new_fuser(learner.fuser, None, learner.fuser_options, padding=learner.padding, threshold=learner.threshold)


def check_answers(learner: FewShotLearner) -> None:
    """Raise ValueError unless a learner that was read from files gives answers."""
    known = learner.known
    n = len(known.labels)
    rows = np.linspace(0, n - 1, min(n, 32)).astype(np.int64)
    views = {view: np.concatenate([x[rows], np.ones((1, x.shape[1]), x.dtype)]) for view, x in known.views.items()}
    try:
        said = learner.fuse(learner.scores_of(views))
    except Exception as error:  # every fuser has its own way to fail with weights that are not its own
        raise ValueError(f"the fuser does not fit the members: {error}") from None
    if said.shape != (len(rows) + 1, len(known.classes)) or not np.isfinite(said).all():
        raise ValueError("its answers are not finite numbers")


def _header(path: Path) -> str:
    with safe_open(str(path), framework="pt") as file:
        return str((file.metadata() or {}).get("faverage", "null"))
