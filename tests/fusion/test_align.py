"""Alignment by label, and the three paddings."""

import numpy as np
import pytest

from faverage import align, pad


def test_outputs_are_put_side_by_side_by_label() -> None:
    a, b = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]])
    scores, classes = align([a, b], [["dog", "ant"], ["cat", "dog", "ant"]])
    assert classes.tolist() == ["ant", "cat", "dog"] and scores.shape == (2, 2, 3)
    assert np.isnan(scores[:, 0, 1]).all() and np.isnan(scores).sum() == 2
    assert scores[0, 0].tolist()[::2] == [0.3, 0.7] and scores[1, 1].tolist() == [0.1, 0.5, 0.4]


def test_order_can_be_given_and_float32_stays() -> None:
    scores, classes = align([np.ones((1, 1), np.float32)], [[3]], all_classes=[5, 3, 4])
    assert classes.tolist() == [5, 3, 4] and scores.dtype == np.float32 and scores[0, 0, 1] == 1


def test_labels_of_different_types_stay_what_they_are() -> None:
    scores, classes = align([[[0.5, 0.5]], [[0.1, 0.9]]], [["1", "2"], [1, 2]])
    assert classes.tolist() == [1, 2, "1", "2"] and scores.shape == (1, 2, 4)


@pytest.mark.parametrize(("top", "share"), [(0.6, 0.5 * (2 / 4 + 1)), (0.5, 0.5 * (2 / 4 + 1)), (0.45, 0.5 * 2 / 4)])
def test_inlierness_is_the_papers_equation(top: float, share: float) -> None:
    x = np.array([top, 0.9 - top, np.nan, np.nan]) if top < 0.46 else np.array([top, 1 - top, np.nan, np.nan])
    padded = pad(x[None, None], "inlierness", threshold=0.5)[0, 0]
    assert padded[:2] == pytest.approx(share * x[:2]) and padded[2:] == pytest.approx([(1 - share) / 2] * 2)


@pytest.mark.parametrize("padding", ["inlierness", "uniform"])
def test_padded_vectors_sum_to_one(padding: str) -> None:
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(6), (50, 4))
    scores[:, 0, 3:] = scores[:, 1, :1] = np.nan
    scores[7, 2] = np.nan  # no answer at all
    scores /= np.where(np.isnan(scores).all(-1, keepdims=True), 1, np.nansum(scores, -1, keepdims=True))
    padded = pad(scores, padding)
    assert np.allclose(padded.sum(-1), 1) and np.allclose(padded[7, 2], 1 / 6)
    assert np.array_equal(padded[:, 3], scores[:, 3])  # a model that knows everything stays as it is


def test_zero_padding() -> None:
    assert pad(np.array([[[0.5, np.nan, 0.5]]]), "zero").tolist() == [[[0.5, 0.0, 0.5]]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: align([], []), "at least one"),
        (lambda: align([[[1.0]]], []), "as many lists of classes as outputs"),
        (lambda: align([[[1.0]]], [["a", "b"]]), r"output 0 must have shape \(n, 2\)"),
        (lambda: align([[[1.0]], [[1.0], [1.0]]], [["a"], ["a"]]), "output 1 has 2 rows, output 0 has 1"),
        (lambda: align([[[0.5, 0.5]]], [["a", "a"]]), "name 'a' twice"),
        (lambda: align([[[1.0]]], [["a"]], all_classes=["b"]), "'a', which is not among all_classes"),
        (lambda: align([[[1.0]]], [["a"]], all_classes=["a", "a"]), "all_classes must not name a class twice"),
        (lambda: align([[["x"]]], [["a"]]), "output 0 must be numbers"),
        (lambda: align([[[1.0]]], [[float("nan")]]), "found None or NaN"),
        (lambda: pad(np.ones((1, 1, 1)), "mean"), "padding must be"),
        (lambda: pad(np.ones((1, 1))), r"scores must have shape \(n, K, N\)"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
