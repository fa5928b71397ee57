"""Every registered fuser goes through one harness; then what each family promises on its own."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.align import pad
from faverage.fusion import Fuser, fuser_names, get_fuser, load_fuser
from faverage.fusion.logistic import FEATURES, STRENGTHS
from faverage.fusion.nets import Perceptron
from faverage.network import AFA

Array = np.ndarray[Any, Any]
NAMES = fuser_names()
TRAINED = [name for name in NAMES if get_fuser(name).trains]
RULES = ["arithmetic", "geometric", "harmonic", "power", "vote"]
NETS = ["afa-paper", "shallow-net", "deep-net", "weighted-average"]
K, N = 3, 4


def make_data(n: int, k: int = K, n_classes: int = N, gaps: bool = False, seed: int = 0) -> tuple[Array, Array]:
    """Model 0 is good, the others know nothing; with gaps, models know different classes and skip some rows."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    scores = rng.dirichlet(np.ones(n_classes), (n, k))
    scores[:, 0] = 0.4 * np.eye(n_classes)[y] + 0.6 * scores[:, 0]
    if gaps:
        scores[:, 1, 0] = np.nan
        scores[:, 2, :2] = np.nan
        scores /= np.nansum(scores, 2, keepdims=True)
        scores[::5, 1] = np.nan
        scores[7] = np.nan
    return scores, y


@cache
def shared(name: str, gaps: bool = False) -> Fuser:
    return get_fuser(name).fit(*make_data(60, gaps=gaps))


def fitted(name: str, gaps: bool = False) -> Fuser:
    return copy.deepcopy(shared(name, gaps))


def log_loss(p: Array, y: Array) -> float:
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


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
        p = get_fuser(name).fit(single, y).predict_proba(single)
        check_probabilities(p, (60, N))
        double = single.astype(np.float64)
        np.testing.assert_allclose(get_fuser(name).fit(double, y).predict_proba(double), p, atol=1e-6)

    def test_order_of_rows(self, name: str) -> None:
        scores, y = make_data(60)
        order = np.random.default_rng(0).permutation(60)
        p = get_fuser(name).fit(scores[order], y[order]).predict_proba(scores)
        np.testing.assert_allclose(p, fitted(name).predict_proba(scores), atol=1e-6)

    def test_weights_are_repetitions(self, name: str) -> None:
        scores, y = make_data(40)
        times = np.arange(40) % 3
        weighted = get_fuser(name).fit(scores, y, sample_weight=times).predict_proba(scores)
        repeated = get_fuser(name).fit(scores.repeat(times, 0), y.repeat(times)).predict_proba(scores)
        np.testing.assert_allclose(weighted, repeated, atol=1e-6)

    def test_deterministic_and_quiet(self, name: str) -> None:
        scores, y = make_data(60, gaps=True)
        torch.manual_seed(123)
        before = torch.get_rng_state()
        p = get_fuser(name).fit(scores, y).predict_proba(scores)
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
        fuser = get_fuser(name).partial_fit(scores[:30], y[:30]).partial_fit(scores[30:], y[30:])
        p = fuser.predict_proba(scores)
        check_probabilities(p, (60, N))
        together = get_fuser(name).fit(scores, y).predict_proba(scores)
        assert np.abs(p - together).max() < 1e-3  # nothing of the first half was forgotten

    def test_partial_fit_remembers_classes_that_the_new_rows_lack(self, name: str) -> None:
        scores, y = make_data(120)
        first, second = y < 2, y >= 2
        fuser = get_fuser(name).fit(scores[first], y[first]).partial_fit(scores[second], y[second])
        if fuser.trains:
            assert log_loss(fuser.predict_proba(scores)[first], y[first]) < np.log(N)

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
        check_probabilities(get_fuser(name).fit(scores, y).predict_proba(scores), (n, n_classes))

    @pytest.mark.parametrize("classes", [(0, 1, 2), (1,), (0, 3)])
    def test_labels_that_do_not_occur(self, name: str, classes: tuple[int, ...]) -> None:
        scores, y = make_data(40)
        rows = np.isin(y, classes)
        p = get_fuser(name).fit(scores[rows], y[rows]).predict_proba(scores)
        check_probabilities(p, (40, N))

    def test_extreme_scores(self, name: str) -> None:
        scores, y = make_data(40)
        hard = np.eye(N)[scores.argmax(2)]
        hard[:5], hard[5:10, 1], hard[10:15] = 0.0, 0.0, 100 * hard[10:15]
        check_probabilities(get_fuser(name).fit(hard, y).predict_proba(hard), (40, N))


@pytest.mark.parametrize("name", TRAINED)
def test_learns_which_model_to_trust(name: str) -> None:
    (scores, y), (test, truth) = make_data(400, k=5), make_data(400, k=5, seed=1)
    p = get_fuser(name).fit(scores, y).predict_proba(test)
    assert log_loss(p, truth) < 0.8 * log_loss(get_fuser("arithmetic").predict_proba(test), truth)


def test_rules_by_hand() -> None:
    scores = np.array([[[0.9, 0.1], [0.4, 0.6]]])
    for name, options, values in [
        ("arithmetic", {}, [0.65, 0.35]),
        ("geometric", {"eps": 1e-9}, [0.36**0.5, 0.06**0.5]),
        ("harmonic", {"eps": 1e-9}, [2 / (1 / 0.9 + 1 / 0.4), 2 / (1 / 0.1 + 1 / 0.6)]),
        ("power", {"q": 2.0}, [0.485**0.5, 0.185**0.5]),
        ("power", {"q": 5000.0}, [0.9, 0.6]),
        ("vote", {}, [(1 + (0.99 * 0.65 + 0.005) / 2) / 2.5, (1 + (0.99 * 0.35 + 0.005) / 2) / 2.5]),
    ]:
        p = get_fuser(name, **options).predict_proba(scores)[0]
        np.testing.assert_allclose(p, np.array(values) / sum(values), atol=1e-6)


