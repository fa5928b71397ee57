"""The tables of a sweep: Markdown with one row a cell, CSV with one row a run and session."""

from __future__ import annotations

import csv
import io
from typing import Any

from faverage.experiment.report_scores import repeats_in_words
from faverage.experiment.sweep.plan import label_of, value_of
from faverage.experiment.tables import DETAILS, in_markdown

__all__ = ["comma", "counts_in_words", "failures", "markdown"]

Results = dict[str, Any]
_COLUMNS = ("done", "held-out loss", "F1 last (%)", "F1 mean 1… (%)", "base (%)", "new (%)", "seconds")


def markdown(results: Results) -> str:
    """Return the best setting, the table of all cells, and what failed."""
    over, best = list(results["over"]), results["best"]
    lines = [f"# Sweep of {in_markdown(results['dataset'])}, {repeats_in_words(results)}", ""]
    lines += [f"{counts_in_words(results)}. Mean ± standard deviation over seeds and draws.", ""]
    if best is None:
        lines += ["No setting is named best: none has a held-out loss of all its runs.", ""]
    else:
        loss = plus_minus(best["held_out_loss"], digits=4)
        chosen = in_markdown(f"{best['method']}, {label_of(best['options'])}")
        lines += [f"Best by held-out loss, not by test: **{chosen}** (loss {loss}).{left_out(results)}", ""]
    heads = [*map(in_markdown, over), "method", *_COLUMNS]
    lines += [f"| {' | '.join(heads)} |", "|" + "---|" * (len(over) + 1) + "---:|" * len(_COLUMNS)]
    for cell in results["cells"]:
        own = is_best(cell, best)
        words = [*(value_of(v) for v in cell["options"].values()), cell["method"]]
        names = [f"**{in_markdown(w)}**" if own else in_markdown(w) for w in words]
        lines.append(f"| {' | '.join([*names, *numbers(cell)])} |")
    lines += ["", in_markdown(results["held_out"])]
    failed = failures(results)
    if failed:
        lines += ["", "Failed:", "", *(f"- {in_markdown(one)}" for one in failed)]
    return "\n".join(lines) + "\n"


def comma(results: Results) -> str:
    """Return one row a run and session; a run that failed has one row without numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    over = list(results["over"])
    writer.writerow([*over, "method", "seed", "draw", "key", "status", "held_out_loss", "session", *DETAILS])
    for run in results["runs"]:
        first = [*(value_of(v) for v in run["options"].values()), run["method"], run["seed"], run["draw"], run["key"]]
        first += [run["status"], _exact(run["held_out_loss"])]
        for k, session in enumerate(run["sessions"] or []):
            writer.writerow([*first, k, *(_exact(session[d]) for d in DETAILS)])
        if not run["sessions"]:
            writer.writerow([*first, *[""] * (1 + len(DETAILS))])
    return text.getvalue()


def numbers(cell: Results) -> list[str]:
    """Return the numbers of a cell, one for each of the columns."""
    last = (cell["sessions"] or [{}])[-1]
    spread = (cell["spread"] or [{}])[-1]
    percent = {d: {"mean": last.get(d), "std": spread.get(d)} for d in ("f1", "base", "new")}
    return [
        f"{cell['done']} of {cell['runs']}",
        plus_minus(cell["held_out_loss"], digits=4),
        plus_minus(percent["f1"], 100),
        plus_minus(cell["f1_mean"], 100),
        plus_minus(percent["base"], 100),
        plus_minus(percent["new"], 100),
        "–" if cell["seconds"] is None else f"{cell['seconds']['mean']:.1f}",
    ]


def plus_minus(value: Results | None, scale: float = 1.0, digits: int = 2) -> str:
    """Return mean ± standard deviation.

    >>> plus_minus({"mean": 0.5, "std": 0.01}, 100), plus_minus({"mean": 0.5, "std": None}), plus_minus(None)
    ('50.00 ± 1.00', '0.50', '–')
    """
    if value is None or value["mean"] is None:
        return "–"
    more = "" if value["std"] is None else f" ± {scale * value['std']:.{digits}f}"
    return f"{scale * value['mean']:.{digits}f}{more}"


def is_best(cell: Results, best: Results | None) -> bool:
    """Return whether a cell is the best one."""
    return best is not None and (cell["options"], cell["method"]) == (best["options"], best["method"])


def counts_in_words(results: Results) -> str:
    """Return how many runs there are, and how they ended.

    >>> counts_in_words({"counts": {"runs": 12, "done": 11, "failed": 1, "bases": 3}})
    '12 runs: 11 done, 1 failed'
    """
    counts = results["counts"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    earlier = f", {results['earlier']} of them by an earlier sweep" if results.get("earlier") else ""
    return f"{counts['runs']} run{'' if counts['runs'] == 1 else 's'}: {counts['done']} done{earlier}{failed}"


def left_out(results: Results) -> str:
    """Return, where runs failed, that their settings had no part in the choice."""
    return " Settings with runs that failed were not compared." if results["counts"]["failed"] else ""


def failures(results: Results) -> list[str]:
    """Return which runs failed, and why, in words; runs with the same options and error stand together."""
    found: dict[tuple[str, str], list[Results]] = {}
    for run in results["runs"]:
        if run["status"] == "failed":
            found.setdefault((label_of(run["options"]), run["error"]), []).append(run)
    lines = []
    for (options, error), runs in found.items():
        methods = ", ".join(dict.fromkeys(run["method"] for run in runs))
        which = f"{len(runs)} runs" if len(runs) > 1 else f"seed {runs[0]['seed']}, draw {runs[0]['draw']}"
        lines.append(f"{methods}; {options}; {which}: {error}")
    return lines


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
