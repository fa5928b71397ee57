"""What a target is, and what came of one of its inputs.

An input is *refused* where the reader raises an error that it documents and changes nothing, *accepted* where it gives
sound answers, and *broken* otherwise: another error, a traceback on stderr, a process that dies, no answer in time, too
much memory, a changed file, answers that are not finite.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

__all__ = ["Broken", "Counts", "Finding", "Target", "attempt", "memory_of", "snapshot"]


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
    had = memory_of("self", "VmRSS")
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
        used = memory_of("self", "VmHWM") - had
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
        others = [frame for frame in frames if frame.filename != __file__]
        return f" at {Path(others[-1].filename).name}:{others[-1].lineno}" if others else ""
    return f" at src/faverage/{own[-1].filename.rpartition('/faverage/')[2]}:{own[-1].lineno}"


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-4000:]


def _short(text: str) -> str:
    return " ".join(text.split())[:160]


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
