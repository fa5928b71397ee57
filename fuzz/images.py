"""Targets with images: the folders of benchmarks, and single pictures."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

from fuzz import examples as sound
from fuzz.common import change_file, copy_folder, upset
from fuzz.formats import change_png, change_zip
from fuzz.mutate import change_bytes, change_text
from fuzz.target import Broken, Target

__all__ = ["Archive", "Picture"]


class Archive(Target):
    """The data folders of benchmarks: zip archives with lists, CIFAR's pickles, a folder of photos."""

    def __init__(self, name: str, share: int) -> None:
        from faverage.data import DataError

        self.name, self.share, self.refusals, self.seconds = name, share, (DataError,), 30.0

    def prepare(self, examples: Path) -> None:
        """Write the drawings of a benchmark."""
        root = examples / "data"
        write: Any = {"zip": sound.mini_imagenet, "cifar": sound.cifar, "photos": sound.photos}[self.name]
        write(root)

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change an archive, a list, a pickle or a photo."""
        root = work / "data"
        copy_folder(examples / "data", root)
        for _ in range(rng.choice((1, 1, 3))):
            files = sorted(path for path in root.rglob("*") if path.is_file())
            if not files:  # an earlier change has put something else in their place
                return
            archives = [file for file in files if file.suffix == ".zip"]
            file = rng.choice(archives if archives and rng.random() < 0.6 else files)
            change = {".zip": change_zip, ".txt": change_text}.get(file.suffix, change_bytes)
            if rng.random() < 0.05:
                upset(rng, root, file)
            elif rng.random() < 0.05:
                file.rename(file.with_name(rng.choice(("\x1b[31m.jpg", "\udcff.jpg", "é.jpg", "e\u0301.jpg", " .jpg"))))
            else:
                change_file(rng, file, change)

    def read(self, rng: Random, work: Path) -> None:
        """Images and labels fit, and so do the sessions."""
        import warnings

        from faverage.data import load_benchmark

        names = {"zip": "mini-imagenet", "cifar": "cifar100", "photos": "folder"}
        small: dict[str, Any] = {} if self.name == "photos" else {"base": 3, "way": 2, "sessions": 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cache = work.parent / "cache"
            given: dict[str, Any] = {"cache": cache, "workers": 1, "progress": False, "shots": 2 if not small else 5}
            try:
                found = load_benchmark(names[self.name], work / "data", **given, **small)
            finally:
                shutil.rmtree(cache, ignore_errors=True)
        if len(found.images) != len(found.labels) or not len(found.images):
            raise Broken("images do not fit their labels")
        if any(index >= len(found.images) for session in found.sessions for index in (*session.train, *session.test)):
            raise Broken("a session names images that are not there")


class Picture(Target):
    """A picture, ``open_picture``."""

    name, share = "picture", 1400

    def __init__(self) -> None:
        from faverage.app.model import ModelError

        self.refusals = (ModelError,)

    def prepare(self, examples: Path) -> None:
        """Write pictures of every format and mode."""
        for name, data in sound.pictures().items():
            (examples / name).write_bytes(data)

    def start(self, examples: Path) -> None:
        """Keep all bytes, to splice them."""
        self.all = [file.read_bytes() for file in sorted(examples.iterdir())]

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one; PNG files by their chunks."""
        file = rng.choice(sorted(examples.iterdir()))
        data = file.read_bytes()
        png = file.suffix == ".png" and rng.random() < 0.7
        (work / file.name).write_bytes(change_png(rng, data) if png else change_bytes(rng, data, self.all))

    def read(self, rng: Random, work: Path) -> None:
        """What comes out is plain RGB, and makes a square and a thumbnail."""
        from faverage.app.photos import open_picture, squares, thumbnails

        image = open_picture(next(work.iterdir()).read_bytes())
        if image.mode != "RGB" or image.info or squares([image], 16).shape != (1, 16, 16, 3):
            raise Broken(f"a picture of mode {image.mode} with {sorted(image.info)}")
        thumbnails([image])
