"""Predictions and labels from ``.csv``, ``.npz`` and ``.parquet`` files, with the line of everything that is wrong."""

from __future__ import annotations

import csv
import zipfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.prediction_files.base import Listener, UserError, count, some
from faverage.prediction_files.tables import PREDICTION, Labels, Predictions, check_ids, check_scores, check_table

__all__ = ["csv_rows", "file_suffix", "read_labels", "read_parquet", "read_predictions"]

Array = NDArray[Any]
_SUFFIXES = (".csv", ".npz", ".parquet")


def read_predictions(path: Path, *, id_column: str | None, allow_missing: bool, listener: Listener) -> Predictions:
    """Read one model's predictions, and check that they are probabilities.

    Rows that do not sum to one are scaled to do so, with a warning; with ``allow_missing`` a row of zeros counts as no
    answer (NaN). Labels that ``fuse`` predicted in a file of its own are left out, and the listener hears of it.
    """
    suffix = file_suffix(path)
    if suffix == ".csv":
        table = _csv_predictions(path, id_column, listener)
    elif suffix == ".npz":
        arrays = _npz(path, ("ids", "classes", "scores"))
        with np.errstate(over="ignore", invalid="ignore"):
            scores = arrays["scores"].astype(np.float32, copy=False)
        ids, classes = _texts(path, arrays["ids"]), _texts(path, arrays["classes"])
        if arrays["ids"].ndim != 1 or arrays["classes"].ndim != 1 or scores.shape != (len(ids), len(classes)):
            raise UserError(
                f"{path}: scores must have shape (ids, classes) = ({len(ids)}, {len(classes)}), got {scores.shape}"
            )
        table = Predictions(path, ids, classes, scores, range(1, len(ids) + 1), "row", "id")
    else:
        frame = read_parquet(path)
        header = _texts(path, [str(c) for c in frame.columns])
        name = _id_of(path, header, id_column)
        at = header.index(name)
        ids, classes = _texts(path, _objects(frame.iloc[:, at])), [c.strip() for i, c in enumerate(header) if i != at]
        scores = np.empty((len(ids), len(classes)), np.float32)
        for j, i in enumerate(i for i in range(len(header)) if i != at):
            column = frame.iloc[:, i]
            if column.dtype.kind not in "fiu":
                raise UserError(f"{path}: column '{header[i]}' must be numbers, got {column.dtype}")
            with np.errstate(over="ignore"):
                scores[:, j] = column.to_numpy(dtype=np.float32, na_value=np.nan)
        table = Predictions(path, ids, classes, scores, range(1, len(ids) + 1), "row", name)
    check_table(table)
    check_scores(table, allow_missing, listener)
    return table


def read_labels(path: Path, *, id_column: str | None, label_column: str | None) -> Labels:
    """Read ids and labels; the label is ``label_column``, else the column ``label``, else the only other one."""
    suffix = file_suffix(path)
    if suffix == ".npz":
        arrays = _npz(path, ("ids", "labels"))
        ids, labels = _texts(path, arrays["ids"]), _texts(path, arrays["labels"])
        if arrays["ids"].ndim != 1 or arrays["ids"].shape != arrays["labels"].shape:
            raise UserError(f"{path}: ids and labels must be two lists of one length, got {len(ids)} and {len(labels)}")
        found = Labels(path, ids, labels, range(1, len(ids) + 1), "row")
    elif suffix == ".parquet":
        frame = read_parquet(path)
        names = _texts(path, [str(c) for c in frame.columns])
        at_id, at_label = _label_columns(path, names, id_column, label_column)
        ids, labels = (_texts(path, _objects(frame.iloc[:, at])) for at in (at_id, at_label))
        found = Labels(path, ids, labels, range(1, len(ids) + 1), "row")
    else:
        rows = csv_rows(path)
        _, header = next(rows)
        at_id, at_label = _label_columns(path, header, id_column, label_column)
        ids, labels, lines = [], [], array("q")
        for line, row in rows:
            ids.append(_text(path, line, row[at_id]))
            labels.append(_text(path, line, row[at_label]))
            lines.append(line)
        found = Labels(path, ids, labels, lines, "line")
    if not found.ids:
        raise UserError(f"{path} has no rows: expected an id and a label on each")
    check_ids(found)
    if "" in found.labels:
        at = found.labels.index("")
        raise UserError(f"{found.place(at)}: id {found.ids[at]} has no label")
    return found


