"""A cascade: which examples all views look at, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.experiment import RunConfig
from faverage.experiment.fusers import run_method
from faverage.experiment.report import write_report
from faverage.features import FeatureSet
from faverage.fscil import Cascade, FewShotLearner
from faverage.fscil.cascade import sureness
from faverage.storage import read_json
from helpers_features import made
from helpers_run import command

FIRST = ["near"]


def views_of(y: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Features of ten classes, in a view that sees little and one that sees more."""
    rng = np.random.default_rng(seed)
    centres = {
        "near": np.random.default_rng(1).normal(size=(10, 12)),
        "far": np.random.default_rng(2).normal(size=(10, 12)),
    }
    return {v: (c[y] + {"near": 0.9, "far": 0.5}[v] * rng.normal(size=(len(y), 12))) for v, c in centres.items()}


def taught(**options: Any) -> FewShotLearner:
    base, new = np.repeat(np.arange(6), 40), np.repeat(np.arange(6, 10), 5)
    return FewShotLearner(**options).fit_base(views_of(base, 0), base).learn_session(views_of(new, 3), new)


TESTS = np.repeat(np.arange(10), 60)
X = views_of(TESTS, 4)


def test_a_share_of_none_is_the_first_views_and_of_all_the_learner() -> None:
    learner = taught()
    none, every = Cascade(learner, FIRST, 0), Cascade(learner, FIRST, 1)
    assert none.predict_proba(X).tolist() == none.quick.predict_proba({"near": X["near"]}).tolist()
    np.testing.assert_allclose(every.predict_proba(X), learner.predict_proba(X), atol=1e-6)
    assert none.quick.members.names == ["base head", "prototypes", "ridge"] and none.quick.classes == learner.classes


@pytest.mark.parametrize("options", [{}, {"whiten": 0.5}])
def test_as_many_are_looked_at_again_as_was_asked_for(options: dict[str, Any]) -> None:
    learner = taught(**options)
    right, shares = [], (0.0, 0.2, 0.4, 1.0)
    for share in shares:
        cascade = Cascade(learner, FIRST, share)
        again = (sureness(cascade.quick.predict_proba({"near": X["near"]})) < cascade.threshold).mean()
        assert abs(again - share) < 0.12
        right.append((cascade.predict(X) == TESTS).mean())
    assert right[0] + 0.05 < right[1] < right[2] and right[2] > right[3] - 0.03


def test_the_other_views_are_asked_for_where_they_are_needed() -> None:
    cascade = Cascade(taught(), FIRST, 0.3)
    asked: list[int] = []

    def more(rows: np.ndarray) -> dict[str, np.ndarray]:
        asked.extend(rows.tolist())
        return {"far": X["far"][rows]}

    said = cascade.predict({"near": X["near"]}, more)
    unsure = sureness(cascade.quick.predict_proba({"near": X["near"]})) < cascade.threshold
    assert asked == np.flatnonzero(unsure).tolist() and said.tolist() == cascade.predict(X).tolist()
    sure = {"near": X["near"][~unsure]}
    assert len(cascade.predict(sure, lambda rows: pytest.fail("all are sure"))) == (~unsure).sum()
    assert said.dtype == cascade.learner.predict(X).dtype


def test_learners_without_base_classes_and_of_one_class() -> None:
    y = np.repeat(np.arange(4), 5)
    nothing = FewShotLearner().learn_session(views_of(y, 5), [f"class {c}" for c in y])
    some = np.flatnonzero(TESTS < 4)
    tests = {view: x[some] for view, x in X.items()}
    said = Cascade(nothing, FIRST, 0.5).predict(tests)
    assert (said == [f"class {c}" for c in TESTS[some]]).mean() > 0.7
    single = FewShotLearner().learn_session(views_of(y[:1], 5), ["one"])
    assert Cascade(single, FIRST).predict(tests).tolist() == ["one"] * len(some)  # all views look


def test_what_does_not_fit_is_named() -> None:
    learner = taught()
    for first in ([], ["sideways"], "near", ["near", "near"]):
        with pytest.raises(ValueError, match="views must be different names among near, far"):
            Cascade(learner, first)
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="share must lie in"):
            Cascade(learner, FIRST, share)
    with pytest.raises(ValueError, match="'near' is missing"):
        Cascade(learner, FIRST).predict({"far": X["far"]})
    with pytest.raises(ValueError, match="'far' is missing"):
        Cascade(learner, FIRST, 1).predict({"near": X["near"]})
    with pytest.raises(ValueError, match="call learn_session"):
        Cascade(FewShotLearner(), FIRST)


def test_a_run_says_what_stopping_saves(tmp_path: Path) -> None:
    file = made(tmp_path / "f.npz", views=np.array(["plain", "largest", "rotate-90"]))
    features = FeatureSet.load(file)
    config = RunConfig.build("folder", None, {"features": str(file)})
    result = run_method("afa", features, config, trade=True)
    steps = result["stopping"]
    assert [step["passes"] for step in steps] == [1 + step["again"] for step in steps]
    assert steps[0]["passes"] == 1 and steps[-1]["passes"] == 2
    last = result["sessions"][-1]
    assert all(steps[-1][key] == last[key] for key in ("accuracy", "f1", "base", "new"))
    alone = run_method("afa", FeatureSet.load(file, ["plain", "largest"]), config, trade=True)
    assert "stopping" not in alone and "stopping" not in run_method("afa", features, config)
    assert steps[0]["accuracy"] == alone["sessions"][-1]["accuracy"]
    arguments = ("--features", file, "--methods", "prototypes,afa", "--jobs", 1, "--out", tmp_path / "out")
    assert command("folder", *arguments).exit_code == 0
    results = read_json(tmp_path / "out" / "results.json")
    assert results["methods"]["afa"]["stopping"] == steps
    write_report(tmp_path / "again.html", results)
    assert "Stopping where the answer is sure" in (tmp_path / "again.html").read_text(encoding="utf-8")
