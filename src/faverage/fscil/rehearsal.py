"""Rehearsal: the labelled examples that the fuser of a learner learns from.

Base classes give examples that the backbone was not trained on, since predictions on training images are
over-confident. A new class has its few shots only, and they sit too close to their own prototype to be typical.
``left-out``, the usual kind, scores each of them as if its class had been learned from the other shots alone:

    z̄_c without shot i  =  (m z̄_c − z_i) / (m − 1)

so that it is as hard as an image that the class was not learned from. ``residual`` draws stand-ins around the prototype
instead, with the spread of the other classes:

    z̄_c + s (r_0 − mean(r_1 … r_m)),   r_i residuals of examples to their prototypes, m the number of shots.

The second term is the error of a prototype that is the mean of m shots; s, the spread, is 1 where new classes are as
wide as the others. Stand-ins are easier than images: what a backbone has never seen lies off its prototype in
directions that lead to other classes. With ``left-out``, the only shot of a class has stand-ins, too. ``shots``
rehearses the shots themselves, the paper's literal reading. Every class counts alike, however many examples it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from faverage.fscil.heads import Array, unit
from faverage.fscil.knowledge import Knowledge, Looked

__all__ = ["BalanceOf", "Rehearsal", "Rehearsed", "rehearse"]

Rehearsal = Literal["residual", "shots", "left-out"]
BalanceOf = Literal["classes", "kinds"]


@dataclass(frozen=True)
class Rehearsed:
    """What a fuser learns from.

    Attributes:
        views: features ``(n, d_v)``, by view, with what prototypes see of them.
        labels: ``(n,)``, numbers of classes.
        weight: ``(n,)``, their mean is one.
        left_out: ``(n,)``, which kept example a member must not have learned from to score the row; -1 where it is none
            of them, or may be learned from.
    """

    views: Looked
    labels: Array
    weight: Array
    left_out: Array


def rehearse(
    known: Knowledge,
    kind: Rehearsal,
    prototypes: dict[str, Array],
    rng: np.random.Generator,
    *,
    stand_ins: int = 50,
    spread: float = 1.0,
    balance: float = 1.0,
    balance_of: BalanceOf = "classes",
) -> Rehearsed:
    """Return what to train a fuser on: all that was held out from the base session, and the shots.

    Args:
        known: classes and examples.
        kind: see above.
        prototypes: by view ``(N, d_v)``.
        rng: for stand-ins, which are drawn in all views at once.
        stand_ins: of each class that has them.
        spread: s.
        balance: how much new classes count, where there are base classes.
        balance_of: whether that is each new class against each base class, or all of them against all of those.
    """
    counts = np.bincount(known.labels[known.shot], minlength=len(known.classes))
    single = known.shot & (counts + known.counts == 1)[known.labels]  # nothing is left of its class without it
    new = known.shot & (known.counts == 0)[known.labels]
    replaced = {"residual": new, "left-out": single, "shots": np.zeros_like(single)}[kind]
    kept = np.flatnonzero(~replaced)
    drawn = _Drawn(known, prototypes, replaced) if replaced.any() else None
    looked, labels, left_out = [known.kept.rows(kept)], [known.labels[kept]], [kept]
    if kind == "shots":
        left_out = [np.where(known.shot[kept], -1, kept)]
    for c in np.unique(known.labels[replaced]):
        if drawn is None or not drawn.can:
            break
        looked.append(drawn.stand_ins(int(c), int(counts[c]), stand_ins, spread, rng))
        labels.append(np.full(stand_ins, c))
        left_out.append(np.full(stand_ins, -1))
    y = np.concatenate(labels)
    weight = 1 / np.bincount(y, minlength=len(known.classes))[y]
    if (known.session == 0).any():
        if balance_of == "kinds" and (known.session > 0).any():
            balance *= (known.session == 0).sum() / (known.session > 0).sum()
        weight = weight * np.where(known.session[y] > 0, balance, 1.0)
    return Rehearsed(
        Looked.joined(looked),
        y,
        weight / weight.mean() if len(y) else weight,
        np.concatenate(left_out),
    )


class _Drawn:
    """Draws stand-ins from the residuals of examples to the prototypes of their classes."""

    def __init__(self, known: Knowledge, prototypes: dict[str, Array], replaced: Array) -> None:
        held_out = ~known.shot
        behind = known.counts + np.bincount(known.labels[known.shot], minlength=len(known.classes))
        rows = np.flatnonzero(held_out if held_out.any() else known.shot & (behind > 1)[known.labels])
        labels = known.labels[rows]
        self.can, self.prototypes, self.whitening = bool(len(rows)), prototypes, known.whitening
        self.residuals, self.length = {}, {}
        whose = rows if self.can else replaced
        for view, x in known.kept.seen.items():
            apart = unit(x[rows]) - prototypes[view][labels]
            if not held_out.any():  # a mean that the example is part of lies too near to it
                apart = apart * np.sqrt(behind / np.maximum(behind - 1, 1))[labels, None]
            self.residuals[view] = apart
            self.length[view] = [float(np.linalg.norm(z[whose], axis=1).mean()) for z in (known.views[view], x)]

    def stand_ins(self, c: int, shots: int, count: int, spread: float, rng: np.random.Generator) -> Looked:
        """Return features ``(count, d_v)`` of a class of so many shots, by view, and what prototypes see of them."""
        chosen = rng.integers(0, len(next(iter(self.residuals.values()))), (count, 1 + shots))
        views, seen = {}, {}
        for view, residuals in self.residuals.items():
            r = residuals[chosen]
            drawn = self.prototypes[view][c] + spread * (r[:, 0] - r[:, 1:].mean(1))
            length, seen_length = self.length[view]
            seen[view] = (seen_length * drawn).astype(np.float32)
            whitening = self.whitening.get(view)
            views[view] = seen[view] if whitening is None else length * whitening.inverse(seen[view])
        return Looked(views, seen)
