"""What learners have in common on top of their heads: the fuser of a method, its explanation, the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.afa.explain import Explanation, explain
from faverage.fscil.rehearsal import Rehearsal
from faverage.fusion import Fuser, get_fuser

__all__ = ["ALONE", "METHODS", "check_fuser", "explain_fuser", "most_probable", "new_fuser"]

Array = NDArray[Any]

# name of a method -> fuser, its options, and the rehearsal where it is not the learner's
METHODS: dict[str, tuple[str, dict[str, Any], Rehearsal | None]] = {
    "afa": ("afa-paper", {"structure": "per_class", "epochs": 40}, None),
    "afa-paper": ("afa-paper", {"epochs": 40}, "shots"),
    # two heads that disagree are a tie: by the first class the paper's numbers come back, by the mean they do not
    "vote": ("vote", {"ties": "first"}, None),
}
ALONE = ("no-fine-tuning", "prototypes")  # methods that are one head, without a fuser
_RULES = ("arithmetic", "geometric", "harmonic", "power", "vote")


def check_fuser(fuser: str | Fuser) -> None:
    """Raise ValueError for a method that there is not."""
    if isinstance(fuser, str) and fuser not in ALONE:
        get_fuser(METHODS.get(fuser, (fuser, {}, None))[0])


def new_fuser(
    fuser: str | Fuser, before: Fuser | None, options: dict[str, Any], **padding: Any
) -> tuple[Fuser, Rehearsal | None]:
    """Return the unfitted fuser of a method, and its rehearsal where that is not the learner's.

    Args:
        fuser: the method.
        before: the fuser of the session before; what it settled is kept.
        options: of the fuser.
        **padding: options of plain rules alone.
    """
    name, usual, rehearsal = METHODS.get(str(fuser), (fuser, {}, None))
    options = {**usual, **(before.settled() if before is not None else {}), **options}
    return get_fuser(name, **({**padding, **options} if name in _RULES else options)), rehearsal


def explain_fuser(fitted: Fuser | None, models: Sequence[str], classes: Sequence[Any]) -> Explanation:
    """Return which head is trusted for which class, and with which mean."""
    network = getattr(fitted, "network", None)
    if network is not None and hasattr(network, "branches"):
        return explain(network, models=models, classes=classes)
    if fitted is not None and hasattr(fitted, "explain"):
        explanation: Explanation = fitted.explain(models=models, classes=classes)
        return explanation
    raise ValueError("explain needs a learned session and a fuser with weights to read: 'afa' or 'afa-paper'")


def most_probable(probabilities: Array, classes: Sequence[Any]) -> Array:
    """Return the label ``(n,)`` of the highest of the probabilities ``(n, N)``."""
    labels = np.empty(len(classes), dtype=object)
    labels[:] = classes
    return np.array(labels[probabilities.argmax(1)].tolist())