def _csv_predictions(path: Path, id_column: str | None, listener: Listener) -> Predictions:
    """Read numbers row by row into one flat float32 buffer: no more than one row of Python objects at a time."""
    rows = csv_rows(path)
    _, header = next(rows)
    name = _id_of(path, header, id_column)
    at = header.index(name)
    classes = header[:at] + header[at + 1 :]
    own: int | None = None  # the place of labels that fuse predicted: a class of that name has numbers
    ids, lines, values = [], array("q"), array("f")
    for line, row in rows:
        ids.append(_text(path, line, row.pop(at)))
        lines.append(line)
        if len(ids) == 1 and classes.count(PREDICTION) == 1 and row[classes.index(PREDICTION)].strip() in classes:
            own = classes.index(PREDICTION)
            del classes[own]
            listener.note(f"{path}: the column '{PREDICTION}' holds labels and is no class: it is left out")
        if own is not None and (label := _text(path, line, row.pop(own))) not in classes:
            raise UserError(f"{path} line {line}: the {PREDICTION} '{_printable(label)}' is no column of the file")
        try:
            values.extend(map(float, row))
        except ValueError:
            column, cell = next((c, v) for c, v in zip(classes, row, strict=True) if not _is_number(v))
            found = "nothing" if not cell.strip() else f"'{_printable(cell)}'"
            raise UserError(f"{path} line {line}: column '{column}' must be a number, found {found}") from None
    scores = np.frombuffer(values, dtype=np.float32) if ids else np.empty(0, np.float32)
    return Predictions(path, ids, classes, scores.reshape(len(ids), len(classes)), lines, "line", name)


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row that is not blank, the header first; all rows are as long."""
    header: list[str] | None = None
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                if not row:
                    continue
                if header is None:
                    header = row = [_text(path, reader.line_num, cell) for cell in row]
                    if len(header) == 1:
                        hint = next((f"; is it separated by {c!r}?" for c in ";\t|" if c in header[0]), "")
                        raise UserError(f"{path} line {reader.line_num} has one column only, separated by commas{hint}")
                elif len(row) != len(header):
                    raise UserError(
                        f"{path} line {reader.line_num} has {count(len(row), 'cell')}, but the header has {len(header)}"
                    )
                yield reader.line_num, row
            if header is None:
                raise UserError(f"{path} is empty: expected a line of column names")
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is broken CSV: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def file_suffix(path: Path) -> str:
    """Return the extension of a file of predictions or labels; refuse what is no such file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the files in it")
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    if path.suffix.lower() not in _SUFFIXES:
        raise UserError(f"{path} has an unknown extension '{path.suffix}'; known are {', '.join(_SUFFIXES)}")
    return path.suffix.lower()


