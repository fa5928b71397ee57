"""Streams: partial_fit with a half-life follows models that change, in constant memory, and keeps what it did."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.fusion import arrays, get_fuser
from faverage.fusion.online import WeightHistory
from helpers_fusers import log_loss

Array = np.ndarray[Any, Any]


def stream(n: int, change: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    """Return scores of three models and labels of three classes; from ``change`` of the rows on, 0 and 2 swap roles."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    skill = np.tile([3.0, 1.5, 0.0], (n, 1))
    skill[int(change * n) :] = [0.0, 1.5, 3.0]
    z = rng.normal(size=(n, 3, 3)) + skill[:, :, None] * np.eye(3)[y][:, None]
    p = np.exp(z)
    return p / p.sum(2, keepdims=True), y


def feed(name: str, scores: Array, y: Array, half_life: float | None, batch: int = 50, **options: Any) -> Any:
    fuser = get_fuser(name, **options)
    for start in range(0, len(y), batch):
        fuser.partial_fit(scores[start : start + batch], y[start : start + batch], half_life=half_life)
    return fuser


def test_without_drift_it_comes_close_to_the_batch_fit() -> None:
    scores, y = stream(1500)
    new, new_y = stream(2000, seed=1)
    batch = log_loss(get_fuser("log-pool").fit(scores, y).predict_proba(new), new_y)
    for half_life, most in ((math.inf, 0.002), (500, 0.01)):
        ours = log_loss(feed("log-pool", scores, y, half_life).predict_proba(new), new_y)
        assert ours < batch + most


@pytest.mark.parametrize("name", ["log-pool", "afa"])
def test_with_drift_it_is_better_than_the_batch_fit(name: str) -> None:
    scores, y = stream(900, change=2 / 3)
    new, new_y = stream(1000, change=0.0, seed=1)
    options = {"structure": "scalar"} if name == "afa" else {}
    batch = log_loss(get_fuser(name, **options).fit(scores, y).predict_proba(new), new_y)
    fuser = feed(name, scores, y, 100, **options)
    assert log_loss(fuser.predict_proba(new), new_y) < 0.6 * batch
    shares = fuser.weight_history.shares
    assert shares[5, 0] > shares[5, 2] + 0.3 and shares[-1, 2] > shares[-1, 0] + 0.2
    np.testing.assert_allclose(shares.sum(1), 1)
    losses = fuser.weight_history.losses  # of rows before they are learned from: high where the models have changed
    assert np.isnan(losses[0]) and losses[12] > 1.5 * losses[1:12].mean() and losses[12] > 1.5 * losses[-1]


def test_how_a_stream_is_cut_into_batches_does_not_matter() -> None:
    scores, y = stream(600, change=0.7)
    whole, parts = (feed("log-pool", scores, y, 100, batch) for batch in (600, 300))
    np.testing.assert_allclose(whole.predict_proba(scores), parts.predict_proba(scores), atol=0.01)
    assert not np.allclose(whole.predict_proba(scores), get_fuser("log-pool").fit(scores, y).predict_proba(scores), 0.1)


@pytest.mark.parametrize("half_life", [None, math.inf, 1000])
def test_a_long_stream_takes_no_more_memory_and_no_row_stands_for_all(half_life, monkeypatch) -> None:
    monkeypatch.setattr(arrays, "_KEPT_ROWS", 100)
    rng = np.random.default_rng(0)
    fuser = get_fuser("performance")
    for step in range(150):
        y = rng.integers(0, 2, 20)
        scores = np.stack([np.eye(2)[y] * 0.4 + 0.3, np.full((20, 2), step / 150)], 1)
        fuser.partial_fit(scores, y, half_life=half_life)
    kept, _, weight = fuser._kept
    assert len(kept) == 100 and weight.sum() ** 2 / (weight @ weight) > 80
    assert weight.sum() == pytest.approx(3000 if half_life != 1000 else 1000 / math.log(2), rel=0.15)
    age = 1 - weight @ kept[:, 1, 0] / weight.sum()  # in units of the stream
    assert 0.35 < age < 0.65 if half_life != 1000 else 0.2 < age < 0.4  # by the formula 0.29
    assert len(fuser.weight_history.examples) == 150 and fuser.weight_history.examples[-1] == 3000


