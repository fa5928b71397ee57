"""Second-order pooling: how the channels of a network vary together over the positions of an image.

With x_p the d channels at position p of P, x̄ their mean, and U ``(d, k)`` the directions in which they vary most within
images, the covariance of an image and its features are

    C = 1/P Σ_p Uᵀ(x_p − x̄)(x_p − x̄)ᵀU,   the k (k + 1) / 2 entries of C^(1/2) on and above the diagonal.

Means say what an image shows, covariances what it shows in the same place: a red head, not red and a head. The square
root keeps the few directions of the largest variance from drowning all others. It is that of iSQRT-COV (Li et al.,
2018), by Newton–Schulz iterations: products of small matrices, which run anywhere. No further pass is needed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["covariance_root", "width_of"]

_STEPS = 6
_FLOOR = 1e-4  # of the mean eigenvalue, added to all


def width_of(directions: int) -> int:
    """Return the number of features of a covariance in k directions.

    >>> width_of(64)
    2080
    """
    return directions * (directions + 1) // 2


def covariance_root(maps: Tensor, directions: Tensor) -> Tensor:
    """Return the root of the covariance, ``(n, k (k + 1) / 2)``, of channels ``(n, d, h, w)`` in directions ``(d, k)``.

    An image whose positions are all alike has features of zero.

    >>> maps = torch.tensor([[3.0, -3.0], [1.0, 1.0]]).reshape(1, 2, 1, 2)  # the first channel varies by 3
    >>> covariance_root(maps, torch.eye(2)).round(decimals=1).abs().tolist()
    [[3.0, 0.0, 0.0]]
    """
    if torch.is_autocast_enabled(maps.device.type):  # products in half precision would lose the small directions
        with torch.autocast(maps.device.type, enabled=False):
            return covariance_root(maps, directions)
    x = maps.flatten(2).float()
    z = directions.T @ (x - x.mean(2, keepdim=True))
    covariance = z @ z.transpose(1, 2) / x.shape[2]
    k = covariance.shape[1]
    total = covariance.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    eye = torch.eye(k, dtype=x.dtype, device=x.device)
    # with all eigenvalues in (0, 1], y goes to the root and z to its inverse
    y = covariance / total.clamp_min(torch.finfo(x.dtype).tiny) + _FLOOR / k * eye
    inverse = eye.expand_as(y)
    for _ in range(_STEPS):
        step = 1.5 * eye - 0.5 * inverse @ y
        y, inverse = y @ step, step @ inverse
    rows, columns = np.triu_indices(k)
    found: Tensor = (y * total.sqrt())[:, rows, columns]
    return found
