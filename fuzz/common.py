"""What targets that are files share: changing a file or a folder, and looking at answers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.mutate import Mutator
from fuzz.target import Broken

__all__ = ["change_file", "check_probabilities", "copy_folder", "upset"]


def check_probabilities(values: Any, what: str = "answers") -> None:
    """Raise Broken unless rows of numbers are finite, not negative, and sum to one."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise Broken(f"{what} are not finite")
    if (array < -1e-6).any() or (np.abs(array.sum(-1) - 1) > 5e-3).any():
        raise Broken(f"{what} do not sum to one")


def change_file(rng: Random, path: Path, change: Mutator) -> None:
    """Change a file in place."""
    path.write_bytes(change(rng, path.read_bytes()))


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder to another, which may exist."""
    shutil.copytree(source, target, dirs_exist_ok=True)


def upset(rng: Random, folder: Path, file: Path) -> None:
    """Put something else in the place of a file or of its folder."""
    place = file if rng.random() < 0.7 or file.parent == folder else file.parent
    outside = folder.parent / "outside"
    what = rng.randrange(9)
    if what == 8:
        os.mkfifo(folder / ".lock") if not (folder / ".lock").exists() else None
        return
    if what == 0 and place == file:
        file.write_bytes(b"")
        return
    if what == 1:
        shutil.move(place, outside)  # a link to what is elsewhere
        place.symlink_to(outside)
        return
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if what == 2:
        place.symlink_to(place)
    elif what == 3:
        place.symlink_to("/dev/zero")
    elif what == 4:
        os.mkfifo(place)
    elif what == 5:
        place.mkdir()
    elif what == 6:
        place.symlink_to(folder.parent / "nowhere")
    elif what == 7 and place != file:
        place.write_text("a file")
