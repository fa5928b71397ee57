"""What a learner answers and why, and what it confuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from faverage.afa.network import AFA
from faverage.fscil import FewShotLearner
from faverage.fscil.rehearsal import means_of_others
from faverage.fusion.align import pad

__all__ = ["Answer", "answered", "answers", "compared", "confusions"]

Array = NDArray[Any]

CLEAR_LOSS = 0.05


@dataclass(frozen=True)
class Answer:
    """What a model says of one picture.

    Attributes:
        top: all classes with their probabilities, the most probable first.
        heads: for each head its name, its own best class, and its probability of the answered class (0 where it does
            not know that class).
        means: share of each mean in the fused output for the answered class; empty where the fuser has no means.
    """

    top: tuple[tuple[str, float], ...]
    heads: tuple[tuple[str, str, float], ...]
    means: tuple[tuple[str, float], ...]


def answers(learner: FewShotLearner, features: Array) -> list[Answer]:
    """Return what the learner says of features ``(n, d)``."""
    scores = learner.scores_of(features)
    fused = learner.fuse(scores)
    best = fused.argmax(1)
    names, shares = _means(learner, scores, best)
    known = np.nan_to_num(scores, nan=0.0)
    heads = ["base", *(f"session {k}" for k in range(1, len(learner.heads)))]
    found = []
    for i, order in enumerate(np.argsort(-fused, axis=1, kind="stable")):
        top = tuple((learner.classes[c], float(fused[i, c])) for c in order)
        own = known[i].argmax(1)
        said = tuple((h, learner.classes[own[k]], float(known[i, k, best[i]])) for k, h in enumerate(heads))
        found.append(Answer(top, said, tuple(zip(names, map(float, shares[i]), strict=True))))
    return found


def _means(learner: FewShotLearner, scores: Array, best: Array) -> tuple[list[str], Array]:
    """Return the means' names and their shares ``(n, J)``: A_j[c] x̃_j over the sum of these, for the answer c."""
    fuser: Any = learner.fitted
    network = getattr(fuser, "network", None)
    if not isinstance(network, AFA) or len(learner.heads) == 1:
        return [], np.zeros((len(scores), 0))
    with torch.inference_mode():
        x = torch.from_numpy(pad(scores, fuser.padding, fuser.threshold).astype(np.float32))
        averaged = torch.stack([average(x) for average in network.branches], 1)  # (n, J, N)
        n, j, classes = averaged.shape
        chosen = torch.from_numpy(best)
        if network.structure in ("full", "block"):
            parts = (network.mix.reshape(classes, j, classes)[chosen] * averaged).sum(-1)
        else:
            parts = network.mix.expand(classes, j)[chosen] * averaged[torch.arange(n), :, chosen]
        parts = parts.relu() + 1e-12
        shares: Array = (parts / parts.sum(1, keepdim=True)).numpy()
    return [mean.name for mean in network.means], shares


def answered(learner: FewShotLearner) -> dict[str, Array]:
    """Return for each class what the learner answers to the pictures that it keeps of it, ``(n,)``.

    These are the held-out pictures of base classes and all taught ones. A taught picture is left out: it is compared
    with the mean of the other pictures of its class, where there are others.
    """
    memory = learner.memory
    features, truth = memory.examples()
    own = np.concatenate([np.full_like(memory.base, np.nan), *map(means_of_others, memory.shots.values())])
    said = np.array(learner.classes, dtype=object)[
        learner.fuse(learner.scores_of(features, own=(truth, own))).argmax(1)
    ]
    return {label: said[truth == c] for c, label in enumerate(learner.classes)}


def confusions(said: Mapping[str, Array]) -> tuple[dict[str, float], tuple[tuple[str, str, int], ...]]:
    """Return the share of right answers for each class, and (class, answer, how often), the most frequent first.

    Args:
        said: what ``answered`` returned.
    """
    right = {label: float((found == label).mean()) for label, found in said.items() if len(found)}
    wrong = Counter((label, other) for label, found in said.items() for other in found if other != label)
    return right, tuple((label, other, n) for (label, other), n in wrong.most_common())


def compared(before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[float, float, bool]:
    """Return the share of right answers before a change and after it, and whether that is clearly worse.

    It is where the share falls by more than 5 points, and where more answers became wrong than right: by more than
    twice the square root of their number, which is how far chance goes.

    Args:
        before: what ``answered`` returned.
        after: likewise; pictures that were added follow those that were there.

    >>> names = np.array(["a"] * 8 + ["b"] * 2, dtype=object)
    >>> compared({"a": names}, {"a": names[::-1]}), compared({"a": names}, {"a": names + "?"})
    ((0.8, 0.8, False), (0.8, 0.0, True))
    """
    was = np.concatenate([found == label for label, found in before.items()])
    now = np.concatenate([after[label][: len(found)] == label for label, found in before.items()])
    lost, gained = int((was & ~now).sum()), int((now & ~was).sum())
    worse = was.mean() - now.mean() > CLEAR_LOSS and lost - gained > 2 * math.sqrt(lost + gained)
    return float(was.mean()), float(now.mean()), bool(worse)
