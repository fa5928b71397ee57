"""The command ``faverage sweep``: from a YAML file to a folder of results."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faverage.experiment.config import ConfigError
from faverage.experiment.methods import on_gpu
from faverage.experiment.pictures import load_pictures
from faverage.experiment.sweep.cluster import Dask
from faverage.experiment.sweep.engines import Engine, Loky
from faverage.experiment.sweep.loop import sweep
from faverage.experiment.sweep.plan import Plan
from faverage.experiment.sweep.report import FILES, Watch, failures, markdown, write
from faverage.experiment.sweep.results import results_of
from faverage.experiment.trouble import explain, make_folder

__all__ = ["ENGINES", "sweep_command"]

ENGINES = ("loky", "dask")


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
            make = _engine(plan, folder, scheduler, count)
            board = sweep(plan, folder, make, retries=retries, update=watch.update, say=watch.say)
            about: dict[str, Any] = {"name": file.stem, "command": command}
            about["date"] = datetime.now(UTC).isoformat(timespec="seconds")
            about["seconds"] = time.perf_counter() - start
            about["engine"] = f"loky, {count} at a time" if scheduler is None else f"dask, {board.places} at a time"
            results = results_of(board, about)
            write(folder, results)
        except (Exception, KeyboardInterrupt) as error:
            said = explain(error, folder, "")
            if said is None or isinstance(error, ConfigError):
                raise
            if not isinstance(error, KeyboardInterrupt):
                raise ConfigError(said) from None
            watch.say("Stopped. Finished runs are kept: the same command goes on from there.")
            return 130
    shown = Console()
    shown.print(Text(markdown(results)), soft_wrap=True)
    shown.print(Text(f"Wrote {', '.join(str(folder / FILES[0]) if i == 0 else n for i, n in enumerate(FILES))}"))
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


def _engine(plan: Plan, out: Path, scheduler: str | None, jobs: int) -> Callable[[str], Engine]:
    """Return what makes the engine; data that is not there is an error before any run starts."""

    def make(mark: str) -> Engine:
        engine: Engine = Loky(jobs) if scheduler is None else Dask(scheduler, out, mark, plan.versions)
        try:
            if plan.config.features is None:
                load_pictures(plan.config)
        except BaseException:
            engine.close()
            raise
        return engine

    return make
