"""What a method costs: passes and operations for an image, seconds of the base session and of a later one."""

from types import SimpleNamespace
from typing import Any

import pytest

from faverage.experiment import RunConfig
from faverage.experiment.run import costs_of, flops
from faverage.rivals import get_rival

# TinyNet of 128 features at 8 px: 3x3 convolutions at 8, 4, 2 and 1 px, two operations for each product
TINY = 2 * 9 * (64 * 3 * 64 + 16 * 64 * 64 + 4 * 64 * 64 + 64 * 128)
RESULT = {"sessions": [{}, {"learn_seconds": 1.0}, {"learn_seconds": 2.0}], "base": {"seconds": 0.5}}


def costs(method: str, views: list[str], images: bool = True, **result: Any) -> dict[str, Any]:
    config = RunConfig.build("digits", None, {"views": views} if images else {})
    trained = {"seconds": 10.0, "features_seconds": 2.0} if images else None
    features: Any = SimpleNamespace(views=dict.fromkeys(views), base=trained, networks=None)
    pictures: Any = SimpleNamespace(transform=SimpleNamespace(size=8)) if images else None
    return costs_of(method, RESULT | result, config, features, pictures)


def test_operations_by_hand() -> None:
    assert flops("tiny", 8) == TINY
    assert flops("resnet18_large", 224) == pytest.approx(2 * 1.814e9, rel=0.001)  # 1.814 billion, as is well known


def test_a_fuser_looks_with_every_view_and_one_member_with_its_own() -> None:
    views = ["both", "rotate-90", "both, rotate-180"]
    afa = costs("afa", views)
    assert afa == {"passes": 5, "flops": 5 * TINY, "base_seconds": 12.5, "session_seconds": 1.5}
    assert costs("prototypes", views)["passes"] == 2


def test_features_from_a_file_have_no_operations() -> None:
    found = costs("afa", ["network 1: both", "mine"], images=False)
    assert found == {"passes": 3, "flops": None, "base_seconds": None, "session_seconds": 1.5}
    assert costs("afa", ["plain"], images=False, sessions=[{}])["session_seconds"] is None


def test_a_rival_has_a_network_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fact = costs("fact", ["plain"])
    assert fact == {"passes": 1, "flops": TINY, "base_seconds": 0.5, "session_seconds": 1.5}
    monkeypatch.setattr(get_rival("fact"), "passes", lambda recipe: 2)
    assert (costs("fact", ["plain"])["passes"], costs("fact", ["plain"])["flops"]) == (2, 2 * TINY)
