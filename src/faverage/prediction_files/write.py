"""Where results go: checked before the work starts, and written all together at its end."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from faverage.prediction_files.base import Listener, UserError
from faverage.prediction_files.join import Joined
from faverage.prediction_files.tables import Predictions
from faverage.storage import replacing

__all__ = ["check_headings", "check_outputs", "write_predictions", "writing"]

Array = NDArray[Any]
_PREDICTION = "prediction"  # the heading of the predicted labels


def check_outputs(outputs: Sequence[Path], inputs: Sequence[Path], force: bool) -> None:
    """Refuse outputs that cannot be written, that would replace an input or, without ``force``, any file."""
    out = outputs[0]
    if out.suffix.lower() != ".csv":
        raise UserError(f"--out {out} must end in .csv, not in '{out.suffix}'")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: the folder {out.parent} does not exist")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"cannot write {out}: the folder {out.parent} is read-only")
    taken = {file.resolve() for file in inputs}
    for file in outputs:
        if file.is_dir():
            raise UserError(f"cannot write {file}: it is a folder")
        if file.resolve() in taken:
            raise UserError(f"{file} is an input and would be overwritten: choose another --out")
        if file.exists() and not force:
            raise UserError(f"{file} exists already: give --force to overwrite it, or choose another --out")


def check_headings(lead: Predictions, named: Mapping[str, Collection[str]], remedy: str) -> None:
    """Refuse classes that would give the output two columns of one name.

    Args:
        lead: the table whose ids come first.
        named: the classes that each file names.
        remedy: what to do about such a class.
    """
    ids = lead.id_name or "id"
    if ids == _PREDICTION:
        raise UserError(f"{lead.path}: the output has a column '{ids}' of its own: rename the column of ids")
    for file, classes in named.items():
        for name in (ids, _PREDICTION):
            if name in classes:
                raise UserError(
                    f"{file}: the class '{name}' has the name of another column of the output, "
                    f"which are '{ids}', '{_PREDICTION}' and the classes: {remedy}"
                )


@contextmanager
def writing(outputs: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary paths for the outputs; they take their places together, once all are written."""
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(replacing(file)) for file in outputs]
    except OSError as error:
        raise UserError(f"cannot write {outputs[0]}: {error.strerror or error}") from None


def write_predictions(path: Path, joined: Joined, fused: Array, listener: Listener) -> None:
    """Write id, predicted label and probabilities ``(n, N)`` as CSV."""
    best = fused.argmax(1).tolist()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([joined.id_name or "id", _PREDICTION, *joined.classes])
        for i, (name, label) in enumerate(zip(joined.ids, best, strict=True)):
            writer.writerow([name, joined.classes[label], *(f"{p:.6g}" for p in fused[i].tolist())])
            if i % 5000 == 0 or i + 1 == len(best):
                listener.progress("writing", i + 1, len(best))
