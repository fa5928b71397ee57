"""What a finished run left for others to use: its settings and its trained backbone."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from faverage.experiment.config import ConfigError, RunConfig
from faverage.experiment.run import digest

__all__ = ["finished_run"]


def finished_run(out: Path) -> tuple[RunConfig, Path]:
    """Return the settings of the run in ``out``, for its first seed and network, and the file of its base session.

    Raises:
        ConfigError: there is no finished run, or none that trained a backbone.
    """
    file = out / "results.json"
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        given: dict[str, Any] = results["config"]
        versions = results["versions"]
        known = {f.name for f in fields(RunConfig)}
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        config = RunConfig(**{name: v for name, v in plain.items() if name in known}).each[0]
    except FileNotFoundError:
        hint = "make one with: faverage run folder --data IMAGES --out DIR"
        raise ConfigError(f"no finished run in {out}: there is no results.json; {hint}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is not of a finished run ({error}): run it again") from None
    if config.features is not None:
        raise ConfigError(f"the run in {out} used ready features and trained no backbone: run it on images instead")
    base = out / "work" / digest({**config.base_key(), "versions": versions}) / "base.safetensors"
    if not base.is_file():
        raise ConfigError(f"the run in {out} has no trained backbone: {base} is missing; run it again")
    return config, base
