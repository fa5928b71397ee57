"""A model on disk: a folder that holds the state before a change or the one after it, whatever happens in between.

    model.json               format, side of the images, classes, states that can be gone back to, history
    base/                    written once: backbone, and the learner as the model was made with it; its thumbnails
    states/000007/           known.safetensors and fuser.safetensors: what the model knows as of change 7; rows of
                             arrays that are in base/ are named by their numbers
    pictures/                of kept examples, one small file each, to be shown (``faverage.app.pictures``)

A change writes a new state, makes sure that it is on the disk, then replaces model.json, whose last state counts. All
that the model works with is read from JSON and safetensors.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from faverage.app.names import BusyError, ModelError, check_stored, clean_name
from faverage.app.own import described, is_own, without_model
from faverage.app.photos import thumbnails
from faverage.fscil import FewShotLearner, Knowledge
from faverage.fscil.files import (
    Parts,
    add_sessions_of_old_version,
    as_arrays,
    as_tensors,
    pack,
    read_fuser,
    read_parts,
    unpack,
)
from faverage.fusion import Fuser
from faverage.storage import read_json, read_tensors, replacing, write_tensors

FORMAT = 2
KIND = "faverage model"
LARGEST_SIDE = 4096  # of the squares that pictures are brought to
LOCK_SECONDS = 30.0  # how long a change waits for the one before it
_STATE = re.compile("[0-9]{6,12}")
_LAST_VERSION = 10**12 - 2  # the state after it still has a name
Array = NDArray[Any]


@dataclass(frozen=True)
class State:
    """What a model knows."""

    known: Knowledge | None  # classes and examples; None where that is nothing
    counts: dict[str, int]  # number of pictures that each class was learned from
    thumbnails: dict[str, Array]  # of each class, uint8 ``(at most 5, 64, 64, 3)``
    fuser: Fuser | None  # fitted to these; None where there is nothing to fuse
    old: bool = False  # whether the version before wrote it, so that it has no fuser of this one


@dataclass(frozen=True)
class BaseFiles:
    """What a model was made with."""

    parts: Parts  # options and backbone, and what was known then
    arrays: dict[str, Array]  # the same and all thumbnails as arrays, whose rows states refer to
    thumbnails: dict[str, Array]  # of each class


class Folder:
    """Reads and writes the files of a model; knows nothing of what they mean."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.record = self.path / "model.json"
        self.base = self.path / "base"
        self._turn = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Return what model.json says; ModelError where it cannot be read, or a later version wrote it."""
        if not self.path.is_dir():
            if self.path.exists():
                raise ModelError(f"no model in {self.path}: it is a file; name the folder of a model")
            at = shlex.quote(str(self.path))
            raise ModelError(
                f"no model in {self.path}: the folder does not exist. Is the path misspelt? A new model is made by: "
                f"faverage serve {at}, faverage teach {at} CLASS PHOTO... or faverage train IMAGES --out {at}"
            )
        try:
            self._own(self.record, self.base, self.path / "states")
            self._own(*self.base.glob("*"))
            record = read_json(self.record)
        except FileNotFoundError:
            raise ModelError(f"{self.path} is no model: it has no file model.json; name another folder") from None
        except ModelError:
            raise
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.record} cannot be read ({error}): restore it from a copy of the folder") from None
        if not isinstance(record, dict) or record.get("kind") != KIND or not _whole(record.get("format"), 1, 10**6):
            raise ModelError(f"{self.record} does not describe a model of faverage: name another folder")
        if record["format"] > FORMAT:
            raise ModelError(
                f"{self.path} has format {record['format']}, written by faverage {record.get('faverage')}; this "
                f"version reads formats up to {FORMAT}: upgrade faverage"
            )
        wrong = [key for key, check in _PARTS.items() if not check(record.get(key))]
        if wrong:
            raise ModelError(
                f"{self.record} is incomplete, or was changed: '{wrong[0]}' is missing or is not what it must be; "
                "restore it from a copy of the folder"
            )
        return record

    def signature(self) -> tuple[int, int, int]:
        """Return what changes whenever model.json is replaced; zeros where there is none."""
        try:
            status = self.record.lstat()
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size

    def base_id(self) -> str:
        """Return a hash of the files of the base classes."""
        digest = hashlib.sha256()
        for file in sorted(self.base.glob("*.safetensors")):
            with file.open("rb") as opened:
                digest.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()

    def write(self, record: dict[str, Any]) -> None:
        """Replace model.json, then remove states that it does not name."""
        from faverage import __version__

        whole = {"kind": KIND, **record, "format": FORMAT, "faverage": __version__}
        with self._writing(), replacing(self.record) as partial:
            partial.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            _sync(partial)
        _sync(self.path)
        self._tidy(set(record["states"]))

    def write_base(self, learner: FewShotLearner, pictures: Mapping[str, Array]) -> BaseFiles:
        """Write what a model is made with; ``pictures`` are its thumbnails, uint8 ``(at most 5, 64, 64, 3)``."""
        (without_model(learner) if is_own(learner.backbone) else learner).save(self.base)
        shown = {label: pictures.get(label, _NONE) for label in learner.classes}
        tensors = {str(i): torch.from_numpy(small) for i, small in enumerate(shown.values())}
        write_tensors(self.base / "thumbnails.safetensors", "thumbnails", {}, tensors)
        known = learner.known if learner.classes else None
        return _base_files(Parts(learner, known, False, None), shown)

    def read_base(self, device: str, backbone: nn.Module | None = None) -> BaseFiles:
        """Read what a model was made with; ValueError, OSError or LookupError where it is broken.

        A ``backbone`` is given where it is a module of one's own, which is not in the folder.
        """
        parts = read_parts(self.base, backbone, device)
        labels = [] if parts.known is None else [check_stored(label) for label in parts.known.classes]
        _, tensors = read_tensors(self.base / "thumbnails.safetensors", "thumbnails")
        shown = {
            c: _small(tensors[str(i)].numpy().copy()) if str(i) in tensors else _NONE for i, c in enumerate(labels)
        }
        return _base_files(parts, shown)

    def write_state(self, name: str, state: State, base: BaseFiles) -> None:
        """Write a state of a model with this base; it counts only once model.json names it."""
        folder = self._state(name)
        config, arrays = pack(state.known)
        shown = [state.thumbnails.get(label, _NONE) for label in config["classes"]]
        config |= {
            "fused": state.fuser is not None,
            "counts": [int(state.counts.get(label, 0)) for label in config["classes"]],
            "shown": [len(pictures) for pictures in shown],
        }
        arrays["thumbnails"] = np.concatenate([_NONE, *shown])
        tensors = as_tensors(_by_reference(arrays, base.arrays))
        shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
        try:
            with self._writing():
                folder.mkdir(parents=True)
                _sync(write_tensors(folder / "known.safetensors", "known", config, tensors))
                if state.fuser is not None:
                    _sync(state.fuser.save(folder / "fuser.safetensors"))
                for path in (folder, folder.parent, self.path):
                    _sync(path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # a full disk needs the room
            raise

    def read_state(self, name: str, base: BaseFiles, record: Mapping[str, Any]) -> State:
        """Read a state of a model with this base and this model.json; ModelError where files are missing or broken."""
        folder = self._state(name)
        if not folder.is_dir():
            raise ModelError(
                f"{self.record} names the state {name}, but the folder {folder} is missing: restore it from a copy"
            )
        self._own(*(folder / f"{part}.safetensors" for part in ("known", "shots", "fuser")))
        try:
            if (folder / "shots.safetensors").exists():
                return _state_of_old_version(folder / "shots.safetensors", base, record)
            config, tensors = read_tensors(folder / "known.safetensors", "known")
            arrays = _resolved(as_arrays(tensors), base.arrays)
            known = unpack(config, arrays)
            labels = [check_stored(label) for label in config["classes"]]
            counts, shown = config["counts"], config["shown"]
            if len(counts) != len(labels) or not all(_whole(n, 0, 10**12) for n in counts):
                raise ValueError("the numbers of pictures must be one whole number a class")
            if len(shown) != len(labels) or not all(_whole(n, 0, 5) for n in shown):
                raise ValueError("each class must have up to five thumbnails")
            ends = np.cumsum([0, *shown]).tolist()
            if len(arrays["thumbnails"]) != ends[-1]:
                raise ValueError(f"there must be {ends[-1]} thumbnails, got {len(arrays['thumbnails'])}")
            small = [_small(arrays["thumbnails"][a:b]) for a, b in pairwise(ends)]
            fuser = read_fuser(folder / "fuser.safetensors", len(labels)) if config["fused"] and labels else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
            raise ModelError(f"the state {folder} is broken ({error}): restore it from a copy of the folder") from None
        return State(known, dict(zip(labels, counts, strict=True)), dict(zip(labels, small, strict=True)), fuser)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing the model; they wait, and are told when it takes too long.

        Where the system has no flock, processes do not wait for each other.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        if not self._turn.acquire(timeout=LOCK_SECONDS):
            raise self._busy()
        handle = None
        try:
            handle = self._open_lock()
            while handle is not None and not self._flock(handle):
                if time.monotonic() >= deadline:
                    raise self._busy()
                time.sleep(0.02)
            yield
        finally:
            if handle is not None:
                os.close(handle)
            self._turn.release()

    def _open_lock(self) -> int | None:
        try:
            import fcntl  # noqa: F401
        except ImportError:
            return None
        lock = self.path / ".lock"
        self._own(lock)
        try:
            return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise ModelError(
                f"{self.path} cannot be changed ({error.strerror}): make the folder writable, or copy it elsewhere"
            ) from None

    def _flock(self, handle: int) -> bool:
        """Take the lock; return whether nobody else has it."""
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ModelError(f"{self.path} cannot be locked ({error.strerror}): copy it to another disk") from None
        return True

    def _busy(self) -> BusyError:
        return BusyError(
            f"{self.path} has been held by another change for {LOCK_SECONDS:g} s: try again in a moment; where that "
            f"does not help, end the process that holds {self.path / '.lock'}"
        )

    def _own(self, *paths: Path) -> None:
        """Raise ModelError where a part of the model is a link: whoever made the folder could lead us anywhere."""
        for path in paths:
            for part in (*reversed(path.parents), path):
                if self.path in part.parents and part.is_symlink():
                    raise ModelError(f"{part} is a link, but a model holds all of its files itself: put a copy there")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in words that something cannot be written; what was there before still counts."""
        try:
            yield
        except OSError as error:
            reason = " ".join(str(error.strerror or error).split())
            raise ModelError(
                f"{self.path} cannot be written ({reason}): the model is as it was; make room, or make it writable"
            ) from None

    def _state(self, name: str) -> Path:
        folder = self.path / "states" / name
        self._own(folder)
        return folder

    def _tidy(self, named: set[str]) -> None:
        """Remove states that nothing refers to, and what killed processes left; nothing that is not ours."""
        states = self.path / "states"
        self._own(states)
        with suppress(OSError):  # the change is made
            for folder in states.iterdir():
                if _STATE.fullmatch(folder.name) and folder.name not in named:
                    shutil.rmtree(folder, ignore_errors=True)  # never follows a link
            for partial in self.path.glob(".model.json.*.partial"):
                partial.unlink(missing_ok=True)


