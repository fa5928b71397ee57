"""The embedded model: it knows the ten digits as people draw them; it was trained on scikit-learn's images.

The 8 x 8 images are drawn anew as strokes on white: enlarged, turned, slanted and shifted a little, and sharpened to
ink of some width. So the model knows what comes from a canvas, and has seen enough strokes to learn other symbols.
"""

from __future__ import annotations

import math
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from faverage.app.model import Model, ModelError
from faverage.fscil import FewShotLearner
from faverage.fscil.heads import unit
from faverage.storage import read_tensors, write_tensors
from faverage.vision import Augment, BaseModel, Evaluate, extract_features, get_backbone, hold_out, train_base

__all__ = ["digits_model", "train_digits"]

Array = NDArray[Any]

SHIPPED = "digits.safetensors"  # written by tools/digits_model.py
KIND = "digits"
SIDE = 16
DIMENSION = 96
COPIES = 2  # drawings made of each image
GREY = (0.5, 0.5, 0.5)


def digits_model(folder: str | Path, *, progress: bool = False, device: str = "cpu", seed: int = 0) -> Model:
    """Return the model of digits in ``folder``, and make it first, of what was trained before, where there is none.

    Args:
        folder: of the model.
        progress: draw a progress bar; there is nothing to wait for.
        device: where to work; a CPU is quick enough.
        seed: of the learner.
    """
    if (Path(folder) / "model.json").is_file():
        return Model.load(folder, device=device)
    with as_file(files("faverage.app").joinpath(SHIPPED)) as file:
        about, tensors = read_tensors(file, KIND)
    model = _network(about, tensors)
    names = [str(digit) for digit in range(10)]
    learner = FewShotLearner(model, device=device, seed=seed).fit_base(
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
            device=device,
        )
    except ModelError:
        if (Path(folder) / "model.json").is_file():  # another process made it meanwhile
            return Model.load(folder, device=device)
        raise


def train_digits(file: Path, *, seed: int = 0) -> Path:
    """Train on drawings of scikit-learn's digits, and write what ``digits_model`` reads; about a minute on one core.

    Weights are rounded to 16 bits; all else is made with the rounded ones.

    Args:
        file: the safetensors file to write.
        seed: of everything that is drawn.
    """
    images, numbers = drawings(seed)
    once = numbers[: len(numbers) // COPIES]
    kept = hold_out(once, per_class=20 // COPIES, small="drawn", seed=seed)
    aside = np.tile(np.isin(np.arange(len(once)), kept), COPIES)  # all drawings of an image, or none
    rest = np.flatnonzero(~aside)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = get_backbone("tiny", dimension=DIMENSION)
    model = train_base(
        *(images, numbers),
        backbone=network,
        indices=rest,
        augment=Augment(SIDE, crop="padded", padding=1, flip=0.0, jitter=0.0, mean=GREY, std=GREY),
        transform=Evaluate(SIDE, mean=GREY, std=GREY),
        epochs=8,
        batch_size=64,
        lr=0.05,
        device="cpu",
        seed=seed,
        progress=True,
        what="training on digits",
    )
    assert model.head_bias is not None
    tensors = {f"backbone.{name}": _half(tensor) for name, tensor in model.backbone.state_dict().items()}
    tensors |= {"head.weight": model.head_weight, "head.bias": model.head_bias}
    about = {"dimension": DIMENSION, "counts": np.bincount(once, minlength=10).tolist()}
    features = extract_features(
        _network(about, tensors).backbone, images, rest, transform=model.transform, device="cpu"
    )
    means = np.stack([unit(features[numbers[rest] == digit]).mean(0) for digit in range(10)])
    first = np.concatenate([np.flatnonzero(numbers == digit)[:5] for digit in range(10)])
    tensors |= {
        "prototypes": torch.from_numpy(means.astype(np.float32)),
        "kept": torch.from_numpy(images[aside][..., 0].copy()),
        "labels": torch.from_numpy(numbers[aside]),
        "shown": torch.from_numpy(images[first][..., 0].copy()),
    }
    return write_tensors(file, KIND, about, tensors)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def _network(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> BaseModel:
    """Return the network of tensors of 16 bits."""
    network = get_backbone("tiny", dimension=about["dimension"])
    weights = {name.removeprefix("backbone."): x for name, x in tensors.items() if name.startswith("backbone.")}
    network.load_state_dict({name: x.float() if x.is_floating_point() else x for name, x in weights.items()})
    head = tensors["head.weight"].clone(), tensors["head.bias"].clone()
    return BaseModel(network.eval(), "linear", *head, None, Evaluate(SIDE, mean=GREY, std=GREY))


def _coloured(grey: torch.Tensor) -> Array:
    """Return drawings ``(n, 16, 16)`` in three channels, uint8 ``(n, 16, 16, 3)``."""
    return np.repeat(grey.numpy()[..., None], 3, axis=-1)


def drawings(seed: int = 0) -> tuple[Array, Array]:
    """Return scikit-learn's digits as drawings, uint8 ``(n, 16, 16, 3)``, black on white, and their classes."""
    from sklearn import datasets

    digits = datasets.load_digits()
    rng = np.random.default_rng(seed)
    drawn = [draw(grey / 16, rng) for _ in range(COPIES) for grey in digits.images]
    return np.stack(drawn), np.tile(digits.target.astype(np.int64), COPIES)


def draw(grey: Array, rng: np.random.Generator, side: int = SIDE) -> Array:
    """Draw an image ``(8, 8)`` of ink in [0, 1] as strokes on white, uint8 ``(side, side, 3)``."""
    big = 8 * len(grey)
    size, ratio = rng.uniform(0.75, 1.25), math.exp(rng.uniform(-0.15, 0.15))
    angle, slant = math.radians(rng.uniform(-12, 12)), rng.uniform(-0.2, 0.2)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    back = turn @ np.array([[1, slant], [0, 1]]) @ np.diag([1 / (size * ratio), ratio / size])
    shift = big / 2 - back @ (big / 2 + rng.uniform(-5, 5, 2))
    image = Image.fromarray(np.rint(grey * 255).astype(np.uint8)).resize((big, big), Image.Resampling.BICUBIC)
    numbers = (*back[0], shift[0], *back[1], shift[1])
    image = image.transform((big, big), Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR)
    ink = 1 / (1 + np.exp(-rng.uniform(6, 20) * (np.asarray(image) / 255 - rng.uniform(0.3, 0.6))))
    ink = (ink - ink.min()) / max(float(ink.max() - ink.min()), 1e-3)
    paper = Image.fromarray(np.rint(255 * (1 - ink)).astype(np.uint8)).resize((side, side), Image.Resampling.BILINEAR)
    return np.repeat(np.asarray(paper)[..., None], 3, axis=2)
