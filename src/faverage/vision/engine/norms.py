"""Batch norm over a batch that several processes share: each sees a part, all use the statistics of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from faverage.vision.engine.processes import Team


@contextmanager
def shared_norms(network: nn.Module, team: Team) -> Iterator[None]:
    """Let every batch norm of a network see the whole batch; undone after. Parts must be of one size.

    On a GPU torch has its own, ``SyncBatchNorm``; this one works on any device, and leaves the network's classes alone.
    """
    norms: list[Any] = [m for m in network.modules() if isinstance(m, _BatchNorm)] if team.size > 1 else []
    for norm in norms:
        norm.forward = partial(_forward, norm, team)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: _BatchNorm, team: Team, x: Tensor) -> Tensor:
    """Normalise x by mean and variance over all processes; the running statistics follow as ever."""
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, x)
        return plain
    dims = [0, *range(2, x.ndim)]
    shape = [1, -1] + [1] * (x.ndim - 2)
    wide = x.float()
    mean = team.mean(wide.mean(dims))
    centred = wide - mean.view(shape)
    variance = team.mean(centred.square().mean(dims))
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            share = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
            n = x.numel() // x.shape[1] * team.size
            norm.running_mean.lerp_(mean.detach(), share)
            norm.running_var.lerp_(variance.detach() * n / max(n - 1, 1), share)
    scaled = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        scaled = scaled * norm.weight.view(shape) + norm.bias.view(shape)
    return scaled.to(x.dtype)
