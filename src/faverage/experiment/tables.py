"""The tables of a run as Markdown, LaTeX and CSV, and what the page has in common with them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from faverage.report.page import MISSING, number
from faverage.report.tables import csv_table, exact, in_latex, in_markdown, latex_table, markdown_table, plus_minus

__all__ = [
    "CSV_NAMES",
    "HEADINGS",
    "METRICS",
    "OVERALL",
    "OVERALL_NOTE",
    "TABLES",
    "UNMARKED",
    "Column",
    "best_of",
    "best_shown",
    "compared",
    "csv_of",
    "earlier_in_words",
    "in_bold",
    "latex",
    "markdown",
    "repeats_in_words",
    "scaled_by",
    "with_choice",
]

Results = dict[str, Any]

METRICS = ("accuracy", "base", "new", "harmonic", "f1", "forgetting")
# the harmonic mean of base and new accuracy is HM: "harmonic" is the name of a method
HEADINGS = {"harmonic": "HM", "f1": "F1"}
CSV_NAMES = {"harmonic": "hm", "average_harmonic": "average_hm"}
UNMARKED = ("forgetting", "performance_drop")  # what has learned nothing has nothing to lose


class Column(NamedTuple):
    """A column of the table over all sessions: its number is ``part[key]`` of a method."""

    heading: str
    part: str
    key: str
    scale: float = 100
    digits: int = 2

    @property
    def marked(self) -> bool:
        """Whether the highest number is the best one, and bold."""
        return self.part == "summary" and self.key not in UNMARKED

    def of(self, method: Results) -> float | None:
        """Return the number of a method, scaled."""
        return scaled_by((method.get(self.part) or {}).get(self.key), self.scale)

    def cell(self, method: Results, sign: str = " ± ") -> str:
        """Return the number of a method, with its deviation over repeats where it has one."""
        spread = scaled_by((method.get(f"{self.part}_spread") or {}).get(self.key), self.scale)
        fixed = self.part == "costs" and not spread  # passes and operations do not depend on the repeat
        return plus_minus(self.of(method), None if fixed else spread, digits=self.digits, sign=sign)


OVERALL = (
    Column("average accuracy", "summary", "average_accuracy"),
    Column("average F1", "summary", "average_f1"),
    Column("aHM", "summary", "average_harmonic"),
    Column("gAcc AUC", "summary", "gacc_auc"),
    Column("PD", "summary", "performance_drop"),
    Column("base (s)", "costs", "base_seconds", 1, 1),
    Column("session (s)", "costs", "session_seconds", 1),
    Column("passes", "costs", "passes", 1, 0),
    Column("GFLOPs", "costs", "flops", 1e-9, 3),
)
OVERALL_NOTE = (
    "Percent, seconds, and for one image passes and GFLOPs of the backbone. Average accuracy and F1 are means over all "
    "sessions, aHM is the mean of HM over those after the base session, gAcc AUC the area under the generalised "
    "accuracy, PD the accuracy lost from the first session to the last."
)


# Words and numbers ----------------------------------------------------------------------------------------------------


def best_of(methods: Results, column: Column) -> list[str]:
    """Return the methods with the best number of a column, as it is shown; none where no number is marked."""
    values = {name: column.of(method) for name, method in methods.items()} if column.marked else {}
    top = best_shown(list(values.values()), column.digits)
    return [name for name, value in values.items() if number(value, column.digits) == top]


def best_shown(values: Sequence[float | None], digits: int = 2, scale: float = 1.0) -> str:
    """Return the highest number as it is shown; nothing where all look alike, so that none is marked.

    >>> best_shown([0.5, None, 0.751], scale=100), best_shown([99.701, 99.699])
    ('75.10', '')
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    shown = {number(value, digits, scale) for value in known}
    return number(max(known), digits, scale) if len(shown) > 1 else ""


def repeats_in_words(results: Results) -> str:
    """Return which seeds, and how many orders of the classes and draws a run had.

    >>> repeats_in_words({"seed": 3}), repeats_in_words({"seed": 0, "config": {"seeds": [0, 1], "draws": 5}})
    ('seed 3', 'seeds 0, 1, 5 draws each')
    >>> repeats_in_words({"seed": 0, "config": {"class_orders": 3, "draws": 5}})
    'seed 0, 3 class orders, 5 draws each'
    """
    config = results.get("config") or {}
    seeds = config.get("seeds") or [results.get("seed", MISSING)]
    words = f"seed{'' if len(seeds) == 1 else 's'} " + ", ".join(map(str, seeds))
    several = len(seeds) > 1
    for what, count in (("class orders", config.get("class_orders") or 1), ("draws", config.get("draws") or 1)):
        words += f", {count} {what}{' each' if several else ''}" if count > 1 else ""
        several |= count > 1
    return words


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


