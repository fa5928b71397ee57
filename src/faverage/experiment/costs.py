"""What a method costs: passes of the backbone and operations for one image, seconds of learning."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from faverage.experiment.rivals import rival_recipe
from faverage.fscil.fusers import ALONE
from faverage.rivals import RIVALS, get_rival
from faverage.vision.views import looks

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig
    from faverage.experiment.pictures import Pictures
    from faverage.features import FeatureSet

__all__ = ["costs_of", "flops"]


def costs_of(
    method: str, result: dict[str, Any], config: RunConfig, features: FeatureSet, pictures: Pictures | None
) -> dict[str, float | None]:
    """Return what a method of a run costs, as plain data.

    Args:
        method: its name.
        result: of the method, see ``run_methods``.
        config: of one seed.
        features: what fusers see.
        pictures: the images; None for features from a file.

    Returns:
        ``passes`` of a backbone for one prediction: a fuser's views of all networks, and two for a view of ``both``
        sides; ``flops`` of these passes, heads and fuser apart, None without images; ``base_seconds``, base training,
        features and what the method adds, None for features from a file; and ``session_seconds``, the mean time to
        learn a later session, None where there is none.
    """
    later = [session.get("learn_seconds") for session in result["sessions"][1:]]
    own = (result.get("base") or {}).get("seconds")
    networks = features.networks or ([features.base] if features.base else [])
    if method in RIVALS:
        recipe, wants = rival_recipe(method, config)
        seen = [(wants.get("backbone", config.backbone), get_rival(method).passes(recipe))]
    else:
        views = [(one.backbone, view) for one in config.each for view in one.views] if pictures else []
        views = views or [("", name) for name in features.views]
        seen = [(backbone, looks(name)) for backbone, name in (views[:1] if method in ALONE else views)]
        own = own + sum(n["seconds"] + n["features_seconds"] for n in networks) if own and networks else None
    operations = [n * flops(backbone, pictures.transform.size) for backbone, n in seen] if pictures else None
    return {
        "passes": sum(n for _, n in seen),
        "flops": sum(operations) if operations is not None else None,
        "base_seconds": own,
        "session_seconds": sum(later) / len(later) if later and None not in later else None,
    }


@functools.cache
def flops(backbone: str, side: int) -> int:
    """Return the floating-point operations of a backbone for one image of ``side`` px: two for a multiply and add.

    Convolutions and matrix products count, as ``torch.utils.flop_counter`` has them.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from faverage.vision import get_backbone

    with torch.random.fork_rng(devices=[]), torch.no_grad(), FlopCounterMode(display=False) as counter:
        get_backbone(backbone).eval()(torch.zeros(1, 3, side, side))
    return int(counter.get_total_flops())
