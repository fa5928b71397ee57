"""Modules under the names that they had in version 0.1: they can be imported until version 0.3, with a warning.

``faverage.fit``, ``faverage.explain`` and ``faverage.align`` are functions and cannot be modules any more.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED", "install"]

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
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module under its old name; what it gives is the module of the new name itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.removeprefix("faverage.") in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"faverage.{MOVED[spec.name.removeprefix('faverage.')]}"
        warnings.warn(f"{spec.name} is now {new}; the old name goes in version 0.3", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__  # the import system overwrites it
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state if module.__spec__ is not None else None


def install() -> None:
    """Make the old names known to the import system; first, since folders of old versions may be left behind."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
