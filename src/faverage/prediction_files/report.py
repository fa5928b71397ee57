"""What a run of ``fuse_files`` found: as data, as one HTML page, and as tables on a terminal."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from faverage.afa.explain import Explanation
from faverage.prediction_files import calibration
from faverage.prediction_files.base import printable, some
from faverage.prediction_files.compare import Comparison, Score
from faverage.report import charts
from faverage.report.page import (
    MISSING,
    bars,
    facts,
    head,
    heat_map,
    how_to_repeat,
    page,
    row,
    table,
    text,
    warnings,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["Member", "Result", "show", "write_report"]

_MOST_CLASSES = 20  # classes whose trusted model is printed; the page has them all
_COLUMNS = ("log-loss", "accuracy", "macro F1", "fit (s)")


@dataclass(frozen=True)
class Member:
    """One model: its name, its file, how many rows it answered, and the classes it knows.

    >>> Member("forest", Path("forest.csv"), 1000, ["cat", "dog"]).name
    'forest'
    """

    name: str
    path: Path
    rows: int
    classes: list[str]


@dataclass(frozen=True)
class Result:
    """What a run of ``fuse_files`` found.

    Attributes:
        members: the models, in order.
        labels: the file of labels.
        classes: the N labels.
        rows: how many ids were predicted,
        labelled: and how many of them were trained on.
        fuser: the name of the fuser that was fitted.
        comparison: all fusers and models on held-out rows.
        explanation: what the weights of AFA say; None where it could not be fitted.
        unexplained: why there is no explanation.
        warnings: what was warned about.
        command: the command that repeats the run.
        outputs: the files written: predictions, report, fuser.

    >>> import tempfile
    >>> from faverage.prediction_files import fuse_files
    >>> ids, truth = np.arange(20).astype(str), np.arange(20) % 2
    >>> right, classes = np.eye(2)[truth], ["cat", "dog"]
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     for model, sure in {"forest": 0.9, "svm": 0.6}.items():
    ...         scores = sure * right + (1 - sure) * (1 - right)
    ...         np.savez(folder / f"{model}.npz", ids=ids, classes=classes, scores=scores)
    ...     np.savez(folder / "labels.npz", ids=ids, labels=np.array(classes)[truth])
    ...     files = [folder / "forest.npz", folder / "svm.npz"]
    ...     result = fuse_files(files, folder / "labels.npz", folder / "fused.csv", compare="arithmetic")
    >>> [member.name for member in result.members], result.classes, result.labelled
    (['forest', 'svm'], ['cat', 'dog'], 20)
    >>> for score in result.comparison.scores:  # on held-out rows, the best one first
    ...     print(score.name, round(score.log_loss, 3))
    model forest 0.105
    arithmetic 0.288
    model svm 0.511
    """

    members: list[Member]
    labels: Path
    classes: list[str]
    rows: int
    labelled: int
    fuser: str
    comparison: Comparison
    explanation: Explanation | None
    unexplained: str
    warnings: list[str]
    command: str
    outputs: list[Path]


def write_report(path: Path, result: Result) -> None:
    """Write the page."""
    best = next((s for s in result.comparison.scores if not s.failed), None)
    cards = [
        (f"{len(result.members)}", "models"),
        (f"{len(result.classes)}", "classes"),
        (f"{result.labelled:,}", "labelled rows"),
        (f"{result.rows:,}", "rows predicted"),
        (result.fuser, "fuser fitted"),
    ]
    cards += [(best.name, f"lowest held-out log-loss, {best.log_loss:.4f}")] if best else []
    parts = [
        "<h1>How the models were fused</h1>",
        f'<p class="soft">{_date()}</p>',
        facts(cards),
        warnings(result.warnings),
        "<h2>On held-out rows</h2>",
        _comparison(result.comparison, result.fuser),
        _calibration(result.comparison, result.fuser),
        "<h2>What AFA learned</h2>",
        _explanation(result.explanation, result.unexplained),
        "<h2>What was fused</h2>",
        f"<p>Labels come from {text(str(result.labels))}.</p>",
        _members(result.members, result.classes, result.rows),
        how_to_repeat(result.command, {}, _versions()),
    ]
    title = f"Fused: {', '.join(m.name for m in result.members)}"
    path.write_text(page(title, parts, charts.STYLE + calibration.STYLE), encoding="utf-8")


def _comparison(comparison: Comparison, chosen: str) -> str:
    if not comparison.scores:
        return '<p class="soft">Nothing was compared (--compare none).</p>'
    rows = []
    for score in comparison.scores:
        mark = "chosen" if score.name == chosen else ""
        if score.failed:
            cells = f'<td colspan="4" class="soft">failed: {text(score.failed)}</td>'
            rows.append(row(score.name, rest=cells, kind=mark))
        else:
            rows.append(row(score.name, numbers=_numbers(score), kind=mark))
    note = f"{comparison.describe()} A model that does not know every class is completed with equal probabilities."
    first = head(["fuser or model"], _COLUMNS)
    return f'<p class="soft">{text(note)}</p>' + table(first, rows)


def _calibration(comparison: Comparison, chosen: str) -> str:
    found = comparison.calibrations
    if not found:
        return ""
    rows = []
    for one in found:
        numbers = [one.ece, one.brier, one.miscalibration, one.discrimination, one.uncertainty]
        mark = "chosen" if one.name == chosen else ""
        rows.append(row(one.name, numbers=[f"{value:.4f}" for value in numbers], kind=mark))
    note = (
        "Predictions by the probability that was given to them, against how many of them are right, on the same "
        "held-out rows: below the diagonal is too sure, above it not sure enough. Bars and the size of points say how "
        f"many rows there are. ECE is the mean distance from the diagonal, over {calibration.N_BINS} bins. The Brier "
        "score, summed over classes, is miscalibration − discrimination + uncertainty: what a monotone correction "
        "would gain, what the model can tell apart, and what the shares of the classes alone would score."
    )
    columns = ("ECE", "Brier score", "miscalibration", "discrimination", "uncertainty")
    return (
        f'<h2>Can the probabilities be believed?</h2><p class="soft">{text(note)}</p>'
        + calibration.reliability_charts(found, highlight=chosen)
        + "<h3>In numbers</h3>"
        + table(head(["fuser or model"], columns), rows)
    )


def _explanation(explanation: Explanation | None, why: str) -> str:
    if explanation is None:
        return f"<p>There is no explanation: {text(why)}.</p>"
    models, classes, shares = _model_shares(explanation)
    return (
        '<p class="soft">Shares of the fused output, read off the weights; they sum to one.</p>'
        "<h3>Means</h3>"
        + bars((str(name), float(share)) for name, share in explanation.means.rows)
        + "<h3>Models, over all classes</h3>"
        + bars(zip(models, shares.mean(0).tolist(), strict=True))
        + "<h3>Models, class by class</h3>"
        + heat_map("class", models, classes, shares.tolist())
    )


def _lacks(member: Member, classes: list[str]) -> list[str]:
    """Return the classes that a model does not know."""
    known = set(member.classes)
    return [name for name in classes if name not in known]


def _members(members: Sequence[Member], classes: list[str], rows: int) -> str:
    body = []
    for member in members:
        lacks = _lacks(member, classes)
        body.append(
            f'<tr><td class="name">{text(member.name)}</td><td class="name">{text(str(member.path))}</td>'
            f'<td class="n">{member.rows:,} of {rows:,}</td><td class="n">{len(member.classes)} of {len(classes)}</td>'
            f'<td class="name">{text(", ".join(lacks)) if lacks else MISSING}</td></tr>'
        )
    first = (
        '<tr><th>model</th><th>file</th><th class="n">rows</th><th class="n">classes known</th>'
        "<th>classes not known</th></tr>"
    )
    return table(first, body)


def _date() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _versions() -> dict[str, str]:
    from faverage import __version__

    found = {"faverage": __version__, "Python": platform.python_version(), "torch": torch.__version__}
    return found | {"numpy": np.__version__, platform.system(): platform.machine()}


def _numbers(score: Score) -> list[str]:
    """Return the numbers of a fuser or model, one for each of the columns."""
    numbers = [f"{value:.4f}" for value in (score.log_loss, score.accuracy, score.macro_f1)]
    return [*numbers, MISSING if score.seconds is None else f"{score.seconds:.2f}"]


def _model_shares(
    explanation: Explanation,
) -> tuple[list[str], list[str], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Return the models, the classes and the share ``(N, K)`` of each model for each class."""
    models = list(dict.fromkeys(str(row[1]) for row in explanation.models.rows))
    shares = np.array([float(row[2]) for row in explanation.models.rows]).reshape(-1, len(models))
    return models, [str(row[0]) for row in explanation.trusted.rows], shares


