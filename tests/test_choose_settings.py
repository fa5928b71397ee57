"""The second step of choosing on base classes alone, on a folder of small features."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from helpers_paths import ROOT

KNOWN, NEW, WIDTHS = 6, 3, (8, 5)
ROWS = ["--rows", "one-view", "log-pool", "--draws", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    file = ROOT / "benchmarks" / "choose_settings.py"
    spec = importlib.util.spec_from_file_location("choose_settings", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write(folder: Path, name: str, seed: int, *, scale: float = 0.0, noise: float = 0.3) -> None:
    """Write features of classes that little noise leaves separable."""
    rng = np.random.default_rng(seed)
    held, new = np.repeat(np.arange(KNOWN), 30), np.repeat(np.arange(KNOWN, KNOWN + NEW), 50)
    arrays: dict[str, dict[str, Any]] = {"held": {"labels": held}, "new": {"labels": new}}
    for v, width in enumerate(WIDTHS):
        centres = rng.normal(size=(KNOWN + NEW, width)) * 2
        for own in arrays.values():
            y = own["labels"]
            own[f"features.{v}"] = (centres[y] + noise * rng.normal(size=(len(y), width))).astype(np.float16)
        unit = centres[:KNOWN] / np.linalg.norm(centres[:KNOWN], axis=-1, keepdims=True)
        arrays["held"] |= {f"prototypes.{v}": unit.astype(np.float32), f"head_weight.{v}": unit}
        arrays["held"] |= {f"head_bias.{v}": np.zeros(KNOWN), f"scale.{v}": scale, f"whitened.{v}": False}
    for part, own in arrays.items():
        np.savez(folder / f"{name}.0.{part}.npz", **own)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "plain-1", 0)
    write(tmp_path, "turned-1", 1, scale=16.0)
    (tmp_path / "turned-1.0.json").write_text(json.dumps({"views": ["plain", "flip"]}))
    return tmp_path


def blocks(text: str) -> dict[str, dict[str, list[float]]]:
    """Return the numbers of each row by title and name."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in text.splitlines():
        if line.startswith("### "):
            own = found.setdefault(line[4:], {})
        elif line.startswith("| ") and not line.startswith("| row"):
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            own[name] = [float(cell) for cell in cells]
    return found


