"""What a setting is, declared once beside its default, and whether the settings of a run can be.

Each check names the setting, what was expected and what was found.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from faverage.errors import ConfigError

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig

__all__ = ["ConfigError", "Setting", "as_float", "check_settings", "declared", "setting"]

Stage = Literal["base", "views", "after", "rivals", "none"]


@dataclass(frozen=True)
class Setting:
    """One setting of a run. Its name, default and type are those of the field that it is declared for.

    Attributes:
        default: its value where nobody gives one.
        help: what it means, for documentation and the command line.
        at_least: the least number.
        at_most: the greatest.
        above: every number is greater.
        below: every number is less.
        unit: of the number, in messages.
        path: whether it names a file or folder.
        stage: what reads it first: ``base`` training; ``views``, which is extraction; what comes ``after`` it;
            ``rivals`` alone; or ``none``, where no number of a repeat depends on it.
        of: ``network`` where each network may have its own, and ``run`` otherwise.
        rivals: whether rivals read it, which train networks of their own.
        varies: whether a sweep may vary it.
        option: help of its option on the command line; True: the same; False: there is no option.
        typed: type of the option.
        shown: what is said to be the default, where that is not its value.
        name: of the field.
        kind: type of its values, apart from None; a tuple has the values themselves.
        optional: whether it may be None.
    """

    default: Any
    help: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    unit: str = ""
    path: bool = False
    stage: Stage = "base"
    of: Literal["run", "network"] = "run"
    rivals: bool = True
    varies: bool = True
    option: str | bool = False
    typed: type = str
    shown: str | None = None
    name: str = ""
    kind: Any = None
    optional: bool = False

    def check(self, value: Any) -> None:
        """Raise ConfigError for an invalid value; what is no number, choice or path is checked elsewhere."""
        if value is None and self.optional:
            return
        expected = ""
        if self.kind is int:
            expected = self._whole(value)
        elif self.kind == tuple[int, ...] and self.at_least is not None:
            listed = isinstance(value, list | tuple)
            expected = next(filter(None, map(self._whole, value)), "") if listed else self._whole(None)
            expected = expected and f"a list, each {expected}"
        elif self.kind is float:
            expected = self._number(value)
        elif self.kind is bool and not isinstance(value, bool):
            expected = "true or false"
        elif isinstance(self.kind, tuple) and value not in self.kind:
            *first, last = map(repr, self.kind)
            expected = f"{', '.join(first)} or {last}"
        elif self.path and not (isinstance(value, str) and value and _is_plain(value)):
            expected = "a path"
        if expected:
            large = isinstance(value, int) and value.bit_length() > 512
            found = f"a number of {value.bit_length()} bits" if large else repr(value)
            raise ConfigError(f"{self.name} must be {expected}, got {found}")

    def _whole(self, value: Any) -> str:
        """Return what was expected; nothing where the value is that."""
        assert self.at_least is not None
        most = 2**31 - 1 if self.at_most is None else self.at_most
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and self.at_least <= value <= most:
            return ""
        upper = f" and at most {most}" if self.at_most is not None or (whole and value > most) else ""
        return f"a whole number of at least {self.at_least}{upper}{self.unit}"

    def _number(self, value: Any) -> str:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if self.above is not None and not (number and value > self.above):
            return f"a number > {self.above}"
        if self.at_least is not None and not (number and value >= self.at_least):
            return f"a number >= {self.at_least}"
        if self.at_most is not None and value > self.at_most:
            least = f"from {self.at_least}" if self.above is None else f"above {self.above}, up"
            return f"a number {least} to {self.at_most}"
        if self.below is not None and value >= self.below:
            return f"a number from {self.at_least} to below {self.below}"
        return ""


def setting(default: Any, help: str, **declared: Any) -> Any:
    """Return a field of a dataclass with what is declared about it, see ``Setting``."""
    return field(default=default, metadata={"setting": Setting(default, help, **declared)})


def declared(cls: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name, in order."""
    hints = get_type_hints(cls)
    found = {}
    for one in fields(cls):
        hint = hints[one.name]
        parts = () if get_origin(hint) is tuple else get_args(hint)
        kinds = [kind for kind in parts or (hint,) if kind is not NoneType]
        optional = NoneType in parts
        kind = tuple(kinds) if get_origin(hint) is Literal else kinds[0]
        found[one.name] = replace(one.metadata["setting"], name=one.name, kind=kind, optional=optional)
    return found


