"""Tables that know different classes, in different orders: matched by id and by label into one ``(n, K, N)`` array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.prediction_files.base import Listener, UserError, count, some
from faverage.prediction_files.tables import Labels, Predictions

__all__ = ["Joined", "check_classes", "join", "labels_of"]

Array = NDArray[Any]


@dataclass
class Joined:
    """All predictions side by side.

    Attributes:
        ids: the n ids, in the order of the first file; those that it lacks come after.
        classes: the N labels.
        scores: ``(n, K, N)`` in float32, NaN where a model does not know a class or gave no answer.
        id_name: the heading of the first file's ids.
    """

    ids: list[str]
    classes: list[str]
    scores: Array
    id_name: str


def join(
    tables: list[Predictions],
    labels: Labels | None,
    *,
    lead: Predictions | None = None,
    classes: list[str] | None = None,
    allow_missing: bool,
    listener: Listener,
) -> Joined:
    """Match the rows of the tables by id and their columns by label.

    Args:
        tables: one a model. The list is emptied on the way, so that each table's memory is free once it was copied.
        labels: the labelled ids, each of which must have a row in every table.
        lead: the table whose ids come first; by default the first.
        classes: the N labels of the result; by default all labels of tables and labels, sorted.
        allow_missing: count a row that a table lacks as "no answer" instead of refusing it.
        listener: hears how many rows are missing.
    """
    lead = lead or tables[0]
    rows = {name: row for row, name in enumerate(lead.ids)}
    for table in tables:
        for name in table.ids:
            rows.setdefault(name, len(rows))
    if labels is not None and rows.keys().isdisjoint(labels.ids):
        *most, last = [str(table.path) for table in tables]
        files = f"{', '.join(most)} or {last}" if most else last
        raise UserError(f"no id of {labels.path} is in {files}: are they of the same rows?")
    _check_missing(tables, labels, rows, allow_missing, listener)
    if classes is None:
        named = {name for table in tables for name in table.classes}
        classes = _sorted(named | set(labels.labels if labels else ()))
    column = {name: i for i, name in enumerate(classes)}
    scores = np.full((len(rows), len(tables), len(classes)), np.nan, dtype=np.float32)
    for k in range(len(tables)):
        table = tables.pop(0)
        at = np.fromiter((rows[name] for name in table.ids), np.int64, len(table.ids))
        for j, name in enumerate(table.classes):
            scores[at, k, column[name]] = table.scores[:, j]
        listener.progress("aligning", k + 1, k + 1 + len(tables))
    return Joined(list(rows), classes, scores, lead.id_name)


def labels_of(joined: Joined, labels: Labels) -> tuple[Array, Array]:
    """Return the labelled rows ``(m,)`` of ``joined`` that have an answer, and the numbers of their classes."""
    number = {name: i for i, name in enumerate(joined.classes)}
    label = {name: number[text] for name, text in zip(labels.ids, labels.labels, strict=True)}
    rows = np.array([row for row, name in enumerate(joined.ids) if name in label], dtype=np.int64)
    rows = np.array([row for row in rows if not np.isnan(joined.scores[row]).all()], dtype=np.int64)
    return rows, np.array([label[joined.ids[row]] for row in rows], dtype=np.int64)


def check_classes(tables: list[Predictions], labels: Labels, listener: Listener) -> None:
    """Refuse labels and models that have nothing in common; warn of classes that only one side names."""
    found = _sorted(set(labels.labels))
    if len(found) < 2:
        raise UserError(f"{labels.path} has one class only ({some(found)}); fusing needs at least two")
    known = {name for table in tables for name in table.classes}
    if not known & set(found):
        raise UserError(
            f"no class of {labels.path} ({some(found)}) is a column of any file "
            f"({tables[0].path} has {some(tables[0].classes)})"
        )
    for table in tables:
        if not set(table.classes) & set(found):
            listener.warn(f"{table.path} shares no class with {labels.path}: it has {some(table.classes)}")
    for table in tables:  # a column that nobody else names, nor any label, is a class by mistake more often than not
        rest = {name for other in tables if other is not table for name in other.classes}.union(found)
        lone = [name for name in table.classes if name not in rest]
        if lone and len(tables) > 1 and set(table.classes) & set(found):
            listener.warn(f"{table.path} alone has the class {some(lone)}, which is no label either: is it misspelt?")
    unknown = [name for name in found if name not in known]
    if unknown:
        row = labels.labels.index(unknown[0])
        rows = count(sum(label in set(unknown) for label in labels.labels), "row")
        listener.warn(f"{labels.place(row)}: no model predicts the class {some(unknown)}, the label of {rows}")


def _check_missing(
    tables: list[Predictions], labels: Labels | None, rows: dict[str, int], allow_missing: bool, listener: Listener
) -> None:
    for table in tables:
        have = set(table.ids)
        missing = [] if labels is None else [name for name in labels.ids if name not in have]
        asked = set(missing)
        missing += [name for name in rows if name not in have and name not in asked]
        if not missing:
            continue
        text = f"{table.path} has no row for id {missing[0]} ({_where(missing[0], tables, labels)})"
        if len(missing) > 1:
            text += f" and {len(missing) - 1} more"
        if not allow_missing:
            raise UserError(f"{text}; --allow-missing counts them as no answer")
        listener.note(f"{text}: counted as no answer")  # asked for, so --strict does not refuse it


def _where(name: str, tables: list[Predictions], labels: Labels | None) -> str:
    """Say where an id was found, the labels first."""
    for table in ([] if labels is None else [labels]) + list(tables):
        if name in table.ids:
            return table.place(table.ids.index(name))
    raise KeyError(name)


def _sorted(labels: set[str]) -> list[str]:
    """Return labels in order: as whole numbers where all are, else as text."""
    if all(label.isascii() and label.isdigit() for label in labels):
        return sorted(labels, key=lambda label: (len(label.lstrip("0")), label.lstrip("0"), label))
    return sorted(labels)
