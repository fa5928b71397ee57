"""The projection onto the simplex as one GPU kernel: a row lives in registers while Newton's steps run over it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST_ROW = 1 << 15


@triton.jit  # type: ignore[untyped-decorator]
def _project(rows, threshold, m, tolerance, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < m
    v = tl.load(rows + row * m + column, mask=inside, other=float("-inf"))
    theta = tl.load(threshold + row)
    move = theta * 0 + 1
    passes = 0
    while (tl.abs(move) > tolerance) & (passes < 100):
        above = v > theta
        count = tl.sum(above.to(v.dtype), 0)
        excess = tl.sum(tl.where(above, v - theta, 0.0), 0) - 1
        move = excess / tl.maximum(count, 1.0)
        theta += move
        passes += 1
    tl.store(rows + row * m + column, tl.where(v > theta, v - theta, 0.0), mask=inside)
    tl.store(threshold + row, theta)


def project_rows_(matrix: Tensor, threshold: Tensor) -> None:
    """Project the rows of a contiguous ``(r, m)`` matrix on a GPU in place; ``threshold`` ``(r, 1)`` is updated."""
    m = matrix.shape[1]
    block = triton.next_power_of_2(m)
    tolerance = 4 * torch.finfo(matrix.dtype).eps
    _project[(len(matrix),)](matrix, threshold, m, tolerance, BLOCK=block, num_warps=min(16, max(1, block // 512)))
