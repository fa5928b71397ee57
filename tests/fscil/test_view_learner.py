"""A learner over many views: members, joint stand-ins, the knobs, and which view is trusted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.fscil import CosineHead, FewShotLearner, ViewLearner
from faverage.fscil.heads import calibrated, unit
from helpers_run import command, said

D = 12


def examples(classes: list[int], n: int, seed: int, noise: tuple[float, ...] = (1.0, 1.0)) -> tuple[Any, Any]:
    """Features of views that see the same classes through noise of their own."""
    centres = np.random.default_rng(99).normal(size=(len(noise), 8, D)) * 2
    rng = np.random.default_rng(seed)
    y = np.repeat(classes, n)
    views = [np.abs(centre[y] + s * rng.normal(size=(len(y), D))) for centre, s in zip(centres, noise, strict=True)]
    return np.concatenate(views, 1), y


def taught(noise: tuple[float, ...] = (1.0, 1.0), **options: Any) -> ViewLearner:
    learner = ViewLearner([f"view {v}" for v in range(len(noise))], **options)
    learner.fit_base(*examples([0, 1, 2, 3], 90, 0, noise))
    for k, new in enumerate(([4, 5], [6, 7])):
        learner.learn_session(*examples(new, 5, 1 + k, noise))
    return learner


@pytest.mark.parametrize("fuser", ["afa", "arithmetic", "geometric", "log-pool", "logistic", "vote"])
def test_two_views_know_more_than_one(fuser: str) -> None:
    noise = (3.0, 3.0)
    X, y = examples(list(range(8)), 100, 9, noise)
    both = (taught(noise, fuser=fuser).predict(X) == y).mean()
    one = (taught(noise, fuser="prototypes").predict(X) == y).mean()
    assert both > one + 0.03


def test_the_better_view_is_trusted_more() -> None:
    learner = taught((0.7, 4.0))
    trust: dict[str, float] = {}
    for _, member, share in learner.explain().models.rows:
        view = member.split(",")[0]
        trust[view] = trust.get(view, 0.0) + share
    assert trust["view 0"] > 1.5 * trust["view 1"]
    assert learner.members == ["view 0, base", "view 0", "view 1, base", "view 1", "ridge"]


def test_scores_of_members() -> None:
    learner = taught()
    X, _ = examples([0, 7], 3, 5)
    scores = learner.member_scores(X)
    assert scores.shape == (6, 5, 8)
    assert np.isnan(scores[:, :4:2, 4:]).all() and np.isfinite(scores[:, [1, 3, 4]]).all()
    assert np.allclose(np.nansum(scores, 2), 1, atol=1e-5)
    assert np.allclose(learner.predict_proba(X).sum(1), 1, atol=1e-5)
    alone = taught(fuser="no-fine-tuning").predict_proba(X)
    assert np.array_equal(alone[:, :4], scores[:, 0, :4]) and not alone[:, 4:].any()
    early = ViewLearner(["a", "b"]).fit_base(*examples([0, 1, 2, 3], 60, 0))
    assert early.predict_proba(X[:3]).shape == (3, 4) and (early.predict(X[:3]) == 0).all()


@pytest.mark.parametrize("rehearsal", ["residual", "left-out"])
def test_a_rehearsed_example_is_the_same_image_in_all_views(rehearsal: Any) -> None:
    """Both views are copies of one another, so that what is rehearsed must be, too."""
    X, y = examples([0, 1, 2, 3], 90, 0, (1.0,))
    learner = ViewLearner(["a", "b"], fuser="prototypes", rehearsal=rehearsal).fit_base(np.tile(X, 2), y)
    X, y = examples([4, 5], 5, 1, (1.0,))
    learner.learn_session(np.tile(X, 2), y)
    first, second = (part.rehearse()[0] for part in learner.parts)
    assert len(first) == 4 * 15 + 2 * (50 if rehearsal == "residual" else 5)
    assert np.array_equal(first, second, equal_nan=True)


def test_a_shot_that_is_left_out_is_scored_as_if_it_had_not_been_there() -> None:
    X, y = examples([0, 1, 2, 3], 90, 0, (1.0,))
    new_X, new_y = examples([4, 5], 5, 1, (1.0,))
    options: dict[str, Any] = {"fuser": "prototypes", "rehearsal": "left-out", "calibration": 0.2}
    learner = FewShotLearner(**options).fit_base(X, y).learn_session(new_X, new_y)
    scores, labels, weight = learner.rehearse()
    assert labels[60:].tolist() == new_y.tolist() and weight[-1] == pytest.approx(3 * weight[0])
    for i in range(10):
        rest = np.arange(10) != i
        without = FewShotLearner(**options).fit_base(X, y).learn_session(new_X[rest], new_y[rest])
        assert np.allclose(without.head_scores(new_X[i : i + 1])[0, -1], scores[60 + i, -1], atol=1e-5)
    assert np.allclose(scores[:60], learner.head_scores(learner.memory.base), equal_nan=True)


def test_a_class_of_one_shot_is_rehearsed_by_stand_ins() -> None:
    learner = FewShotLearner(rehearsal="left-out").fit_base(*examples([0, 1, 2, 3], 90, 0))
    X, y = examples([4, 5], 5, 1)
    learner.learn_session(X[4:], y[4:])
    _, labels, weight = learner.rehearse()
    assert np.bincount(labels)[4:].tolist() == [50, 5]
    assert np.bincount(labels, weight) == pytest.approx(weight.sum() / 6)


def test_weights_of_a_kind_of_class_are_shared() -> None:
    learner = taught()
    shares = np.array([row[2] for row in learner.explain().models.rows]).reshape(8, 5)
    assert (shares[:4] == shares[0]).all() and (shares[4:] == shares[4]).all() and not (shares[0] == shares[4]).all()
    own = taught(fuser_options={"structure": "per_class"}).explain().models.rows
    assert len({round(row[2], 9) for row in own}) > 8


def test_views_of_different_widths() -> None:
    X, y = examples([0, 1, 2], 60, 0)
    learner = ViewLearner(["wide", "narrow"], widths=[2 * D - 5, 5]).fit_base(X, y)
    learner.learn_session(*examples([5], 5, 1))
    assert [part.prototypes.shape for part in learner.parts] == [(4, 2 * D - 5), (4, 5)]
    assert (learner.predict(X) == y).mean() > 0.8


def test_balance_moves_answers_to_new_classes() -> None:
    X, _ = examples(list(range(8)), 60, 9, (4.0, 4.0))
    shares = [(taught((4.0, 4.0), balance=balance).predict(X) >= 4).mean() for balance in (0.2, 1.0, 5.0)]
    assert shares == sorted(shares) and shares[2] > shares[0] + 0.05


def test_calibration_draws_prototypes_to_similar_base_classes() -> None:
    base = np.eye(3)
    new = unit(np.array([[0.9, 0.4, 0.0]]))
    assert np.array_equal(calibrated(new, base, share=0.0), new)
    drawn = calibrated(new, base, share=0.5, sharpness=100.0)
    assert np.allclose(drawn, 0.5 * new + 0.5 * base[0], atol=1e-3)
    plain, moved = taught(), taught(calibration=0.5)
    for a, b in zip(plain.parts, moved.parts, strict=True):
        assert np.array_equal(a.prototypes[:4], b.prototypes[:4]) and not np.allclose(
            a.prototypes[4:], b.prototypes[4:]
        )
        assert np.array_equal(b.heads[-1].prototypes, b.prototypes)


def test_base_heads_that_are_cosines() -> None:
    X, y = examples([0, 1, 2, 3], 60, 0)
    rng = np.random.default_rng(0)
    heads = [CosineHead(rng.normal(size=(4, D)), 16.0), (rng.normal(size=(4, D)), np.zeros(4))]
    means = np.stack([np.concatenate([unit(X[y == c, :D]), unit(X[y == c, D:])], 1).mean(0) for c in range(4)])
    learner = ViewLearner(["a", "b"]).fit_base(X, y, head=heads, prototypes=means)
    learner.learn_session(*examples([5], 5, 1))
    scores = learner.member_scores(X[:3])
    cosines = unit(X[:3, :D]) @ unit(heads[0].weight).T
    assert np.allclose(np.log(scores[:, 0, :4]), 16 * cosines - np.log(np.exp(16 * cosines).sum(1))[:, None], atol=1e-3)
    logits = X[:3, D:] @ heads[1][0].T
    assert np.allclose(scores[:, 2, :4], np.exp(logits) / np.exp(logits).sum(1, keepdims=True), atol=1e-4)


def test_a_cosine_head_is_kept_on_disk(tmp_path: Path) -> None:
    X, y = examples([0, 1, 2], 60, 0, (1.0,))
    head = CosineHead(np.random.default_rng(0).normal(size=(3, D)).astype(np.float32), 9.0)
    learner = FewShotLearner(balance=2.0).fit_base(X, y, head=head).learn_session(*examples([5], 5, 1, (1.0,)))
    again = FewShotLearner.load(learner.save(tmp_path / "learner"))
    assert again.heads[0].scale == 9.0 and again.balance == 2.0
    assert np.array_equal(again.predict_proba(X), learner.predict_proba(X))


def test_bad_input_is_refused() -> None:
    for views in ([], "plain", ["a", "a"]):
        with pytest.raises(ValueError, match="views must be a list of different names"):
            ViewLearner(views)
    for options in ({"spread": -1}, {"calibration": 1.5}, {"balance": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ViewLearner(["a"], **options)
    with pytest.raises(ValueError, match="unknown fuser"):
        ViewLearner(["a"], fuser="best")
    with pytest.raises(ValueError, match="widths must be 2 numbers"):
        ViewLearner(["a", "b"], widths=[3])
    X, y = examples([0, 1], 10, 0)
    with pytest.raises(ValueError, match="24 columns do not make 5 views"):
        ViewLearner(list("abcde")).fit_base(X, y)
    with pytest.raises(ValueError, match="head must be 2 pairs"):
        ViewLearner(["a", "b"]).fit_base(X, y, head=[])
    with pytest.raises(ValueError, match="call fit_base"):
        ViewLearner(["a"]).learn_session(X, y)
    with pytest.raises(ValueError, match="call fit_base"):
        ViewLearner(["a"]).predict_proba(X)


@pytest.mark.slow
def test_a_run_with_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path / "cache"))
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
    pairs = [name for view in ("plain", "rotate-90", "rotate-180", "flip") for name in (f"{view}, base", view)]
    assert heads == [*pairs, "ridge"]
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
