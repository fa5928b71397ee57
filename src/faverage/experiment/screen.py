"""What a person sees of a run: the stage it is in, and a bar with the time left where parts can be counted."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Stages"]


class Stages:
    """Prints each stage once; a stage of known size gets a bar. Stages of unknown size may draw their own."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._stage = ""
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def progress(self, what: str, done: int, total: int) -> None:
        """Say that ``done`` parts of ``total`` (0: not known) of ``what`` are done."""
        if what != self._stage:
            self._close()
            self._stage = what
            self.console.print(what, highlight=False)
            if total:
                self._open(total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)

    def _open(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
        self._bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self._bar.add_task("", total=total)
        self._bar.start()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
