"""Whitening of features by base classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from faverage.fscil import CosineHead, FewShotLearner, Whitening
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
        ((np.ones((12, 6)), labels), "all alike"),
    ):
        with pytest.raises(ValueError, match=said):
            Whitening.fit(*given)
    for shrinkage in (0.0, 1.1):
        with pytest.raises(ValueError, match="shrinkage must be above 0 and at most 1"):
            Whitening.fit(features, labels, shrinkage)


def test_a_head_that_was_trained_before_sees_what_it_did(tmp_path: Path) -> None:
    features, labels = drawn()
    whiten, weight = Whitening.fit(features, labels, 0.5), np.random.default_rng(1).normal(size=(3, 6))
    seen = whiten(features)
    head, before = CosineHead(weight, 5.0, whiten.undo), CosineHead(weight, 5.0)
    np.testing.assert_allclose(head.scores(seen), before.scores(features), atol=1e-4)
    some = np.array([True, False, True])
    np.testing.assert_allclose(head.of_rows(some).scores(seen), before.of_rows(some).scores(features), atol=1e-4)
    means = np.stack([unit(seen)[labels == c].mean(0) for c in range(3)])
    with pytest.raises(ValueError, match=r"undo must be of shape \(7, 6\), got \(6, 6\)"):
        bad = CosineHead(weight, 5.0, whiten.undo[1:])
        FewShotLearner().fit_base(seen[:60], labels[:60], head=bad, prototypes=means)
    learner = FewShotLearner(fuser="geometric").fit_base(seen[:60], labels[:60], head=head, prototypes=means)
    with pytest.raises(ValueError, match="cannot be saved"):
        learner.save(tmp_path / "never")
