"""The files of a sweep: sweep.json, sweep.md, sweep.csv, and one HTML page."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from faverage.experiment.charts import STYLE, Series, line_chart
from faverage.experiment.report_scores import repeats_in_words
from faverage.experiment.sweep.plan import label_of, value_of
from faverage.experiment.sweep.tables import (
    comma,
    counts_in_words,
    failures,
    is_best,
    left_out,
    markdown,
    numbers,
    plus_minus,
)
from faverage.report.page import MISSING, duration, facts, head, page, table, text, warnings
from faverage.storage import replacing

__all__ = ["FILES", "write"]

Results = dict[str, Any]
FILES = ("sweep.json", "sweep.md", "sweep.csv", "report.html")


def write(out: Path, results: Results) -> None:
    """Write all files, then put them in place, sweep.json last."""
    with ExitStack() as stack:
        places = {name: stack.enter_context(replacing(out / name)) for name in FILES}
        said = (json.dumps(results, indent=1) + "\n", markdown(results), comma(results), html(results))
        for name, words in zip(FILES, said, strict=True):
            places[name].write_text(words, encoding="utf-8")
        (out / "sweep.json").unlink(missing_ok=True)


def html(results: Results) -> str:
    """Return the page."""
    parts = [
        f"<h1>Sweep: {text(results['name'])}</h1>",
        f'<p class="soft">{text(results.get("date") or "")}</p>',
        _cards(results),
        warnings(failures(results), "Runs that failed"),
        "<h2>The best setting by held-out loss</h2>",
        _best(results),
        "<h2>All settings</h2>",
        _cells(results),
        _sessions(results),
        "<h2>How to repeat it</h2>",
        f"<pre>{text(results.get('command') or MISSING)}</pre>",
        _settings(results),
    ]
    return page(f"faverage: sweep {results['name']}", parts, STYLE)


def _cards(results: Results) -> str:
    best, counts = results["best"], results["counts"]
    loss = "" if best is None else f", loss {best['held_out_loss']['mean']:.4f}"
    return facts(
        [
            (str(results["dataset"]), f"dataset, {repeats_in_words(results)}"),
            (f"{counts['done']} of {counts['runs']}", "runs done"),
            (str(counts["bases"]), "base sessions, each shared by its runs"),
            (MISSING if best is None else best["method"], f"best by held-out loss{loss}"),
            (duration(results.get("seconds")), f"time of the last start, {results.get('engine') or MISSING}"),
        ]
    )


def _best(results: Results) -> str:
    over = list(results["over"])
    rows = []
    for one in results["best_by_method"]:
        words = "".join(f"<td>{text(value_of(v))}</td>" for v in one["options"].values())
        loss = f'<td class="n">{plus_minus(one["held_out_loss"], digits=4)}</td>'
        mark = ' class="chosen"' if is_best(one, results["best"]) else ""
        rows.append(f'<tr{mark}><td class="name">{text(one["method"])}</td>{words}{loss}</tr>')
    said = f"<p>{text(results['held_out'])}</p>"
    if not rows:
        return f"<p>None is named: no setting has a held-out loss of all its runs.</p>{said}"
    best = results["best"]
    first = f"<p><b>{text(best['method'])}, {text(label_of(best['options']))}</b>. Below, the best of each method."
    first += f"{left_out(results)}</p>"
    return first + table(head(["method", *over], ["held-out loss"]), rows) + said


def _cells(results: Results) -> str:
    over, best = list(results["over"]), results["best"]
    rows = []
    for cell in results["cells"]:
        words = "".join(f"<td>{text(value_of(v))}</td>" for v in cell["options"].values())
        cells = "".join(f'<td class="n">{_below(shown)}</td>' for shown in numbers(cell))
        mark = ' class="own chosen"' if is_best(cell, best) else ""
        rows.append(f'<tr{mark}><td class="name">{text(cell["method"])}</td>{words}{cells}</tr>')
    note = (
        f"{counts_in_words(results)}. Mean ± one standard deviation over seeds and draws. F1, base and new accuracy "
        "are of the test images, in percent, and have no part in the choice: last is after the last session, mean 1… "
        "the mean of the sessions after the base. The time is that of one run in seconds, without its base session."
    )
    first = head(["method", *over], ["done", "held-out loss", "F1 last", "F1 mean 1…", "base", "new", "time"])
    return f'<p class="soft">{text(note)}</p>' + table(first, rows, "scores")


def _below(shown: str) -> str:
    """Return a number with its standard deviation small below it."""
    mean, sign, spread = shown.partition(" ± ")
    return f"{mean}<small>± {spread}</small>" if sign else mean


def _sessions(results: Results) -> str:
    """Return the chart of F1 by session, of each method with its best options."""
    series = []
    for look, one in enumerate(results["best_by_method"]):
        cell = next(cell for cell in results["cells"] if is_best(cell, one))
        band = [100 * s["f1"] for s in cell["spread"]] if cell["spread"] else None
        name = f"{one['method']}, {label_of(one['options'])}"
        series.append(Series(name, [100 * s["f1"] for s in cell["sessions"]], look, band))
    best = results["best"]
    chosen = () if best is None else (f"{best['method']}, {label_of(best['options'])}",)
    title = "Macro F1 on the test images"
    chart = line_chart(series, title=title, x_label="session", y_label="F1 (%)", highlight=chosen)
    if not chart:
        return ""
    note = "Each method with the options that its held-out loss chose; bands are one standard deviation."
    return f'<h2>F1 by session</h2><p class="soft">{note}</p>{chart}'


def _settings(results: Results) -> str:
    said = {**{k: v for k, v in results["config"].items() if k not in results["over"]}, "over": results["over"]}
    lines = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in said.items())
    found = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f'<h3>Settings</h3><pre>{text(lines)}</pre><p class="soft">{text(found)}</p>'
