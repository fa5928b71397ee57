"""The decoded images on disk: decoded once, in parallel, then memory-mapped by every later run.

A store is a folder with ``images.npy`` and ``manifest.json``. Each is moved into place when it is whole, the manifest
last, and a store without a matching manifest is built again: a run that was killed leaves nothing that looks whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import UnidentifiedImageError

from faverage.code import code_fingerprint
from faverage.data.benchmark import DataError, Indices, shown
from faverage.data.decode import decode
from faverage.data.sources import Item, check_absent
from faverage.progress import Progress
from faverage.storage import cache_folder, read_json, read_regular, replacing

__all__ = ["open_store"]

FORMAT = 1
_MOST_BYTES = 1 << 28  # of one image file
CHUNK = 32
STALE_SECONDS = 600
ABSENT = "listed, but absent"

Reasons = list[tuple[int, str]]
Chunk = tuple[NDArray[np.uint8], Reasons]
T = TypeVar("T")


def open_store(
    name: str,
    items: Sequence[Item],
    side: int,
    *,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> tuple[NDArray[np.uint8], Indices, list[tuple[str, str]]]:
    """Memory-map the decoded images of ``items``, decoding them first where that was not done before.

    Args:
        name: The benchmark, for messages and the folder's name.
        items: The images.
        side: Side of the stored squares.
        cache: Folder of all stores; default ``faverage.storage.cache_folder()``.
        workers: Threads that decode; default one a core, at most 16. The result does not depend on it.
        progress: Show a bar with the time left where decoding takes more than two seconds.

    Returns:
        The images (n, side, side, 3), the positions in ``items`` of these n images, and (image, reason) for the rest.
    """
    if workers is not None and workers < 1:
        raise DataError(f"workers must be at least 1, got {workers}")
    facts = {path: _fact(path) for path in {item.file for item in items}}
    absent = [item.name for item in items if not facts[item.file]]
    check_absent(name, absent, len(items))
    key = _key(items, side, facts)
    folder = (Path(cache).expanduser() if cache else cache_folder()) / f"{name}-{key[:16]}"
    opened = _open(folder, key, side)
    if opened is None:
        threads = workers or min(16, os.cpu_count() or 1)
        _build(name, items, side, folder, key, threads, progress)
        opened = _open(folder, key, side)
        if opened is None:
            raise DataError(f"{name}: the decoded images in {folder} changed while they were read; try again")
    images, reasons = opened
    lost = {position for position, _ in reasons}
    kept = np.array([i for i in range(len(items)) if i not in lost], dtype=np.int64)
    return images, kept, [(items[i].name, reason) for i, reason in reasons]


def _fact(path: Path) -> str:
    try:
        status = path.stat()
    except (OSError, ValueError):  # a name with a null character, too
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _key(items: Sequence[Item], side: int, facts: dict[Path, str]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {side} {code_fingerprint('faverage.data.decode')}".encode())
    for item in items:
        digest.update(f"\0{item.name}\0{item.member}\0{facts[item.file]}".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _open(folder: Path, key: str, side: int) -> tuple[NDArray[np.uint8], Reasons] | None:
    """A store that is whole and matches its key, else None."""
    try:
        manifest = read_json(folder / "manifest.json")
        if manifest["format"] != FORMAT or manifest["key"] != key:
            return None
        images: NDArray[np.uint8] = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        if images.shape != (manifest["count"], side, side, 3) or images.dtype != np.uint8:
            return None
        return images, [(int(position), str(reason)) for position, reason in manifest["skipped"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(name: str, items: Sequence[Item], side: int, folder: Path, key: str, workers: int, progress: bool) -> None:
    needed = len(items) * side * side * 3
    hint = f"{needed / 1e9:.2g} GB at {folder}; give cache= or set FAVERAGE_CACHE to a folder with room"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)
        _remove_stale(folder)
        if shutil.disk_usage(folder).free < needed:
            raise DataError(f"{name}: the disk has too little room for the decoded images, {hint}")
        with replacing(folder / "images.npy") as partial:
            with partial.open("wb") as file:
                reasons = _write(file, name, items, side, workers, progress)
                file.flush()
                os.fsync(file.fileno())
        manifest = {"format": FORMAT, "key": key, "count": len(items) - len(reasons), "skipped": reasons}
        with replacing(folder / "manifest.json") as partial:
            partial.write_text(json.dumps(manifest), encoding="utf-8")
    except OSError as error:
        full = error.errno == errno.ENOSPC
        problem = "the disk is full" if full else f"cannot write the decoded images ({error})"
        raise DataError(f"{name}: {problem}: they take {hint}") from error


def _remove_stale(folder: Path) -> None:
    """Remove what killed runs left; a file that another run still writes changes all the time."""
    for partial in folder.glob(".*.partial"):
        if time.time() - partial.stat().st_mtime > STALE_SECONDS:
            partial.unlink(missing_ok=True)


def _write(file: BinaryIO, name: str, items: Sequence[Item], side: int, workers: int, progress: bool) -> Reasons:
    """Write all images as one npy file; ordinary writes, since a full disk under a memory map kills the process."""
    reasons: Reasons = []
    count = 0
    start = _header(file, len(items), side)
    with ExitStack() as stack:
        reader = stack.enter_context(_Reader())
        bar = stack.enter_context(Progress(f"decoding {name}", len(items), show=progress))
        starts = range(0, len(items), CHUNK)
        chunks = in_order(lambda i: _decode_chunk(items[i : i + CHUNK], i, side, reader), starts, workers)
        for pixels, failures in stack.enter_context(closing(chunks)):
            file.write(pixels.data)
            reasons += failures
            count += len(pixels)
            bar.advance(len(pixels) + len(failures))
    if not count:
        first = f", the first is {shown(items[reasons[0][0]].name)}: {reasons[0][1]}" if reasons else ""
        raise DataError(f"{name}: none of {len(items)} images can be decoded{first}")
    file.seek(0)
    if _header(file, count, side) != start:
        raise DataError(f"{name}: this version of numpy cannot write the store; upgrade numpy")
    return reasons


def _header(file: BinaryIO, count: int, side: int) -> int:
    """Write an npy header and return its length, which numpy pads so that the first axis may change."""
    fields = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, 3)}
    npy.write_array_header_1_0(file, fields)
    return file.tell()


def _decode_chunk(items: Sequence[Item], first: int, side: int, reader: _Reader) -> Chunk:
    squares: list[NDArray[np.uint8]] = []
    failures: Reasons = []
    for position, item in enumerate(items, first):
        try:
            squares.append(decode(reader.read(item), side))
        except FileNotFoundError:
            failures.append((position, ABSENT))
        except UnidentifiedImageError:
            failures.append((position, "not an image, or of a format that is not known"))
        except Exception as error:  # decoders raise many kinds of error on broken bytes
            failures.append((position, " ".join(f"{type(error).__name__}: {error}".split())[:200]))
    return np.array(squares, dtype=np.uint8).reshape(-1, side, side, 3), failures


def in_order(do: Callable[[int], T], starts: range, workers: int) -> Generator[T]:
    """Yield what threads make of each of ``starts``, in their order, a few ahead of what is consumed."""
    if workers == 1:
        yield from map(do, starts)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for start in starts:
                waiting.append(pool.submit(do, start))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Reader(ExitStack):
    """Reads the bytes of items; keeps each zip archive open once, for all threads."""

    def __init__(self) -> None:
        super().__init__()
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._lock = threading.Lock()

    def read(self, item: Item) -> bytes:
        """The bytes of one image file."""
        if not item.member:
            return read_regular(item.file, _MOST_BYTES)
        with self._lock:
            if item.file not in self._archives:
                self._archives[item.file] = self.enter_context(zipfile.ZipFile(item.file))
        return self._archives[item.file].read(item.member)
