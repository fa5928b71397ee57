"""Where the tasks of a sweep run: in processes of this machine, by loky, or on the workers of a cluster, by dask."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from faverage.errors import install_line
from faverage.experiment.code import sweep_code, versions
from faverage.experiment.config import ConfigError
from faverage.experiment.sweep.work import Outcome, marked
from faverage.registry import adopt, outside

__all__ = ["Dask", "Engine", "EngineLost", "Loky", "Work"]

CONNECT_SECONDS = 10.0
WORKERS_SECONDS = 60.0

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
        place, work = self._free.pop(), partial(_elsewhere, outside(), work)
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
        if isinstance(error, BrokenProcessPool):
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


def _elsewhere(registered: list[Any], work: Work) -> Outcome:
    """Do a task in another process, where what was registered from outside the package is not known yet."""
    adopt(registered)
    return work()


def _follow(parent: int) -> None:
    """Leave Ctrl-C to the sweep, which then stops its processes; end with it where it is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


class Dask:
    """Workers on any machines that share one file system, by dask.distributed.

    The scheduler gives the run of a worker that died to another one. A run that killed more workers than it allows
    (``distributed.scheduler.allowed-failures``, 3 by default) comes back as an error. There is never more than one task
    for each worker: a task that waits at a worker would be counted as one that killed it. That can still happen for a
    moment after a worker died, so the error may be another run's fault, and trying again makes sense.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.
        out: folder of the sweep, which all workers must see.
        mark: that it has.
        found: versions here; workers must have the same.

    Raises:
        ConfigError: there is no scheduler, no worker, or one that does not see the folder.
    """

    def __init__(self, address: str, out: Path, mark: str, found: dict[str, str]) -> None:
        try:
            import distributed
        except ImportError:
            raise ConfigError(f"--engine dask needs dask.distributed: {install_line('scale')}") from None
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it has to say is said in words here
        self.address = address
        self._futures: dict[str, Any] = {}
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen = time.monotonic()
        try:
            connect: Any = distributed.Client
            self._client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"no scheduler answers at {address} ({reason}): start one with 'dask scheduler' and give its address"
            ) from None
        try:
            self._check(out, mark, found)
        except BaseException:
            self.close()
            raise

    def places(self) -> int:
        """Return the number of workers that are there now."""
        count = len(self._ask_threads())
        if count:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > WORKERS_SECONDS:
            raise EngineLost(
                f"no worker has been left at {self.address} for {WORKERS_SECONDS:.0f} s: start some with 'dask worker'"
            )
        return count

    def start(self, key: str, work: Work) -> None:
        """Hand a task to the scheduler."""
        name = f"faverage-{key}-{uuid.uuid4().hex[:8]}"
        there = partial(_elsewhere, outside(), work)
        self._futures[key] = future = self._client.submit(there, key=name, pure=False, retries=0)
        future.add_done_callback(lambda _: self._ended.put(key))

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Return what ended; EngineLost where the scheduler went away."""
        from distributed import KilledWorker

        try:
            key = self._ended.get(timeout=seconds)
        except queue.Empty:
            return []
        future = self._futures.pop(key)
        if future.status not in ("finished", "error"):
            raise EngineLost(f"the scheduler at {self.address} is gone: start one, and give its address")
        error = future.exception() if future.status == "error" else None
        if isinstance(error, KilledWorker):
            times = error.allowed_failures + 1
            said = f"its worker was killed, {times} time{'s' if times > 1 else ''}, perhaps for lack of memory"
            return [(key, Outcome(said))]
        if error is not None:
            return [(key, Outcome(f"{type(error).__name__}: {error}"))]
        return [(key, future.result())]

    def close(self) -> None:
        """Take back what was not started, and leave the scheduler."""
        for future in self._futures.values():
            future.release()
        self._futures = {}
        self._client.close(timeout=CONNECT_SECONDS)

    def _ask_threads(self) -> dict[str, int]:
        try:
            threads: dict[str, int] = self._client.nthreads()
        except (OSError, RuntimeError) as error:
            raise EngineLost(f"the scheduler at {self.address} is gone ({error}): start one again") from None
        return threads

    def _check(self, out: Path, mark: str, found: dict[str, str]) -> None:
        """Raise ConfigError unless there are workers, and all see the folder and have the same versions."""
        deadline = time.monotonic() + CONNECT_SECONDS
        while not self._ask_threads():
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the scheduler at {self.address} has no workers: start some with "
                    f"'dask worker {self.address} --nthreads 1'"
                )
            time.sleep(0.2)
        try:
            self._client.run_on_scheduler(_look, out, mark)
        except Exception as error:
            raise ConfigError(f"the scheduler cannot read tasks ({error}): install faverage there, too") from None
        for worker, said in self._client.run(_look, out, mark, on_error="return").items():
            if isinstance(said, BaseException):
                raise ConfigError(f"worker {worker} cannot run a sweep ({said}): install faverage there as it is here")
            seen, theirs = said
            if not seen:
                raise ConfigError(
                    f"worker {worker} does not see {out}: --out must be on a file system that all workers share"
                )
            here = {**found, "code": sweep_code()}
            for name, version in theirs.items():
                if version != here[name]:
                    raise ConfigError(
                        f"worker {worker} has {name} {version}, but here it is {here[name]}: install the same versions"
                    )


def _look(out: Path, mark: str) -> tuple[bool, dict[str, str]]:
    """Return, on a worker, whether it sees the folder, and its versions."""
    return marked(out, mark), {**versions(), "code": sweep_code()}
