"""Models that are missing for some rows: those present speak for them, in training and afterwards."""

from pathlib import Path

import numpy as np
import pytest

from faverage.fusion import Fuser, get_fuser, load_fuser
from faverage.fusion.arrays import couple, fill_gaps
from faverage.fusion.base import unpack_fuser
from helpers_fusers import Array, log_loss, make_data

FILLING = ["afa", "log-pool", "logistic", "greedy"]
nan = np.nan


def alike(n: int, seed: int, missing: float = 0.0) -> tuple[Array, Array]:
    """Six models of like quality that err in part together, each missing for a share of the rows."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 4
    together = 2 * np.eye(4)[y] + rng.normal(size=(n, 4))
    scores = np.exp(together[:, None] + 0.7 * rng.normal(size=(n, 6, 4)))
    scores /= scores.sum(2, keepdims=True)
    scores[rng.random((n, 6)) < missing] = nan
    return scores, y


def test_what_is_filled_by_hand() -> None:
    """The first model never knew class 2, the last knows all; in the last row nobody who knows class 2 is there."""
    known = np.array([[True, True, False], [True, True, True], [True, True, True]])
    scores = np.array(
        [
            [[0.8, 0.2, nan], [0.1, 0.3, 0.6], [nan, nan, nan]],
            [[nan, nan, nan], [0.4, 0.4, 0.2], [0.2, nan, 0.4]],
            [[0.7, 0.3, nan], [nan, nan, nan], [nan, nan, nan]],
        ]
    )
    filled = np.array(
        [
            [[0.8, 0.2, nan], [0.1, 0.3, 0.6], [0.45, 0.25, 0.6]],
            [[0.3, 0.4, nan], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4]],
            [[0.7, 0.3, nan], [0.7, 0.3, nan], [0.7, 0.3, nan]],
        ]
    )
    np.testing.assert_allclose(fill_gaps(scores, known), filled)


def test_coupling_finds_what_all_models_are_parts_of() -> None:
    """Models that know three of six classes each, in a ring: what they say given their classes is enough to know p."""
    p = np.random.default_rng(0).dirichlet(np.full(6, 4.0), 50)
    sets = (np.arange(3) + 2 * np.arange(3)[:, None]) % 6
    scores = np.full((50, 3, 6), nan)
    for k, classes in enumerate(sets):
        scores[:, k, classes] = p[:, classes] / p[:, classes].sum(1, keepdims=True)
    np.testing.assert_allclose(couple(scores), np.tile(p[:, None], (1, 3, 1)), atol=1e-3)
    scores[:, :, 5] = nan  # a class that nobody knows
    coupled = couple(scores)
    assert np.allclose(coupled[:, :, 5], 1 / 6) and np.isfinite(coupled).all()
    sure = couple(np.where(np.isnan(scores), nan, 0.0))  # models that say nothing
    assert np.isfinite(sure).all()


@pytest.mark.parametrize("seed", range(3))
def test_with_five_examples_a_class_no_plain_mean_is_better(seed: int) -> None:
    """Six classes, five models that know three of them each, and what they say of rows of other classes misleads."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.repeat(np.arange(6), 5), rng.integers(0, 6, 2000)])
    inputs = 1.6 * rng.normal(size=(6, 5))[y] + rng.normal(size=(len(y), 5))
    centres = np.stack([inputs[30:][y[30:] == c].mean(0) for c in range(6)])
    logits = inputs @ centres.T - (centres**2).sum(1) / 2
    scores = np.full((len(y), 5, 6), nan)
    for k in range(5):
        classes = (np.arange(3) + k) % 6
        part = np.exp(logits[:, classes] + 0.5 * rng.normal(size=(len(y), 3)))
        scores[:, k, classes] = part / part.sum(1, keepdims=True)
    fuser = get_fuser("afa").fit(scores[:30], y[:30])
    ours = log_loss(fuser.predict_proba(scores[30:]), y[30:])
    plain = [get_fuser(rule).predict_proba(scores[30:]) for rule in ("arithmetic", "geometric", "harmonic")]
    assert fuser.coupled and ours < 0.9 * min(log_loss(p, y[30:]) for p in plain)


@pytest.mark.parametrize("name", FILLING)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_missing_model_says_what_the_others_say(name: str, gaps: bool, tmp_path: Path) -> None:
    """With gaps it knows different classes, too; what it never knew stays unknown, after reading it from a file too."""
    fuser = get_fuser(name).fit(*make_data(60, gaps=gaps))
    test, _ = make_data(20, gaps=gaps, seed=1)
    test[3, 0] = test[4, 1:] = nan
    known = ~np.isnan(make_data(60, gaps=gaps)[0]).all(0)
    expected = fuser.predict_proba(fill_gaps(test, known))
    np.testing.assert_array_equal(fuser.predict_proba(test), expected)
    np.testing.assert_array_equal(load_fuser(fuser.save(tmp_path / "fuser")).predict_proba(test), expected)
    uniform = np.where(np.isnan(test) & known, 0.25, test)
    assert np.abs(fuser.predict_proba(uniform) - expected)[3:5].max() > 0.01


@pytest.mark.parametrize("name", FILLING)
def test_without_a_model_the_answer_is_close_to_that_of_a_fuser_without_it(name: str) -> None:
    (scores, y), (test, truth) = alike(600, 0), alike(600, 1)
    fuser = get_fuser(name).fit(scores, y)
    without = get_fuser(name).fit(scores[:, 1:], y).predict_proba(test[:, 1:])
    test[:, 0] = nan
    assert np.abs(fuser.predict_proba(test) - without).mean() < 0.01
    assert log_loss(fuser.predict_proba(test), truth) < 1.01 * log_loss(without, truth)


@pytest.mark.parametrize("name", FILLING)
@pytest.mark.parametrize("train", [0.0, 0.2])
def test_a_fifth_missing_costs_little(name: str, train: float) -> None:
    """Whether rows are missing in training or not, four fifths of the models are nearly as good as all of them."""
    (test, truth), (gappy, _) = alike(600, 1), alike(600, 1, 0.2)
    whole = log_loss(get_fuser(name).fit(*alike(600, 0)).predict_proba(test), truth)
    fuser: Fuser = get_fuser(name).fit(*alike(600, 0, train))
    assert log_loss(fuser.predict_proba(gappy), truth) < whole + 0.01


def test_files_of_older_versions_do_not_say_what_was_known() -> None:
    """They fuse as they did; a file that says something else than yes or no of each class is refused."""
    config, tensors = get_fuser("afa").fit(*make_data(60)).pack()
    test, _ = make_data(20, seed=1)
    test[3, 0] = nan
    known = tensors.pop("known")
    uniform = np.where(np.isnan(test), 0.25, test)
    older = unpack_fuser(config, tensors)
    np.testing.assert_array_equal(older.predict_proba(test), older.predict_proba(uniform))
    for broken in (known[:, 1:], known.double()):
        with pytest.raises(ValueError, match="'known' must say"):
            unpack_fuser(config, {**tensors, "known": broken})
