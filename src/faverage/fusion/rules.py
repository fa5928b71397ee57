"""Plain rules, with nothing to learn: the four means of the paper's Table 1, and majority voting.

They are the baselines that a learned average has to beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from faverage.afa.means import Arithmetic, Geometric, Harmonic, Mean, Power
from faverage.fusion.align import Padding, check_padding, pad
from faverage.fusion.arrays import Array, masked_mean, normalise
from faverage.fusion.base import Fuser, register_fuser

__all__ = ["ArithmeticMean", "GeometricMean", "HarmonicMean", "MeanRule", "PowerMean", "Rule", "Vote"]

_SMOOTHING = 0.01  # share of the uniform distribution in the part of a vote that the mean probability decides


@dataclass(eq=False, kw_only=True)
class Rule(Fuser):
    """A fuser without training.

    Args:
        padding: how to fill classes that a model does not know (see ``faverage.pad``). None leaves them out: a
            class is then judged only by the models that know it, and gets 0 where none does.
        threshold: of the padding ``inlierness``.
    """

    trains = False
    padding: Padding | None = None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.padding is not None:
            check_padding(self.padding, self.threshold)

    def _padded(self, scores: Array) -> Array:
        return scores if self.padding is None else pad(scores, self.padding, self.threshold)


@dataclass(eq=False, kw_only=True)
class MeanRule(Rule):
    """The f-average of the models that know a class, all with equal weights, scaled to sum to one.

    With M_n the models that know class n:  x̃_n = f⁻¹( 1/|M_n| · Σ_{k in M_n} f(x_kn) ).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mean()

    def _mean(self) -> Mean:
        """Return f."""
        raise NotImplementedError

    def _predict(self, scores: Array) -> Array:
        return self._average(self._padded(scores))

    def _average(self, values: Array) -> Array:
        """Return x̃ ``(n, N)`` of values ``(n, K, N)``, which may have NaN."""
        mean, known = self._mean(), ~np.isnan(values)
        count = known.sum(1)
        mapped = mean(torch.from_numpy(np.where(known, values, 0.0))).numpy()
        average = np.where(known, mapped, 0.0).sum(1) / np.maximum(count, 1)
        fused: Array = np.where(count > 0, mean.inverse(torch.from_numpy(average)).numpy(), 0.0)
        return np.maximum(fused, 0.0)


@register_fuser("arithmetic")
@dataclass(eq=False, kw_only=True)
class ArithmeticMean(MeanRule):
    """f(x) = x: the plain mean, or sum rule.

    >>> ArithmeticMean().predict_proba([[[0.9, 0.1], [0.5, 0.5]]])
    array([[0.7, 0.3]])
    """

    def _mean(self) -> Mean:
        return Arithmetic()


@register_fuser("geometric")
@dataclass(eq=False, kw_only=True)
class GeometricMean(MeanRule):
    """f(x) = ln(x + ε): the product rule; one model near 0 is a veto."""

    eps: float = 1e-3

    def _mean(self) -> Mean:
        return Geometric(self.eps)


@register_fuser("harmonic")
@dataclass(eq=False, kw_only=True)
class HarmonicMean(MeanRule):
    """f(x) = 1/(x + ε) − ε: the strictest of the means."""

    eps: float = 1e-2

    def _mean(self) -> Mean:
        return Harmonic(self.eps)


@register_fuser("power")
@dataclass(eq=False, kw_only=True)
class PowerMean(MeanRule):
    """f(x) = x^q: q = 2 is the quadratic mean; a large q leans to the maximum."""

    q: float = 2.0

    def _mean(self) -> Mean:
        return Power(self.q)

    def _average(self, values: Array) -> Array:
        """Scale the largest score of each class to one and back: the same mean, but x^q does not vanish."""
        top = np.fmax.reduce(values, axis=1, keepdims=True)
        top = np.where(top > 0, top, 1.0)
        average: Array = super()._average(values / top) * top[:, 0]
        return average


@register_fuser("vote")
@dataclass(eq=False, kw_only=True)
class Vote(Rule):
    """Majority vote; ties go to the mean probability, or to the first class.

    Each model votes for its most probable class among those that it knows; where several are equal, for the one of
    them with the largest mean probability. A model that gave no answer does not vote. With v_n votes out of V, and m
    the mean probabilities (with a hundredth of the uniform distribution, so that no class gets 0),

        p_n = (v_n + m_n/2) / (V + 1/2).

    As m_n/2 < 1, votes decide first and m only between classes with as many votes.

    Args:
        ties: ``mean`` as above, or ``first``: p_n = v_n / V, so that of classes with as many votes the first is the
            most probable one, as in counts of hard labels.

    >>> Vote().predict_proba([[[0.6, 0.4], [0.9, 0.1], [0.0, 1.0]]]).round(3)
    array([[0.643, 0.357]])
    """

    ties: Literal["mean", "first"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ties not in ("mean", "first"):
            raise ValueError(f"ties must be 'mean' or 'first', got {self.ties!r}")

    def _predict(self, scores: Array) -> Array:
        values = self._padded(scores)
        n_rows, _, n_classes = values.shape
        mean = normalise(masked_mean(values))
        filled = np.where(np.isnan(values), -1.0, values)
        top = filled.max(2, keepdims=True)
        by_mean = self.ties == "mean"
        choice = np.where(filled == top, mean[:, None] if by_mean else 1.0, -1.0).argmax(2)
        answered = top[:, :, 0] >= 0
        votes = np.zeros((n_rows, n_classes))
        np.add.at(votes, (np.arange(n_rows)[:, None], choice), answered)
        if not by_mean:
            return normalise(votes)
        mean = (1 - _SMOOTHING) * mean + _SMOOTHING / n_classes
        shares: Array = (votes + mean / 2) / (answered.sum(1, keepdims=True) + 0.5)
        return shares
