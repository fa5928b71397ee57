"""The campaign: each target in a process of its own, one input after the other."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import stat
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz.target import Counts, Finding, Target, attempt, memory_of

__all__ = ["run_campaign", "shares"]

MEGABYTE = 2**20
GRACE = 15.0  # seconds beyond a target's limit after which a process that does not even hear signals is killed


def shares(targets: Sequence[tuple[str, int]], count: int) -> dict[str, int]:
    """Share ``count`` inputs among targets by their weights, and not fewer; each gets at least one.

    >>> shares([("csv", 300), ("npz", 100), ("kill", 1)], 100)
    {'csv': 75, 'npz': 25, 'kill': 1}
    """
    total = sum(weight for _, weight in targets)
    return {name: math.ceil(count * weight / total) for name, weight in targets}


@dataclass
class _Worker:
    """A process that tries the inputs of one target, and what its parent knows of it."""

    target: Target
    process: Any
    pipe: Connection
    left: list[int]
    at: int | None = None
    since: float = 0.0


def _serve(target: Target, seed: int, numbers: Sequence[int], examples: Path, home: Path, pipe: Connection) -> None:
    """The life of a worker: try every number, and say what came of it."""
    os.setsid()
    said = home / "said"
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ["FAVERAGE_CACHE"] = str(home / "cache")
    os.environ.pop("FAVERAGE_DATA", None)
    try:
        target.start(examples)
        if target.megabytes is not None:
            room = int((memory_of("self", "VmSize") + target.megabytes + 1024) * MEGABYTE)
            resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for number in numbers:
            pipe.send(("begin", number))
            found = attempt(target, number, seed, examples, home / "work", said)
            pipe.send(("end", number, *found, max(memory_of("self", "VmHWM"), getattr(target, "peak", 0.0))))
            if found[0] == "broken":
                pipe.recv()  # until the input was copied
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
    finally:
        target.stop()
        pipe.close()
        os._exit(0)  # nothing of the parent's is to be cleaned up here


def run_campaign(
    targets: Sequence[Target],
    wanted: dict[str, Sequence[int]],
    seed: int,
    *,
    scratch: Path,
    keep: Path,
    jobs: int = 2,
    deadline: float = float("inf"),
    done: Callable[[Counts], None] = lambda _: None,
) -> list[Counts]:
    """Try the wanted numbers of every target.

    Args:
        targets: what to try.
        wanted: numbers of inputs by target.
        seed: of the campaign; an input depends on it, its target and its number alone.
        scratch: folder for what is thrown away.
        keep: folder for broken inputs.
        jobs: targets at a time.
        deadline: of ``time.monotonic()``; what was not tried by then is left out.
        done: hears of each target that is over.
    """
    context = multiprocessing.get_context("fork")
    counts = {target.name: Counts(target.name, len(wanted[target.name])) for target in targets}
    examples = scratch / "examples"
    for target in targets:
        (examples / target.name).mkdir(parents=True, exist_ok=True)
        target.prepare(examples / target.name)
    begun = {target.name: 0.0 for target in targets}

    def start(target: Target, numbers: list[int]) -> _Worker:
        ours, theirs = context.Pipe()
        home = scratch / target.name
        home.mkdir(exist_ok=True)
        given = (target, seed, numbers, examples / target.name, home, theirs)
        process = context.Process(target=_serve, args=given)
        process.start()
        theirs.close()
        begun[target.name] = begun[target.name] or time.monotonic()
        return _Worker(target, process, ours, list(numbers), since=time.monotonic())

    def note(worker: _Worker, number: int, outcome: str, kind: str, why: str) -> None:
        count = counts[worker.target.name]
        count.tried += 1
        setattr(count, outcome, getattr(count, outcome) + 1)
        worker.left = [k for k in worker.left if k != number]
        if outcome == "broken":
            count.findings.append(_keep(worker.target, number, seed, kind, why, scratch, keep))

    waiting = [(target, list(wanted[target.name])) for target in targets]
    running: list[_Worker] = []
    try:
        while waiting or running:
            late = time.monotonic() > deadline
            if late:
                waiting = []
            while waiting and len(running) < jobs:
                running.append(start(*waiting.pop(0)))
            ready = wait([worker.pipe for worker in running], timeout=0.5)
            for worker in list(running):
                name, over = worker.target.name, False
                if worker.pipe in ready:
                    try:
                        message = worker.pipe.recv()
                    except (EOFError, OSError):
                        over = True
                        worker.process.join()
                        if worker.at is not None:
                            code = worker.process.exitcode
                            note(worker, worker.at, "broken", f"the process died (exit code {code})", "")
                    else:
                        if message[0] == "begin":
                            worker.at, worker.since = message[1], time.monotonic()
                        elif message[0] == "end":
                            worker.at = None
                            counts[name].peak = max(counts[name].peak, message[5])
                            note(worker, *message[1:5])
                            if message[2] == "broken":
                                worker.pipe.send("go on")
                        elif worker.at is None:
                            raise RuntimeError(f"the target {name} cannot be started:\n{message[1]}")
                        else:  # a fault of the campaign, which must not hide what the others find
                            over = True
                            worker.process.join()
                            note(worker, worker.at, "broken", "the campaign itself failed", message[1])
                elif worker.at is not None and time.monotonic() - worker.since > worker.target.seconds + GRACE:
                    over = True
                    _end(worker)
                    note(worker, worker.at, "broken", f"no answer within {worker.target.seconds:g} s, killed", "")
                if late and not over and worker.at is None:
                    over, worker.left = True, []
                    _end(worker)
                if over:
                    running.remove(worker)
                    worker.pipe.close()
                    if worker.left:
                        waiting.insert(0, (worker.target, worker.left))
                    else:
                        counts[name].seconds = time.monotonic() - begun[name]
                        done(counts[name])
    finally:
        for worker in running:  # where this process is interrupted
            _end(worker)
    return [counts[target.name] for target in targets]


def _end(worker: _Worker) -> None:
    """Kill a worker and what it started."""
    try:
        os.killpg(worker.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    worker.process.join()


def _keep(target: Target, number: int, seed: int, kind: str, why: str, scratch: Path, keep: Path) -> Finding:
    """Copy a broken input, with the line that makes it again."""
    line = f"python -m fuzz --target {target.name} --seed {seed} --only {number}"
    folder = keep / f"{target.name}-{seed}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    work = scratch / target.name / "work"
    try:
        shutil.copytree(work, folder / "input", symlinks=True, ignore=_odd)
    except (OSError, shutil.Error):  # links without an end and the like: the line makes them again
        pass
    about = {"target": target.name, "seed": seed, "number": number, "kind": kind, "again": line}
    (folder / "why.txt").write_text(f"{line}\n\n{kind}\n\n{why}\n", encoding="utf-8", errors="backslashreplace")
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return Finding(target.name, number, kind, why, line)


def _odd(folder: str, names: list[str]) -> list[str]:
    """Return what is no file, link or folder: reading a pipe would wait for ever."""
    modes = {name: (Path(folder) / name).lstat().st_mode for name in names}
    return [
        name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode))
    ]
