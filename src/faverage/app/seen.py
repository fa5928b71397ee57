"""Features of picture files, kept by what a file holds and by what looked at it: nothing is looked at twice.

One SQLite file for each backbone, with its weights, transform, views and code, in the folder of all caches; a row is
the features of one file, under the hash of its bytes. A cache that is broken, or cannot be written, costs time alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from faverage.app.photos import MAX_BYTES, open_picture, squares
from faverage.code import code_fingerprint
from faverage.data.store import in_order
from faverage.storage import cache_folder, read_regular
from faverage.vision import Extractor
from faverage.vision.together import by_view

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]

LOOKING = "looking at the photos"
_FEW = 4  # pictures that a CPU sees at a time: what it makes of more is asked from the system, and cleared, every time
_MANY = 32  # that a GPU sees
_PATIENCE = 5.0  # seconds that one process waits for another's write


class Seen(NamedTuple):
    """What came of looking at files."""

    views: dict[str, Array]  # features ``(m, d_v)`` of the pictures that could be read, by view
    kept: Array  # ``(m,)``, positions of these among the files
    broken: list[tuple[int, str]]  # (position, what is wrong) of the others


def look_at(
    files: Sequence[Path], extractor: Extractor, side: int, *, progress: Progress = lambda *_: None, what: str = LOOKING
) -> Seen:
    """Return the features of picture files of any size, looking only at those that were not seen before.

    Pictures are brought to squares of a side. ``progress`` hears ``what`` is being done, and how many files are done.
    """
    rows: list[Array] = []
    kept: list[int] = []
    broken: list[tuple[int, str]] = []
    progress(what, 0, len(files))
    with FeatureCache.of(extractor, side) as cache, _one_thread_each(extractor):
        step, done = _FEW if extractor.device.type == "cpu" else _MANY, 0

        def look(start: int) -> list[_Looked]:
            return _look(range(start, min(start + step, len(files))), files, extractor, side, cache.known)

        for part in in_order(look, range(0, len(files), step), min(8, os.cpu_count() or 1)):
            found = cache.read([one.digest for one in part if one.row is None and not one.wrong])
            lost = [one.place for one in part if one.row is None and not one.wrong and one.digest not in found]
            again = iter(_look(lost, files, extractor, side, frozenset()))
            part = [next(again) if one.place in lost else one for one in part]
            cache.write({one.digest: one.row for one in part if one.row is not None})
            for one in part:
                if one.wrong:
                    broken.append((one.place, one.wrong))
                else:
                    kept.append(one.place)
                    rows.append(found[one.digest] if one.row is None else one.row)
            done += len(part)
            progress(what, done, len(files))
    names = [view.name for view in extractor.views]
    whole = np.stack(rows) if rows else np.zeros((0, len(names)), np.float32)
    return Seen(by_view(whole, names, extractor.network), np.array(kept, dtype=np.int64), broken)


class _Looked(NamedTuple):
    """A file: where it stands among all, the hash of its bytes, and its features ``(d,)`` unless they are known."""

    place: int
    digest: bytes
    row: Array | None
    wrong: str = ""


def _look(
    places: Sequence[int], files: Sequence[Path], extractor: Extractor, side: int, known: frozenset[bytes]
) -> list[_Looked]:
    """Open a few files and look at those whose hash is not known."""
    found, new = [], {}
    for place in places:
        try:
            data = read_regular(files[place], MAX_BYTES + 1)
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if digest not in known:
                new[place] = squares([open_picture(data)], side)[0]
            found.append(_Looked(place, digest, None))
        except ValueError as error:
            found.append(_Looked(place, b"", None, str(error)))
        except OSError as error:
            found.append(_Looked(place, b"", None, str(error.strerror or error)))
    if not new:
        return found
    rows = dict(zip(new, extractor(np.stack(list(new.values()))), strict=True))
    if not all(np.isfinite(row).all() for row in rows.values()):
        raise FloatingPointError("the backbone gives features that are not numbers: check its weights")
    return [one._replace(row=rows.get(one.place)) for one in found]


@contextmanager
def _one_thread_each(extractor: Extractor) -> Iterator[None]:
    """On a CPU, let torch use one thread for each of ours: threads that share an image wait for each other."""
    before = torch.get_num_threads()
    if extractor.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class FeatureCache:
    """Rows of features under the hashes of their files; ``key`` is of all else that they depend on."""

    def __init__(self, key: str) -> None:
        self.file = cache_folder() / "features" / f"{key[:32]}.sqlite"
        self.known: frozenset[bytes] = frozenset()
        self._open: sqlite3.Connection | None = None

    @classmethod
    def of(cls, extractor: Extractor, side: int) -> FeatureCache:
        """Return the cache of a backbone that sees squares of a side."""
        about = {"key": extractor.key(0), "side": side, "pictures": code_fingerprint("faverage.app.photos")}
        return cls(hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest())

    def __enter__(self) -> Self:
        for _ in range(2):
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self._open = sqlite3.connect(self.file, timeout=_PATIENCE)
                self._open.execute("CREATE TABLE IF NOT EXISTS seen (file BLOB PRIMARY KEY, row BLOB, sum BLOB)")
                self.known = frozenset(file for (file,) in self._open.execute("SELECT file FROM seen"))
                break
            except (OSError, sqlite3.Error) as error:
                self._close()
                if isinstance(error, sqlite3.OperationalError | OSError):  # locked, full, not ours to write
                    break
                with suppress(OSError):  # it is no database, or a broken one
                    self.file.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open, self.known = None, frozenset()

    def read(self, files: Sequence[bytes]) -> dict[bytes, Array]:
        """Return the rows ``(d,)`` of those hashes that have one which is whole."""
        found = {}
        with suppress(sqlite3.Error):
            for file in files if self._open is not None else ():
                for row, check in self._open.execute("SELECT row, sum FROM seen WHERE file = ?", (file,)):  # type: ignore[union-attr]
                    if isinstance(row, bytes) and _sum(file, row) == check:
                        found[file] = np.frombuffer(row, dtype="<f4").astype(np.float32)
        return found

    def write(self, rows: Mapping[bytes, Array]) -> None:
        """Keep rows ``(d,)`` under their hashes."""
        if self._open is None:
            return
        packed = [(file, row.astype("<f4").tobytes()) for file, row in rows.items()]
        with suppress(sqlite3.Error), self._open:
            lines = [(file, row, _sum(file, row)) for file, row in packed]
            self._open.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", lines)


def _sum(file: bytes, row: bytes) -> bytes:
    return hashlib.blake2b(file + row, digest_size=8).digest()
