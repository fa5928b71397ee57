"""What a method did, session by session, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.fscil import forgetting, session_metrics

__all__ = ["Outcome"]

Array = NDArray[Any]


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

    def add(self, y: Array, said: Array, seconds: float) -> None:
        """Take in the answers on the test examples of all classes seen so far."""
        known = self.sessions[: len(self.history) + 1]
        self.history.append(session_metrics(y, said, known))
        self.history[-1] |= {"forgetting": forgetting(self.history), "seconds": seconds}
        self.confusion = _confusion(y, said, len(self.sessions[0])) if len(self.history) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"sessions": self.history, "confusion": self.confusion}

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
