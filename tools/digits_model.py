"""Train the model of digits that ``faverage serve`` starts with, and write it into the package.

The 8 x 8 images of scikit-learn are drawn anew as strokes on white: enlarged, turned, slanted and shifted a little, and
sharpened to ink of some width. So the model knows what comes from a canvas, and has seen enough strokes to learn other
symbols. The same seed on the same machine and version of torch gives the same file; commit it when it changes.

    python tools/digits_model.py
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from faverage.app.train import DIGITS, DIGITS_SIDE, GREY, SHIPPED, network_of
from faverage.fscil.heads import unit
from faverage.storage import write_tensors
from faverage.vision import Augment, Evaluate, extract_features, get_backbone, hold_out, train_base

Array = NDArray[Any]

DIMENSION = 96
COPIES = 2  # drawings made of each image


def train_digits(file: Path, seed: int = 0) -> Path:
    """Train on drawings of scikit-learn's digits, and write what ``faverage.app.train`` reads; about a minute.

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
        augment=Augment(DIGITS_SIDE, crop="padded", padding=1, flip=0.0, jitter=0.0, mean=GREY, std=GREY),
        transform=Evaluate(DIGITS_SIDE, mean=GREY, std=GREY),
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
        network_of(about, tensors).backbone, images, rest, transform=model.transform, device="cpu"
    )
    means = np.stack([unit(features[numbers[rest] == digit]).mean(0) for digit in range(10)])
    first = np.concatenate([np.flatnonzero(numbers == digit)[:5] for digit in range(10)])
    tensors |= {
        "prototypes": torch.from_numpy(means.astype(np.float32)),
        "kept": torch.from_numpy(images[aside][..., 0].copy()),
        "labels": torch.from_numpy(numbers[aside]),
        "shown": torch.from_numpy(images[first][..., 0].copy()),
    }
    return write_tensors(file, DIGITS, about, tensors)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


def drawings(seed: int = 0) -> tuple[Array, Array]:
    """Return scikit-learn's digits as drawings, uint8 ``(n, 16, 16, 3)``, black on white, and their classes."""
    from sklearn import datasets

    digits = datasets.load_digits()
    rng = np.random.default_rng(seed)
    drawn = [draw(grey / 16, rng) for _ in range(COPIES) for grey in digits.images]
    return np.stack(drawn), np.tile(digits.target.astype(np.int64), COPIES)


def draw(grey: Array, rng: np.random.Generator, side: int = DIGITS_SIDE) -> Array:
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


if __name__ == "__main__":
    file = Path(__file__).parent.parent / "src" / "faverage" / "app" / SHIPPED
    print(f"{train_digits(file)}: {file.stat().st_size:,} bytes")
