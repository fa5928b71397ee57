"""What a worker does: one task, as a pure function of its settings; what is done already is not done again.

Workers share a folder: the features of each base session, a record of each finished run, and a mark by which they know
that they see the same folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from faverage.experiment.base import features_of_benchmark
from faverage.experiment.code import features_code
from faverage.experiment.config import RIVAL_METHODS, ConfigError, RunConfig
from faverage.experiment.methods import on_gpu, run_methods
from faverage.experiment.pictures import Pictures, load_pictures
from faverage.experiment.resume import read_left, write_left
from faverage.experiment.rivals import rival_base, rival_folder
from faverage.experiment.sweep.held_out import held_out_loss
from faverage.experiment.sweep.plan import Task
from faverage.experiment.trouble import explain
from faverage.features import FeatureSet
from faverage.fscil import CosineHead, LinearHead, Whitening
from faverage.storage import alone, parse_json, replacing

__all__ = ["Outcome", "carry_out", "mark", "marked", "read_record", "read_shared", "write_shared"]

_WORDS = ("sessions", "class_names", "source", "skipped", "base", "networks")
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
        write_shared(features_of_benchmark(task.config, folders, progress)[0], folder, spare)


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
    features, pictures = _features(task, out, progress)
    result = run_methods(config, features, task.draw, folder, progress, pictures=pictures)[0][task.method]
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


def _features(task: Task, out: Path, progress: Any) -> tuple[FeatureSet, Pictures | None]:
    if task.config.features is not None:
        return FeatureSet.load(task.config.features, task.config.views), None
    if task.method in RIVAL_METHODS:
        return features_of_benchmark(task.config, [], progress)
    features = read_shared(out / "work" / str(task.shared), task.config.draws > 1)
    if features is None:
        raise OSError(f"the features of the base session in {out / 'work' / str(task.shared)} are gone: start again")
    return features, None


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


def write_shared(features: FeatureSet, folder: Path, spare: bool) -> None:
    """Write what methods see of a base session, spare examples too, for workers that map the features into memory."""
    file, vectors = _files(folder, spare)
    parts = [*features.shots, features.test, features.spare, features.memory]
    used = np.unique(np.concatenate(parts))
    words = {name: getattr(features, name) for name in _WORDS} | {"views": list(features.views)}
    arrays: dict[str, Any] = {"labels": features.labels[used], "words": np.array(json.dumps(words))}
    arrays |= {f"rows_{i}": np.searchsorted(used, part) for i, part in enumerate(parts)}
    for v, (view, head) in enumerate(features.heads.items()):
        arrays |= {f"{name}_{v}": np.asarray(value) for name, value in vars(head).items()}
        arrays[f"prototypes_{v}"] = features.prototypes[view]
        if view in features.whitening:
            arrays |= {f"{name}_{v}": value for name, value in vars(features.whitening[view]).items()}
    lessons = features.lesson(used)[0] if features.learned_from else {}
    seen = np.concatenate([*features.of(used).values(), *lessons.values()], 1)
    arrays["checksum"] = np.array(_checksum(arrays, seen))
    file.unlink(missing_ok=True)
    with replacing(vectors) as partial, partial.open("wb") as handle:
        np.save(handle, seen)
    with replacing(file) as partial, partial.open("wb") as handle:
        np.savez(handle, **arrays)


def read_shared(folder: Path, spare: bool) -> FeatureSet | None:
    """Return what ``write_shared`` wrote; None where it is not there, or not as it was written."""
    file, vectors = _files(folder, spare)
    try:
        with np.load(file, allow_pickle=False) as stored:
            data = {name: np.asarray(stored[name]) for name in stored.files}
        mapped = np.load(vectors, mmap_mode="r", allow_pickle=False)
        if str(data.pop("checksum")) != _checksum(data, mapped):
            raise ValueError
        words = parse_json(str(data["words"]))
        names = words.pop("views")
        *shots, test, spare_rows, memory = (data[f"rows_{i}"] for i in range(len(words["sessions"]) + 2))
        prototypes = {view: data[f"prototypes_{v}"] for v, view in enumerate(names)}
        widths = [means.shape[1] for means in prototypes.values()]
        by_view = np.split(mapped, np.cumsum(widths * (mapped.shape[1] // sum(widths)))[:-1], axis=1)
        return FeatureSet(
            views=dict(zip(names, by_view[: len(names)], strict=True)),
            learned_from=dict(zip(names, by_view[len(names) :], strict=False)),
            labels=data["labels"],
            memory=memory,
            shots=tuple(shots),
            test=test,
            spare=spare_rows,
            prototypes=prototypes,
            heads={view: _head(data, v) for v, view in enumerate(names)},
            whitening={
                view: Whitening(data[f"centre_{v}"], data[f"matrix_{v}"])
                for v, view in enumerate(names)
                if f"matrix_{v}" in data
            },
            **words,
        )
    except FileNotFoundError:
        return None
    except Exception:  # a file that is cut off or not what it should be fails in many ways
        pass
    warnings.warn(f"{file} is broken; the features are made again", stacklevel=2)
    return None


def _head(data: dict[str, Any], v: int) -> LinearHead | CosineHead:
    """Return the base head of a view, from its fields."""
    weight = data[f"weight_{v}"]
    if f"scale_{v}" not in data:
        return LinearHead(weight, data[f"bias_{v}"])
    return CosineHead(weight, float(data[f"scale_{v}"]), bool(data[f"whitened_{v}"]))


def _checksum(arrays: dict[str, Any], vectors: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted({**arrays, "": vectors}.items()):
        plain = np.ascontiguousarray(array)
        digest.update(f"{name}\0{plain.dtype.str}{np.shape(array)}\0".encode())
        digest.update(plain.tobytes())
    return digest.hexdigest()


def _files(folder: Path, spare: bool) -> tuple[Path, Path]:
    """Return the places of both files; those of other code have other names."""
    name = f"shared{'-with-spare' if spare else ''}-{features_code()[:12]}"
    return folder / f"{name}.npz", folder / f"{name}-vectors.npy"


def read_record(out: Path, key: str) -> dict[str, Any] | None:
    """Return what a finished run left; None where there is nothing, and where it is broken, which is said."""
    record = read_left(out / "runs" / f"{key}.json", "the run is done again")
    return record if record and record.get("key") == key else None


def mark(out: Path) -> str:
    """Make the folders of a sweep; return the mark by which its workers know that they see the same folder."""
    for name in ("runs", "work"):
        (out / name).mkdir(parents=True, exist_ok=True)
    file = out / "work" / "mark.txt"
    if not marked(out, ""):
        with replacing(file) as partial:
            partial.write_text(os.urandom(8).hex(), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def marked(out: Path, wanted: str) -> bool:
    """Return whether this is the folder with that mark; with any mark, where none is wanted."""
    try:
        found = (out / "work" / "mark.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(found) and wanted in ("", found)
