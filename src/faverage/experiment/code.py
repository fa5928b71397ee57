"""What a stored result depends on: settings, versions, and the code whose edit means to compute it again."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faverage.code import code_fingerprint

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig

__all__ = [
    "base_code",
    "digest",
    "features_code",
    "features_folder",
    "method_code",
    "record_code",
    "sweep_code",
    "versions",
    "work_folder",
]

_FEATURES = ("faverage.experiment.base", "faverage.features", "faverage.data")


def base_code(config: RunConfig) -> str:
    """Return what stands for the code of base training and extraction; empty where a run has ready features.

    That of data sets is not part of it: checkpoints and features know the images that they are of.
    """
    from faverage.vision.backbones import BACKBONES

    if config.features is not None:
        return ""
    home = BACKBONES.get(config.backbone).__module__
    registered = [] if home.partition(".")[0] == "faverage" else [home]
    return code_fingerprint("faverage.vision.training", "faverage.vision.feature_store", *registered)


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    import sklearn
    import torch

    from faverage import __version__

    return {
        "faverage": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }


def digest(data: dict[str, Any]) -> str:
    """Return the name of the work folder of these settings."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def work_folder(config: RunConfig, work: Path, order: int = 0) -> Path:
    """Return the folder for what depends on the settings of base training; networks have folders of their own."""
    key = {**config.base_key(), "versions": versions(), "code": base_code(config)}
    return work / digest({**key, "order": order} if order else key)


def features_folder(config: RunConfig, folder: Path) -> Path:
    """Return where a network's folder has its features; with several draws those of spare examples are among them."""
    return folder / ("features" if config.draws == 1 else "features-with-spare")


def features_code() -> str:
    """Return what stands for the code between a data set and what methods see of it."""
    return code_fingerprint(*_FEATURES)


def method_code(method: str) -> str:
    """Return what stands for the code that takes a method, of faverage or registered by others, through sessions."""
    return code_fingerprint(*_modules(method))


def record_code(method: str) -> str:
    """Return what stands for all code behind a run of a sweep."""
    return code_fingerprint(*_FEATURES, "faverage.experiment.sweep.held_out", *_modules(method))


def sweep_code() -> str:
    """Return what stands for all code of a sweep, which must be the same wherever its runs are done."""
    return code_fingerprint("faverage.experiment.sweep.work", "faverage.data", "faverage.fusion", "faverage.rivals")[
        :12
    ]


def _modules(method: str) -> list[str]:
    from faverage.fscil.fusers import method_of
    from faverage.fusion import FUSERS
    from faverage.rivals import RIVALS

    if method in RIVALS:
        return ["faverage.experiment.rivals", RIVALS[method].__module__]
    fuser = method_of(method).fuser
    return [
        "faverage.experiment.fusers",
        *([FUSERS[fuser].__module__] if isinstance(fuser, str) and fuser in FUSERS else []),
    ]
