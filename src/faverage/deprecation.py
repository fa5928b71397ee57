"""Words of the version before: they work for one version more, with a warning that names the new word."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["DroppedWarning", "renamed", "shown", "without_effect"]


class DroppedWarning(DeprecationWarning):
    """Something that works for the last time in this version."""


def renamed(old: str, new: str) -> None:
    """Warn of a word that has become another."""
    said = f"'{old}' is now '{new}': use that, the old word will be an error in the next version"
    warnings.warn(said, DroppedWarning, stacklevel=3)


def without_effect(name: str) -> None:
    """Warn of a setting that is no more."""
    said = f"'{name}' has no effect: leave it out, it will be an error in the next version"
    warnings.warn(said, DroppedWarning, stacklevel=3)


@contextmanager
def shown(say: Callable[[str], None]) -> Iterator[None]:
    """Say these warnings, each once, to a person who sees no warnings of Python's."""
    with warnings.catch_warnings():
        usual, seen = warnings.showwarning, set[str]()

        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if not issubclass(category, DroppedWarning):
                usual(message, category, filename, lineno, file, line)
            elif str(message) not in seen:
                seen.add(str(message))
                say(str(message))

        warnings.filterwarnings("always", category=DroppedWarning)
        warnings.showwarning = show
        yield
