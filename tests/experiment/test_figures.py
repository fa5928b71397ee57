"""Figures of a run: which there are, the same bytes again, without matplotlib; and what a balance trades."""

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from faverage.errors import install_line
from faverage.experiment import RunConfig, run_method
from faverage.experiment.figures import FIGURES, draw_figures, write_figures
from faverage.experiment.report import write
from faverage.features import FeatureSet
from helpers_learner import learned
from helpers_run import command, numbers, ready, said

ODD = "$odd_name$ <&>\n\x00 名 and one that is far too long for a column of a paper"


@pytest.fixture(autouse=True)
def _figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests draw none."""
    monkeypatch.setattr("faverage.experiment.report.draw_figures", draw_figures)


def drawn(*names: str, n_sessions: int = 3) -> dict[str, Any]:
    """Return the results of a run that never was."""
    methods: dict[str, Any] = {}
    for i, name in enumerate(names):
        f1 = [0.9 - 0.1 * k - 0.01 * i for k in range(n_sessions)]
        sessions = [
            {"f1": v, "accuracy": v, "base": v, "new": 0.3 + 0.02 * i if k else None, "harmonic": v, "forgetting": 0.0}
            for k, v in enumerate(f1)
        ]
        methods[name] = {"sessions": sessions, "spread": [{"f1": 0.01}] * n_sessions}
    protocol = {"sessions": [{"classes": 2}] * n_sessions}
    return {"dataset": "digits", "methods": methods, "protocol": protocol, "paper": {"lucir": [80.0, 70.0, 60.0]}}


def whole() -> dict[str, Any]:
    results = drawn("lucir", "fact", "vote", ODD, "afa-paper", "afa")
    history = {"train": [2.0, 1.0, None, 0.5], "validation": [2.0, 1.5, 1.2]}
    results["methods"]["afa-paper"]["history"] = history
    results["methods"]["afa"]["trade"] = [{"balance": b, "base": 1 - b / 10, "new": b / 10} for b in (0.5, 1.5, 4.0)]
    results["methods"]["afa"]["confusion"] = {"base": {"right": 0.9, "new": 0.1}, "new": {"right": 0.4, "base": 0.6}}
    shares = [[0.1, None, 0.9]] * 6
    results["methods"]["afa"]["explanation"] = {"heads": ["a", "b", ODD], "classes": list("012345"), "shares": shares}
    results["methods"]["afa"]["explanation"]["means"] = [["arithmetic", 1.0]]
    results["base"] = {"history": {"loss": [2.0, None, 1.0], "accuracy": [0.5, 0.7, 0.9]}}
    return results


@pytest.mark.slow
def test_every_figure_is_written_and_again_with_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = whole()
    paths = write_figures(results, tmp_path / "figures")
    assert [path.name for path in paths] == list(FIGURES)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == set(FIGURES)
    for path in paths:
        data = path.read_bytes()
        assert b"<dc:date>" not in data and b"CreationDate" not in data
        if path.suffix == ".svg":
            assert 3.3 * 72 < float(ElementTree.fromstring(data).attrib["width"].removesuffix("pt")) < 7.1 * 72
    results["methods"]["vote"]["sessions"][1]["f1"] = None
    changed = draw_figures(results | {"date": "2030-01-01", "seconds": 3.0})
    other = {name for name in FIGURES if changed[name] != (tmp_path / "figures" / name).read_bytes()}
    assert other == {"fusers.svg", "fusers.pdf"}


def test_a_run_has_the_figures_for_which_it_has_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    assert draw_figures(drawn("vote", n_sessions=1)) == {}
    assert set(draw_figures(drawn("vote", "afa"))) == {
        f"{n}.{kind}" for n in ("fusers", "trade") for kind in ("svg", "pdf")
    }
    with monkeypatch.context() as patch:  # the other test draws them
        patch.setattr("faverage.experiment.report.draw_figures", lambda _: dict.fromkeys(FIGURES, b"drawn"))
        write(tmp_path, whole())
    assert len(list((tmp_path / "figures").iterdir())) == len(FIGURES) == 14
    (tmp_path / "figures" / "mine.txt").touch()
    write(tmp_path, drawn("vote", "afa"))  # what was drawn of the earlier run is no longer there
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"fusers.svg", "fusers.pdf", "trade.svg", "trade.pdf", "mine.txt"}


def test_without_matplotlib_a_run_ends_and_says_what_brings_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ("mini-imagenet", "--features", ready(tmp_path / "f.npz"), "--methods", "prototypes,afa", "--jobs", 1)
    result = command(*arguments, "--out", tmp_path / "out")
    assert result.exit_code == 0 and said(result).count(install_line("plot")) == 1
    assert (tmp_path / "out" / "results.json").exists() and not (tmp_path / "out" / "figures").exists()
    assert "Base classes against new ones" in (tmp_path / "out" / "report.html").read_text()
    assert ", figures" not in result.stdout


@pytest.mark.slow
def test_a_run_that_is_repeated_from_its_files_has_the_same_trade_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("mini-imagenet", "--features", ready(tmp_path / "f.npz"), "--methods", "prototypes,afa", "--jobs", 1)
    found = []
    for _ in range(2):
        assert command(*arguments, "--out", tmp_path / "out").exit_code == 0
        figures = {path.name: path.read_bytes() for path in (tmp_path / "out" / "figures").iterdir()}
        found.append((numbers(tmp_path / "out"), figures))
    assert found[0] == found[1] and found[0][0]["afa"]["trade"] and "trade.pdf" in found[0][1]


def test_the_trade_passes_through_the_methods_own_numbers(tmp_path: Path) -> None:
    features = FeatureSet.load(ready(tmp_path / "f.npz"))
    config = RunConfig.build("mini-imagenet", None, {"features": str(tmp_path / "f.npz"), "balance": 1.7})
    result = run_method("afa", features, config, trade=True)
    (own,) = [row for row in result["trade"] if row["balance"] == 1.7]
    assert len(result["trade"]) == 8
    assert {key: own[key] for key in ("base", "new", "accuracy", "f1")}.items() <= result["sessions"][-1].items()
    other = run_method("afa", features, config)
    assert "trade" not in other and "trade" not in run_method("vote", features, config, trade=True)
    assert [s["f1"] for s in other["sessions"]] == [s["f1"] for s in result["sessions"]]


def test_another_balance_fits_as_a_learner_of_that_balance_and_changes_nothing() -> None:
    learner, world = learned()
    x, _ = world.draw(range(10), 20)
    before, scores = learner.predict_proba(x), learner.member_scores(x)
    fuser, same = learner.rebalanced(4.0), learner.rebalanced(learner.balance)
    assert fuser is not None and same is not None
    np.testing.assert_array_equal(fuser.predict_proba(scores), learned(balance=4.0)[0].fuse(scores))
    np.testing.assert_array_equal(same.predict_proba(scores), before)
    np.testing.assert_array_equal(learner.predict_proba(x), before)
    assert not np.array_equal(fuser.predict_proba(scores), before)
    with pytest.raises(ValueError, match="balance must lie in"):
        learner.rebalanced(0.0)
    assert learned("prototypes")[0].rebalanced(2.0) is None
