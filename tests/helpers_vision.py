"""Drawn images and a short base training for the tests of faverage.vision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from faverage.vision import BaseModel, train_base


def drawn(n: int, side: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw coloured shapes on noise: a red square, a green bar, a blue frame, a yellow cross."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 60, (n, side, side, 3)).astype(np.uint8)
    labels = np.arange(n) % 4
    for image, label in zip(images, labels, strict=True):
        y, x = generator.integers(2, side - 9, 2)
        patch = image[y : y + 7, x : x + 7]
        if label == 0:
            patch[..., 0] = 220
        elif label == 1:
            patch[2:5, :, 1] = 220
        elif label == 2:
            patch[[0, -1], :, 2] = patch[:, [0, -1], 2] = 220
        else:
            patch[3, :, :2] = patch[:, 3, :2] = 220
    return images, labels


def quick(images: np.ndarray, labels: np.ndarray, **options: Any) -> BaseModel:
    settings: dict[str, Any] = {"backbone": "tiny", "epochs": 4, "batch_size": 32, "lr": 0.05, "device": "cpu"}
    return train_base(images, labels, **(settings | options))


def same(a: BaseModel, b: BaseModel) -> bool:
    left, right = a.backbone.state_dict(), b.backbone.state_dict()
    return torch.equal(a.head_weight, b.head_weight) and all(torch.equal(left[k], right[k]) for k in left)


class Killed(Exception):
    pass
