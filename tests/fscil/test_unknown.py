"""None of these: a familiarity that is a p-value, whose false alarms are those that were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faverage.fscil import FewShotLearner
from faverage.fscil.unknown import ENOUGH
from helpers_learner import World, learned, taught_views, views_of


def drawn(seed: int, base: int, new: int, shots: int, fuser: str = "afa", noise: float = 0.5) -> Any:
    """A world of its own, and a learner that was taught in it."""
    world = World(seed, base + new, noise)
    learner = FewShotLearner(fuser=fuser)
    if base:
        learner.fit_base(*world.draw(range(base), 60))
    if new:
        learner.learn_session(*world.draw(range(base, base + new), shots))
    return learner, world


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    base=st.sampled_from([0, 0, 3]),
    new=st.integers(1, 4),
    shots=st.integers(1, 6),
    fuser=st.sampled_from(["afa", "prototypes", "arithmetic", "vote"]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_familiarity_is_a_share(seed: int, base: int, new: int, shots: int, fuser: str, scale: float) -> None:
    learner, world = drawn(seed, base, new, shots, fuser)
    X, _ = world.draw(range(base + new), 5)
    strange = np.random.default_rng(seed).normal(size=(20, 24)).astype(np.float32)
    p = learner.familiarity(np.concatenate([X, strange, np.zeros((1, 24), dtype=np.float32)]) * np.float32(scale))
    assert p.shape == (len(X) + 21,) and np.isfinite(p).all() and p.min() >= 0 and p.max() <= 1


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), shots=st.integers(2, 8), n_views=st.integers(1, 2))
def test_of_one_class_familiarity_falls_with_distance(seed: int, shots: int, n_views: int) -> None:
    X, y = views_of([seed % 8], shots, seed, (1.0,) * n_views)
    learner = FewShotLearner().learn_session(X, y)
    away = np.random.default_rng(seed).normal(size=(n_views, 12))
    steps = np.linspace(0, 1, 30)[:, None]
    centres = learner.members.prototypes
    asked = {}
    for (view, centre), direction in zip(centres.items(), away, strict=True):
        c = centre[0] / np.linalg.norm(centre[0])
        across = direction - (direction @ c) * c
        angle = steps * np.pi / 2  # from the direction of the prototype to one at right angles
        asked[view] = np.cos(angle) * c + np.sin(angle) * across / np.linalg.norm(across)
    p = learner.familiarity(asked)
    assert (np.diff(p) <= 1e-9).all() and p[0] > p[-1]


CASES = {  # base classes, new classes, shots, worlds
    "one class": (0, 1, 5, 200),
    "one class of two shots": (0, 1, 2, 200),
    "five classes": (0, 5, 5, 100),
    "thirty classes": (0, 30, 5, 40),
    "base classes": (6, 0, 5, 40),
    "base and new classes": (6, 4, 5, 40),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_false_alarms_are_as_rare_as_was_asked(case: str) -> None:
    """Over many worlds, each with a learner of its own and ten new examples of what it knows."""
    base, new, shots, worlds = CASES[case]
    p = []
    for seed in range(worlds):
        learner, world = drawn(seed, base, new, shots)
        classes = np.random.default_rng(seed).integers(0, base + new, 10)
        p.append(learner.familiarity(world.draw(classes, 1)[0]))
    for rate in (0.05, 0.1):
        alarms, error = (np.array(p) <= rate).mean(), np.sqrt(rate * (1 - rate) / (10 * worlds))  # binomial
        assert rate / 4 < alarms <= rate + 3 * error


def test_strangers_are_less_familiar() -> None:
    learner, world = learned()
    other = World(77)
    known, strange = (
        learner.familiarity(world.draw(range(10), 20)[0]),
        learner.familiarity(other.draw(range(10), 20)[0]),
    )
    assert (known <= 0.05).mean() < 0.12 and (strange <= 0.05).mean() > 0.6
    assert np.median(strange) < 0.1 * np.median(known)


@pytest.mark.parametrize("shots", [5, ENOUGH])
def test_left_out_shots_are_evenly_familiar(shots: int) -> None:
    """What is compared with is left out: new examples are as familiar as the shots, however few there are."""
    found = []
    for seed in range(20 if shots < ENOUGH else 4):
        learner, world = drawn(seed, 0, 3, shots)
        found.append(learner.familiarity(world.draw(range(3), 60)[0]))
    p = np.concatenate(found)
    for share in (0.2, 0.5, 0.8):
        assert abs((p <= share).mean() - share) < 0.1


def test_none_is_answered_where_nothing_fits() -> None:
    learner, world = learned()
    X = np.concatenate([world.draw(range(10), 10)[0], World(77).draw(range(10), 10)[0]])
    p, usual = learner.familiarity(X), learner.predict(X)
    for rate in (0.01, 0.05, 0.3):
        found = learner.predict(X, unknown=rate)
        assert found.dtype == object
        assert [answer is None for answer in found] == (p <= rate).tolist()
        rest = p > rate
        assert found[rest].tolist() == usual[rest].tolist()
    more = [sum(answer is None for answer in learner.predict(X, unknown=rate)) for rate in (0.01, 0.05, 0.3)]
    assert more == sorted(more) and more[0] < more[-1]


@pytest.mark.parametrize("unknown", [0, 1, 0.0, 1.0, -0.05, 5, float("nan"), float("inf"), True])
def test_a_rate_that_is_none(unknown: Any) -> None:
    learner, world = drawn(0, 0, 2, 5)
    with pytest.raises(ValueError, match="unknown must be a rate between 0 and 1"):
        learner.predict(world.draw([0], 2)[0], unknown=unknown)


def test_single_shots_say_nothing_about_how_examples_vary() -> None:
    learner, world = drawn(0, 0, 3, 1)
    strange = World(77).draw(range(10), 3)[0]
    assert (learner.familiarity(strange) == 1).all()
    assert not any(answer is None for answer in learner.predict(strange, unknown=0.05))
    learner.learn_session(*world.draw([0], 4))  # one class with several is enough for all
    assert learner.familiarity(strange).max() < 1


def test_all_views_count() -> None:
    learner = taught_views()
    X, _ = views_of(list(range(8)), 20, 9)
    usual = learner.familiarity(X)
    strange = {**X, "view 1": np.abs(np.random.default_rng(0).normal(size=X["view 1"].shape)) * 2}
    assert (learner.familiarity(strange) < usual).mean() > 0.8


def test_more_shots_of_a_class_make_its_examples_more_familiar() -> None:
    """A class that was taught by examples of one kind learns of another: it is familiar from then on."""
    world = World()
    learner = FewShotLearner().learn_session(*world.draw([0, 1, 2], 5))
    other, _ = world.draw([7], 30)
    before = learner.familiarity(other)
    after = learner.learn_session(world.draw([7], 5)[0], [2] * 5).familiarity(other)
    assert np.median(after) > 5 * np.median(before)
