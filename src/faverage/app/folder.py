"""A model on disk: a folder that holds the state before a change or the one after it, whatever happens in between.

    model.json               format, side of the images, classes, states that can be gone back to, history
    base/                    written once: learner and backbone of the base classes, their thumbnails
    states/000007/           shots.safetensors and fuser.safetensors: what was taught, as of change 7

A change writes a new state, makes sure that it is on the disk, then replaces model.json, whose last state counts. Only
JSON and safetensors are ever read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from faverage.app.names import ModelError
from faverage.fusion import Fuser, load_fuser
from faverage.storage import read_tensors, replacing, write_tensors

__all__ = ["FORMAT", "Folder", "State"]

FORMAT = 1
KIND = "faverage model"
Array = NDArray[Any]


@dataclass(frozen=True)
class State:
    """What was taught.

    Attributes:
        sessions: for each session its classes with the features of their pictures ``(n, d)``.
        thumbnails: of each taught class, uint8 ``(at most 5, 64, 64, 3)``.
        fuser: fitted to these sessions; None where there is nothing to fuse.
    """

    sessions: list[dict[str, Array]]
    thumbnails: dict[str, Array]
    fuser: Fuser | None


class Folder:
    """Reads and writes the files of a model; knows nothing of what they mean."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.record = self.path / "model.json"
        self.base = self.path / "base"

    def read(self) -> dict[str, Any]:
        """Return what model.json says; ModelError where it cannot be read, or a later version wrote it."""
        if not self.path.is_dir():
            found = "is a file" if self.path.exists() else "does not exist"
            raise ModelError(
                f"no model in {self.path}: the folder {found}; make one with: faverage train IMAGES --out {self.path}"
            )
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(f"{self.path} is no model: it has no file model.json; name another folder") from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.record} cannot be read ({error}): restore it from a copy of the folder") from None
        if not isinstance(record, dict) or record.get("kind") != KIND or not isinstance(record.get("format"), int):
            raise ModelError(f"{self.record} does not describe a model of faverage: name another folder")
        if record["format"] > FORMAT:
            raise ModelError(
                f"{self.path} has format {record['format']}, written by faverage {record.get('faverage')}; this "
                f"version reads formats up to {FORMAT}: upgrade faverage"
            )
        states = record.get("states")
        sound = isinstance(states, list) and states and all(re.fullmatch(r"\d{6,12}", str(name)) for name in states)
        if not sound or not all(isinstance(record.get(key), int) for key in ("side", "version")):
            raise ModelError(f"{self.record} is incomplete: restore it from a copy of the folder")
        return record

    def signature(self) -> tuple[int, int, int]:
        """Return what changes whenever model.json is replaced."""
        status = self.record.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def write(self, record: dict[str, Any]) -> None:
        """Replace model.json, then remove states that it does not name."""
        from faverage import __version__

        whole = {"kind": KIND, "format": FORMAT, **record, "faverage": __version__}
        with self._writing(), replacing(self.record) as partial:
            partial.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            _sync(partial)
        _sync(self.path)
        self._tidy(set(record["states"]))

    def write_state(self, name: str, state: State) -> None:
        """Write a state; it counts only once model.json names it."""
        folder = self._state(name)
        tensors: dict[str, Array] = {}
        for i, (label, shots) in enumerate((label, x) for session in state.sessions for label, x in session.items()):
            tensors |= {f"shots.{i}": shots, f"thumbnails.{i}": state.thumbnails[label]}
        config = {"sessions": [list(session) for session in state.sessions], "fused": state.fuser is not None}
        arrays = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in tensors.items()}
        shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
        with self._writing():
            folder.mkdir(parents=True)
            _sync(write_tensors(folder / "shots.safetensors", "taught", config, arrays))
            if state.fuser is not None:
                _sync(state.fuser.save(folder / "fuser.safetensors"))
            for path in (folder, folder.parent, self.path):
                _sync(path)

    def read_state(self, name: str) -> State:
        """Read a state; ModelError where its files are missing or broken."""
        folder = self._state(name)
        if not folder.is_dir():
            raise ModelError(
                f"{self.record} names the state {name}, but the folder {folder} is missing: restore it from a copy"
            )
        try:
            config, tensors = read_tensors(folder / "shots.safetensors", "taught")
            numbers = iter(range(len(tensors)))
            places = [{str(label): next(numbers) for label in session} for session in config["sessions"]]
            sessions = [{label: tensors[f"shots.{i}"].numpy() for label, i in place.items()} for place in places]
            pictures = {label: tensors[f"thumbnails.{i}"].numpy() for p in places for label, i in p.items()}
            fuser = load_fuser(folder / "fuser.safetensors") if config["fused"] else None
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            raise ModelError(f"the state {folder} is broken ({error}): restore it from a copy of the folder") from None
        return State(sessions, pictures, fuser)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing the model; they wait. Where the system has no flock, nobody waits."""
        try:
            import fcntl
        except ImportError:
            yield
            return
        try:
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ModelError(
                f"{self.path} cannot be changed ({error.strerror}): make the folder writable, or copy it elsewhere"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def sync_all(self) -> None:
        """Make sure that everything in the folder is on the disk."""
        for path in sorted(self.path.rglob("*"), reverse=True):
            _sync(path)
        _sync(self.path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in words that something cannot be written; what was there before still counts."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise ModelError(
                f"{self.path} cannot be written ({reason}): the model is as it was; make room, or make it writable"
            ) from None

    def _state(self, name: str) -> Path:
        return self.path / "states" / name

    def _tidy(self, named: set[str]) -> None:
        """Remove states that nothing refers to, and what killed processes left."""
        for folder in (self.path / "states").iterdir():
            if folder.name not in named:
                shutil.rmtree(folder, ignore_errors=True)
        for partial in self.path.glob(".model.json.*.partial"):
            partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
