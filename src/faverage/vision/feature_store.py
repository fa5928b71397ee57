"""Features on disk, in parts that several processes may make together: memory-mapped, checked, redone one by one."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from faverage.storage import read_json, replacing
from faverage.vision.engine.device import (
    Array,
    Precision,
    check_images,
    check_indices,
    fast_convolutions,
    fingerprint_images,
    pick_device,
    pick_precision,
)
from faverage.vision.engine.processes import Team
from faverage.vision.engine.report import Report
from faverage.vision.extraction import DType, Extractor
from faverage.vision.shards import Shards
from faverage.vision.transforms import Evaluate
from faverage.vision.views import View

__all__ = ["open_features", "store_features"]


def store_features(
    backbone: nn.Module,
    images: Array | Shards,
    indices: Any = None,
    *,
    folder: str | Path,
    transform: Evaluate,
    views: Sequence[str | View] = ("plain",),
    batch_size: int = 256,
    device: str | torch.device = "auto",
    precision: Precision = "auto",
    dtype: DType = "float32",
    part_rows: int | None = None,
    team: Team | None = None,
    progress: bool = False,
) -> Shards:
    """Write the features ``(n, d)`` of images to a folder, in parts, and return them as memory maps.

    Every process of the team makes every ``team.size``-th part; all must see the folder. A part is a ``.npy`` file,
    with a ``.json`` beside it: what its features depend on, a hash of its images, and a hash of its features. A part
    that is there, whole and of the same weights, images and settings is kept; any other is made (again), alone. When
    all are there, ``manifest.json`` names them; see ``open_features``.

    Args:
        backbone: module from images to features; it is copied, not changed.
        images: uint8 ``(N, S, S, 3)``, may be a memory map, or several as ``Shards``.
        indices: ``(n,)``, the rows wanted, in their order; by default all.
        folder: for the parts; it is made where it is not there.
        transform: the evaluation transform, such as ``BaseModel.transform``.
        views: ways to look at each image, see ``View``; their features are side by side, ``(n, views x d)``.
        batch_size: images at a time, see ``extract_features``.
        device: ``auto``, ``cpu``, ``cuda`` or a torch device; a team has its own.
        precision: ``float32``, ``bfloat16``, or ``auto``: bfloat16 on a GPU, and on a CPU that has it where images have
            64 px or more: twice as fast there, and learners are right as often.
        dtype: of the result.
        part_rows: rows of a part, which are what a kill may lose; by default 4,096, and 512 on a CPU.
        team: the processes that share the work; by default this one alone.
        progress: draw a progress bar.

    >>> import tempfile
    >>> from faverage.vision import get_backbone
    >>> images, backbone = np.zeros((5, 16, 16, 3), dtype=np.uint8), get_backbone("tiny", dimension=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stored = store_features(backbone, images, folder=folder, transform=Evaluate(16), device="cpu", part_rows=2)
    ...     stored.shape, open_features(folder, check=True).shape
    ((5, 8), (5, 8))
    """
    team = team or Team()
    check_images(images)
    place = team.device or pick_device(device)
    kind = str(pick_precision(precision, place, transform.size)).removeprefix("torch.")
    options: dict[str, Any] = {"batch_size": batch_size, "precision": kind, "dtype": dtype}
    extractor = Extractor(backbone, transform, views=views, device=place, **options)
    rows = check_indices(indices, len(images))
    if part_rows is None:
        part_rows = 512 if place.type == "cpu" else 4096
    if part_rows < 1:
        raise ValueError(f"part_rows must be at least 1, got {part_rows}")
    folder = Path(folder)
    team.first_does(lambda: _prepare(folder))
    starts = range(0, max(len(rows), 1), part_rows)
    mine = {start // part_rows: rows[start : start + part_rows] for start in starts[team.rank :: team.size]}
    with fast_convolutions(extractor.device):
        key = extractor.key(extractor.dimension(images, rows))
        total = sum(map(len, mine.values()))
        with Report("features", total, show=progress and team.first) as report:
            for number, part in mine.items():
                _Part(folder, number).make(extractor, images, part, key, report.advance)
    team.wait()
    team.first_does(lambda: _write_manifest(folder, len(starts), key))
    return open_features(folder)


def open_features(folder: str | Path, *, check: bool = False) -> Shards:
    """Open what ``store_features`` wrote, as memory maps.

    Args:
        folder: with ``manifest.json``.
        check: whether to compare every part with its checksum.

    Raises:
        ValueError: there is no whole store, or a part is not what the manifest says.

    >>> import tempfile
    >>> from faverage.vision import get_backbone
    >>> images, backbone = np.zeros((5, 8, 8, 3), dtype=np.uint8), get_backbone("tiny", dimension=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stored = store_features(backbone, images, folder=folder, transform=Evaluate(8), device="cpu", part_rows=2)
    ...     features = open_features(folder, check=True)  # as another program does, later
    ...     print(features[[0, 4]].shape)  # only these rows are read
    ...     Path(folder, "part-00001.npy").unlink()
    ...     try:
    ...         open_features(folder)
    ...     except ValueError as error:
    ...         print(str(error).rpartition("): ")[2])
    (2, 8)
    run store_features again: it makes what is missing
    """
    folder = Path(folder)
    again = "run store_features again: it makes what is missing"
    try:
        noted = read_json(folder / "manifest.json")["parts"]
        parts = [np.load(_Part(folder, k).file, mmap_mode="r", allow_pickle=False) for k in range(len(noted))]
        bad = [k for k, part in enumerate(parts) if list(part.shape) != noted[k]["shape"]]
        if check:
            bad += [k for k, part in enumerate(parts) if _checksum(part) != noted[k]["checksum"]]
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no whole features ({' '.join(str(error).split())}): {again}") from None
    if bad:
        raise ValueError(f"{_Part(folder, bad[0]).file} is broken: {again}")
    return Shards(parts)


class _Part:
    """One part of a store, ``part-00000.npy``, and the note beside it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.file = folder / f"part-{number:05d}.npy"
        self.note = self.file.with_suffix(".json")

    def make(
        self,
        extractor: Extractor,
        images: Array | Shards,
        rows: Array,
        key: dict[str, Any],
        advance: Callable[[int], None],
    ) -> None:
        """Write the part, unless it is there and whole."""
        wanted = {"key": key, "images": fingerprint_images(images, rows), "shape": [len(rows), key["dimension"]]}
        noted = self.noted()
        if noted is not None and {name: noted.get(name) for name in wanted} == wanted:
            if self._checksum() == noted.get("checksum"):
                advance(len(rows))
                return
            warnings.warn(f"{self.file} is broken; the features are computed again", stacklevel=4)
        elif noted is None and self.note.exists():
            warnings.warn(f"{self.note} is broken; the features are computed again", stacklevel=4)
        self.note.unlink(missing_ok=True)
        features = extractor.into(np.empty((len(rows), key["dimension"]), key["dtype"]), images, rows, advance)
        with replacing(self.file) as partial, partial.open("wb") as file:
            np.save(file, features)
        with replacing(self.note) as partial:
            partial.write_text(json.dumps({**wanted, "checksum": _checksum(features)}, indent=1), encoding="utf-8")

    def noted(self) -> dict[str, Any] | None:
        """Return the note; None where there is none that can be read."""
        try:
            noted = read_json(self.note)
            return noted if isinstance(noted, dict) else None
        except (OSError, ValueError):
            return None

    def _checksum(self) -> str | None:
        try:
            return _checksum(np.load(self.file, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError, EOFError):
            return None


def _checksum(features: Array) -> str:
    return hashlib.blake2b(np.ascontiguousarray(features).data, digest_size=16).hexdigest()


def _prepare(folder: Path) -> None:
    """Make the folder; until the end, what it holds does not count as a store."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)


def _write_manifest(folder: Path, count: int, key: dict[str, Any]) -> None:
    """Name all parts, and remove those of an earlier, longer store."""
    notes = [_Part(folder, number).noted() or {} for number in range(count)]
    parts = [{name: note[name] for name in ("shape", "images", "checksum")} for note in notes]
    for file in folder.glob("part-*"):
        if int(file.name[5:10]) >= count:
            file.unlink()
    with replacing(folder / "manifest.json") as partial:
        partial.write_text(json.dumps({"key": key, "parts": parts}, indent=1) + "\n", encoding="utf-8")
