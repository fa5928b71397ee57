"""What a sweep is made of: the settings of a YAML file, every combination of options, and the tasks that they need."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from faverage.experiment.code import base_code, digest, record_code, versions
from faverage.experiment.config import RIVAL_METHODS, SETTINGS, ConfigError, RunConfig, read_yaml
from faverage.registry import outside

__all__ = ["Cell", "Plan", "Task", "label_of", "value_of"]

_DEFAULTS: dict[str, Any] = {name: one.default for name, one in SETTINGS.items()}
# base training and extraction do not read them
_LATE = tuple(name for name, one in SETTINGS.items() if one.stage == "after")
_OF_RIVALS = tuple(name for name, one in SETTINGS.items() if one.stage == "rivals")
_NOT_OF_RIVALS = tuple(name for name, one in SETTINGS.items() if not one.rivals)
_FIXED = {
    **dict.fromkeys(
        ("methods", "seed", "seeds", "draws"), "it stands beside 'over': methods x seeds x draws x options"
    ),
    **dict.fromkeys(("dataset", "data", "features"), "a sweep is of one data set: make a sweep of each"),
}


@dataclass(frozen=True)
class Task:
    """One piece of work for one process; what it gives depends on nothing else.

    Attributes:
        key: a hash of all that it depends on.
        kind: ``base`` trains a base session and extracts features, ``rival`` trains a rival's own; ``run`` is one
            method with one draw.
        config: with one method and one seed.
        folder: name of the work folder.
        draw: of the shots.
        needs: key of the task that has to be done before.
        shared: name of the work folder with the features of the base session.
    """

    key: str
    kind: Literal["base", "rival", "run"]
    config: RunConfig
    folder: str
    draw: int = 0
    needs: str | None = None
    shared: str | None = None

    @property
    def method(self) -> str:
        """The one method."""
        return self.config.methods[0]


@dataclass(frozen=True)
class Cell:
    """One method with one combination of options.

    Attributes:
        options: by name.
        method: its name.
        runs: keys of its runs, by seed and draw; cells that differ in what the method does not read share them.
    """

    options: dict[str, Any]
    method: str
    runs: dict[tuple[int, int], str]


@dataclass(frozen=True)
class Plan:
    r"""A whole sweep: every method with every combination of options, seed and draw, and what they need before.

    Attributes:
        config: what all runs share.
        over: values of each option.
        cells: every combination of options with every method.
        tasks: by key; what others need comes first.
        versions: of what computes.

    >>> import tempfile
    >>> text = "dataset: digits\nmethods: [prototypes, afa]\nseeds: [0, 1, 2]\nover:\n  epochs: [5, 10]\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "sweep.yaml")
    ...     _ = file.write_text(text)
    ...     plan = Plan.read(file)
    >>> [(cell.method, cell.options["epochs"], len(cell.runs)) for cell in plan.cells]
    [('prototypes', 5, 3), ('afa', 5, 3), ('prototypes', 10, 3), ('afa', 10, 3)]
    >>> len(plan.runs), len(plan.tasks)  # six base sessions, which methods share, come before them
    (12, 18)
    """

    config: RunConfig
    over: dict[str, list[Any]]
    cells: list[Cell]
    tasks: dict[str, Task]
    versions: dict[str, str]

    @property
    def runs(self) -> list[Task]:
        """The tasks that give results."""
        return [task for task in self.tasks.values() if task.kind == "run"]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs of each cell."""
        return self.config.seeds or (self.config.seed,)

    @classmethod
    def read(cls, file: Path) -> Plan:
        """Read a sweep from a YAML file: settings of a run, and ``over``, lists of values by option.

        Raises:
            ConfigError: a setting is invalid; every combination is checked.
        """
        settings = read_yaml(file)
        over = _over(settings.pop("over", {}), settings, file)
        config = _config(settings, file)
        if max(config.devices, config.nodes) > 1:
            raise ConfigError(f"{file}: a sweep gives each run one process: leave out devices and nodes")
        if config.class_orders > 1:
            raise ConfigError(f"{file}: a sweep has the official order of the classes: leave out class_orders")
        found, content, tasks, cells = versions(), functools.cache(_content), {}, []
        for values in itertools.product(*over.values()):
            options = dict(zip(over, values, strict=True))
            one = _config({**settings, **options}, file) if options else config
            for method in config.methods:
                runs = {}
                for task in _tasks(one, method, found, content):
                    tasks[task.key] = task
                    if task.kind == "run":
                        runs[task.config.seed, task.draw] = task.key
                cells.append(Cell(options, method, runs))
        ordered = {task.key: task for task in sorted(tasks.values(), key=lambda task: task.kind == "run")}
        return cls(config, over, cells, ordered, found)


def label_of(options: dict[str, Any]) -> str:
    """Return options in words.

    >>> label_of({"epochs": 5, "crop": None, "flip": True}), label_of({})
    ('epochs 5, crop none, flip true', 'as given')
    """
    return ", ".join(f"{name} {value_of(value)}" for name, value in options.items()) or "as given"


