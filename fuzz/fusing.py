"""Targets of ``fuse``: predictions, labels, a fuser to apply."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz import examples as sound
from fuzz.common import change_file, check_probabilities
from fuzz.formats import change_npz, change_tensors
from fuzz.mutate import Mutator, change_text
from fuzz.target import Broken, Target

__all__ = ["Apply", "Fuse", "LabelFile", "Predictions"]


class Predictions(Target):
    """A file of predictions, alone."""

    def __init__(self, kind: str, share: int, change: Mutator) -> None:
        from faverage.prediction_files import UserError

        self.name, self.share, self.change, self.refusals = kind, share, change, (UserError,)

    def prepare(self, examples: Path) -> None:
        """Write three files."""
        sound.predictions(examples, (self.name,))

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one of them."""
        file = examples / f"{rng.choice('abc')}.{self.name}"
        (work / file.name).write_bytes(self.change(rng, file.read_bytes()))

    def read(self, rng: Random, work: Path) -> None:
        """Rows are probabilities, or no answers at all."""
        from faverage.prediction_files.base import Listener
        from faverage.prediction_files.read import read_predictions

        missing = rng.random() < 0.3
        strict = Listener(rng.random() < 0.2)
        table = read_predictions(next(work.iterdir()), id_column=None, allow_missing=missing, listener=strict)
        given = table.scores[~np.isnan(table.scores).all(1)] if missing else table.scores
        check_probabilities(given, "predictions")
        "".join([*table.ids, *table.classes, *strict.warnings]).encode()


class LabelFile(Target):
    """A file of labels."""

    name, share = "labels", 700

    def __init__(self) -> None:
        from faverage.prediction_files import UserError

        self.refusals = (UserError,)

    def prepare(self, examples: Path) -> None:
        """Write labels as .csv and .npz."""
        sound.predictions(examples, ("npz",))

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one of them."""
        kind, change = rng.choice((("csv", change_text), ("csv", change_text), ("npz", change_npz)))
        (work / f"labels.{kind}").write_bytes(change(rng, (examples / f"labels.{kind}").read_bytes()))

    def read(self, rng: Random, work: Path) -> None:
        """As many labels as ids, all of them text."""
        from faverage.prediction_files.read import read_labels

        found = read_labels(next(work.iterdir()), id_column=None, label_column=None)
        if len(found.ids) != len(found.labels) or not all(isinstance(text, str) for text in found.labels):
            raise Broken("labels do not fit their ids")
        "".join([*found.ids, *found.labels]).encode()


class Fuse(Target):
    """All of ``fuse``: files in, files out."""

    name, share, writes = "fuse", 150, True

    def __init__(self) -> None:
        from faverage.prediction_files import UserError

        self.refusals = (UserError,)

    def prepare(self, examples: Path) -> None:
        """Write files of every kind."""
        sound.predictions(examples)

    def start(self, examples: Path) -> None:
        """Compare two quick fusers instead of all."""
        from faverage.prediction_files import compare

        compare.fuser_names = lambda: ["arithmetic", "log-pool"]  # type: ignore[attr-defined]

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one or two of the files."""
        kind = rng.choice(("csv", "csv", "npz"))
        names = ["labels.csv", *(f"{name}.{kind}" for name in "abc")]
        for name in names:
            shutil.copy(examples / name, work / name)
        for name in rng.sample(names, rng.choice((1, 1, 2))):
            change_file(rng, work / name, change_npz if name.endswith("npz") else change_text)

    def read(self, rng: Random, work: Path) -> None:
        """What is written can be read, and sums to one."""
        from faverage.prediction_files import fuse_files

        files = sorted(file for file in work.iterdir() if file.stem in "abc")
        options: dict[str, Any] = {
            "fuser": rng.choice(("arithmetic", "log-pool", "weighted-average", "afa")),
            "folds": 2,
            "allow_missing": rng.random() < 0.3,
            "strict": rng.random() < 0.1,
        }
        result = fuse_files(files, work / "labels.csv", work / "out.csv", **options)
        _check_output(work / "out.csv", len(result.classes))


def _check_output(file: Path, classes: int) -> None:
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.reader(opened))[1:]
    check_probabilities([[float(cell) for cell in row[-classes:]] for row in rows if row[-1]], "fused predictions")


class Apply(Target):
    """A fuser's file for ``fuse --apply``."""

    name, share, writes = "apply", 700, True

    def __init__(self) -> None:
        from faverage.prediction_files import UserError

        self.refusals = (UserError,)

    def prepare(self, examples: Path) -> None:
        """Fit four fusers to files."""
        from faverage.fusion import load_fuser
        from faverage.prediction_files.bundle import Bundle, save_bundle

        sound.predictions(examples, ("csv",))
        (examples / "labels.csv").unlink()
        for name, data in sound.fuser_files().items():
            file = examples / "one.safetensors"
            file.write_bytes(data)
            bundle = Bundle(load_fuser(file), sound.CLASSES, list("abc"), [sound.CLASSES] * 3)
            save_bundle(bundle, examples / f"{name}.fuser")
            file.unlink()

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change the fuser's file, or one of the predictions."""
        for name in "abc":
            shutil.copy(examples / f"{name}.csv", work)
        chosen = rng.choice(sorted(examples.glob("*.fuser")))
        shutil.copy(chosen, work / "fuser.safetensors")
        if rng.random() < 0.85:
            change_file(rng, work / "fuser.safetensors", change_tensors)
        else:
            change_file(rng, work / f"{rng.choice('abc')}.csv", change_text)

    def read(self, rng: Random, work: Path) -> None:
        """What is written sums to one."""
        from faverage.prediction_files import apply_files

        files = [work / f"{name}.csv" for name in "abc"]
        apply_files(work / "fuser.safetensors", files, work / "out.csv", allow_missing=rng.random() < 0.2)
        _check_output(work / "out.csv", 3)
