"""Names of the previous version: they work until version ``ENDS``, with a warning that gives the new name.

So do modules under the names that they had in version 0.1, except ``faverage.fit``,
``faverage.explain`` and ``faverage.align``, which are functions now.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["ENDS", "MOVED", "DroppedWarning", "gone", "install", "renamed", "shown", "without_effect"]

ENDS = "0.3"
"""The version in which all of this goes; CONTRIBUTING.md has the rule."""

MOVED = {
    **{name: f"afa.{name}" for name in ("means", "simplex", "groups", "network", "export")},
    "fuse": "prediction_files",
    **{f"data.{name}": f"data.datasets.{name}" for name in ("cifar100", "cub200", "digits", "mini_imagenet")},
    "vision.augment": "vision.transforms",
    "vision.extract": "vision.extraction",
    "vision.lesson": "vision.objectives",
    "vision.ranks": "vision.engine.processes",
    "vision.optimise": "vision.engine.optimise",
    "fscil.memory": "fscil.rehearsal",
    "rivals.base": "rivals.rival",
    "app.demo": "app.train",
}


class DroppedWarning(DeprecationWarning):
    """Something that works for the last time in this version."""


def renamed(old: str, new: str) -> None:
    """Warn that a name has been replaced by another."""
    said = f"'{old}' is now '{new}': use that, the old word will be an error in version {ENDS}"
    warnings.warn(said, DroppedWarning, stacklevel=3)


def gone(old: str, instead: str) -> NoReturn:
    """Raise ImportError for a name that no other can take the place of as it is.

    Args:
        old: its full name.
        instead: what to use, as a sentence.
    """
    raise ImportError(f"{old} is gone: {instead}")  # an AttributeError would lose its words in ``from … import``


def without_effect(name: str) -> None:
    """Warn of a setting that has no effect any more."""
    said = f"'{name}' has no effect: leave it out, it will be an error in version {ENDS}"
    warnings.warn(said, DroppedWarning, stacklevel=3)


@contextmanager
def shown(say: Callable[[str], None]) -> Iterator[None]:
    """Pass these warnings, each once, to ``say``, for people who do not see Python's warnings."""
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


class _Moved(MetaPathFinder, Loader):
    """Finds a module under its old name; what it gives is the module of the new name itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.removeprefix("faverage.") in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"faverage.{MOVED[spec.name.removeprefix('faverage.')]}"
        warnings.warn(
            f"{spec.name} is now {new}; the old name goes in version {ENDS}", DeprecationWarning, stacklevel=2
        )
        module = import_module(new)
        spec.loader_state = module.__spec__  # the import system overwrites it
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state if module.__spec__ is not None else None


def install() -> None:
    """Make the old names of modules known to the import system; first, since old versions may have left folders."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
