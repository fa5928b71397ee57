"""What numbers stand beside: repeats as one result, methods compared in pairs, and what the paper has.

The paper's numbers are its Tables 4 and 5, macro F1 in percent by session; its known slips are noted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["IN_PAPER", "NOTES", "PAPER", "combine", "compare"]

Results = dict[str, Any]


def combine(repeats: list[Results]) -> dict[str, Any]:
    """Return the methods of several repeats as those of one: means in place of the numbers, and their spread beside.

    Args:
        repeats: of each repeat ``seed``, ``order``, ``draw`` and ``methods``.

    Returns:
        By method what the first repeat has, with ``sessions``, ``summary``, ``costs`` and the shares in ``chosen``
        averaged over repeats, and with ``spread``: the standard deviation (of a sample) of each number of each session;
        ``summary_spread`` and ``costs_spread`` likewise. All three are None for one repeat.
    """
    combined = {}
    for name, first in repeats[0]["methods"].items():
        runs = [repeat["methods"][name]["sessions"] for repeat in repeats]
        sessions, spread = [], []
        for k, session in enumerate(first["sessions"]):
            rows = [run[k] for run in runs]
            means, deviations = _averaged(rows)
            sessions.append({**session, **means})
            spread.append(deviations)
            if all(isinstance(row.get("by_session"), list) for row in rows):
                sessions[-1]["by_session"] = np.mean([row["by_session"] for row in rows], axis=0).tolist()
        combined[name] = {**first, "sessions": sessions, "spread": spread if len(repeats) > 1 else None}
        for part in (part for part in ("summary", "costs") if first.get(part)):
            means, deviations = _averaged([repeat["methods"][name][part] for repeat in repeats])
            combined[name] |= {part: {**first[part], **means}, f"{part}_spread": deviations or None}
        choices = [repeat["methods"][name].get("chosen") or {} for repeat in repeats]
        if any(choices):
            shares = {one: sum(choice.get(one, 0.0) for choice in choices) / len(repeats) for c in choices for one in c}
            combined[name]["chosen"] = dict(sorted(shares.items(), key=lambda pair: -pair[1]))
    return combined


def _averaged(rows: list[Results]) -> tuple[dict[str, float], dict[str, float]]:
    """Return means and, of two or more, standard deviations of all that is a number in every row."""
    keys = [key for key in rows[0] if all(isinstance(row.get(key), int | float) for row in rows)]
    values = {key: [row[key] for row in rows] for key in keys}
    means = {key: found[0] if len(set(found)) == 1 else float(np.mean(found)) for key, found in values.items()}
    return means, {key: float(np.std(found, ddof=1)) for key, found in values.items() if len(rows) > 1}


def compare(repeats: list[Results], reference: str) -> list[dict[str, Any]]:
    """Compare every method with a reference over repeats, in pairs: the same seed and the same shots for both.

    The interval is Student's t of 95 % for the mean difference of F1; it speaks of other repeats, not of other data.

    Args:
        repeats: of each repeat ``seed``, ``order``, ``draw`` and ``methods``.
        reference: a method's name.

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
            half = t.ppf(0.975, len(repeats) - 1) * difference.std(ddof=1) / len(repeats) ** 0.5
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


_MINI = """
lucir 75.93 74.21 56.88 44.02 31.86 25.83 22.47 18.48 14.75
eeil 70.92 69.93 5.64 1.63 1.88 2.60 2.74 1.27 1.05
sppr 62.40 62.60 57.64 52.90 49.01 45.75 42.81 39.34 36.90
cec 72.12 66.95 62.94 59.63 56.91 53.87 51.37 49.36 47.72
fact 75.37 70.49 65.99 62.21 58.89 55.71 52.50 50.40 48.59
arithmetic 75.37 69.51 64.58 60.05 55.43 51.75 48.56 45.26 42.74
geometric 75.37 69.98 65.27 59.87 55.41 51.13 47.93 44.23 41.26
harmonic 75.37 70.82 66.72 62.21 57.53 52.44 48.64 44.66 41.26
vote 75.37 67.52 62.50 58.29 53.36 50.08 46.69 43.94 40.88
shallow-net 75.37 65.93 63.90 59.57 56.77 54.35 50.73 43.81 46.67
deep-net 75.37 60.55 61.12 59.26 55.68 53.51 46.96 47.04 43.77
weighted-average 75.37 64.24 62.82 53.77 53.17 50.58 47.50 44.18 37.46
afa-paper 75.37 68.83 66.54 63.09 57.86 56.40 53.50 50.36 48.80
"""
_CUB = """
lucir 72.13 72.90 65.74 60.38 57.06 49.51 44.17 41.29 40.01 37.57 37.27
eeil 68.40 68.44 51.27 43.59 39.45 36.22 34.12 31.27 29.19 27.10 26.47
sppr 68.66 63.18 58.70 54.44 51.67 47.92 46.22 45.59 42.34 40.35 38.74
cec 75.69 71.56 67.94 63.15 62.22 57.95 57.26 55.61 54.49 53.30 52.12
fact 76.75 73.53 70.34 65.39 64.79 61.54 61.07 59.43 57.49 57.30 56.29
arithmetic 75.70 62.01 63.93 61.47 58.19 55.74 53.73 52.63 50.40 48.59 47.22
geometric 75.70 52.08 51.77 50.58 49.82 48.56 48.37 47.44 46.79 45.62 44.82
harmonic 75.70 52.17 50.64 47.17 45.26 43.57 42.24 41.10 39.33 38.59 37.27
vote 75.70 58.64 61.42 60.39 57.92 54.05 51.42 49.03 47.56 45.38 44.29
shallow-net 75.70 55.29 57.19 60.17 59.84 57.98 57.28 55.08 53.85 53.62 50.57
deep-net 75.70 49.09 57.48 57.72 55.00 53.15 47.52 46.94 42.41 41.83 38.43
weighted-average 75.70 36.73 40.86 56.16 57.00 52.25 49.97 43.64 49.60 39.21 46.52
afa-paper 75.70 63.08 61.53 61.13 60.01 57.99 56.13 53.79 51.95 51.45 51.58
"""


def _table(text: str) -> dict[str, list[float]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return {name: [float(value) for value in values] for name, *values in lines}


PAPER = {"mini-imagenet": _table(_MINI), "cub200": _table(_CUB)}
IN_PAPER = frozenset(name for table in PAPER.values() for name in table)
"""Methods of the paper's tables."""

NOTES = {
    "mini-imagenet": [
        "The paper's mean accuracy of AFA, 48.11, does not follow from its base and new accuracies, 66.96 and 27.80: "
        "60 base and 40 new classes make 51.30.",
        "The paper leaves out the last prototype head alone ('prototypes'), stronger than every plain average.",
    ],
    "fgvc-aircraft": ["The paper's ten sessions make 95 classes, not 100; here eleven sessions make 100."],
    "tiered-imagenet": [
        "tiered-ImageNet has 608 classes, not 506, and the paper does not name the 200 that it uses; "
        "here they are the first 200 synsets in sorted order."
    ],
}
