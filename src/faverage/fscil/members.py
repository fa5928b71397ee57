"""The members of a learner: all heads that its knowledge makes, and what they say of features, as ``(n, K, N)``."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from faverage.fscil import fusers
from faverage.fscil.heads import (
    Array,
    CosineHead,
    LinearHead,
    PrototypeHead,
    RidgeHead,
    calibrated,
    fit_ridge,
    learn_temperature,
)
from faverage.fscil.knowledge import Knowledge, Views
from faverage.fusion.arrays import softmax

__all__ = ["Member", "Members"]

USUAL_TEMPERATURE = 16.0


@dataclass(frozen=True)
class Member:
    """One head.

    Attributes:
        name: to read.
        kind: ``base``, ``prototypes`` or ``ridge``.
        view: whose features it takes; None: those of all views.
        head: what makes scores of them.
        classes: ``(C,)``, the class of each of its columns.
    """

    name: str
    kind: str
    view: str | None
    head: LinearHead | CosineHead | PrototypeHead | RidgeHead
    classes: Array


class Members:
    """The heads of a learner, made from what it knows.

    By default each view has its base head, where there was a base session, and the head of its nearest prototypes; one
    more, ridge regression, sees all views. With ``sessions`` they are the paper's: each view has its base head, and a
    head of prototypes for every session.

    The options are those of ``FewShotLearner``. A temperature of None is learned on what was held out from the base
    session, or, where there was none, on the shots, each left out.
    """

    def __init__(
        self,
        known: Knowledge,
        kind: fusers.Members,
        *,
        calibration: float = 0.0,
        temperature: float | None = None,
        ridge: float | None = None,
        scope: str = "all",
    ) -> None:
        self.known, self.n_classes = known, len(known.classes)
        self.prototypes: dict[str, Array] = {}
        self.temperatures: dict[str, float] = {}
        self._others: dict[str, Array] = {}  # by view, the prototype of its own class without each kept example
        self._ridge_left_out: Array | None = None
        self.members: list[Member] = []
        base = known.session == 0
        several = len(known.views) > 1
        for view in known.views:
            means, others = known.prototypes(view), known.others(view)
            if base.any():
                means[~base] = calibrated(means[~base], means[base], share=calibration)
                new = ~base[known.labels]
                others[new] = calibrated(others[new], means[base], share=calibration)
            self.prototypes[view], self._others[view] = means, others
            self.temperatures[view] = tau = temperature or self._temperature(view, base)
            of = f"{view}, " if several else ""
            heads = [one for one in known.heads if one.view == view]
            for i, one in enumerate(heads, 1):
                name = f"{of}base head" + (f" {i}" if i > 1 else "")
                self.members.append(Member(name, "base", view, one.head, one.classes))
            if kind == "views":
                every = np.arange(self.n_classes)
                self.members.append(Member(f"{of}prototypes", "prototypes", view, PrototypeHead(means, tau), every))
                continue
            for k in range(1, int(known.session.max(initial=0)) + 1):
                classes = np.flatnonzero(known.session <= k if scope == "all" else known.session == k)
                head = PrototypeHead(means[classes], tau)
                self.members.append(Member(f"{of}session {k}", "prototypes", view, head, classes))
        if kind == "views" and ridge is not None and self.n_classes > 1:
            views = list(known.kept.seen.values())
            # of a class with one kept example nothing but the anchor would be left without it, a mean without noise
            more_than_one = np.bincount(known.labels, minlength=self.n_classes) > 1
            behind = np.flatnonzero((known.counts > 0) & more_than_one)
            anchors = [known.anchors[view][behind] for view in known.views], behind
            head_of_all, self._ridge_left_out = fit_ridge(views, known.labels, self.n_classes, ridge, anchors)
            self.members.append(Member("ridge", "ridge", None, head_of_all, np.arange(self.n_classes)))

    def of(self, known: Knowledge) -> Members:
        """Return the same members of a knowledge that differs in labels alone."""
        same = copy(self)
        same.known = known
        return same

    @property
    def names(self) -> list[str]:
        """Names of the K members."""
        return [member.name for member in self.members]

    def place(self, kind: str) -> int:
        """Return the number of the first member of a kind; ValueError where there is none."""
        for k, member in enumerate(self.members):
            if member.kind == kind:
                return k
        raise ValueError("there is no base head: only a learner with a base session has one")

    def own(self, view: str, left_out: Array, classes: Array, labels: Array) -> tuple[Array, Array]:
        """Return what ``PrototypeHead.distances`` takes for examples that are left out ``(n,)``, -1 where they are not.

        Args:
            view: its name.
            left_out: ``(n,)``, numbers of kept examples, or -1.
            classes: ``(C,)`` of the head.
            labels: ``(n,)``, class of each example.
        """
        column = np.full(self.n_classes, -1)
        column[classes] = np.arange(len(classes))
        means = self._others[view][left_out]
        means[left_out < 0] = np.nan
        return column[labels], means

    def scores(self, views: Views, left_out: tuple[Array, Array] | None = None) -> Array:
        """Return what the members say: ``(n, K, N)``, NaN for classes that one does not know.

        Args:
            views: features ``(n, d_v)``, by view.
            left_out: numbers of kept examples that are scored by members that have not learned from them, -1 for other
                rows, and the classes of all rows, both ``(n,)``.
        """
        looked = self.known.looked(views)
        n = len(next(iter(looked.values())))
        scores = np.full((n, len(self.members), self.n_classes), np.nan, dtype=np.float32)
        for k, member in enumerate(self.members):
            head = member.head
            if isinstance(head, RidgeHead):
                outputs = head.outputs(list(looked.seen.values()))
                if left_out is not None and self._ridge_left_out is not None:
                    rows = left_out[0] >= 0
                    outputs[rows] = self._ridge_left_out[left_out[0][rows]]
                said = softmax(head.temperature * outputs)
            elif isinstance(head, PrototypeHead):
                view = str(member.view)
                own = None if left_out is None else self.own(view, left_out[0], member.classes, left_out[1])
                said = head.scores(looked.seen[view], own)
            else:
                whitened = isinstance(head, CosineHead) and head.whitened
                said = head.scores((looked.seen if whitened else looked)[str(member.view)])
            if len(member.classes) == self.n_classes and member.kind != "base":
                scores[:, k] = said
            else:
                scores[:, k, member.classes] = said
        return scores

    def _temperature(self, view: str, base: Array) -> float:
        known = self.known
        held_out = ~known.shot
        if held_out.any():
            classes = np.flatnonzero(base)
            place = np.cumsum(base) - 1
            head = PrototypeHead(self.prototypes[view][classes], USUAL_TEMPERATURE)
            return learn_temperature(head, known.kept.seen[view][held_out], place[known.labels[held_out]])
        rows = np.flatnonzero(np.isfinite(self._others[view][:, 0]))
        if self.n_classes < 2 or not len(rows):
            return USUAL_TEMPERATURE
        own = self.own(view, rows, np.arange(self.n_classes), known.labels[rows])
        head = PrototypeHead(self.prototypes[view], USUAL_TEMPERATURE)
        return learn_temperature(head, known.kept.seen[view][rows], known.labels[rows], own)
