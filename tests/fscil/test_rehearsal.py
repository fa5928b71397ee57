"""Rehearsal: what the fuser of a learner learns from, how often each class counts, and what stands in for shots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from faverage.fscil import FewShotLearner, Knowledge
from faverage.fscil.heads import unit
from faverage.fscil.rehearsal import Rehearsed, rehearse
from helpers_learner import World, views_of

KINDS = ["left-out", "residual", "shots"]


def rehearsed(known: Knowledge, kind: Any = "left-out", seed: int = 0, **options: Any) -> Rehearsed:
    means = {view: known.prototypes(view) for view in known.views}
    return rehearse(known, kind, means, np.random.default_rng(seed), **options)


def some(base: bool = True, shots: tuple[int, ...] = (5, 5)) -> Knowledge:
    """Classes 4, 5 … of so many shots, on four base classes of 15 held-out examples or on none."""
    learner = FewShotLearner(fuser="prototypes")
    if base:
        learner.fit_base(*views_of([0, 1, 2, 3], 90, 0))
    for k, n in enumerate(shots):
        learner.learn_session(*views_of([4 + k], n, 1 + k))
    return learner.known


@pytest.mark.parametrize("base", [True, False])
def test_shots_are_left_out_of_their_own_class(base: bool) -> None:
    known = some(base)
    found = rehearsed(known)
    assert np.array_equal(found.left_out, np.arange(len(known.labels)))
    assert np.array_equal(found.labels, known.labels)
    assert all(np.array_equal(found.views[view], x) for view, x in known.views.items())


@pytest.mark.parametrize("base", [True, False])
def test_shots_themselves_are_the_papers_rehearsal(base: bool) -> None:
    known = some(base)
    found = rehearsed(known, "shots")
    assert np.array_equal(found.labels, known.labels) and (found.left_out[known.shot] == -1).all()
    assert np.array_equal(found.left_out[~known.shot], np.flatnonzero(~known.shot))


@pytest.mark.parametrize("base", [True, False])
def test_residuals_stand_in_for_all_shots_of_new_classes(base: bool) -> None:
    known = some(base)
    found = rehearsed(known, "residual", stand_ins=30)
    stand_ins = found.left_out == -1
    first = 4 * base
    assert np.bincount(found.labels[stand_ins])[first:].tolist() == [30, 30]
    assert np.array_equal(found.labels[~stand_ins], known.labels[~known.shot])
    one = rehearsed(known.taught(*_listed(views_of([1], 2, 8))), "residual") if base else None
    if one is not None:  # more shots of a base class are rehearsed as they are
        assert (one.labels[one.left_out >= 0] == 1).sum() == 17 and not (one.labels[one.left_out < 0] == 1).any()


def _listed(given: tuple[Any, Any]) -> tuple[Any, list[int]]:
    return given[0], given[1].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [True, False])
def test_every_class_counts_alike(kind: str, base: bool) -> None:
    found = rehearsed(some(base, shots=(5, 2, 3)), kind)
    total = np.bincount(found.labels, found.weight)
    assert found.weight.mean() == pytest.approx(1)
    assert total[total > 0] == pytest.approx(found.weight.sum() / (7 if base else 3))


@pytest.mark.parametrize("kind", KINDS)
def test_balance_is_how_often_new_classes_count(kind: str) -> None:
    found = rehearsed(some(shots=(5, 2)), kind, balance=3.0)
    total = np.bincount(found.labels, found.weight)
    assert total[4:] == pytest.approx(3 * total[0]) and found.weight.mean() == pytest.approx(1)
    kinds = rehearsed(some(shots=(5, 2)), kind, balance=3.0, balance_of="kinds")  # all of them against all of those
    new = some(shots=(5, 2)).session[kinds.labels] > 0
    assert kinds.weight[new].sum() == pytest.approx(3 * kinds.weight[~new].sum())
    without = rehearsed(some(base=False, shots=(5, 2)), kind, balance=3.0)  # there is nothing to balance against
    assert np.bincount(without.labels, without.weight) == pytest.approx(without.weight.sum() / 2)


@pytest.mark.parametrize("base", [True, False])
def test_a_class_of_one_shot_is_rehearsed_by_stand_ins(base: bool) -> None:
    known = some(base, shots=(1, 5))
    found = rehearsed(known)
    first = 4 * base
    assert np.bincount(found.labels)[first:].tolist() == [50, 5]
    assert (found.left_out[found.labels == first] == -1).all() and (
        found.left_out[found.labels == first + 1] >= 0
    ).all()
    assert np.bincount(found.labels, found.weight) == pytest.approx(found.weight.sum() / (first + 2))
    for view in known.views:  # they lie around the only shot, as far as others lie around theirs
        z = unit(found.views[view][found.labels == first])
        centre = known.prototypes(view)[first]
        assert np.linalg.norm(z.mean(0) - centre) < 0.2
        assert 0.05 < np.linalg.norm(z - centre, axis=1).mean() < 1


def test_more_of_a_base_class_needs_no_stand_ins() -> None:
    known = some(shots=(5,)).taught(*_listed(views_of([2], 1, 9)))
    found = rehearsed(known)
    assert (found.left_out >= 0).all() and (found.labels == 2).sum() == 16


def test_where_all_classes_have_one_shot_nothing_can_be_rehearsed() -> None:
    known = some(base=False, shots=(1, 1, 1))
    found = rehearsed(known)
    assert len(found.labels) == len(found.weight) == len(found.left_out) == 0
    assert all(x.shape == (0, known.widths[view]) for view, x in found.views.items())
    assert len(rehearsed(known, "shots").labels) == 3


def test_stand_ins_are_as_wide_as_they_are_asked_to_be() -> None:
    known = some(shots=(1, 5))
    widths = []
    for spread in (0.0, 0.5, 1.0, 2.0):
        found = rehearsed(known, spread=spread)
        x = found.views["view 0"][found.labels == 4]
        length = np.linalg.norm(known.views["view 0"][~known.shot], axis=1).mean()
        widths.append(float(np.linalg.norm(x / length - known.prototypes("view 0")[4], axis=1).mean()))
    assert widths[0] < 1e-5 and np.allclose(widths[1:], np.array([0.5, 1.0, 2.0]) * widths[2], rtol=1e-4)


def test_without_a_base_session_residuals_are_those_of_examples_that_are_no_part_of_the_mean() -> None:
    """The residual of a shot to a mean of n that it is part of is too short, by √((n − 1)/n): stand-ins undo that."""
    world = World(0, noise=0.3)
    X, y = world.draw([0, 1, 2, 3, 4], 5)
    known = FewShotLearner(fuser="prototypes").learn_session(X, y).learn_session(*world.draw([5], 1)).known
    found = rehearsed(known, stand_ins=4000)
    drawn = found.views["plain"][found.labels == 5]
    length = np.linalg.norm(known.views["plain"][known.labels < 5], axis=1).mean()
    squared = ((drawn / length - known.prototypes("plain")[5]) ** 2).sum(1).mean()
    rest = known.labels < 5
    apart = unit(known.views["plain"][rest]) - known.prototypes("plain")[known.labels[rest]]
    assert squared == pytest.approx(2 * (apart**2).sum(1).mean() * 5 / 4, rel=0.1)  # r_0 − r_1, both of full length


def test_the_same_seed_draws_the_same() -> None:
    known = some(shots=(1, 5))
    first, again, other = (rehearsed(known, seed=seed).views["view 0"] for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
