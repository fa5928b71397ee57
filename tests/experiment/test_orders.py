"""Other orders of the classes: of all of them, or of later ones alone where base classes must stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.data import load_benchmark
from faverage.data.benchmark import Benchmark, Session
from faverage.experiment import ConfigError, RunConfig, pictures
from faverage.experiment.sweep.plan import Plan
from faverage.rivals import Rival, get_rival
from helpers_run import command, ready, said

pytestmark = pytest.mark.usefixtures("own_cache")

DIGITS = ("digits", "--epochs", 1, "--methods", "prototypes,vote", "--jobs", 1)
SEVERAL = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])  # sessions of the classes of ``ready``


def found(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def f1_of(repeat: dict[str, Any]) -> list[list[float]]:
    return [[session["f1"] for session in method["sessions"]] for method in repeat["methods"].values()]


def test_another_order_of_all_classes_keeps_sizes_and_tests() -> None:
    config = RunConfig.build("digits", None, {"class_orders": 3})
    first, *others = (pictures.load_pictures(config, order) for order in range(3))
    assert first.any_base and first.class_names == [str(c) for c in range(10)]
    rows = np.concatenate([first.base, *first.shots, first.test])
    names = np.empty(rows.max() + 1, dtype=object)
    names[rows] = [first.class_names[c] for c in first.labels[rows]]
    for k, one in enumerate(others, 1):
        assert one.order == k and one.sessions == first.sessions and set(one.class_names[:6]) != set("012345")
        assert (
            sorted(one.test) == sorted(first.test)
            and not np.isin(np.concatenate([one.base, *one.shots]), one.test).any()
        )
        assert [len(shots) for shots in one.shots] == [10, 10] and set(one.labels[one.base]) == set(range(6))
        known = [row for row in np.concatenate([one.base, *one.shots]) if row < len(names) and names[row]]
        assert all(one.class_names[one.labels[row]] == names[row] for row in known)
    assert len(others[0].base) == sum(len(load_benchmark("digits").pool(int(c))) for c in others[0].class_names[:6])


@pytest.mark.parametrize(("later", "enough"), [(6, True), (5, True), (4, False)])
def test_a_base_class_needs_half_the_images_of_the_smallest(later: int, enough: bool) -> None:
    counts = [10, 12, later, 30]
    labels = np.repeat(np.arange(4), [n + 1 for n in counts])  # one test image each
    starts = np.cumsum([0, *(n + 1 for n in counts)])
    sessions = []
    for k, classes in enumerate([(0, 1), (2,), (3,)]):
        rows = [np.arange(starts[c] + 1, starts[c + 1])[: None if k == 0 else 4] for c in classes]
        sessions.append(Session(classes, np.concatenate(rows), starts[list(classes)]))
    images = np.zeros((len(labels), 8, 8, 3), dtype=np.uint8)
    bench = Benchmark("small", 8, list("abcd"), labels, images, sessions, "here")
    assert pictures._any_base(bench, shots=4) is enough and not pictures._any_base(bench, shots=7)


def test_ready_features_permute_later_classes_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = {"test": 5 * np.random.default_rng(0).normal(size=(180, 8)), "test_labels": np.arange(180) % 9}
    file = ready(tmp_path / "f.npz", sessions=SEVERAL, **hard)
    arguments = ("mini-imagenet", "--features", file, "--methods", "prototypes,vote", "--jobs", 1, "--out", tmp_path)
    assert command(*arguments).exit_code == 0
    alone = found(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("faverage.experiment.methods.run_method", _stopped_at(2))
        assert command(*arguments, "--class-orders", 3, "--draws", 2).exit_code == 130
    result = command(*arguments, "--class-orders", 3, "--draws", 2)
    assert result.exit_code == 0 and "class orders, 2 draws each" in result.stdout
    several = found(tmp_path)
    assert [(r["order"], r["draw"]) for r in several["repeats"]] == [(o, d) for o in range(3) for d in range(2)]
    assert "base head" in several["protocol"]["orders"] and "since ready" in (tmp_path / "report.html").read_text()
    every = [f1_of(repeat) for repeat in several["repeats"]]
    assert every[0] == f1_of(alone) and len({str(one) for one in every}) == 6
    assert len({str(one[0][0]) for one in every[::2]}) == 1  # the base session is the same
    assert "at the end all orders have the same classes and shots" in result.stdout
    assert [one["what"] for one in several["comparisons"]] == ["mean"]  # the end is the same, and no evidence
    assert several["methods"]["vote"]["summary_spread"]["gacc_auc"] > 0
    assert [(e["order"], e["draw"]) for e in several["earlier"] if e["method"] == "vote"] == [(0, 0)]
    rows = [line.split(",")[:4] for line in (tmp_path / "table.csv").read_text().splitlines()]
    assert rows[0] == ["seed", "order", "draw", "method"] and rows[-1] == ["0", "2", "1", "vote"] and len(rows) == 37


def _stopped_at(call: int) -> Any:
    """Return ``run_method`` that is stopped by Ctrl-C when it is called for so many times."""
    from faverage.experiment.fusers import run_method

    calls = []

    def run(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return run_method(*arguments, **options)

    return run


def test_what_has_no_other_order_is_refused(tmp_path: Path) -> None:
    one = ready(tmp_path / "one.npz")  # all five later classes are of one session
    result = command("mini-imagenet", "--features", one, "--class-orders", 2, "--out", tmp_path / "out")
    assert result.exit_code == 2 and not (tmp_path / "out").exists()
    words = "class_orders: ready features have a base head, and base classes stay as they are; 5 classes in 1 session"
    assert words in said(result) and "ask for fewer" in said(result)
    (tmp_path / "sweep.yaml").write_text("dataset: digits\nclass_orders: 2\n")
    with pytest.raises(ConfigError, match="a sweep has the official order of the classes: leave out class_orders"):
        Plan.read(tmp_path / "sweep.yaml")


@pytest.mark.slow
def test_all_classes_of_images_are_permuted_with_a_base_session_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*DIGITS, "--class-orders", 2, "--out", tmp_path / "two").exit_code == 0
    assert command(*DIGITS, "--out", tmp_path / "one").exit_code == 0
    two = found(tmp_path / "two")
    assert two["protocol"]["orders"] == "of all sessions" and len(two["comparisons"]) == 2
    assert len(list(tmp_path.glob("two/work/*/base.safetensors"))) == 2
    assert f1_of(two["repeats"][0]) == f1_of(found(tmp_path / "one")) != f1_of(two["repeats"][1])
    monkeypatch.setattr("faverage.experiment.methods.run_method", lambda *_, **__: pytest.fail("ran again"))
    monkeypatch.setattr("faverage.vision.engine.loop.Loop.epoch", lambda *_: pytest.fail("trained again"))
    assert command(*DIGITS, "--class-orders", 2, "--out", tmp_path / "two").exit_code == 0
    assert list(map(f1_of, found(tmp_path / "two")["repeats"])) == list(map(f1_of, two["repeats"]))


@pytest.mark.slow
def test_orders_of_later_classes_share_the_base_session_of_a_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact, fitted = get_rival("fact"), []
    monkeypatch.setattr(pictures, "_any_base", lambda *_: False)
    monkeypatch.setitem(fact.recipes, "shared/digits", {"base": {"epochs": 2}})
    monkeypatch.setattr(fact, "fit_base", lambda *given: fitted.append(1) or Rival.fit_base(*given))
    arguments = ("digits", "--epochs", 1, "--methods", "fact", "--jobs", 1, "--class-orders", 3, "--out", tmp_path)
    assert command(*arguments).exit_code == 0
    assert len(fitted) == 1 and "too few training images" in found(tmp_path)["protocol"]["orders"]
    every = [f1_of(repeat)[0] for repeat in found(tmp_path)["repeats"]]
    assert len({one[0] for one in every}) == 1 and len({one[1] for one in every}) == 3