def compared(one: Results) -> list[str]:
    """Return a comparison of two methods in words: F1 of what, the difference, its interval, who wins."""
    what = "last session" if one["what"] == "last" else "mean of sessions"
    interval = f"{100 * one['low']:+.2f} to {100 * one['high']:+.2f}"
    return [what, f"{100 * one['difference']:+.2f}", interval, f"{one['wins']} of {one['repeats']}"]


def with_choice(name: str, chosen: Results | None) -> str:
    """Return the name of a method, with what it chose, and the shares where it chose several.

    >>> with_choice("afa", {"tied 0.1": 0.75, "tied 1": 0.25}), with_choice("afa", {"tied 1": 1.0})
    ('afa (tied 0.1: 75 %, tied 1: 25 %)', 'afa (tied 1)')
    """
    if not chosen:
        return name
    said = (one if len(chosen) == 1 else f"{one}: {100 * share:.0f} %" for one, share in chosen.items())
    return f"{name} ({', '.join(said)})"


def scaled_by(value: float | None, scale: float) -> float | None:
    """Return ``scale * value``, or None."""
    return None if value is None else scale * value


# Tables ---------------------------------------------------------------------------------------------------------------


def markdown(results: Results, *, short: bool = False) -> str:
    """Return all tables as Markdown, with the paper's numbers below ours where there are any.

    Args:
        results: plain JSON data of a run.
        short: whether to leave out the table over all sessions.
    """
    methods, paper = results["methods"], results.get("paper") or {}
    n = max(len(method["sessions"]) for method in methods.values())
    by_session, last, overall = [], [], []
    for name, method in methods.items():
        values, cells = _f1(method, " ± ")
        named = in_markdown(with_choice(name, method.get("chosen")))
        by_session.append([named, *cells, f"{_later(values):.2f}"])
        if name in paper and len(paper[name]) == n:
            cells = [f"{v:.2f}" for v in (*paper[name], _later(paper[name]))]
            by_session.append([f"*{in_markdown(name)}, the paper*", *cells])
        final, spread = method["sessions"][-1], (method.get("spread") or [{}])[-1]
        last.append([named, *(plus_minus(final[d], spread.get(d), scale=100) for d in METRICS)])
        overall.append([named, *(column.cell(method) for column in OVERALL)])
    lines = [f"# {in_markdown(results['dataset'])}, {repeats_in_words(results)}", ""]
    lines += [f"Macro F1 (%) after each session{', ± standard deviation over repeats' * bool(results.get('repeats'))}."]
    if (results.get("config") or {}).get("members") == "views" and len(by_session) > len(methods):
        lines += ["The paper's fusers fuse a head for each session, as they do here with `members: paper`."]
    orders = (results.get("protocol") or {}).get("orders")
    lines += [f"Other orders of the classes permute those {orders}."] if orders else []
    lines += ["", *markdown_table(["method"], [*map(str, range(n)), "mean 1…"], by_session)]
    lines += ["", "Last session (%).", ""]
    lines += markdown_table(["method"], [HEADINGS.get(d, d) for d in METRICS], last)
    if not short and any(method.get("summary") for method in methods.values()):
        headings = [column.heading for column in OVERALL]
        lines += ["", f"Over all sessions. {OVERALL_NOTE}", "", *markdown_table(["method"], headings, overall)]
    found = results.get("comparisons") or []
    if found:
        reference = in_markdown(found[0]["reference"])
        lines += ["", f"F1 of {reference} minus that of each method, in points, paired over repeats.", ""]
        rows = [[in_markdown(one["method"]), *compared(one)] for one in found]
        lines += markdown_table(["method", "F1 of the"], ["difference", "95 % interval", "wins"], rows)
    return "\n".join(lines) + "\n"


