"""What a learner knows: means, left-out means, and verbs that return a new knowledge and never change the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from faverage.fscil import CosineHead, FewShotLearner, Knowledge, LinearHead
from faverage.fscil.heads import unit
from faverage.fscil.knowledge import as_views
from helpers_learner import World, arrays_of, assert_same

WIDTHS = {"a": 5, "b": 3}


def shots(n: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {view: rng.random((n, d), dtype=np.float32) for view, d in WIDTHS.items()}


def base(labels: str = "xyz", seed: int = 0) -> Knowledge:
    """Three base classes with two held-out examples each, behind means of ten."""
    rng = np.random.default_rng(seed)
    n = len(labels)
    heads = {
        "a": LinearHead(rng.normal(size=(n, 5)).astype(np.float32), rng.normal(size=n).astype(np.float32)),
        "b": CosineHead(rng.normal(size=(n, 3)).astype(np.float32), 8.0),
    }
    means = {view: unit(rng.random((n, d))).astype(np.float32) for view, d in WIDTHS.items()}
    return Knowledge.of_base(list(labels), shots(2 * n, seed), np.repeat(np.arange(n), 2), means, heads)


def taught() -> Knowledge:
    """Three base classes, then p of three shots and q of two, then one of r."""
    return base().taught(shots(5, 1), list("pqpqp")).taught(shots(1, 2), ["r"])


def test_what_is_known_after_a_base_session() -> None:
    known = base()
    assert known.classes == ("x", "y", "z") and known.sessions == [["x", "y", "z"]] and known.widths == WIDTHS
    assert known.counts.tolist() == [10, 10, 10] and not known.shot.any()  # five behind each that was held out
    for view in WIDTHS:
        assert np.allclose(known.prototypes(view), known.anchors[view], atol=1e-6)
        assert np.isnan(known.others(view)).all()


def test_shots_lie_class_by_class_in_the_order_in_which_classes_came() -> None:
    known = taught()
    assert known.classes == (*"xyzpqr",) and known.sessions == [[*"xyz"], ["p", "q"], ["r"]]
    assert known.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5] and known.shot[6:].all()
    assert known.session.tolist() == [0, 0, 0, 1, 1, 2] and known.counts.tolist() == [10] * 3 + [0] * 3
    assert np.array_equal(known.views["a"][6:11], shots(5, 1)["a"][[0, 2, 4, 1, 3]])


def test_a_prototype_is_the_mean_of_normalised_shots() -> None:
    known, given = taught(), shots(5, 1)
    for view in WIDTHS:
        assert np.allclose(known.prototypes(view)[3], unit(given[view][[0, 2, 4]]).mean(0), atol=1e-6)
        others = known.others(view)
        assert np.allclose(others[6], unit(given[view][[2, 4]]).mean(0), atol=1e-6)
        assert np.isnan(others[:6]).all() and np.isnan(others[11]).all()  # held out; the only shot of its class


def test_more_of_a_known_class_changes_its_mean_and_nothing_else() -> None:
    known, more = taught(), shots(4, 7)
    after = known.taught(more, ["x", "p", "x", "r"])
    assert after.classes == known.classes and after.sessions == known.sessions
    for view in WIDTHS:
        old, new, z = known.prototypes(view), after.prototypes(view), unit(more[view])
        assert np.allclose(new[0], (10 * old[0] + z[0] + z[2]) / 12, atol=1e-6)
        assert np.allclose(new[3], (3 * old[3] + z[1]) / 4, atol=1e-6)
        assert np.allclose(new[5], (old[5] + z[3]) / 2, atol=1e-6)
        assert np.allclose(new[[1, 2, 4]], old[[1, 2, 4]], atol=1e-6)
        assert np.allclose(after.others(view)[12], (10 * old[0] + z[2]) / 11, atol=1e-6)  # of a base class, without it
    assert np.array_equal(after.anchors["a"], known.anchors["a"]) and np.array_equal(after.counts, known.counts)


def test_new_and_known_classes_in_one_session() -> None:
    known = base().taught(shots(4, 3), ["q", "x", "p", "q"])
    assert known.classes == (*"xyzqp",) and known.sessions == [[*"xyz"], ["q", "p"]]
    assert known.labels[6:].tolist() == [0, 3, 3, 4]


@pytest.mark.parametrize("label", list("xyzpqr"))
def test_a_class_that_is_forgotten_is_gone_everywhere(label: str) -> None:
    known = taught()
    after, c = known.without(label), known.classes.index(label)
    stay = [i for i in range(6) if i != c]
    assert after.classes == tuple(known.classes[i] for i in stay)
    for view in WIDTHS:
        assert np.array_equal(after.prototypes(view), known.prototypes(view)[stay])
        assert len(after.views[view]) == len(after.labels) == (known.labels != c).sum()
    assert np.bincount(after.labels).tolist() == np.bincount(known.labels)[stay].tolist()
    x = shots(4, 9)
    for old, new in zip(known.heads, after.heads, strict=True):
        kept = [i for i in range(3) if i != c]
        assert [after.classes[i] for i in new.classes] == [known.classes[i] for i in kept]
        whole = old.head.scores(x[old.view])[:, kept]  # as if the class had got no probability
        assert np.allclose(new.head.scores(x[old.view]), whole / whole.sum(1, keepdims=True), atol=1e-5)


def test_a_session_whose_classes_are_all_forgotten_is_no_session() -> None:
    known = taught().without("p").without("q")
    assert known.sessions == [[*"xyz"], ["r"]] and known.session.tolist() == [0, 0, 0, 1]
    no_base = taught().without("x").without("y").without("z")
    assert no_base.sessions == [[], ["p", "q"], ["r"]] and no_base.heads == ()
    assert no_base.taught(shots(1, 5), ["s"]).sessions[-1] == ["s"]


def test_a_head_of_one_class_is_dropped() -> None:
    known = base().without("x")
    assert len(known.heads) == 2 and known.without("y").heads == ()


def test_forgetting_what_was_just_taught_is_going_back() -> None:
    known = taught()
    assert_same(known.taught(shots(3, 5), ["s"] * 3).without("s"), arrays_of(known))


def test_rename() -> None:
    known = taught()
    after = known.renamed("q", "Q")
    assert after.classes == ("x", "y", "z", "p", "Q", "r") and after.sessions[1] == ["p", "Q"]
    assert_same(after.renamed("Q", "q"), arrays_of(known))
    assert known.renamed("q", "q").classes == known.classes
    with pytest.raises(ValueError, match="class 'x' is known already: forget it first, or choose another name"):
        known.renamed("q", "x")
    with pytest.raises(ValueError, match="class 'Q' is not known; known are: 'x', 'y', 'z', 'p', 'q', 'r'"):
        known.renamed("Q", "s")
    for label in (["s"], {"s": 1}, float("nan"), None):
        with pytest.raises(ValueError, match="a label must be a text, a number or the like"):
            known.renamed("q", label)


def test_merging_joins_shots_and_means() -> None:
    first = base().taught(shots(3, 1), list("ppq"))
    second = base("xw", seed=5).taught(shots(4, 2), list("qssp"))
    both = first.merged(second)
    assert both.classes == (*"xyzw", *"pq", "s") and both.sessions == [[*"xyzw"], ["p", "q"], ["s"]]
    assert both.counts.tolist() == [20, 10, 10, 10, 0, 0, 0]
    assert len(both.heads) == 4 and [[both.classes[c] for c in one.classes] for one in both.heads] == [
        [*"xyz"], [*"xyz"], [*"xw"], [*"xw"],
    ]  # fmt: skip
    for view in WIDTHS:
        one, two = unit(shots(3, 1)[view]), unit(shots(4, 2)[view])
        means = both.prototypes(view)
        assert np.allclose(means[4], (one[0] + one[1] + two[3]) / 3, atol=1e-6)
        assert np.allclose(means[5], (one[2] + two[0]) / 2, atol=1e-6)
        x = (first.prototypes(view)[0] + second.prototypes(view)[0]) / 2
        assert np.allclose(means[0], x, atol=1e-6)
        assert np.allclose(means[3], second.prototypes(view)[1], atol=1e-6)
    assert (~both.shot).sum() == 10 and both.shot.sum() == 7
    assert set(both.labels[~both.shot]) == {0, 1, 2, 3}


def test_copies_of_one_model_share_their_base_session() -> None:
    first, second = base().taught(shots(2, 1), ["p"] * 2), base().taught(shots(2, 2), ["q"] * 2)
    both = first.merged(second)
    assert both.counts.tolist() == [10, 10, 10, 0, 0] and len(both.heads) == 2 and (~both.shot).sum() == 6
    assert both.sessions == [[*"xyz"], ["p"], ["q"]]
    for view in WIDTHS:
        assert np.array_equal(both.anchors[view][:3], base().anchors[view])
    assert_same(both.merged(first), arrays_of(both))  # once is enough
    assert_same(both.merged(both), arrays_of(both))


def test_a_class_that_is_new_here_and_base_there_is_a_base_class() -> None:
    here = Knowledge.empty(WIDTHS).taught(shots(3, 1), list("xpx"))
    both = here.merged(base())
    assert both.sessions == [[*"xyz"], ["p"]] and both.shot.sum() == 3
    z = unit(shots(3, 1)["a"])
    assert np.allclose(both.prototypes("a")[0], (10 * base().anchors["a"][0] + z[0] + z[2]) / 12, atol=1e-6)


def test_merging_into_nothing_and_nothing_into_something() -> None:
    known, nothing = taught(), Knowledge.empty(WIDTHS)
    assert_same(known.merged(nothing), arrays_of(known))
    both = nothing.merged(known)
    assert both.classes == known.classes and both.sessions == known.sessions
    for view in WIDTHS:
        assert np.allclose(both.prototypes(view), known.prototypes(view), atol=1e-6)


def test_merging_what_does_not_fit() -> None:
    other = Knowledge.empty({"a": 5}).taught({"a": shots(1, 0)["a"]}, ["p"])
    with pytest.raises(ValueError, match=r"different views, a \(5\), b \(3\) and a \(5\)"):
        taught().merged(other)
    contrary = Knowledge.empty(WIDTHS).taught(shots(5, 1), ["n"] * 5)  # the shots of p and q by another name
    with pytest.raises(ValueError, match=r"an example of 'n' is the same as one of '[pq]': an example has one label"):
        taught().merged(contrary)


def test_an_example_has_one_label() -> None:
    known, again = taught(), shots(5, 1)
    words = "an example of 'n' is the same as one of 'p': an example has one label"
    with pytest.raises(ValueError, match=words):
        known.taught({view: x[:1] for view, x in again.items()}, ["n"])
    with pytest.raises(ValueError, match="an example of 'q' is the same as one of 'p'"):
        known.taught({view: x[:1] for view, x in again.items()}, ["q"])
    with pytest.raises(ValueError, match="an example of 'm' is the same as one of 'n'"):
        known.taught({view: x[[0, 0]] for view, x in shots(1, 9).items()}, ["n", "m"])
    with pytest.raises(ValueError, match="an example of 'y' is the same as one of 'x'"):  # held out from x
        known.taught({view: x[:1] for view, x in known.views.items()}, ["y"])
    half = {"a": again["a"][:1], "b": shots(1, 8)["b"]}  # the same in one view only is another example
    assert known.taught(half, ["n"]).classes[-1] == "n"
    assert known.taught({view: x[:1] for view, x in again.items()}, ["p"]).shot.sum() == 7
    assert known.without("p").taught({view: x[:1] for view, x in again.items()}, ["n"]).classes[-1] == "n"


def test_zero_has_no_sign() -> None:
    known = Knowledge.empty({"a": 2}).taught({"a": np.array([[0.0, 1.0]], dtype=np.float32)}, ["p"])
    with pytest.raises(ValueError, match="one label"):
        known.taught({"a": np.array([[-0.0, 1.0]], dtype=np.float32)}, ["q"])


@pytest.mark.parametrize(
    "verb",
    [
        lambda known: known.taught(shots(3, 8), ["x", "n", "p"]),
        lambda known: known.without("x"),
        lambda known: known.without("p"),
        lambda known: known.renamed("p", "P"),
        lambda known: known.merged(base("xw", seed=5).taught(shots(2, 9), ["p", "n"])),
        lambda known: base("xw", seed=5).merged(known),
        lambda known: [(known.prototypes(view), known.others(view)) for view in WIDTHS],
    ],
)
def test_what_is_known_never_changes(verb: Callable[[Knowledge], Any]) -> None:
    known = taught()
    before = arrays_of(known)
    result = verb(known)
    assert_same(known, before)
    if isinstance(result, Knowledge):  # nor does it change with what came of it
        for arrays in (result.views, result.anchors):
            for array in arrays.values():
                array[:] = 7
        result.labels[:], result.shot[:] = 0, True
        if result.classes != known.classes and "P" not in result.classes:
            assert_same(known, before)


def test_what_was_given_may_change_afterwards() -> None:
    X, y = World().draw([0, 1, 2], 12)
    head, means = (np.ones((3, 24), dtype=np.float32), np.zeros(3, dtype=np.float32)), np.ones((3, 24), np.float32)
    learner = FewShotLearner().fit_base(X, y, head=head, prototypes=means)
    more, _ = World(1).draw([3], 3)
    learner.learn_session(more, [3] * 3)
    before = arrays_of(learner.known)
    for array in (X, *head, means, more):
        array += 5
    assert_same(learner.known, before)


def test_base_heads_that_do_not_fit() -> None:
    held_out, labels = {"a": shots(4, 0)["a"]}, np.array([0, 0, 1, 1])
    means = {"a": np.ones((2, 5))}
    good = np.ones((2, 5), dtype=np.float32)
    for head, words in (
        (LinearHead(good[:, :4], good[:, 0]), r"2 rows of 5 numbers, one a class, got \(2, 4\) and \(2, 5\)"),
        (LinearHead(good, np.zeros(3)), r"head must have 2 biases, got \(3,\)"),
        (LinearHead(good, np.array([0, np.nan])), "head must be made of finite numbers"),
        (CosineHead(good * np.inf, 3.0), "head must be made of finite numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            Knowledge.of_base(["x", "y"], held_out, labels, means, {"a": head})


def test_features_by_view() -> None:
    x = np.ones((2, 3))
    assert {view: found.dtype for view, found in as_views(x).items()} == {"plain": np.float32}
    assert list(as_views(x, {"zoom": 3})) == ["zoom"]
    assert list(as_views({"b": x, "a": x}, {"a": 3, "b": 3})) == ["a", "b"]
    assert as_views(x.astype(np.uint8))["plain"].dtype == np.float32
    for bad, words in (
        (x[0], "one row an example"),
        (np.ones((1, 2, 2, 3)), "images need a backbone"),
        (np.ones((2, 0)), r"got float64 \(2, 0\)"),
        (x.astype(str), "must be numbers"),
        (x.astype(complex), "must be numbers"),
        (x * np.nan, "finite"),
        (x * np.inf, "finite"),
        ({}, "at least one view"),
        ({"a": x, "b": x[:1]}, "numbers of rows differ"),
    ):
        with pytest.raises(ValueError, match=words):
            as_views(bad)
