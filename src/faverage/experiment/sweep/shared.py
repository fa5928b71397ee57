"""What the runs of a sweep share on disk: features of one base session, records, the marker of the folder."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from faverage.experiment.code import features_code
from faverage.experiment.features import Features
from faverage.experiment.resume import read_left
from faverage.experiment.rows import Rows
from faverage.fscil import CosineHead
from faverage.storage import parse_json, replacing

__all__ = ["mark", "marked", "read_record", "read_shared", "write_shared"]

_ARRAYS = ("memory", "memory_labels", "prototypes", "labels")


def write_shared(features: Features, folder: Path, spare: bool) -> None:
    """Write what methods see of a base session: features of shots, tests and spare examples, and all beside them."""
    file, vectors = _files(folder, spare)
    parts = [*features.rows.train, features.rows.test, features.rows.spare]
    used = np.unique(np.concatenate(parts))
    place = np.full(len(features.labels), -1)
    place[used] = np.arange(len(used))
    words = {name: getattr(features, name) for name in ("sessions", "class_names", "source", "skipped", "base")}
    arrays: dict[str, Any] = {name: getattr(features, name) for name in _ARRAYS} | {"labels": features.labels[used]}
    arrays |= {**_pack_heads(features.head), "words": np.array(json.dumps(words))}
    arrays |= {f"rows_{i}": place[part] for i, part in enumerate(parts)}
    seen = np.asarray(features.vectors[used])
    arrays["checksum"] = np.array(_checksum(arrays, seen))
    file.unlink(missing_ok=True)
    with replacing(vectors) as partial, partial.open("wb") as handle:
        np.save(handle, seen)
    with replacing(file) as partial, partial.open("wb") as handle:
        np.savez(handle, **arrays)


def read_shared(folder: Path, spare: bool) -> Features | None:
    """Return what ``write_shared`` wrote, without the images; None where it is not there, or not as it was written."""
    file, vectors = _files(folder, spare)
    try:
        with np.load(file, allow_pickle=False) as stored:
            data = {name: np.asarray(stored[name]) for name in stored.files}
        mapped = np.load(vectors, mmap_mode="r", allow_pickle=False)
        if str(data.pop("checksum")) != _checksum(data, mapped):
            raise ValueError
        words = parse_json(str(data["words"]))
        parts = [data[f"rows_{i}"] for i in range(len(words["sessions"]) + 1)]
        arrays: dict[str, Any] = {name: data[name] for name in _ARRAYS}
        rows = Rows(tuple(parts[:-2]), parts[-2], parts[-1])
        return Features(**arrays, **words, head=_unpack_heads(data), vectors=mapped, rows=rows)
    except FileNotFoundError:
        return None
    except Exception:  # a file that is cut off or not what it should be fails in many ways
        pass
    warnings.warn(f"{file} is broken; the features are made again", stacklevel=2)
    return None


def _pack_heads(head: Any) -> dict[str, Any]:
    """Return one base head, or a list of them, as arrays: W and b of a linear one, W and the scale of a cosine."""
    arrays: dict[str, Any] = {"n_heads": np.array(len(head) if isinstance(head, list) else 0)}
    for i, one in enumerate(head if isinstance(head, list) else [head]):
        if isinstance(one, CosineHead):
            arrays |= {f"weight_{i}": one.weight, f"scale_{i}": np.array(one.scale)}
        else:
            arrays |= {f"weight_{i}": one[0], f"bias_{i}": one[1]}
    return arrays


def _unpack_heads(data: dict[str, Any]) -> Any:
    count, heads = int(data["n_heads"]), []
    for i in range(max(1, count)):
        weight, scale = data[f"weight_{i}"], data.get(f"scale_{i}")
        heads.append((weight, data[f"bias_{i}"]) if scale is None else CosineHead(weight, float(scale)))
    return heads if count else heads[0]


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
