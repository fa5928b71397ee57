"""The member that sees all views: ridge regression, with every example left out in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from faverage.fscil import FewShotLearner
from faverage.fscil.heads import _dual, _primal, fit_ridge, side_by_side
from faverage.fscil.rehearsal import rehearse
from faverage.fusion.arrays import softmax
from faverage.fusion.pools import LogPool

PENALTY = 0.1


def drawn(n: int, widths: tuple[int, ...] = (6, 4), n_classes: int = 3, seed: int = 0) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    centres = np.random.default_rng(1).normal(size=(n_classes, sum(widths)))
    X = centres[y] + 0.7 * rng.normal(size=(n, sum(widths)))
    return np.split(X, np.cumsum(widths)[:-1], axis=1), y


def named(views: list[Any]) -> dict[str, Any]:
    return dict(zip("ab", views, strict=True))


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


@pytest.mark.parametrize("n", [8, 40])
def test_an_example_is_scored_as_a_new_one_would_be(n: int) -> None:
    """Between the fits with and without it; a class's anchor is one more example, which is never left out."""
    views, y = drawn(n, widths=(12, 8))
    y[0] = 3  # the only one of its class, but for the anchor
    means, _ = drawn(2, widths=(12, 8), seed=4)
    head, found = fit_ridge(views, y, 5, PENALTY, (means, np.array([1, 3])))
    z, classes = side_by_side([np.concatenate(pair) for pair in zip(views, means, strict=True)]), [*y, 1, 3]
    counts = np.bincount(classes, minlength=5)[classes]
    target, v = np.eye(5)[classes], (1 / counts) / np.mean(1 / counts)
    whole = Ridge(alpha=PENALTY).fit(z, target, sample_weight=v)
    assert np.allclose(head.weight, whole.coef_, atol=1e-5) and len(found) == n
    for i in range(n):
        rest = np.arange(n + 2) != i
        without = Ridge(alpha=PENALTY).fit(z[rest], target[rest], sample_weight=v[rest])
        s = np.sqrt(1 - 1 / counts[i] ** 2)
        both = s * without.predict(z[i : i + 1])[0] + (1 - s) * whole.predict(z[i : i + 1])[0]
        assert np.allclose(both, found[i], atol=1e-5)


def test_the_share_of_an_example_in_its_own_mean_makes_it_as_far_as_a_new_one() -> None:
    rng, m = np.random.default_rng(0), 5
    examples, new = rng.normal(size=(4000, m, 8)), rng.normal(size=(4000, 8))
    s = np.sqrt(1 - 1 / m**2)
    own = s * (examples.sum(1) - examples[:, 0]) / (m - 1) + (1 - s) * examples[:, 0]
    as_new, apart = ((one**2).sum(1).mean() for one in (new - examples.mean(1), examples[:, 0] - own))
    assert abs(apart / as_new - 1) < 0.02


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
    assert head.outputs(views)[rows, y].mean() > left_out[rows, y].mean()
    assert seen[rows, y].mean() > softmax(head.temperature * left_out)[rows, y].mean()
    other, truth = drawn(90, seed=5)
    assert (head.scores(other).argmax(1) == truth).mean() > 0.9


def test_a_fuser_rehearses_ridge_without_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of one shot has drawn stand-ins, and they are scored as any image is."""
    given: list[Any] = []
    monkeypatch.setattr(LogPool, "fit", lambda self, *data: given.append(data))
    X, y = drawn(180)
    learner = FewShotLearner(fuser="log-pool").fit_base(named(X), y)
    new, labels = drawn(6, n_classes=6, seed=3)
    noise = np.random.default_rng(2)
    shots = [np.repeat(x[3:], [1, 3, 3], axis=0) for x in new]
    shots = [x + noise.normal(size=x.shape) / 9 for x in shots]
    learner.learn_session(named(shots), np.repeat(labels[3:], [1, 3, 3]))
    scores, rehearsed, _ = given[-1]
    known = learner.known
    n = int((~known.shot).sum())
    assert scores.shape[1] == 5 and np.bincount(rehearsed)[3:].tolist() == [50, 3, 3]
    # first what was held out and the shots that can be left out, then the stand-ins of the only shot of class 3
    assert rehearsed.tolist() == [*known.labels[:n], *[4] * 3, *[5] * 3, *[3] * 50]
    numbers = np.concatenate([known.labels[:n], [3, 4, 4, 4, 5, 5, 5]])
    assert known.labels.tolist() == numbers.tolist()
    anchors = [x[:3] for x in known.anchors.values()], np.arange(3)
    head, left_out = fit_ridge(list(known.views.values()), numbers, 6, learner.ridge or 0, anchors)
    said = softmax(head.temperature * left_out)
    assert np.allclose(scores[:n, -1], said[:n]) and np.allclose(scores[n : n + 6, -1], said[n + 1 :])
    usual = head.scores(list(known.views.values()))
    assert not np.allclose(scores[:n, -1], usual[:n], atol=1e-3)
    found = rehearse(known, "left-out", learner.members.prototypes, np.random.default_rng([learner.seed, 6]))
    stand_ins = [x[n + 6 :] for x in found.views.values()]
    assert np.allclose(scores[n + 6 :, -1], head.scores(stand_ins), atol=1e-6)


def test_without_ridge() -> None:
    X, y = drawn(180)
    learner = FewShotLearner(fuser="log-pool", ridge=None).fit_base(named(X), y)
    learner.learn_session(named(np.split(np.random.default_rng(0).normal(size=(5, 10)), [6], axis=1)), ["new"] * 5)
    assert learner.members.names == ["a, base head", "a, prototypes", "b, base head", "b, prototypes"]
    assert learner.member_scores(named(X)).shape == (180, 4, 4)
    alone = FewShotLearner(fuser="prototypes").fit_base(named(X), y)
    assert len(alone.members.names) == 4 == alone.member_scores(named(X)).shape[1]


def test_there_is_no_regression_on_one_class() -> None:
    X, y = drawn(180)
    one = {view: x[y == 0][:5] for view, x in named(X).items()}
    learner = FewShotLearner().learn_session(one, ["a"] * 5)
    assert learner.members.names == ["a, prototypes", "b, prototypes"]
    learner.learn_session({view: x[y == 1][:5] for view, x in named(X).items()}, ["b"] * 5)
    assert learner.members.names[-1] == "ridge"


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.nan, np.inf])
def test_a_penalty_that_cannot_be(ridge: float) -> None:
    with pytest.raises(ValueError, match="ridge must be a finite number > 0, or None"):
        FewShotLearner(ridge=ridge)
