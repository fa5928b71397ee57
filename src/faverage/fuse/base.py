"""What the parts of ``fuse`` share: the error a person can act on, and who hears of progress and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["Listener", "UserError", "model_names", "some"]


class UserError(ValueError):
    """A mistake in what was given: files, columns, options. The message says what to do; no traceback is needed."""


class Listener:
    """Hears what a run does. This one only keeps the warnings; the command line's also prints.

    Attributes:
        strict: turn each warning into a ``UserError``.
        warnings: the warnings so far.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """Note something that is odd but can be worked with, or refuse it where ``strict``."""
        if self.strict:
            raise UserError(f"{text} (refused by --strict)")
        self.note(text)

    def note(self, text: str) -> None:
        """Note something worth reading that is no mistake."""
        self.warnings.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Hear that ``done`` of ``total`` steps of ``what`` are over."""


def model_names(files: Sequence[Path]) -> list[str]:
    """Return a name for each file: its stem, with the folder before it where stems are equal.

    >>> model_names([Path("runs/forest.csv"), Path("runs/svm.csv")])
    ['forest', 'svm']
    >>> model_names([Path("forest/test.csv"), Path("svm/test.csv")])
    ['forest/test', 'svm/test']
    """
    stems = [file.stem for file in files]
    names = [s if stems.count(s) == 1 else f"{f.resolve().parent.name}/{s}" for s, f in zip(stems, files, strict=True)]
    return [n if names.count(n) == 1 else f"{n} ({names[: i + 1].count(n)})" for i, n in enumerate(names)]


def some(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names in quotes, and how many more there are.

    >>> some(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
