"""The loop of a sweep: start what can be started, take in what ended, try again what failed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faverage.experiment.sweep.board import Board
from faverage.experiment.sweep.engines import Engine, EngineLost
from faverage.experiment.sweep.plan import Plan
from faverage.experiment.sweep.shared import mark, read_record, read_shared
from faverage.experiment.sweep.work import Outcome, carry_out

__all__ = ["sweep"]

POLL_SECONDS = 0.5


def sweep(
    plan: Plan,
    out: Path,
    engine: Callable[[str], Engine],
    *,
    retries: int = 1,
    update: Callable[[Board], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Board:
    """Carry out all runs of a plan that are not done yet; an error of one leaves the others alone.

    Args:
        plan: what to do.
        out: folder of the sweep, an absolute path.
        engine: makes the engine from the mark of the folder; not called where all is done.
        retries: how often a task that failed is tried again.
        update: is told of every change.
        say: is told what went wrong, in words.
    """
    board, token = Board(plan), mark(out)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _take_in_finished(board, out)
    for words in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"Warning: {words}")
    if not board.keys("waiting"):
        update(board)
        return board
    runner = engine(token)
    heard: set[str] = set()
    try:
        update(board)
        while board.keys("waiting") or board.keys("running"):
            _start(board, runner, lambda key: partial(carry_out, plan.tasks[key], out, token))
            for key, outcome in runner.wait(POLL_SECONDS):
                for words in set(outcome.warnings) - heard:
                    say(f"Warning: {words}")
                heard |= set(outcome.warnings)
                _take_in(board, key, outcome, retries, say)
            update(board)
    except EngineLost as error:
        for key in [*board.keys("running"), *board.keys("waiting")]:
            if board.state[key] != "failed":
                board.failed(key, f"not done: {error}")
        say(str(error))
    finally:
        runner.close()
    return board


def _take_in_finished(board: Board, out: Path) -> None:
    """Mark what an earlier sweep did, and what nobody needs."""
    needed = set()
    for task in board.plan.runs:
        record = read_record(out, task.key)
        if record is not None:
            board.state[task.key], board.records[task.key] = "done", record
        else:
            needed.add(task.needs)
    for key, task in board.plan.tasks.items():
        if task.kind != "run" and key not in needed:
            board.state[key] = "done"
        elif task.kind == "base" and read_shared(out / "work" / task.folder, task.config.draws > 1) is not None:
            board.state[key] = "done"


def _start(board: Board, engine: Engine, work: Callable[[str], Callable[[], Outcome]]) -> None:
    """Start tasks whose needs are done, as many as there are free places."""
    places, running = engine.places(), len(board.keys("running"))
    board.places = max(places, 1)
    for key in board.keys("waiting"):
        if running >= places:
            return
        needs = board.plan.tasks[key].needs
        if needs is None or board.state[needs] == "done":
            board.state[key] = "running"
            board.attempts[key] += 1
            engine.start(key, work(key))
            running += 1


def _take_in(board: Board, key: str, outcome: Outcome, retries: int, say: Callable[[str], None]) -> None:
    if not outcome.error:
        board.finished(key, outcome)
        return
    again = board.attempts[key] <= retries
    say(f"{_name(board, key)}: {outcome.error}" + ("; it is tried again" if again else ""))
    if again:
        board.state[key] = "waiting"
    else:
        board.failed(key, outcome.error)


def _name(board: Board, key: str) -> str:
    """Return a task in words."""
    task = board.plan.tasks[key]
    what = {"base": "base session", "rival": f"base session of {task.method}", "run": task.method}[task.kind]
    draw = f", draw {task.draw}" if task.kind == "run" and task.config.draws > 1 else ""
    return f"{what}, seed {task.config.seed}{draw} ({key})"
