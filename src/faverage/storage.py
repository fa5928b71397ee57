"""Files: JSON from anywhere, safetensors whose header holds a configuration, written whole or not at all; and locks.

Never pickle.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

__all__ = [
    "alone",
    "cache_folder",
    "parse_json",
    "read_checked",
    "read_json",
    "read_regular",
    "read_tensors",
    "replacing",
    "rounded",
    "write_checked",
    "write_tensors",
]

FORMAT = 1
_MOST_JSON = 1 << 28  # bytes of a JSON file


def write_tensors(path: str | Path, kind: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write named tensors, of any shapes, and a configuration as one safetensors file, atomically."""
    from faverage import __version__

    header = {"kind": kind, "format": FORMAT, "version": __version__, "config": config}
    target = Path(path)
    with replacing(target) as partial:
        flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(flat, partial, metadata={"faverage": json.dumps(header)})
        except SafetensorError as error:  # it wraps the error of the system, of which only the words are left
            full = "No space left" in str(error) or "os error 28" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, " ".join(str(error).split()), str(target)) from None
    return target


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the configuration and the tensors, of any shapes, that ``write_tensors`` wrote.

    Raises:
        ValueError: it is another file; the message says which.
    """
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder, expected a file saved by faverage")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("faverage", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, ValueError, OSError, MemoryError, OverflowError, RuntimeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file saved by faverage: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("config"), dict):
        raise ValueError(f"{path} is a safetensors file, but was not saved by faverage")
    if header.get("kind") != kind:
        raise ValueError(f"{path} holds '{header.get('kind')}', expected '{kind}'")
    if not isinstance(header.get("format"), int) or header["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {header.get('format')}, written by faverage {header.get('version')}; "
            f"this version reads formats up to {FORMAT}: upgrade faverage"
        )
    return header["config"], tensors


def read_json(path: str | Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is no file of JSON; the message does not name the path.
    """
    data = read_regular(path, _MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise ValueError(f"it has more than {_MOST_JSON / 1e6:.0f} MB, more than any such file needs")
    return parse_json(data)


def read_regular(path: str | Path, most: int) -> bytes:
    """Return the first ``most`` bytes of a file; ValueError where it is a pipe or a device."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe must not make us wait
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(most)


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says; ValueError where it is none, too deep, or has numbers or text that cannot be written.

    >>> parse_json(b'{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: not JSON that can be used: too deeply nested
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be printed or written
    except RecursionError:
        raise ValueError("not JSON that can be used: too deeply nested") from None
    except ValueError as error:
        raise ValueError(f"not JSON that can be used: {' '.join(str(error).split())[:200]}") from None
    return value


def rounded(data: Any) -> Any:
    """Return JSON data with six digits a number: enough for any table, and half as long."""
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    return float(f"{data:.6g}") if isinstance(data, float) else data


def write_checked(path: Path, data: dict[str, Any], key: str) -> None:
    """Write JSON with a checksum over it and ``key``, what it is a result of; the file appears whole or not at all."""
    plain = json.loads(json.dumps(data))  # names of keys are text from here on, and tuples lists
    with replacing(path) as partial:
        partial.write_text(json.dumps({**plain, "checksum": _checksum(plain, key)}, indent=1) + "\n", encoding="utf-8")


def read_checked(path: Path, key: str) -> dict[str, Any]:
    """Return what ``write_checked`` wrote.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ValueError: it is cut off, was edited, or is a result of something else; the message does not name the path.
    """
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("checksum", None) != _checksum(data, key):
        raise ValueError("its checksum does not fit: it was edited, or copied from elsewhere")
    return data


def _checksum(data: dict[str, Any], key: str) -> str:
    return hashlib.sha256(f"{key}\0{json.dumps(data, sort_keys=True)}".encode()).hexdigest()


def cache_folder() -> Path:
    """Return where decoded images and the digits model are kept: ``$FAVERAGE_CACHE``, or a folder of the user's cache.

    That is ``$XDG_CACHE_HOME/faverage`` where it is set to a full path, ``~/.cache/faverage`` otherwise.
    """
    own, shared = os.environ.get("FAVERAGE_CACHE"), Path(os.environ.get("XDG_CACHE_HOME", ""))
    if own:
        return Path(own).expanduser()
    return (shared if shared.is_absolute() else Path("~/.cache").expanduser()) / "faverage"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; move it there when the block ends well, remove it otherwise."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes from the same work; they wait. Where the system has no locks on files, nobody waits.

    A process that is killed gives its lock back, and one that outlives its sweep keeps it until it is done.

    Args:
        folder: for the lock.
        name: of the work.
        waiting: is called where there is another process to wait for.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # some network file systems have none
            pass
        yield
    finally:
        os.close(handle)
