"""Predictions that arrive together run as one batch in a thread of their own; changes of the model queue in another.

Small pictures are opened beside each other, large ones one after the other. The threads are those of the server:
several models share them, and whatever is limited.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import torch

from faverage.app.names import BusyError, ModelError
from faverage.app.photos import least, open_picture, unpacking
from faverage.app.server.guard import Refused
from faverage.app.server.limits import Limits, Meter, Shares
from faverage.data.decode import LARGE

if TYPE_CHECKING:
    from PIL.Image import Image

    from faverage.app.model import Answer, Model

T = TypeVar("T")

MOST = 16
PATIENCE = 0.002
MOMENT = 0.05
EXPORTS = 4  # files in the making, or in line for it
OPENERS = 4  # threads; one client has all but one of them
LAST_SECONDS = 3.0
LIGHT = 8_000_000  # bytes of memory that a picture may take to be opened beside others; a larger one waits for its turn
Upload = tuple[str, bytes]  # what a picture is called in messages, and its bytes
THREADS = "faverage-"  # what the names of the threads begin with


class Threads:
    """The threads of a server and what waits for them, of all its models together."""

    def __init__(self, limits: Limits) -> None:
        self.predictor = ThreadPoolExecutor(1, f"{THREADS}predict")
        self.changer = ThreadPoolExecutor(1, f"{THREADS}change")
        self.opener = ThreadPoolExecutor(OPENERS, f"{THREADS}open")
        self.reader = ThreadPoolExecutor(1, f"{THREADS}read")
        self.unpacker = ThreadPoolExecutor(1, f"{THREADS}unpack")
        self.exporter = ThreadPoolExecutor(1, f"{THREADS}export")
        self.exporting = 0
        self.zips = 0  # that come in
        self.turns: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()
        self.room = Shares(limits.pictures_at_once, max(limits.pictures, limits.pictures_at_once // limits.share))
        self.changing: set[asyncio.Future[Any]] = set()

    async def close(self) -> None:
        """End the threads; the change in progress gets a few seconds more, and files that are whole or not there."""
        for threads in (self.predictor, self.opener, self.unpacker, self.reader, self.exporter, self.changer):
            threads.shutdown(wait=False, cancel_futures=True)
        if self.changing:
            await asyncio.wait(self.changing, timeout=LAST_SECONDS)


class Workers:
    """What the server does with one model: predict, change it, read its files, and open pictures for it.

    Large pictures are opened one after the other, so that the memory for one is enough, and by turns of the clients.
    ``meter`` hears of every batch.
    """

    def __init__(self, model: Model, limits: Limits, meter: Meter, threads: Threads | None = None) -> None:
        self._model = model
        self._limits = limits
        self._meter = meter
        self.threads = threads or Threads(limits)
        self._queue: deque[tuple[Sequence[Image], asyncio.Future[list[Answer]]]] = deque()
        self._batches: asyncio.Task[None] | None = None
        self._looking: asyncio.Future[tuple[int, int]] | None = None
        self._seen = self._look()

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
        """Run a change of the model after those that came before it; it is finished even if the client leaves.

        Where the model refuses it, so does the server, in the same words.
        """
        if len(self.threads.changing) >= self._limits.teachers:
            raise Refused(503, "Too many changes are waiting already: try again in a moment.", {"retry-after": "2"})
        future = asyncio.get_running_loop().run_in_executor(self.threads.changer, work, *given)
        self.threads.changing.add(future)
        future.add_done_callback(self._changed)
        try:
            return await asyncio.shield(future)
        except BusyError as error:
            raise Refused(503, str(error), {"retry-after": "2"}) from None
        except ModelError as error:
            raise Refused(409, str(error)) from None

    async def read(self, work: Callable[..., T], *given: Any) -> T:
        """Run what reads the files of the model."""
        return await asyncio.get_running_loop().run_in_executor(self.threads.reader, work, *given)

    async def version(self) -> int:
        """Return the version of the model, as its files have it."""
        return int(await self.read(getattr, self._model, "version"))

    async def export(self, work: Callable[..., T], *given: Any) -> T:
        """Run what packs or unpacks files, which takes a while; few may wait for it."""
        if self.threads.exporting >= EXPORTS:
            raise Refused(503, "Too many files are being made already: try again in a moment.", {"retry-after": "5"})
        self.threads.exporting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads.exporter, work, *given)
        finally:
            self.threads.exporting -= 1

    async def known(self) -> tuple[int, int]:
        """Return the version of the model and its number of classes; the last known ones where its files are slow."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().run_in_executor(self.threads.reader, self._look)
        await asyncio.wait({self._looking}, timeout=MOMENT)
        if self._looking.done() and not self._looking.cancelled() and self._looking.exception() is None:
            self._seen = self._looking.result()
        return self._seen

    def _look(self) -> tuple[int, int]:
        return self._model.version, len(self._model.classes())

    async def open(self, client: str, uploads: Sequence[Upload], shown: int = 0) -> list[Image]:
        """Open pictures, and keep enough of the first ``shown`` to show them.

        A client that sends much waits for itself before others wait for it.
        """
        loop, side = asyncio.get_running_loop(), self._model.side
        async with self._turn("light", client, OPENERS - 1):
            found = await loop.run_in_executor(self.threads.opener, open_light, uploads, self._limits, side, shown)
        images = []
        for number, (upload, image) in enumerate(zip(uploads, found, strict=True)):
            if image is None:
                given = upload, self._limits, side, number < shown
                async with self._turn("large", client, 1):
                    image = await loop.run_in_executor(self.threads.unpacker, open_one, *given)
            images.append(image)
        return images

    def _predict(self, images: Sequence[Image]) -> list[Answer]:
        torch.set_num_threads(threads_for(self._model.side))  # which counts for this thread: models take turns in it
        return self._model.predict(images)

    def _turn(self, kind: str, client: str, most: int) -> asyncio.Semaphore:
        return self.threads.turns.setdefault((kind, client), asyncio.Semaphore(most))

    @contextmanager
    def room(self, client: str, pictures: int) -> Iterator[None]:
        """Keep room for pictures, as long as they are in progress."""
        status = self.threads.room.take(client, pictures)
        if status:
            raise Refused(status, "Too many pictures at once: try again in a moment.", {"retry-after": "2"})
        try:
            yield
        finally:
            self.threads.room.give(client, pictures)

    def _changed(self, future: asyncio.Future[Any]) -> None:
        self.threads.changing.discard(future)
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
            answers = await asyncio.get_running_loop().run_in_executor(self.threads.predictor, self._predict, images)
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


