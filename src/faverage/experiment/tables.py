"""The table of a run, as Markdown, LaTeX and CSV: F1 by session, and the detailed metrics of the last one."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from faverage.storage import replacing

__all__ = ["markdown", "write_tables"]

DETAILS = ("accuracy", "base", "new", "harmonic", "f1", "forgetting")


def write_tables(out: Path, results: dict[str, Any]) -> None:
    """Write table.md, table.tex and table.csv."""
    for name, text in (("table.md", markdown(results)), ("table.tex", latex(results)), ("table.csv", comma(results))):
        with replacing(out / name) as partial:
            partial.write_text(text)


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
    n = max(len(values) for _, values, _ in rows)
    paper = results.get("paper") or {}
    lines = [f"# {results['dataset']}, seed {results['seed']}", "", "Macro F1 (%) after each session.", ""]
    lines += ["| method | " + " | ".join(map(str, range(n))) + " | mean 1… |", "|---|" + "---:|" * (n + 1)]
    for name, values, mean in rows:
        lines.append(f"| {name} | " + " | ".join(f"{v:.2f}" for v in values) + f" | {mean:.2f} |")
        if name in paper and len(paper[name]) == n:
            later = paper[name][1:]
            cells = " | ".join(f"{v:.2f}" for v in paper[name])
            lines.append(f"| *{name}, the paper* | {cells} | {sum(later) / len(later):.2f} |")
    lines += ["", "Last session (%).", "", "| method | " + " | ".join(DETAILS) + " |", "|---|" + "---:|" * len(DETAILS)]
    for name, method in results["methods"].items():
        last = method["sessions"][-1]
        lines.append(f"| {name} | " + " | ".join(_percent(last[d]) for d in DETAILS) + " |")
    return "\n".join(lines) + "\n"


def latex(results: dict[str, Any]) -> str:
    """Return the table of F1 by session in LaTeX, the best of each column bold."""
    rows = f1_rows(results)
    n = max(len(values) for _, values, _ in rows)
    best = [max(values[k] for _, values, _ in rows) for k in range(n)]
    lines = [r"\begin{tabular}{l" + "c" * n + "}", "Method & " + " & ".join(map(str, range(n))) + r" \\ \hline"]
    for name, values, _ in rows:
        cells = [rf"\textbf{{{v:.2f}}}" if v == best[k] else f"{v:.2f}" for k, v in enumerate(values)]
        lines.append(f"{name} & " + " & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def comma(results: dict[str, Any]) -> str:
    """Return one row a method and session."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "session", *DETAILS])
    for name, method in results["methods"].items():
        for k, session in enumerate(method["sessions"]):
            writer.writerow([name, k, *("" if session[d] is None else f"{session[d]:.6f}" for d in DETAILS)])
    return text.getvalue()


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
