"""Zip files: the pictures of a model as folders, a whole model, and both read back with care.

What is in a zip is counted and measured before anything is unpacked, and no name in it becomes a path of this machine.
"""

from __future__ import annotations

import json
import re
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import quote, unquote

from faverage.app.names import ModelError, clean_name
from faverage.app.pictures import example_ids

if TYPE_CHECKING:
    from faverage.app.model import Model

MOST_PICTURES = 1000
MOST_FILES = 10_000  # of a model
PICTURES_UNPACKED = 200_000_000  # bytes, which are in memory together
MODEL_UNPACKED = 400_000_000
_MOST_LISTED = 4_000_000  # bytes of the list of files in a zip
_STAMP = (1980, 1, 1, 0, 0, 0)  # the same model makes the same file
_UNSAFE = re.compile(r'[%/\\:*?"<>|\x00-\x1f]|^[. ]|[. ]$')
_MODEL = re.compile(
    r"model\.json|base/[\w.-]+\.(?:safetensors|json)|states/[0-9]{6,12}/[a-z]+\.safetensors|"
    r"pictures/[0-9a-f]{24}\.(?:jpg|png)"
)


def write_pictures(model: Model, file: IO[bytes]) -> int:
    """Write all kept pictures to a zip, a folder a class; return how many."""
    known, store, count = model.learner.known if model.learner.classes else None, model.pictures, 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
        for row, name in enumerate(example_ids(known)):
            data = store.read(name)
            if known is not None and data is not None:
                folder = _UNSAFE.sub(lambda found: _escaped(found.group()), str(known.classes[known.labels[row]]))
                count += 1
                packed.writestr(zipfile.ZipInfo(f"{folder}/{count:04d}{store.suffix}", _STAMP), data)
    if not count:
        raise ModelError("the model keeps no pictures yet: those that it is taught with from now on are kept")
    return count


def read_pictures(file: IO[bytes], most_bytes: int) -> list[tuple[str, str, bytes]]:
    """Return class, path in the zip, and bytes of every picture in a zip of folders; ModelError where it is none.

    A picture may have ``most_bytes``.
    """
    found = []
    with _opened(file, MOST_PICTURES, PICTURES_UNPACKED) as packed:
        for info in packed.infolist():
            parts = PurePosixPath(info.filename).parts
            if info.is_dir() or parts[0] == "__MACOSX" or any(part.startswith(".") for part in parts):
                continue  # what systems leave in zips
            if len(parts) < 2:
                raise ModelError(f"{_shown(info)} lies in no folder: the zip must hold a folder for each class")
            if info.file_size > most_bytes:
                raise ModelError(f"{_shown(info)} is larger than {most_bytes / 2**20:g} MB: shrink it")
            found.append((clean_name(unquote(parts[-2])), _shown(info), packed.read(info)))
    if not found:
        raise ModelError("there is no picture in the zip: it must hold a folder for each class, with pictures in it")
    return found


def write_model_zip(model: Model, file: IO[bytes]) -> None:
    """Write a model to a zip: its present state, without those that could be gone back to."""
    record = model.record()
    state = record["states"][-1]
    record |= {"states": [state], "history": [line for line in record.get("history") or [] if not line.get("state")]}
    names = {f"{name}{model.pictures.suffix}" for name in example_ids(model.learner.known if model.classes() else None)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr(zipfile.ZipInfo(f"{_folder(model)}/model.json", _STAMP), json.dumps(record, ensure_ascii=False))
        for path in sorted(model.folder.rglob("*")):
            name = path.relative_to(model.folder).as_posix()
            own = name.startswith(("base/", f"states/{state}/")) or path.name in names
            if own and _MODEL.fullmatch(name) and path.is_file() and not path.is_symlink():
                with packed.open(zipfile.ZipInfo(f"{_folder(model)}/{name}", _STAMP), "w") as part:
                    part.write(path.read_bytes())


def merge_zip(model: Model, file: IO[bytes], scratch: Path) -> list[str]:
    """Merge the model in a zip of its folder, by way of an empty one; return the names of the classes that are new."""
    with _opened(file, MOST_FILES, MODEL_UNPACKED) as packed:
        tops = [info.filename[: -len("model.json")] for info in packed.infolist() if _name(info) == "model.json"]
        if len(tops) != 1 or tops[0].count("/") > 1:
            raise ModelError("there is no model in the zip: it must hold the folder of one model, with its model.json")
        for info in packed.infolist():
            name = info.filename.removeprefix(tops[0])
            if info.filename.startswith(tops[0]) and _MODEL.fullmatch(name) and ".." not in name:
                target = scratch / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(packed.read(info))
    try:
        return model.merge(scratch)
    except ModelError as error:
        raise type(error)(str(error).replace(str(scratch), "the uploaded model")) from None


@contextmanager
def _opened(file: IO[bytes], most: int, most_bytes: int) -> Iterator[zipfile.ZipFile]:
    """Give a zip that holds no more than it should, under names that lead nowhere; ModelError otherwise."""
    try:
        _check_list(file)
        with zipfile.ZipFile(file) as packed:
            infos = packed.infolist()
            if len(infos) > most:
                raise ModelError(f"the zip has {len(infos):,} files: at most {most:,} are allowed; split it")
            size = sum(info.file_size for info in infos)
            if size > most_bytes:
                words = f"the zip would unpack to {size / 1e6:,.0f} MB: at most {most_bytes / 1e6:,.0f} MB are allowed"
                raise ModelError(f"{words}; nothing was unpacked")
            for info in infos:
                _check_entry(info)
            yield packed
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, OSError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"this zip cannot be read ({' '.join(str(error).split())[:100]}): make it anew") from None
    except Exception as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError("this zip is broken: make it anew") from None


def _check_list(file: IO[bytes]) -> None:
    """Raise ModelError where the list of files is too long to be read at all; its length is at the end of a zip."""
    end = file.seek(0, 2)
    file.seek(max(0, end - 66_000))
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) < place + 22:
        raise ModelError("this is not a zip file, or a part of it is missing: choose a file that ends in .zip")
    if b"PK\x06\x07" in tail or int.from_bytes(tail[place + 12 : place + 16], "little") > _MOST_LISTED:
        raise ModelError("the zip has far too many files: split it")
    file.seek(0)


def _check_entry(info: zipfile.ZipInfo) -> None:
    """Raise ModelError where a name leads out of the zip, or its bytes cannot be had in a plain way."""
    parts = PurePosixPath(info.filename).parts
    odd = info.filename.startswith("/") or "\\" in info.filename or ".." in parts or not parts or ":" in parts[0]
    if odd or any(ord(c) < 32 for c in info.filename):
        raise ModelError(f"the zip names the path {_shown(info)}: only plain folders and files are allowed")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise ModelError(f"{_shown(info)} is a link: only plain folders and files are allowed")
    if info.flag_bits & 1:
        raise ModelError("the zip is protected by a password: make one without")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ModelError("the zip is packed in an unusual way: make one with the usual method, deflate")


def _shown(info: zipfile.ZipInfo) -> str:
    return "".join(c for c in info.filename if c.isprintable())[-80:]


def _name(info: zipfile.ZipInfo) -> str:
    return PurePosixPath(info.filename).name


def _escaped(text: str) -> str:
    return "%2E" if text == "." else quote(text, safe="")


def _folder(model: Model) -> str:
    return re.sub(r"[^\w-]", "-", model.folder.name) or "model"
