"""What a person sees of a run: the stage it is in, and the time left where parts can be counted."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from faverage.progress import Lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Stages"]


class Stages:
    """Prints each stage once; a stage of known size gets a bar, or plain lines where the output is no terminal.

    Stages of unknown size may draw their own. Warnings are shown as sentences, without the place in the code.

    Attributes:
        console: where all of it goes.
        stage: the present stage, in words.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.stage = ""
        self._bar: Any = None
        self._lines = Lines("", 0)
        self._caught: Any = None

    def __enter__(self) -> Self:
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.showwarning = self._warn
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._caught.__exit__(kind, error, trace)

    def _warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        from rich.text import Text

        self.console.print(Text(f"Warning: {message}"), soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Say that ``done`` parts of ``total`` (0: not known) of ``what`` are done."""
        if what != self.stage:
            self._close()
            self.stage = what
            self.console.print(what, highlight=False, markup=False)
            if total:
                self._open(what, total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
            if self._bar.disable:
                self._lines.update(done)

    def _open(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
        self._bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self._bar.add_task("", total=total)
        self._lines = Lines(what, total)
        self._bar.start()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
