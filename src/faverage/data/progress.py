"""A progress bar that appears only when there is something to wait for."""

from __future__ import annotations

import time
from typing import Any

from faverage.progress import Lines

__all__ = ["Progress"]

PATIENCE_SECONDS = 2.0


class Progress:
    """Counts steps; after two seconds, shows the time left on standard error: as a bar, or in lines for a pipe.

    Args:
        title: What is being done.
        total: Number of steps.
        shown: Draw nothing at all where False.
    """

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        self.title = title
        self.total = total
        self.shown = shown
        self.done = 0
        self._start = time.monotonic()
        self._lines = Lines(title, total)
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, steps: int) -> None:
        """Count steps that are done."""
        self.done += steps
        if not self.shown or time.monotonic() - self._start < PATIENCE_SECONDS:
            return
        if self._bar is None:
            self._bar = self._draw()
        if self._bar.disable:
            self._lines.update(self.done)
        self._bar.update(self._bar.task_ids[0], completed=self.done)

    def _draw(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        console = Console(stderr=True)
        bar = Bar(*columns, console=console, disable=not (console.is_terminal or console.is_jupyter))
        bar.add_task(self.title, total=self.total, completed=self.done)
        bar.start()
        return bar
