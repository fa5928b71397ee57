"""What a person sees while files are fused: warnings as they come, and a progress bar or plain lines."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from faverage.prediction_files.base import Listener, printable
from faverage.progress import Lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Screen"]


class Screen(Listener):
    """Prints warnings, and shows a bar while it is open, which leaves nothing behind; lines where no terminal is."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        super().__init__()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, Any] = {}
        self._lines = Lines("", 0)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        """Print and keep a warning."""
        from rich.text import Text

        super().note(text)
        self._bars.console.print(Text.assemble(("Warning: ", "yellow"), printable(text)), soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar of ``what``, and take away the bars of what is over; or write a line where it is time to."""
        if self._bars.disable:
            if what != self._lines.what:
                self._lines = Lines(what, total)
            self._lines.update(done)
            return
        for name in [name for name in self._tasks if name != what]:
            self._bars.remove_task(self._tasks.pop(name))
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)
