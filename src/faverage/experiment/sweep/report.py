"""What a sweep shows: the files sweep.json, sweep.md, sweep.csv and one HTML page, and a live table on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from faverage.experiment.report import replacing_all
from faverage.experiment.sweep.plan import Cell, label_of, value_of
from faverage.experiment.sweep.results import Board
from faverage.experiment.tables import CSV_NAMES, METRICS, repeats_in_words
from faverage.progress import Progress
from faverage.report.charts import STYLE, Series, line_chart
from faverage.report.page import MISSING, duration, facts, head, how_to_repeat, page, row, table, text, warnings
from faverage.report.tables import csv_table, exact, in_markdown, markdown_table, plus_minus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["FILES", "Watch", "failures", "markdown", "write"]

Results = dict[str, Any]
FILES = ("sweep.json", "sweep.md", "sweep.csv", "report.html")
_COLUMNS = ("done", "held-out loss", "F1 last (%)", "F1 mean 1… (%)", "base (%)", "new (%)", "seconds")


def write(out: Path, results: Results) -> None:
    """Write all files, then put them in place, sweep.json last."""
    said = (json.dumps(results, indent=1) + "\n", markdown(results), csv_of(results), html(results))
    with replacing_all(out, FILES) as places:
        for name, words in zip(FILES, said, strict=True):
            places[name].write_text(words, encoding="utf-8")


def html(results: Results) -> str:
    """Return the page."""
    shared = {name: value for name, value in results["config"].items() if name not in results["over"]}
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
        how_to_repeat(results.get("command"), {**shared, "over": results["over"]}, results["versions"]),
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
        mark = "chosen" if _is_best(one, results["best"]) else ""
        rows.append(row(one["method"], _values(one), [_loss(one)], kind=mark))
    said = f"<p>{text(results['held_out'])}</p>"
    if not rows:
        return f"<p>None is named: no setting has a held-out loss of all its runs.</p>{said}"
    best = results["best"]
    first = f"<p><b>{text(best['method'])}, {text(label_of(best['options']))}</b>. Below, the best of each method."
    first += f"{_left_out(results)}</p>"
    return first + table(head(["method", *over], ["held-out loss"]), rows) + said


def _cells(results: Results) -> str:
    over, best = list(results["over"]), results["best"]
    rows = []
    for cell in results["cells"]:
        mark = "own chosen" if _is_best(cell, best) else ""
        rows.append(row(cell["method"], _values(cell), map(_below, _numbers(cell)), kind=mark))
    note = (
        f"{_counts_in_words(results)}. Mean ± one standard deviation over seeds and draws. F1, base and new accuracy "
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
        cell = next(cell for cell in results["cells"] if _is_best(cell, one))
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


def markdown(results: Results) -> str:
    """Return the best setting, the table of all cells, and what failed."""
    over, best = list(results["over"]), results["best"]
    lines = [f"# Sweep of {in_markdown(results['dataset'])}, {repeats_in_words(results)}", ""]
    lines += [f"{_counts_in_words(results)}. Mean ± standard deviation over seeds and draws.", ""]
    if best is None:
        lines += ["No setting is named best: none has a held-out loss of all its runs.", ""]
    else:
        chosen = in_markdown(f"{best['method']}, {label_of(best['options'])}")
        lines += [f"Best by held-out loss, not by test: **{chosen}** (loss {_loss(best)}).{_left_out(results)}", ""]
    rows = []
    for cell in results["cells"]:
        own = _is_best(cell, best)
        words = [in_markdown(word) for word in (*_values(cell), cell["method"])]
        rows.append([*(f"**{word}**" if own else word for word in words), *_numbers(cell)])
    lines += markdown_table([*map(in_markdown, over), "method"], _COLUMNS, rows)
    lines += ["", in_markdown(results["held_out"])]
    failed = failures(results)
    if failed:
        lines += ["", "Failed:", "", *(f"- {in_markdown(one)}" for one in failed)]
    return "\n".join(lines) + "\n"


def csv_of(results: Results) -> str:
    """Return CSV with one row a run and session; a run that failed has one row without numbers."""
    rows: list[list[object]] = []
    for run in results["runs"]:
        first = [*_values(run), run["method"], run["seed"], run["draw"], run["key"], run["status"]]
        first.append(exact(run["held_out_loss"]))
        for k, session in enumerate(run["sessions"] or []):
            rows.append([*first, k, *(exact(session[d]) for d in METRICS)])
        if not run["sessions"]:
            rows.append([*first, *[""] * (1 + len(METRICS))])
    metrics = (CSV_NAMES.get(d, d) for d in METRICS)
    columns = ("method", "seed", "draw", "key", "status", "held_out_loss", "session", *metrics)
    return csv_table([*results["over"], *columns], rows)


def _values(one: Results) -> list[str]:
    """Return the values of the options of a cell or a run in words."""
    return [value_of(value) for value in one["options"].values()]


def _numbers(cell: Results) -> list[str]:
    """Return the numbers of a cell, one for each of the columns."""
    last, spread = (cell["sessions"] or [{}])[-1], (cell["spread"] or [{}])[-1]
    f1, base, new = (plus_minus(last.get(d), spread.get(d), scale=100) for d in ("f1", "base", "new"))
    mean, seconds = cell["f1_mean"] or {}, cell["seconds"] or {}
    later = plus_minus(mean.get("mean"), mean.get("std"), scale=100)
    done = f"{cell['done']} of {cell['runs']}"
    return [done, _loss(cell), f1, later, base, new, plus_minus(seconds.get("mean"), digits=1)]


def _loss(one: Results) -> str:
    """Return the held-out loss of a cell."""
    loss = one["held_out_loss"] or {}
    return plus_minus(loss.get("mean"), loss.get("std"), digits=4)


def _is_best(cell: Results, best: Results | None) -> bool:
    """Return whether a cell is the best one."""
    return best is not None and (cell["options"], cell["method"]) == (best["options"], best["method"])


def _counts_in_words(results: Results) -> str:
    """Return how many runs there are, and how they ended.

    >>> _counts_in_words({"counts": {"runs": 12, "done": 11, "failed": 1, "bases": 3}})
    '12 runs: 11 done, 1 failed'
    """
    counts = results["counts"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    earlier = f", {results['earlier']} of them by an earlier sweep" if results.get("earlier") else ""
    return f"{counts['runs']} run{'' if counts['runs'] == 1 else 's'}: {counts['done']} done{earlier}{failed}"


def _left_out(results: Results) -> str:
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


class Watch:
    """Shows options x method, and for each how many runs are done, running and failed; use it as a context.

    Args:
        console: where it goes.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Any = None
        self._lines: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, board: Board) -> None:
        """Take in a change."""
        count = board.count()
        ended, total = count["done"] + count["failed"], count.total()
        if self._lines is None:
            self._lines = Progress("runs", total, done=ended, console=self.console)
            said = f"{total} runs" + (f", {ended} of them done before" if ended else "")
            self.console.print(said, highlight=False, markup=False)
        if not self.console.is_terminal:
            self._lines.update(ended, f"{count['failed']} failed" if count["failed"] else "")
            return
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(table_of(board), refresh=True)

    def say(self, words: str) -> None:
        """Print a line; it stays above the table."""
        from rich.text import Text

        self.console.print(Text(words), soft_wrap=True)


