"""The members of a learner: which there are, what they know, and what they say of an example that is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from faverage.fscil import FewShotLearner
from faverage.fscil.heads import unit
from faverage.fscil.members import USUAL_TEMPERATURE, Members
from helpers_learner import World, learned, views_of


def test_members_of_views_and_of_sessions() -> None:
    known = learned("prototypes")[0].known
    views, sessions = Members(known, "views", ridge=0.1), Members(known, "sessions", ridge=0.1)
    assert views.names == ["base head", "prototypes", "ridge"]
    assert sessions.names == ["base head", "session 1", "session 2", "session 3"]
    assert [member.kind for member in sessions.members] == ["base", *["prototypes"] * 3]
    assert [len(member.classes) for member in sessions.members] == [6, 8, 9, 10]
    only = Members(known, "sessions", scope="session")
    assert [member.classes.tolist() for member in only.members[1:]] == [[6, 7], [8], [9]]
    X = known.views["plain"][:7]
    for members in (views, sessions, only):
        scores = members.scores({"plain": X})
        assert scores.shape == (7, len(members.names), 10) and scores.dtype == np.float32
        for k, member in enumerate(members.members):
            assert np.isfinite(scores[:, k, member.classes]).all()
            assert np.isnan(np.delete(scores[:, k], member.classes, axis=1)).all()
        assert np.allclose(np.nansum(scores, 2), 1, atol=1e-5)


def test_members_without_a_base_session() -> None:
    X, y = views_of([0, 1, 2], 4, 0)
    known = FewShotLearner().learn_session(X, y).known
    assert Members(known, "views").names == ["view 0, prototypes", "view 1, prototypes"]
    assert Members(known, "sessions").names == ["view 0, session 1", "view 1, session 1"]


def test_the_base_heads_of_two_models_are_two_members() -> None:
    first, second = (
        FewShotLearner().fit_base(*World(seed).draw(classes, 40)) for seed, classes in ((0, [0, 1, 2]), (1, [2, 3]))
    )
    first.merge(second)
    assert first.members.names == ["base head", "base head 2", "prototypes", "ridge"]
    scores = first.member_scores(World(2).draw([0], 3)[0])
    assert np.isnan(scores[:, 0, 3]).all() and np.isnan(scores[:, 1, :2]).all() and np.isfinite(scores[:, 2:]).all()


def test_a_member_that_is_missing_is_named() -> None:
    known = FewShotLearner().learn_session(*World().draw([0, 1], 3)).known
    assert Members(known, "views").place("prototypes") == 0
    with pytest.raises(ValueError, match="there is no base head: only a learner with a base session has one"):
        Members(known, "views").place("base")


@pytest.mark.parametrize("calibration", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["views", "sessions"])
def test_a_shot_that_is_left_out_is_scored_as_if_it_had_not_been_there(kind: Any, calibration: float) -> None:
    X, y = views_of([0, 1, 2, 3], 90, 0)
    new, labels = views_of([4, 5], 5, 1)
    base = FewShotLearner().fit_base(X, y)
    known = base.known.taught(new, labels.tolist())
    options: dict[str, Any] = {"calibration": calibration, "temperature": 16.0}
    members = Members(known, kind, **options)
    rows = np.flatnonzero(known.shot)
    scores = members.scores({view: x[rows] for view, x in known.views.items()}, (rows, known.labels[rows]))
    for i in range(10):
        rest = np.arange(10) != i
        without = base.known.taught({view: x[rest] for view, x in new.items()}, labels[rest].tolist())
        said = Members(without, kind, **options).scores({view: x[i : i + 1] for view, x in new.items()})
        assert np.allclose(said[0], scores[i], atol=1e-5, equal_nan=True)


def test_more_of_a_base_class_is_left_out_too() -> None:
    X, y = views_of([0, 1, 2], 60, 0)
    base = FewShotLearner().fit_base(X, y).known
    more, labels = views_of([1], 3, 1)
    known = base.taught(more, labels.tolist())
    members = Members(known, "views", temperature=16.0)
    rows = np.flatnonzero(known.shot)
    scores = members.scores(more, (rows, known.labels[rows]))
    without = base.taught({view: x[1:] for view, x in more.items()}, labels[1:].tolist())
    said = Members(without, "views", temperature=16.0).scores({view: x[:1] for view, x in more.items()})
    assert np.allclose(said[0], scores[0], atol=1e-5, equal_nan=True)


def test_rows_that_are_not_left_out_are_scored_as_usual() -> None:
    learner, world = learned()
    X, y = world.draw([0, 6, 9], 4)
    nothing = np.full(len(y), -1)
    usual = learner.members.scores({"plain": X})
    assert np.array_equal(learner.members.scores({"plain": X}, (nothing, y)), usual, equal_nan=True)
    known = learner.known
    rows = np.flatnonzero(known.shot)[:2]
    mixed = np.array([-1, rows[0], -1, rows[1]])
    views = {"plain": np.stack([X[0], known.views["plain"][rows[0]], X[4], known.views["plain"][rows[1]]])}
    labels = np.array([0, known.labels[rows[0]], 6, known.labels[rows[1]]])
    scores = learner.members.scores(views, (mixed, labels))
    assert np.allclose(scores[[0, 2]], usual[[0, 4]], atol=1e-6, equal_nan=True)
    for i in (1, 3):  # less sure of the class, without the example
        assert (scores[i, 1:, labels[i]] < learner.members.scores(views)[i, 1:, labels[i]]).all()


def test_what_was_held_out_is_no_part_of_its_prototype() -> None:
    learner, _ = learned(ridge=None)
    known = learner.known
    rows = np.flatnonzero(~known.shot)
    views = {"plain": known.views["plain"][rows]}
    left_out = learner.members.scores(views, (rows, known.labels[rows]))
    assert np.array_equal(left_out, learner.members.scores(views), equal_nan=True)


def test_temperature_is_learned_from_what_is_there() -> None:
    world = World()
    narrow, wide = (
        FewShotLearner().learn_session(*World(0, noise=noise).draw([0, 1, 2], 5)).members.temperatures["plain"]
        for noise in (0.1, 1.5)
    )
    assert narrow > wide  # classes that lie apart are told sharply
    single = FewShotLearner().learn_session(*world.draw([0, 1, 2], 1))
    assert single.members.temperatures["plain"] == USUAL_TEMPERATURE
    assert FewShotLearner().learn_session(*world.draw([0], 5)).members.temperatures["plain"] == USUAL_TEMPERATURE
    fixed = FewShotLearner(temperature=3.0).learn_session(*world.draw([0, 1], 5))
    assert fixed.members.temperatures["plain"] == fixed.members.members[0].head.temperature == 3.0


def test_prototypes_are_those_that_are_known() -> None:
    learner, world = learned()
    X, y = world.draw([6, 7], 3)
    learner.learn_session(X, y)
    means = learner.members.prototypes["plain"]
    assert np.array_equal(means, learner.known.prototypes("plain"))
    rows = learner.known.labels == 6
    assert rows.sum() == 8
    assert np.allclose(means[6], unit(learner.known.views["plain"][rows]).mean(0), atol=1e-6)