def as_float(value: Any) -> Any:
    """Return text such as ``1e-3``, which YAML does not take for a number, as a number; anything else as it is.

    >>> as_float("1e-3"), as_float("much")
    (0.001, 'much')
    """
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def check_settings(config: RunConfig, settings: dict[str, Setting]) -> None:
    """Raise ConfigError where a setting is invalid, alone or beside others."""
    for name, one in settings.items():
        one.check(getattr(config, name))
    _check_views(config)
    _check_backbone(config)
    _check_device(config)
    if config.tensorboard is not None:
        _check_tensorboard(config.tensorboard)


def _is_plain(path: str) -> bool:
    """Return whether a path can be opened and written down."""
    return "\0" not in path and path == path.encode(errors="replace").decode()


def _check_views(config: RunConfig) -> None:
    from faverage.features import file_views
    from faverage.vision import get_views

    ready = Path(config.features) if config.features is not None else None
    if ready is not None:
        if config.networks:
            raise ConfigError("networks need images, and --features has none: leave one out")
        for name in ("whiten", "learn_from"):
            if getattr(config, name):
                raise ConfigError(f"{name} needs images, and --features has none: leave one out")
        if file_views(ready) is not None:  # the names are its own
            return
    try:
        get_views(config.views)
    except ValueError as error:
        raise ConfigError(f"views: {error}") from None
    named = isinstance(config.learn_from, tuple) and all(isinstance(name, str) for name in config.learn_from)
    if not named:
        raise ConfigError(f"learn_from must be a list of names, as [both], got {config.learn_from!r}")
    try:
        looks = get_views(config.learn_from) if config.learn_from else ()
    except ValueError as error:
        raise ConfigError(f"learn_from: {error}") from None
    for look in looks:
        if look.rotation or look.pooled:
            said = "a view is learned from as it is rotated and pooled itself: name sides and zooms alone"
            raise ConfigError(f"learn_from: {said}, got '{look.name}'")
    if ready is not None and config.many:
        raise ConfigError(
            f"views and rotations need images or a file of features with views, and {ready} has none: "
            "write one with --save-features, or leave them out"
        )


def _check_backbone(config: RunConfig) -> None:
    from faverage.vision import backbone_names

    if config.backbone not in backbone_names():
        raise ConfigError(f"unknown backbone {config.backbone!r}; known are: {', '.join(backbone_names())}")
    if not config.epochs and config.weights is None and config.features is None:
        raise ConfigError("epochs: 0 takes a network as its weights are: name some with --weights, or train")
    if config.weights is not None and not Path(config.weights).expanduser().is_file():
        raise ConfigError(
            f"weights: no such file: {config.weights}; expected a checkpoint of {config.backbone}: correct the path, "
            "or leave the setting out to start from fresh weights"
        )


def _check_device(config: RunConfig) -> None:
    import torch

    device = config.device
    if not isinstance(device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got {device!r}")
    if config.features is not None or not device.startswith("cuda"):
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= count:
        found = f"torch sees {count} GPU{'' if count == 1 else 's'} here"
        raise ConfigError(f"device '{device}' was asked for, but {found}: use 'cpu' or 'auto'")


def _check_tensorboard(folder: str) -> None:
    from faverage.vision import check_tensorboard

    try:
        check_tensorboard(folder)
    except ImportError as error:
        raise ConfigError(str(error)) from None
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"tensorboard={folder!r} is a file, expected a folder: name another")
