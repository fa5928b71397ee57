"""What a person sees of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from faverage.experiment.sweep.board import Board
from faverage.experiment.sweep.plan import Cell, label_of
from faverage.progress import Progress
from faverage.report.page import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Watch"]


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
