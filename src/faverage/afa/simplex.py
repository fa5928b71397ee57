"""Exact Euclidean projection of rows onto the unit simplex, without a sort.

The projection of v onto Δ = {w : w ≥ 0, Σ w = 1} is w = max(v − θ, 0), where θ is the root of the convex, decreasing,
piecewise linear function

    g(θ) = Σ_i max(v_i − θ, 0) − 1.

Newton's step θ ← θ + g(θ) / #{v_i > θ} lands at or below the root from wherever it starts, climbs from there, and is
exact as soon as the set {v_i > θ} stops changing: 4 to 8 passes from scratch, 1 or 2 from the threshold of the
previous training step. Each pass is a few memory-bound operations, where a sort costs several training steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["project_simplex"]

_CHUNK = 1 << 19  # entries worked on at a time on a CPU, so that a pass stays in cache
_MAX_PASSES = 100  # never reached: the set {v > θ} shrinks in each pass, by a lot
_CAPTURED_PASSES = 8  # inside a CUDA graph, where nothing can wait for the answer


def project_simplex(
    rows: Tensor, start: Tensor | None = None, *, return_threshold: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Project the last dimension of ``rows`` onto {w : w ≥ 0, Σ w = 1}, exactly and differentiably.

    Args:
        rows: ``(..., m)``, float32 or float64, any device. Entries of minus infinity count as excluded and become 0.
        start: ``(...)``, a guess of each row's threshold θ, usually that of a similar earlier projection; it makes the
            projection faster and does not change the result.
        return_threshold: also return θ, of shape ``(...)``: the projection is ``(rows - θ[..., None]).relu()``.

    Returns:
        The projected rows, of the shape of ``rows``; with ``return_threshold`` the pair (rows, θ).

    >>> w = project_simplex(torch.tensor([[0.9, 0.5, -1.0], [3.0, 3.0, 3.0]]))
    >>> w
    tensor([[0.7000, 0.3000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> (w.sum(-1) - 1).abs().max().item() < 1e-6
    True
    """
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.float32, torch.float64):
        kind = f"a {rows.dtype} tensor" if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"rows must be a float32 or float64 tensor, got {kind}")
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError(f"rows must have at least one entry in the last dimension, got shape {tuple(rows.shape)}")
    if start is not None:
        if not isinstance(start, Tensor) or start.shape != rows.shape[:-1]:
            found = tuple(start.shape) if isinstance(start, Tensor) else type(start).__name__
            raise ValueError(f"start must be a tensor of shape {tuple(rows.shape[:-1])}, one a row, got {found}")
        if not bool(start.isfinite().all()):
            raise ValueError("start must be finite")

    flat = rows.detach().reshape(-1, rows.shape[-1])
    highest = flat.amax(-1, keepdim=True)
    if not bool(highest.isfinite().all()):
        raise ValueError("rows must not contain NaN or plus infinity, nor consist of minus infinity alone")
    # with the largest entry at 0 the root lies in [-1, -1/m], and no digit of an entry that matters is lost
    shifted = (flat - highest).clamp_(min=-2)
    guess = (shifted.sum(-1, keepdim=True) - 1) / flat.shape[-1]
    if start is not None:
        guess = torch.maximum(guess, start.detach().reshape(-1, 1).to(rows) - highest)
    theta = newton_threshold(shifted, guess.clamp(-1, -1 / flat.shape[-1]))

    if rows.requires_grad and torch.is_grad_enabled():
        active = (shifted > theta).reshape(rows.shape)
        above = torch.where(active, rows - highest.reshape(*rows.shape[:-1], 1), 0.0)
        exact = (above.sum(-1, keepdim=True) - 1) / active.sum(-1, keepdim=True)
        projected = torch.where(active, (above - exact).relu(), 0.0)
    else:
        projected = shifted.sub_(theta).relu_().reshape(rows.shape)
    return (projected, (theta + highest).reshape(rows.shape[:-1])) if return_threshold else projected


def project_rows_(matrix: Tensor, threshold: Tensor) -> None:
    """Project the rows of ``matrix`` in place, starting from ``threshold`` and leaving the new one in it.

    The training loop's own version, for matrices whose entries are of the order of one: no shift, no copy, worked in
    pieces that fit in cache, or in one kernel on a GPU.

    Args:
        matrix: ``(r, m)``, contiguous.
        threshold: ``(r, 1)``, any finite numbers.
    """
    if matrix.is_cuda and torch.cuda.is_current_stream_capturing():
        _project_unwatched_(matrix, threshold)
        return
    pieces = in_pieces(matrix)
    for piece, theta in zip(pieces, threshold.split(len(pieces[0])), strict=True):
        theta.copy_(newton_threshold(piece, theta))
        if bool((theta.abs() > 2).any()) and bool(piece.isfinite().all()):  # far from one: take the careful way
            exact, moved = project_simplex(piece, return_threshold=True)
            piece.copy_(exact)
            theta.copy_(moved[:, None])
        else:
            piece.sub_(theta).relu_()


def _project_unwatched_(matrix: Tensor, threshold: Tensor) -> None:
    """Project while a CUDA graph is being captured, when nothing may wait for the device.

    With Triton, which PyTorch brings along for GPUs, one kernel runs every row to its exact end. Without it, or for
    very long rows, a fixed number of passes is made: enough from a warm start, and ``fit`` projects once more at the
    end of each epoch.
    """
    try:
        import faverage.afa._simplex_triton as _simplex_triton
    except ImportError:
        pass
    else:
        if matrix.shape[1] <= _simplex_triton.LONGEST_ROW:
            _simplex_triton.project_rows_(matrix, threshold)
            return
    for _ in range(_CAPTURED_PASSES):
        threshold.add_(newton_move(matrix, threshold))
    matrix.sub_(threshold).relu_()


def in_pieces(matrix: Tensor) -> tuple[Tensor, ...]:
    """Return blocks of whole rows of ``(r, m)``, as views: small enough for a CPU's cache, or all at once on a GPU."""
    step = len(matrix) if matrix.is_cuda else max(1, _CHUNK // matrix.shape[-1])
    pieces: tuple[Tensor, ...] = matrix.split(step)
    return pieces


def newton_threshold(rows: Tensor, theta: Tensor) -> Tensor:
    """Return the exact threshold ``(r, 1)`` of each row of ``(r, m)``, starting from ``theta``.

    A row is finished when a pass moves its threshold by rounding errors only.
    """
    tolerance = 4 * torch.finfo(rows.dtype).eps
    result, where = theta, None  # where: indices of the rows still open; None: all
    for _ in range(_MAX_PASSES):
        move = newton_move(rows, theta)
        theta = theta + move
        if where is None:
            result = theta
        else:
            result[where] = theta
        still_open = move.abs() > tolerance
        n_open = int(still_open.sum())
        if n_open == 0:
            break
        if 2 * n_open < len(rows):  # few rows left: go on with those alone
            chosen = still_open.squeeze(-1).nonzero().squeeze(-1)
            rows, theta = rows[chosen], theta[chosen]
            where = chosen if where is None else where[chosen]
    return result


def newton_move(rows: Tensor, theta: Tensor) -> Tensor:
    """Return Newton's step (Σ max(v − θ, 0) − 1) / #{v > θ} of rows ``(r, m)``, ``(r, 1)`` as θ; −1 for θ above all."""
    above = (rows - theta).relu_()
    excess = above.sum(-1, keepdim=True).sub_(1)
    return excess.div_(above.gt_(0).sum(-1, keepdim=True).clamp_(min=1))
