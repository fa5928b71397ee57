"""Whether the settings of a run can be: each check names the setting, what was expected and what was found."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faverage.errors import ConfigError

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig

__all__ = ["FLOATS", "ConfigError", "as_float", "check_settings"]

_SHARES = {"calibration": True, "mix": True, "smoothing": False, "jitter": False}  # whether 1 itself can be
FLOATS = frozenset({"lr", "threshold", "weight_decay", "temperature", "spread", "balance", *_SHARES})
_WHOLE = {
    "epochs": 1,
    "batch_size": 2,
    "shots": 1,
    "hold_out": 1,
    "draws": 1,
    "stand_ins": 1,
    "jobs": 1,
    "devices": 1,
    "nodes": 1,
    "rival_epochs": 1,
    "seed": 0,
    "start": 0,
    "crop": 8,
}
_MOST = {"seed": 2**32 - 1, "start": 2**32 - 1, "crop": 1024}
_OPTIONAL = {"crop", "rival_epochs", "temperature", "data", "features", "weights", "tensorboard"}


def as_float(value: Any) -> Any:
    """Return text such as ``1e-3``, which YAML does not take for a number, as a number; anything else as it is.

    >>> as_float("1e-3"), as_float("much")
    (0.001, 'much')
    """
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def check_settings(config: RunConfig) -> None:
    """Raise ConfigError where a setting cannot be."""
    for name, least in _WHOLE.items():
        value, most = getattr(config, name), _MOST.get(name, 2**31 - 1)
        if value is None and name in _OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            unit = " pixels" if name == "crop" else ""
            large = isinstance(value, int) and value > most
            upper = f" and at most {most}" if name in _MOST or large else ""
            found = f"a number of {value.bit_length()} bits" if large and value.bit_length() > 512 else repr(value)
            raise ConfigError(f"{name} must be a whole number of at least {least}{upper}{unit}, got {found}")
    for name in sorted(FLOATS):
        value = getattr(config, name)
        if value is None and name in _OPTIONAL:
            continue
        zero = name == "weight_decay" or name in _SHARES
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and not zero):
            raise ConfigError(f"{name} must be a number {'>=' if zero else '>'} 0, got {value!r}")
        if name in _SHARES and (value > 1 or (value == 1 and not _SHARES[name])):
            raise ConfigError(f"{name} must be a number from 0 to {'1' if _SHARES[name] else 'below 1'}, got {value!r}")
    for name in ("flip", "turned"):
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"{name} must be true or false, got {getattr(config, name)!r}")
    _check_views(config)
    if config.schedule not in ("cosine", "paper"):
        raise ConfigError(f"schedule must be 'cosine' or 'paper', got {config.schedule!r}")
    for name in ("data", "features", "weights", "tensorboard"):
        value = getattr(config, name)
        if value is not None and (not isinstance(value, str) or not value or not _is_plain(value)):
            raise ConfigError(f"{name} must be a path, got {value!r}")
    _check_backbone(config)
    _check_device(config)
    if config.tensorboard is not None:
        _check_tensorboard(config.tensorboard)


def _is_plain(path: str) -> bool:
    """Return whether a path can be opened and written down."""
    return "\0" not in path and path == path.encode(errors="replace").decode()


def _check_views(config: RunConfig) -> None:
    from faverage.experiment.ready import file_views
    from faverage.vision import get_views

    ready = Path(config.features) if isinstance(config.features, str) and config.features else None
    if ready is not None:
        if config.networks:
            raise ConfigError("networks need images, and --features has none: leave one out")
        if file_views(ready) is not None:  # the names are its own
            return
    try:
        get_views(config.views)
    except ValueError as error:
        raise ConfigError(f"views: {error}") from None
    if ready is not None and config.many:
        raise ConfigError(
            f"views and turned need images or a file of features with views, and {ready} has none: "
            "write one with --save-features, or leave them out"
        )


def _check_backbone(config: RunConfig) -> None:
    from faverage.vision import backbone_names

    if config.backbone not in backbone_names():
        raise ConfigError(f"unknown backbone {config.backbone!r}; known are: {', '.join(backbone_names())}")
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
