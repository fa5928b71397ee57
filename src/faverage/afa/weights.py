"""Matrices of weights that can be read, and the sets that they stay in.

Rows are non-negative and, where asked, sum to one; classes may share them (``Tied``), or come in groups whose rows read
the columns of their own group only, without storing the zeros (``Blocks``). With groups of s classes and C columns a
class (C = K for W, C = J for A) a row has C·s entries instead of C·N. Groups of one size lie in one stack
``(g, s, C·s)``, which a batched product takes as it is, so nothing is padded: the numbers stored are Σ C·s² over the
groups, N·C·s where all are of one size, and never more than the N·C·N of a full matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from faverage.afa.simplex import in_pieces, project_rows_

__all__ = ["Blocks", "Constraint", "GroupSpec", "Groups", "Parts", "Rows", "Tied", "row_pieces"]

Constraint = Literal["projection", "softmax"]
_LEAK = 1e-2  # share of the start that the softmax constraint spreads over all entries: it cannot express a zero


class Rows(nn.Module):
    """A matrix ``(r, m)`` whose rows are non-negative and, with ``simplex``, sum to one.

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
        """Return the matrix ``(r, m)``."""
        if self.constraint == "projection":
            return self.raw
        return self.raw.softmax(-1) if self.simplex else self.raw.exp()

    @torch.no_grad()
    def set_(self, value: Tensor) -> None:
        """Set the matrix ``(r, m)``; with the softmax constraint zeros become small positive numbers."""
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
        start: ``(G, m)``, one row a group, in the order of the groups' numbers.
        groups: the group of each class, whole numbers.
        simplex: as for ``Rows``.
        constraint: as for ``Rows``.

    Attributes:
        row_of: ``(N,)``, the stored row of each class.

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
        """Return the matrix ``(N, m)`` with a row for each class."""
        return super().forward()[self.row_of]


GroupSpec = int | Sequence[int]
Parts = Sequence[Sequence[Tensor]]  # for each size of group, pieces of some groups each

_PIECE = 1 << 19  # scores worked on at a time on a CPU: temporaries that large stay in cache and need no new pages


