"""How far a long job is, in plain lines: for output that goes to a file or a pipe, where no bar can be drawn."""

from __future__ import annotations

import sys
import time

from faverage.report.page import duration

__all__ = ["Lines"]

PATIENCE_SECONDS = 2.0
LONGEST_SECONDS = 60.0


class Lines:
    """Writes a line at every tenth of the way, and every minute at least; a job under two seconds writes none.

    Args:
        what: is being done.
        total: number of parts.
        done: parts that an earlier run did; they say nothing about the speed.
    """

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self.what, self.total, self._first = what, total, done
        self._said = done
        self._start = self._when = time.monotonic()

    def update(self, done: int, words: str = "") -> None:
        """Take in how many parts are done, and write a line with ``words`` where it is time to."""
        now = time.monotonic()
        silent = now - self._when
        if silent < PATIENCE_SECONDS or not self._first < done < self.total:
            return
        if done - self._said < self.total / 10 and silent < LONGEST_SECONDS:
            return
        self._said, self._when = done, now
        left = (now - self._start) / (done - self._first) * (self.total - done)
        share = f"{self.what}: {100 * done // self.total} %, {done:,} of {self.total:,}"
        print(", ".join(part for part in (share, f"about {duration(left)} left", words) if part), file=sys.stderr)
        sys.stderr.flush()