def show(result: Result, console: Console) -> None:
    """Print which files lack classes, the comparison, what AFA learned, and which files were written.

    >>> import tempfile
    >>> from faverage.prediction_files import fuse_files
    >>> ids, truth = np.arange(20).astype(str), np.arange(20) % 2
    >>> right, classes = np.eye(2)[truth], ["cat", "dog"]
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     for model, sure in {"forest": 0.9, "svm": 0.6}.items():
    ...         scores = sure * right + (1 - sure) * (1 - right)
    ...         np.savez(folder / f"{model}.npz", ids=ids, classes=classes, scores=scores)
    ...     np.savez(folder / "labels.npz", ids=ids, labels=np.array(classes)[truth])
    ...     files = [folder / "forest.npz", folder / "svm.npz"]
    ...     result = fuse_files(files, folder / "labels.npz", folder / "fused.csv", compare="none")
    >>> import io
    >>> from rich.console import Console
    >>> console = Console(file=io.StringIO(), width=80)  # Console() is the terminal
    >>> show(result, console)
    >>> said = console.file.getvalue()
    >>> print(said[said.index("Share of each model") : said.index("Most trusted")].rstrip())  # doctest: +ELLIPSIS
    Share of each model in AFA
    ┌────────┬───────┐
    │ forest │ 8...% │
    │ svm    │ 1...% │
    └────────┴───────┘
    """
    for member in result.members:
        if lacks := _lacks(member, result.classes):
            said = f"{member.path} lacks {len(lacks)} of {len(result.classes)} classes: {some(lacks, 3)}"
            console.print(_words(said), soft_wrap=True)
    if result.comparison.scores:
        _show_comparison(result, console)
    _show_explanation(result, console)
    console.print(
        _words(f"Fitted {result.fuser} on {result.labelled:,} labelled rows; predicted {result.rows:,} rows."),
        soft_wrap=True,
    )
    console.print(_words("Wrote " + ", ".join(map(str, result.outputs))), soft_wrap=True)


