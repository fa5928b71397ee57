"""The benchmark of fusers on many tables: its manifest, its halves, broken files, a tiny run, and going on."""

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeRegressor

from helpers_paths import ROOT

FEW = ["--fusers", "greedy,best single,scikit-learn stacking,mean", "--jobs", "1", "--splits", "2"]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, with two quick members in the place of eight."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("fusion_wide", ROOT / "benchmarks" / "fusion_wide.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.fusion, "classifiers", lambda seed: [GaussianNB(), LogisticRegression()])
    monkeypatch.setattr(module.fusion, "regressors", lambda seed: [LinearRegression(), DecisionTreeRegressor()])
    yield module
    sys.modules.pop("fusion", None)


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A folder of three tables with a manifest: words, numbers, gaps, a rare class; the last is to measure."""
    rng = np.random.default_rng(0)
    label = np.append(np.arange(150) % 5, [5] * 3)
    lines = ["% made up", "@relation r", "@attribute 'the colour' {red, 'light blue'}", "@ATTRIBUTE size REAL"]
    lines += ["@attribute id {a}", "@attribute class {0,1,2,3,4,5}", "@data"]
    for i, c in enumerate(label):
        size = "?" if i % 10 == 0 else f"{3 * c + rng.normal():.3f}"
        lines.append(f"{('red', chr(39) + 'light blue' + chr(39), '?')[rng.integers(3)]}, {size}, w{i}, {c}")
    folder = tmp_path / "tables" / "made"
    folder.mkdir(parents=True)
    (folder / "a.arff").write_text("\n".join(lines) + "\n")
    for name in ("b.csv", "c.csv"):
        x = rng.normal(size=(80, 2))
        rows = (f"{u:.4f},{v:.4f},{3 * u - v + rng.normal():.4f}," for u, v in x)  # with a comma at the end
        (folder / name).write_text("\n".join(rows) + "\n")
    sets: list[dict[str, Any]] = [
        {"name": "a", "kind": "classification", "half": "choose", "path": "a.arff", "target": "class", "drop": ["id"]},
        {"name": "b", "kind": "regression", "half": "choose", "path": "b.csv", "target": "2"},
        {"name": "c", "kind": "regression", "half": "measure", "path": "c.csv", "target": "2"},
    ]
    for entry in sets:
        digest = hashlib.sha256((folder / entry["path"]).read_bytes()).hexdigest()
        rows_columns = {"rows": 153, "columns": 4} if entry["name"] == "a" else {"rows": 80, "columns": 3}
        entry |= {"source": "made", "sha256": digest, **rows_columns}
    sources = {"made": {"repository": "https://example.org/made", "commit": "0"}}
    manifest = {"most rows": 2000, "fewest rows of a class": 20, "sources": sources, "sets": sets}
    (tmp_path / "wide.json").write_text(json.dumps(manifest))
    return tmp_path


def call(wide: ModuleType, folder: Path, *more: str) -> None:
    places = ["--data", folder / "tables", "--manifest", folder / "wide.json", "--out", folder / "out"]
    wide.main([*map(str, places), *FEW, *more])


def test_the_manifest_is_well_formed_and_its_halves_follow_the_rule() -> None:
    manifest = json.loads((ROOT / "benchmarks" / "wide.json").read_text())
    sets = manifest["sets"]
    names = [e["name"] for e in sets]
    assert len(set(names)) == len(names) and not {"iris", "wine", "digits", "breast-cancer", "diabetes"} & set(names)
    for entry in sets:
        assert re.fullmatch("[0-9a-f]{64}", entry["sha256"]) and entry["source"] in manifest["sources"]
        assert entry["rows"] >= 100 and entry["columns"] >= 3 and entry["target"] not in entry.get("drop", [])
    for kind, least in (("classification", 20), ("regression", 12)):
        own = sorted((hashlib.sha256(e["name"].encode()).hexdigest(), e["half"]) for e in sets if e["kind"] == kind)
        assert len(own) >= least
        assert [half for _, half in own] == ["measure"] * (len(own) // 2) + ["choose"] * (len(own) - len(own) // 2)


def test_a_tiny_run_and_what_it_writes(wide: ModuleType, made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made_up / "doc.md").write_text("before\n<!-- begin results -->\nold\n<!-- end results -->\nafter\n")
    files = ["--json", made_up / "r.json", "--markdown", made_up / "doc.md", "--plot", made_up / "ranks"]
    call(wide, made_up, *map(str, files), "--splits", "1", "--fusers", "afa,greedy,best single,mean")
    told = json.loads((made_up / "r.json").read_text())
    assert list(told["tables"]) == ["a", "b"]  # c is for measuring
    assert [s["shape"]["classes"] for s in told["tables"]["a"]] == [5]  # the rare class is left out
    assert told["tables"]["a"][0]["shape"]["rows"] == 150
    assert set(told["summary"]) == {*wide.CLASSIFICATION, *wide.REGRESSION}
    shared = told["summary"]["shared"]["fusers"]
    assert sorted(row["rank"] for row in shared.values()) == [1, 2, 3] and "p" not in shared["afa"]
    losses = [f["shared"]["log-loss"] for split in told["tables"]["a"] for f in split["fusers"].values()]
    assert max(losses) < np.log(5)  # the encoded table says something about its classes
    assert max(row["rmse"] for row in told["summary"]["regression"]["fusers"].values()) < 0.7
    text = (made_up / "doc.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "### A fifth each" in text
    assert (made_up / "ranks.svg").stat().st_size > 1000 and (made_up / "ranks.png").stat().st_size > 1000
    assert "b, split 0: members" in capsys.readouterr().out


def test_words_and_gaps_become_numbers(wide: ModuleType, made_up: Path) -> None:
    manifest = wide.read_manifest(made_up / "wide.json")
    x, y = wide.load(manifest["sets"][0], manifest, made_up / "tables")
    assert x.shape == (150, 3) and np.bincount(y).tolist() == [30] * 5  # light blue, red, size
    assert set(map(tuple, x[:, :2])) == {(0, 0), (0, 1), (1, 0)} and 10 <= np.isnan(x[:, 2]).sum() <= 16
    assert wide.encoded([f"w{i:02}" for i in range(11)] + ["?"])[:, 0].tolist()[:-1] == list(range(11))


def test_a_broken_and_a_missing_file_are_named_and_skipped(
    wide: ModuleType, made_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_up / "tables" / "made"
    (folder / "a.arff").write_text((folder / "a.arff").read_text() + "\n")
    call(wide, made_up, "--json", str(made_up / "r.json"))
    lines = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    assert len(lines) == 1 and lines[0].startswith("a: ") and "has sha256" in lines[0] and "expected" in lines[0]
    assert list(json.loads((made_up / "r.json").read_text())["tables"]) == ["b"]
    (folder / "b.csv").unlink()
    with pytest.raises(SystemExit):
        call(wide, made_up)
    said = capsys.readouterr()
    assert "b: no file" in said.out and "b.csv of https://example.org/made; skipped" in said.out
    assert "no table of half choose" in said.err


def test_a_stopped_run_goes_on(wide: ModuleType, made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, judged = [], []
    plain, judge = wide.split_scores, wide.judge

    def split_scores(x: Any, y: Any, kind: str, seed: int) -> Any:
        fitted.append((kind, seed))
        if fitted[3:] == [("regression", 1)]:
            raise KeyboardInterrupt
        return plain(x, y, kind, seed)

    monkeypatch.setattr(wide, "split_scores", split_scores)
    monkeypatch.setattr(wide, "judge", lambda name, *rest: judged.append(name) or judge(name, *rest))
    with pytest.raises(KeyboardInterrupt):
        call(wide, made_up)
    done = len(judged)
    call(wide, made_up, "--json", str(made_up / "r.json"))
    assert fitted[4:] == [("regression", 1)]  # the rest was kept
    assert len(judged) - done == 2 * 3  # two settings; greedy, best single, mean
    judged.clear()
    call(wide, made_up, "--fusers", "geometric", "--json", str(made_up / "r.json"))
    assert set(judged) == {"geometric"} and len(fitted) == 5
    ranked = json.loads((made_up / "r.json").read_text())["summary"]["shared"]["fusers"]
    assert {"geometric", "best single", "greedy"} < set(ranked)  # compared with what was known


def test_ranks_differ_as_published(wide: ModuleType) -> None:
    assert wide.holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    rng = np.random.default_rng(0)
    rows = {"log-loss": 1.0, "accuracy": 0.5, "f1": 0.5, "fit": 0.0}
    splits = [{"fusers": {f: {"shared": {**rows, "log-loss": rng.random()}} for f in "abcd"}} for _ in range(14)]
    said = wide.summary({str(i): [split] for i, split in enumerate(splits)})
    assert said["shared"]["critical difference"] == pytest.approx(1.25, abs=0.005)  # Demšar 2006, 4 methods, 14 sets
    assert wide.cliques(np.array([1.0, 2.0, 3.5, 9.0]), 2.0) == [(0, 1), (1, 2)]
