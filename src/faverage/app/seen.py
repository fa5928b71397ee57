"""Features of picture files, kept by what a file holds and by what looked at it: nothing is looked at twice.

One SQLite file for each backbone, with its weights, transform, views and code, in the folder of all caches; a row is
the features of one file, under the hash of its bytes. A cache that is broken, or cannot be written, costs time alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from faverage.app.photos import MAX_BYTES, open_picture, squares
from faverage.code import code_fingerprint
from faverage.storage import cache_folder, read_regular
from faverage.vision import Extractor

__all__ = ["FeatureCache", "Seen", "look_at"]

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]

LOOKING = "looking at the photos"
_CHUNK = 32  # pictures that the network sees at a time
_PATIENCE = 5.0  # seconds that one process waits for another's write


class Seen(NamedTuple):
    """What came of looking at files.

    Attributes:
        views: features ``(m, d_v)`` of the pictures that could be read, by view.
        kept: ``(m,)``, positions of these among the files.
        broken: (position, what is wrong) of the others.
    """

    views: dict[str, Array]
    kept: Array
    broken: list[tuple[int, str]]


def look_at(
    files: Sequence[Path], extractor: Extractor, side: int, *, progress: Progress = lambda *_: None, what: str = LOOKING
) -> Seen:
    """Return the features of picture files, looking only at those that were not seen before.

    Args:
        files: of any format and size.
        extractor: the backbone, ready on its device.
        side: of the squares that pictures are brought to.
        progress: hears how many files are done.
        what: is being done, in words.
    """
    rows: list[Array] = []
    kept: list[int] = []
    broken: list[tuple[int, str]] = []
    progress(what, 0, len(files))
    with FeatureCache.of(extractor, side) as cache:
        done = 0
        for part in _opened(files, side, cache.known):
            found = cache.read([one.digest for one in part if one.square is None and not one.wrong])
            part = [
                one if one.square is not None or one.wrong or one.digest in found else _open(one.place, files, side)
                for one in part
            ]
            fresh = {one.digest: one.square for one in part if one.square is not None}
            if fresh:
                new = extractor(np.stack(list(fresh.values())))
                if not np.isfinite(new).all():
                    raise FloatingPointError("the backbone gives features that are not numbers: check its weights")
                cache.write(dict(zip(fresh, new, strict=True)))
                found |= dict(zip(fresh, new, strict=True))
            for one in part:
                if one.wrong:
                    broken.append((one.place, one.wrong))
                else:
                    kept.append(one.place)
                    rows.append(found[one.digest])
            done += len(part)
            progress(what, done, len(files))
    names = [view.name for view in extractor.views]
    whole = np.stack(rows) if rows else np.zeros((0, len(names)), np.float32)
    views = dict(zip(names, np.split(whole, len(names), axis=1), strict=True))
    return Seen(views, np.array(kept, dtype=np.int64), broken)


class _Opened(NamedTuple):
    """A file: where it stands among all, the hash of its bytes, and pixels unless its features are known."""

    place: int
    digest: bytes
    square: Array | None
    wrong: str = ""


def _open(place: int, files: Sequence[Path], side: int, known: frozenset[bytes] = frozenset()) -> _Opened:
    try:
        data = read_regular(files[place], MAX_BYTES + 1)
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest in known:
            return _Opened(place, digest, None)
        return _Opened(place, digest, squares([open_picture(data)], side)[0])
    except ValueError as error:
        return _Opened(place, b"", None, str(error))
    except OSError as error:
        return _Opened(place, b"", None, str(error.strerror or error))


def _opened(files: Sequence[Path], side: int, known: frozenset[bytes]) -> Iterator[list[_Opened]]:
    """Yield the files in parts; while the network sees one, threads open the next."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        waiting: deque[list[Future[_Opened]]] = deque()
        try:
            for start in range(0, len(files), _CHUNK):
                places = range(start, min(start + _CHUNK, len(files)))
                waiting.append([pool.submit(_open, place, files, side, known) for place in places])
                if len(waiting) > 1:
                    yield [one.result() for one in waiting.popleft()]
            while waiting:
                yield [one.result() for one in waiting.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


class FeatureCache:
    """Rows of features under the hashes of their files.

    Args:
        key: of all that the features depend on beside the files.
        folder: of the cache; by default one in ``faverage.storage.cache_folder()``.
    """

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self.file = (folder or cache_folder() / "features") / f"{key[:32]}.sqlite"
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
