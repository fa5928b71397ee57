"""How well a learner does: after a session over all classes, base classes, new classes; and over all sessions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outcome", "forgetting", "gacc_auc", "macro_f1", "session_metrics", "summary"]

Array = NDArray[Any]


def macro_f1(y: Array, predicted: Array, n_classes: int) -> float:
    """Return the mean over classes of 2·TP / (2·TP + FP + FN), 0 where that is undefined; labels and answers ``(n,)``.

    >>> macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    0.4444444444444444
    """
    hits = np.bincount(y[y == predicted], minlength=n_classes)
    both = np.bincount(y, minlength=n_classes) + np.bincount(predicted, minlength=n_classes)
    return float(np.mean(np.where(both > 0, 2 * hits / np.maximum(both, 1), 0.0)))


def session_metrics(y: Array, predicted: Array, sessions: Sequence[Sequence[int] | Array]) -> dict[str, Any]:
    """Return the metrics after a session, all in [0, 1].

    Args:
        y: true classes ``(n,)`` of test examples of every class seen so far, as numbers 0 … N-1.
        predicted: what the learner said, ``(n,)``.
        sessions: the classes of each session up to now; the first are the base classes.

    Returns:
        ``f1`` (macro), ``accuracy``, ``base`` and ``new`` (accuracy on base and on new classes; new is None in the base
        session), ``harmonic`` (harmonic mean of the two), and ``by_session``, accuracy on the classes of each session.

    >>> said = session_metrics(np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1]), [[0, 1], [2]])
    >>> said["accuracy"], said["base"], said["new"]
    (0.75, 1.0, 0.0)
    """
    y, predicted = np.asarray(y), np.asarray(predicted)
    right = y == predicted
    by_session = [float(right[np.isin(y, np.asarray(classes))].mean()) for classes in sessions]
    base, new = by_session[0], None
    if len(sessions) > 1:
        new = float(right[~np.isin(y, np.asarray(sessions[0]))].mean())
    return {
        "f1": macro_f1(y, predicted, sum(len(classes) for classes in sessions)),
        "accuracy": float(right.mean()),
        "base": base,
        "new": new,
        "harmonic": None if new is None else 2 * base * new / (base + new) if base + new > 0 else 0.0,
        "by_session": by_session,
    }


def forgetting(history: Sequence[dict[str, Any]]) -> float:
    """Return how much was lost: the mean over earlier sessions of (best accuracy so far − accuracy now).

    Args:
        history: ``session_metrics`` of every session up to now.

    >>> forgetting([{"by_session": [0.8]}, {"by_session": [0.7, 0.5]}])
    0.10000000000000009
    """
    if len(history) < 2:
        return 0.0
    now = history[-1]["by_session"]
    lost = [max(past["by_session"][k] for past in history[k:-1]) - now[k] for k in range(len(now) - 1)]
    return float(np.mean(lost))


def gacc_auc(by_session: Sequence[Sequence[float]], n_base: int, way: int) -> float | None:
    """Return the area under the curve of the generalised accuracy gAcc(α), in [0, 1] (arXiv 2407.07468).

    With a_ij the accuracy on the classes of session j after session i, g_i(α) = (α·a_i0 + Σ_{j>=1} a_ij) / (α + i), and
    g_0(0) = 0; gAcc(α) is the mean over i. α = 0 ignores base classes, and α = R = ⌊base / way⌋ counts classes
    about alike. The area is that of trapezoids between α = 0, 1, …, R, divided by R.

    Args:
        by_session: row i has a_i0 … a_ii.
        n_base: number of base classes.
        way: number of classes of a later session.

    Returns:
        The area; None where there are fewer base classes than ``way``.

    >>> gacc_auc([[0.5], [0.5, 0.25]], n_base=2, way=2)
    0.28125
    """
    most = n_base // way
    if most < 1:
        return None
    curve = []
    for alpha in range(most + 1):
        weighted = [(alpha * row[0] + sum(row[1:])) / max(alpha + i, 1) for i, row in enumerate(by_session)]
        curve.append(sum(weighted) / len(weighted))
    return sum((low + high) / 2 for low, high in pairwise(curve)) / most


def summary(history: Sequence[dict[str, Any]], sizes: Sequence[int]) -> dict[str, float | None]:
    """Return the metrics over all sessions, all in [0, 1]; None for what needs a later session where there is none.

    Args:
        history: ``session_metrics`` of every session, the base session first.
        sizes: number of classes that each session brings.

    Returns:
        ``average_accuracy`` and ``average_f1``, means over all sessions, the base session too; ``harmonic``, that of
        the last session (HM), and ``average_harmonic``, its mean over later sessions (aHM), where base and new accuracy
        are over all test examples of their classes together, not means over classes; ``gacc_auc``; ``base`` and ``new``
        after the last session; ``performance_drop``, first minus last accuracy (PD); and ``forgetting``.
    """
    first, *later = history
    last = history[-1]
    return {
        "average_accuracy": float(np.mean([session["accuracy"] for session in history])),
        "average_f1": float(np.mean([session["f1"] for session in history])),
        "harmonic": last["harmonic"],
        "average_harmonic": float(np.mean([session["harmonic"] for session in later])) if later else None,
        "gacc_auc": gacc_auc([s["by_session"] for s in history], sizes[0], sizes[1]) if later else None,
        "base": last["base"],
        "new": last["new"],
        "performance_drop": first["accuracy"] - last["accuracy"] if later else None,
        "forgetting": forgetting(history) if later else None,
    }


class Outcome:
    """Collects the metrics of a method after each session.

    Args:
        sessions: classes of each session.
    """

    def __init__(self, sessions: list[list[int]]) -> None:
        self.sessions = sessions
        self.history: list[dict[str, Any]] = []
        self.confusion: dict[str, dict[str, float]] | None = None

    def __len__(self) -> int:
        return len(self.history)

    def add(self, y: Array, said: Array, seconds: float, learn_seconds: float | None = None) -> None:
        """Take in the answers on the test examples of all classes seen so far.

        Args:
            y: their classes ``(n,)``.
            said: the answers ``(n,)``.
            seconds: of the session, learning and answering.
            learn_seconds: of learning alone.
        """
        known = self.sessions[: len(self.history) + 1]
        self.history.append(session_metrics(y, said, known))
        self.history[-1] |= {"forgetting": forgetting(self.history), "seconds": seconds}
        if learn_seconds is not None:
            self.history[-1]["learn_seconds"] = learn_seconds
        self.confusion = _confusion(y, said, len(self.sessions[0])) if len(self.history) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        sizes = [len(classes) for classes in self.sessions]
        told = summary(self.history, sizes) if self.history else None
        return {"sessions": self.history, "summary": told, "confusion": self.confusion}

    def restore(self, data: dict[str, Any]) -> None:
        """Take back what ``to_dict`` gave."""
        self.history, self.confusion = data["sessions"], data["confusion"]


def _confusion(y: Array, said: Array, n_base: int) -> dict[str, dict[str, float]]:
    """Return where base and new examples go: to the right class, a wrong one of their kind, or the other kind."""
    result = {}
    for kind, rows in (("base", y < n_base), ("new", y >= n_base)):
        right = said[rows] == y[rows]
        own = (said[rows] < n_base) == (kind == "base")
        other = "new" if kind == "base" else "base"
        result[kind] = {
            "right": float(np.mean(right)),
            f"other {kind}": float(np.mean(own & ~right)),
            other: float(np.mean(~own)),
        }
    return result
