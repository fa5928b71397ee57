"""A mixture of experts: a gate that weighs the models anew for each row, by what all of them say about it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from faverage.fusion.align import Padding
from faverage.fusion.arrays import Array
from faverage.fusion.base import register_fuser
from faverage.fusion.nets import NetworkFuser

__all__ = ["GatedMixture", "MixtureOfExperts"]

_WIDTH = 32  # hidden units of the gate
_EPS = 1e-3  # softening of the logarithm of scores
_FLOOR = 1e-4  # share of the uniform distribution in what the mixture returns
_DRAWS = 4096  # how many choices of dropped models are drawn beforehand; training goes through them again and again


class GatedMixture(nn.Module):
    """A convex combination of the K models with other weights in each row: p = Σ_k g_k(x) x_k, each x_k summing to one.

        g(x) = softmax(V relu(U φ(x) + u) + v),   φ(x) = ln(1 + x/ε) / ln(1 + 1/ε)

    over the models in use: one without any mass in a row gets no weight there, nor, in training, one that is dropped;
    to the gate it looks as if it gave 0 to every class. V and v start at 0, so that the untrained mixture is the plain
    mean. A hundredth of a percent of p is uniform.

    Args:
        n_models: K.
        n_outputs: N.
        dropout: the chance of each model to be dropped from a row in training; where all would be, none is.

    >>> GatedMixture(2, 3).eval().gate(torch.tensor([[[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]], [[0.0] * 3, [1.0] * 3]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]], grad_fn=<SoftmaxBackward0>)
    """

    _kept: Tensor
    _drawn: Tensor

    def __init__(self, n_models: int, n_outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_models * n_outputs, _WIDTH)
        self.out = nn.Linear(_WIDTH, n_models)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        # drawn here and not at each step: so they depend on the start's seed alone, in a CUDA graph too
        self.register_buffer("_kept", torch.rand(_DRAWS, n_models) >= dropout, persistent=False)
        self.register_buffer("_drawn", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to probabilities ``(n, N)``."""
        return self.log_prob(scores).exp()

    def log_prob(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to log-probabilities ``(n, N)``."""
        members, weights = self._weigh(scores)
        mixed = torch.bmm(weights[:, None], members).squeeze(1)
        return ((1 - _FLOOR) * mixed + _FLOOR / scores.shape[2]).log()

    def gate(self, scores: Tensor) -> Tensor:
        """Return the weight of each model in each row, ``(n, K)``, for scores ``(n, K, N)``; rows sum to one."""
        return self._weigh(scores)[1]

    def _weigh(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each model says, summing to one, ``(n, K, N)``, and its weight ``(n, K)``."""
        mass = scores.sum(2, keepdim=True)
        members = scores / torch.where(mass > 0, mass, 1.0)
        used = self._used(mass.squeeze(2) > 0)
        seen = torch.log1p(members / _EPS) * used[:, :, None] / math.log1p(1 / _EPS)
        logits = self.out(self.hidden(seen.flatten(1)).relu())
        return members, logits.masked_fill(~used, -1e9).softmax(1)

    def _used(self, answered: Tensor) -> Tensor:
        """Return which models count in which row ``(n, K)``, of those that answered."""
        if not self.training:
            return answered
        rows = (torch.arange(len(answered), device=answered.device) + self._drawn) % _DRAWS
        self._drawn += len(answered)
        kept = answered & self._kept[rows]
        return torch.where(kept.any(1, keepdim=True), kept, answered)


@register_fuser("mixture-of-experts")
@dataclass(eq=False, kw_only=True)
class MixtureOfExperts(NetworkFuser):
    """A mixture of experts (Jacobs et al., 1991): see ``GatedMixture``. ``network.gate`` says who counts in which row.

    The models are given and only the gate is trained, with random models dropped as in neural ensemblers (Arango et
    al., 2025). It minimises the sum of the rows' log-losses plus decay/2 · ‖parameters‖²: with few rows it stays near
    the plain mean. A model without an answer in a row leaves its weight to the others. Options not named here are
    those of every network.

    Args:
        padding: by default a model gives 0 to what it does not know, so that the gate alone decides between models.
        dropout: the chance of a model to be dropped from a row in training, below 1.
        decay: strength of the penalty.
    """

    padding: Padding = "zero"
    dropout: float = 0.1
    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number in [0, 1), got {self.dropout!r}")
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"decay must be a finite number >= 0, got {self.decay!r}")

    def build(self, n_models: int, n_classes: int) -> GatedMixture:
        """Return the untrained mixture: the plain mean."""
        return GatedMixture(n_models, n_classes, self.dropout)

    def _weight_decay(self, n_rows: float) -> float:
        return self.decay / max(n_rows, 1e-6)  # finite for rows of next to no weight, too

    def _input(self, scores: Array) -> Tensor:
        padded = super()._input(scores)
        silent = np.isnan(scores).all(2)
        return padded.masked_fill(torch.from_numpy(silent)[:, :, None], 0.0) if silent.any() else padded

    def _least(self, n_models: int, n_classes: int) -> int:
        return _WIDTH * n_models * n_classes
