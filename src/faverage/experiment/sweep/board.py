"""How far a sweep is: the state of every task, and what the finished runs say so far."""

from __future__ import annotations

from collections import Counter
from typing import Any

from faverage.experiment.sweep.plan import Cell, Plan
from faverage.experiment.sweep.work import Outcome

__all__ = ["Board"]


class Board:
    """The state of a sweep.

    Attributes:
        plan: what there is to do.
        state: of each task by key: ``waiting``, ``running``, ``done`` or ``failed``.
        records: results of finished runs by key.
        errors: why tasks failed, in words.
        attempts: how often each task was started this time.
        places: how many tasks ran at a time, at most.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = dict.fromkeys(plan.tasks, "waiting")
        self.records: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}
        self.attempts: Counter[str] = Counter()
        self.places = 1
        self._seconds: dict[str, list[float]] = {}

    def keys(self, state: str) -> list[str]:
        """Return the tasks in a state."""
        return [key for key, now in self.state.items() if now == state]

    def finished(self, key: str, outcome: Outcome) -> None:
        """Take in a task that went well."""
        self.state[key] = "done"
        self._seconds.setdefault(self.plan.tasks[key].kind, []).append(outcome.seconds)
        if outcome.record is not None:
            self.records[key] = outcome.record

    def failed(self, key: str, why: str) -> None:
        """Take in a task that failed for good, and with it all that need it."""
        self.state[key], self.errors[key] = "failed", why
        for other, task in self.plan.tasks.items():
            if task.needs == key and self.state[other] == "waiting":
                self.failed(other, f"its base session failed: {why}")

    def count(self, cell: Cell | None = None) -> Counter[str]:
        """Return how many runs, of a cell or of all, are in which state."""
        keys = [task.key for task in self.plan.runs] if cell is None else cell.runs.values()
        return Counter(self.state[key] for key in keys)

    def seconds_left(self) -> float | None:
        """Return about how long it takes still; None before a run ended."""
        known = [seconds for times in self._seconds.values() for seconds in times]
        if "run" not in self._seconds:
            return None
        left = 0.0
        for key, state in self.state.items():
            times = self._seconds.get(self.plan.tasks[key].kind) or known
            left += {"waiting": 1.0, "running": 0.5}.get(state, 0.0) * sum(times) / len(times)
        return left / max(1, self.places)

    def mean(self, cell: Cell, what: str) -> float | None:
        """Return the mean over finished runs of the last ``f1``, or of the ``held_out_loss``."""
        records = [self.records[key] for key in cell.runs.values() if key in self.records]
        values = [r["sessions"][-1]["f1"] if what == "f1" else r["held_out_loss"] for r in records]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None
