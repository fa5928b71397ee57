"""What a finished run left for others to use: its settings and its trained backbone."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from faverage.experiment.config import ConfigError, RunConfig
from faverage.experiment.given import DROPPED, of_today
from faverage.experiment.run import digest
from faverage.storage import read_json

__all__ = ["finished_run"]


def finished_run(out: Path) -> tuple[RunConfig, Path]:
    """Return the settings of the run in ``out``, for its first seed and network, and the file of its base session.

    Raises:
        ConfigError: there is no finished run, or none that trained a backbone.
    """
    file = out / "results.json"
    try:
        results = read_json(file)
        given = of_today({name: v for name, v in results["config"].items() if name not in DROPPED})
        given["dataset"] = results["config"]["dataset"]  # never the default
        versions = results["versions"]
        known = {f.name for f in fields(RunConfig)}
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        config = RunConfig(**{name: v for name, v in plain.items() if name in known}).each[0]
        # what counted where and when it ran, such as a GPU, need not be here now
        replace(config, device="auto", weights=None, features=None, tensorboard=None).check()
        # older runs did not tell where their base session is
        work = results.get("work") or digest({**config.base_key(), "versions": versions})
        if not isinstance(work, str) or not re.fullmatch("[0-9a-f]{12}", work):
            raise ValueError(f"work is {work!r:.80}, expected the name of a folder")
    except FileNotFoundError:
        hint = "make one with: faverage run folder --data IMAGES --out DIR"
        raise ConfigError(f"no finished run in {out}: there is no results.json; {hint}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{file} is not of a finished run ({error}): run it again") from None
    if config.features is not None:
        raise ConfigError(f"the run in {out} used ready features and trained no backbone: run it on images instead")
    base = out / "work" / work / "base.safetensors"
    if not base.is_file():
        raise ConfigError(f"the run in {out} has no trained backbone: {base} is missing; run it again")
    return config, base
