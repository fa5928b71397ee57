"""What a sweep found: the state of every task so far, and at the end all runs, means and the best setting as data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from faverage.experiment.results import combine
from faverage.experiment.sweep.held_out import IN_WORDS
from faverage.experiment.sweep.plan import Cell, Plan
from faverage.experiment.sweep.work import Outcome

__all__ = ["Board", "best_of", "results_of"]

Results = dict[str, Any]


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


def results_of(board: Board, about: Results) -> Results:
    """Return plain JSON data: ``about``, the plan, all runs, all cells, and the best by held-out loss.

    Args:
        board: of a sweep that ended.
        about: what else to say, such as ``command`` and ``date``.
    """
    plan = board.plan
    cells = [_cell(board, cell) for cell in plan.cells]
    bases = [task for task in plan.tasks.values() if task.kind != "run"]
    return {
        "dataset": plan.config.dataset,
        **about,
        "config": plan.config.to_dict(),
        "over": plan.over,
        "seed": plan.config.seed,
        "seeds": list(plan.seeds),
        "draws": plan.config.draws,
        "versions": plan.versions,
        "earlier": sum(_earlier(board, task.key) for task in plan.runs),
        "counts": {"runs": len(plan.runs), **{s: board.count()[s] for s in ("done", "failed")}, "bases": len(bases)},
        "held_out": IN_WORDS,
        "best": best_of(cells),
        "best_by_method": [
            best for m in plan.config.methods if (best := best_of([c for c in cells if c["method"] == m])) is not None
        ],
        "cells": cells,
        "runs": [_run(board, cell, *which) for cell in plan.cells for which in cell.runs],
    }


def best_of(cells: list[Results]) -> Results | None:
    """Return options, method and loss of the cell with the least mean held-out loss; None where no cell has one.

    A cell counts where all its runs are done, so that every mean is over the same seeds and draws; the first of equals
    is taken. Test numbers have no part in it.
    """
    whole = [cell for cell in cells if cell["done"] == cell["runs"] and cell["held_out_loss"] is not None]
    if not whole:
        return None
    best = min(whole, key=lambda cell: cell["held_out_loss"]["mean"])
    return {name: best[name] for name in ("options", "method", "held_out_loss")}


def _cell(board: Board, cell: Cell) -> Results:
    """Return means and standard deviations over seeds and draws."""
    records = [board.records[key] for key in cell.runs.values() if key in board.records]
    losses = [r["held_out_loss"] for r in records]
    found: Results = {"sessions": [], "spread": None}
    if records:
        repeats = [{"methods": {cell.method: {"sessions": r["sessions"]}}} for r in records]
        found = combine(repeats)[cell.method]
    later = [np.mean([s["f1"] for s in r["sessions"][1:] or r["sessions"]]) for r in records]
    return {
        "options": cell.options,
        "method": cell.method,
        "runs": len(cell.runs),
        "done": len(records),
        "held_out_loss": _spread(losses) if losses and None not in losses else None,
        "f1_mean": _spread(later),
        "seconds": _spread([r["seconds"] for r in records]),
        "sessions": found["sessions"],
        "spread": found["spread"],
    }


def _earlier(board: Board, key: str) -> bool:
    """Return whether a run is one of an earlier sweep, of the same settings, data and code."""
    return key in board.records and not board.attempts[key]


def _spread(values: list[Any]) -> Results | None:
    if not values:
        return None
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def _run(board: Board, cell: Cell, seed: int, draw: int) -> Results:
    key = cell.runs[seed, draw]
    record = board.records.get(key, {})
    return {
        "key": key,
        "options": cell.options,
        "method": cell.method,
        "seed": seed,
        "draw": draw,
        "status": "done" if record else "failed",
        "error": board.errors.get(key),
        "attempts": board.attempts[key],
        "earlier": _earlier(board, key),
        "date": record.get("date"),
        "seconds": record.get("seconds"),
        "held_out_loss": record.get("held_out_loss"),
        "sessions": record.get("sessions"),
        "config": board.plan.tasks[key].config.to_dict(),
    }
