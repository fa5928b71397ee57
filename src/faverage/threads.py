"""Small work on one thread.

Handing out parts of a millisecond and waiting for them costs more than it saves, and a great deal more where other
processes keep the cores busy: every step then waits for a thread that is not running.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

__all__ = ["SMALL_WORK", "few_threads"]

SMALL_WORK = 5e7  # multiplications and additions of one step, a few milliseconds of one core

_lock = threading.Lock()
_inside = 0  # how many threads of this process are in a block of small work
_before: tuple[int, list[tuple[Any, int]]] = (1, [])  # threads of torch and of each BLAS library before the first
_mine = threading.local()  # inside: whether this thread is in such a block already


@contextmanager
def few_threads(work: float) -> Iterator[None]:
    """Use one thread inside, where a step of the work is small; afterwards as many as before.

    It limits the BLAS libraries of the process and torch's threads within operations. Nothing changes for large work.

    Args:
        work: about how many multiplications and additions one step takes, for example rows x inputs x outputs.
    """
    if work > SMALL_WORK or getattr(_mine, "inside", False):
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _before
    with _lock:
        if _inside == 0:
            libraries = _libraries(len(sys.modules))
            _before = torch.get_num_threads(), [(library, library.num_threads) for library in libraries]
        _inside += 1
        _mine.inside = True
        _set(1, [(library, 1) for library, _ in _before[1]])


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        _mine.inside = False
        _set(*_before)


def _set(for_torch: int, for_blas: list[tuple[Any, int]]) -> None:
    """Set the numbers of threads.

    torch keeps its number for each thread, and a limit of OpenBLAS can be lifted only by the thread that set it: so
    everyone sets their own, and restores it even where others are still at small work.
    """
    torch.set_num_threads(for_torch)
    for library, number in for_blas:
        library.set_num_threads(number)


@lru_cache(maxsize=1)
def _libraries(modules: int) -> list[Any]:
    """Return the BLAS libraries that are loaded. Finding them takes some 30 ms: it is done again after imports only."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
