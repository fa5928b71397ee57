"""From maps to features by other ways than the mean: what stands out, what is together, and what is where.

A network makes maps of an image, d channels x_p at each position p of P. All of these need the same pass:

    largest      of each channel the largest value anywhere: what stands out counts, however small it is
    covariance   the entries of C^(1/2) on and above the diagonal, C = 1/P Σ_p Uᵀ(x_p − x̄)(x_p − x̄)ᵀU
    texture      the same of the maps that its last quarter starts from: fewer channels, at more positions
    parts        for each of m kinds of places c_j the mean Σ_p a_jp x_p, a_j = softmax over p of 16 cos(c_j, x_p)

A covariance says which channels respond in the same places: a red head is more than red and a head. Before the last
quarter it is how textures are told apart (Gatys et al., 2015): stripes and spots rather than wings. U ``(d, k)`` are
the directions in which channels vary most within images. The square root keeps those of the largest variance from
drowning all others; it is that of iSQRT-COV (Li et al., 2018), by Newton–Schulz iterations: products of small matrices,
which run anywhere. Parts see one kind of place at a time, wherever in the image it is, as the clusters of NetVLAD do
(Arandjelović et al., 2016). Directions and centres are found on images, without labels: ``faverage.vision.fit_pools``.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["centres_of", "covariance_root", "directions_of", "part_means", "pool"]

_STEPS = 6
_FLOOR = 1e-4  # of the mean eigenvalue, added to all
_SHARPNESS = 16.0
_MOST_PLACES = 20_000


def pool(kind: str, maps: Tensor, directions: Tensor | None = None, centres: Tensor | None = None) -> Tensor:
    """Return the features ``(n, d_v)`` of maps ``(n, d, h, w)``, by one of the pools, or their ``mean``.

    Those of ``texture`` are the maps before the last quarter, with directions of their own.
    """
    if kind == "mean":
        return maps.mean((2, 3), dtype=torch.float32)
    if kind == "largest":
        return maps.amax((2, 3)).float()
    assert directions is not None and centres is not None
    if torch.is_autocast_enabled(maps.device.type):  # products in half precision would lose the small directions
        with torch.autocast(maps.device.type, enabled=False):
            return pool(kind, maps, directions, centres)
    return part_means(maps.float(), centres) if kind == "parts" else covariance_root(maps.float(), directions)


def covariance_root(maps: Tensor, directions: Tensor) -> Tensor:
    """Return the root of the covariance, ``(n, k (k + 1) / 2)``, of maps ``(n, d, h, w)`` in directions ``(d, k)``.

    An image whose positions are all alike has features of zero.

    >>> maps = torch.tensor([[3.0, -3.0], [1.0, 1.0]]).reshape(1, 2, 1, 2)  # the first channel varies by 3
    >>> covariance_root(maps, torch.eye(2)).round(decimals=1).abs().tolist()
    [[3.0, 0.0, 0.0]]
    """
    x = maps.flatten(2)
    z = directions.T @ (x - x.mean(2, keepdim=True))
    covariance = z @ z.transpose(1, 2) / x.shape[2]
    k = covariance.shape[1]
    total = covariance.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    eye = torch.eye(k, dtype=x.dtype, device=x.device)
    # with all eigenvalues in (0, 1], y goes to the root and the other one to its inverse
    y = covariance / total.clamp_min(torch.finfo(x.dtype).tiny) + _FLOOR / k * eye
    inverse = eye.expand_as(y)
    for _ in range(_STEPS):
        step = 1.5 * eye - 0.5 * inverse @ y
        y, inverse = y @ step, step @ inverse
    rows, columns = np.triu_indices(k)
    found: Tensor = (y * total.sqrt())[:, rows, columns]
    return found


def part_means(maps: Tensor, centres: Tensor) -> Tensor:
    """Return the means at each kind of place, ``(n, m d)`` side by side, of maps ``(n, d, h, w)``; centres ``(m, d)``.

    >>> maps = torch.tensor([[9.0, 0.0], [0.0, 5.0]]).reshape(1, 2, 1, 2)  # a place of each of two channels
    >>> part_means(maps, torch.eye(2)).round(decimals=1).tolist()
    [[9.0, 0.0, 0.0, 5.0]]
    """
    x = maps.flatten(2)
    near = torch.softmax(_SHARPNESS * F.normalize(centres) @ F.normalize(x, dim=1), 2)
    return (near @ x.transpose(1, 2)).flatten(1)


def directions_of(scatter: NDArray[np.float64], count: int) -> Tensor:
    """Return the directions ``(d, k)`` of most variance, of a covariance ``(d, d)`` of channels within images."""
    vectors = np.linalg.eigh(scatter)[1]  # of ascending variance
    return torch.from_numpy(np.ascontiguousarray(vectors[:, ::-1][:, :count])).float()


def centres_of(places: NDArray[np.float32], count: int) -> Tensor:
    """Return the centres ``(m, d)`` of kinds of places, by k-means of channels at many places ``(q, d)``, length one.

    Those at which the network sees little, with channels shorter than on average, do not count: they are background.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    length = np.linalg.norm(places, axis=1)
    seen = places[length >= length.mean()]
    seen = seen[np.linspace(0, len(seen) - 1, min(len(seen), _MOST_PLACES)).astype(np.int64)]
    unit = F.normalize(torch.from_numpy(seen)).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # there may be fewer kinds than that
        several = np.resize(unit, (max(len(unit), count), unit.shape[1]))
        centres = KMeans(count, n_init=2, random_state=0).fit(several).cluster_centers_
    return F.normalize(torch.from_numpy(centres.astype(np.float32)))
