"""What earlier runs left in the work folder: used where it is whole, otherwise said so and made again."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from faverage.vision import BaseModel, CheckpointError

__all__ = ["drop_broken_features", "read_method", "trained"]


def trained(train: Callable[[], BaseModel], checkpoint: Path) -> BaseModel:
    """Train from a checkpoint; one that is broken, or of other images or weights, is set aside and not used."""
    try:
        return train()
    except CheckpointError as error:
        aside = checkpoint.with_name(checkpoint.name + ".old")
        checkpoint.replace(aside)
        reason = " ".join(str(error).split()).partition(". Give another path")[0].partition("; give another path")[0]
        reason = re.sub(r"fingerprint\.(\w+) is \w+ there and \w+ here", r"it saw other \1", reason)
        reason = reason.replace("other start", "other first weights")
        warnings.warn(f"base training starts anew: {reason}; that file is now {aside.name}", stacklevel=2)
        return train()


def drop_broken_features(cache: Path) -> None:
    """Remove features whose file or manifest is cut off or unreadable; ``extract_features`` then starts anew."""
    manifest, partial = cache.with_name(cache.name + ".json"), cache.with_name(cache.name + ".partial")
    files = [path for path in (cache, partial, manifest) if path.exists()]
    if not files:
        return
    try:
        shape = json.loads(manifest.read_text(encoding="utf-8"))["key"]["shape"]
        found = [list(np.load(path, mmap_mode="r", allow_pickle=False).shape) for path in files if path != manifest]
        reason = "" if all(one == shape for one in found) else f"shape {found}, expected {shape}"
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
    if reason:
        warnings.warn(f"{cache} is broken ({reason}); the features are computed again", stacklevel=2)
        for path in files:
            path.unlink()


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
