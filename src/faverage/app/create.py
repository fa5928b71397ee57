"""The first state of a model: a trained learner put into a new folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from faverage.app.folder import LARGEST_SIDE, Folder, State
from faverage.app.names import ModelError, clean_name
from faverage.app.parts import entry, light
from faverage.app.photos import thumbnails
from faverage.fscil import FewShotLearner
from faverage.fscil.relearn import base_of, shots_of
from faverage.storage import write_tensors

__all__ = ["check_absent", "write_model"]

Pictures = Mapping[str, Sequence[Image.Image | NDArray[np.uint8]]]


def write_model(
    target: Path, learner: FewShotLearner, side: int, counts: Mapping[str, int], pictures: Pictures
) -> None:
    """Write a learner to a folder that appears whole or not at all; the arguments are those of ``Model.create``."""
    _check_learner(learner)
    if not 1 <= side <= LARGEST_SIDE:
        raise ModelError(f"the side of the images must be a number from 1 to {LARGEST_SIDE}, got {side}")
    check_absent(target)
    small = {str(name): thumbnails(images) for name, images in pictures.items()}
    shown = {name: small.get(name, thumbnails([])) for name in learner.classes}
    counted = [{"name": name, "count": int(counts.get(name, 0))} for name in learner.sessions[0]]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as fresh:
        files = Folder(Path(fresh) / "model")
        files.path.mkdir()
        base_of(learner).save(files.base)
        tensors = {str(i): torch.from_numpy(shown[name]) for i, name in enumerate(learner.sessions[0])}
        write_tensors(files.base / "thumbnails.safetensors", "thumbnails", {}, tensors)
        files.write_state("000001", State(shots_of(learner), shown, light(learner)))
        made = entry("create", None, 0, f"made with {len(learner.classes)} classes")
        record = {"side": side, "version": 1, "base": counted, "classes": learner.classes, "states": ["000001"]}
        files.write({**record, "base_id": files.base_id(), "history": [made]})
        files.sync_all()
        try:
            files.path.rename(target)
        except OSError:  # another process was quicker
            check_absent(target)
            raise


def check_absent(target: Path) -> None:
    """Raise ModelError where something is in the place of a new model."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists already: name another folder, or remove this one")


def _check_learner(learner: FewShotLearner) -> None:
    if getattr(learner.backbone, "model", None) is None or not learner.classes:
        raise ModelError(
            "a model needs a learner of images that knows its base classes: give FewShotLearner a backbone by name or "
            "as a BaseModel, and call fit_base(images, labels)"
        )
    for label in learner.classes:
        if not isinstance(label, str) or clean_name(label) != label:
            raise ModelError(f"the class {label!r} of the learner needs a plain name: label it with clean_name(...)")
