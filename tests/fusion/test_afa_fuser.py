"""The AFA fuser: it is the AFA module that it says, chooses sensibly, explains itself, and is fast."""

import statistics
import time

import numpy as np
import pytest
import torch

from faverage import AFA
from faverage.fusion import get_fuser
from faverage.fusion.arrays import couple


def members(n: int = 300, classes: int = 4, seed: int = 0, gap: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Three models of falling quality; with ``gap`` each knows three of the classes only."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, 3, classes)) + np.array([3.0, 1.5, 0.0])[:, None] * np.eye(classes)[y][:, None]
    scores = np.exp(logits)
    if gap:
        for k in range(3):
            scores[:, k, k] = np.nan
    return scores / np.nansum(scores, -1, keepdims=True), y


def log_loss(p: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(p[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("structure", ["auto", "scalar", "tied", "per_class", "full"])
def test_prediction_is_that_of_its_afa_modules(structure: str, gap: bool) -> None:
    scores, y = members(gap=gap)
    fuser = get_fuser("afa", structure=structure).fit(scores[:60], y[:60])
    assert fuser.coupled == (gap and structure == "auto")
    padded = np.where(np.isnan(scores), 1 / scores.shape[2], scores)
    total = np.zeros((len(y), scores.shape[2]))
    for (name, fit), (share, network) in zip(fuser.fits.items(), fuser.networks(), strict=True):
        dense = couple(scores) if fuser.coupled and not name.startswith("full") else padded
        assert isinstance(network, AFA)
        for rows in network.rows():
            assert rows().min() >= 0
        for average in network.branches:
            assert torch.allclose(average.weight.sum(1), torch.ones(1, dtype=torch.float64))
        inputs = dense if network.structure == "scalar" else fit.members(dense)
        total += share * network(torch.from_numpy(inputs)).detach().numpy()
        if structure != "auto":
            assert network.structure == ("per_class" if structure == "tied" else structure)
    assert np.abs(total - fuser.predict_proba(scores)).max() < 1e-6


@pytest.mark.parametrize("gap", [False, True])
def test_it_beats_every_member_and_the_mean_on_new_rows(gap: bool) -> None:
    scores, y = members(500, gap=gap)
    train, test = slice(0, 250), slice(250, None)
    ours = log_loss(get_fuser("afa").fit(scores[train], y[train]).predict_proba(scores[test]), y[test])
    assert ours < log_loss(get_fuser("arithmetic").predict_proba(scores[test]), y[test]) - 0.05
    if not gap:
        assert ours < min(log_loss(scores[test, k], y[test]) for k in range(3))


def test_the_full_structure_is_found_where_a_model_swaps_two_classes() -> None:
    scores, y = members(400)
    scores = scores[:, :1, [1, 0, 2, 3]]  # the only model says 0 for 1 and 1 for 0: only a full matrix can undo that
    fuser = get_fuser("afa", combine="best").fit(scores, y)
    assert next(iter(fuser.weights)).startswith("full")
    assert (fuser.predict(scores) == y).mean() > 0.7


def test_candidates_are_weighted_by_held_out_loss() -> None:
    scores, y = members()
    fuser = get_fuser("afa").fit(scores, y)
    assert sum(fuser.weights.values()) == pytest.approx(1)
    heaviest = max(fuser.weights, key=fuser.weights.__getitem__)
    assert fuser.losses[heaviest] == min(fuser.losses.values())
    best = get_fuser("afa", combine="best").fit(scores, y)
    assert list(best.weights) == [heaviest]


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("structure", ["auto", "scalar", "tied", "per_class", "full"])
def test_explanation_sums_to_one(structure: str, gap: bool) -> None:
    scores, y = members(gap=gap)
    fuser = get_fuser("afa", structure=structure).fit(scores, y)
    explanation = fuser.explain(models=["a", "b", "c"], classes=list("wxyz"))
    table = explanation.models.to_pandas()
    assert table.groupby("class")["share"].sum().tolist() == pytest.approx([1] * 4)
    assert sum(row[1] for row in explanation.means.rows) == pytest.approx(1)
    if not gap:
        assert all(row[1] == "a" for row in explanation.trusted.rows)


@pytest.mark.parametrize("structure", ["auto", "per_class", "full"])
def test_explanation_names_the_model_that_knows_better(structure: str) -> None:
    """Model 0 can tell classes 0 and 1, model 1 classes 2 and 3."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 800)
    logits = rng.normal(size=(800, 2, 4))
    for k, classes in enumerate(([0, 1], [2, 3])):
        rows = np.isin(y, classes)
        logits[rows, k] += 4 * np.eye(4)[y[rows]]
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    trusted = get_fuser("afa", structure=structure).fit(scores, y).explain().trusted
    assert [row[1] for row in trusted.rows] == ["model 0", "model 0", "model 1", "model 1"]


@pytest.mark.parametrize("structure", ["auto", "tied", "full"])
def test_explanation_trusts_models_for_classes_that_they_know(structure: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 400)
    logits = rng.normal(size=(400, 2, 4)) + 3 * np.eye(4)[y][:, None]
    scores = np.exp(logits)
    scores[:, 0, 2:] = scores[:, 1, :2] = np.nan
    scores /= np.nansum(scores, -1, keepdims=True)
    trusted = get_fuser("afa", structure=structure).fit(scores, y).explain().trusted
    assert [row[1] for row in trusted.rows] == ["model 0", "model 0", "model 1", "model 1"]


def test_explanation_does_not_depend_on_a_shift_that_changes_nothing() -> None:
    scores, y = members()
    fuser = get_fuser("afa", structure="full").fit(scores, y)
    before, p = fuser.explain().models.rows, fuser.predict_proba(scores)
    (fit,) = fuser.fits.values()
    fit.weights += np.linspace(0, 5, fit.weights.shape[1])
    assert np.allclose(fuser.predict_proba(scores), p)
    assert np.allclose([r[2] for r in fuser.explain().models.rows], [r[2] for r in before])


def test_fit_and_predict_are_fast() -> None:
    """Bounds of the design, on one core, with room for a busy machine."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 900)
    logits = rng.normal(size=(900, 8, 10)) + 3 * np.eye(10)[y][:, None]
    scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    def seconds(run, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    for structure in ("scalar", "tied", "per_class", "full"):
        assert seconds(lambda s=structure: get_fuser("afa", structure=s).fit(scores, y), 3) < 0.25
    assert seconds(lambda: get_fuser("afa").fit(scores, y), 3) < 1
    fuser = get_fuser("afa").fit(scores, y)
    assert seconds(lambda: fuser.predict_proba(scores[:1]), 50) < 1e-3


@pytest.mark.parametrize("gap", [False, True])
def test_full_matrices_that_would_be_too_large_are_left_out(gap: bool, monkeypatch) -> None:
    import faverage.fusion.afa as afa

    scores, y = members(gap=gap)
    monkeypatch.setattr(afa, "_FULL_WEIGHTS", 20)
    fuser = get_fuser("afa").fit(scores, y)
    assert len(fuser.losses) > 1 and not [name for name in fuser.losses if name.startswith("full")]
    assert next(iter(get_fuser("afa", structure="full").fit(scores, y).fits)).startswith("full")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": "diagonal"}, "structure must be"),
        ({"combine": "vote"}, "combine"),
        ({"folds": 1}, "folds must be"),
        ({"means": ()}, "means must be different names"),
        ({"means": ("arithmetic", "arithmetic")}, "means must be different names"),
        ({"means": ("median",)}, "unknown mean 'median'"),
        ({"means": "harmonic"}, "means must be a list of names"),
    ],
)
def test_bad_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        get_fuser("afa", **options)
