"""Whitening of features by base classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.fscil import CosineHead, FewShotLearner, Whitening
from faverage.fscil.files import pack, unpack
from faverage.fscil.heads import unit


def drawn(n: int = 600, d: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    return rng.normal(size=(classes, d))[labels] + rng.normal(size=(n, d)) @ rng.normal(size=(d, d)), labels


def spread(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    within = x - np.stack([x[labels == c].mean(0) for c in np.unique(labels)])[labels]
    return within.T @ within / (len(x) - len(np.unique(labels)))


def test_classes_spread_alike_in_all_directions() -> None:
    features, labels = drawn()
    roots = unit(np.sign(features) * np.sqrt(np.abs(features)))
    before, after = (
        np.linalg.eigvalsh(spread(x, labels)) for x in (roots, Whitening.fit(features, labels, 1e-6)(features))
    )
    assert before[-1] > 3 * before[0] and after[-1] < 1.01 * after[0]
    half = np.linalg.eigvalsh(spread(Whitening.fit(features, labels, 0.5)(features), labels))
    assert before[-1] / before[0] > half[-1] / half[0] > after[-1] / after[0]


def test_with_all_shrinkage_features_are_centred_and_no_more() -> None:
    features, labels = drawn()
    whiten = Whitening.fit(features, labels, 1.0)
    roots = unit(np.sign(features) * np.sqrt(np.abs(features)))
    np.testing.assert_allclose(whiten(features), roots - roots.mean(0), atol=1e-6)
    np.testing.assert_allclose(whiten(features[:2] * 3), whiten(features[:2]), atol=1e-6)  # lengths do not count


def test_bad_input_is_named() -> None:
    features, labels = drawn(12)
    for given, said in (
        ((features, labels[:3]), r"features of shape \(12, 6\) and 3 labels of 3 classes"),
        ((features, np.arange(12)), "more than there are classes"),
        ((features[:, 0], labels), r"expected features \(n, d\)"),
    ):
        with pytest.raises(ValueError, match=said):
            Whitening.fit(*given)
    for shrinkage in (0.0, 1.1):
        with pytest.raises(ValueError, match="shrinkage must be above 0 and at most 1"):
            Whitening.fit(features, labels, shrinkage)


def test_examples_that_are_all_alike_are_centred() -> None:
    whiten = Whitening.fit(np.ones((12, 6)), np.arange(12) % 3)
    np.testing.assert_allclose(whiten(np.ones((2, 6))), 0.0, atol=1e-6)
    assert np.isfinite(whiten(np.eye(6))).all()


def test_the_inverse_leads_back_up_to_lengths() -> None:
    features, labels = drawn()
    whiten = Whitening.fit(features, labels, 0.5)
    np.testing.assert_allclose(whiten.inverse(whiten(features)), unit(features), atol=1e-4)


def photos(rng: np.random.Generator, y: np.ndarray, d: int = 24) -> np.ndarray:
    """Features of classes that differ a little, in which something else differs a lot, as light and pose do."""
    centres = np.random.default_rng(1).normal(size=(12, d))
    loud = np.random.default_rng(2).normal(size=(4, d))
    return np.asarray(centres[y] + rng.normal(size=(len(y), 4)) @ loud * 1.5 + 0.4 * rng.normal(size=(len(y), d)))


def taught(whiten: float | None, **options: Any) -> tuple[FewShotLearner, np.ndarray, np.ndarray]:
    """A learner of eight base classes and four new ones, with tests of all."""
    rng = np.random.default_rng(0)
    y, new, test = np.repeat(np.arange(8), 40), np.repeat(np.arange(8, 12), 5), np.repeat(np.arange(12), 40)
    learner = FewShotLearner(whiten=whiten, **options).fit_base(photos(rng, y), y)
    return learner.learn_session(photos(rng, new), new), photos(rng, test), test


def test_a_learner_that_whitens_finds_more() -> None:
    found = {}
    for whiten in (None, 0.2):
        learner, X, y = taught(whiten)
        found[whiten] = (learner.predict(X) == y).mean()
        assert learner.features(X)["plain"] is not X and (learner.features(X)["plain"] == X.astype(np.float32)).all()
    assert found[0.2] > found[None] + 0.02


def test_few_examples_are_not_whitened() -> None:
    rng = np.random.default_rng(0)
    for count, whitened in ((14, False), (16, True)):  # of which two are held out; 8 classes
        y = np.repeat(np.arange(8), count)
        learner = FewShotLearner(whiten=0.5).fit_base(photos(rng, y), y)
        assert bool(learner.known.whitening) == whitened


def test_prototypes_and_ridge_see_whitened_features_and_base_heads_do_not() -> None:
    learner, X, _ = taught(0.5)
    known, members = learner.known, learner.members
    z = known.whitening["plain"](X.astype(np.float32))
    said = members.scores({"plain": X.astype(np.float32)})
    base, near, ridge = members.members
    np.testing.assert_allclose(said[:, 0, :8], base.head.scores(X.astype(np.float32)), atol=1e-5)
    np.testing.assert_allclose(said[:, 1], near.head.scores(z), atol=1e-5)
    np.testing.assert_allclose(said[:, 2], ridge.head.scores([z]), atol=1e-5)
    means = np.stack([unit(known.kept.seen["plain"][known.labels == c]).mean(0) for c in range(8, 12)])
    np.testing.assert_allclose(near.head.prototypes[8:], means, atol=1e-5)
    looked = known.looked({"plain": X.astype(np.float32)})
    assert learner.predict_proba(looked).tolist() == learner.predict_proba(X).tolist()
    some = looked.rows(np.arange(3))  # a product of fewer rows may be rounded otherwise
    np.testing.assert_allclose(learner.predict_proba(some), learner.predict_proba(X[:3]), rtol=1e-5)


def test_a_learner_that_whitens_comes_back_from_disk(tmp_path: Path) -> None:
    learner, X, _ = taught(0.5)
    again = FewShotLearner.load(learner.save(tmp_path / "learner"))
    assert again.whiten == 0.5 and again.known.whitening["plain"].same(learner.known.whitening["plain"])
    np.testing.assert_allclose(again.predict_proba(X), learner.predict_proba(X), atol=1e-6)
    one = photos(np.random.default_rng(5), np.array([9]))
    for each in (learner, again):  # of one example stand-ins are drawn, which base heads see as features
        each.learn_session(one, ["single"])
    np.testing.assert_allclose(again.predict_proba(X), learner.predict_proba(X), atol=1e-6)
    assert again.predict(one).tolist() == ["single"]
    head = CosineHead(np.eye(8, 24), 5.0, whitened=True)
    base = {"head": head, "prototypes": np.eye(8, 24), "whitening": learner.known.whitening}
    y = np.arange(8)
    seen = FewShotLearner().fit_base(photos(np.random.default_rng(6), y), y, **base)
    read = FewShotLearner.load(seen.save(tmp_path / "cosine"))
    np.testing.assert_allclose(read.predict_proba(X), seen.predict_proba(X), atol=1e-6)
    z = learner.known.whitening["plain"](X.astype(np.float32))
    np.testing.assert_allclose(seen.predict_proba(X), head.scores(z), atol=1e-5)


def test_files_with_another_whitening_are_refused(tmp_path: Path) -> None:
    known = taught(0.5)[0].known
    config, arrays = pack(known)
    assert config["format"] == 3 and pack(taught(None)[0].known)[0]["format"] == 2
    for name, array, said in (
        ("matrix", np.eye(23, dtype=np.float32), "the matrix of the whitening of the view 'plain' must be numbers of"),
        ("centre", np.full(24, np.nan, dtype=np.float32), "the centre of the whitening of the view 'plain' has"),
    ):
        with pytest.raises(ValueError, match=said):
            unpack(config, {**arrays, f"whitening.0.{name}": array})
    with pytest.raises(LookupError):
        unpack(config, {name: array for name, array in arrays.items() if name != "whitening.0.matrix"})


def test_learners_that_whiten_can_be_merged() -> None:
    rng, X_of = np.random.default_rng(0), {}
    parts = {}
    for name, classes, whiten in (("one", range(6), 0.3), ("other", range(6, 12), 0.4), ("plain", range(6, 12), None)):
        y = np.repeat(np.array(classes), 40)
        X_of[name] = photos(rng, y), y
        parts[name] = lambda x=X_of[name], w=whiten: FewShotLearner(whiten=w).fit_base(*x)
    test = np.repeat(np.arange(12), 40)
    X = photos(rng, test)
    together = (np.concatenate(both) for both in zip(X_of["one"], X_of["other"], strict=True))
    best = (FewShotLearner(whiten=0.3).fit_base(*together).predict(X) == test).mean()
    for first, second in (("one", "other"), ("one", "plain"), ("plain", "one")):
        both = parts[first]().merge(parts[second]())
        assert both.known.whitening and set(both.classes) == set(range(12))
        assert (both.predict(X) == test).mean() > best - 0.1
    shots = FewShotLearner().learn_session(photos(rng, np.repeat([10, 11], 5)), np.repeat(["ten", "eleven"], 5))
    into = shots.merge(parts["one"]())
    assert into.known.whitening["plain"].same(parts["one"]().known.whitening["plain"])
    ten = X[test == 10]
    assert (into.predict(ten) == "ten").mean() > 0.6


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        ({"whiten": 0.0}, {}, "whiten must be above 0 and at most 1, or None, got 0.0"),
        ({"whiten": 0.5}, {"prototypes": np.eye(2)}, "give their whitening, too"),
        ({}, {"whitening": {}}, "whitening comes with prototypes of whitened features"),
        (
            {},
            {"prototypes": np.eye(2), "whitening": {"flip": Whitening(np.zeros(2), np.eye(2))}},
            "whitening must be of each of the views plain, got flip",
        ),
        (
            {},
            {"prototypes": np.eye(2), "whitening": {"plain": Whitening(np.zeros(2), np.eye(3))}},
            r"whitening of the view 'plain' must be of 2 features, got \(2,\) and \(3, 3\)",
        ),
        (
            {},
            {"prototypes": np.eye(2), "whitening": {"plain": Whitening(np.zeros(2), np.full((2, 2), np.nan))}},
            "whitening of the view 'plain' must be made of finite numbers",
        ),
    ],
)
def test_whitening_that_does_not_fit_is_named(options: dict[str, Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        head = {"head": (np.eye(2), np.zeros(2))} if given else {}
        FewShotLearner(**options).fit_base(np.eye(2), [0, 1], **head, **given)
