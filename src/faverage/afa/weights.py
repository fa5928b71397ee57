"""A matrix of weights that can be read: rows that are non-negative and, where asked, sum to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from faverage.afa.simplex import in_pieces, project_rows_

__all__ = ["Constraint", "Rows", "Tied"]

Constraint = Literal["projection", "softmax"]
_LEAK = 1e-2  # share of the start that the softmax constraint spreads over all entries: it cannot express a zero


class Rows(nn.Module):
    """A matrix whose rows are non-negative and, with ``simplex``, sum to one.

    The set is kept by projection after each step of the optimiser (``project_``), or by construction
    (``constraint="softmax"``: a softmax, or an exponential where rows need not sum to one, of free numbers).

    >>> rows = Rows(torch.eye(3), simplex=True)
    >>> with torch.no_grad():
    ...     _ = rows.raw.add_(torch.randn(3, 3))
    >>> rows.project_()
    >>> rows().min().item() >= 0, (rows().sum(-1) - 1).abs().max().item() < 1e-6
    (True, True)
    """

    def __init__(self, start: Tensor, *, simplex: bool, constraint: Constraint = "projection") -> None:
        super().__init__()
        self.simplex = simplex
        self.constraint = constraint
        self.raw = nn.Parameter(torch.empty_like(start))
        self.threshold: Tensor
        self.register_buffer("threshold", torch.zeros(len(start), 1, dtype=start.dtype), persistent=False)
        self.set_(start)

    def forward(self) -> Tensor:
        """Return the matrix."""
        if self.constraint == "projection":
            return self.raw
        return self.raw.softmax(-1) if self.simplex else self.raw.exp()

    @torch.no_grad()
    def set_(self, value: Tensor) -> None:
        """Set the matrix; with the softmax constraint zeros become small positive numbers."""
        if value.shape != self.raw.shape:
            raise ValueError(f"value must have shape {tuple(self.raw.shape)}, got {tuple(value.shape)}")
        if not bool(value.isfinite().all()) or not bool((value >= 0).all()):
            raise ValueError("value must be finite and non-negative")
        if self.simplex and not torch.allclose(value.sum(-1), torch.ones_like(value[:, 0]), atol=1e-4):
            raise ValueError("the rows of value must sum to one")
        if self.constraint == "projection":
            self.raw.copy_(value)
        else:
            spread = value.sum(-1, keepdim=True) / value.shape[-1]
            self.raw.copy_(((1 - _LEAK) * value + _LEAK * spread).clamp(min=1e-30).log())
        self.threshold.zero_()

    @torch.no_grad()
    def project_(self) -> None:
        """Bring the matrix back to its set: the nearest such matrix in the Euclidean sense."""
        if self.constraint == "softmax":
            return
        if self.simplex:
            project_rows_(self.raw, self.threshold)
        else:
            self.raw.relu_()

    @torch.no_grad()
    def center_gradient_(self) -> None:
        """Replace the gradient g of each simplex row w by g − ⟨w, g⟩.

        The projection ignores a shift of a whole row, but Adam does not: where the entries of g share a sign it makes
        their steps equal, the projection takes the common shift off again, and the row stands still for ever. Since
        ⟨w, g⟩ is the multiplier of Σ w = 1 at a minimum, the centred gradient vanishes on the support just there.
        """
        if self.simplex and self.constraint == "projection" and self.raw.grad is not None:
            for row, gradient in zip(in_pieces(self.raw), in_pieces(self.raw.grad), strict=True):
                gradient.sub_((row * gradient).sum(-1, keepdim=True))


class Tied(Rows):
    """Rows that several classes share: one stored row a group, one given row a class.

    Args:
        start: one row a group, in the order of the groups' numbers.
        groups: the group of each class, whole numbers.
        simplex: as for ``Rows``.
        constraint: as for ``Rows``.

    >>> Tied(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), [5, 2, 5], simplex=True)().tolist()
    [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    """

    row_of: Tensor

    def __init__(
        self, start: Tensor, groups: Sequence[int], *, simplex: bool, constraint: Constraint = "projection"
    ) -> None:
        super().__init__(start, simplex=simplex, constraint=constraint)
        _, row_of = torch.unique(torch.tensor(groups), return_inverse=True)
        self.register_buffer("row_of", row_of, persistent=False)

    def forward(self) -> Tensor:
        """Return the matrix with a row for each class."""
        return super().forward()[self.row_of]
