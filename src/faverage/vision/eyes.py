"""A backbone that is ready to be asked again and again: moved to its device once, never copied."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from faverage.vision.engine.device import autocast, check_images, move, pick_device, pick_layout, pick_precision
from faverage.vision.model import BaseModel

__all__ = ["Eyes"]

_BATCH = 128


class Eyes:
    """From uint8 images ``(n, S, S, 3)`` to features ``(n, d)``; several threads may look at once.

    Args:
        model: the trained backbone; its weights are copied.
        device: ``auto``, ``cpu`` or ``cuda``.
    """

    def __init__(self, model: BaseModel, device: str = "auto") -> None:
        self.model = model
        self._place = pick_device(device)
        self._layout = pick_layout("auto", self._place)
        self._dtype = pick_precision("auto", self._place)
        self._network = move(copy.deepcopy(model.backbone), self._place, self._layout).eval().requires_grad_(False)
        self._prepare = copy.deepcopy(model.transform).to(self._place)

    def __call__(self, images: Any) -> NDArray[np.float32]:
        """Return the features of images under the evaluation transform."""
        images = np.asarray(images)
        check_images(images)
        parts = [self._look(images[i : i + _BATCH]) for i in range(0, max(len(images), 1), _BATCH)]
        return np.concatenate(parts)

    @torch.inference_mode()
    def _look(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        batch = self._prepare(torch.from_numpy(np.ascontiguousarray(images)).to(self._place))
        with autocast(self._place, self._dtype):
            features = self._network(batch.contiguous(memory_format=self._layout))
        found: NDArray[np.float32] = features.float().cpu().numpy()
        return found
