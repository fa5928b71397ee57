"""The table of a run, as Markdown, LaTeX and CSV: F1 by session, and the detailed metrics of the last one."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

from faverage.experiment.report_scores import repeats_in_words

__all__ = ["TABLES", "comma", "in_markdown", "latex", "markdown"]

DETAILS = ("accuracy", "base", "new", "harmonic", "f1", "forgetting")


def f1_rows(results: dict[str, Any]) -> list[tuple[str, list[float], float]]:
    """Return (method, F1 in percent by session, their mean over the sessions after the base)."""
    rows = []
    for name, method in results["methods"].items():
        values = [100 * session["f1"] for session in method["sessions"]]
        later = values[1:] or values
        rows.append((name, values, sum(later) / len(later)))
    return rows


def markdown(results: dict[str, Any]) -> str:
    """Return both tables as Markdown, with the paper's numbers below ours where there are any."""
    rows = f1_rows(results)
    repeated = bool(results.get("repeats"))
    n = max(len(values) for _, values, _ in rows)
    paper = results.get("paper") or {}
    lines = [
        f"# {in_markdown(results['dataset'])}, {repeats_in_words(results)}",
        "",
        f"Macro F1 (%) after each session{', ± standard deviation over repeats' if repeated else ''}.",
        "",
    ]
    lines += ["| method | " + " | ".join(map(str, range(n))) + " | mean 1… |", "|---|" + "---:|" * (n + 1)]
    for name, values, mean in rows:
        more = _spread(results["methods"][name], " ± ")
        cells = " | ".join(f"{v:.2f}{m}" for v, m in zip(values, more, strict=True))
        lines.append(f"| {in_markdown(name)} | {cells} | {mean:.2f} |")
        if name in paper and len(paper[name]) == n:
            later = paper[name][1:]
            cells = " | ".join(f"{v:.2f}" for v in paper[name])
            lines.append(f"| *{in_markdown(name)}, the paper* | {cells} | {sum(later) / len(later):.2f} |")
    lines += ["", "Last session (%).", "", "| method | " + " | ".join(DETAILS) + " |", "|---|" + "---:|" * len(DETAILS)]
    for name, method in results["methods"].items():
        last, spread = method["sessions"][-1], (method.get("spread") or [{}])[-1]
        more = [f" ± {100 * spread[d]:.2f}" if d in spread else "" for d in DETAILS]
        cells = " | ".join(_percent(last[d]) + m for d, m in zip(DETAILS, more, strict=True))
        lines.append(f"| {in_markdown(name)} | {cells} |")
    return "\n".join(lines + _compared(results)) + "\n"


def _compared(results: dict[str, Any]) -> list[str]:
    """Return the lines of the paired comparison, none for a single repeat."""
    found = results.get("comparisons") or []
    if not found:
        return []
    reference = in_markdown(found[0]["reference"])
    lines = ["", f"F1 of {reference} minus that of each method, in points, paired over repeats.", ""]
    lines += ["| method | F1 of the | difference | 95 % interval | wins |", "|---|---|---:|---:|---:|"]
    for one in found:
        what = "last session" if one["what"] == "last" else "mean of sessions"
        interval = f"{100 * one['low']:+.2f} to {100 * one['high']:+.2f}"
        cells = [in_markdown(one["method"]), what, f"{100 * one['difference']:+.2f}", interval]
        lines.append(f"| {' | '.join(cells)} | {one['wins']} of {one['repeats']} |")
    return lines


def latex(results: dict[str, Any]) -> str:
    """Return the table of F1 by session in LaTeX, the best of each column bold."""
    rows = f1_rows(results)
    n = max(len(values) for _, values, _ in rows)
    best = [max(values[k] for _, values, _ in rows) for k in range(n)]
    lines = [r"\begin{tabular}{l" + "c" * n + "}", "Method & " + " & ".join(map(str, range(n))) + r" \\ \hline"]
    for name, values, _ in rows:
        more = _spread(results["methods"][name], r" $\pm$ ")
        cells = [(rf"\textbf{{{v:.2f}}}" if v == best[k] else f"{v:.2f}") + more[k] for k, v in enumerate(values)]
        lines.append(f"{_in_latex(name)} & " + " & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def comma(results: dict[str, Any]) -> str:
    """Return one row a method and session, and a repeat where there are several."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    repeats = results.get("repeats") or []
    writer.writerow([*(["seed", "draw"] if repeats else []), "method", "session", *DETAILS])
    for repeat in repeats or [results]:
        which = [repeat["seed"], repeat["draw"]] if repeats else []
        for name, method in repeat["methods"].items():
            for k, session in enumerate(method["sessions"]):
                numbers = ["" if session[d] is None else f"{session[d]:.6f}" for d in DETAILS]
                writer.writerow([*which, name, k, *numbers])
    return text.getvalue()


def _spread(method: dict[str, Any], sign: str) -> list[str]:
    """Return what to write behind the F1 of each session."""
    spread = method.get("spread")
    return [f"{sign}{100 * s['f1']:.2f}" for s in spread] if spread else [""] * len(method["sessions"])


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def in_markdown(name: str) -> str:
    r"""Escape what Markdown would take for more than text.

    >>> print(in_markdown("a|b_c\nd"))
    a\|b\_c d
    """
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(name.split()))


def _in_latex(name: str) -> str:
    r"""Escape what LaTeX would take for more than text.

    >>> print(_in_latex("50%_a&b"))
    50\%\_a\&b
    """
    odd = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(odd.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in " ".join(name.split()))


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {"table.md": markdown, "table.tex": latex, "table.csv": comma}
"""The table files of a run, and what writes each."""