def _npz(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if missing:
                raise UserError(
                    f"{path} has no array {some(missing)}; it needs {some(names)}, found {some(list(file))}"
                )
            arrays = {name: file[name] for name in names}
    except UserError:
        raise
    except Exception as error:  # what broken or encrypted members raise is not listed anywhere
        # of what is no archive, NumPy says how to load it as a pickle
        reason = _sentence(error) if zipfile.is_zipfile(path) else "it is no zip archive, or not all of one"
        raise UserError(f"{path} is no readable npz file of plain arrays: {reason}") from None
    for name, found in arrays.items():
        kinds = "fiu" if name == "scores" else "USfiub"
        if not isinstance(found, np.ndarray) or found.dtype.kind not in kinds:
            wanted = "numbers" if name == "scores" else "text or numbers"
            raise UserError(f"{path}: {name} must be {wanted}, got {getattr(found, 'dtype', 'something else')}")
    return arrays


def read_parquet(path: Path) -> Any:
    """Return a parquet file as a frame of pandas, or say what is needed to read it."""
    try:
        import pandas
    except ImportError:
        raise UserError(
            f"{path}: parquet files need pandas: pip install pandas pyarrow, or give .csv or .npz"
        ) from None
    try:
        frame = pandas.read_parquet(path)
        return frame if frame.index.name is None else frame.reset_index()
    except ImportError:
        raise UserError(f"{path}: pandas reads parquet files with pyarrow: pip install pyarrow") from None
    except Exception as error:
        raise UserError(f"{path} is no readable parquet file: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    """Return what a library says of a broken file, as one line that is not too long."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _objects(column: Any) -> Any:
    """Return a column of pandas as an array, with None where a value is missing."""
    return column.to_numpy() if column.notna().all() else column.astype(object).where(column.notna(), None).to_numpy()


def _texts(path: Path, values: Any) -> list[str]:
    """Return ids, classes or labels as text; whole numbers that were stored as floats lose their ``.0``."""
    values = np.asarray(values)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "backslashreplace")
    if values.dtype.kind == "f" and (np.abs(values) < 2**63).all() and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    try:
        listed = values.ravel().tolist()
        odd = next((v for v in listed if hasattr(v, "__len__") and not isinstance(v, str)), None)
        if odd is not None:
            raise UserError(f"{path}: ids and labels must be text or numbers, found a {type(odd).__name__}")
        texts = ["" if v is None or v != v else str(v).strip() for v in listed]
        whole = "".join(texts)
        whole.encode().decode()  # an array may hold halves of characters, and numbers beyond all characters
        if "\0" in whole:
            raise UserError(f"{path} has ids or labels that are no text: they hold zero bytes")
    except (UnicodeError, SystemError):  # the latter is how Python refuses some numbers beyond all characters
        raise UserError(f"{path} has ids or labels that are no text: they hold invalid characters") from None
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(f"{path}: {_sentence(error)}") from None
    return texts


def _text(path: Path, line: int, cell: str) -> str:
    """Return a cell without the spaces around it, or refuse what is no text."""
    if not cell.isascii() and any("\ud800" <= c <= "\udfff" for c in cell):
        raise UserError(f"{path} line {line} is not UTF-8 text: {_printable(cell)}")
    if "\0" in cell:
        raise UserError(f"{path} line {line} is not text: it has zero bytes")
    return cell.strip()


def _printable(cell: str) -> str:
    shown = cell if len(cell) <= 40 else cell[:40] + "…"
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _id_of(path: Path, header: list[str], id_column: str | None) -> str:
    if not header:
        raise UserError(f"{path} has no columns")
    if id_column is not None and id_column not in header:
        raise UserError(f"{path} has no column '{id_column}' (--id); it has {some(header)}")
    return header[0] if id_column is None else id_column


def _label_columns(path: Path, header: list[str], id_column: str | None, label_column: str | None) -> tuple[int, int]:
    at_id = header.index(_id_of(path, header, id_column))
    others = header[:at_id] + header[at_id + 1 :]
    name = label_column
    if name is None:
        name = "label" if "label" in others else others[0] if len(others) == 1 else None
    if name is None:
        raise UserError(f"{path} has no column 'label': say with --label which of {some(others, 10)} holds the labels")
    if name not in others:
        raise UserError(
            f"{path} has no column '{name}' (--label) beside the ids '{header[at_id]}'; it has {some(others, 10)}"
        )
    return at_id, next(i for i, h in enumerate(header) if h == name and i != at_id)
