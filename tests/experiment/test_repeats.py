"""Repeats of a run: means and spreads, paired comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from faverage.experiment.results import combine, compare


def repeat(seed: int, **f1: float) -> dict:
    def sessions(last: float) -> list[dict]:
        return [
            {"f1": 0.8, "new": None, "by_session": [0.8]},
            {"f1": last, "new": last / 2, "by_session": [last, last / 2]},
        ]

    return {
        "seed": seed,
        "draw": 0,
        "methods": {name: {"sessions": sessions(v), "history": 1} for name, v in f1.items()},
    }


def test_means_and_spread_by_hand() -> None:
    both = combine([repeat(0, a=0.5, b=0.1), repeat(1, a=0.7, b=0.1)])
    last, spread = both["a"]["sessions"][1], both["a"]["spread"][1]
    assert last["f1"] == pytest.approx(0.6) and last["by_session"] == pytest.approx([0.6, 0.3])
    assert spread["f1"] == pytest.approx(0.2 / 2**0.5) and both["b"]["spread"][1]["f1"] == 0
    assert both["a"]["sessions"][0]["new"] is None and both["a"]["history"] == 1
    assert combine([repeat(0, a=0.5)])["a"]["spread"] is None


def test_summaries_and_costs_are_averaged_too() -> None:
    runs = [repeat(0, a=0.5), repeat(1, a=0.7)]
    for run, value in zip(runs, (0.2, 0.6), strict=True):
        run["methods"]["a"] |= {"summary": {"gacc_auc": value, "new": None}, "costs": {"passes": 3, "flops": None}}
    both = combine(runs)["a"]
    assert both["summary"] == {"gacc_auc": pytest.approx(0.4), "new": None}
    assert both["summary_spread"] == {"gacc_auc": pytest.approx(0.4 / 2**0.5)}
    assert both["costs"] == {"passes": 3, "flops": None} and both["costs_spread"] == {"passes": 0.0}
    assert combine(runs[:1])["a"]["summary_spread"] is None


def test_paired_comparison_is_that_of_a_paired_t_test() -> None:
    ours, theirs = [0.52, 0.55, 0.50, 0.58], [0.50, 0.51, 0.51, 0.54]
    runs = [repeat(i, afa=a, vote=b) for i, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    last, mean = compare(runs, "afa")
    wanted = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (last["method"], last["what"], mean["what"]) == ("vote", "last", "mean")
    assert (last["low"], last["high"]) == (pytest.approx(wanted.low), pytest.approx(wanted.high))
    assert last["difference"] == pytest.approx(np.mean(np.subtract(ours, theirs))) and last["wins"] == 3
    assert compare(runs[:1], "afa") == [] and compare(runs, "none") == []


def test_what_was_chosen_is_averaged_over_repeats() -> None:
    runs = [repeat(0, afa=0.5, vote=0.4), repeat(1, afa=0.6, vote=0.4)]
    for run, chosen in zip(runs, ({"a": 1.0}, {"a": 0.4, "b": 0.6}), strict=True):
        run["methods"]["afa"]["chosen"] = chosen
    both = combine(runs)
    assert both["afa"]["chosen"] == pytest.approx({"a": 0.7, "b": 0.3}) and "chosen" not in both["vote"]
