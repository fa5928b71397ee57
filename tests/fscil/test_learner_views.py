"""A learner over many views: members, joint stand-ins, the knobs, and which view is trusted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.fscil import CosineHead, FewShotLearner
from faverage.fscil.heads import calibrated, unit
from faverage.fscil.rehearsal import rehearse
from helpers_learner import D, assert_unchanged_by, taught_views, views_of
from helpers_run import command, few_digits, said


@pytest.mark.parametrize("fuser", ["afa", "arithmetic", "geometric", "log-pool", "logistic", "vote"])
def test_two_views_know_more_than_one(fuser: str) -> None:
    noise = (3.0, 3.0)
    X, y = views_of(list(range(8)), 100, 9, noise)
    both = (taught_views(noise, fuser=fuser).predict(X) == y).mean()
    one = (taught_views(noise, fuser="prototypes").predict(X) == y).mean()
    assert both > one + 0.03


def test_the_better_view_is_trusted_more() -> None:
    learner = taught_views((0.7, 4.0))
    trust: dict[str, float] = {}
    for _, member, share in learner.explain().models.rows:
        view = member.split(",")[0]
        trust[view] = trust.get(view, 0.0) + share
    assert trust["view 0"] > 1.5 * trust["view 1"]
    pairs = [f"view {v}, {kind}" for v in (0, 1) for kind in ("base head", "prototypes")]
    assert learner.members.names == [*pairs, "ridge"]


def test_scores_of_members() -> None:
    learner = taught_views()
    X, _ = views_of([0, 7], 3, 5)
    scores = learner.member_scores(X)
    assert scores.shape == (6, 5, 8)
    assert np.isnan(scores[:, :4:2, 4:]).all() and np.isfinite(scores[:, [1, 3, 4]]).all()
    assert np.allclose(np.nansum(scores, 2), 1, atol=1e-5)
    assert np.allclose(learner.predict_proba(X).sum(1), 1, atol=1e-5)
    assert np.array_equal(learner.fuse(scores), learner.predict_proba(X))
    assert np.array_equal(learner.scores_of(learner.features(X)), scores, equal_nan=True)
    alone = taught_views(fuser="no-fine-tuning").predict_proba(X)
    assert np.array_equal(alone[:, :4], scores[:, 0, :4]) and not alone[:, 4:].any()
    early = FewShotLearner().fit_base(*views_of([0, 1, 2, 3], 60, 0))
    first = {view: x[:3] for view, x in X.items()}
    assert early.predict_proba(first).shape == (3, 4) and (early.predict(first) == 0).all()


def test_as_long_as_nothing_was_taught_the_base_heads_answer_alone() -> None:
    learner = FewShotLearner().fit_base(*views_of([0, 1, 2, 3], 60, 0, (2.0, 2.0)))
    X, _ = views_of([0, 1, 2, 3], 5, 5, (2.0, 2.0))
    assert learner.fitted is None
    assert np.allclose(learner.predict_proba(X), learner.member_scores(X)[:, [0, 2]].mean(1), atol=1e-6)


@pytest.mark.parametrize("fuser", ["afa", "log-pool", "arithmetic"])
def test_the_order_in_which_views_are_given_does_not_matter(fuser: str) -> None:
    learner = taught_views(fuser=fuser)
    X, _ = views_of(list(range(8)), 5, 9)
    turned = dict(reversed(X.items()))
    assert list(turned) != list(X)
    assert np.array_equal(learner.predict_proba(turned), learner.predict_proba(X))
    more, y = views_of([1], 3, 11)
    assert np.array_equal(
        learner.learn_session(dict(reversed(more.items())), y).predict_proba(X),
        taught_views(fuser=fuser).learn_session(more, y).predict_proba(X),
    )


def test_one_view_by_name_is_an_array() -> None:
    X, y = views_of([0, 1, 2, 3], 5, 0, (1.0,))
    new, _ = views_of([0, 1, 2, 3], 5, 1, (1.0,))
    named = FewShotLearner().learn_session(X, y)
    plain = FewShotLearner().learn_session(X["view 0"], y)
    assert list(named.known.views) == ["view 0"] and list(plain.known.views) == ["plain"]
    assert named.members.names == plain.members.names == ["prototypes", "ridge"]
    assert np.array_equal(named.predict_proba(new), plain.predict_proba(new["view 0"]))
    assert np.array_equal(named.predict_proba(new["view 0"]), named.predict_proba(new))  # one view needs no name
    with pytest.raises(ValueError, match="the learner has the views plain: 'plain' is missing in X"):
        plain.predict(new)


def test_copies_of_a_view_change_no_answer_of_prototypes() -> None:
    X, y = views_of([0, 1, 2, 3], 5, 0, (1.0,))
    new, _ = views_of([0, 1, 2, 3], 5, 1, (1.0,))
    x, n = X["view 0"], new["view 0"]
    twice = FewShotLearner(ridge=None, fuser="arithmetic").learn_session({"a": x, "b": x}, y)
    once = FewShotLearner(ridge=None, fuser="arithmetic").learn_session(x, y)
    assert np.allclose(twice.predict_proba({"a": n, "b": n}), once.predict_proba(n), atol=1e-6)
    assert np.allclose(twice.familiarity({"a": n, "b": n}), once.familiarity(n), atol=1e-6)


@pytest.mark.parametrize("rehearsal", ["residual", "left-out"])
def test_a_rehearsed_example_is_the_same_image_in_all_views(rehearsal: Any) -> None:
    """Both views are copies of one another, so that what is rehearsed must be, too."""
    X, y = views_of([0, 1, 2, 3], 90, 0, (1.0,))
    learner = FewShotLearner(fuser="prototypes").fit_base(dict.fromkeys("ab", X["view 0"]), y)
    X, y = views_of([4, 5], 5, 1, (1.0,))
    learner.learn_session(dict.fromkeys("ab", X["view 0"]), y)
    rng = np.random.default_rng(0)
    found = rehearse(learner.known, rehearsal, learner.members.prototypes, rng)
    scores = learner.scores_of(found.views, (found.left_out, found.labels))
    assert len(scores) == 4 * 15 + 2 * (50 if rehearsal == "residual" else 5)
    assert np.array_equal(found.views["a"], found.views["b"])
    assert np.array_equal(scores[:, 0], scores[:, 2], equal_nan=True) and np.array_equal(scores[:, 1], scores[:, 3])


def test_weights_of_a_kind_of_class_are_shared() -> None:
    learner = taught_views()
    shares = np.array([row[2] for row in learner.explain().models.rows]).reshape(8, 5)
    assert (shares[:4] == shares[0]).all() and (shares[4:] == shares[4]).all() and not (shares[0] == shares[4]).all()
    assert not shares[4:, [0, 2]].any()  # base heads know no new class
    own = taught_views(fuser_options={"structure": "per_class"}).explain().models.rows
    assert len({round(row[2], 9) for row in own}) > 8


@pytest.mark.parametrize("base", [True, False])
def test_views_of_different_widths(base: bool) -> None:
    widths = (D, 5)
    X, y = views_of([0, 1, 2], 60, 0, widths=widths)
    learner = FewShotLearner()
    learner = learner.fit_base(X, y) if base else learner.learn_session(*views_of([0, 1, 2], 5, 7, widths=widths))
    learner.learn_session(*views_of([5], 5, 1, widths=widths))
    assert learner.known.widths == {"view 0": D, "view 1": 5}
    assert [x.shape for x in learner.members.prototypes.values()] == [(4, D), (4, 5)]
    assert (learner.predict(X) == y).mean() > 0.8
    X["view 1"] = X["view 1"][:, :4]
    words = "features of the view 'view 1' must have 5 columns, got 4: use the same backbone"
    assert_unchanged_by(learner, views_of([0], 3, 0, widths=widths)[0], lambda: learner.predict(X), words)


def test_views_that_are_missing_or_foreign_are_named() -> None:
    learner = taught_views()
    X, y = views_of([1], 3, 3)
    one, three = {"view 0": X["view 0"]}, {**X, "view 9": X["view 0"]}
    short = {**X, "view 1": X["view 1"][:2]}
    for verb in (learner.predict, learner.predict_proba, learner.familiarity, lambda x: learner.learn_session(x, y)):
        assert_unchanged_by(learner, X, lambda v=verb: v(one), "the views view 0, view 1: 'view 1' is missing in X")
        assert_unchanged_by(learner, X, lambda v=verb: v(three), "'view 9' is unknown in X")
        assert_unchanged_by(learner, X, lambda v=verb: v(X["view 0"]), "'view 0' is missing")
        assert_unchanged_by(learner, X, lambda v=verb: v({}), "at least one view")
        assert_unchanged_by(learner, X, lambda v=verb: v(short), "all views must have the same examples")


def test_balance_moves_answers_to_new_classes() -> None:
    X, _ = views_of(list(range(8)), 60, 9, (4.0, 4.0))
    shares = [(taught_views((4.0, 4.0), balance=balance).predict(X) >= 4).mean() for balance in (0.2, 1.0, 5.0)]
    assert shares == sorted(shares) and shares[2] > shares[0] + 0.05


def test_calibration_draws_prototypes_to_similar_base_classes() -> None:
    base = np.eye(3)
    new = unit(np.array([[0.9, 0.4, 0.0]]))
    assert np.array_equal(calibrated(new, base, share=0.0), new)
    drawn = calibrated(new, base, share=0.5, sharpness=100.0)
    assert np.allclose(drawn, 0.5 * new + 0.5 * base[0], atol=1e-3)
    plain, moved = taught_views(), taught_views(calibration=0.5)
    for view in plain.known.views:
        a, b = plain.members.prototypes[view], moved.members.prototypes[view]
        assert np.array_equal(a[:4], b[:4]) and not np.allclose(a[4:], b[4:])
        assert np.array_equal(plain.known.prototypes(view), moved.known.prototypes(view))  # what is known is the same
    heads = {member.view: member.head for member in moved.members.members if member.kind == "prototypes"}
    assert all(np.array_equal(head.prototypes, moved.members.prototypes[view]) for view, head in heads.items())


def test_base_heads_that_are_cosines() -> None:
    X, y = views_of([0, 1, 2, 3], 60, 0)
    rng = np.random.default_rng(0)
    cosine, linear = CosineHead(rng.normal(size=(4, D)), 16.0), (rng.normal(size=(4, D)), np.zeros(4))
    means = {view: np.stack([unit(x[y == c]).mean(0) for c in range(4)]) for view, x in X.items()}
    learner = FewShotLearner().fit_base(X, y, head={"view 0": cosine, "view 1": linear}, prototypes=means)
    learner.learn_session(*views_of([5], 5, 1))
    few = {view: x[:3] for view, x in X.items()}
    scores = learner.member_scores(few)
    cosines = unit(few["view 0"]) @ unit(cosine.weight).T
    assert np.allclose(np.log(scores[:, 0, :4]), 16 * cosines - np.log(np.exp(16 * cosines).sum(1))[:, None], atol=1e-3)
    logits = few["view 1"] @ linear[0].T
    assert np.allclose(scores[:, 2, :4], np.exp(logits) / np.exp(logits).sum(1, keepdims=True), atol=1e-4)


def test_a_cosine_head_is_kept_on_disk(tmp_path: Path) -> None:
    X, y = views_of([0, 1, 2], 60, 0, (1.0,))
    head = CosineHead(np.random.default_rng(0).normal(size=(3, D)).astype(np.float32), 9.0)
    learner = (
        FewShotLearner(balance=2.0, balance_of="kinds")
        .fit_base(X, y, head=head)
        .learn_session(*views_of([5], 5, 1, (1.0,)))
    )
    again = FewShotLearner.load(learner.save(tmp_path / "learner"))
    assert again.known.heads[0].head.scale == 9.0 and (again.balance, again.balance_of) == (2.0, "kinds")
    assert np.array_equal(again.predict_proba(X), learner.predict_proba(X))


def test_bad_input_is_refused() -> None:
    for options in ({"spread": -1}, {"calibration": 1.5}, {"balance": 0}, {"balance_of": "all"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FewShotLearner(**options)
    with pytest.raises(ValueError, match="unknown fuser"):
        FewShotLearner(fuser="best")
    X, y = views_of([0, 1], 10, 0)
    with pytest.raises(ValueError, match="one head for each of the views view 0, view 1, got view 0"):
        FewShotLearner().fit_base(X, y, head=(np.ones((2, D)), np.zeros(2)))
    with pytest.raises(ValueError, match="the views view 0, view 1: 'view 1' is missing"):
        FewShotLearner().fit_base(X, y, prototypes={"view 0": np.ones((2, D))})
    with pytest.raises(ValueError, match="all views must have the same examples"):
        FewShotLearner().fit_base({"a": X["view 0"], "b": X["view 0"][:3]}, y)
    with pytest.raises(ValueError, match="at least two classes"):
        FewShotLearner().fit_base({}, [])
    with pytest.raises(ValueError, match=r"call learn_session\(X, y\), or fit_base\(X, y\) first"):
        FewShotLearner().predict_proba(X)


@pytest.mark.slow
def test_a_run_with_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: few_digits(2))
    file = tmp_path / "views.yaml"
    views = "views: [plain, rotate-90, rotate-180, 'flip']\n"
    file.write_text(
        f"epochs: 3\nrotations: true\n{views}methods: [no-fine-tuning, prototypes, geometric, afa]\njobs: 1\n"
    )
    result = command("digits", "--config", file, "--out", tmp_path / "many")
    assert result.exit_code == 0, said(result)
    many = json.loads((tmp_path / "many" / "results.json").read_text())
    f1 = {name: method["sessions"][-1]["f1"] for name, method in many["methods"].items()}
    assert f1["afa"] > f1["geometric"] and f1["afa"] > f1["no-fine-tuning"]
    heads = many["methods"]["afa"]["explanation"]["heads"]
    names = ("plain", "rotate-90", "rotate-180", "flip")
    assert heads == [*(f"{view}, {kind}" for view in names for kind in ("base head", "prototypes")), "ridge"]
    with monkeypatch.context() as patch:  # the network of four views does for one
        patch.setattr("faverage.vision.engine.loop.Loop.epoch", lambda *_: pytest.fail("trained again"))
        assert command("digits", "--config", file, "--views", 1, "--out", tmp_path / "many").exit_code == 0
    one = json.loads((tmp_path / "many" / "results.json").read_text())
    assert one["config"]["views"] == ["plain"]
    for name in ("no-fine-tuning", "prototypes"):  # those of the first view, with many as with one
        assert one["methods"][name]["sessions"][-1]["f1"] == pytest.approx(f1[name])
    assert "a number from 1 to 4" in said(command("digits", "--config", file, "--views", 5))
    file.write_text("views: [plain, sideways]\n")
    assert "unknown view 'sideways'" in said(command("digits", "--config", file))
    file.write_text("views: plain\n")
    assert "views must be a list of names, as [plain, rotate-90]" in said(command("digits", "--config", file))
    file.write_text("calibration: 2\n")
    assert "calibration must be a number from 0 to 1" in said(command("digits", "--config", file))