_NONE: Array = np.zeros((0, 64, 64, 3), dtype=np.uint8)


def _small(pixels: Array) -> Array:
    """Return the thumbnails of a class, uint8 ``(at most 5, 64, 64, 3)``; ValueError where a file holds others."""
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (64, 64, 3) or len(pixels) > 5:
        raise ValueError(f"thumbnails must be uint8 of shape (up to 5, 64, 64, 3), got {pixels.dtype} {pixels.shape}")
    return pixels


def _base_files(parts: Parts, shown: dict[str, Array]) -> BaseFiles:
    arrays = pack(parts.known)[1]
    return BaseFiles(parts, {**arrays, "thumbnails": np.concatenate([_NONE, *shown.values()])}, shown)


def _by_reference(arrays: Mapping[str, Array], base: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays of which rows that the base has are left out.

    Such an array has a second one beside it, ``(n,)``: the numbers of its rows, among those of the base and then its
    own. So a state is as small as what was taught, whatever the model was made with.
    """
    found = {}
    for name, array in arrays.items():
        there = base.get(name)
        if there is None or array.ndim < 2 or there.shape[1:] != array.shape[1:] or there.dtype != array.dtype:
            found[name] = array
            continue
        place = {row.tobytes(): i for i, row in reversed(list(enumerate(there)))}
        rows = np.array([place.get(row.tobytes(), -1) for row in array], dtype=np.int64)
        own = rows < 0
        rows[own] = len(there) + np.arange(own.sum())
        found |= {name: array[own], f"{name}.rows": rows}
    return found


def _resolved(arrays: dict[str, Array], base: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays that ``_by_reference`` was given; ValueError where a file names rows that are not there."""
    found = {name: array for name, array in arrays.items() if not name.endswith(".rows")}
    for name in found:
        rows = arrays.get(f"{name}.rows")
        if rows is None:
            continue
        both = np.concatenate([base[name], found[name]])
        if rows.dtype != np.int64 or rows.ndim != 1 or (len(rows) and not 0 <= rows.min() <= rows.max() < len(both)):
            raise ValueError(f"the rows of '{name}' are not those of its base")
        found[name] = both[rows]
    return found


def _state_of_old_version(file: Path, base: BaseFiles, record: Mapping[str, Any]) -> State:
    """Return a state of version 0.1, which wrote the shots of taught classes alone; delete this with version 0.4."""
    config, tensors = read_tensors(file, "taught")
    arrays, known, numbers = as_arrays(tensors), base.parts.known, itertools.count()
    if known is None:
        raise ValueError("it has no base classes")
    places = [{check_stored(label): next(numbers) for label in session} for session in config["sessions"]]
    places = [place for place in places if place]
    sessions = [{label: arrays[f"shots.{i}"] for label, i in place.items()} for place in places]
    shown = {label: _small(arrays[f"thumbnails.{i}"]) for place in places for label, i in place.items()}
    if len(shown) < sum(map(len, places)):
        raise ValueError("a class was taught twice")
    counts = {one["name"]: one["count"] for one in record.get("base") or []}
    counts |= {label: len(x) for session in sessions for label, x in session.items()}
    both = add_sessions_of_old_version(known, sessions)
    return State(both, counts, {**base.thumbnails, **shown}, None, old=True)


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _counted(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and _whole(value.get("count"), 0, 10**12)


def _line(value: Any) -> bool:
    texts = isinstance(value, dict) and all(
        _text(value.get(key)) for key in ("when", "what", "class", "words", "state")
    )
    return texts and _whole(value.get("pictures") or 0, 0, 10**12)


def _described(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and isinstance(value.get("transform"), dict))


def _named(value: Any) -> bool:
    return isinstance(value, str) and _STATE.fullmatch(value) is not None


_PARTS = {  # what model.json must say; what it may say beside that is kept
    "side": lambda value: _whole(value, 1, LARGEST_SIDE),
    "version": lambda value: _whole(value, 1, _LAST_VERSION),
    "states": lambda value: isinstance(value, list) and bool(value) and all(map(_named, value)),
    "base": lambda value: value is None or (isinstance(value, list) and all(map(_counted, value))),
    "history": lambda value: value is None or (isinstance(value, list) and all(map(_line, value))),
    "base_id": _text,
    "given": _described,
}


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_model(
    target: Path,
    learner: FewShotLearner,
    side: int,
    counts: Mapping[str, int],
    pictures: Mapping[str, Sequence[Image.Image | NDArray[np.uint8]]],
) -> None:
    """Write a learner to a folder that appears whole or not at all; the arguments are those of ``Model.create``."""
    _check_learner(learner)
    if not 1 <= side <= LARGEST_SIDE:
        raise ModelError(f"the side of the images must be a number from 1 to {LARGEST_SIDE}, got {side}")
    check_absent(target)
    small = {str(name): thumbnails(images) for name, images in pictures.items()}
    known = learner.known if learner.classes else None
    shots = [] if known is None else known.shots.tolist()
    counted = {name: int(counts.get(name, 0)) or n for name, n in zip(learner.classes, shots, strict=True)}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as fresh:
        files = Folder(Path(fresh) / "model")
        files.path.mkdir()
        base = files.write_base(learner, small)
        files.write_state("000001", State(known, counted, base.thumbnails, learner.fitted), base)
        made = entry("create", None, 0, f"made with {len(learner.classes)} classes")
        record = {"side": side, "version": 1, "classes": learner.classes, "states": ["000001"]}
        own = {"given": described(learner.backbone, side)} if is_own(learner.backbone) else {}
        files.write({**record, **own, "base_id": files.base_id(), "history": [made]})
        for path in (*files.path.rglob("*"), files.path):
            _sync(path)
        try:
            files.path.rename(target)
        except OSError:  # another process was quicker
            check_absent(target)
            raise


def check_absent(target: Path) -> None:
    """Raise ModelError where something is in the place of a new model."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists already: name another folder, or remove this one")


def _check_learner(learner: FewShotLearner) -> None:
    if getattr(learner.backbone, "model", None) is None and not is_own(learner.backbone):
        raise ModelError(
            "a model needs a learner of images with a trained backbone: give FewShotLearner a BaseModel, a module, or "
            "a backbone by name, and call fit_base(images, labels)"
        )
    for label in learner.classes:
        if not isinstance(label, str) or clean_name(label) != label:
            raise ModelError(f"the class {label!r} of the learner needs a plain name: label it with clean_name(...)")


def entry(what: str, name: str | None, count: int, words: str) -> dict[str, Any]:
    """Return a line of the history."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {"when": when, "what": what, "class": name, "pictures": count, "words": words}
