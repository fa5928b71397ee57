"""A fingerprint of code: what is stored under it is not taken for a result of other code.

It covers the named modules and whatever they import of faverage, at the top or inside a function, and so on.
Comments, docstrings and layout do not count. Imports of a package are followed name by name through its ``__init__``;
what an ``__init__`` defines itself, such as a registry, counts without all that is registered: name those modules too.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["code_fingerprint"]

_OWN = "faverage"
# what reads and writes files, plots, shows progress or asks for fingerprints does not change what is computed
_PLUMBING = {
    *(f"{_OWN}.{name}" for name in ("code", "errors", "registry", "progress", "storage")),
    *(f"{_OWN}.{name}" for name in ("report.charts", "report.page", "report.tables", "experiment.report")),
    *(f"{_OWN}.{name}" for name in ("vision.engine.report", "experiment.code", "deprecation")),
    f"{_OWN}:",
}  # its version, which counts by itself


@functools.cache
def code_fingerprint(*modules: str) -> str:
    """Return a hash of the sources of modules and of all that they import of faverage.

    Args:
        *modules: full names, those of other packages, too, once they are imported. A module whose source cannot be read
            counts by its name and the version of faverage.

    >>> code_fingerprint("faverage.afa.means") == code_fingerprint("faverage.afa.network")
    False
    """
    return _here().fingerprint(modules)


@functools.cache
def _here() -> Sources:
    """The sources of this process, each read once."""
    return Sources(Path(__file__).parent)


class Sources:
    """The sources of faverage and of other packages, read where they lie.

    Args:
        folder: of faverage.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._trees: dict[str, ast.Module | None] = {}
        self._texts: dict[str, str] = {}
        self._statements: dict[str, list[tuple[str, str | None]]] = {}
        self._imports: dict[str, list[str]] = {}

    def fingerprint(self, modules: Sequence[str]) -> str:
        """Return the hash of modules and of all that they import; see ``code_fingerprint``."""
        digest = hashlib.sha256()
        for name in sorted(self.behind(modules)):
            digest.update(f"{name}\0{self._text(name.removesuffix(':'))}\0".encode(errors="surrogatepass"))
        return digest.hexdigest()

    def behind(self, modules: Sequence[str]) -> set[str]:
        """Return the names of modules and of all that they import."""
        found: set[str] = set()
        waiting = list(modules)
        while waiting:
            name = waiting.pop()
            if name not in found and name not in _PLUMBING:
                found.add(name)
                waiting += self._all(name)
        return found

    def _text(self, name: str) -> str:
        """Return what stands for the code of one module."""
        from faverage import __version__

        if name not in self._texts:
            tree = self._tree(name)
            self._texts[name] = __version__ if tree is None else ast.dump(_Bare().visit(tree))
        return self._texts[name]

    def _tree(self, name: str) -> ast.Module | None:
        """Return a module as it is written; None where its source is not available."""
        if name not in self._trees:
            try:
                file = self._file(name)
                self._trees[name] = None if file is None else ast.parse(file.read_bytes())
            except (OSError, ValueError, SyntaxError, RecursionError):
                self._trees[name] = None
        return self._trees[name]

    def _all(self, name: str) -> list[str]:
        """Return what a module imports of faverage, as ``imports`` has it."""
        if name not in self._imports:
            own = (other for other in self.imports(name) if other.partition(".")[0].rstrip(":") == _OWN)
            self._imports[name] = list(own)
        return self._imports[name]

    def imports(self, name: str) -> Iterator[str]:
        """Yield the modules that one imports; ``package:`` stands for an ``__init__`` without what that imports."""
        for module, wanted in self._named(name):
            if wanted is None or wanted == "*" or not self._is_package(module):
                yield module
            elif self._file(f"{module}.{wanted}") is not None:
                yield f"{module}.{wanted}"
            elif module != name:
                yield self._home(module, wanted)

    def _named(self, name: str) -> list[tuple[str, str | None]]:
        """Return the imports of a module as ``_imported`` yields them; none for a ``package:``."""
        if name not in self._statements:
            tree = self._tree(name)
            self._statements[name] = [] if tree is None else list(_imported(name, self._is_package(name), tree))
        return self._statements[name]

    def _home(self, package: str, wanted: str) -> str:
        """Return where a name of a package comes from."""
        for module, name in self._named(package):
            if name == wanted and module != package:
                return module
        return f"{package}:"

    def _is_package(self, name: str) -> bool:
        file = self._file(name)
        return file is not None and file.name == "__init__.py"

    def _file(self, name: str) -> Path | None:
        root, *parts = name.split(".")
        if root == _OWN:
            place = self.folder.joinpath(*parts)
            files = (place / "__init__.py", place.with_name(place.name + ".py"))
            return next((file for file in files if file.is_file()), None)
        module: ModuleType | None = sys.modules.get(name)
        try:
            found = None if module is None else inspect.getsourcefile(module)
        except TypeError:
            found = None
        return None if found is None else Path(found)


def _imported(name: str, is_package: bool, tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield all imports of a module as (module, name in it or None), except those for type checkers only."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)
        waiting += (part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.expr))  # none is inside


class _Bare(ast.NodeTransformer):
    """Leaves out text that stands alone, as docstrings do."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, ast.expr) else super().visit(node)  # no statement is inside

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)
