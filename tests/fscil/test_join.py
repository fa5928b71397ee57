"""Learners of different backbones, joined by label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from faverage.fscil import FewShotLearner, join
from helpers_learner import World

NARROW = 20  # columns of the second learner's features


def pair(first: list[int], second: list[int]) -> tuple[Any, Any, Any, World]:
    world = World(noise=0.3)
    a = FewShotLearner().learn_session(*world.draw(first, 5))
    X, y = world.draw(second, 5)
    b = FewShotLearner().learn_session(X[:, :NARROW], y)
    return join(a, b), a, b, world


def both(X: np.ndarray) -> list[np.ndarray]:
    return [X, X[:, :NARROW]]


def test_joined_learners_know_the_classes_of_all() -> None:
    joined, a, b, world = pair([0, 1, 2], [2, 3, 4])
    assert joined.classes == [0, 1, 2, 3, 4]
    X, y = world.draw(range(5), 30)
    p = joined.predict_proba(both(X))
    assert p.shape == (150, 5) and np.allclose(p.sum(1), 1, atol=1e-5)
    assert (joined.predict(both(X)) == y).mean() > 0.9
    shares = joined.shares(both(X))
    assert np.allclose(shares.sum(1), 1) and shares[y < 2, 0].mean() > 0.8 and shares[y > 2, 1].mean() > 0.8
    expected = np.zeros((150, 5))
    expected[:, :3] += shares[:, :1] * a.predict_proba(X)
    expected[:, 2:] += shares[:, 1:] * b.predict_proba(X[:, :NARROW])
    assert np.allclose(p, expected)


def test_what_none_of_them_knows_is_none_of_these() -> None:
    joined, a, b, world = pair([0, 1, 2], [2, 3, 4])
    X, _ = world.draw(range(5), 20)
    strange, _ = World(77).draw(range(10), 10)
    largest = np.maximum(a.familiarity(X), b.familiarity(X[:, :NARROW]))
    assert np.array_equal(joined.familiarity(both(X)), largest)
    known, unknown = (joined.predict(both(x), unknown=0.05) for x in (X, strange))
    assert np.mean([c is None for c in known]) < 0.15 and np.mean([c is None for c in unknown]) > 0.5
    with pytest.raises(ValueError, match="unknown must be a rate"):
        joined.predict(both(X), unknown=2)


def test_verbs_reach_every_learner_that_knows_the_class() -> None:
    joined, a, b, world = pair([0, 1, 2], [2, 3, 4])
    X, _ = world.draw([7], 5)
    joined.learn_session(both(X), ["n"] * 5).rename(2, "two").forget(3)
    assert a.classes == [0, 1, "two", "n"] and b.classes == ["two", 4, "n"]
    joined.undo().undo()
    assert a.classes == [0, 1, 2, "n"] and b.classes == [2, 3, 4, "n"]
    joined.undo()
    assert joined.classes == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="there is nothing to undo"):
        joined.undo()


def test_learners_that_cannot_both_go_back_stay_as_they_are() -> None:
    joined, a, b, world = pair([0, 1], [2, 3])
    joined.learn_session(both(world.draw([7], 4)[0]), ["n"] * 4)
    for k in range(20):  # only the second learner has so much to undo that the session is out of its reach
        joined.rename(b.classes[0], f"name {k}")
    for _ in range(20):
        joined.undo()
    with pytest.raises(ValueError, match="there is nothing to undo"):
        joined.undo()
    assert a.classes == [0, 1, "n"] and b.classes == [2, 3, "n"]


def test_a_lesson_that_one_of_them_refuses_changes_none() -> None:
    joined, a, b, world = pair([0, 1, 2], [2, 3, 4])
    X, _ = world.draw([7], 3)
    broken = both(X)
    broken[1] = broken[1] * np.nan
    with pytest.raises(ValueError, match="finite"):
        joined.learn_session(broken, ["n"] * 3)
    assert a.classes == [0, 1, 2] and b.classes == [2, 3, 4]
    with pytest.raises(ValueError, match="there is nothing to undo"):
        joined.undo()


def test_what_cannot_be_joined() -> None:
    joined, a, _, world = pair([0, 1, 2], [2, 3, 4])
    X, _ = world.draw([0], 2)
    for call, words in (
        (lambda: join(a), "at least two learners"),
        (lambda: join(a, FewShotLearner()), "a learner knows no class yet"),
        (lambda: joined.predict([X]), "what each of the 2 learners takes"),
        (lambda: joined.forget("nobody"), "class 'nobody' is not known"),
        (lambda: joined.rename("nobody", "n"), "class 'nobody' is not known"),
        (lambda: joined.rename(0, 4), "class 4 is known already"),
        (lambda: join(a, FewShotLearner().learn_session(X, ["z"] * 2)).forget("z"), "a learner knows nothing but 'z'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
