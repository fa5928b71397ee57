"""What training starts from: given weights, and what earlier runs left, used where it is whole, else made again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from faverage.errors import CheckpointError, ConfigError, OtherTrainingError
from faverage.storage import read_checked, write_checked
from faverage.vision import BaseModel, Team, get_backbone, load_weights

__all__ = ["read_left", "trained", "with_weights", "write_left"]


def trained(train: Callable[[], BaseModel], checkpoint: Path, team: Team) -> BaseModel:
    """Train from a checkpoint; one that is broken, or of other images or weights, is set aside and not used."""
    try:
        return train()
    except CheckpointError as error:
        aside = checkpoint.with_name(checkpoint.name + ".old")
        team.first_does(lambda: checkpoint.replace(aside))
        if team.first:
            reason = " ".join(_reason(error).split())
            warnings.warn(f"base training starts anew: {reason}; that file is now {aside.name}", stacklevel=2)
        return train()


def _reason(error: CheckpointError) -> str:
    """Return why a checkpoint is not used; fingerprints that differ are told by what they are of."""
    if not isinstance(error, OtherTrainingError):
        return error.reason
    seen = {"fingerprint.start": "first weights", "fingerprint.images": "images", "fingerprint.labels": "labels"}
    said = [
        f"it saw other {seen[name]}" if name in seen else f"{name} is {there} there and {here} here"
        for name, there, here in error.differences
    ]
    return f"checkpoint {error.what} belongs to another training: {'; '.join(said)}"


def read_left(file: Path, otherwise: str) -> dict[str, Any] | None:
    """Return what ``write_left`` wrote; None where there is nothing, and where it is broken, which is said.

    Args:
        file: in the work folder.
        otherwise: what is done about it, in words.
    """
    try:
        return read_checked(file, key_of(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"{file} is broken ({error}); {otherwise}", stacklevel=3)
        return None


def write_left(file: Path, data: dict[str, Any]) -> None:
    """Write plain data for a later run: it counts there as long as nobody edits it, in this place alone."""
    write_checked(file, data, key_of(file))


def key_of(file: Path) -> str:
    """Return what a file in the work folder is a result of: its name and its folder's stand for that."""
    return f"{file.parent.name}/{file.name}"


def with_weights(backbone: str, file: str, **options: Any) -> nn.Module:
    """Return a backbone that starts from a checkpoint; ConfigError where that is none, or is not of such a backbone."""
    try:
        return load_weights(get_backbone(backbone, **options), Path(file).expanduser())
    except CheckpointError as error:
        expected = "expected a state dict, as .safetensors or written by torch.save"
        raise ConfigError(f"weights: {error.what} is no checkpoint", what="weights", hint=expected) from None
    except ValueError as error:
        raise ConfigError(f"weights: {error}", what="weights") from None
