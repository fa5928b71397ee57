"""What training says while it runs: how far it is, how fast, how well; to TensorBoard, too, where asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from faverage.errors import install_line
from faverage.progress import Progress


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
        self._progress = Progress(what, total, done=done, show=show, patient=False, columns="what bar remaining words")
        self._unit, self._start, self._first, self._shown, self._words = unit, time.monotonic(), done, 0.0, ""
        self._writer = _summary_writer(tensorboard) if tensorboard is not None else None
        if self._writer is not None and past is not None:
            for number, values in enumerate(zip(*past.values(), strict=True)):
                self._write(number, dict(zip(past, values, strict=True)))

    def __enter__(self) -> Report:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        if self._writer is not None:
            self._writer.close()

    def advance(self, steps: int = 1) -> None:
        """Count steps; they are shown ten times a second at most, and at the end."""
        progress, now = self._progress, time.monotonic()
        progress.done += steps
        if now - self._shown < 0.1 and progress.done < progress.total:
            return
        speed = (progress.done - self._first) * self._unit / max(now - self._start, 1e-9)
        progress.update(progress.done, ", ".join(part for part in (f"{speed:,.0f} images/s", self._words) if part))
        self._shown = now

    def epoch(self, number: int, row: dict[str, float]) -> None:
        """Take in the numbers of one epoch, counted from 0."""
        self._words = f"epoch {number + 1}: loss {row['loss']:.3f}, accuracy {row['accuracy']:.1%}"
        self._write(number, row)

    def _write(self, number: int, row: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in row.items():
                self._writer.add_scalar(f"base/{name}", value, number + 1)


def check_tensorboard(folder: str | Path) -> None:
    """Raise ImportError where TensorBoard is not installed; the message names the folder that was asked for.

    Called before a long training, not after it. Where TensorBoard is absent:

    >>> from unittest import mock
    >>> with mock.patch.dict("sys.modules", {"torch.utils.tensorboard": None}):
    ...     try:
    ...         check_tensorboard("runs/board")
    ...     except ImportError as error:
    ...         print(str(error).partition(": ")[0])
    tensorboard='runs/board' was asked for, but TensorBoard is not installed
    """
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ImportError(
            f"tensorboard={str(folder)!r} was asked for, but TensorBoard is not installed: "
            f"{install_line('tensorboard')}, or leave the option out"
        ) from None


def _summary_writer(folder: str | Path) -> Any:
    check_tensorboard(folder)
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=1)  # drops what an earlier, interrupted run wrote there
