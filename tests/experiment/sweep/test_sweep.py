"""Sweeps on one machine: what is shared, what is skipped, what happens to runs that fail and to workers that die."""

import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from faverage.experiment.sweep import Plan, work
from faverage.experiment.sweep.report import table_of
from faverage.experiment.sweep.results import Board
from faverage.experiment.sweep.work import mark
from faverage.storage import alone
from helpers_paths import TESTS
from helpers_sweep import (
    SMALL,
    TROUBLE,
    Here,
    alive,
    bases_from,
    command,
    first_model_fuser,
    numbers,
    runs_of,
    said,
    times,
    troubled,
    written,
)

pytestmark = pytest.mark.slow


def test_a_sweep_writes_all_runs_and_their_means(whole: Path) -> None:
    results, runs = json.loads((whole / "sweep.json").read_text()), runs_of(whole)
    assert len(runs) == 12 and results["counts"] == {"runs": 12, "done": 12, "failed": 0, "bases": 2}
    for run in runs.values():
        assert run["status"] == "done" and run["seconds"] > 0 and run["config"]["methods"] == [run["method"]]
        assert len(run["sessions"]) == 3 and 0 < run["held_out_loss"] < 5
    for cell in results["cells"]:
        own = [run for (method, _, _), run in runs.items() if method == cell["method"]]
        for found, values in (
            (cell["held_out_loss"], [run["held_out_loss"] for run in own]),
            (
                {"mean": cell["sessions"][-1]["f1"], "std": cell["spread"][-1]["f1"]},
                [run["sessions"][-1]["f1"] for run in own],
            ),
        ):
            assert found["mean"] == pytest.approx(np.mean(values)) and found["std"] == pytest.approx(
                np.std(values, ddof=1)
            )
    best = min(results["cells"], key=lambda cell: cell["held_out_loss"]["mean"])
    assert results["best"]["method"] == best["method"]


def test_tables_and_page_of_a_sweep(whole: Path) -> None:
    best = json.loads((whole / "sweep.json").read_text())["best"]["method"]
    assert f"Best by held-out loss, not by test: **{best}, as given**" in (whole / "sweep.md").read_text()
    lines = (whole / "sweep.csv").read_text().splitlines()
    assert (
        lines[0].startswith("method,seed,draw,key,status,held_out_loss,session,accuracy") and len(lines) == 1 + 12 * 3
    )
    page = (whole / "report.html").read_text()
    assert "It uses no test image" in page and f'<tr class="chosen"><td class="name">{best}</td>' in page
    assert "<script" not in page and "http://" not in page and "https://" not in page


def test_a_second_start_does_nothing_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, found = times(whole / "runs", whole / "work"), numbers(whole)
    monkeypatch.setattr("faverage.experiment.sweep.run.Loky", lambda *_: pytest.fail("a pool was made"))
    result = command(whole.parent / "small.yaml", "--out", whole)
    assert result.exit_code == 0 and "12 runs, 12 of them done before" in said(result)
    assert times(whole / "runs", whole / "work") == before and numbers(whole) == found


