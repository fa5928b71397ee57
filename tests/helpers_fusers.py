"""Scores of models for the tests of the fusers."""

from typing import Any

import numpy as np

from faverage.fusion import Fuser, get_fuser

Array = np.ndarray[Any, Any]
K, N = 3, 4


def make_data(n: int, k: int = K, n_classes: int = N, gaps: bool = False, seed: int = 0) -> tuple[Array, Array]:
    """Model 0 is good, the others know nothing; with gaps, models know different classes and skip some rows."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    scores = rng.dirichlet(np.ones(n_classes), (n, k))
    scores[:, 0] = 0.4 * np.eye(n_classes)[y] + 0.6 * scores[:, 0]
    if gaps:
        scores[:, 1, 0] = np.nan
        scores[:, 2, :2] = np.nan
        scores /= np.nansum(scores, 2, keepdims=True)
        scores[::5, 1] = np.nan
        scores[7] = np.nan
    return scores, y


def log_loss(p: Array, y: Array) -> float:
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def quick_fuser(name: str) -> Fuser:
    """A fuser as it is, but for networks, which go over the data ten times rather than a hundred."""
    fuser = get_fuser(name)
    return get_fuser(name, epochs=10) if hasattr(fuser, "epochs") else fuser
