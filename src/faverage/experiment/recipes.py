"""Settings that a data set wants, and those of the recipe ``best``."""

from __future__ import annotations

from typing import Any

__all__ = ["BEST", "BEST_OF", "RECIPES", "recipe_of"]

# settings of the base session, where a data set wants others than the defaults
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"backbone": "tiny", "epochs": 20, "batch_size": 64, "lr": 0.05, "flip": False},
    "mini-imagenet": {"crop": 64, "epochs": 100},
    "tiered-imagenet": {"crop": 64, "epochs": 100},
    "cifar100": {"backbone": "resnet18_small"},
    "cub200": {"backbone": "resnet18_large", "lr": 0.01},
    "fgvc-aircraft": {"backbone": "resnet18_large", "lr": 0.01},
}

# laid over them by ``--recipe best``
BEST: dict[str, Any] = {
    "turned": True,
    "views": ["plain", "turn-1", "turn-2", "turn-3"],
    "batch_size": 64,
    "calibration": 0.2,
    "balance": 2.0,
    "methods": ["prototypes", "arithmetic", "geometric", "log-pool", "logistic", "afa"],
}

# and over those, where a data set wants others
BEST_OF: dict[str, dict[str, Any]] = {"mini-imagenet": {"epochs": 150}, "tiered-imagenet": {"epochs": 150}}


def recipe_of(dataset: str, recipe: Any) -> dict[str, Any]:
    """Return the settings that lie over the defaults and under what a person gives."""
    usual = RECIPES.get(dataset, {})
    return {**usual, **BEST, **BEST_OF.get(dataset, {})} if recipe == "best" else usual
