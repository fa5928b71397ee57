"""Runs: settings, results on disk, the same numbers twice and after a kill, the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from faverage.cli.commands import app
from faverage.experiment import ConfigError, RunConfig, run
from faverage.experiment.results import PAPER
from helpers_features import made
from helpers_paths import FEATURES, TESTS
from helpers_run import command, numbers

FAST = {"epochs": 2, "methods": "prototypes,arithmetic,afa-paper,afa", "jobs": 1}


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    run(RunConfig.build("digits", None, FAST), folder, command="faverage run digits")
    return folder


def test_results_hold_what_is_needed(digits: Path) -> None:
    results = json.loads((digits / "results.json").read_text())
    assert results["dataset"] == "digits" and results["seed"] == 0 and results["versions"]["torch"]
    assert [s["classes"] for s in results["protocol"]["sessions"]] == [6, 2, 2]
    assert results["protocol"]["source"] == "seeded draw (seed 0)"
    for method in ("prototypes", "arithmetic", "afa-paper", "afa"):
        sessions = results["methods"][method]["sessions"]
        assert len(sessions) == 3 and sessions[0]["new"] is None
        assert all(0 <= s[k] <= 1 for s in sessions[1:] for k in ("f1", "accuracy", "base", "new", "harmonic"))
        for kind in ("base", "new"):
            assert sum(results["methods"][method]["confusion"][kind].values()) == pytest.approx(1)
    paper, afa = results["methods"]["afa-paper"], results["methods"]["afa"]
    assert len(paper["history"]["train"]) == 40 and paper["chosen"] is None
    assert paper["explanation"]["heads"] == ["base head", "session 1", "session 2"]
    assert afa["explanation"]["heads"] == ["base head", "prototypes", "ridge"]
    for method in (paper, afa):
        assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in method["explanation"]["shares"])
    assert sum(afa["chosen"].values()) == pytest.approx(1) and all(name.startswith("tied") for name in afa["chosen"])
    assert len(results["base"]["history"]["loss"]) == 2


def test_all_files_are_there(digits: Path) -> None:
    for name in ("results.json", "table.md", "table.tex", "table.csv", "report.html"):
        assert (digits / name).stat().st_size > 100, name
    for name in ("table.md", "report.html"):  # with what it chose
        assert "afa (tied " in (digits / name).read_text()
    assert r"\textbf" in (digits / "table.tex").read_text()
    lines = (digits / "table.csv").read_text().splitlines()
    assert lines[0].startswith("method,session,accuracy") and len(lines) == 1 + 4 * 3


@pytest.mark.slow
def test_same_seed_same_table_and_other_seed_another(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    run(RunConfig.build("digits", None, FAST), tmp_path / "again")
    assert numbers(tmp_path / "again") == numbers(digits)
    (tmp_path / "other").mkdir()
    run(RunConfig.build("digits", None, {**FAST, "seed": 1}), tmp_path / "other")
    assert numbers(tmp_path / "other") != numbers(digits)


def test_finished_methods_are_not_run_again(digits: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        sys.modules["faverage.experiment.methods"], "run_method", lambda *_, **__: pytest.fail("ran again")
    )
    before = numbers(digits)
    run(RunConfig.build("digits", None, FAST), digits)
    assert numbers(digits) == before


def test_settings_come_from_defaults_recipe_file_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("dataset: digits\nepochs: 7\nlr: 0.2\nmethods: [afa, all]\n")
    config = RunConfig.build(None, file, {"epochs": 9, "seed": None})
    assert (config.dataset, config.epochs, config.lr, config.backbone, config.seed) == ("digits", 9, 0.2, "tiny", 0)
    assert config.methods[0] == "afa" and len(config.methods) == 24
    assert RunConfig.build("mini-imagenet", None, {}).backbone == "resnet18_small"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: none", "epochs must be a whole number"),
        ("colour: red", "unknown setting 'colour'"),
        ("methods: [magic]", "unknown method 'magic'"),
        ("methods: []", "at least one method"),
        ("dataset: imagenet-21k", "unknown dataset 'imagenet-21k'"),
        ("lr: -1", "lr must be a number > 0"),
        ("schedule: step", "schedule must be"),
        ("- a list", "settings as 'name: value' lines, found a list"),
        ("id,label", "settings as 'name: value' lines, found text"),
        ("a: [", "not a YAML file"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        RunConfig.build(None, file, {})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "unknown dataset 'nothing'"),
        (["cub200", "--data", "DIR"], "CUB_200_2011"),
        (["digits", "--methods", "magic"], "unknown method 'magic'"),
        (["digits", "--config", "DIR/none.yaml"], "no such file"),
        (["mini-imagenet", "--features", "DIR/none.npz"], "no such file of features"),
    ],
)
def test_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], words: str) -> None:
    arguments = [a.replace("DIR", str(tmp_path)) for a in arguments]
    result = CliRunner().invoke(app, ["run", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and words in " ".join(result.stderr.split())
    assert not (tmp_path / "out" / "results.json").exists()


def test_features_of_another_data_set_than_digits_need_its_name(tmp_path: Path) -> None:
    file, given = str(made(tmp_path / "f.npz")), {"methods": "afa"}
    with pytest.raises(ConfigError, match=r"sessions of 4, 5 classes, and digits, .* of 6, 2, 2: name that"):
        RunConfig.build(None, None, {"features": file, **given})
    assert RunConfig.build("cub200", None, {"features": file, **given}).dataset == "cub200"
    (tmp_path / "run.yaml").write_text(f"dataset: cub200\nfeatures: {file}")
    assert RunConfig.build(None, tmp_path / "run.yaml", given).dataset == "cub200"


@pytest.mark.slow
def test_command_prints_the_table(tmp_path: Path) -> None:
    result = command("digits", "--methods", "prototypes,vote", "--epochs", 1, "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "| prototypes |" in result.stdout and "report.html" in result.stdout


def test_the_papers_tables_are_complete() -> None:
    assert all(len(v) == 9 for v in PAPER["mini-imagenet"].values()) and len(PAPER["mini-imagenet"]) == 13
    assert all(len(v) == 11 for v in PAPER["cub200"].values()) and len(PAPER["cub200"]) == 13


@pytest.mark.data
@pytest.mark.skipif(not FEATURES.exists(), reason="no mini-ImageNet features under FAVERAGE_DATA")
def test_plain_methods_on_real_features(tmp_path: Path) -> None:
    methods = "prototypes,arithmetic,geometric,harmonic"  # the paper's fuse a head a session
    settings = {"features": str(FEATURES), "methods": methods, "members": "sessions", "jobs": 1}
    results = run(RunConfig.build("mini-imagenet", None, settings), tmp_path)
    last = {name: 100 * method["sessions"][-1]["f1"] for name, method in results["methods"].items()}
    assert last["prototypes"] == pytest.approx(50.2, abs=0.1)
    for name in ("arithmetic", "geometric", "harmonic"):
        assert abs(last[name] - PAPER["mini-imagenet"][name][-1]) < 2.5, name


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_runs_that_are_killed_end_with_the_same_numbers() -> None:
    """At every stage, and two in one folder at random moments.

    In a process of its own, since threads of this one would not survive a fork.
    """
    script = str(TESTS / "kill_run.py")
    done = subprocess.run([sys.executable, script, "3", "0"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equal"] and found["kills"] >= 3
