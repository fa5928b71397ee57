"""What went wrong with a run, in words for the person who started it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faverage.errors import ConfigError, UserError
from faverage.storage import read_json

__all__ = ["explain", "make_folder", "results_folder"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "socket closed")
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def make_folder(out: Path) -> None:
    """Make the folder of the results; ConfigError where there is a file in its place, or it must not be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(path for path in (out, *out.parents) if path.exists() or path.is_symlink())
        raise ConfigError(f"--out {out} must be a folder, but {file} is a file: name another folder") from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--out {out}: the folder cannot be made ({reason}): name one that you may write") from None


@contextmanager
def results_folder(out: Path, inner: str) -> Iterator[None]:
    """Make the folder of the results and one inside; where the work is refused and left nothing, take them away again.

    Args:
        out: folder of the results.
        inner: name of the folder in it.
    """
    fresh = [path for path in (out / inner, out, *out.parents) if not path.exists()]
    make_folder(out)
    (out / inner).mkdir(exist_ok=True)
    try:
        yield
    except UserError:
        if fresh and all(path.is_dir() or path.suffix == ".lock" for path in fresh[-1].rglob("*")):
            shutil.rmtree(fresh[-1], ignore_errors=True)
        raise


def explain(error: BaseException, out: Path, stage: str) -> str | None:
    """Return what to tell about an error that a person can put right; None for one that is a fault of the program.

    Nothing is told where another process of the run tells it.

    Args:
        error: that ended the run.
        out: the folder of the results.
        stage: what was being done, such as ``extracting features``.
    """
    from faverage.vision import OtherFailed

    if isinstance(error, OtherFailed):
        return ""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, FloatingPointError):
        return f"{stage}: {error}"
    said = _said(error, out)
    if said is None:
        return None
    doing = f" while {stage}" if stage else ""
    again = f"What was finished is kept in {out / 'work'}: the same command goes on from there."
    return "\n".join(line for line in (f"{said[0]}{doing}{said[1]}", again, _earlier(out)) if line)


def _said(error: BaseException, out: Path) -> tuple[str, str] | None:
    """Return what happened and what to do about it."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", ""
    words = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(part in words.lower() for part in _NO_MEMORY):
        return "the memory ran out", ": try a smaller batch_size or crop, or --jobs 1"
    lost = isinstance(error, RuntimeError) and any(part in words.lower() for part in _LOST)
    if lost or type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return "another process of this run was lost", ": it was killed, it failed, or its machine went away"
    if type(error).__name__ in ("TerminatedWorkerError", "BrokenProcessPool"):
        return "a process was killed", ", probably for lack of memory: try --jobs 1"
    if "No space left on device" in words or (isinstance(error, OSError) and error.errno in _FULL):
        file = getattr(error, "filename", None) or out
        return "the disk is full", f": nothing more can be written to {file}; make room, or name another --out"
    if not isinstance(error, OSError):
        return None
    if error.filename is None:
        return words, ""
    file = Path(str(error.filename))
    reason = (error.strerror or type(error).__name__).lower()
    if error.errno in _FORBIDDEN:
        own = out.resolve() in (file.resolve(), *file.resolve().parents)
        return f"{reason}: {file}", ": name a folder that you may write with --out" if own else ": make it readable"
    return f"{reason}: {file}", ""


def _earlier(out: Path) -> str:
    """Say so where the folder holds the results of a run before this one."""
    try:
        date = read_json(out / "results.json")["date"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"The results in {out} are still those of an earlier run ({date})."
