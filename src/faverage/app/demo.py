"""The embedded model: it knows the ten digits as people draw them; ``tools/digits_model.py`` trained it."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from faverage.app.model import Model, ModelError
from faverage.fscil import FewShotLearner
from faverage.storage import read_tensors
from faverage.vision import BaseModel, Evaluate, get_backbone

__all__ = ["digits_model"]

Array = NDArray[Any]

SHIPPED = "digits.safetensors"  # written by tools/digits_model.py
KIND = "digits"
SIDE = 16
GREY = (0.5, 0.5, 0.5)


def digits_model(folder: str | Path) -> Model:
    """Return the model of digits in ``folder``, and make it first, of what was trained before, where there is none."""
    if (Path(folder) / "model.json").is_file():
        return Model.load(folder, device="cpu")
    with as_file(files("faverage.app").joinpath(SHIPPED)) as file:
        about, tensors = read_tensors(file, KIND)
    model = network_of(about, tensors)
    names = [str(digit) for digit in range(10)]
    learner = FewShotLearner(model, device="cpu").fit_base(
        _coloured(tensors["kept"]),
        np.array(names)[tensors["labels"].numpy()],
        head=(tensors["head.weight"].numpy().copy(), tensors["head.bias"].numpy().copy()),
        prototypes=tensors["prototypes"].numpy().copy(),
    )
    shown = _coloured(tensors["shown"]).reshape(10, -1, SIDE, SIDE, 3)
    try:
        return Model.create(
            folder,
            learner,
            side=SIDE,
            counts=dict(zip(names, about["counts"], strict=True)),
            thumbnails=dict(zip(names, shown, strict=True)),
            device="cpu",
        )
    except ModelError:
        if (Path(folder) / "model.json").is_file():  # another process made it meanwhile
            return Model.load(folder, device="cpu")
        raise


def network_of(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> BaseModel:
    """Return the network of tensors of 16 bits."""
    network = get_backbone("tiny", dimension=about["dimension"])
    weights = {name.removeprefix("backbone."): x for name, x in tensors.items() if name.startswith("backbone.")}
    network.load_state_dict({name: x.float() if x.is_floating_point() else x for name, x in weights.items()})
    head = tensors["head.weight"].clone(), tensors["head.bias"].clone()
    return BaseModel(network.eval(), "linear", *head, None, Evaluate(SIDE, mean=GREY, std=GREY))


def _coloured(grey: torch.Tensor) -> Array:
    """Return drawings ``(n, 16, 16)`` in three channels, uint8 ``(n, 16, 16, 3)``."""
    return np.repeat(grey.numpy()[..., None], 3, axis=-1)