def test_tables_and_json(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "out.json"
    script.main([str(folder), *ROWS, "--json", str(file)])
    said = capsys.readouterr()
    assert "| row | F1 | accuracy | base | new |" in said.out and "4 of 4: turned-1, log-pool" in said.err
    found = blocks(said.out)
    assert list(found) == ["plain-1", "turned-1", "mean of 2 networks"]
    assert all(list(rows) == ["one-view", "log-pool"] for rows in found.values())
    entries = json.loads(file.read_text())["rows"]
    assert [(e["network"], e["row"], e["draw"]) for e in entries] == [
        (network, row, draw)
        for network in ("plain-1", "turned-1")
        for row in ("one-view", "log-pool")
        for draw in (0, 1)
    ]
    for title, row in (("plain-1", "log-pool"), ("mean of 2 networks", "one-view")):
        own = [e for e in entries if e["row"] == row and title in (e["network"], "mean of 2 networks")]
        means = [100 * np.mean([e[name] for e in own]) for name in ("f1", "accuracy", "base", "new")]
        np.testing.assert_allclose(found[title][row], means, atol=0.0051)
        assert min(means) > 80


def test_stopped_calls_go_on(
    script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, calls, measure = folder / "out.json", [], script.measure

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:  # the second draw of the second row
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(script, "measure", counted)
    command = [str(folder), *ROWS, "--networks", "plain-1", "--json", str(file)]
    with pytest.raises(KeyboardInterrupt):
        script.main(command)
    assert len(json.loads(file.read_text())["rows"]) == 2
    script.main(command)
    assert len(calls) == 6
    resumed = blocks(capsys.readouterr().out)
    script.main(command)
    assert len(calls) == 6
    write(folder, "plain-1", 0, noise=0.4)
    script.main(command)
    assert len(calls) == 10 and resumed.keys() == {"plain-1"}
    file.write_text("[]")
    with pytest.raises(SystemExit, match="was not written by choose_settings"):
        script.main(command)


def test_draws_keep_their_parts_apart(script: ModuleType, folder: Path) -> None:
    seen = script.read(folder, "plain-1+turned-1", 0)
    assert list(seen.views) == ["plain-1: plain", "plain-1: rotate-90", "turned-1: plain", "turned-1: flip"]
    assert [x.shape for x in seen.views.values()] == [(180 + 150, width) for width in (*WIDTHS, *WIDTHS)]
    alone = script.read(folder, "turned-1", 0)
    assert all(np.array_equal(seen.views[view], x) for view, x in alone.views.items())
    drawn = script.drawn(seen, 0)
    (shots,), known = drawn.shots, drawn.labels[drawn.test] < KNOWN
    np.testing.assert_array_equal(np.sort([*drawn.memory, *drawn.test[known]]), np.arange(180))
    assert not set(shots) & set(drawn.test)
    assert np.bincount(drawn.labels[drawn.memory]).tolist() == [20] * KNOWN
    assert np.bincount(drawn.labels[shots]).tolist() == [0] * KNOWN + [5] * NEW
    assert np.bincount(drawn.labels[drawn.test[~known]]).tolist() == [0] * KNOWN + [40] * NEW
    assert set(drawn.memory) != set(script.drawn(seen, 1).memory)


def test_some_views_and_some_known_classes(script: ModuleType, folder: Path) -> None:
    whole, part = (script.read(folder, name, 0) for name in ("turned-1+plain-1", "turned-1+plain-1@1:4"))
    assert list(part.views) == ["turned-1: plain", "turned-1: flip", "plain-1: plain"]
    kept = (whole.labels < 4) | (whole.labels >= KNOWN)
    assert all(np.array_equal(x, whole.views[view][kept]) for view, x in part.views.items())
    assert part.sessions == [[0, 1, 2, 3], [4, 5, 6]] and np.unique(part.labels).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [means.shape for means in part.prototypes.values()] == [(4, 8), (4, 5), (4, 8)]
    assert [len(head.weight) for head in part.heads.values()] == [4, 4, 4]
    measured = script.measure(folder, "turned-1+plain-1@1:4", 0, {"fuser": "log-pool"}, 0)
    assert measured["f1"] > 0.9


def test_members_and_grid(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("noisy-1", 2), ("noisy-2", 3)):
        write(folder, name, seed, noise=2.5)
    options = ["--rows", "log-pool", "--draws", "2", "--jobs", "1"]
    script.main([str(folder), "--networks", "noisy-1", "noisy-2", "noisy-1+noisy-2", *options])
    found = blocks(capsys.readouterr().out)
    both = found["noisy-1+noisy-2"]["log-pool"]
    assert both[0] > max(found["noisy-1"]["log-pool"][0], found["noisy-2"]["log-pool"][0])
    grid = script.rows_of(script.argparse.Namespace(rows=[], grid=True, balance=9.0, calibration=0.9))
    assert len(grid) == 25 and grid["afa, balance 1.5, calibration 0.3"] == {
        **{"fuser": "afa", "balance": 1.5, "calibration": 0.3},
    }


def test_what_is_missing_is_said(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(*arguments: str) -> str:
        with pytest.raises(SystemExit) as error:
            script.main([str(folder), *ROWS, *arguments])
        return str(error.value) + capsys.readouterr().err

    assert "has no training 'other': it has plain-1, turned-1" in refusal("--networks", "plain-1+other")
    assert "has no plain-1.3.held.npz: train it with choose_recipe.py" in refusal("--splits", "3")
    assert "has a training twice" in refusal("--networks", "plain-1+plain-1")
    assert "plain-1 has 2 views, 3 were asked for" in refusal("--networks", "plain-1@3")
    assert "expected 2 to 6" in refusal("--networks", "plain-1:7")
    assert "cannot read the network" in refusal("--networks", "plain-1@two")
    assert "balance must lie in" in refusal("--balance", "-1")
    (folder / "turned-1.0.new.npz").unlink()
    assert "has no turned-1.0.new.npz" in refusal()
    with pytest.raises(SystemExit, match="has no features: write them with choose_recipe"):
        script.main([str(folder / "nowhere")])
