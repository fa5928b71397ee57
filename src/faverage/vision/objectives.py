r"""How base classes are taught: rotations as classes, mixed images, softened labels, contrast, other networks.

*Rotations*: every image of a batch is seen four times, rotated by r = 0 … 3 times 90°, and each is a class of its own:

    L = mean over r of CE(s cos(f(rotate_r(x)), w), 4 y + r)

A backbone that has to see which way up a thing is must learn more of its shape. Each rotation r then is a view with a
head of its own, w_{4c + r}.

*Mixed* (CutMix): a box of random size and place is filled from another image of the batch; both labels count, by area.

*Contrast*: among the features of a batch, through a projection of their own, those of one class and rotation attract
and all others repel each other (supervised contrastive loss).

*Distilling*: a linear map P of the features must tell what K networks that are trained already see in the same image,
in all R rotations (R = 1 without rotations), as vectors of length one:

    D = mean over k, r of |P_kr unit(f(x)) - unit(t_k(rotate_r(x)))|²,    (1 - d) L + 10 d D

so one pass of one network learns what K R passes see. With rotations, x is each rotation of an image in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.deprecation import renamed
from faverage.vision.engine.step import Trainable
from faverage.vision.model import BaseModel, Network

__all__ = ["ROTATIONS", "Lesson", "rotation_heads", "turn_heads"]

ROTATIONS = 4
_DISTANCE = 10.0  # a squared distance of vectors of length one counts as much as ten times that of cross-entropy


class Lesson(Trainable):
    """Backbone and head, with how they are taught.

    Args:
        network: with a head of 4 C logits where images are rotated, and of C otherwise.
        rotations: whether each image is seen in all four rotations.
        mix: share of images that carry a part of another one.
        smoothing: share of each target that is spread evenly over all classes.
        contrast: weight of the contrastive term.
        teachers: backbones that are trained already, from images to features; they are not changed.
        distil: how much what the teachers see counts, from 0, not at all, to below 1, hardly anything else does.
    """

    def __init__(
        self,
        network: Network,
        *,
        rotations: bool = False,
        mix: float = 0.0,
        smoothing: float = 0.0,
        contrast: float = 0.0,
        teachers: Sequence[nn.Module] = (),
        distil: float = 0.0,
    ) -> None:
        super().__init__()
        self.rotations = ROTATIONS if rotations else 1
        if len(network.head.weight) % self.rotations:
            raise ValueError(f"the head must have {ROTATIONS} logits a class, got {len(network.head.weight)}")
        self.network = network
        self.mix, self.smoothing, self.contrast = mix, smoothing, contrast
        self.extras = 4 if mix else 0
        d = network.head.weight.shape[1]
        if contrast:
            self.projection = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 128))
        self.distil = distil
        if distil:
            self.teachers = nn.ModuleList(teachers).requires_grad_(False)
            width = sum(cast(int, teacher.dimension) for teacher in self.teachers)
            self.imitation = nn.Linear(d, self.rotations * width)

    def train(self, mode: bool = True) -> Lesson:
        """Set the mode of all but the teachers, which stay as they were evaluated."""
        super().train(mode)
        if self.distil:
            self.teachers.eval()
        return self

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look at images, of which some are mixed.

        Returns:
            Features ``(rotations · b, d)``, one rotation after the other; the share ``(b,)`` that images kept; and what
            teachers see in the same images, each of length one, ``(rotations · b, teachers · d_t)``.
        """
        layout = _layout(images)
        kept = torch.ones_like(labels, dtype=torch.float32)
        if self.mix:
            images, kept = cut_mix(images, extra, self.mix)
        seen = torch.cat([torch.rot90(images, r, (2, 3)) for r in range(self.rotations)])
        seen = seen.contiguous(memory_format=layout)
        features: Tensor = self.network.backbone(seen)
        with torch.no_grad():
            told = [F.normalize(teacher(seen).float()) for teacher in self.teachers] if self.distil else []
        return features, kept, torch.cat(told, 1) if told else features.detach()[:, :0]

    def loss(self, embedded: tuple[Tensor, Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and the mean over rotations of the number of right answers, ``()`` each."""
        features, kept = embedded[0].float(), embedded[1].repeat(self.rotations)
        logits = self.network.head(features)
        targets = self._targets(labels)
        right = (logits.detach().argmax(1) == targets).sum() / self.rotations
        loss = kept * self._each(logits, targets)
        if self.mix:
            loss = loss + (1 - kept) * self._each(logits, self._targets(labels.flip(0)))
        total = loss.mean()
        if self.contrast:
            total = total + self.contrast * attraction(F.normalize(self.projection(features)), targets)
        if self.distil:
            total = (1 - self.distil) * total + _DISTANCE * self.distil * self._distance(features, embedded[2])
        return total, right

    def _distance(self, features: Tensor, told: Tensor) -> Tensor:
        """Return the mean squared distance ``()``, over all views of teachers, from what they see ``(m, d_t)``."""
        by_rotation = told.view(self.rotations, -1, told.shape[1])
        # rotating image r by q more gives image r + q
        all_views = torch.cat([by_rotation.roll(-q, 0) for q in range(self.rotations)], 2).flatten(0, 1)
        views = self.rotations * len(self.teachers)
        distance: Tensor = (self.imitation(F.normalize(features)) - all_views).square().sum(1).mean() / views
        return distance

    def _each(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.smoothing)

    def _targets(self, labels: Tensor) -> Tensor:
        return torch.cat([self.rotations * labels + r for r in range(self.rotations)])


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
    """Return the supervised contrastive loss ``()`` of rows ``(m, d)`` of length 1 with targets ``(m,)``.

    Rows that share their target with no other count as 0.
    """
    similar = projected @ projected.T / temperature
    itself = torch.eye(len(targets), dtype=torch.bool, device=targets.device)
    log_p = similar - similar.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    alike = (targets[:, None] == targets) & ~itself
    return -torch.where(alike, log_p, 0.0).sum(1).div(alike.sum(1).clamp(min=1)).mean()


def rotation_heads(model: BaseModel) -> Tensor:
    """Return the heads of the four rotations, ``(4, C, d)``, of a model that was trained on classes and rotations.

    >>> import numpy as np
    >>> from faverage.vision import train_base
    >>> images, labels = np.zeros((8, 8, 8, 3), dtype=np.uint8), np.arange(8) % 2
    >>> model = train_base(images, labels, backbone="tiny", rotations=True, epochs=1, device="cpu")
    >>> heads = rotation_heads(model)  # heads[1] is for images that are rotated by 90°
    >>> model.head_weight.shape, heads.shape
    (torch.Size([8, 128]), torch.Size([4, 2, 128]))
    """
    weight = model.head_weight
    if not model.config.get("head", {}).get("rotations"):
        raise ValueError("the model was not trained on rotated images: use train_base(..., rotations=True)")
    return weight.view(-1, ROTATIONS, weight.shape[1]).transpose(0, 1)


def turn_heads(model: BaseModel) -> Tensor:
    """Return ``rotation_heads``, ``(4, C, d)``, under its old name.

    >>> import warnings
    >>> from faverage.vision import Evaluate, get_backbone
    >>> weight, config = torch.arange(16.0).view(8, 2), {"head": {"rotations": True}}
    >>> model = BaseModel(get_backbone("tiny"), "cosine", weight, None, 16.0, Evaluate(8), config=config)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     heads = turn_heads(model)
    >>> print(caught[0].message, torch.equal(heads, rotation_heads(model)))
    'turn_heads' is now 'rotation_heads': use that, the old word will be an error in version 0.3 True
    """
    renamed("turn_heads", "rotation_heads")
    return rotation_heads(model)


def _layout(images: Tensor) -> torch.memory_format:
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format
