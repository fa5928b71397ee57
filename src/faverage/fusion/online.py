"""Streams: rows that lose weight as newer ones come, and the weights of models over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from faverage.afa.explain import check_names
from faverage.errors import UserError, install_line
from faverage.fusion.arrays import Array

__all__ = ["WeightHistory", "ages", "check_half_life", "shares_of"]

_MOST = 512  # points that a history keeps; then every second one goes


class WeightHistory:
    """The shares of models after each part of a stream, and the loss before it was learned from.

    It keeps up to 512 points, evenly over the stream; losses between them are averaged. ``models`` are their names.

    >>> history = WeightHistory()
    >>> for n in range(3):
    ...     history.add(100, np.array([0.5 + n / 10, 0.5 - n / 10]), loss=0.7 - n / 10)
    >>> history.examples.tolist(), history.shares[-1].round(2).tolist(), history.losses.round(2).tolist()
    ([100, 200, 300], [0.7, 0.3], [0.7, 0.6, 0.5])
    """

    def __init__(self) -> None:
        self.models: Sequence[str] | None = None
        self._points: list[tuple[int, Array | None, float]] = []  # examples since the point before, shares, loss
        self._least = 0  # examples that a point stands for, at least

    def add(self, n: int, shares: Array | None, loss: float) -> None:
        """Note what n more examples brought: shares ``(K,)``, None where a fuser has none, and their mean loss before.

        NaN stands for a loss that is not known.
        """
        if self._points and self._points[-1][0] < self._least:
            old, _, before = self._points.pop()
            n, loss = old + n, loss if math.isnan(before) else (old * before + n * loss) / (old + n)
        self._points.append((n, shares, loss))
        if len(self._points) > _MOST:
            self._least = 2 * max(self._least, math.ceil(self.examples[-1] / _MOST))
            points, self._points = self._points, []
            for point in points:
                self.add(*point)

    @property
    def examples(self) -> Array:
        """How many examples there had been at each point, ``(points,)``."""
        return np.cumsum([n for n, _, _ in self._points], dtype=np.int64)

    @property
    def shares(self) -> Array:
        """The share of each model at each point, over all classes, ``(points, K)``; NaN for one that was not there."""
        width = max((len(s) for _, s, _ in self._points if s is not None), default=0)
        found = np.full((len(self._points), width), np.nan)
        for row, (_, shares, _) in zip(found, self._points, strict=True):
            if shares is not None:
                row[: len(shares)] = shares
        return found

    @property
    def losses(self) -> Array:
        """The log-loss of the examples of each point before they were learned from, ``(points,)``; NaN at first."""
        return np.array([loss for _, _, loss in self._points])

    def plot(self, path: str | Path | None = None, models: Sequence[str] | None = None) -> Any:
        """Draw the shares of the models over the stream, and the loss below; return the figure.

        Args:
            path: also save the figure there; the ending says the format.
            models: the K names of the models; by default model 0, model 1, …
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError(f"plot needs matplotlib: {install_line('plot')}") from None
        shares, at = np.nan_to_num(self.shares), self.examples
        if not shares.size:
            raise UserError("there are no weights to draw: none was learned by partial_fit, or the fuser has none")
        names = check_names("models", models or self.models, shares.shape[1], "model {}")
        figure = Figure(figsize=(8.0, 4.8), layout="constrained")
        top, low = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]})
        top.stackplot(at, shares.T, labels=names, step="post", edgecolor="white", linewidth=0.3)
        top.set(ylim=(0, 1), xlim=(at[0], max(at[-1], at[0] + 1)), ylabel="share of each model")
        handles, labels = top.get_legend_handles_labels()
        top.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        low.plot(at, self.losses, color="0.3", linewidth=1.2)
        low.set(xlabel="examples", ylabel="log-loss\nbefore learning")
        low.grid(color="0.9")
        if path is not None:
            figure.savefig(path, dpi=150, bbox_inches="tight")
        return figure


def check_half_life(half_life: Any) -> float:
    """Return a half-life in examples, which may be infinite, or raise UserError."""
    if isinstance(half_life, bool) or not isinstance(half_life, Real) or not float(half_life) > 0:
        raise UserError(f"half_life must be a number of examples above 0, got {half_life!r}", what="half_life")
    return float(half_life)


def ages(n: int, half_life: float) -> Array:
    """Return what is left of the weight of n rows in the order of time, ``(n,)``, when the last of them comes.

    >>> ages(3, half_life=1).tolist()
    [0.25, 0.5, 1.0]
    """
    return np.asarray(0.5 ** (np.arange(n - 1, -1, -1) / half_life))


def shares_of(fuser: Any) -> Array | None:
    """Return the share of each model ``(K,)`` in a fitted fuser, over all classes; None where it has none to read."""
    if hasattr(fuser, "explain"):
        shares = np.array([share for _, _, share in fuser.explain().models.rows])
        return np.asarray(shares.reshape(fuser.n_classes, fuser.n_models).mean(0))
    weights = getattr(fuser, "weights", None)
    if isinstance(weights, np.ndarray) and weights.shape == (fuser.n_models,) and weights.sum() > 0:
        return np.asarray(weights / weights.sum())
    return None
