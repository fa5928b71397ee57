"""Why a learner gives an answer: what each member says, how much it counts, and the nearest examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from faverage.fscil.heads import Array, unit
from faverage.fscil.knowledge import Knowledge, Views
from faverage.fscil.members import Members
from faverage.fusion import Fuser

__all__ = ["Neighbour", "Said", "Why", "reasons", "similarity"]


@dataclass(frozen=True)
class Said:
    """What one member says of an example.

    Attributes:
        member: its name.
        best: the class that it would answer itself.
        probability: that it gives to the learner's answer; None where it does not know that class.
        push: how much it speaks for the learner's answer and against the next best class, as a part of the log-odds of
            the two; None where the fuser is not a sum of what members say.
    """

    member: str
    best: Any
    probability: float | None
    push: float | None


@dataclass(frozen=True)
class Neighbour:
    """A kept example: its row in ``learner.known``, its label, and its cosine similarity, the mean over views."""

    row: int
    label: Any
    similarity: float


@dataclass(frozen=True)
class Why:
    """Why an example has its answer.

    Attributes:
        label: the answer.
        probability: of the answer.
        familiarity: see ``FewShotLearner.familiarity``.
        against: the next best class; None where only one class is known.
        said: by each member.
        nearest: kept examples, the most similar first.
    """

    label: Any
    probability: float
    familiarity: float
    against: Any
    said: tuple[Said, ...]
    nearest: tuple[Neighbour, ...]


def reasons(
    members: Members, fuser: Fuser | None, views: Views, fused: Array, familiarity: Array, neighbours: int
) -> list[Why]:
    """Return why each example has its answer.

    Args:
        members: of the learner.
        fuser: of the learner.
        views: features ``(n, d_v)``, by view.
        fused: ``(n, N)``, the learner's probabilities.
        familiarity: ``(n,)``.
        neighbours: how many kept examples to name.
    """
    known, scores = members.known, members.scores(views)
    order = np.argsort(-fused, axis=1, kind="stable")
    first, second = order[:, 0], order[:, min(1, order.shape[1] - 1)]
    split = getattr(fuser, "contributions", None)
    pushes = None if split is None else split(scores, first, second)
    own = np.nan_to_num(scores, nan=-1.0).argmax(2)
    similar = similarity(known, views)
    found = []
    for i, c in enumerate(first):
        said = tuple(
            Said(
                name,
                known.classes[own[i, k]],
                None if np.isnan(scores[i, k, c]) else float(scores[i, k, c]),
                None if pushes is None else float(pushes[i, k]),
            )
            for k, name in enumerate(members.names)
        )
        rows = np.argsort(-similar[i], kind="stable")[:neighbours]
        near = tuple(Neighbour(int(r), known.classes[known.labels[r]], float(similar[i, r])) for r in rows)
        against = known.classes[second[i]] if len(known.classes) > 1 else None
        found.append(Why(known.classes[c], float(fused[i, c]), float(familiarity[i]), against, said, near))
    return found


def similarity(known: Knowledge, views: Views) -> Array:
    """Return the cosine of every example to every kept one, ``(n, kept)``, as prototypes see them; mean over views."""
    seen = known.looked(views).seen
    return np.asarray(np.mean([unit(x) @ unit(known.kept.seen[view]).T for view, x in seen.items()], axis=0))
