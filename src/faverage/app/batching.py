"""Predictions that arrive together run as one batch in a thread of their own; changes of the model queue in another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from faverage.app.guard import Refused
from faverage.app.limits import Limits
from faverage.app.meter import Meter

if TYPE_CHECKING:
    from PIL.Image import Image

    from faverage.app.model import Answer, Model

__all__ = ["Workers"]

T = TypeVar("T")

MOST = 16
PATIENCE = 0.002


class Workers:
    """The threads of the server: one predicts, one changes the model, two open pictures.

    Args:
        model: what answers.
        limits: how long a prediction may take, and how many changes may wait.
        meter: hears of every batch.
    """

    def __init__(self, model: Model, limits: Limits, meter: Meter) -> None:
        self._model = model
        self._limits = limits
        self._meter = meter
        self._predictor = ThreadPoolExecutor(1, "predict")
        self._changer = ThreadPoolExecutor(1, "change")
        self._opener = ThreadPoolExecutor(2, "open")
        self._queue: deque[tuple[Sequence[Image], asyncio.Future[list[Answer]]]] = deque()
        self._batches: asyncio.Task[None] | None = None
        self._changes = 0

    async def predict(self, images: Sequence[Image]) -> list[Answer]:
        """Return the answers to these pictures, from one state of the model."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Answer]] = loop.create_future()
        self._queue.append((images, future))
        if self._batches is None or self._batches.done():
            self._batches = loop.create_task(self._run())
        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                return await future
        except TimeoutError:
            raise Refused(503, "The model is busy and did not answer in time: try again in a moment.") from None

    async def change(self, work: Callable[..., T], *given: Any) -> T:
        """Run a change of the model after those that came before it; it is finished even if the client leaves."""
        if self._changes >= self._limits.teachers:
            raise Refused(503, "Too many changes are waiting already: try again in a moment.")
        self._changes += 1
        future = asyncio.get_running_loop().run_in_executor(self._changer, work, *given)
        future.add_done_callback(self._changed)
        return await asyncio.shield(future)

    async def open(self, work: Callable[..., T], *given: Any) -> T:
        """Run what reads pictures, or the files of the model."""
        return await asyncio.get_running_loop().run_in_executor(self._opener, work, *given)

    def close(self) -> None:
        """End the threads, after the change in progress."""
        for threads in (self._predictor, self._opener, self._changer):
            threads.shutdown(wait=True, cancel_futures=True)

    def _changed(self, future: asyncio.Future[Any]) -> None:
        self._changes -= 1
        if not future.cancelled():
            future.exception()  # has been seen, also where the client left

    async def _run(self) -> None:
        while self._queue:
            if sum(len(images) for images, _ in self._queue) < MOST:
                await asyncio.sleep(PATIENCE)
            taken = [self._queue.popleft()]
            while self._queue and sum(len(images) for images, _ in [*taken, self._queue[0]]) <= MOST:
                taken.append(self._queue.popleft())
            await self._answer([one for one in taken if not one[1].done()])

    async def _answer(self, taken: list[tuple[Sequence[Image], asyncio.Future[list[Answer]]]]) -> None:
        images = [image for pictures, _ in taken for image in pictures]
        if not images:
            return
        self._meter.batch(len(images))
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._predictor, self._model.predict, images)
        except Exception as error:
            if len(taken) > 1:  # one picture must not spoil the others' answers
                for one in taken:
                    await self._answer([one])
            elif not taken[0][1].done():
                taken[0][1].set_exception(error)
            return
        start = 0
        for pictures, future in taken:
            if not future.done():
                future.set_result(answers[start : start + len(pictures)])
            start += len(pictures)
