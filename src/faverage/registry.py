"""Things by name, such as means and fusers: those of the package, and what others add from outside."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from faverage.errors import UserError

__all__ = ["Registry", "adopt", "outside"]

T = TypeVar("T")
E = TypeVar("E")

_REGISTRIES: dict[str, Registry[Any]] = {}


class Registry(dict[str, T]):
    """Things of one kind by name, in the order in which they came.

    Args:
        kind: what they are, for messages.
        named: whether each is told its name, as the attribute ``name``.
        error: what an unknown name raises.

    >>> shapes = Registry("shape")
    >>> @shapes.register("circle")
    ... def circle(): ...
    >>> shapes.names(), "circle" in shapes
    (['circle'], True)
    >>> shapes.get("cirle")
    Traceback (most recent call last):
    faverage.errors.UserError: unknown shape 'cirle'; known are: circle; did you mean 'circle'?
    """

    def __init__(self, kind: str, *, named: bool = False, error: type[UserError] = UserError) -> None:
        super().__init__()
        self.kind, self.named, self.error = kind, named, error
        _REGISTRIES[kind] = self

    def register(self, name: str) -> Callable[[E], E]:
        """Decorator: add something under a name. Only the same thing, defined anew, may take a name that is taken."""

        def add(entry: E) -> E:
            if name in self and _place(self[name]) != _place(entry):
                raise ValueError(f"a {self.kind} named '{name}' exists already: {'.'.join(_place(self[name]))}")
            new: Any = entry
            if self.named:
                new.name = name
            self[name] = new
            return entry

        return add

    def unregister(self, name: str) -> None:
        """Forget a name; one that is not known is no error."""
        self.pop(name, None)

    def get(self, name: object, *default: Any) -> T:
        """Return what has this name; the error for an unknown one, without a default, lists those that are known."""
        if not isinstance(name, str) or name not in self:
            if default:
                return cast(T, default[0])
            close = difflib.get_close_matches(name, self, n=1) if isinstance(name, str) else []
            meant = f"; did you mean '{close[0]}'?" if close else ""
            raise self.error(f"unknown {self.kind} {name!r}; known are: {', '.join(self)}{meant}", what=name)
        return self[name]

    def names(self) -> list[str]:
        """Return all names, in order of registration."""
        return list(self)


def outside() -> list[tuple[str, str, Any]]:
    """Return what was registered from outside the package, as (kind, name, thing), for another process to adopt."""
    every = [(kind, name, entry) for kind, entries in _REGISTRIES.items() for name, entry in entries.items()]
    return [one for one in every if _from_outside(one[2])]


def adopt(entries: Iterable[tuple[str, str, Any]]) -> None:
    """Take in what ``outside`` returned in another process, except under names of the package's own.

    What was adopted before is replaced: the worker of a cluster may outlive an edit.
    """
    for kind, name, entry in entries:
        if kind in _REGISTRIES and _from_outside(_REGISTRIES[kind].get(name, entry)):
            _REGISTRIES[kind][name] = entry


def _from_outside(entry: Any) -> bool:
    return _place(entry)[0].partition(".")[0] != "faverage"


def _place(entry: Any) -> tuple[str, str]:
    """Return the module of a class or function, and its name in there."""
    return str(getattr(entry, "__module__", "")), str(getattr(entry, "__qualname__", type(entry).__qualname__))
