"""Results of runs as one file a method, and the table made from them."""

from __future__ import annotations

import doctest
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers_paths import ROOT

SPEC = importlib.util.spec_from_file_location("split_results", ROOT / "tools/split_results.py")
assert SPEC is not None and SPEC.loader is not None
tool: Any = importlib.util.module_from_spec(SPEC)
sys.modules["split_results"] = tool
SPEC.loader.exec_module(tool)


def sessions(*f1: float) -> list[dict[str, Any]]:
    found = []
    for k, value in enumerate(f1):
        own = {key: value for key in ("f1", "accuracy", "base", "new", "harmonic")}
        found.append({**own, "by_session": [value] * (k + 1), "seconds": 2.0})
    return found


def written(file: Path, methods: dict[str, Any], **more: Any) -> Path:
    told = {
        "dataset": "mini-imagenet",
        "command": "faverage run mini-imagenet --data /home/me/images --out /tmp/x",
        "config": {"recipe": "shared", "data": "/home/me/images", "draws": 1},
        "versions": {"torch": "2"},
        "device": "cpu",
        "date": "2026-01-02T00:00:00",
        "protocol": {"source": "official lists", "sessions": [{"classes": 60}, *[{"classes": 5}] * 8]},
        "seconds": 9.0,
        "base": {"epochs": 3, "history": {"loss": [1.0]}},
        "methods": methods,
        "repeats": None,
    }
    file.write_text(json.dumps({**told, **more}))
    return file


def test_one_file_a_method_and_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    nine = sessions(*(round(0.8 - 0.05 * k, 2) for k in range(9)))
    afa = {"sessions": nine, "spread": [{"f1": 0.01}] * 9, "explanation": {"large": 1}, "chosen": {"tied 1": 1.0}}
    fact = {"sessions": nine, "base": {"seconds": 5.0}, "spread": None}
    repeats = [{"seed": s, "draw": 0, "methods": {"afa": {"sessions": nine}}} for s in (0, 1)]
    earlier = [{"method": "afa", "seed": 0, "draw": 0, "date": "2026-01-01T00:00:00"}]
    first = written(tmp_path / "a.json", {"afa": afa}, repeats=repeats, earlier=earlier)
    other = {"recipe": "best", "data": None}
    tool.main([
        first,
        written(tmp_path / "b.json", {"fact": fact}, command="faverage run mini-imagenet --methods fact"),
        written(tmp_path / "c.json", {"afa": fact}, config=other),
    ])  # fmt: skip
    folder = tmp_path / "results" / "mini-imagenet"
    assert sorted(f.name for f in folder.iterdir()) == ["afa.json", "fact.json"]
    found = json.loads((folder / "afa.json").read_text())
    assert found["command"] == "faverage run mini-imagenet --data ROOT" and found["config"]["data"] == "images"
    assert found["sessions"] == nine and [one["seed"] for one in found["repeats"]] == [0, 1]
    assert found["date"].startswith("2026-01-01") and found["seconds"] == {"run": 9.0, "sessions": 18.0}
    assert found["base"] == {"epochs": 3} and found["protocol"] and "explanation" not in found
    assert json.loads((folder / "fact.json").read_text())["base"] == {"seconds": 5.0}
    assert (tmp_path / "results" / "mini-imagenet-best" / "afa.json").is_file()

    lines = tool.table(folder).splitlines()
    by_session, overall = (lines[a:b] for a, b in ((0, lines.index("")), (lines.index(""), len(lines))))
    rows = {line.split(" | ")[0].strip("| "): line for line in by_session}
    order = [list(rows).index(name) for name in ("*lucir, the paper*", "fact", "*fact, the paper*", "afa")]
    assert order == sorted(order)
    assert "| 80.00 ± 1.00 | 75.00 ± 1.00 |" in rows["afa"] and rows["afa"].endswith("| 57.50 | 1 |")
    assert rows["*fact, the paper*"].startswith("| *fact, the paper* | 75.37 | 70.49 |")
    assert "| fact | 80.00 | 40.00 | 60.00 | 40.00 | 40.00 | 40.00 | 57.50 | 59.63 | 40.00 | 5 | – | – |" in overall
    assert rows["fact"].endswith("| 2 |") and "2. `faverage run mini-imagenet --methods fact`, cpu, 2026-01-02" in lines


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(SystemExit, match="it has no methods"):
        tool.main([tmp_path / "a.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="holds no results"):
        tool.main([tmp_path / "empty"])
    assert doctest.testmod(tool).failed == 0