def table_of(board: Board) -> Table:
    """Return the table: options x method."""
    from rich.table import Table

    count = board.count()
    left = board.seconds_left()
    said = [f"{count['done']} of {count.total()} runs done"]
    said += [f"{count[state]} {state}" for state in ("running", "failed") if count[state]]
    bases = [key for key in board.keys("running") if board.plan.tasks[key].kind != "run"]
    said += [f"{len(bases)} base session{'' if len(bases) == 1 else 's'} in training"] if bases else []
    said += [f"about {duration(left)} left"] if left else []
    methods = list(board.plan.config.methods)
    table = Table("options", *methods, title=", ".join(said), title_justify="left")
    rows: dict[str, list[str]] = {}
    for cell in board.plan.cells:
        rows.setdefault(label_of(cell.options), []).append(_cell(board, cell))
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _cell(board: Board, cell: Cell) -> str:
    count = board.count(cell)
    first = f"{count['done']} of {len(cell.runs)} done"
    first += "".join(f", {count[state]} {state}" for state in ("running", "failed") if count[state])
    f1, loss = board.mean(cell, "f1"), board.mean(cell, "held_out_loss")
    second = [f"F1 {100 * f1:.2f}"] if f1 is not None else []
    second += [f"loss {loss:.4f}"] if loss is not None else []
    return "\n".join([first, ", ".join(second)] if second else [first])