def value_of(value: Any) -> str:
    """Return the value of an option in words.

    >>> value_of(["plain", "rotate-90"])
    'plain + rotate-90'
    >>> value_of([{}, {"start": 1, "flip": True}])
    'as given + start 1, flip true'
    """
    if isinstance(value, dict):
        return label_of(value)
    if isinstance(value, list):
        return " + ".join(value_of(one) for one in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _tasks(
    config: RunConfig, method: str, found: dict[str, str], content: Callable[[str | None], str]
) -> Iterator[Task]:
    """Yield the runs of a cell, each after what it needs; options that the method does not read are left out."""
    networks = [one for network in config.each for one in (network, *network.taught, *network.averaged)]
    paths = (config.features, *(one.weights for one in networks))
    rival = method in RIVAL_METHODS
    names = _NOT_OF_RIVALS if rival else _OF_RIVALS
    unread = {name: _DEFAULTS[name] for name in names}
    recipe = {name: getattr(config, name) for name in _OF_RIVALS} if rival else {}
    # a worker may not find the source of what it adopts, and then cannot tell what other code left in the folder
    adopted = {"adopted": record_code(method)} if method in {name for _, name, _ in outside()} else {}
    for seed in config.seeds or (config.seed,):
        one = replace(config, **unread, methods=(method,), seed=seed, seeds=None, jobs=1)
        behind = {"versions": found, "code": base_code(config), "files": [content(path) for path in paths]}
        folder = digest({**one.key(), **behind, **adopted})
        needs = shared = None
        if config.features is None:
            early = replace(one, **{name: _DEFAULTS[name] for name in _LATE})
            if not rival:
                early = replace(early, methods=("prototypes",))
            shared = digest({**early.key(), **behind, **(adopted if rival else {})})
            said = {"work": shared, "spare": config.draws > 1, "rival": rival and method, **recipe}
            needs = f"base-{digest(said)}"
            if early.tensorboard is not None:
                early = replace(early, tensorboard=str(Path(early.tensorboard) / needs))
            yield Task(needs, "rival" if rival else "base", early, shared)
        for draw in range(config.draws):
            own = {"method": method, "draw": draw, **recipe, "code after": record_code(method)}
            key = digest({**one.key(), **behind, **own})
            yield Task(key, "run", one, folder, draw, needs, shared)


def _over(given: Any, settings: dict[str, Any], file: Path) -> dict[str, list[Any]]:
    """Return the options to vary, or say what is wrong with them."""
    if not isinstance(given, dict):
        raise ConfigError(f"{file}: over must hold lists by option, as 'epochs: [5, 10]', got {given!r}")
    varied = [name for name, one in SETTINGS.items() if one.varies]
    for name, values in given.items():
        if name in _FIXED:
            raise ConfigError(f"{file}: over cannot vary '{name}': {_FIXED[name]}")
        if name not in varied:
            raise ConfigError(f"{file}: unknown option '{name}' under over; it can vary: {', '.join(sorted(varied))}")
        if name in settings:
            raise ConfigError(f"{file}: '{name}' stands under over and beside it: leave one out")
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{file}: over: {name} must be a list of values, and not an empty one, got {values!r}")
        said = [json.dumps(value, default=str) for value in values]
        twice = next((one for one in said if said.count(one) > 1), None)
        if twice is not None:
            raise ConfigError(f"{file}: over: {name} has {twice} more than once")
    return given


def _config(settings: dict[str, Any], file: Path) -> RunConfig:
    """Return the settings of a run, with paths that hold in every process."""
    for name, value in settings.items():
        if name not in _DEFAULTS:
            known = ", ".join(sorted([*_DEFAULTS, "over"]))
            raise ConfigError(f"unknown setting '{name}' in {file}; known are: {known}")
        if value is None and _DEFAULTS[name] is not None:
            raise ConfigError(f"{file}: {name} has no value: give one, or leave the line out")
    config = RunConfig.build(settings.get("dataset"), None, settings)
    exact: dict[str, Any] = {name: None for name, value in settings.items() if value is None}
    for name in ("data", "features", "weights", "tensorboard"):
        path = getattr(config, name)
        if path is not None:
            exact[name] = _exact(path)
    exact |= {name: _exact_weights(getattr(config, name)) for name in ("networks", "teachers", "soup")}
    return replace(config, **exact)


def _exact_weights(networks: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return settings of networks, and of those trained for them, with paths that hold in every process."""
    found = []
    for one in networks:
        others: dict[str, Any] = {name: _exact_weights(one[name]) for name in ("teachers", "soup") if name in one}
        found.append({**one, **others, **({"weights": _exact(one["weights"])} if one.get("weights") else {})})
    return tuple(found)


def _content(path: str | None) -> str:
    """Return what stands for what is in a file, which may change under its name."""
    if path is None:
        return ""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # the run will say so
        return ""


def _exact(path: str) -> str:
    return str(Path(path).expanduser().absolute())
