"""Sweeps for tests: a small one, its numbers, the command, and workers that fail or die as they are told."""

import functools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from faverage.experiment.sweep import work
from faverage.experiment.sweep.plan import Task
from faverage.fusion import FUSERS, Fuser, register_fuser
from helpers_run import invoke, said  # noqa: F401

# 12 runs, 2 base sessions
SMALL = (
    "dataset: digits\ndevice: cpu\nepochs: 1\nmethods: [prototypes, arithmetic, log-pool]\nseeds: [0, 1]\ndraws: 2\n"
)

# for troubled
TROUBLE = {
    ("log-pool", 0, 0): ("die", 1),
    ("prototypes", 0, 1): ("raise", 1),
    ("prototypes", 1, 0): ("raise", 99),
    ("arithmetic", 1, 1): ("die", 99),
}


def command(*arguments: object) -> Any:
    return invoke("sweep", *arguments)


def written(folder: Path, text: str = SMALL) -> Path:
    file = folder / "small.yaml"
    file.write_text(text)
    return file


def runs_of(out: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """All runs of a sweep without options, by method, seed and draw."""
    runs = json.loads((out / "sweep.json").read_text())["runs"]
    return {(run["method"], run["seed"], run["draw"]): run for run in runs}


def numbers(out: Path) -> dict[tuple[str, int, int], Any]:
    """What the runs found, without times."""
    found = {}
    for which, run in runs_of(out).items():
        sessions = [{k: v for k, v in s.items() if not k.endswith("seconds")} for s in run["sessions"] or []]
        found[which] = (run["key"], run["held_out_loss"], sessions)
    return found


def times(*folders: Path) -> dict[Path, int]:
    """When the files of folders were written."""
    return {file: file.stat().st_mtime_ns for folder in folders for file in folder.rglob("*") if file.is_file()}


@contextmanager
def first_model_fuser() -> Iterator[None]:
    """A fuser registered from outside the package that no worker can import: it answers what the first model does."""

    class First(Fuser):
        trains = False

        def _predict(self, scores: np.ndarray) -> np.ndarray:
            return np.nan_to_num(scores[:, 0])

    register_fuser("first")(First)
    yield
    FUSERS.unregister("first")


class Here:
    """An engine in this process: a task is done when it is started."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.ended = jobs, []

    def places(self) -> int:
        return self.jobs

    def start(self, key: str, do: Any) -> None:
        self.ended.append((key, do()))

    def wait(self, seconds: float) -> list[Any]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        pass


def bases_from(whole: Path, out: Path) -> Path:
    """A folder with the base sessions of another sweep, and none of its runs."""
    for file in whole.glob("work/*/shared*"):
        (out / "work" / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, out / "work" / file.parent.name)
    return out


def slow(task: Task, out: Path, mark: str) -> work.Outcome:
    """Do a task, take some time for it, and leave the number of the process."""
    (out / "work" / f"process-{os.getpid()}").touch()
    outcome = work.carry_out(task, out, mark)
    time.sleep(0.3)
    return outcome


def alive(pid: int) -> bool:
    """Whether a process is there, and not just waiting for its end to be noticed."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc on this system
        return True


def troubled(table: dict[Any, tuple[str, int]], task: Task, out: Path, mark: str) -> work.Outcome:
    """Do a task, but have its worker fail or die in the middle of a run, after the method and before its record.

    Args:
        table: method, seed and draw -> ``raise`` or ``die``, and how often.
        task: what to do.
        out: folder of the sweep.
        mark: of the folder.
    """
    usual, trouble = work.held_out_loss, table.get((task.method, task.config.seed, task.draw), ("", 0))
    work.held_out_loss = functools.partial(_trouble, *trouble, task, out, usual)
    try:
        return work.carry_out(task, out, mark)
    finally:
        work.held_out_loss = usual


def _trouble(what: str, times: int, task: Task, out: Path, usual: Any, *arguments: Any) -> Any:
    past = len(list((out / "work").glob(f"trouble-{task.key}-*")))
    if past >= times:
        return usual(*arguments)
    (out / "work" / f"trouble-{task.key}-{past}").touch()
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("it broke")
