"""What the parts of ``fuse`` share: who receives progress and warnings, and text for messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from faverage.errors import UserError
from faverage.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Listener", "Screen", "UserError", "count", "model_names", "printable", "some"]


class Listener:
    """Receives the progress and the warnings of a run. This one only keeps the warnings; ``Screen`` also prints.

    Attributes:
        strict: raise each warning as a ``UserError``.
        warnings: the warnings so far.

    >>> listener = Listener()
    >>> listener.warn("b.csv has no row for id 17")
    >>> listener.warnings
    ['b.csv has no row for id 17']
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.warnings: list[str] = []

    def warn(self, text: str, remedy: str = "") -> None:
        """Keep a warning and what is done about it; with ``strict``, raise it as an error instead."""
        if self.strict:
            raise UserError(f"{text} (refused by --strict)")
        self.note(f"{text}; {remedy}" if remedy else text)

    def note(self, text: str) -> None:
        """Keep a warning."""
        self.warnings.append(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Receive that ``done`` of ``total`` steps of ``what`` are done."""


class Screen(Listener):
    """Prints warnings, and shows a bar that is removed at the end; lines where there is no terminal.

    >>> from rich.console import Console
    >>> with Screen(Console()) as screen:  # as the listener of fuse_files
    ...     screen.warn("b.csv has no row for id 17", "it counts as no answer")
    Warning: b.csv has no row for id 17; it counts as no answer
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._progress = Progress(patient=False, columns="what bar count elapsed", console=console)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()

    def note(self, text: str) -> None:
        """Print and keep a warning."""
        from rich.text import Text

        super().note(text)
        self._console.print(Text.assemble(("Warning: ", "yellow"), printable(text)), soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar of ``what``, which replaces that of the last job; or write a line where it is time to."""
        self._progress(what, done, total)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless there is one.

    >>> count(1, "row"), count(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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


def printable(text: str) -> str:
    r"""Return text for a terminal: control and unprintable characters are escaped.

    >>> print(printable("cat \x1b[2J é"))
    cat \x1b[2J é
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def some(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names in quotes, and how many more there are.

    >>> some(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(f"'{name}'" for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
