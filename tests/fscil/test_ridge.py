"""The member that sees all views: ridge regression, with every example left out in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from faverage.fscil import ViewLearner
from faverage.fscil.heads import _dual, _primal, fit_ridge, side_by_side
from faverage.fusion.pools import LogPool

PENALTY = 0.1


def drawn(n: int, widths: tuple[int, ...] = (6, 4), n_classes: int = 3, seed: int = 0) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    centres = np.random.default_rng(1).normal(size=(n_classes, sum(widths)))
    X = centres[y] + 0.7 * rng.normal(size=(n, sum(widths)))
    return np.split(X, np.cumsum(widths)[:-1], axis=1), y


@pytest.mark.parametrize("n", [8, 25])
def test_left_out_is_what_a_fit_without_the_example_says(n: int) -> None:
    views, y = drawn(n)
    z, target, v = side_by_side(views), np.eye(3)[y], np.linspace(0.5, 1.5, n)
    assert np.allclose(np.linalg.norm(z, axis=1), 1)
    weight, bias, left_out = (_dual if n <= 10 else _primal)(z, target, v, PENALTY)
    whole = Ridge(alpha=PENALTY).fit(z, target, sample_weight=v)
    assert np.allclose(weight, whole.coef_) and np.allclose(bias, whole.intercept_)
    for i in range(n):
        rest = np.arange(n) != i
        without = Ridge(alpha=PENALTY).fit(z[rest], target[rest], sample_weight=v[rest])
        assert np.allclose(without.predict(z[i : i + 1])[0], left_out[i])


def test_both_ways_to_solve_agree() -> None:
    views, y = drawn(12)
    z, target, v = side_by_side(views), np.eye(3)[y], np.linspace(0.5, 1.5, 12)
    for a, b in zip(_dual(z, target, v, PENALTY), _primal(z, target, v, PENALTY), strict=True):
        assert np.allclose(a, b)


def test_the_head_knows_its_classes_and_is_less_sure_of_what_it_has_not_seen() -> None:
    views, y = drawn(60)
    head, left_out = fit_ridge(views, y, 3, PENALTY)
    seen = head.scores(views)
    assert seen.shape == left_out.shape == (60, 3) and np.allclose(seen.sum(1), 1, atol=1e-5)
    rows = np.arange(60)
    assert seen[rows, y].mean() > left_out[rows, y].mean()
    other, truth = drawn(90, seed=5)
    assert (head.scores(other).argmax(1) == truth).mean() > 0.9


def test_a_fuser_rehearses_ridge_without_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of one shot has drawn stand-ins, and they are scored as any image is."""
    given: list[Any] = []
    monkeypatch.setattr(LogPool, "fit", lambda self, *data: given.append(data))
    X, y = drawn(180)
    learner = ViewLearner(["a", "b"], "log-pool", widths=[6, 4]).fit_base(np.concatenate(X, 1), y)
    new, labels = drawn(6, n_classes=6, seed=3)
    new, labels = [x[3:] for x in new], labels[3:]
    shots = np.repeat(np.concatenate(new, 1), [1, 3, 3], axis=0) + np.random.default_rng(2).normal(size=(7, 10)) / 9
    learner.learn_session(shots, np.repeat(labels, [1, 3, 3]))
    scores, rehearsed, _ = given[-1]
    n = len(learner.parts[0].memory.base)
    assert scores.shape[1] == 5 and np.bincount(rehearsed)[3:].tolist() == [50, 3, 3]
    views = [part.memory.examples()[0] for part in learner.parts]
    numbers = np.concatenate([learner.parts[0].memory.base_labels, [3, 4, 4, 4, 5, 5, 5]])
    _, left_out = fit_ridge(views, numbers, 6, learner.ridge or 0)
    assert np.allclose(scores[:n, -1], left_out[:n]) and np.allclose(scores[n + 50 :, -1], left_out[n + 1 :])
    assert learner.beside is not None
    drawn_ones = [part.rehearsed("left-out").features[n : n + 50] for part in learner.parts]
    assert np.allclose(scores[n : n + 50, -1], learner.beside.scores(drawn_ones))


def test_without_ridge() -> None:
    X, y = drawn(180)
    learner = ViewLearner(["a", "b"], "log-pool", widths=[6, 4], ridge=None).fit_base(np.concatenate(X, 1), y)
    learner.learn_session(np.random.default_rng(0).normal(size=(5, 10)), ["new"] * 5)
    assert learner.members == ["a, base", "a", "b, base", "b"]
    assert learner.member_scores(np.concatenate(X, 1)).shape == (180, 4, 4)
    alone = ViewLearner(["a", "b"], "prototypes", widths=[6, 4]).fit_base(np.concatenate(X, 1), y)
    assert len(alone.members) == 4 == alone.member_scores(np.concatenate(X, 1)).shape[1]


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.nan, np.inf])
def test_a_penalty_that_cannot_be(ridge: float) -> None:
    with pytest.raises(ValueError, match="ridge must be a finite number > 0, or None"):
        ViewLearner(["a"], ridge=ridge)
