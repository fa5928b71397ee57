"""What several rivals are made of: cosine logits, attention, distillation, herding, kept images, episodes, turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.vision import Trainable

Array = NDArray[Any]


def cosine(features: Tensor, weights: Tensor) -> Tensor:
    """Return cos(x_i, w_c), ``(n, C)``, of features ``(n, d)`` and weights ``(C, d)``.

    >>> cosine(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return F.linear(F.normalize(features, dim=-1), F.normalize(weights, dim=-1))


def distillation(logits: Tensor, old: Tensor, temperature: float = 2.0) -> Tensor:
    """Return the mean of −Σ_c q_c ln p_c with p = softmax(logits/T) and q = softmax(old/T), both ``(n, C)``."""
    target = (old / temperature).softmax(-1)
    return -(target * (logits / temperature).log_softmax(-1)).sum(-1).mean()


def class_means(features: Array, numbers: Array, n_classes: int) -> Array:
    """Return the mean of the features ``(n, d)`` of each class, ``(C, d)``."""
    return np.stack([features[numbers == c].mean(0) for c in range(n_classes)])


def unit(features: Array) -> Array:
    """Scale rows ``(n, d)`` to length one."""
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12))


def herding(features: Array, count: int) -> Array:
    """Choose rows of features ``(n, d)`` one by one, so that their mean stays nearest to the mean of all.

    Features are scaled to length 1 first.

    >>> herding(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), 2)
    array([2, 0])
    """
    scaled = unit(features)
    mean, total = scaled.mean(0), np.zeros(scaled.shape[1])
    chosen: list[int] = []
    for k in range(min(count, len(scaled))):
        distance = np.linalg.norm(mean - (total + scaled) / (k + 1), axis=1)
        distance[chosen] = np.inf
        chosen.append(int(distance.argmin()))
        total += scaled[chosen[-1]]
    return np.array(chosen, dtype=np.int64)


def herded(features: Array, numbers: Array, count: int) -> Array:
    """Choose ``count`` rows of each class ``(n,)``, by herding on features ``(n, d)``."""
    rows = [np.flatnonzero(numbers == label) for label in np.unique(numbers)]
    return np.concatenate([own[herding(features[own], count)] for own in rows])


def episode(labels: Array, ways: int, each: int, rng: np.random.Generator) -> Array:
    """Draw ``ways`` classes and ``each`` rows of each, ``(ways, each)``; rows repeat only where a class has too few."""
    classes = np.unique(labels)
    if len(classes) < ways:
        raise ValueError(f"an episode needs {ways} classes, the base session has {len(classes)}")
    rows = []
    for label in rng.permutation(classes)[:ways]:
        own = np.flatnonzero(labels == label)
        rows.append(rng.permutation(own)[:each] if len(own) >= each else rng.choice(own, each))
    return np.stack(rows)


def turned(images: Tensor, quarters: Tensor) -> Tensor:
    """Rotate each image ``(n, 3, s, s)`` by 90° times 0 to 3, ``(n,)``, without a branch on the values."""
    result = images
    for k in (1, 2, 3):
        result = torch.where((quarters == k).view(-1, 1, 1, 1), torch.rot90(images, k, (2, 3)), result)
    return result


class Resting(Trainable):
    """A loss whose ``resting`` modules stay in evaluation mode, for their batch norm."""

    resting: tuple[nn.Module, ...]

    def train(self, mode: bool = True) -> Self:
        """Leave them in evaluation mode."""
        super().train(mode)
        for module in self.resting:
            module.eval()
        return self


class Attention(nn.Module):
    """One head of attention with a residual: y = q + dropout(softmax(W_q q · W_k k / √d) W_v k W_o), then LayerNorm.

    Args:
        dimension: d.
        dropout: on the result, before the residual.
        norm: whether to end with a LayerNorm.
    """

    def __init__(self, dimension: int, *, dropout: float = 0.0, norm: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dimension, dimension, bias=False) for _ in range(3))
        for part in (self.query, self.key, self.value):
            nn.init.normal_(part.weight, std=(2.0 / (2 * dimension)) ** 0.5)
        self.out = nn.Linear(dimension, dimension)
        nn.init.xavier_normal_(self.out.weight)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(dimension) if norm else nn.Identity()

    def forward(self, queries: Tensor, keys: Tensor | None = None) -> Tensor:
        """Let tokens ``(…, q, d)`` attend to ``keys`` ``(…, k, d)``, by default to themselves; return ``(…, q, d)``."""
        keys = queries if keys is None else keys
        weights = self.query(queries) @ self.key(keys).transpose(-1, -2) / queries.shape[-1] ** 0.5
        mixed = self.out(weights.softmax(-1) @ self.value(keys))
        result: Tensor = self.norm(queries + self.dropout(mixed))
        return result


@dataclass
class Exemplars:
    """Kept images, uint8 ``(m, S, S, 3)``, and the numbers of their classes ``(m,)``.

    By default methods keep what is usual in few-shot class-incremental learning: 400 images of base classes in all and
    one of each new class.
    """

    images: Array
    numbers: Array

    @classmethod
    def of_base(cls, images: Array, numbers: Array, count: int, rng: np.random.Generator) -> Self:
        """Draw ``count`` of the images ``(n, S, S, 3)``, as evenly over their classes ``(n,)`` as possible."""
        order = rng.permutation(len(numbers))
        turn = np.empty(len(numbers), dtype=np.int64)  # the position of a row within its class, in random order
        for label in np.unique(numbers):
            own = order[numbers[order] == label]
            turn[own] = np.arange(len(own))
        rows = np.sort(order[np.argsort(turn[order], kind="stable")][:count])
        return cls(np.asarray(images[rows]), numbers[rows])

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> Self:
        """Take back what ``arrays`` gave: ``(m, S, S, 3)`` and ``(m,)``."""
        return cls(arrays["exemplars"], arrays["exemplar_numbers"])

    def arrays(self) -> dict[str, Array]:
        """Return both parts, ``(m, S, S, 3)`` and ``(m,)``, by name."""
        return {"exemplars": self.images, "exemplar_numbers": self.numbers}

    def joined(self, images: Array, numbers: Array) -> tuple[Array, Array]:
        """Return the exemplars, and further images ``(n, S, S, 3)`` with their classes ``(n,)`` after them."""
        return np.concatenate([self.images, images]), np.concatenate([self.numbers, numbers])

    def with_new(self, images: Array, numbers: Array, features: Array, count: int) -> Exemplars:
        """Add ``count`` images of each new class, chosen by herding on their features ``(n, d)``."""
        chosen = herded(features, numbers, count)
        return Exemplars(*self.joined(images[chosen], numbers[chosen]))