def threads_for(side: int, cores: int = os.cpu_count() or 2) -> int:
    """Return how many threads compute: one for small images, where several wait for each other on a busy machine.

    >>> threads_for(16, 8), threads_for(256, 8)
    (1, 4)
    """
    return 1 if side < LARGE else max(1, cores // 2)  # the other half reads and writes requests


def open_light(uploads: Sequence[Upload], limits: Limits, side: int, shown: int) -> list[Image | None]:
    """Open the pictures that take little memory; None stands for one that has to wait for its turn.

    The first upload that is no picture is refused by its name, and nothing is opened. No more is kept than squares of
    the side that the model sees; of the first ``shown``, enough to show them.
    """
    pixels, heavy = 0, []
    for called, data in uploads:
        found, memory = _said(called, unpacking, data, limits)
        pixels += found
        if memory > limits.memory:
            raise Refused(413, f"{called}: too many pixels for this format; shrink it, or send it as JPEG.")
        heavy.append(memory > LIGHT)
    if pixels > limits.pixels_together:
        most = f"{limits.pixels_together / 1e6:g} million pixels"
        raise Refused(413, f"The pictures have more than {most} together: send fewer, or smaller ones.")
    return [
        None if waits else least(_said(called, open_picture, data, limits), side, shown=number < shown)
        for number, ((called, data), waits) in enumerate(zip(uploads, heavy, strict=True))
    ]


def open_one(upload: Upload, limits: Limits, side: int, shown: bool) -> Image:
    """Open one picture that has waited for its turn, and keep the least of it that is needed."""
    return least(_said(upload[0], open_picture, upload[1], limits), side, shown=shown)


def _said(called: str, work: Callable[..., T], data: bytes, limits: Limits) -> T:
    try:
        return work(data, max_bytes=limits.picture_bytes, max_pixels=limits.pixels)
    except ModelError as error:
        raise Refused(422, f"{called}: {error}") from None
