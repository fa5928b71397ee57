"""Repeats of a run: fresh draws of the shots, means and spreads, paired comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from faverage.experiment.results import combine, compare
from faverage.experiment.rows import Rows

# two base classes (0, 1) and two new ones (2, 3) of twenty examples each: five shots, five tests, ten spare
LABELS = np.repeat(np.arange(4), 20)
TEST = np.concatenate([np.arange(20 * c + 15, 20 * c + 20) for c in range(4)])


def rows(spare: bool = True) -> Rows:
    train = (np.arange(40, 45), np.arange(60, 65))
    rest = np.concatenate([np.arange(45, 55), np.arange(65, 75)]) if spare else np.zeros(0, dtype=np.int64)
    return Rows(train, TEST, rest)


def test_draw_0_is_what_is_there() -> None:
    same = rows()
    assert same.redrawn(LABELS, 7, 0) is same


@pytest.mark.parametrize("draw", [1, 2])
def test_fresh_shots_come_from_spare_examples_and_leave_the_test_alone(draw: int) -> None:
    new = rows().redrawn(LABELS, 0, draw)
    assert np.array_equal(new.test, TEST) and not rows().drawn_from_test(LABELS)
    for k, (before, after) in enumerate(zip(rows().train, new.train, strict=True)):
        assert len(after) == 5 and set(LABELS[after]) == {2 + k} and set(after) != set(before)
        assert not np.isin(after, TEST).any()
    used = np.concatenate([*new.train, new.spare])
    assert len(np.unique(used)) == len(used) == 30  # nothing is lost, nothing is twice


@pytest.mark.parametrize("draw", [1, 2])
def test_without_spare_examples_the_test_gives_and_takes(draw: int) -> None:
    new = rows(spare=False).redrawn(LABELS, 0, draw)
    assert rows(spare=False).drawn_from_test(LABELS)
    shots = np.concatenate(new.train)
    assert len(shots) == 10 and not np.isin(shots, new.test).any()
    assert np.bincount(LABELS[new.test]).tolist() == [5, 5, 5, 5]
    assert set(shots) | set(new.test) == set(TEST) | set(range(40, 45)) | set(range(60, 65))


def test_draws_differ_and_come_back() -> None:
    first, again, other = (rows().redrawn(LABELS, 3, d) for d in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.train, again.train, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))
    assert not np.array_equal(rows().redrawn(LABELS, 4, 1).train[0], first.train[0])


def repeat(seed: int, **f1: float) -> dict:
    def sessions(last: float) -> list[dict]:
        return [
            {"f1": 0.8, "new": None, "by_session": [0.8]},
            {"f1": last, "new": last / 2, "by_session": [last, last / 2]},
        ]

    return {
        "seed": seed,
        "draw": 0,
        "methods": {name: {"sessions": sessions(v), "history": 1} for name, v in f1.items()},
    }


def test_means_and_spread_by_hand() -> None:
    both = combine([repeat(0, a=0.5, b=0.1), repeat(1, a=0.7, b=0.1)])
    last, spread = both["a"]["sessions"][1], both["a"]["spread"][1]
    assert last["f1"] == pytest.approx(0.6) and last["by_session"] == pytest.approx([0.6, 0.3])
    assert spread["f1"] == pytest.approx(0.2 / 2**0.5) and both["b"]["spread"][1]["f1"] == 0
    assert both["a"]["sessions"][0]["new"] is None and both["a"]["history"] == 1
    assert combine([repeat(0, a=0.5)])["a"]["spread"] is None


def test_paired_comparison_is_that_of_a_paired_t_test() -> None:
    ours, theirs = [0.52, 0.55, 0.50, 0.58], [0.50, 0.51, 0.51, 0.54]
    runs = [repeat(i, afa=a, vote=b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    last, mean = compare(runs, "afa")
    wanted = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (last["method"], last["what"], mean["what"]) == ("vote", "last", "mean")
    assert (last["low"], last["high"]) == (pytest.approx(wanted.low), pytest.approx(wanted.high))
    assert last["difference"] == pytest.approx(np.mean(np.subtract(ours, theirs))) and last["wins"] == 3
    assert compare(runs[:1], "afa") == [] and compare(runs, "none") == []
