"""What earlier runs left in the work folder: used where it is whole, otherwise said so and made again."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faverage.vision import BaseModel, CheckpointError, Team

__all__ = ["read_method", "trained"]


def trained(train: Callable[[], BaseModel], checkpoint: Path, team: Team) -> BaseModel:
    """Train from a checkpoint; one that is broken, or of other images or weights, is set aside and not used."""
    try:
        return train()
    except CheckpointError as error:
        aside = checkpoint.with_name(checkpoint.name + ".old")
        team.first_does(lambda: checkpoint.replace(aside))
        reason = " ".join(str(error).split()).partition(". Give another path")[0].partition("; give another path")[0]
        reason = re.sub(r"fingerprint\.(\w+) is \w+ there and \w+ here", r"it saw other \1", reason)
        reason = reason.replace("other start", "other first weights")
        if team.first:
            warnings.warn(f"base training starts anew: {reason}; that file is now {aside.name}", stacklevel=2)
        return train()


def read_method(file: Path, n_sessions: int) -> dict[str, Any] | None:
    """Return the results of a method that an earlier run finished; None where there are none, or they are broken."""
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        whole = {"sessions", "confusion", "history", "explanation"} <= result.keys()
        return result if whole and len(result["sessions"]) == n_sessions else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError):
        warnings.warn(f"{file} is broken; the method is run again", stacklevel=2)
        return None