def _show_comparison(result: Result, console: Console) -> None:
    from rich.table import Table

    console.print(_words(result.comparison.describe()))
    shown = Table()
    shown.add_column("fuser or model", overflow="fold")
    for name in _COLUMNS:
        shown.add_column(name, justify="right", no_wrap=True)
    failed = []
    for score in result.comparison.scores:
        style = "bold" if score.name == result.fuser else ""
        if score.failed:
            failed.append(score)
            shown.add_row(_words(score.name), "failed", "", "", "", style=style)
        else:
            shown.add_row(_words(score.name), *_numbers(score), style=style)
    console.print(shown)
    for score in failed:
        console.print(_words(f"{score.name} failed: {score.failed}", "yellow"), soft_wrap=True)


def _show_explanation(result: Result, console: Console) -> None:
    from rich.table import Table

    if result.explanation is None:
        console.print(_words(f"AFA cannot be explained: {result.unexplained}", "yellow"), soft_wrap=True)
        return
    models, _, shares = _model_shares(result.explanation)
    overall = [
        ("Share of each mean in AFA", [(str(name), float(share)) for name, share in result.explanation.means.rows]),
        ("Share of each model in AFA", list(zip(models, shares.mean(0).tolist(), strict=True))),
    ]
    for title, rows in overall:
        console.print()
        console.print(_words(title))
        shown = Table(show_header=False)
        for name, share in rows:
            shown.add_row(_words(name, overflow="fold"), _words(f"{share:.1%}", justify="right"))
        console.print(shown)
    console.print()
    console.print(_words("Most trusted model by class"))
    shown = Table("class", "model", "share", "mean")
    trusted = result.explanation.trusted.rows
    for label, model, share, mean in trusted[:_MOST_CLASSES]:
        shown.add_row(_words(str(label)), _words(str(model)), f"{share:.1%}", _words(str(mean)))
    if len(trusted) > _MOST_CLASSES:
        shown.add_row(f"… {len(trusted) - _MOST_CLASSES} more in the report")
    console.print(shown)


def _words(said: str, style: str = "", **options: Any) -> Text:
    """Return text for the console, in which nothing can steer the terminal."""
    from rich.text import Text

    return Text(printable(said), style, **options)
