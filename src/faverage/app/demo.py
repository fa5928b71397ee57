"""The embedded model: it knows the ten digits as people draw them, and is made in seconds from scikit-learn's images.

The 8 x 8 images are drawn anew as strokes on white: enlarged, turned, slanted and shifted a little, and sharpened to
ink of some width. So the model knows what comes from a canvas, and has seen enough strokes to learn other symbols.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from faverage.app.model import Model, ModelError
from faverage.app.train import base_learner
from faverage.vision import Augment, Evaluate, get_backbone, hold_out, train_base

__all__ = ["digits_model"]

Array = NDArray[Any]

SIDE = 16
COPIES = 2  # drawings made of each image
GREY = (0.5, 0.5, 0.5)


def digits_model(folder: str | Path, *, progress: bool = False, device: str = "cpu", seed: int = 0) -> Model:
    """Return the model of digits in ``folder``, and make it first where there is none.

    Args:
        folder: of the model.
        progress: draw a progress bar.
        device: where to train and to work; a CPU is quick enough.
        seed: of everything that is drawn.
    """
    if (Path(folder) / "model.json").is_file():
        return Model.load(folder, device=device)
    images, numbers = drawings(seed)
    once = numbers[: len(numbers) // COPIES]
    kept = hold_out(once, per_class=20 // COPIES, small="drawn", seed=seed)
    aside = np.tile(np.isin(np.arange(len(once)), kept), COPIES)  # all drawings of an image, or none
    augment = Augment(SIDE, crop="padded", padding=1, flip=0.0, jitter=0.0, mean=GREY, std=GREY)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = get_backbone("tiny", dimension=96)
    model = train_base(
        *(images, numbers),
        backbone=network,
        indices=np.flatnonzero(~aside),
        augment=augment,
        transform=Evaluate(SIDE, mean=GREY, std=GREY),
        epochs=8,
        batch_size=64,
        lr=0.05,
        device=device,
        seed=seed,
        progress=progress,
        what="training on digits",
    )
    names = [str(digit) for digit in range(10)]
    learner = base_learner(model, images, numbers, names, aside, device=device, seed=seed)
    own = {name: np.flatnonzero(numbers == c) for c, name in enumerate(names)}
    try:
        return Model.create(
            folder,
            learner,
            side=SIDE,
            counts={name: len(rows) // COPIES for name, rows in own.items()},
            thumbnails={name: [images[i] for i in rows[:5]] for name, rows in own.items()},
            device=device,
        )
    except ModelError:
        if (Path(folder) / "model.json").is_file():  # another process made it meanwhile
            return Model.load(folder, device=device)
        raise


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
