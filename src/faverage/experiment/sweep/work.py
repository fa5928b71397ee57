"""What a worker does: one task, as a pure function of its settings; what is done already is not done again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faverage.experiment.config import RIVAL_METHODS, ConfigError, RunConfig
from faverage.experiment.features import Features, features_of_benchmark, features_of_file
from faverage.experiment.lock import alone
from faverage.experiment.methods import on_gpu, run_methods
from faverage.experiment.pictures import load_pictures
from faverage.experiment.resume import write_left
from faverage.experiment.rivals import rival_base, rival_folder
from faverage.experiment.sweep.held_out import held_out_loss
from faverage.experiment.sweep.plan import Task
from faverage.experiment.sweep.shared import marked, read_record, read_shared, write_shared
from faverage.experiment.trouble import explain

__all__ = ["Outcome", "carry_out"]

_ONE_AT_A_TIME = threading.Lock()  # a worker of dask may have many threads, but torch has one seed a process


@dataclass
class Outcome:
    """How a task ended.

    Attributes:
        error: why it failed, in words; empty where it went well.
        record: the results of a run.
        seconds: it took.
        warnings: that came up.
    """

    error: str = ""
    record: dict[str, Any] | None = None
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)


def carry_out(task: Task, out: Path, mark: str) -> Outcome:
    """Do a task; an error is an outcome, too.

    Args:
        task: what to do.
        out: folder of the sweep.
        mark: that the folder must have.
    """
    start, outcome, stage = time.perf_counter(), Outcome(), [""]

    def progress(what: str, *_: int) -> None:
        stage[0] = what

    with _ONE_AT_A_TIME, _quiet() as caught, _threads(task.config):
        try:
            if not marked(out, mark):
                raise ConfigError(f"this worker does not see {out}: it must be on a file system that all workers share")
            with alone(out / "work", task.key):
                outcome.record = _DO[task.kind](task, out, progress)
        except Exception as error:
            said = explain(error, out, stage[0]) or f"{type(error).__name__}: {error}"
            outcome.error = said.splitlines()[0]
        outcome.warnings = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    outcome.seconds = time.perf_counter() - start
    return outcome


def _base(task: Task, out: Path, progress: Any) -> None:
    """Train the base session of a seed and its options, and leave its features for the runs."""
    folder, spare = out / "work" / task.folder, task.config.draws > 1
    folder.mkdir(exist_ok=True)
    if read_shared(folder, spare) is None:
        count = len(task.config.networks)
        folders = [folder / f"network-{k}" for k in range(1, count + 1)] or [folder]
        write_shared(features_of_benchmark(task.config, folders, progress), folder, spare)


def _rival(task: Task, out: Path, progress: Any) -> None:
    """Train the base session of a rival, which all its draws start from."""
    progress("loading images")
    pictures = load_pictures(task.config)
    folder = out / "work" / task.folder / rival_folder(task.method, task.config, pictures)
    folder.mkdir(parents=True, exist_ok=True)
    progress(f"training {task.method}")
    rival_base(task.method, pictures, task.config, folder, False)


def _run(task: Task, out: Path, progress: Any) -> dict[str, Any]:
    """Take one method through all sessions with one draw, and once more for its held-out loss."""
    record = read_record(out, task.key)
    if record is not None:
        return record
    start = time.perf_counter()
    config, folder = task.config, out / "work" / task.folder
    folder.mkdir(exist_ok=True)
    features = _features(task, out, progress)
    result = run_methods(config, features, task.draw, folder, progress)[0][task.method]
    progress("computing the held-out loss")
    loss = held_out_loss(task.method, features.redrawn(config.seed, task.draw), config, task.draw)
    record = {
        "key": task.key,
        "method": task.method,
        "seed": config.seed,
        "draw": task.draw,
        "config": config.to_dict(),
        "held_out_loss": loss,
        "sessions": result["sessions"],
        "seconds": time.perf_counter() - start,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_left(out / "runs" / f"{task.key}.json", record)
    return record


def _features(task: Task, out: Path, progress: Any) -> Features:
    if task.config.features is not None:
        return features_of_file(Path(task.config.features), task.config.views)
    if task.method in RIVAL_METHODS:
        return features_of_benchmark(task.config, [], progress)
    features = read_shared(out / "work" / str(task.shared), task.config.draws > 1)
    if features is None:
        raise OSError(f"the features of the base session in {out / 'work' / str(task.shared)} are gone: start again")
    return features


_DO = {"base": _base, "rival": _rival, "run": _run}


@contextlib.contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Keep bars and lines from the screen, which shows the whole sweep, and collect warnings."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(record=True) as caught,
    ):
        yield caught


@contextlib.contextmanager
def _threads(config: RunConfig) -> Iterator[None]:
    """Compute with one thread, since there are as many workers as cores; a GPU's worker keeps its threads."""
    if on_gpu(config):
        yield
        return
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
