"""How far a long job is: a bar on a terminal, plain lines in a file or a pipe; and the same as a callback."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from faverage.report.page import duration

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Progress"]

PATIENCE_SECONDS = 2.0
LONGEST_SECONDS = 60.0


class Progress:
    """The one reporter. Use it as a context and ``advance`` it, or hand it on as a callback of (what, done, total).

    Without a terminal it writes a line at every tenth of the way, and every minute at least; a job under two seconds
    writes none.

    Args:
        what: is being done.
        total: number of parts; 0: not known, and nothing is shown.
        done: parts that an earlier run did; they say nothing about the speed.
        show: whether to show anything.
        patient: whether a bar is shown only after two seconds, too.
        columns: of the bar: ``what``, ``bar``, ``count``, ``elapsed``, ``remaining``, ``words``; any other word is
            shown as it is.
        console: where a bar goes, and is removed at the end; by default it stays, on standard error.
    """

    def __init__(
        self,
        what: str = "",
        total: int = 0,
        *,
        done: int = 0,
        show: bool = True,
        patient: bool = True,
        columns: str = "what bar count remaining",
        console: Console | None = None,
    ) -> None:
        self.console, self._show, self._patient, self._columns = console, show, patient, columns
        self._bar: Any = None  # False where the output is no terminal
        self.begin(what, total, done)

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Start with another job."""
        self.close()
        self.what, self.total, self.done = what, total, done
        self._first = self._said = done
        self._start = self._when = time.monotonic()

    def __enter__(self) -> Self:
        if not self._patient:
            self.update(self.done)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the bar."""
        if self._bar:
            self._bar.stop()
        self._bar = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts of ``what`` are done."""
        if what != self.what:
            self.begin(what, total)
        self.update(done)

    def advance(self, steps: int = 1) -> None:
        """Count parts that are done."""
        self.update(self.done + steps)

    def update(self, done: int, words: str = "") -> None:
        """Set how many parts are done, and show it, with ``words``, where it is time to."""
        self.done = done
        if not self._show or not self.total:
            return
        if self._patient and time.monotonic() - self._start < PATIENCE_SECONDS:
            return
        if self._bar is None:
            self._bar = self._draw()
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=done, words=words)
        else:
            self._line(words)

    def _line(self, words: str) -> None:
        """Write a line where it is time to."""
        now = time.monotonic()
        silent = now - self._when
        if silent < PATIENCE_SECONDS or not self._first < self.done < self.total:
            return
        if self.done - self._said < self.total / 10 and silent < LONGEST_SECONDS:
            return
        self._said, self._when = self.done, now
        left = (now - self._start) / (self.done - self._first) * (self.total - self.done)
        share = f"{self.what}: {100 * self.done // self.total} %, {self.done:,} of {self.total:,}"
        print(", ".join(part for part in (share, f"about {duration(left)} left", words) if part), file=sys.stderr)
        sys.stderr.flush()

    def _draw(self) -> Any:
        """Return a bar that was started; False where there is no terminal."""
        from rich import progress as rich
        from rich.console import Console

        console = self.console or Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return False
        known: dict[str, rich.ProgressColumn] = {
            "what": rich.TextColumn("{task.description}"),
            "bar": rich.BarColumn(),
            "count": rich.MofNCompleteColumn(),
            "elapsed": rich.TimeElapsedColumn(),
            "remaining": rich.TimeRemainingColumn(),
            "words": rich.TextColumn("{task.fields[words]}"),
        }
        columns = [known.get(name, name) for name in self._columns.split()]
        bar = rich.Progress(*columns, console=console, transient=self.console is not None)
        bar.add_task(self.what, total=self.total, completed=self._first, words="")
        bar.start()
        return bar