def test_an_edited_record_is_not_trusted(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = bases_from(whole, tmp_path / "out")
    (out / "runs").mkdir()
    for file in (whole / "runs").iterdir():
        (out / "runs" / file.name).write_bytes(file.read_bytes())
    text = file.read_text()
    (out / "runs" / file.name).write_text(text.replace('"f1": 0.', '"f1": 0.9'))
    monkeypatch.setattr("faverage.experiment.sweep.run.Loky", Here)
    result = command(written(tmp_path), "--out", out, "--jobs", 1)
    assert result.exit_code == 0 and f"{file.name} is broken" in said(result) and "is done again" in said(result)
    assert numbers(out) == numbers(whole)
    assert "12 runs: 12 done, 11 of them by an earlier sweep" in (out / "sweep.md").read_text()
    assert sorted(run["earlier"] for run in runs_of(out).values()) == [False] + [True] * 11


def test_failing_runs_and_killed_workers_cost_one_run_each(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = written(tmp_path), bases_from(whole, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("faverage.experiment.sweep.run.carry_out", functools.partial(troubled, TROUBLE))
        result = command(file, "--out", out, "--jobs", 2)
    assert result.exit_code == 1 and "2 runs failed; the same command tries them again" in said(result)
    expected, runs = numbers(whole), runs_of(out)
    for which, run in runs.items():
        assert run["attempts"] == (2 if which in TROUBLE else 1), which
    for which, words in (
        (("prototypes", 1, 0), "RuntimeError: it broke"),
        (("arithmetic", 1, 1), "its process was killed"),
    ):
        assert runs[which]["status"] == "failed" and words in runs[which]["error"]
        assert expected.pop(which) and words in (out / "sweep.md").read_text() and words in said(result)
    found = numbers(out)
    assert {which: found[which] for which in expected} == expected

    before = times(out / "runs")
    monkeypatch.setattr("faverage.experiment.sweep.run.Loky", Here)
    assert command(file, "--out", out, "--jobs", 1).exit_code == 0
    after = times(out / "runs")
    assert len(before) == 10 and len(after) == 12 and {file: after[file] for file in before} == before
    assert numbers(out) == numbers(whole)


def test_a_killed_sweep_goes_on(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = written(tmp_path), bases_from(whole, tmp_path / "out")
    code = (
        "import helpers_sweep; from faverage.cli import main; from faverage.experiment.sweep import run;"
        "run.carry_out = helpers_sweep.slow; main()"
    )
    arguments = [sys.executable, "-c", code, "sweep", str(file), "--out", str(out), "--jobs", "2"]
    paths = [str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    tests = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    process = subprocess.Popen(arguments, env=tests, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while process.poll() is None and len(list(out.glob("runs/*.json"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.poll() is None, "it ended by itself"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "sweep.json").exists()
    workers = [int(file.name.partition("-")[2]) for file in out.glob("work/process-*")]
    while any(alive(pid) for pid in workers):
        assert workers and time.monotonic() < deadline, "workers outlive their sweep"
        time.sleep(0.01)
    before = times(out / "runs")
    monkeypatch.setattr("faverage.experiment.sweep.run.Loky", Here)
    assert command(file, "--out", out, "--jobs", 1).exit_code == 0
    assert numbers(out) == numbers(whole)
    after = times(out / "runs")
    assert len(before) >= 4 and {file: after[file] for file in before} == before


def test_a_base_that_fails_fails_its_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "dataset: digits\nepochs: 1\nmethods: [prototypes, vote]\nover:\n  lr: [0.05, 1.0e+30]\n"
    monkeypatch.setattr("faverage.experiment.sweep.run.Loky", Here)
    result = command(written(tmp_path, text), "--out", tmp_path / "out", "--jobs", 1, "--retries", 0)
    runs = json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"]
    assert result.exit_code == 1 and [run["status"] for run in runs] == ["done", "done", "failed", "failed"]
    assert "its base session failed: training the base session" in runs[2]["error"]
    assert "prototypes, vote; lr 1e+30; 2 runs:" in (tmp_path / "out" / "report.html").read_text()


def test_workers_know_methods_from_outside(whole: Path, tmp_path: Path) -> None:
    text = SMALL.replace("[prototypes, arithmetic, log-pool]", "[first, prototypes]")
    out = bases_from(whole, tmp_path / "out")
    with first_model_fuser():
        result = command(written(tmp_path, text), "--out", out, "--jobs", 1)
    assert result.exit_code == 0, result.output
    found, expected = numbers(out), numbers(whole)
    assert len(found) == 8 and all(found[which] == expected[which] for which in found if which[0] == "prototypes")


def test_what_a_method_from_outside_left_is_of_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of a run may not have the source of what it adopts: the plan's folders must tell codes apart."""
    text, folders = SMALL.replace("log-pool", "first"), []
    for code in ("a", "b"):
        monkeypatch.setattr("faverage.experiment.sweep.plan.record_code", lambda method, code=code: code)
        with first_model_fuser():
            folders.append({task.method: task for task in Plan.read(written(tmp_path, text)).runs})
    one, two = folders
    assert one["first"].folder != two["first"].folder and one["arithmetic"].folder == two["arithmetic"].folder
    assert one["first"].shared == two["first"].shared


def test_a_worker_elsewhere_says_that_it_does_not_see_the_folder(tmp_path: Path) -> None:
    plan = Plan.read(written(tmp_path))
    mark(tmp_path)
    outcome = work.carry_out(plan.runs[0], tmp_path, "another mark")
    assert f"this worker does not see {tmp_path}" in outcome.error
    assert not list((tmp_path / "runs").iterdir())


def test_the_same_work_is_done_by_one_at_a_time(tmp_path: Path) -> None:
    """A worker that outlives its sweep, or that a cluster takes for dead, keeps a second one waiting."""
    order = []

    def second() -> None:
        with alone(tmp_path, "key"):
            order.append("second")

    with alone(tmp_path, "key"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_live_table_has_a_place_for_every_cell(tmp_path: Path) -> None:
    plan = Plan.read(written(tmp_path, SMALL + "over: {stand_ins: [20, 50]}\n"))
    board, keys = Board(plan), list(plan.cells[-1].runs.values())
    board.state[keys[0]], board.state[keys[1]], board.places = "running", "failed", 2
    for key, f1 in zip(keys[2:], (0.5, 0.6), strict=True):
        board.finished(key, work.Outcome("", {"sessions": [{"f1": f1}], "held_out_loss": 2 * f1}, seconds=10.0))
    console = Console(file=io.StringIO(), width=120)
    console.print(table_of(board))
    shown = console.file.getvalue()
    assert "2 of 24 runs done, 1 running, 1 failed, about 1.9 min left" in shown
    assert "2 of 4 done, 1 running, 1 failed" in shown and "F1 55.00, loss 1.1000" in shown
    assert "stand_ins 20" in shown and shown.count("0 of 4 done") == 5
