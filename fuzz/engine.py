"""The campaign: each target in a process of its own, one input after the other, and what came of each.

An input is *refused* where the reader raises an error that it documents and changes nothing, *accepted* where it gives
sound answers, and *broken* otherwise: another error, a traceback on stderr, a process that dies, no answer in time, too
much memory, a changed file, answers that are not finite.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import stat
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["Broken", "Campaign", "Counts", "Finding", "Target", "run_campaign", "shares", "snapshot"]

MEGABYTE = 2**20
GRACE = 15.0  # seconds beyond a target's limit after which a process that does not even hear signals is killed
Campaign = Callable[[int, int], dict[str, Any]]  # (count, seed) -> tried, refused, accepted, broken


class Broken(Exception):
    """A reader did what it must not do; the text says what."""


class _TooLong(BaseException):
    """The time for one input is over; no reader may catch it."""


class Target:
    """Something that reads what others wrote.

    Attributes:
        name: on the command line.
        share: of ten thousand inputs.
        refusals: the errors that it documents; of these exact types, except that any OSError is one.
        seconds: for one input.
        megabytes: that one input may need beyond what the process had; also the room of its address space.
        writes: whether an accepted input may change files.
    """

    name = ""
    share = 100
    refusals: tuple[type[Exception], ...] = (ValueError,)
    seconds = 20.0
    megabytes: int | None = 1024
    writes = False

    def prepare(self, examples: Path) -> None:
        """Write sound inputs, once, before the process is started."""

    def start(self, examples: Path) -> None:
        """Get ready, in the process."""

    def stop(self) -> None:
        """End what ``start`` began."""

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Write a changed input to ``work``, an empty folder."""
        raise NotImplementedError

    def read(self, rng: Random, work: Path) -> None:
        """Read it: return where it was accepted and the answers are sound, raise a refusal or Broken otherwise."""
        raise NotImplementedError


@dataclass
class Finding:
    """One broken input."""

    target: str
    number: int
    kind: str
    why: str
    line: str


@dataclass
class Counts:
    """What came of the inputs of one target."""

    target: str
    wanted: int = 0
    tried: int = 0
    refused: int = 0
    accepted: int = 0
    broken: int = 0
    peak: float = 0.0  # megabytes
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def shares(targets: Sequence[tuple[str, int]], count: int) -> dict[str, int]:
    """Share ``count`` inputs among targets by their weights; each gets at least one.

    >>> shares([("csv", 300), ("npz", 100), ("kill", 1)], 100)
    {'csv': 75, 'npz': 25, 'kill': 1}
    """
    total = sum(weight for _, weight in targets)
    return {name: max(1, round(count * weight / total)) for name, weight in targets}


def snapshot(folder: Path) -> dict[str, str]:
    """Return what is in a folder: kinds, sizes and hashes by name. Locks are not counted, nor is a link followed."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where) / name
            mode = path.lstat().st_mode
            if name == ".lock" and stat.S_ISREG(mode):
                continue
            if stat.S_ISLNK(mode):
                what = f"link to {os.readlink(path)}"  # noqa: PTH115 - it may not be a path at all
            elif stat.S_ISREG(mode):
                what = f"{path.stat().st_size} {hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()}"
            else:
                what = str(stat.S_IFMT(mode))
            found[str(path.relative_to(folder))] = what
    return found


def attempt(target: Target, number: int, seed: int, examples: Path, work: Path, said: Path) -> tuple[str, str, str]:
    """Try one input; return ``refused``, ``accepted`` or ``broken``, its kind, and why."""
    rng = Random(f"{seed} {target.name} {number}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    target.make(rng, examples, work)
    before, start = snapshot(work), said.stat().st_size
    _reset_peak()
    had = _memory("VmRSS")
    outcome, kind, why = "accepted", "", ""
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, target.seconds, 1.0)
    try:
        try:
            target.read(rng, work)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TooLong as error:
        outcome, kind, why = "broken", f"no answer within {target.seconds:g} s{_place(error)}", _told(error)
    except Broken as error:
        outcome, kind, why = "broken", _short(str(error).partition("\n")[0]), _told(error)
    except BaseException as error:
        outcome = "refused"
        known = type(error) in target.refusals or (OSError in target.refusals and isinstance(error, OSError))
        if not known:
            outcome, kind, why = "broken", f"{type(error).__name__}{_place(error)}", _told(error)
        else:
            try:
                str(error).encode()
            except UnicodeEncodeError:
                outcome, kind, why = "broken", f"a message that cannot be printed{_place(error)}", _told(error)
    if outcome != "broken":
        with said.open("rb") as file:
            file.seek(start)
            words = file.read().decode("utf-8", "replace")
        used = _memory("VmHWM") - had
        after = snapshot(work)
        if "Traceback (most recent call last)" in words:
            last = [line for line in words.splitlines() if line.strip()][-1]
            outcome, kind, why = "broken", _short(f"a traceback on stderr: {last.split(':')[0]}"), words
        elif target.megabytes is not None and used > target.megabytes:
            outcome, kind = "broken", f"more than {target.megabytes} MB for one input"
            why = f"{used:.0f} MB"
        elif after != before and (outcome == "refused" or not target.writes):
            changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
            where = "/".join("*" if part.isdigit() else part for part in changed[0].split("/"))
            kind, why = _short(f"a file changed although the input was {outcome}: {where}"), ", ".join(changed[:10])
            outcome = "broken"
    return outcome, kind, why


def _ring(*_: object) -> None:
    raise _TooLong


def _place(error: BaseException) -> str:
    """Return the last line of the package that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/faverage/" in frame.filename and "/fuzz/" not in frame.filename]
    if not own:
        frames = [frame for frame in frames if frame.filename != __file__]
        return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f" at src/faverage/{own[-1].filename.rpartition('/faverage/')[2]}:{own[-1].lineno}"


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-4000:]


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


def _memory(name: str) -> float:
    """Return a number of /proc/self/status in megabytes; 0 where there is none."""
    return memory_of("self", name)


def memory_of(process: int | str, name: str = "VmHWM") -> float:
    """Return a number of the status of a process in megabytes; 0 where the system does not say."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # then the peak is that of all inputs so far
        pass


# -------------------------------------------------------------------------------------------------------------- workers


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
            room = int((_memory("VmSize") + target.megabytes + 1024) * MEGABYTE)
            resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for number in numbers:
            pipe.send(("begin", number))
            found = attempt(target, number, seed, examples, home / "work", said)
            pipe.send(("end", number, *found, max(_memory("VmHWM"), getattr(target, "peak", 0.0))))
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
