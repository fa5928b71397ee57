"""The command ``faverage sweep``: from a YAML file to a folder of results.

Its loop starts what can be started, takes in what ended, and tries again what failed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from faverage.errors import ConfigError, UserError
from faverage.experiment.methods import on_gpu
from faverage.experiment.pictures import load_pictures
from faverage.experiment.sweep.engines import Dask, Engine, EngineLost, Loky
from faverage.experiment.sweep.plan import Plan
from faverage.experiment.sweep.report import FILES, Watch, failures, markdown, write
from faverage.experiment.sweep.results import Board, results_of
from faverage.experiment.sweep.work import Outcome, carry_out, mark, read_record, read_shared
from faverage.experiment.trouble import explain, make_folder

__all__ = ["ENGINES", "sweep", "sweep_command"]

ENGINES = ("loky", "dask")
POLL_SECONDS = 0.5


def sweep_command(
    file: Path,
    out: Path | None = None,
    *,
    jobs: int | None = None,
    engine: str = "loky",
    scheduler: str | None = None,
    retries: int = 1,
    command: str = "",
) -> int:
    """Carry out a sweep, write its files and print its table.

    Args:
        file: the YAML file.
        out: folder of the results; by default ``runs/`` and the name of the file.
        jobs: processes, for ``loky``; by default one a core, or one where there is a GPU.
        engine: ``loky`` or ``dask``.
        scheduler: address, for ``dask``.
        retries: how often a run that failed is tried again.
        command: how it was started, for the report.

    Returns:
        The exit code: 0, 1 where runs failed in the end, 130 where it was stopped.

    Raises:
        ConfigError: something that a person can put right.
    """
    from rich.console import Console
    from rich.text import Text

    _check_options(engine, scheduler, jobs, retries)
    plan = Plan.read(file)
    folder = (out or Path("runs") / file.stem).absolute()
    make_folder(folder)
    start = time.perf_counter()
    count = jobs or (1 if on_gpu(plan.config) else plan.config.jobs)
    with Watch(Console(stderr=True)) as watch:
        try:
            make = partial(_engine, plan, folder, scheduler, count)
            board = sweep(plan, folder, make, retries=retries, update=watch.update, say=watch.say)
            about: dict[str, Any] = {"name": file.stem, "command": command}
            about["date"] = datetime.now(UTC).isoformat(timespec="seconds")
            about["seconds"] = time.perf_counter() - start
            about["engine"] = f"loky, {count} at a time" if scheduler is None else f"dask, {board.places} at a time"
            results = results_of(board, about)
            write(folder, results)
        except (Exception, KeyboardInterrupt) as error:
            said = explain(error, folder, "")
            if said is None or isinstance(error, UserError):
                raise
            if not isinstance(error, KeyboardInterrupt):
                raise ConfigError(said) from None
            watch.say("Stopped. Finished runs are kept: the same command goes on from there.")
            return 130
    shown = Console()
    shown.print(Text(markdown(results)), soft_wrap=True)
    shown.print(Text(f"Wrote {', '.join([str(folder / FILES[0]), *FILES[1:]])}"))
    if not failures(results):
        return 0
    watch.say(f"{results['counts']['failed']} runs failed; the same command tries them again.")
    return 1


def _check_options(engine: str, scheduler: str | None, jobs: int | None, retries: int) -> None:
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine '{engine}'; known are: {', '.join(ENGINES)}")
    if engine == "dask" and scheduler is None:
        raise ConfigError("--engine dask needs --scheduler ADDRESS, such as tcp://host:8786")
    if engine == "loky" and scheduler is not None:
        raise ConfigError("--scheduler is of a cluster: add --engine dask")
    if engine == "dask" and jobs is not None:
        raise ConfigError("--jobs is for one machine; a cluster runs one task a worker: leave it out")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}")
    if retries < 0:
        raise ConfigError(f"--retries must be at least 0, got {retries}")


def _engine(plan: Plan, out: Path, scheduler: str | None, jobs: int, token: str) -> Engine:
    """Return the engine; data that is not there is an error before any run starts."""
    engine: Engine = Loky(jobs) if scheduler is None else Dask(scheduler, out, token, plan.versions)
    try:
        if plan.config.features is None:
            load_pictures(plan.config)
    except BaseException:
        engine.close()
        raise
    return engine


def sweep(
    plan: Plan,
    out: Path,
    engine: Callable[[str], Engine],
    *,
    retries: int = 1,
    update: Callable[[Board], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Board:
    r"""Carry out all runs of a plan that are not done yet; an error of one leaves the others alone.

    Args:
        plan: what to do.
        out: folder of the sweep, an absolute path.
        engine: makes the engine from the mark of the folder; not called where all is done. An engine has ``places()``,
            how many tasks it runs at a time, ``start(key, work)``, ``wait(seconds)``, which returns a list of (key,
            what ``work()`` returned), and ``close()``.
        retries: how often a task that failed is tried again.
        update: is told of every change.
        say: is told what went wrong, in words.

    Returns:
        The state and the results of every task.

    >>> import tempfile
    >>> import numpy as np
    >>> class Here:  # an engine in this process; the command has one of processes, and one of a cluster
    ...     ended = []
    ...     def places(self):
    ...         return 1
    ...     def start(self, key, work):
    ...         self.ended.append((key, work()))
    ...     def wait(self, seconds):
    ...         return [self.ended.pop()]
    ...     def close(self):
    ...         pass
    >>> x = np.eye(3)  # features of three classes; the third one comes after the base session
    >>> arrays = {"base_memory": x[[0, 1] * 5], "base_memory_labels": [0, 1] * 5, "base_prototypes": x[:2]}
    >>> arrays |= {"base_head_weight": x[:2], "base_head_bias": np.zeros(2)}
    >>> arrays |= {"novel": x[[2] * 5], "novel_labels": [2] * 5, "test": x, "test_labels": [0, 1, 2]}
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     np.savez(folder / "features.npz", **arrays)
    ...     text = f"dataset: folder\nfeatures: {folder}/features.npz\nmethods: [geometric]\n"
    ...     text += "over: {temperature: [4.0, 16.0]}\n"
    ...     _ = (folder / "sweep.yaml").write_text(text)
    ...     board = sweep(Plan.read(folder / "sweep.yaml"), folder / "out", lambda mark: Here())
    >>> board.count(), [board.mean(cell, "f1") for cell in board.plan.cells]
    (Counter({'done': 2}), [1.0, 1.0])
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
