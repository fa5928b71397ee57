"""The verbs of a learner: learn, forget, rename, undo, merge, predict; and that a verb that fails changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from faverage.fscil import FewShotLearner
from faverage.fscil.heads import unit
from faverage.fscil.learner import KEPT_STATES
from faverage.fusion import fuser_names
from helpers_learner import World, arrays_of, assert_same, assert_unchanged_by, learned, taught_views, views_of


def from_nothing(classes: list[int], shots: int = 5, **options: Any) -> tuple[FewShotLearner, World]:
    world = World()
    return FewShotLearner(**options).learn_session(*world.draw(classes, shots)), world


# From nothing ---------------------------------------------------------------------------------------------------------


def test_one_class_then_a_second_then_more() -> None:
    world = World()
    learner = FewShotLearner()
    assert learner.classes == [] and learner.sessions == [] and learner.fitted is None
    X, y = world.draw([0, 1, 2, 3], 50)
    for c in range(4):
        learner.learn_session(*world.draw([c], 5))
        assert learner.classes == list(range(c + 1)) and learner.sessions == [[], *([k] for k in range(c + 1))]
        p = learner.predict_proba(X)
        assert p.shape == (200, c + 1) and np.allclose(p.sum(1), 1, atol=1e-5)
        seen = y <= c
        assert (learner.predict(X[seen]) == y[seen]).mean() > 0.95
        if c == 0:
            assert (p == 1).all() and learner.fitted is None
    assert learner.fitted is not None and set(learner.chosen()) <= {"tied 0.01", "tied 0.001", "tied 0.0001"}
    assert sum(learner.chosen().values()) == pytest.approx(1)


@pytest.mark.parametrize("base", [False, True])
def test_the_order_of_teaching_does_not_matter_on_easy_data(base: bool) -> None:
    world = World(noise=0.25)
    lessons = {c: world.draw([c], 5) for c in range(4, 10)}
    start = world.draw([0, 1, 2, 3], 60)
    X, y = world.draw(list(range(0 if base else 4, 10)), 60)
    found = []
    for order in ([4, 5, 6, 7, 8, 9], [9, 6, 8, 4, 7, 5]):
        learner = FewShotLearner()
        if base:
            learner.fit_base(*start)
        for c in order:
            learner.learn_session(*lessons[c])
        found.append(((learner.predict(X) == y).mean(), set(learner.classes), learner))
    (one, classes, first), (two, same, second) = found
    assert classes == same and abs(one - two) <= 0.01 and one > 0.97
    columns = [second.classes.index(c) for c in first.classes]
    assert np.allclose(first.predict_proba(X), second.predict_proba(X)[:, columns], atol=1e-3)


def test_classes_together_or_one_by_one() -> None:
    world = World()
    X, y = world.draw([0, 1, 2, 3], 5)
    together = FewShotLearner().learn_session(X, y)
    one_by_one = FewShotLearner()
    for c in range(4):
        one_by_one.learn_session(X[y == c], y[y == c])
    shot_by_shot = FewShotLearner()
    for i in range(20):
        shot_by_shot.learn_session(X[i : i + 1], y[i : i + 1])
    new, _ = world.draw([0, 1, 2, 3], 30)
    for other in (one_by_one, shot_by_shot):
        assert np.allclose(together.predict_proba(new), other.predict_proba(new), atol=1e-5)


def test_a_base_session_after_a_session_begins_anew() -> None:
    learner, world = from_nothing([7, 8])
    learner.fit_base(*world.draw([0, 1, 2], 40))
    assert learner.classes == [0, 1, 2]
    assert learner.undo().classes == [7, 8]


# More of what is known ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [2, 7])  # a base class and a new one
def test_more_examples_of_a_known_class(label: int) -> None:
    learner, world = learned()
    X, y = world.draw([label], 6)
    before, behind = learner.known.prototypes("plain"), 50 if label < 6 else 5
    learner.learn_session(X, y)
    after = learner.known.prototypes("plain")
    assert learner.classes == list(range(10)) and learner.sessions == [[0, 1, 2, 3, 4, 5], [6, 7], [8], [9]]
    assert np.allclose(after[label], (behind * before[label] + unit(X).sum(0)) / (behind + 6), atol=1e-6)
    assert np.allclose(np.delete(after, label, 0), np.delete(before, label, 0), atol=1e-7)
    assert np.array_equal(learner.members.prototypes["plain"], after)


def test_more_examples_help() -> None:
    few, more = [], []
    for seed in range(5):
        world = World(seed, noise=1.0)
        learner = FewShotLearner().learn_session(*world.draw(list(range(6)), 2))
        X, y = world.draw(list(range(6)), 50)
        few.append((learner.predict(X) == y).mean())
        learner.learn_session(*world.draw(list(range(6)), 10))
        more.append((learner.predict(X) == y).mean())
    assert np.mean(more) > np.mean(few) + 0.05


def test_new_and_known_classes_at_once() -> None:
    learner, world = learned()
    X, y = world.draw([3, 6], 4)
    new = np.abs(np.random.default_rng(0).normal(size=(3, 24))).astype(np.float32)
    learner.learn_session(np.concatenate([X, new]), [*y, 10, 10, 10])
    assert learner.classes == list(range(11)) and learner.sessions[-1] == [10]
    assert np.bincount(learner.known.labels[learner.known.shot]).tolist() == [0, 0, 0, 4, 0, 0, 9, 5, 5, 5, 3]


# Forget, rename, undo -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [True, False])
def test_a_class_that_is_forgotten_was_never_learned(base: bool) -> None:
    world = World()
    start, lessons = world.draw([0, 1, 2, 3], 60), [world.draw([c], 5) for c in (4, 5, 6, 7)]
    X, _ = world.draw(list(range(8)), 20)

    def learner(skip: int | None = None) -> FewShotLearner:
        made = FewShotLearner()
        if base:
            made.fit_base(*start)
        for k, lesson in enumerate(lessons):
            if k != skip:
                made.learn_session(*lesson)
        return made

    for k, label in enumerate((4, 5, 6, 7)):
        forgotten, never = learner().forget(label), learner(skip=k)
        assert forgotten.classes == never.classes and forgotten.sessions == never.sessions
        assert np.abs(forgotten.predict_proba(X) - never.predict_proba(X)).max() < 1e-5
        assert np.abs(forgotten.familiarity(X) - never.familiarity(X)).max() < 1e-5
        assert_same(forgotten.known, arrays_of(never.known))


def test_a_base_class_is_forgotten() -> None:
    learner, world = learned()
    learner.forget(2)
    assert learner.classes == [0, 1, 3, 4, 5, 6, 7, 8, 9] and learner.sessions[0] == [0, 1, 3, 4, 5]
    X, y = world.draw([0, 1, 3, 4, 5, 6, 7, 8, 9], 30)
    assert (learner.predict(X) == y).mean() > 0.8
    scores = learner.member_scores(X)
    assert np.isfinite(scores[:, 0, :5]).all() and np.isnan(scores[:, 0, 5:]).all()
    learner.learn_session(*world.draw([2], 5))  # and learned again, as a new one
    assert learner.classes[-1] == 2 and learner.sessions[-1] == [2]


def test_all_base_classes_are_forgotten() -> None:
    learner, world = learned()
    for c in range(6):
        learner.forget(c)
    assert learner.classes == [6, 7, 8, 9] and learner.sessions == [[], [6, 7], [8], [9]]
    assert learner.members.names == ["prototypes", "ridge"]
    X, y = world.draw([6, 7, 8, 9], 30)
    assert (learner.predict(X) == y).mean() > 0.8


def test_a_learner_that_forgot_everything_can_begin_again() -> None:
    learner, world = from_nothing([0, 1])
    X, _ = world.draw([0], 3)
    learner.forget(0).forget(1)
    assert learner.classes == [] and learner.sessions == []
    with pytest.raises(ValueError, match="knows no class yet"):
        learner.predict(X)
    learner.learn_session(np.eye(4), list("abab"))  # with features of another width
    assert learner.classes == ["a", "b"]
    assert learner.undo().undo().classes == [1] and learner.predict(X).tolist() == [1] * 3


def test_rename_changes_a_label_and_nothing_else() -> None:
    learner, world = learned()
    X, _ = world.draw(list(range(10)), 10)
    answers, familiar = learner.predict_proba(X), learner.familiarity(X)
    learner.rename(3, "three").rename(7, "seven")
    assert learner.classes == [0, 1, 2, "three", 4, 5, 6, "seven", 8, 9]
    assert learner.sessions == [[0, 1, 2, "three", 4, 5], [6, "seven"], [8], [9]]
    assert np.array_equal(learner.predict_proba(X), answers) and np.array_equal(learner.familiarity(X), familiar)
    assert {"three", "seven"} <= {row[0] for row in learner.explain().models.rows}
    more, _ = world.draw([7], 4)
    learner.learn_session(more, ["seven"] * 4)
    assert learner.known.labels[-4:].tolist() == [7] * 4 and len(learner.classes) == 10
    learner.forget("seven")
    assert "seven" not in learner.classes


VERBS: dict[str, Callable[[FewShotLearner, World], Any]] = {
    "fit_base": lambda learner, world: learner.fit_base(*world.draw([3, 4], 20)),
    "learn_session": lambda learner, world: learner.learn_session(*world.draw([9], 3)),
    "more": lambda learner, world: learner.learn_session(*world.draw([0], 3)),
    "forget": lambda learner, world: learner.forget(1),
    "rename": lambda learner, world: learner.rename(1, "one"),
    "merge": lambda learner, world: learner.merge(FewShotLearner().learn_session(*world.draw([0, 9], 3))),
}


@pytest.mark.parametrize("verb", list(VERBS))
@pytest.mark.parametrize("base", [True, False])
def test_undo_goes_back(verb: str, base: bool) -> None:
    world = World()
    learner = FewShotLearner()
    learner = learner.fit_base(*world.draw([0, 1, 2], 40)) if base else learner.learn_session(*world.draw([0, 1], 4))
    learner.learn_session(*world.draw([5], 4))
    X, _ = world.draw(list(range(10)), 5)
    known, classes, sessions = learner.known, learner.classes, learner.sessions
    before, answers, familiar = arrays_of(known), learner.predict_proba(X), learner.familiarity(X)
    VERBS[verb](learner, world)
    assert_same(known, before)  # what is known was replaced, and not changed
    assert learner.known is not known
    learner.undo()
    assert learner.known is known and (learner.classes, learner.sessions) == (classes, sessions)
    assert np.array_equal(learner.predict_proba(X), answers) and np.array_equal(learner.familiarity(X), familiar)
    assert_same(known, before)


def test_undo_to_the_beginning_and_no_further() -> None:
    learner, world = learned()
    for classes in (9, 8, 6):
        assert learner.undo().classes == list(range(classes))
    assert learner.undo().classes == []
    with pytest.raises(ValueError, match="there is nothing to undo"):
        learner.undo()
    with pytest.raises(ValueError, match="there is nothing to undo"):
        FewShotLearner().undo()
    assert learner.learn_session(*world.draw([0], 3)).classes == [0]


def test_the_last_changes_can_be_undone() -> None:
    learner, _ = from_nothing([0, 1])
    for k in range(KEPT_STATES + 5):
        learner.rename(learner.classes[0], f"name {k}")
    for k in reversed(range(4, KEPT_STATES + 4)):
        assert learner.undo().classes == [f"name {k}", 1]
    with pytest.raises(ValueError, match="there is nothing to undo"):
        learner.undo()
    assert learner.classes == ["name 4", 1]


# Merge ----------------------------------------------------------------------------------------------------------------


def test_merged_learners_know_what_both_know() -> None:
    world = World()
    base = world.draw([0, 1, 2, 3], 60)
    lessons = {c: world.draw([c], 5) for c in (4, 5, 6)}
    more = world.draw([5], 3)
    one = FewShotLearner().fit_base(*base).learn_session(*lessons[4]).learn_session(*lessons[5])
    two = FewShotLearner().fit_base(*base).learn_session(*more).learn_session(*lessons[6])
    before = arrays_of(two.known)
    X, y = world.draw(list(range(7)), 30)
    answers = two.predict_proba(X)
    one.merge(two)
    assert_same(two.known, before)
    assert np.array_equal(two.predict_proba(X), answers)
    assert one.classes == list(range(7)) and one.sessions == [[0, 1, 2, 3], [4], [5], [6]]
    assert len(one.known.heads) == 1 and one.members.names == ["base head", "prototypes", "ridge"]
    shots = one.known.labels[one.known.shot]
    assert np.bincount(shots).tolist() == [0, 0, 0, 0, 5, 8, 5] and (~one.known.shot).sum() == 40
    assert (one.predict(X) == y).mean() > 0.85
    teacher = FewShotLearner().fit_base(*base)
    for lesson in (lessons[4], lessons[5], more, lessons[6]):
        teacher.learn_session(*lesson)
    assert np.abs(one.predict_proba(X) - teacher.predict_proba(X)).max() < 1e-4  # as if one had been taught all


def test_a_learner_that_knows_nothing_takes_all() -> None:
    learner, world = learned()
    X, _ = world.draw(list(range(10)), 10)
    other = FewShotLearner().merge(learner)
    assert other.classes == learner.classes and other.sessions == learner.sessions
    assert np.allclose(other.predict_proba(X), learner.predict_proba(X), atol=1e-5)
    assert other.undo().classes == []


def test_merging_a_learner_with_itself_changes_no_answer() -> None:
    learner, world = learned()
    X, _ = world.draw(list(range(10)), 10)
    answers = learner.predict_proba(X)
    assert np.allclose(learner.merge(learner).predict_proba(X), answers, atol=1e-5)


def test_different_base_sessions_are_both_heard() -> None:
    world = World()
    one = FewShotLearner().fit_base(*world.draw([0, 1, 2], 60)).learn_session(*world.draw([6], 5))
    two = FewShotLearner().fit_base(*world.draw([2, 3, 4], 60)).learn_session(*world.draw([7], 5))
    one.merge(two)
    assert one.classes == [0, 1, 2, 3, 4, 6, 7] and one.sessions == [[0, 1, 2, 3, 4], [6], [7]]
    assert one.members.names == ["base head", "base head 2", "prototypes", "ridge"]
    X, y = world.draw(one.classes, 30)
    assert (one.predict(X) == y).mean() > 0.85
    shares = {(label, member): share for label, member, share in one.explain().models.rows}
    assert shares["0", "base head 2"] == 0 == shares["3", "base head"]


def test_merging_what_does_not_fit() -> None:
    learner, world = learned()
    X, _ = world.draw([0, 6], 3)
    assert_unchanged_by(learner, X, lambda: learner.merge(FewShotLearner()), "the other learner knows no class yet")
    narrow = FewShotLearner().learn_session(np.eye(3), [0, 1, 2])
    assert_unchanged_by(learner, X, lambda: learner.merge(narrow), "different views")
    images = FewShotLearner(lambda images: images).learn_session(X, [0] * 3 + [6] * 3)
    assert_unchanged_by(learner, X, lambda: learner.merge(images), "one learner takes features and the other images")
    other = FewShotLearner(lambda images: images).learn_session(X, [0] * 3 + [6] * 3)
    assert_unchanged_by(images, X, lambda: images.merge(other), "different backbones: give both the same object")
    shots = learner.known.views["plain"][learner.known.shot][:1]
    contrary = FewShotLearner().learn_session(shots, ["other"])
    assert_unchanged_by(learner, X, lambda: learner.merge(contrary), "an example has one label")


# Single shots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fuser", [*fuser_names(), "prototypes"])
def test_classes_of_one_shot_alone_are_answered_without_a_fuser(fuser: str) -> None:
    learner, world = from_nothing([0, 1, 2], shots=1, fuser=fuser)
    X, y = world.draw([0, 1, 2], 30)
    p = learner.predict_proba(X)
    assert np.allclose(p.sum(1), 1, atol=1e-5) and (learner.predict(X) == y).mean() > 0.8
    if fuser == "afa":
        assert learner.fitted is None and learner.chosen() == {}
        assert np.allclose(p, learner.member_scores(X).mean(1), atol=1e-6)
        with pytest.raises(ValueError, match="explain needs"):
            learner.explain()


@pytest.mark.parametrize("fuser", [*fuser_names(), "prototypes"])
@pytest.mark.parametrize("base", [False, True])
def test_a_class_of_one_shot_among_others(fuser: str, base: bool) -> None:
    world = World()
    learner = FewShotLearner(fuser=fuser)
    if base:
        learner.fit_base(*world.draw([0, 1, 2], 40))
    learner.learn_session(*world.draw([4, 5], 5)).learn_session(*world.draw([6], 1))
    X, y = world.draw(learner.classes, 30)
    p = learner.predict_proba(X)
    assert np.isfinite(p).all() and np.allclose(p.sum(1), 1, atol=1e-4)
    assert (learner.predict(X) == y).mean() > 0.6


@pytest.mark.parametrize("fuser", [*fuser_names(), "prototypes"])
@pytest.mark.parametrize("n_views", [1, 2])
def test_one_class_alone_is_certain(fuser: str, n_views: int) -> None:
    X, y = views_of([3], 5, 0, (1.0,) * n_views)
    learner = FewShotLearner(fuser=fuser).learn_session(X, y)
    assert np.allclose(learner.predict_proba(X), 1) and learner.predict(X).tolist() == [3] * 5


# A verb that fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [True, False])
def test_bad_input_is_named_and_changes_nothing(base: bool) -> None:
    learner, world = learned() if base else from_nothing([6, 7, 8])
    X, y = world.draw([6, 7], 3)
    nan, infinite = X.copy(), X.copy()
    nan[2, 5], infinite[2, 5] = np.nan, np.inf
    known = learner.known.views["plain"][learner.known.shot][:1]
    learn = learner.learn_session
    for verb, words in (
        (lambda: learn(known, ["other"]), "an example of 'other' is the same as one of 6: an example has one label"),
        (lambda: learn(X[[0, 0]], ["a", "b"]), "an example of 'b' is the same as one of 'a'"),
        (lambda: learn(X[:0], []), "no examples: give at least one of each class"),
        (lambda: learn(X, y[:2]), "6 examples and 2 labels"),
        (lambda: learn(X, y[:, None]), "y must be a list of labels"),
        (lambda: learn(X, "cat"), "y must be a list of labels"),
        (lambda: learn(X, [np.nan] * 6), "labels that are NaN"),
        (lambda: learn(X, [None] * 6), "a label must be a text, a number or the like, got None"),
        (lambda: learn(X, ["a", float("nan"), 1, 1, 1, 1]), "a label must be a text, a number or the like, got nan"),
        (lambda: learner.fit_base(X, ["a", 1] * 3), "fit_base sorts its labels: give labels of one type"),
        (lambda: learn(X[:, :7], y), "24 columns, got 7: use the same backbone"),
        (lambda: learn({"plain": X, "zoom": X}, y), "'zoom' is unknown in X"),
        (lambda: learn({"zoom": X}, y), "'plain' is missing in X"),
        (lambda: learn(nan, y), "features must be finite"),
        (lambda: learn(infinite, y), "features must be finite"),
        (lambda: learn(X.astype(str), y), "must be numbers"),
        (lambda: learner.predict(X[:, :7]), "24 columns, got 7"),
        (lambda: learner.predict_proba(nan), "features must be finite"),
        (lambda: learner.familiarity(nan), "features must be finite"),
        (lambda: learner.predict({"zoom": X}), "'plain' is missing in X"),
        (lambda: learner.predict(X, unknown=0), "unknown must be a rate between 0 and 1"),
        (lambda: learner.predict(X, unknown=1), "unknown must be a rate between 0 and 1"),
        (lambda: learner.predict(X, unknown=5), "unknown must be a rate between 0 and 1, such as 0.05, got 5"),
        (lambda: learner.predict(X, unknown=-0.1), "unknown must be a rate between 0 and 1"),
        (lambda: learner.predict(X, unknown=np.nan), "unknown must be a rate between 0 and 1"),
        (lambda: learner.forget("nobody"), "class 'nobody' is not known; known are: "),
        (lambda: learner.rename("nobody", "somebody"), "class 'nobody' is not known"),
        (lambda: learner.rename(6, 7), "class 7 is known already"),
        (lambda: learner.rename(6, [7]), "a label must be"),
        (lambda: learner.fit_base(X, [0] * 6), "at least two classes"),
        (lambda: learner.fit_base(nan, [0, 1] * 3), "finite"),
        (lambda: learner.fit_base(X, [0, 0, 0, 0, 0, 1]), "one example"),
    ):
        assert_unchanged_by(learner, X, verb, words)


def test_a_fuser_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from faverage.fusion.afa import AFAFuser

    learner, world = learned()
    X, y = world.draw([0, 6], 3)

    def fail(*_: Any) -> None:
        raise ValueError("no optimum")

    monkeypatch.setattr(AFAFuser, "_fit", fail)
    other = FewShotLearner(fuser="prototypes").learn_session(*world.draw([0, 9], 3))
    for verb in (
        lambda: learner.learn_session(X, y),
        lambda: learner.learn_session(X, ["new"] * 6),
        lambda: learner.forget(3),
        lambda: learner.merge(other),
    ):
        assert_unchanged_by(learner, X, verb, "no optimum")


@pytest.mark.parametrize("fuser", ["afa-paper", "log-pool", "logistic"])
def test_what_fails_first_can_be_done_well_later(fuser: str) -> None:
    learner, world = learned(fuser)
    X, _ = world.draw([0, 6], 3)
    shots, labels = world.draw([3], 4)
    assert_unchanged_by(learner, X, lambda: learner.learn_session(shots * np.nan, labels), "finite")
    assert learner.learn_session(shots + 1, ["n"] * 4).classes[-1] == "n"


# Labels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([3, 1, 2], "i"),
        (["cat", "dog", "a long name of a class"], "U"),
        ([0.5, 1.5, 2.5], "f"),
        ([False, True], "b"),
    ],
)
def test_labels_come_back_as_they_were_given(labels: list[Any], kind: str) -> None:
    world = World()
    learner = FewShotLearner()
    for k, label in enumerate(labels):
        learner.learn_session(world.draw([k], 4)[0], [label] * 4)
    assert learner.classes == labels and [type(c) for c in learner.classes] == [type(c) for c in labels]
    for k, label in enumerate(labels):
        found = learner.predict(world.draw([k], 5)[0])
        assert found.dtype.kind == kind and found.tolist() == [label] * 5
    none = learner.predict(world.draw([0], 1)[0][:0])
    assert none.shape == (0,) and none.dtype.kind == kind


def test_labels_of_several_types_stay_apart() -> None:
    learner, world = from_nothing([0, 1])
    X, _ = world.draw([5], 4)
    learner.learn_session(X, ["1"] * 4)
    assert learner.classes == [0, 1, "1"]
    X, y = world.draw([0, 1], 10)
    found = learner.predict(X)
    assert found.dtype == object and (found == y).mean() > 0.9
    assert learner.predict(X[:0]).shape == (0,) and learner.predict_proba(X[:0]).shape == (0, 3)
    X, _ = world.draw([6, 0], 1)
    assert learner.learn_session(X, ["new", 0]).classes == [0, 1, "1", "new"]  # 0 is the class 0, and no text


def test_views_and_undo_together() -> None:
    learner = taught_views()
    X, _ = views_of(list(range(8)), 5, 9)
    answers = learner.predict_proba(X)
    learner.learn_session(*views_of([0, 7], 3, 20)).forget(6).rename(5, "five")
    assert not np.array_equal(learner.predict_proba(X), answers)
    learner.undo().undo().undo()
    assert np.array_equal(learner.predict_proba(X), answers)


# Why ------------------------------------------------------------------------------------------------------------------


def test_why_tells_what_members_say_and_which_examples_are_near() -> None:
    learner, world = learned()
    X, _ = world.draw([0, 3, 6, 9], 5)
    answers, p, scores = learner.predict(X), learner.predict_proba(X), learner.member_scores(X)
    order = np.argsort(-p, axis=1, kind="stable")
    for i, why in enumerate(learner.why(X, neighbours=3)):
        first, second = order[i, :2]
        assert (why.label, why.against) == (answers[i], learner.classes[second])
        assert why.probability == pytest.approx(p[i, first]) and why.familiarity == learner.familiarity(X)[i]
        assert [one.member for one in why.said] == learner.members.names and len(why.nearest) == 3
        for k, one in enumerate(why.said):
            assert one.best == learner.classes[int(np.nanargmax(scores[i, k]))]
            if np.isnan(scores[i, k, first]):
                assert one.probability is None
            else:
                assert one.probability == pytest.approx(float(scores[i, k, first]))
        similar = unit(learner.known.views["plain"]) @ unit(X[i : i + 1])[0]
        assert [one.row for one in why.nearest] == np.argsort(-similar, kind="stable")[:3].tolist()
        assert [one.label for one in why.nearest] == [
            learner.classes[learner.known.labels[one.row]] for one in why.nearest
        ]


def test_pushes_and_biases_are_the_log_odds_of_the_network_in_use() -> None:
    learner, world = learned(fuser_options={"combine": "best"})
    X, _ = world.draw(range(10), 5)
    p, (fit,) = learner.predict_proba(X), learner.fitted.fits.values()
    for i, why in enumerate(learner.why(X)):
        a, b = learner.classes.index(why.label), learner.classes.index(why.against)
        pushed = sum(one.push for one in why.said) + fit.bias[a] - fit.bias[b]
        assert pushed == pytest.approx(np.log(p[i, a] / p[i, b]), abs=1e-4)


def test_why_has_the_labels_of_today() -> None:
    learner, world = from_nothing([0, 1])
    X, _ = world.draw([0], 2)
    for why in learner.rename(0, "zero").why(X):
        assert why.label == "zero" == why.nearest[0].label == why.said[0].best and why.against == 1
    assert learner.undo().why(X)[0].label == 0
    one, _ = from_nothing([4])
    why = one.why(X)[0]
    assert why.against is None and why.probability == 1 and why.said[0].push is None
