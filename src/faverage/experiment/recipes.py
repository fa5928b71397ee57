"""Settings that a data set wants, and those of the recipes ``best`` and ``balanced``."""

from __future__ import annotations

from typing import Any

__all__ = ["BALANCED", "BALANCED_OF", "BEST", "BEST_OF", "RECIPES", "recipe_of"]

# settings of the base session, where a data set wants others than the defaults
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"backbone": "tiny", "epochs": 20, "batch_size": 64, "lr": 0.05, "flip": False},
    "mini-imagenet": {"crop": 64, "epochs": 100},
    "tiered-imagenet": {"crop": 64, "epochs": 100},
    "cifar100": {"backbone": "resnet18_small"},
    "cub200": {"backbone": "resnet18_large", "lr": 0.02, "area": 0.25, "head": "cosine", "signed": True},
    "fgvc-aircraft": {"backbone": "resnet18_large", "lr": 0.01},
}

# laid over them by ``--recipe best``: two networks that learn classes and rotations, the second from mixed images
BEST: dict[str, Any] = {
    "rotations": True,
    "views": ["both", "both, rotate-90", "both, rotate-180", "both, rotate-270"],
    "batch_size": 64,
    "networks": [{}, {"mix": 0.5}],
    "calibration": 0.1,
    "balance": 1.5,
    "methods": ["prototypes", "arithmetic", "geometric", "log-pool", "logistic", "afa"],
}

# and over those, where a data set wants others
_TURNS = ("both", "both, rotate-90", "both, rotate-180", "both, rotate-270")
_LONG: dict[str, Any] = {
    **{"crop": 80, "progressive": [40, 48, 64], "test_size": 108, "epochs": 130},
    "networks": [{}, {"mix": 0.5, "epochs": 110}],
    **{"whiten": 0.6, "calibration": 0.3},
    "views": [view for turn in _TURNS for view in (turn, f"{turn}, largest")],
}
# photos from trained weights: rotations and a gentle rate, the usual network beside it, and what it started from
_ROTATED: dict[str, Any] = {"lr": 0.01, "weight_decay": 1e-4, "epochs": 50}
_CLASSES: dict[str, Any] = {"rotations": False, "batch_size": 128, "lr": 0.02}
_FROM_WEIGHTS: dict[str, Any] = {
    "networks": [
        _ROTATED,
        {**_CLASSES, "views": ["both", "both, largest"]},
        {"rotations": False, "signed": False, "epochs": 0, "views": ["both", "both, largest"]},
    ],
    "test_size": 288,
    "learn_from": ["both", "both, zoom-0.85"],
    "whiten": 0.8,
    "hold_out": 3,
    "calibration": 0.0,
    "balance": 0.75,
    "balance_of": "kinds",
}
# where an image may take a pass or three: a network that two briefly trained ones teach what they see in all rotations
_STUDENT: dict[str, Any] = {
    **{"whiten": None, "calibration": 0.1},
    "networks": [
        {
            **{"signed": True, "mix": 0.5, "lr": 0.05, "epochs": 56, "views": ["both", "largest"]},
            **{"crop": 64, "progressive": [], "test_size": None},
            "teachers": [{"mix": 0.0, "lr": 0.1, "epochs": 40}, {"lr": 0.1, "epochs": 40}],
        }
    ],
}
# and from trained weights: both of the networks above, others like them and what they started from, as one
_BRIEF: dict[str, Any] = {"rotations": False, "area": 0.08, "lr": 0.01, "weight_decay": 1e-4, "epochs": 40}
_SOUP: dict[str, Any] = {
    "networks": [
        {
            "soup": [_ROTATED, {**_ROTATED, "start": 1}, _CLASSES, _BRIEF, {**_BRIEF, "start": 1}],
            **{"retain": 0.3, "views": ["both", "both, largest", "both, covariance", "both, texture", "both, parts"]},
        }
    ]
}
FEW_PASSES: dict[str, dict[str, Any]] = {"mini-imagenet": _STUDENT, "tiered-imagenet": _STUDENT, "cub200": _SOUP}
BEST_OF: dict[str, dict[str, Any]] = {
    "mini-imagenet": _LONG,
    "tiered-imagenet": _LONG,
    "cub200": _FROM_WEIGHTS,
}

# and over those by ``--recipe balanced``, where all base and all new classes count alike
BALANCED: dict[str, Any] = {"balance": 1.0, "balance_of": "kinds"}
# and over that, where base classes held out as new have a better harmonic mean with others
_NEW_MORE: dict[str, Any] = {"balance": 2.0}
BALANCED_OF: dict[str, dict[str, Any]] = {"mini-imagenet": _NEW_MORE, "tiered-imagenet": _NEW_MORE}

AFTER_FEATURES = ("calibration", "balance", "balance_of", "methods")


def recipe_of(
    dataset: str, recipe: Any, *, ready: bool = False, weights: bool = False, passes: Any = None
) -> dict[str, Any]:
    """Return the settings that lie over the defaults and under what a person gives.

    Args:
        dataset: its name.
        recipe: ``best``, ``balanced``, or another.
        ready: whether features are given: then there is no base session to have settings.
        weights: whether networks start from weights that are given; without, none is left as it starts, and none is the
            mean of others.
        passes: of a backbone, that an image may take; None: any number.
    """
    usual = RECIPES.get(dataset, {})
    if recipe not in ("best", "balanced"):
        return usual
    best = {**BEST, **BEST_OF.get(dataset, {}), **(FEW_PASSES.get(dataset, {}) if passes in (1, 2, 3) else {})}
    if recipe == "balanced":
        best |= {**BALANCED, **BALANCED_OF.get(dataset, {})}
    if ready:
        return {**usual, **{name: best[name] for name in AFTER_FEATURES if name in best}}
    networks = [network for network in best["networks"] if weights or network.get("epochs", 1)]
    if not weights:
        networks = [{k: v for k, v in network.items() if k not in ("soup", "retain")} for network in networks]
    return {**usual, **best, "networks": networks}
