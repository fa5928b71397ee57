"""The pictures of the examples that a model keeps, one small file each beside its states.

    pictures/0a1b….jpg       the square that the model sees; a model of small images keeps a little more, as PNG

A file is called by a hash of the features of its example, so that no state has to name it: renaming, moving and undoing
leave the files alone, and two models with one backbone call the same picture the same. A model works without them.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from faverage.app.names import ModelError
from faverage.app.photos import least, open_picture
from faverage.data.decode import LARGE
from faverage.fscil import Knowledge
from faverage.fscil.knowledge import Views
from faverage.storage import replacing

MOST_BYTES = 64_000_000  # of all pictures of a model; later ones are learned from and not kept
LARGEST = 1_000_000
_ID = re.compile("[0-9a-f]{24}")


def example_id(views: Views, row: int) -> str:
    """Return the name of an example: a hash of its row of features ``(n, d_v)``, by view."""
    digest = hashlib.sha256()
    for view in sorted(views):
        digest.update(np.ascontiguousarray(views[view][row]).tobytes())
    return digest.hexdigest()[:24]


def ids_of(views: Views) -> list[str]:
    """Return the names of examples with features ``(n, d_v)``, by view; equal examples have equal names."""
    return [example_id(views, row) for row in range(len(next(iter(views.values()))))]


def example_ids(known: Knowledge | None) -> list[str]:
    """Return the names of all kept examples, in the order of their rows."""
    return [] if known is None else ids_of(known.views)


class Pictures:
    """Pictures of the examples in the folder of a model that sees squares of a side, by name; ``most`` bytes in all."""

    def __init__(self, folder: Path, side: int, most: int = MOST_BYTES) -> None:
        self.path, self._side, self.most = folder / "pictures", side, most
        self.suffix, self.kind = (".jpg", "image/jpeg") if side >= LARGE else (".png", "image/png")

    def packed(self, image: Image.Image) -> bytes:
        """Return the file of a picture."""
        small, buffer = least(image.convert("RGB"), self._side, shown=True), io.BytesIO()
        if self.suffix == ".png":
            small.save(buffer, "PNG")
        else:
            small.save(buffer, "JPEG", quality=92, subsampling=0)
        return buffer.getvalue()

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Write files by name, as far as there is room; what cannot be written is not kept, which stops nobody."""
        if self.path.is_symlink():
            return
        with suppress(OSError):
            self.path.mkdir(exist_ok=True)
            room = self.most - sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())
            for name, data in files.items():
                file = self._file(name)
                if len(data) > min(room, LARGEST) or file.exists():
                    continue
                with replacing(file) as partial:
                    partial.write_bytes(data)
                room -= len(data)

    def __contains__(self, name: object) -> bool:
        """Return whether the picture of an example is kept."""
        file = self._file(str(name))
        return not self.path.is_symlink() and not file.is_symlink() and file.is_file()

    def read(self, name: str) -> bytes | None:
        """Return the file of an example; None where there is none."""
        if not _ID.fullmatch(name) or name not in self:
            return None
        try:
            file = self._file(name)
            return file.read_bytes() if file.stat().st_size <= LARGEST else None
        except OSError:
            return None

    def open(self, name: str) -> Image.Image | None:
        """Return the picture of an example; None where there is none that can be read."""
        data = self.read(name)
        try:
            return None if data is None else open_picture(data, max_bytes=LARGEST)
        except ModelError:
            return None

    def names(self) -> set[str]:
        """Return the names of all that are kept."""
        try:
            found = [] if self.path.is_symlink() else list(self.path.glob(f"*{self.suffix}"))
        except OSError:
            return set()
        return {file.stem for file in found if _ID.fullmatch(file.stem)}

    def remove(self, names: Iterable[str]) -> None:
        """Delete pictures."""
        with suppress(OSError):
            for name in names:
                self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{self.suffix}"
