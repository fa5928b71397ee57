"""The sections of a report that compare methods: F1 by session, the last session, differences over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from faverage.experiment.charts import Series, line_chart
from faverage.report.page import MISSING, head, number, table, text

__all__ = [
    "comparison_section",
    "earlier_in_words",
    "f1_section",
    "last_section",
    "named_row",
    "repeats_in_words",
    "scores_of",
]

Results = dict[str, Any]
_METRICS = ("accuracy", "base", "new", "harmonic", "f1", "forgetting")
_OWN = ("afa",)


def scores_of(methods: Results) -> dict[str, list[float | None]]:
    """Return the F1 of each method by session; None where a method has fewer sessions than another, or no number."""
    length = max((len(method["sessions"]) for method in methods.values()), default=0)
    scores = {}
    for name, method in methods.items():
        f1 = [session.get("f1") for session in method["sessions"]]
        f1 = [None if v is None or not math.isfinite(v) else v for v in f1]
        scores[name] = f1 + [None] * (length - len(f1))
    return scores


def f1_section(methods: Results, looks: dict[str, int], paper: dict[str, Sequence[float | None]]) -> str:
    """Return the chart of F1 against session, with bands over repeats, and its table."""
    scores = scores_of(methods)
    length = max((len(f1) for f1 in scores.values()), default=0)
    bands = {name: [_percent(s.get("f1")) for s in methods[name].get("spread") or []] for name in scores}
    series = [Series(name, [_percent(v) for v in f1], looks[name], bands[name] or None) for name, f1 in scores.items()]
    chart = line_chart(series, title="Macro F1 of all classes seen so far", x_label="session", y_label="F1 (%)")
    ours, theirs = {}, {}
    for name, f1 in scores.items():
        ours[name] = [*f1, _mean(f1[1:] or f1)]
        published = list(paper.get(name) or [])[:length]
        published += [None] * (length - len(published))
        theirs[name] = [*published, _mean(published[1:] or published)]
    best = [_best([row[j] for row in ours.values()]) for j in range(length + 1)]
    rows = []
    for name, values in ours.items():
        cells = ""
        more = [*bands[name], None] if bands[name] else [None] * len(values)
        for value, other, top, band in zip(values, theirs[name], best, more, strict=True):
            small = f"<small>{number(other)}</small>" if name in paper else ""
            cells += f'<td class="n">{_bold(value, top)}{_plus_minus(band)}{small}</td>'
        rows.append(named_row(name, cells))
    note = "Percent, by session (0 is the base session); the best of each column is bold."
    if any(name in paper for name in methods):
        note += " Small below ours: the paper's number, where it has that method."
    if any(bands.values()):
        note += " Bands and ±: one standard deviation over repeats."
    first = head(["method"], [*(str(k) for k in range(length)), "mean 1…"])
    return (chart if length > 1 else "") + f'<p class="soft">{note}</p>' + table(first, rows, "scores")


def last_section(methods: Results) -> str:
    """Return the table of all metrics after the last session."""
    length = max((len(method["sessions"]) for method in methods.values()), default=0)
    last = {name: m["sessions"][-1] if len(m["sessions"]) == length > 0 else {} for name, m in methods.items()}
    values = {name: [session.get(metric) for metric in _METRICS] for name, session in last.items()}
    best = []
    for j, metric in enumerate(_METRICS):
        best.append(_best([row[j] for row in values.values()], lowest=metric == "forgetting"))
    rows = []
    for name, row in values.items():
        spread = (methods[name].get("spread") or [{}])[-1]
        more = [_plus_minus(_percent(spread.get(metric))) for metric in _METRICS]
        cells = "".join(f'<td class="n">{_bold(v, top)}{m}</td>' for v, top, m in zip(row, best, more, strict=True))
        seconds = [session.get("seconds") for session in methods[name]["sessions"]]
        total = sum(s for s in seconds if s is not None) if any(s is not None for s in seconds) else None
        rows.append(named_row(name, f'{cells}<td class="n">{number(total)}</td>'))
    note = (
        "Percent. Base and new are the accuracies on base and on new classes, harmonic is their harmonic mean; "
        "forgetting is what earlier classes lost since their best session, so less is better. "
        "The time is that of all sessions."
    )
    first = head(["method"], ["accuracy", "base", "new", "harmonic", "F1", "forgetting", "time (s)"])
    return f'<p class="soft">{note}</p>' + table(first, rows, "scores")


def comparison_section(comparisons: Sequence[Results]) -> str:
    """Return the differences of F1 between the reference and every other method, with their intervals."""
    if not comparisons:
        return ""
    rows = []
    for one in comparisons:
        what = "last session" if one["what"] == "last" else "mean of sessions"
        interval = f"{100 * one['low']:+.2f} to {100 * one['high']:+.2f}"
        cells = f'<td>{what}</td><td class="n">{100 * one["difference"]:+.2f}</td><td class="n">{interval}</td>'
        rows.append(named_row(one["method"], f'{cells}<td class="n">{one["wins"]} of {one["repeats"]}</td>'))
    reference = text(comparisons[0]["reference"])
    note = (
        f"F1 of {reference} minus that of each method, in points, over repeats with the same seed and the same shots "
        "for both; the interval is the 95 % confidence interval of a paired t-test."
    )
    first = head(["method", "F1 of the"], ["difference", "interval", f"{reference} wins"])
    return f'<h2>{reference} against the others</h2><p class="soft">{note}</p>' + table(first, rows, "scores")


def repeats_in_words(results: Results) -> str:
    """Return which seeds and how many draws a run had.

    >>> repeats_in_words({"seed": 3}), repeats_in_words({"seed": 0, "config": {"seeds": [0, 1], "draws": 5}})
    ('seed 3', 'seeds 0, 1, 5 draws each')
    """
    config = results.get("config") or {}
    seeds, draws = config.get("seeds") or [results.get("seed", MISSING)], config.get("draws") or 1
    words = f"seed{'' if len(seeds) == 1 else 's'} " + ", ".join(map(str, seeds))
    return words + (
        f", {draws} draws each" if draws > 1 and len(seeds) > 1 else f", {draws} draws" if draws > 1 else ""
    )


def earlier_in_words(earlier: list[Results]) -> str:
    """Return which results are of an earlier run, and of when.

    >>> earlier_in_words([{"method": "afa", "seed": 0, "draw": d, "date": f"2026-01-0{d + 1}"} for d in (0, 1)])
    'taken from an earlier run with the same settings, data and code: afa (2026-01-01 to 2026-01-02)'
    """
    dates: dict[str, list[str]] = {}
    for one in earlier:
        dates.setdefault(one["method"], []).append(one["date"])
    spans = {name: sorted({min(found), max(found)}) for name, found in dates.items()}
    said = ", ".join(f"{name} ({' to '.join(span)})" for name, span in spans.items())
    return f"taken from an earlier run with the same settings, data and code: {said}"


def named_row(name: str, cells: str) -> str:
    """Return a row of a table; our own method's is marked."""
    mark = ' class="own"' if name in _OWN else ""
    return f'<tr{mark}><td class="name">{text(name)}</td>{cells}</tr>'


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _best(values: Sequence[float | None], lowest: bool = False) -> str:
    known = [v for v in values if v is not None and number(v) != MISSING]
    return number((min if lowest else max)(known), scale=100) if known else ""


def _bold(value: float | None, best: str) -> str:
    shown = number(value, scale=100)
    return f"<b>{shown}</b>" if shown == best else shown


def _plus_minus(band: float | None) -> str:
    return "" if band is None else f" ± {band:.2f}"
