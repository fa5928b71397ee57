"""What a file of predictions or labels holds once it is read, and what is refused about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.prediction_files.base import Listener, UserError, count, some

__all__ = ["PREDICTION", "Labels", "Predictions", "check_ids", "check_scores", "check_table"]

Array = NDArray[Any]
PREDICTION = "prediction"  # heading of the predicted labels in what fuse writes
_TOLERANCE = 1e-3  # how far from one the sum of a row of probabilities may be


@dataclass
class Predictions:
    """What one file says: ids, the classes of its columns, and scores ``(n, N_k)`` in float32.

    Attributes:
        places: where each row is, as the number of a line or a row.
        unit: ``line`` or ``row``.
        id_name: the heading of the column of ids.
    """

    path: Path
    ids: list[str]
    classes: list[str]
    scores: Array
    places: Sequence[int]
    unit: str
    id_name: str

    def place(self, row: int) -> str:
        """Say where a row is: ``a.csv line 3``."""
        return f"{self.path} {self.unit} {self.places[row]}"


@dataclass
class Labels:
    """Ids and their labels, as text."""

    path: Path
    ids: list[str]
    labels: list[str]
    places: Sequence[int]
    unit: str

    def place(self, row: int) -> str:
        """Say where a row is: ``labels.csv line 3``."""
        return f"{self.path} {self.unit} {self.places[row]}"


def check_ids(table: Predictions | Labels) -> None:
    """Refuse ids that are empty or occur twice."""
    if "" in table.ids:
        raise UserError(f"{table.place(table.ids.index(''))} has no id")
    if len(set(table.ids)) < len(table.ids):
        first: dict[str, int] = {}
        for row, name in enumerate(table.ids):
            if first.setdefault(name, row) != row:
                raise UserError(
                    f"{table.place(row)}: id {name} occurs twice, first on {table.unit} {table.places[first[name]]}"
                )


def check_table(table: Predictions) -> None:
    """Refuse a table without rows, with fewer than two classes, or with names that are empty or occur twice."""
    path, classes = table.path, table.classes
    if not table.ids:
        raise UserError(f"{path} has no rows below its header" if table.unit == "line" else f"{path} has no rows")
    if "" in classes:
        raise UserError(f"{path}: column {classes.index('') + 2} has no name; expected the label of a class")
    if len(set(classes)) < len(classes):
        twice = [name for name, times in Counter(classes).items() if times > 1]
        raise UserError(f"{path} has two columns for class {some(twice)}")
    if len(classes) < 2:
        raise UserError(f"{path} has one class only ({some(classes)}); give one column for each class, at least two")
    check_ids(table)


def check_scores(table: Predictions, allow_missing: bool, listener: Listener) -> None:
    """Refuse invalid probabilities; scale rows that do not sum to one, with a warning."""
    scores = table.scores
    total = scores.sum(1, dtype=np.float64)
    low = scores.min(1)
    bad = np.flatnonzero(~np.isfinite(total) | (low < 0))
    if bad.size:
        row = int(bad[0])
        column = int(np.flatnonzero(~np.isfinite(scores[row]) | (scores[row] < 0))[0])
        more = f" ({bad.size} such rows)" if bad.size > 1 else ""
        raise UserError(
            f"{table.place(row)}: class '{table.classes[column]}' has {scores[row, column]:g}{more}; "
            "expected probabilities, not negative and finite (for raw scores, take their softmax first)"
        )
    empty = np.flatnonzero(total == 0)
    if empty.size and not allow_missing:
        raise UserError(
            f"{table.place(int(empty[0]))}: all probabilities are 0 ({count(empty.size, 'such row')}); "
            "--allow-missing counts such rows as no answer"
        )
    off = np.flatnonzero((np.abs(total - 1) > _TOLERANCE) & (total > 0))
    if off.size or empty.size:
        table.scores = scores = scores.copy()
        scores[empty] = np.nan
        scores[off] /= total[off, None].astype(np.float32)
    if off.size:
        listener.warn(
            f"{table.place(int(off[0]))}: the probabilities sum to {total[off[0]]:g}, not 1 "
            f"({off.size:,} of {count(len(total), 'row')})",
            "they were scaled to sum to 1",
        )
