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


def test_weights_by_performance_are_log_odds_above_chance() -> None:
    nan = np.nan
    a, b, c, ab = [0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.5, 0.5, 0.0]
    scores = np.array(
        [
            [a, b, [0.9, 0.1, nan], [nan, nan, 1.0]],
            [b, b, [0.3, 0.7, nan], [nan] * 3],
            [c, a, [0.8, 0.2, nan], [nan, nan, 1.0]],  # the third model does not know this class
            [b, ab, [nan] * 3, [nan] * 3],
        ]
    )
    y, weight = np.array([0, 1, 2, 0]), np.array([1.0, 1.0, 1.0, 2.0])
    accuracy = np.array([(3 + 1) / (5 + 3), (1 + 2 / 2 + 1) / (5 + 3), (2 + 1) / (2 + 2), (1 + 1) / (1 + 2)])
    odds = np.log(accuracy / (1 - accuracy)) + np.log([2, 2, 1, 1])
    fuser = get_fuser("performance").fit(scores, y, weight)
    np.testing.assert_allclose(fuser.weights, odds / odds.sum())
    w = odds / odds.sum()
    values = [
        (w[0] * 0.6 + w[1] * 0.2 + w[2] * 0.9) / w[:3].sum(),
        (w[0] * 0.3 + w[1] * 0.5 + w[2] * 0.1) / w[:3].sum(),
    ]
    values.append((w[0] * 0.1 + w[1] * 0.3 + w[3]) / (w[0] + w[1] + w[3]))
    np.testing.assert_allclose(fuser.predict_proba(scores[:1])[0], np.array(values) / sum(values))
    wrong = np.array([[[1.0, 0.0, nan], [nan, nan, 1.0]], [[0.0, 1.0, nan], [nan, nan, 1.0]]])
    worst = get_fuser("performance").fit(wrong, np.array([1, 0]))  # nobody is better than chance: the plain mean
    np.testing.assert_array_equal(worst.weights, [0.5, 0.5])
    np.testing.assert_allclose(worst.predict_proba(wrong), get_fuser("arithmetic").predict_proba(wrong))


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


@pytest.mark.parametrize("name", [*NETS, "mixture-of-experts"])
def test_networks_keep_their_history(name: str, tmp_path: Path) -> None:
    scores, y = make_data(60)
    quiet = {"dropout": 0.0} if name == "mixture-of-experts" else {}  # what is dropped moves the loss of so few epochs
    fuser = get_fuser(name, epochs=7, validation=0.2, patience=3, lr=0.002, seed=5, **quiet).fit(scores, y)
    history = fuser.history
    assert len(history.train) == len(history.validation) <= 7 and history.train[-1] < history.train[0]
    loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
    assert loaded.history == history
    other = get_fuser(name, epochs=7, seed=6).fit(scores, y)
    assert other.history.validation == []


def test_an_untrained_mixture_is_the_mean_of_those_who_answer() -> None:
    scores, y = make_data(40, gaps=True)
    untrained = get_fuser("mixture-of-experts", epochs=1, lr=1e-12).fit(scores, y)
    silent = np.isnan(scores).all(2)
    filled = np.where(silent[:, :, None], np.nan, pad(scores, "zero"))
    mean = get_fuser("arithmetic").predict_proba(filled)
    np.testing.assert_allclose(untrained.predict_proba(scores), (1 - 1e-4) * mean + 1e-4 / N, atol=1e-6)
    shrunk = get_fuser("mixture-of-experts", decay=1000.0).fit(scores, y)
    np.testing.assert_allclose(shrunk.predict_proba(scores), mean, atol=0.05)


def test_a_mixture_leaves_the_mean_as_rows_come() -> None:
    scores, y = make_data(60)
    mean = get_fuser("arithmetic").predict_proba(scores)
    gap = [
        np.abs(get_fuser("mixture-of-experts").fit(scores[:n], y[:n]).predict_proba(scores) - mean).max()
        for n in (1, 60)
    ]
    assert gap[0] < 0.1 and gap[1] > 0.3


def test_the_gate_weighs_only_members_in_use() -> None:
    scores, y = make_data(60)
    fuser = get_fuser("mixture-of-experts", dropout=0.4).fit(scores, y)
    missing = scores.copy()
    missing[::2, 1] = np.nan
    x, network = fuser._input(missing), fuser.network
    gate = network.gate(x).detach().numpy()
    np.testing.assert_allclose(gate.sum(1), 1, atol=1e-6)
    assert (gate[::2, 1] == 0).all() and gate[1::2, 1].min() > 0
    mixed = (gate[:, :, None] * x.numpy()).sum(1)
    np.testing.assert_allclose(fuser.predict_proba(missing), (1 - 1e-4) * mixed + 1e-4 / N, atol=1e-6)
    network.train()
    dropped = torch.stack([network.gate(x) for _ in range(50)]).detach().numpy()
    np.testing.assert_allclose(dropped.sum(2), 1, atol=1e-6)
    assert (dropped[:, ::2, 1] == 0).all()
    rate = (dropped[:, 1::2] == 0).mean()  # none is dropped where all would be
    assert abs(rate - (0.4 - 0.4**3)) < 0.05
    for options in ({"dropout": 1.0}, {"dropout": -0.1}, {"decay": -1.0}, {"decay": np.inf}):
        with pytest.raises(ValueError, match=next(iter(options))):
            get_fuser("mixture-of-experts", **options)


def test_a_gate_by_rows_beats_every_fixed_weighting() -> None:
    """Each of two members is right in its half of the rows, and surer of a wrong class in the other.

    Which half it is shows in the scores: class 3, which is never the label, gets more from the one who errs.
    """

    def halves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        y, half = rng.integers(0, 3, n), rng.integers(0, 2, n)
        scores = np.empty((n, 2, 4))
        for k in range(2):
            said = np.where(half == k, y, (y + rng.integers(1, 3, n)) % 3)
            scores[:, k] = np.where(half == k, 0.7, 1.2)[:, None] * np.eye(4)[said] + 0.05
            scores[:, k, 3] = np.where(half == k, 0.01, 0.05)
        return scores / scores.sum(2, keepdims=True), y

    (scores, y), (test, truth) = halves(200, 0), halves(400, 1)
    fixed = [w * test[:, 0] + (1 - w) * test[:, 1] for w in np.linspace(0, 1, 21)]
    best, most = min(log_loss(p, truth) for p in fixed), max((p.argmax(1) == truth).mean() for p in fixed)
    p = get_fuser("mixture-of-experts").fit(scores, y).predict_proba(test)
    assert most < 0.6 and (p.argmax(1) == truth).mean() > 0.95 and log_loss(p, truth) < 0.5 * best


def test_the_gate_picks_who_knows_the_class() -> None:
    """Two members know two classes each, without overlap: the one who is asked about others' classes is unsure."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 4
    scores = np.full((200, 2, 4), np.nan)
    for k in range(2):
        sure = np.where(y // 2 == k, np.where(y % 2 == 0, 0.95, 0.05), rng.uniform(0.3, 0.7, 200))
        scores[:, k, 2 * k : 2 * k + 2] = np.stack([sure, 1 - sure], 1)
    fuser = get_fuser("mixture-of-experts").fit(scores[:100], y[:100])
    p = fuser.predict_proba(scores[100:])
    assert log_loss(p, y[100:]) < 0.5 * log_loss(get_fuser("arithmetic").predict_proba(scores[100:]), y[100:])
    gate = fuser.network.gate(fuser._input(scores[100:])).detach().numpy()
    np.testing.assert_array_equal(gate.argmax(1), y[100:] // 2)


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
