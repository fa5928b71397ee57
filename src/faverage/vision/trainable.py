"""What can be trained on images: a module that says what it computes, its loss, and what it wants drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["Trainable"]


class Trainable(nn.Module):
    """A network with its loss, for ``train_network``.

    A subclass defines ``embed`` and ``loss``; the other methods have defaults that suit plain classification. A step
    may be compiled and replayed as a CUDA graph, so ``embed`` and ``loss`` must not branch on values of tensors, and
    what changes between epochs must be changed in place.

    Attributes:
        extras: random numbers that an image needs beyond augmentation, see ``draw``.
    """

    extras = 0

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Any:
        """Compute what is costly, from normalised images ``(b, 3, s, s)``; in bfloat16 where that pays."""
        raise NotImplementedError

    def loss(self, embedded: Any, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and how many images were classified right, of what ``embed`` gave; in float32."""
        raise NotImplementedError

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return random numbers ``(n, extras)`` for n images, on the generator's device; by default even in [0, 1)."""
        return torch.rand(n, self.extras, generator=generator, device=generator.device)

    def order(self, labels: NDArray[Any], batch_size: int, rng: np.random.Generator) -> NDArray[Any] | None:
        """Return the rows of every batch of an epoch, ``(steps, b)``; None: all rows in random order."""
        return None

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Prepare for an epoch, counted from 0."""

    def change_gradients(self) -> None:
        """Change the gradients after a backward pass, in place."""
