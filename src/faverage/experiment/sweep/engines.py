"""Where the tasks of a sweep run: in processes of this machine. The engine for a cluster is in ``cluster``."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from faverage.experiment.sweep.work import Outcome

__all__ = ["Engine", "EngineLost", "Loky", "Work"]

Work = Callable[[], Outcome]
_WATCH_SECONDS = 0.5


class EngineLost(Exception):
    """The engine can run nothing more; the message says why and what to do."""


class Engine(Protocol):
    """Runs tasks; each one that was started comes back once from ``wait``."""

    def places(self) -> int:
        """Return how many tasks it can run at a time."""

    def start(self, key: str, work: Work) -> None:
        """Start a task; there must be a free place."""

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return what ended, after so many seconds at most; an empty list where nothing did."""

    def close(self) -> None:
        """Stop everything."""


class Loky:
    """Processes of this machine, by joblib's loky: a pool of its own for each, so that a killed one costs one task.

    Args:
        jobs: number of processes.
    """

    def __init__(self, jobs: int) -> None:
        self._pools: list[Any] = [None] * jobs
        self._free = list(range(jobs))
        self._ended: queue.SimpleQueue[tuple[str, int, Any]] = queue.SimpleQueue()

    def places(self) -> int:
        """Return the number of processes."""
        return len(self._pools)

    def start(self, key: str, work: Work) -> None:
        """Start a task in a free process; one that was killed while it had nothing to do is replaced."""
        place = self._free.pop()
        try:
            future = self._pool(place).submit(work)
        except RuntimeError:  # broken
            self._drop(place)
            future = self._pool(place).submit(work)
        future.add_done_callback(lambda ended: self._ended.put((key, place, ended)))

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return what ended; a killed process is an error of its task alone."""
        try:
            key, place, future = self._ended.get(timeout=seconds)
        except queue.Empty:
            return []
        self._free.append(place)
        error = future.exception()
        if error is None:
            return [(key, future.result())]
        if _broken(error):
            self._drop(place)
            return [(key, Outcome("its process was killed, perhaps for lack of memory: try fewer --jobs"))]
        return [(key, Outcome(f"{type(error).__name__}: {error}"))]

    def close(self) -> None:
        """Kill all processes."""
        for place in range(len(self._pools)):
            self._drop(place)

    def _pool(self, place: int) -> Any:
        if self._pools[place] is None:
            from joblib.externals.loky import ProcessPoolExecutor

            self._pools[place] = ProcessPoolExecutor(max_workers=1, initializer=_follow, initargs=(os.getpid(),))
        return self._pools[place]

    def _drop(self, place: int) -> None:
        pool, self._pools[place] = self._pools[place], None
        if pool is not None:
            pool.shutdown(kill_workers=True)


def _broken(error: BaseException) -> bool:
    from concurrent.futures.process import BrokenProcessPool

    return isinstance(error, BrokenProcessPool)


def _follow(parent: int) -> None:
    """Leave Ctrl-C to the sweep, which then stops its processes; end with it where it is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
