"""Where images are found on disk: data folders, image files, parts of a zip archive."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from faverage.data.benchmark import DataError, shown

__all__ = ["Item", "find_below", "image_files", "locate", "read_lines", "zip_members"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
ENVIRONMENT = "FAVERAGE_DATA"
SEVERAL_ABSENT = 0.1


@dataclass(frozen=True)
class Item:
    """An image that a benchmark may use.

    Attributes:
        name: What messages call it.
        label: Its class.
        file: The image file, or the zip archive that holds it.
        member: Its name in the archive; empty for a file of its own.
        test: Whether it is a test image; None where the split is still to be drawn.
    """

    name: str
    label: int
    file: Path
    member: str = ""
    test: bool | None = None


def locate(root: str | Path | None, name: str, layout: str) -> Path:
    """The data folder: ``root``, or what the environment names; DataError with the expected layout otherwise."""
    chosen = root if root is not None else os.environ.get(ENVIRONMENT) or None
    if chosen is None:
        how = f"give one (root=, or --data on the command line) or set {ENVIRONMENT}"
        raise DataError(f"{name}: no data folder; {how}.\n{layout}")
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(f"{name}: the data folder {folder} does not exist or is not a folder.\n{layout}")
    return folder


def find_below(root: Path, folders: Iterable[str], wanted: str) -> Path | None:
    """The first of ``root`` and its named sub-folders that holds a file or folder called ``wanted``."""
    for folder in ("", *folders):
        if (root / folder / wanted).exists():
            return root / folder
    return None


def read_lines(path: Path) -> list[str]:
    """The lines of a text file without blanks at either end; empty lines are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the list {path}: {error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def image_files(folder: Path) -> Iterator[Path]:
    """Image files in a folder and the folders below it, sorted; hidden files are left out."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and file.lower().endswith(SUFFIXES):
                yield Path(where) / file


def class_folders(folder: Path) -> list[Path]:
    """Sub-folders in the order of their names; hidden ones are left out."""
    found = sorted(sub for sub in folder.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    for sub in found:
        if sub.is_symlink() and folder.resolve().is_relative_to(sub.resolve()):
            raise DataError(f"{shown(str(sub))} is a link to a folder that contains it: remove the link")
    return found


def class_items(folder: Path, *, limit: int | None = None, test: Path | None = None) -> tuple[list[str], list[Item]]:
    """Class names and images of a folder with one sub-folder a class, optionally with a second one of test images.

    Args:
        folder: Its sub-folders are the classes, in the order of their names.
        limit: Use the first so many classes only.
        test: A folder with the same sub-folders, whose images are the test images; None: the split is drawn later.
    """
    classes = class_folders(folder)[:limit]
    items = []
    for label, own in enumerate(classes):
        for part, parent in ((None if test is None else False, folder), (True, test)):
            if parent is not None:
                files = image_files(parent / own.name)
                items += [Item(str(f.relative_to(parent.parent)), label, f, test=part) for f in files]
    return [own.name for own in classes], items


def zip_members(parts: list[Path]) -> dict[str, tuple[Path, str]]:
    """File name -> (archive, member) for the images in all parts of an archive.

    Raises:
        DataError: Where a part is not a whole zip archive, or a number is missing between the parts.
    """
    found: dict[str, tuple[Path, str]] = {}
    for part in parts:
        if not part.is_file():
            raise DataError(f"{part} is not a file, expected a zip archive: fetch this part again")
        try:
            with zipfile.ZipFile(part) as archive:
                names = archive.namelist()
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
            raise DataError(
                f"{part} is not a whole zip archive ({error}; {part.stat().st_size:,} bytes): "
                "the download was probably cut off; fetch this part again"
            ) from None
        found.update((name.rpartition("/")[2], (part, name)) for name in names if name.lower().endswith(SUFFIXES))
    return found


def check_parts(parts: list[Path], stem: str) -> None:
    """Raise DataError where the numbered parts ``<stem>0.zip``, ``<stem>1.zip``, ... leave one out."""
    numbers = {int(text) for part in parts if (text := part.stem.removeprefix(stem)).isdigit()}
    absent = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if absent:
        raise DataError(f"{parts[0].parent} has {len(parts)} parts of the archive, but not {stem}{absent[0]}.zip")


def check_absent(name: str, absent: list[str], listed: int) -> None:
    """Raise DataError where so many listed images are absent that a part of the data must be missing."""
    if len(absent) > SEVERAL_ABSENT * listed:
        raise DataError(
            f"{name}: {len(absent):,} of {listed:,} listed images are absent, the first is {shown(absent[0])}; "
            "a part of the data is probably missing: fetch it, or correct the lists"
        )
