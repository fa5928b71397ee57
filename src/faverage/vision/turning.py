r"""Base training on classes and turns: a network that tells classes *and* by how many quarters an image is turned.

Every image of a batch is seen four times, turned by r = 0 … 3 quarters, and each is a class of its own:

    L = mean over r of CE(s cos(f(turn_r(x)), w), 4 y + r)

A backbone that has to see which way up a thing is must learn more of its shape. Each turn r then is a view with a head
of its own, w_{4c + r}.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from faverage.vision.model import BaseModel, Network
from faverage.vision.trainable import Trainable

__all__ = ["TURNS", "Turning", "turn_heads"]

TURNS = 4


class Turning(Trainable):
    """Backbone and cosine head for C classes x four turns.

    Args:
        network: with a head of 4 C logits.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        if len(network.head.weight) % TURNS:
            raise ValueError(f"the head must have {TURNS} logits a class, got {len(network.head.weight)}")
        self.network = network

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(4 b, d)``: of all images, then of all turned by one quarter, and so on."""
        seen = torch.cat([torch.rot90(images, r, (2, 3)) for r in range(TURNS)])
        features: Tensor = self.network.backbone(seen.contiguous(memory_format=_layout(images)))
        return features

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy, and how many images had the right class and turn, as a mean over turns."""
        logits = self.network.head(embedded.float())
        targets = torch.cat([TURNS * labels + r for r in range(TURNS)])
        right = (logits.detach().argmax(1) == targets).sum() / TURNS
        return F.cross_entropy(logits, targets), right


def turn_heads(model: BaseModel) -> Tensor:
    """Return the heads of the four turns, ``(4, C, d)``, of a model that was trained on classes and turns."""
    weight = model.head_weight
    if not model.config.get("head", {}).get("turned"):
        raise ValueError("the model was not trained on turned images: use train_base(..., turned=True)")
    return weight.view(-1, TURNS, weight.shape[1]).transpose(0, 1)


def _layout(images: Tensor) -> torch.memory_format:
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format
