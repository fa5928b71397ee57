"""A lock on a piece of work, for processes that would write to one folder at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone"]


@contextmanager
def alone(folder: Path, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes from the same work; they wait. Where the system has no locks on files, nobody waits.

    A process that is killed gives its lock back, and one that outlives its sweep keeps it until it is done.

    Args:
        folder: for the lock.
        name: of the work.
        waiting: is called where there is another process to wait for.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # some network file systems have none
            pass
        yield
    finally:
        os.close(handle)
