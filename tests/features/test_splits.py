"""Fresh draws of the few shots, and other orders of the classes."""

import numpy as np
import pytest

from faverage.errors import ConfigError
from faverage.features import Splits, permuted

# two base classes (0, 1) and two new ones (2, 3) of twenty examples each: five shots, five tests, ten spare
LABELS = np.repeat(np.arange(4), 20)
TEST = np.concatenate([np.arange(20 * c + 15, 20 * c + 20) for c in range(4)])


def splits(spare: bool = True) -> Splits:
    rest = np.concatenate([np.arange(45, 55), np.arange(65, 75)]) if spare else np.zeros(0, dtype=np.int64)
    return Splits(
        labels=LABELS,
        sessions=[[0, 1], [2], [3]],
        shots=(np.arange(40, 45), np.arange(60, 65)),
        test=TEST,
        spare=rest,
        class_names=list("abcd"),
        source="here",
    )


def test_draw_0_is_what_is_there() -> None:
    same = splits()
    assert same.redrawn(7, 0) is same


@pytest.mark.parametrize("draw", [1, 2])
def test_fresh_shots_come_from_spare_examples_and_leave_the_test_alone(draw: int) -> None:
    new = splits().redrawn(0, draw)
    assert np.array_equal(new.test, TEST) and not splits().drawn_from_test
    for k, (before, after) in enumerate(zip(splits().shots, new.shots, strict=True)):
        assert len(after) == 5 and set(LABELS[after]) == {2 + k} and set(after) != set(before)
        assert not np.isin(after, TEST).any()
    used = np.concatenate([*new.shots, new.spare])
    assert len(np.unique(used)) == len(used) == 30  # nothing is lost, nothing is twice


@pytest.mark.parametrize("draw", [1, 2])
def test_without_spare_examples_the_test_gives_and_takes(draw: int) -> None:
    new = splits(spare=False).redrawn(0, draw)
    assert splits(spare=False).drawn_from_test
    shots = np.concatenate(new.shots)
    assert len(shots) == 10 and not np.isin(shots, new.test).any()
    assert np.bincount(LABELS[new.test]).tolist() == [5, 5, 5, 5]
    assert set(shots) | set(new.test) == set(TEST) | set(range(40, 45)) | set(range(60, 65))


def test_draws_differ_and_come_back() -> None:
    first, again, other = (splits().redrawn(3, d) for d in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.shots, again.shots, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.shots, other.shots, strict=True))
    assert not np.array_equal(splits().redrawn(4, 1).shots[0], first.shots[0])


def test_another_order_renumbers_later_classes_and_keeps_what_is_theirs() -> None:
    same, new = splits(), splits().reordered(0, 1)
    assert same.reordered(0, 0) is same and new.reordered(0, 1) is new
    assert new.sessions == same.sessions and new.class_names == ["a", "b", "d", "c"]  # there is no other order
    assert np.array_equal(new.labels, np.repeat([0, 1, 3, 2], 20))
    assert [rows.tolist() for rows in new.shots] == [list(range(60, 65)), list(range(40, 45))]
    assert np.array_equal(new.test, TEST) and np.array_equal(new.spare, same.spare)
    unused = Splits(**{**vars(same), "labels": np.append(LABELS, -1)})
    assert unused.reordered(0, 1).labels[-1] == -1


def test_orders_differ_and_come_back() -> None:
    sessions = [[0, 1, 2], [3, 4], [5]]
    orders = [permuted(sessions, 0, k) for k in range(60)]  # 6! / (3! 2!): all that there are
    assert orders[0] == sessions and all(orders.count(one) == 1 for one in orders)
    assert all([len(s) for s in one] == [3, 2, 1] and {c for s in one for c in s} == set(range(6)) for one in orders)
    assert permuted(sessions, 0, 7) == orders[7] != permuted(sessions, 1, 7)
    with pytest.raises(ConfigError, match="6 classes in 3 sessions have 60 different orders, and 61 are asked for"):
        permuted(sessions, 0, 60)