def test_rules_leave_out_what_is_not_known_unless_padded() -> None:
    nan = np.nan
    scores = np.array([[[0.5, 0.5, nan, nan], [0.2, 0.4, 0.4, nan], [nan, nan, nan, nan]]])
    p = get_fuser("arithmetic").predict_proba(scores)[0]
    np.testing.assert_allclose(p, np.array([0.35, 0.45, 0.4, 0]) / 1.2)
    for padding in ("inlierness", "uniform", "zero"):
        q = get_fuser("arithmetic", padding=padding, threshold=0.45).predict_proba(scores)
        mean = pad(scores, padding, 0.45).mean(1)
        np.testing.assert_allclose(q, mean / mean.sum())
    for name in RULES:
        with pytest.raises(ValueError, match="padding"):
            get_fuser(name, padding="mirror")
        np.testing.assert_allclose(get_fuser(name).predict_proba(np.full((1, 2, 4), nan)), 0.25)


def test_votes_first_then_mean_probability() -> None:
    vote = get_fuser("vote")
    majority = [[0.51, 0.49, 0.0], [0.51, 0.49, 0.0], [0.0, 1.0, 0.0]]
    tie = [[0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.0, 0.0, 1.0]]
    undecided = [[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.2, 0.8, 0.0]]  # the first model's vote goes to class 1
    partial = [[np.nan, 0.3, 0.7], [0.4, 0.6, np.nan], [np.nan] * 3]
    assert vote.predict([majority, tie, undecided, partial]).tolist() == [0, 1, 1, 2]
    assert (vote.predict_proba([majority, tie, undecided, partial]) > 0).all()


def test_pools_find_the_one_informative_model() -> None:
    scores, y = make_data(300, k=4)
    pool = get_fuser("log-pool").fit(scores, y)
    assert pool.weights.argmax() == 0 and pool.weights[1:].max() < 0.1 * pool.weights[0]
    greedy = get_fuser("greedy").fit(scores, y)
    np.testing.assert_array_equal(greedy.weights, [1, 0, 0, 0])


def test_log_pool_is_optimal_and_bounded() -> None:
    scores, y = make_data(300)
    pool = get_fuser("log-pool", shrink=1e-9).fit(scores, y)
    best = log_loss(pool.predict_proba(scores), y)
    for k in range(K):
        for change in (0.9, 1.1):
            other = copy.deepcopy(pool)
            other.weights[k] *= change
            assert log_loss(other.predict_proba(scores), y) >= best - 1e-9
    perfect = np.eye(N)[y][:, None].repeat(2, 1)
    assert get_fuser("log-pool").fit(perfect, y).weights.max() < 3


def test_logistic_chooses() -> None:
    clean, y = make_data(200, k=1)
    noise = np.random.default_rng(0).dirichlet(np.ones(N), (200, 5))
    strong = get_fuser("logistic").fit(clean, y).chosen
    weak = get_fuser("logistic").fit(noise, y).chosen
    assert {strong[0], weak[0]} <= set(FEATURES) and {strong[1], weak[1]} <= set(STRENGTHS)
    assert strong[1] >= 10 > 1 >= weak[1]
    assert get_fuser("logistic", features="log", C=0.5).fit(clean, y).chosen == ("log", 0.5)
    for options in ({"features": "odds"}, {"C": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            get_fuser("logistic", **options)


@pytest.mark.parametrize(("k", "n_classes"), [(3, 4), (10, 20), (11, 100)])
def test_sizes_of_the_networks(k: int, n_classes: int) -> None:
    networks = {name: get_fuser(name).build(k, n_classes) for name in NETS}
    count = {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}
    assert isinstance(networks["afa-paper"], AFA) and count["afa-paper"] == 3 * n_classes**2 * (k + 1)
    assert abs(count["shallow-net"] / count["afa-paper"] - 1) < 0.05
    assert count["weighted-average"] == k + n_classes**2 + n_classes
    for name, layers in (("shallow-net", 2), ("deep-net", 5)):
        assert isinstance(networks[name], Perceptron)
        assert sum(isinstance(m, torch.nn.Linear) for m in networks[name].modules()) == layers


@pytest.mark.parametrize("name", NETS)
def test_networks_keep_their_history(name: str, tmp_path: Path) -> None:
    scores, y = make_data(60)
    fuser = get_fuser(name, epochs=7, validation=0.2, patience=3, lr=0.002, seed=5).fit(scores, y)
    history = fuser.history
    assert len(history.train) == len(history.validation) <= 7 and history.train[-1] < history.train[0]
    loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
    assert loaded.history == history
    other = get_fuser(name, epochs=7, seed=6).fit(scores, y)
    assert other.history.validation == []


def test_afa_paper_takes_the_options_of_the_network() -> None:
    fuser = get_fuser("afa-paper", means=["arithmetic", {"name": "power", "q": 3.0}], structure="per_class", scale=20.0)
    network = get_fuser(fuser).build(2, 3)
    assert [mean.name for mean in network.means] == ["arithmetic", "power"] and network.means[1].q == 3.0
    assert network.structure == "per_class" and network.scale == 20.0
    for options in ({"means": []}, {"structure": "diagonal"}, {"output": "identity"}, {"padding": "mirror"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            get_fuser("afa-paper", **options)
