"""What a person gives, from a YAML file or the command line, as plain settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from faverage.deprecation import renamed, without_effect
from faverage.experiment.settings import ConfigError
from faverage.vision.views import View, view_of_today
from faverage.vision.views import passes as passes_of

__all__ = ["Layers", "check_names", "methods_of", "of_today", "read_yaml", "scaled", "seeds_of", "views_of", "within"]

_MOST_BYTES, _MOST_VALUES, _MOST_BITS = 1 << 20, 10_000, 512  # of a file of settings, in one, and of a whole number

DROPPED = ("strategy",)  # settings of the version before that have no effect
_RENAMED = {"turned": "rotations"}

Layers = Sequence[dict[str, Any]]  # settings by name, each laid over those before


def scaled(lr: Any, usual: Any, size: Any) -> Any:
    """Return the learning rate for a batch of another size than the usual one, in proportion.

    What cannot be is left to the checks.
    """
    known = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in (lr, usual, size))
    return lr * size / usual if known else lr


def methods_of(given: Any, every: Sequence[str]) -> tuple[str, ...]:
    """Return names from a list or from text with commas between; ``all`` stands for ``every`` one."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        raise ConfigError(f"methods must be names, as 'afa, vote' or [afa, vote], got {given!r}")
    flat: list[str] = []
    for name in (str(name).strip() for name in names):
        flat += [m for m in (every if name == "all" else (name,)) if m and m not in flat]
    return tuple(flat)


def views_of(layers: Layers, usual: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """Return the names of the views of a network, and how many of all views to take; None: all.

    A number in place of names counts those of the layers below it, of all networks.
    """
    given = [usual, *(layer["views"] for layer in layers if "views" in layer)]
    views: Any = given[-1]
    count: int | None = None
    if isinstance(views, int) and not isinstance(views, bool):
        count, views = views, next(named for named in reversed(given) if isinstance(named, list | tuple))
    check_names(views)
    return tuple(views), count


def within(views: list[list[str]], passes: int, *, ready: bool = False) -> list[list[str]]:
    """Return of the views of each network what a number of passes affords: the first of each, then the second of each.

    A view that shares its passes with those that are taken is taken, too. Where not even the first view of the first
    network is afforded, one side of it is taken, with what that shows otherwise.

    Args:
        views: names, by network.
        passes: of a backbone, for one image.
        ready: whether these are names in a file of features: then none can be replaced by one side of it.

    >>> within([["both", "both, rotate-90"], ["both"]], 5)
    [['both'], ['both']]
    >>> within([["both", "both, rotate-90"], ["both"]], 1)
    [['plain'], []]
    >>> within([["both", "largest", "both, covariance"], ["plain"]], 1)
    [['plain', 'largest', 'covariance'], []]
    >>> within([["both", "both, rotate-90"], ["both", "both, largest"]], 4)
    [['both'], ['both', 'both, largest']]
    """
    if ready:  # one list, with the networks in the names
        networks: dict[str, list[str]] = {}
        for name in views[0]:
            networks.setdefault(name.rpartition(": ")[0], []).append(name)
        taken = [name for names in _afforded(list(networks.values()), passes) for name in names]
        chosen = [name for name in views[0] if name in taken]
        if not chosen:
            least = min(passes_of([name]) for name in views[0])
            raise ConfigError(f"passes: a view of these features takes at least {least}, got {passes}")
        return [chosen]
    if passes_of(views[0][:1]) <= passes:
        return _afforded(views, passes)
    own = [View.parse(name) for name in views[0]]
    first = own[0].looks[0]
    sides = dict.fromkeys(replace(first, pool=view.pool).name for view in own if first in view.looks)
    return [list(sides), *([] for _ in views[1:])]


def _afforded(views: list[list[str]], passes: int) -> list[list[str]]:
    """Return of the views of each network those that fit, none replaced."""
    left, taken_by = passes, [list[str]() for _ in views]
    for place, k in sorted((place, k) for k, names in enumerate(views) for place in range(len(names))):
        more = passes_of([*taken_by[k], views[k][place]]) - passes_of(taken_by[k])
        if more <= left:
            taken_by[k].append(views[k][place])
            left -= more
    return taken_by


def check_names(views: Any) -> None:
    """Raise ConfigError unless these are names of views, known or not."""
    if not isinstance(views, list | tuple) or not all(isinstance(name, str) for name in views):
        raise ConfigError(f"views must be a list of names, as [plain, rotate-90], got {views!r}")


def seeds_of(given: Any) -> tuple[int, ...] | None:
    """Return several seeds from a list or from text with commas between."""
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    try:
        seeds = tuple(dict.fromkeys(int(str(part)) for part in parts))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0 or max(seeds) >= 2**32:
        said = "seeds must be whole numbers of at least 0 and below 2**32, as '0,1,2' or [0, 1, 2]"
        raise ConfigError(f"{said}, got {given!r:.200}")
    return seeds


def _size(node: Any, known: dict[int, float]) -> float:
    """Return how many values a YAML node stands for once aliases are written out; infinite where it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(getattr(node, "value", None), list) else []
        flat = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(one, known) for one in flat)
    return known[id(node)]


def _check_values(value: Any) -> None:
    """Raise ValueError for a number or text that could not even be shown."""
    if isinstance(value, dict | list):
        for one in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_values(one)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"a number has more than {_MOST_BITS} bits")


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the settings in a YAML file; ConfigError where there are none."""
    import yaml

    if not file.is_file():
        raise ConfigError(f"no such file: {file}")
    if file.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"{file} has {file.stat().st_size / 1e6:.0f} MB, more than settings need: name another file")
    try:
        content = file.read_text(encoding="utf-8")
        if _size(yaml.compose(content, Loader=yaml.SafeLoader), {}) > _MOST_VALUES:
            raise ValueError(f"with its aliases it has more than {_MOST_VALUES} values")
        settings = yaml.safe_load(content)
        _check_values(settings)
    except OSError:
        raise
    except Exception as error:  # there is no end to what its parts for numbers, dates and merged keys may raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"{file} is not a YAML file: {reason}") from None
    if not isinstance(settings, dict):
        found = {type(None): "nothing", str: "text", list: "a list"}.get(type(settings), repr(settings)[:40])
        raise ConfigError(f"{file} must hold settings as 'name: value' lines, found {found}")
    return of_today(settings)


def of_today(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings, those of networks and the options of a sweep too, in the words of today.

    A warning tells of each old word, and of what has no effect.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name in DROPPED:
            without_effect(name)
            continue
        if name in _RENAMED:
            renamed(name, _RENAMED[name])
            if _RENAMED[name] in settings:
                raise ConfigError(f"'{name}' is the old name of '{_RENAMED[name]}', and both are given: leave one out")
        found[_RENAMED.get(name, name)] = _value_of_today(name, value)
    return found


def _value_of_today(name: str, value: Any) -> Any:
    if name == "views":
        return _words_of_today(value)
    if name == "networks" and isinstance(value, list | tuple):
        return [of_today(one) if isinstance(one, dict) else one for one in value]
    if name == "over" and isinstance(value, dict):
        old = {key: [_value_of_today(key, one) for one in v] if isinstance(v, list) else v for key, v in value.items()}
        for key in _RENAMED.keys() & old.keys():
            renamed(key, _RENAMED[key])
        return {_RENAMED.get(key, key): one for key, one in old.items()}
    return value


def _words_of_today(views: Any) -> Any:
    """Return names of views; what is none stays as it is."""
    if isinstance(views, list | tuple):
        return [_words_of_today(view) for view in views]
    return view_of_today(views) if isinstance(views, str) else views
