"""Several repeats of a run as one result: means, standard deviations, and paired comparisons of methods."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["combine", "compare"]

Results = dict[str, Any]


def combine(repeats: list[Results]) -> dict[str, Any]:
    """Return the methods of several repeats as those of one: means in place of the numbers, and their spread beside.

    Args:
        repeats: of each repeat ``seed``, ``draw`` and ``methods``.

    Returns:
        By method what the first repeat has, with ``sessions`` averaged over repeats, and with ``spread``: the standard
        deviation (of a sample) of each number of each session; None for one repeat.
    """
    combined = {}
    for name, first in repeats[0]["methods"].items():
        runs = [repeat["methods"][name]["sessions"] for repeat in repeats]
        sessions, spread = [], []
        for k, session in enumerate(first["sessions"]):
            rows = [run[k] for run in runs]
            numbers = [key for key, value in session.items() if isinstance(value, int | float)]
            sessions.append({**session, **{key: float(np.mean([row[key] for row in rows])) for key in numbers}})
            spread.append({key: float(np.std([row[key] for row in rows], ddof=1)) for key in numbers if len(rows) > 1})
            if all(isinstance(row.get("by_session"), list) for row in rows):
                sessions[-1]["by_session"] = np.mean([row["by_session"] for row in rows], axis=0).tolist()
        combined[name] = {**first, "sessions": sessions, "spread": spread if len(repeats) > 1 else None}
    return combined


def compare(repeats: list[Results], reference: str, level: float = 0.95) -> list[dict[str, Any]]:
    """Compare every method with a reference over repeats, in pairs: the same seed and the same shots for both.

    The interval is that of Student's t for the mean difference of F1; it speaks of other draws, not of other data.

    Args:
        repeats: of each repeat ``seed``, ``draw`` and ``methods``.
        reference: a method's name.
        level: of the confidence interval.

    Returns:
        For each other method and for the ``last`` session and the ``mean`` of all after the base: mean ``difference``
        (reference − method), its confidence interval ``low`` and ``high``, and in how many repeats the reference
        ``wins``; an empty list for one repeat.
    """
    if len(repeats) < 2 or reference not in repeats[0]["methods"]:
        return []
    from scipy.stats import t

    found = []
    for name in repeats[0]["methods"]:
        if name == reference:
            continue
        for what in ("last", "mean"):
            ours, theirs = (np.array([_f1(r["methods"][m], what) for r in repeats]) for m in (reference, name))
            difference = ours - theirs
            half = t.ppf((1 + level) / 2, len(repeats) - 1) * difference.std(ddof=1) / len(repeats) ** 0.5
            found.append(
                {
                    "reference": reference,
                    "method": name,
                    "what": what,
                    "difference": float(difference.mean()),
                    "low": float(difference.mean() - half),
                    "high": float(difference.mean() + half),
                    "wins": int((difference > 0).sum()),
                    "repeats": len(repeats),
                }
            )
    return found


def _f1(method: Results, what: str) -> float:
    values = [session["f1"] for session in method["sessions"]]
    return float(values[-1] if what == "last" else np.mean(values[1:] or values))