def latex(results: Results) -> str:
    """Return the tables of F1 by session, of the last session and over all sessions in LaTeX, with booktabs.

    The best of each column is bold, where there is one.
    """
    methods, sign = results["methods"], r" $\pm$ "
    found = {name: _f1(method, sign) for name, method in methods.items()}
    n = max(len(values) for values, _ in found.values())
    tops = [best_shown([values[k] for values, _ in found.values() if k < len(values)]) for k in range(n)]
    rows = []
    for name, (values, cells) in found.items():
        marked = zip(values, cells, tops, strict=False)
        rows.append([in_latex(name), *(in_bold(cell) if number(v) == top else cell for v, cell, top in marked)])
    where = f"{in_latex(str(results['dataset']))}, {in_latex(repeats_in_words(results))}"
    spread = r"; $\pm$ is one standard deviation over repeats" * bool(results.get("repeats"))
    label = re.sub(r"\W+", "-", str(results["dataset"]).lower()).strip("-")
    caption = rf"Macro F1 (\%) of all classes seen after each session: {where}{spread}."
    parts = [latex_table("Method", [*map(str, range(n))], rows, caption=caption, label=f"tab:{label}-f1")]

    last = {name: m["sessions"][-1] for name, m in methods.items() if len(m["sessions"]) == n}
    tops = ["" if key in UNMARKED else best_shown([one[key] for one in last.values()], scale=100) for key in METRICS]
    rows = []
    for name, final in last.items():
        more = (methods[name].get("spread") or [{}])[-1]
        cells = [plus_minus(final[key], more.get(key), scale=100, sign=sign) for key in METRICS]
        shown = [number(final[key], scale=100) for key in METRICS]
        best = [in_bold(cell) if one == top else cell for one, cell, top in zip(shown, cells, tops, strict=True)]
        rows.append([in_latex(name), *best])
    caption = rf"After the last session (\%): {where}. HM is the harmonic mean of base and new accuracy{spread}."
    headings = [HEADINGS.get(key, key) for key in METRICS]
    parts.append(latex_table("Method", headings, rows, caption=caption, label=f"tab:{label}-last"))

    if any(method.get("summary") for method in methods.values()):
        bold = {column: best_of(methods, column) for column in OVERALL}
        rows = []
        for name, method in methods.items():
            said = {column: column.cell(method, sign) for column in OVERALL}
            rows.append([in_latex(name), *(in_bold(cell) if name in bold[c] else cell for c, cell in said.items())])
        caption = f"Over all sessions: {where}. {OVERALL_NOTE}"
        headings = [column.heading for column in OVERALL]
        parts.append(latex_table("Method", headings, rows, caption=caption, label=f"tab:{label}-overall"))
    return "% \\usepackage{booktabs}\n" + "\n".join(parts)


def in_bold(cell: str, bold: str = r"\textbf{{{}}}") -> str:
    """Return a cell with its mean bold, in LaTeX by default, and its standard deviation as it is."""
    mean, space, spread = cell.partition(" ")
    return f"{bold.format(mean)}{space}{spread}"


def csv_of(results: Results) -> str:
    """Return CSV with one row a method and session, and a repeat where there are several.

    What is of all sessions together stands in each row of a method.
    """
    repeats = results.get("repeats") or []
    of_session, which = (*METRICS, "seconds", "learn_seconds"), ("seed", "order", "draw") if repeats else ()
    rows = []
    for repeat in repeats or [results]:
        for name, method in repeat["methods"].items():
            numbers = [(method.get(c.part) or {}).get(c.key) for c in OVERALL]
            overall = [str(v) if isinstance(v, int) else exact(v) for v in numbers]
            for k, session in enumerate(method["sessions"]):
                first = [*(repeat.get(key, 0) for key in which), name, k]
                rows.append([*first, *(exact(session.get(d)) for d in of_session), *overall])
    columns = [CSV_NAMES.get(d, d) for d in (*of_session, *(c.key for c in OVERALL))]
    return csv_table([*which, "method", "session", *columns], rows)


def _f1(method: Results, sign: str) -> tuple[list[float], list[str]]:
    """Return the F1 of a method in percent by session, as numbers, and in words with the deviation over repeats."""
    values = [session["f1"] for session in method["sessions"]]
    spread = [session["f1"] for session in method.get("spread") or []] or [None] * len(values)
    cells = [plus_minus(v, s, scale=100, sign=sign) for v, s in zip(values, spread, strict=True)]
    return [100 * v for v in values], cells


def _later(values: Sequence[float]) -> float:
    """Return the mean over the sessions after the base."""
    later = values[1:] or values
    return sum(later) / len(later)


TABLES: dict[str, Callable[[Results], str]] = {"table.md": markdown, "table.tex": latex, "table.csv": csv_of}
"""The table files of a run, and what writes each."""
