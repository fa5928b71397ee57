"""Every registered fuser goes through one harness."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from faverage.fusion import Fuser, fuser_names, get_fuser, load_fuser
from helpers_fusers import Array, N, log_loss, make_data, quick_fuser

NAMES = fuser_names()
TRAINED = [name for name in NAMES if get_fuser(name).trains]


@cache
def shared(name: str, gaps: bool = False) -> Fuser:
    return quick_fuser(name).fit(*make_data(60, gaps=gaps))


def fitted(name: str, gaps: bool = False) -> Fuser:
    return copy.deepcopy(shared(name, gaps))


def check_probabilities(p: Array, shape: tuple[int, ...]) -> None:
    assert p.shape == shape
    assert np.isfinite(p).all() and (p >= 0).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
class TestEveryFuser:
    @pytest.mark.parametrize("gaps", [False, True])
    def test_probabilities(self, name: str, gaps: bool) -> None:
        fuser, (test, _) = fitted(name, gaps), make_data(30, gaps=gaps, seed=1)
        p = fuser.predict_proba(test)
        check_probabilities(p, (30, N))
        np.testing.assert_array_equal(fuser.predict(test), p.argmax(1))
        np.testing.assert_allclose(fuser.predict_proba(test[3:4]), p[3:4], atol=1e-6)
        assert fuser.predict_proba(test[:0]).shape == (0, N)

    def test_gaps_only_when_predicting(self, name: str) -> None:
        check_probabilities(fitted(name).predict_proba(make_data(30, gaps=True, seed=1)[0]), (30, N))

    def test_dtype(self, name: str) -> None:
        scores, y = make_data(60, gaps=True)
        single = scores.astype(np.float32)
        p = quick_fuser(name).fit(single, y).predict_proba(single)
        check_probabilities(p, (60, N))
        double = single.astype(np.float64)
        np.testing.assert_allclose(quick_fuser(name).fit(double, y).predict_proba(double), p, atol=1e-6)

    def test_order_of_rows(self, name: str) -> None:
        scores, y = make_data(60)
        order = np.random.default_rng(0).permutation(60)
        p = quick_fuser(name).fit(scores[order], y[order]).predict_proba(scores)
        np.testing.assert_allclose(p, fitted(name).predict_proba(scores), atol=1e-6)

    def test_weights_are_repetitions(self, name: str) -> None:
        scores, y = make_data(40)
        times = np.arange(40) % 3
        weighted = quick_fuser(name).fit(scores, y, sample_weight=times).predict_proba(scores)
        repeated = quick_fuser(name).fit(scores.repeat(times, 0), y.repeat(times)).predict_proba(scores)
        np.testing.assert_allclose(weighted, repeated, atol=1e-6)

    def test_deterministic_and_quiet(self, name: str) -> None:
        scores, y = make_data(60, gaps=True)
        torch.manual_seed(123)
        before = torch.get_rng_state()
        p = quick_fuser(name).fit(scores, y).predict_proba(scores)
        assert torch.equal(before, torch.get_rng_state())
        np.testing.assert_array_equal(p, fitted(name, gaps=True).predict_proba(scores))

    @pytest.mark.parametrize("gaps", [False, True])
    def test_save_and_load(self, name: str, gaps: bool, tmp_path: Path) -> None:
        scores, y = make_data(30, gaps=gaps, seed=1)
        fuser = fitted(name, gaps)
        loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
        assert type(loaded) is type(fuser) and loaded.options() == fuser.options()
        np.testing.assert_array_equal(loaded.predict_proba(scores), fuser.predict_proba(scores))
        p, q = (f.partial_fit(scores, y).predict_proba(scores) for f in (fuser, loaded))
        np.testing.assert_array_equal(p, q)

    def test_partial_fit(self, name: str) -> None:
        scores, y = make_data(60)
        fuser = quick_fuser(name).partial_fit(scores[:30], y[:30]).partial_fit(scores[30:], y[30:])
        p = fuser.predict_proba(scores)
        check_probabilities(p, (60, N))
        together = quick_fuser(name).fit(scores, y).predict_proba(scores)
        assert np.abs(p - together).max() < 1e-3  # nothing of the first half was forgotten

    def test_partial_fit_remembers_classes_that_the_new_rows_lack(self, name: str) -> None:
        scores, y = make_data(120)
        first, second = y < 2, y >= 2
        fuser = get_fuser(name).fit(scores[first], y[first]).partial_fit(scores[second], y[second])
        p = fuser.predict_proba(scores)
        check_probabilities(p, (120, N))
        if fuser.trains:
            assert log_loss(p[first], y[first]) < np.log(N)
        else:  # a plain rule learns nothing, so nothing can be forgotten
            np.testing.assert_array_equal(p, get_fuser(name).fit(scores, y).predict_proba(scores))

    def test_growth_is_checked(self, name: str) -> None:
        fuser = fitted(name)
        for verb in (fuser.add_model, fuser.add_class):
            for n in (0, -5, 1.5, True):
                with pytest.raises(ValueError, match="whole number of at least 1"):
                    verb(n)
        if hasattr(fuser.add_model(), "explain"):
            with pytest.raises(ValueError, match="call partial_fit first"):
                fuser.explain()

    def test_add_model(self, name: str) -> None:
        scores, y = make_data(30, seed=1)
        extra = np.random.default_rng(2).uniform(size=(30, 2, N))
        fuser = fitted(name)
        before = fuser.predict_proba(scores)
        grown = np.concatenate([scores, extra], 1)
        np.testing.assert_array_equal(fuser.add_model(2).predict_proba(grown), before)
        check_probabilities(fuser.partial_fit(grown, y).predict_proba(grown), (30, N))

    def test_add_class(self, name: str, tmp_path: Path) -> None:
        scores, y = make_data(30, n_classes=N + 1, seed=1)
        scores[:, 0, N] = np.nan
        fuser = fitted(name)
        before = fuser.predict_proba(scores[:, :, :N])
        after = fuser.add_class().predict_proba(scores)
        check_probabilities(after, (30, N + 1))
        np.testing.assert_allclose(after[:, N], scores[:, 1:, N].mean(1))
        np.testing.assert_allclose(after[:, :N] / (1 - after[:, N:]), before)
        loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
        np.testing.assert_array_equal(loaded.predict_proba(scores), after)
        check_probabilities(fuser.partial_fit(scores, y).predict_proba(scores), (30, N + 1))

    def test_unfitted(self, name: str, tmp_path: Path) -> None:
        fuser, (scores, _) = get_fuser(name), make_data(5)
        for grow in (fuser.add_model, fuser.add_class):
            with pytest.raises(ValueError, match="fit"):
                grow()
        if fuser.trains:
            with pytest.raises(ValueError, match="fit"):
                fuser.predict_proba(scores)
            with pytest.raises(ValueError, match="fit"):
                fuser.save(tmp_path / "fuser.safetensors")
        else:
            check_probabilities(fuser.predict_proba(scores), (5, N))
            loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
            np.testing.assert_array_equal(loaded.predict_proba(scores), fuser.predict_proba(scores))

    def test_bad_input(self, name: str) -> None:
        scores, y = make_data(20)
        fuser = fitted(name)
        before = fuser.predict_proba(scores)
        for bad in (scores[0], scores[:, :, :0], -scores, np.full_like(scores, np.inf)):
            with pytest.raises(ValueError, match="scores"):
                fuser.fit(bad, y)
            with pytest.raises(ValueError, match="scores"):
                fuser.predict_proba(bad)
        with pytest.raises(ValueError, match="scores"):
            fuser.fit(scores[:0], y[:0])
        for labels in (y + 1, y - 1, y[:5], y * 1.0):
            with pytest.raises(ValueError, match=r"\by\b"):
                fuser.fit(scores, labels)
        for weight in (-np.ones(20), np.zeros(20), np.ones(5), np.full(20, np.nan)):
            with pytest.raises(ValueError, match="sample_weight"):
                fuser.fit(scores, y, sample_weight=weight)
        for wrong in (scores[:, :2], scores[:, :, :2]):
            with pytest.raises(ValueError, match="scores"):
                fuser.predict_proba(wrong)
            with pytest.raises(ValueError, match="scores"):
                fuser.partial_fit(wrong, y % 2)
        np.testing.assert_array_equal(fuser.predict_proba(scores), before)
        with pytest.raises(ValueError, match="no_such_option"):
            get_fuser(name, no_such_option=1)

    @pytest.mark.parametrize(
        ("n", "k", "n_classes"), [(10, 3, 1), (20, 1, 3), (5, 1, 1), (1, 2, 3), (2, 2, 3), (3, 2, 3), (20, 2, 2)]
    )
    def test_small_sizes(self, name: str, n: int, k: int, n_classes: int) -> None:
        scores, y = make_data(n, k, n_classes)
        check_probabilities(quick_fuser(name).fit(scores, y).predict_proba(scores), (n, n_classes))

    @pytest.mark.parametrize("classes", [(0, 1, 2), (1,), (0, 3)])
    def test_labels_that_do_not_occur(self, name: str, classes: tuple[int, ...]) -> None:
        scores, y = make_data(40)
        rows = np.isin(y, classes)
        p = quick_fuser(name).fit(scores[rows], y[rows]).predict_proba(scores)
        check_probabilities(p, (40, N))

    def test_extreme_scores(self, name: str) -> None:
        scores, y = make_data(40)
        hard = np.eye(N)[scores.argmax(2)]
        hard[:5], hard[5:10, 1], hard[10:15] = 0.0, 0.0, 100 * hard[10:15]
        check_probabilities(quick_fuser(name).fit(hard, y).predict_proba(hard), (40, N))


@pytest.mark.parametrize("name", TRAINED)
def test_learns_which_model_to_trust(name: str) -> None:
    (scores, y), (test, truth) = make_data(400, k=5), make_data(400, k=5, seed=1)
    p = get_fuser(name).fit(scores, y).predict_proba(test)
    assert log_loss(p, truth) < 0.8 * log_loss(get_fuser("arithmetic").predict_proba(test), truth)