class Groups(nn.Module):
    """A partition of N classes.

    Args:
        groups: a group number for each class, any whole numbers; or a number of groups, which are then contiguous and
            of about equal size.
        n: N.

    Attributes:
        numbers: the group of each class, as given.
        shapes: (number of groups, their size), once for each size that occurs, the largest first.
        places: ``(N,)``, where each class stands when groups of one size lie together.

    >>> Groups(2, 5).numbers
    [0, 0, 0, 1, 1]
    >>> Groups([7, 3, 7, 3, 1], 5).shapes
    [(2, 2), (1, 1)]
    """

    places: Tensor

    def __init__(self, groups: GroupSpec, n: int) -> None:
        super().__init__()
        self.numbers = _check_groups(groups, n)
        order = np.argsort(self.numbers, kind="stable")
        starts = np.unique(np.asarray(self.numbers)[order], return_index=True)[1]
        by_size: dict[int, list[Any]] = {}
        for members in np.split(order, starts[1:]):
            by_size.setdefault(len(members), []).append(members)
        stacks = [np.stack(by_size[size]) for size in sorted(by_size, reverse=True)]
        self.shapes: list[tuple[int, int]] = [(len(stack), stack.shape[1]) for stack in stacks]
        for i, stack in enumerate(stacks):
            self.register_buffer(f"members_{i}", torch.from_numpy(stack), persistent=False)
        flat = np.concatenate([stack.ravel() for stack in stacks])
        self.register_buffer("places", torch.from_numpy(np.argsort(flat)), persistent=False)

    @property
    def members(self) -> list[Tensor]:
        """The classes of each group, ``(g, s)`` for each size s."""
        return [self.get_buffer(f"members_{i}") for i in range(len(self.shapes))]

    def split(self, scores: Tensor) -> list[list[Tensor]]:
        """Return scores ``(n, K, N)`` by group: for each size s pieces ``(g, n, K·s)``."""
        parts = []
        for members in self.members:
            step = len(members)
            if not at_once(scores):
                step = max(1, _PIECE // max(1, scores[:, :, 0].numel() * members.shape[1]))
            pieces = [scores[:, :, some] for some in members.split(step)]  # (n, K, g, s)
            parts.append([piece.permute(2, 0, 1, 3).flatten(2) for piece in pieces])
        return parts

    def join(self, parts: Parts) -> Tensor:
        """Return ``(n, N)``, in the order of the classes, of pieces ``(g, n, s)`` for each size s."""
        every = [piece.transpose(0, 1).flatten(1) for pieces in parts for piece in pieces]
        return torch.cat(every, 1)[:, self.places]

    def rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Return ``(N, ...)``, in the order of the classes, of ``(g, s, ...)`` for each size s."""
        return torch.cat([part.flatten(0, 1) for part in parts])[self.places]

    def extra_repr(self) -> str:
        """Say how many groups of which size."""
        return ", ".join(f"{g} of {s}" for g, s in self.shapes)


class Blocks(nn.Module):
    """A matrix ``(N, C·N)`` that is zero outside the groups; its rows are kept in their set as those of ``Rows``.

    Args:
        groups: the partition.
        copies: C.
        start: of the entries that say how much a class counts for itself, in each copy; the others start at 0.
        simplex: whether rows sum to one.
        constraint: as for ``Rows``.

    >>> blocks = Blocks(Groups(2, 4), copies=3, start=1 / 3, simplex=True)
    >>> blocks().shape, sum(p.numel() for p in blocks.parameters())
    (torch.Size([4, 12]), 24)
    """

    def __init__(
        self, groups: Groups, copies: int, start: float, *, simplex: bool, constraint: Constraint = "projection"
    ) -> None:
        super().__init__()
        self.groups, self.copies = groups, copies
        self.stacks = nn.ModuleList(
            Rows(torch.eye(s).repeat(g, copies).mul_(start), simplex=simplex, constraint=constraint)
            for g, s in groups.shapes
        )

    def stored(self) -> list[Tensor]:
        """Return the blocks, ``(g, s, C, s)`` for each size s: group, class, copy, class that is read."""
        pairs = zip(self.stacks, self.groups.shapes, strict=True)
        return [stack().reshape(g, s, self.copies, s) for stack, (g, s) in pairs]

    def product(self, parts: Parts) -> list[list[Tensor]]:
        """Multiply pieces ``(g, n, C·s)`` by the blocks: ``(g, n, s)`` each."""
        products = []
        for pieces, block in zip(parts, self.stored(), strict=True):
            matrices = block.flatten(2).mT.split([len(piece) for piece in pieces])
            products.append([piece @ matrix for piece, matrix in zip(pieces, matrices, strict=True)])
        return products

    def by_copy(self) -> Tensor:
        """Return the sum of each row over the classes, ``(N, C)``."""
        return self.groups.rows([block.sum(-1) for block in self.stored()])

    def forward(self) -> Tensor:
        """Return the whole matrix ``(N, C·N)`` with its zeros, made anew: for looking at, where N is not large."""
        n = len(self.groups.numbers)
        blocks = self.stored()
        whole = blocks[0].new_zeros(n, self.copies, n)
        for place, block in zip(self._places(), blocks, strict=True):
            whole[place] = block
        return whole.flatten(1)

    @torch.no_grad()
    def set_(self, value: Tensor) -> None:
        """Set the matrix from ``(N, C·N)``, which must be zero outside the groups."""
        n = len(self.groups.numbers)
        if value.shape != (n, self.copies * n):
            raise ValueError(f"value must have shape {(n, self.copies * n)}, got {tuple(value.shape)}")
        blocks = [value.reshape(n, self.copies, n)[place] for place in self._places()]
        if sum(int(block.count_nonzero()) for block in blocks) != int(value.count_nonzero()):
            raise ValueError("value must be zero where a class would read one of another group")
        for stack, block in zip(self._rows(), blocks, strict=True):
            stack.set_(block.reshape(stack.raw.shape))

    def project_(self) -> None:
        """Bring the matrix back to its set."""
        for stack in self._rows():
            stack.project_()

    def _rows(self) -> list[Rows]:
        return list(self.stacks)  # type: ignore[arg-type]

    def _places(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return, for each size, where its entries lie in ``(N, C, N)``."""
        copy = torch.arange(self.copies, device=self.groups.places.device)[:, None]
        return [(m[:, :, None, None], copy, m[:, None, None, :]) for m in self.groups.members]


def at_once(scores: Tensor) -> bool:
    """Return whether to work on scores ``(n, K, N)`` in one piece: small ones, those on a GPU, or in tracing."""
    return scores.device.type != "cpu" or torch.compiler.is_compiling() or scores.numel() <= _PIECE


def row_pieces(scores: Tensor) -> tuple[Tensor, ...]:
    """Return scores ``(n, K, N)`` cut into pieces of some rows each, as views, or whole where that is better."""
    if at_once(scores):
        return (scores,)
    pieces: tuple[Tensor, ...] = scores.split(max(1, _PIECE // scores[0].numel()))
    return pieces


def _check_groups(groups: Any, n: int) -> list[int]:
    numbers = np.asarray(groups)
    if numbers.dtype.kind not in "iu" or numbers.ndim > 1:
        raise ValueError(f"groups must be a whole number, or one whole number for each of the {n} classes")
    if numbers.ndim == 0:
        if not 1 <= numbers <= n:
            raise ValueError(f"groups must be between 1 and the {n} classes, got {numbers}")
        numbers = np.arange(n) * int(numbers) // n
    if len(numbers) != n:
        raise ValueError(f"groups must have a group number for each of the {n} classes, got {len(numbers)}")
    found: list[int] = numbers.tolist()
    return found
