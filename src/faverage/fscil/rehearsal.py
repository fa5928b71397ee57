"""Rehearsal: the labelled features that the fuser learns from in each session.

Base classes give features that the backbone was not trained on, since predictions on training images are
over-confident. A new class has its few shots only, and they sit too close to their own prototype to be typical.
``residual`` draws stand-ins around the prototype instead, with the spread of the base classes:

    z̄_c + s (r_0 − mean(r_1 … r_m)),   r_i residuals of base features to their prototypes, m the number of shots.

The second term is the error of a prototype that is the mean of m shots; s, the spread, is 1 where new classes are as
wide as base classes. ``shots`` rehearses the shots themselves, the paper's literal reading. ``left-out`` rehearses
them, too, but each is scored as if its class had been learned from the other shots alone:

    z̄_c without shot i  =  (m z̄_c − z_i) / (m − 1)

so that it is as hard as an image that the class was not learned from. Stand-ins are not: what a backbone has never seen
lies off its prototype in directions that lead to other classes. With both, every class counts alike, however many
examples it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from faverage.fscil.heads import unit

__all__ = ["Memory", "Rehearsal", "Rehearsed", "means_of_others"]

Array = NDArray[Any]
Rehearsal = Literal["residual", "shots", "left-out"]


@dataclass
class Rehearsed:
    """What a fuser learns from.

    Attributes:
        features: ``(n, d)``.
        labels: ``(n,)``, numbers of classes.
        weight: ``(n,)``, their mean is one.
        own: ``(n, d)``, the prototype that stands for the example's own class; NaN where it is the usual one.
        left_out: ``(n,)``, which example of memory and shots, in this order, a member must not have learned from to
            score the row; -1 where it is none of them, or may be learned from.
    """

    features: Array
    labels: Array
    weight: Array
    own: Array
    left_out: Array


@dataclass
class Memory:
    """Features of earlier sessions.

    Attributes:
        base: ``(m, d)``, held-out features of base classes, as the backbone gives them.
        base_labels: ``(m,)``.
        residuals: ``(m, d)``, normalised base features minus their prototypes.
        length: mean length of the base features; drawn features get it.
        shots: for each new class, by number, its shots ``(n_shots, d)``.
    """

    base: Array
    base_labels: Array
    residuals: Array
    length: float
    shots: dict[int, Array]

    @classmethod
    def of_base(cls, base: Array, labels: Array, prototypes: Array) -> Memory:
        """Start the memory from held-out base features and the prototypes ``(C, d)``."""
        length = float(np.linalg.norm(base, axis=1).mean())
        return cls(base, labels, unit(base) - prototypes[labels], length, {})

    def examples(self) -> tuple[Array, Array]:
        """Return features and labels of all that is kept: the base features, then the shots, class by class."""
        labels = [np.full(len(shots), c) for c, shots in self.shots.items()]
        return np.concatenate([self.base, *self.shots.values()]), np.concatenate([self.base_labels, *labels])

    def rehearse(
        self,
        kind: Rehearsal,
        prototypes: Array,
        stand_ins: int,
        rng: np.random.Generator,
        *,
        spread: float = 1.0,
        balance: float = 1.0,
    ) -> Rehearsed:
        """Return what to train a fuser on: all of the memory, and the new classes.

        With ``residual`` each new class has ``stand_ins``, as wide as ``spread`` says; so has, with ``left-out``,
        a class of one shot. Examples of new classes count ``balance`` times. Memories of the same images in other views
        draw the same residuals from the same generator.
        """
        features, labels, own = [self.base], [self.base_labels], [np.full_like(self.base, np.nan)]
        left_out, first = [np.arange(len(self.base))], len(self.base)
        for c, shots in self.shots.items():
            if kind == "residual" or (kind == "left-out" and len(shots) == 1):
                chosen = rng.integers(0, len(self.residuals), (stand_ins, 1 + len(shots)))
                r = self.residuals[chosen]
                drawn = prototypes[c] + spread * (r[:, 0] - r[:, 1:].mean(1))
                new = (self.length * drawn).astype(self.base.dtype)
            else:
                new = shots
            features.append(new)
            labels.append(np.full(len(new), c))
            out = kind == "left-out" and new is shots
            own.append(means_of_others(new) if out else np.full_like(new, np.nan))
            left_out.append(first + np.arange(len(new)) if out else np.full(len(new), -1))
            first += len(shots)
        y = np.concatenate(labels)
        weight = np.ones(len(y)) if kind == "residual" else 1 / np.bincount(y)[y]
        weight[len(self.base) :] *= balance
        parts = np.concatenate(own), np.concatenate(left_out)
        return Rehearsed(np.concatenate(features), y, weight / weight.mean(), *parts)


def means_of_others(shots: Array) -> Array:
    """Return for each of the shots ``(m, d)`` of a class the mean of the others, normalised; NaN for a single one.

    >>> means_of_others(np.array([[2.0, 0.0], [0.0, 3.0]])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    z = unit(shots)
    return np.asarray((z.sum(0) - z) / (len(z) - 1)) if len(z) > 1 else np.full_like(z, np.nan)
