"""What each family of fusers promises on its own."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from faverage.afa.network import AFA
from faverage.fusion import get_fuser, load_fuser
from faverage.fusion.align import pad
from faverage.fusion.logistic import FEATURES, STRENGTHS
from faverage.fusion.nets import Perceptron
from helpers_fusers import K, N, log_loss, make_data

RULES = ["arithmetic", "geometric", "harmonic", "power", "vote"]
NETS = ["afa-paper", "shallow-net", "deep-net", "weighted-average"]


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
    first = get_fuser("vote", ties="first")
    assert first.predict([majority, tie, undecided, partial]).tolist() == [0, 0, 0, 1]
    assert np.allclose(first.predict_proba([tie]), 1 / 3)  # three votes for three classes


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


@pytest.mark.parametrize("n_classes", [2, 4])
def test_logistic_is_the_regression_of_scikit_learn(n_classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    scores, y = make_data(80, n_classes=n_classes)
    weight = np.random.default_rng(0).uniform(0.5, 2, 80)
    for strength in (0.01, 1.0, 100.0):
        mine = get_fuser("logistic", features="p", C=strength).fit(scores, y, weight)
        model = LogisticRegression(C=strength, tol=1e-9, max_iter=10_000).fit(scores.reshape(80, -1), y, weight)
        theirs = model.predict_proba(scores.reshape(80, -1))
        np.testing.assert_allclose(mine.predict_proba(scores), 0.9999 * theirs + 1e-4 / n_classes, atol=1e-4)
