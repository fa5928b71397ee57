"""What a long job says while it runs: a progress bar, and TensorBoard where asked for."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Report:
    """Shows how far a job is, if asked to; use it as a context.

    Args:
        what: the words before the bar.
        total: number of advances until the end.
        done: how many of them were done before.
        unit: images an advance, for the images per second.
        show: whether to draw the bar.
        tensorboard: folder for TensorBoard's files; None: none.
    """

    def __init__(
        self, what: str, total: int, *, done: int = 0, unit: int = 1, show: bool, tensorboard: str | Path | None = None
    ) -> None:
        self._unit, self._start, self._steps, self._shown = unit, time.monotonic(), 0, 0.0
        self._writer = _summary_writer(tensorboard) if tensorboard is not None else None
        self._bar: Any = None
        if show:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            words = TextColumn("{task.fields[words]}")
            self._bar = Progress(TextColumn(what), BarColumn(), TimeRemainingColumn(), words)
            self._task = self._bar.add_task(what, total=total, completed=done, words="")
        self._words = ""

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
            self._bar.update(self._task, words=f"{speed:,.0f} images/s {self._words}")
            self._shown = now
        self._bar.advance(self._task, steps)

    def epoch(self, number: int, row: dict[str, float]) -> None:
        """Take in the numbers of one epoch, counted from 0."""
        self._words = f"epoch {number + 1}: loss {row['loss']:.3f}, accuracy {row['accuracy']:.1%}"
        if self._writer is not None:
            for name, value in row.items():
                self._writer.add_scalar(f"base/{name}", value, number + 1)


def _summary_writer(folder: str | Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError(
            f"tensorboard={str(folder)!r} was asked for, but TensorBoard is not installed: "
            "pip install tensorboard -c constraints.txt, or leave the option out"
        ) from None
    return SummaryWriter(str(folder))
