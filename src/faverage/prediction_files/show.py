"""What a person sees: warnings as they come, a progress bar (or plain lines), and the result as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from faverage.prediction_files.base import Listener, printable
from faverage.prediction_files.report import model_shares
from faverage.prediction_files.result import Result
from faverage.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["Screen", "show"]

_MOST_CLASSES = 20  # classes whose trusted model is printed; the report has them all


class Screen(Listener):
    """Prints warnings, and shows a bar while it is open, which leaves nothing behind; lines where no terminal is."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._progress = Progress(patient=False, columns="what bar count elapsed", console=console)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()

    def note(self, text: str) -> None:
        """Print and keep a warning."""
        from rich.text import Text

        super().note(text)
        self._console.print(Text.assemble(("Warning: ", "yellow"), printable(text)), soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar of ``what``, which takes the place of what is over; or write a line where it is time to."""
        self._progress(what, done, total)


def show(result: Result, console: Console) -> None:
    """Print the comparison, what AFA learned, and which files were written."""
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
    table = Table()
    table.add_column("fuser or model", overflow="fold")
    for name in ("log-loss", "accuracy", "macro F1", "fit (s)"):
        table.add_column(name, justify="right", no_wrap=True)
    failed = []
    for score in result.comparison.scores:
        style = "bold" if score.name == result.fuser else ""
        if score.failed:
            failed.append(score)
            table.add_row(_words(score.name), "failed", "", "", "", style=style)
            continue
        numbers = [f"{value:.4f}" for value in (score.log_loss, score.accuracy, score.macro_f1)]
        seconds = "–" if score.seconds is None else f"{score.seconds:.2f}"
        table.add_row(_words(score.name), *numbers, seconds, style=style)
    console.print(table)
    for score in failed:
        console.print(_words(f"{score.name} failed: {score.failed}", "yellow"), soft_wrap=True)


def _show_explanation(result: Result, console: Console) -> None:
    from rich.table import Table

    if result.explanation is None:
        console.print(_words(f"AFA cannot be explained: {result.unexplained}", "yellow"), soft_wrap=True)
        return
    models, _, shares = model_shares(result.explanation)
    overall = [
        ("Share of each mean in AFA", [(str(name), float(share)) for name, share in result.explanation.means.rows]),
        ("Share of each model in AFA", list(zip(models, shares.mean(0).tolist(), strict=True))),
    ]
    for title, rows in overall:
        console.print()
        console.print(_words(title))
        table = Table(show_header=False)
        for name, share in rows:
            table.add_row(_words(name, overflow="fold"), _words(f"{share:.1%}", justify="right"))
        console.print(table)
    console.print()
    console.print(_words("Most trusted model by class"))
    table = Table("class", "model", "share", "mean")
    trusted = result.explanation.trusted.rows
    for label, model, share, mean in trusted[:_MOST_CLASSES]:
        table.add_row(_words(str(label)), _words(str(model)), f"{share:.1%}", _words(str(mean)))
    if len(trusted) > _MOST_CLASSES:
        table.add_row(f"… {len(trusted) - _MOST_CLASSES} more in the report")
    console.print(table)


def _words(text: str, style: str = "", **options: Any) -> Text:
    """Return text for the console, in which nothing can steer the terminal."""
    from rich.text import Text

    return Text(printable(text), style, **options)