def test_small_batches_do_not_fit_again_each_time(monkeypatch) -> None:
    scores, y = stream(400)
    fuser, fits = get_fuser("log-pool"), []
    fit = type(fuser)._fit
    monkeypatch.setattr(type(fuser), "_fit", lambda self, *data: fits.append(fit(self, *data)))
    for i in range(400):
        fuser.partial_fit(scores[i : i + 1], y[i : i + 1], half_life=60)
    assert 355 <= len(fuser._kept[1]) <= 361  # rows older than six half-lives are dropped
    assert 30 < len(fits) < 70  # about every eleventh row at the end: 60 / ln 2 / 8
    assert len(fuser.weight_history.examples) == 400
    assert np.isfinite(fuser.weight_history.losses[1:]).all()


def test_a_model_comes_late_and_one_goes() -> None:
    scores, y = stream(900, change=0.0)  # model 2 is the best,
    scores[:300, 2] = np.nan  # but comes late,
    scores[600:, 1] = np.nan  # and model 1 goes
    fuser = feed("log-pool", scores, y, 60)
    shares = fuser.weight_history.shares
    assert shares[-1, 2] > 0.6 and fuser.predict(scores[-100:]).tolist() == scores[-100:, 2].argmax(1).tolist()
    two = feed("log-pool", scores[:300, :2], y[:300], 60).add_model()  # the same with room made for it
    two.partial_fit(scores[300:600], y[300:600], half_life=60)
    assert two.weight_history.shares.shape == (7, 3) and two.weight_history.shares[-1, 2] > 0.5
    assert np.isnan(two.weight_history.shares[0, 2])


def test_the_history_is_thinned_evenly() -> None:
    history = WeightHistory()
    for i in range(5000):
        history.add(1 + i % 3, np.array([i / 5000, 1 - i / 5000]), float(i))
    assert 200 < len(history.examples) <= 512 and history.examples[-1] == sum(1 + i % 3 for i in range(5000))
    steps = np.diff(history.examples)
    assert steps[:-1].max() <= 2 * steps[:-1].min() and history.shares[-1, 0] == 4999 / 5000
    np.testing.assert_allclose(np.diff(history.losses)[:-1], np.diff(history.losses)[0], rtol=0.5)


def test_the_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scores, y = stream(200)
    history = feed("log-pool", scores, y, 50).weight_history
    history.plot(tmp_path / "weights.svg", models=["a", "b", "c"])
    assert (tmp_path / "weights.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match="models must have 3 names, got 1"):
        history.plot(models=["a"])
    with pytest.raises(ValueError, match="there are no weights to draw"):
        feed("arithmetic", scores, y, 50).weight_history.plot()


@pytest.mark.parametrize("half_life", [0, -1, "ten", True, math.nan])
def test_a_half_life_that_is_none(half_life) -> None:
    scores, y = stream(10)
    with pytest.raises(
        ValueError, match=re.escape(f"half_life must be a number of examples above 0, got {half_life!r}")
    ):
        get_fuser("log-pool").partial_fit(scores, y, half_life=half_life)


def test_bad_batches_leave_the_fuser_as_it_was() -> None:
    scores, y = stream(100)
    fuser = feed("log-pool", scores, y, 50)
    before = fuser.predict_proba(scores)
    for bad, labels, message in (
        (scores, y + 1, r"y must be labels in 0 … 2, found 3"),
        (scores[:, :2], y, "call add_model or add_class first"),
        (scores, y[1:], r"y must be whole-number labels of shape \(100,\)"),
        (scores, y / 2, "y must be whole-number labels"),
    ):
        with pytest.raises(ValueError, match=message):
            fuser.partial_fit(bad, labels, half_life=50)
    assert (fuser.predict_proba(scores) == before).all() and fuser.weight_history.examples[-1] == 100
    assert (fuser.partial_fit(scores, y.tolist(), half_life=50).predict_proba(scores) != before).any()
