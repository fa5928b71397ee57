r"""How base classes are taught: turned images as classes of their own, mixed images, softened labels, contrast.

*Turned*: every image of a batch is seen four times, turned by r = 0 … 3 quarters, and each is a class of its own:

    L = mean over r of CE(s cos(f(turn_r(x)), w), 4 y + r)

A backbone that has to see which way up a thing is must learn more of its shape. Each turn r then is a view with a head
of its own, w_{4c + r}.

*Mixed* (CutMix): a box of random size and place is filled from another image of the batch; both labels count, by area.

*Contrast*: among the features of a batch, through a projection of their own, those of one class and turn attract and
all others repel each other (supervised contrastive loss).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.vision.engine.step import Trainable
from faverage.vision.model import BaseModel, Network

__all__ = ["TURNS", "Lesson", "turn_heads"]

TURNS = 4


class Lesson(Trainable):
    """Backbone and head, with how they are taught.

    Args:
        network: with a head of 4 C logits where images are turned, and of C otherwise.
        turned: whether each image is seen in all four turns.
        mix: share of images that carry a part of another one.
        smoothing: share of each target that is spread evenly over all classes.
        contrast: weight of the contrastive term.
    """

    def __init__(
        self,
        network: Network,
        *,
        turned: bool = False,
        mix: float = 0.0,
        smoothing: float = 0.0,
        contrast: float = 0.0,
    ) -> None:
        super().__init__()
        self.turns = TURNS if turned else 1
        if len(network.head.weight) % self.turns:
            raise ValueError(f"the head must have {TURNS} logits a class, got {len(network.head.weight)}")
        self.network = network
        self.mix, self.smoothing, self.contrast = mix, smoothing, contrast
        self.extras = 4 if mix else 0
        d = network.head.weight.shape[1]
        if contrast:
            self.projection = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 128))

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``(turns x b, d)``, all images in one turn after the other, and what each kept of itself."""
        layout = _layout(images)
        kept = torch.ones_like(labels, dtype=torch.float32)
        if self.mix:
            images, kept = cut_mix(images, extra, self.mix)
        seen = torch.cat([torch.rot90(images, r, (2, 3)) for r in range(self.turns)])
        features: Tensor = self.network.backbone(seen.contiguous(memory_format=layout))
        return features, kept

    def loss(self, embedded: tuple[Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and how many images had the right class and turn, as a mean over turns."""
        features, kept = embedded[0].float(), embedded[1].repeat(self.turns)
        logits = self.network.head(features)
        targets = self._targets(labels)
        right = (logits.detach().argmax(1) == targets).sum() / self.turns
        loss = kept * self._each(logits, targets)
        if self.mix:
            loss = loss + (1 - kept) * self._each(logits, self._targets(labels.flip(0)))
        if self.contrast:
            projected = F.normalize(self.projection(features))
            return loss.mean() + self.contrast * attraction(projected, targets), right
        return loss.mean(), right

    def _each(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing)

    def _targets(self, labels: Tensor) -> Tensor:
        return torch.cat([self.turns * labels + r for r in range(self.turns)])


def cut_mix(images: Tensor, noise: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Fill a box of each image from the one at the other end of the batch.

    Args:
        images: ``(b, 3, s, s)``, in random order.
        noise: ``(b, 4)`` in [0, 1): whether, how large, and where in x and y.
        share: of images that are changed.

    Returns:
        The images, and for each the share of its area ``(b,)`` that is its own.
    """
    side = images.shape[-1]
    place = (torch.arange(side, device=images.device) + 0.5) / side
    half = torch.where(noise[:, 0] < share, noise[:, 1].sqrt() / 2, 0.0)[:, None]
    across = (place - noise[:, 2:3]).abs() < half
    down = (place - noise[:, 3:4]).abs() < half
    box = down[:, :, None] & across[:, None, :]
    return torch.where(box[:, None], images.flip(0), images), 1 - box.float().mean((1, 2))


def attraction(projected: Tensor, targets: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the supervised contrastive loss of rows of length one; rows without a like count nothing."""
    similar = projected @ projected.T / temperature
    itself = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    log_p = similar - similar.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    alike = (targets[:, None] == targets) & ~itself
    return -torch.where(alike, log_p, 0.0).sum(1).div(alike.sum(1).clamp(min=1)).mean()


def turn_heads(model: BaseModel) -> Tensor:
    """Return the heads of the four turns, ``(4, C, d)``, of a model that was trained on classes and turns."""
    weight = model.head_weight
    if not model.config.get("head", {}).get("turned"):
        raise ValueError("the model was not trained on turned images: use train_base(..., turned=True)")
    return weight.view(-1, TURNS, weight.shape[1]).transpose(0, 1)


def _layout(images: Tensor) -> torch.memory_format:
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format
