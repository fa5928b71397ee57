"""What a long job says while it runs: a progress bar or plain lines, and TensorBoard where asked for."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

from faverage.progress import Lines


class Report:
    """Shows on standard error how far a job is, if asked to; use it as a context.

    Args:
        what: the words before the bar.
        total: number of advances until the end.
        done: how many of them were done before.
        unit: images an advance, for the images per second.
        show: whether to draw the bar; where the output is no terminal, plain lines are written instead.
        tensorboard: folder for TensorBoard's files; None: none.
        past: the history of an earlier run that this one goes on from; TensorBoard gets it again.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        done: int = 0,
        unit: int = 1,
        show: bool,
        tensorboard: str | Path | None = None,
        past: dict[str, list[float]] | None = None,
    ) -> None:
        self._unit, self._start, self._steps, self._shown = unit, time.monotonic(), 0, 0.0
        self._bar: Any = None
        self._done, self._lines, self._words = done, Lines(what, total, done), ""
        self._writer = _summary_writer(tensorboard) if tensorboard is not None else None
        if self._writer is not None and past is not None:
            for number, values in enumerate(zip(*past.values(), strict=True)):
                self._write(number, dict(zip(past, values, strict=True)))
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            console = Console(stderr=True)
            words = TextColumn("{task.fields[words]}")
            columns = TextColumn(what), BarColumn(), TimeRemainingColumn(), words
            self._bar = Progress(*columns, console=console, disable=not (console.is_terminal or console.is_jupyter))
            self._task = self._bar.add_task(what, total=total, completed=done, words="")

    def __enter__(self) -> Report:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._writer is not None:
            self._writer.close()

    def advance(self, steps: int = 1) -> None:
        """Count steps; the bar is drawn anew ten times a second at most."""
        self._steps += steps
        if self._bar is None:
            return
        now = time.monotonic()
        if now - self._shown >= 0.1:
            speed = self._steps * self._unit / max(now - self._start, 1e-9)
            words = ", ".join(part for part in (f"{speed:,.0f} images/s", self._words) if part)
            self._bar.update(self._task, words=words)
            if self._bar.disable:
                self._lines.update(self._done + self._steps, words)
            self._shown = now
        self._bar.advance(self._task, steps)

    def epoch(self, number: int, row: dict[str, float]) -> None:
        """Take in the numbers of one epoch, counted from 0."""
        self._words = f"epoch {number + 1}: loss {row['loss']:.3f}, accuracy {row['accuracy']:.1%}"
        self._write(number, row)

    def _write(self, number: int, row: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in row.items():
                self._writer.add_scalar(f"base/{name}", value, number + 1)


def check_tensorboard(folder: str | Path) -> None:
    """Raise ImportError where TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ImportError(
            f"tensorboard={str(folder)!r} was asked for, but TensorBoard is not installed: "
            "pip install 'faverage[tensorboard]', or leave the option out"
        ) from None


def _summary_writer(folder: str | Path) -> Any:
    check_tensorboard(folder)
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=1)  # what an earlier, interrupted run wrote there counts no more
