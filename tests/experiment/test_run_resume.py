"""``faverage run`` stopped in every stage, on a full disk, and after damage: it goes on, and no files mix."""

import errno
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers_data import photos
from helpers_run import FAST, QUICK, command, npy, numbers, said

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert command(*FAST, "--out", out).exit_code == 0
    return out


STAGES = {
    "loading images": "faverage.progress:Progress.advance",
    "training the base session": "faverage.vision.engine.loop:write_tensors",
    "extracting features": "faverage.vision.feature_store:_Part.make",
    "running the methods": "faverage.experiment.methods:run_method",
    "writing the results": "faverage.experiment.report:write_report",
}


def drawn(root: Path) -> tuple[object, ...]:
    """The command on a drawn folder, but for where the results go."""
    (root / "run.yaml").write_text(QUICK.replace(", afa", ""))
    return ("folder", "--data", photos(root / "photos", each=7), "--config", root / "run.yaml", "--out")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("expected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAVERAGE_CACHE", str(root / "cache"))
        assert command(*drawn(root), root / "out").exit_code == 0
    return numbers(root / "out")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), FULL], ids=["Ctrl-C", "full disk"])
def test_stopped_in_every_stage(
    stage: str, error: BaseException, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, out = drawn(tmp_path), tmp_path / "out"

    def fail(*_: object, **__: object) -> None:
        raise error

    module, _, path = STAGES[stage].partition(":")
    owner: Any = sys.modules[module]
    *inner, name = path.split(".")
    for part in inner:
        owner = getattr(owner, part)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        result = command(*arguments, out)
    if isinstance(error, KeyboardInterrupt):
        assert result.exit_code == 130 and f"Stopped while {stage} What was finished is kept in" in said(result)
    else:
        assert result.exit_code == 2 and "the disk is full" in said(result)
    assert not out.exists() or [path.name for path in out.iterdir()] == ["work"]  # nothing was done yet, or no results
    assert not [path for path in out.rglob(".*") if path.suffix == ".partial"]
    assert command(*arguments, out).exit_code == 0
    assert numbers(out) == expected


def test_the_disk_is_full_for_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Safetensors raises an error of its own kind."""
    from safetensors import SafetensorError

    def fail(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("faverage.storage.save_file", fail)
    result = command(*FAST, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "the disk is full while training the base session" in said(result)
    assert f"nothing more can be written to {tmp_path / 'out' / 'work'}" in said(result)
    assert "base-checkpoint.safetensors; make room, or name another --out" in said(result)


def test_files_of_two_runs_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    assert command(*FAST, "--out", out).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    other = (*FAST, "--seed", 1, "--out", out)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("faverage.experiment.report.write_report", stop)
        result = command(*other)
    assert result.exit_code == 130 and f"The results in {out} are still those of an earlier run" in said(result)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before

    moved: list[str] = []
    replace = Path.replace

    def second_fails(self: Path, target: Path) -> Path:
        if Path(target).parent == out:
            moved.append(Path(target).name)
            if len(moved) == 2:
                raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", second_fails)
        assert command(*other).exit_code == 130
    assert len(moved) == 2 and not (out / "results.json").exists()
    assert command(*other).exit_code == 0
    assert json.loads((out / "results.json").read_text())["seed"] == 1 and "seed 1" in (out / "table.md").read_text()


DAMAGES = {
    "cut checkpoint": ("base-checkpoint.safetensors", lambda b: b[: len(b) // 2], "base training starts anew"),
    "empty checkpoint": ("base-checkpoint.safetensors", lambda b: b"", "base training starts anew"),
    "cut features": ("features/part-00000.npy", lambda b: b[: len(b) // 2], "the features are computed again"),
    "empty features": ("features/part-00000.npy", lambda b: b"", "the features are computed again"),
    "other features": ("features/part-00000.npy", lambda b: npy(np.zeros((2, 3))), "the features are computed again"),
    "cut note": ("features/part-00000.json", lambda b: b[:20], "the features are computed again"),
    "cut method": ("vote-*.json", lambda b: b[: len(b) // 2], "the method is run again"),
    "odd method": ("vote-*.json", lambda b: b"[1]", "the method is run again"),
    "deep method": ("vote-*.json", lambda b: b"[" * 100_000, "the method is run again"),
    "edited method": ("vote-*.json", lambda b: b.replace(b'"f1": 0.', b'"f1": 0.9'), "the method is run again"),
    "edited checkpoint": ("base-checkpoint.safetensors", lambda b: b[:-9] + b"edited :)", "base training starts anew"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_leftovers_are_made_again(damage: str, undisturbed: Path) -> None:
    pattern, change, words = DAMAGES[damage]
    before = numbers(undisturbed)
    (file,) = undisturbed.glob(f"work/*/{pattern}")
    file.write_bytes(change(file.read_bytes()))
    result = command(*FAST, "--out", undisturbed)
    assert result.exit_code == 0 and words in said(result)
    assert file.name.removesuffix(".json") in said(result)
    assert numbers(undisturbed) == before
    again = command(*FAST, "--out", undisturbed)
    assert again.exit_code == 0 and "Warning" not in said(again)


def test_what_an_earlier_run_found_is_named(undisturbed: Path) -> None:
    result = command(*FAST, "--out", undisturbed)
    found = json.loads((undisturbed / "results.json").read_text())["earlier"]
    assert [(one["method"], one["seed"], one["draw"]) for one in found] == [("prototypes", 0, 0), ("vote", 0, 0)]
    words = "aken from an earlier run with the same settings, data and code: prototypes (20"
    assert words in said(result) and words in (undisturbed / "report.html").read_text()


def test_results_of_other_code_are_not_taken(undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of one fuser runs it again, not the other one, nor the base session; an edit of training all of it."""
    import faverage.experiment.methods as methods
    from faverage.experiment import code

    ran: list[str] = []
    real, trained = methods.run_method, []
    monkeypatch.setattr(methods, "run_method", lambda m, *args, **more: ran.append(m) or real(m, *args, **more))
    monkeypatch.setattr(
        "faverage.vision.engine.loop.Loop.epoch", _counted("faverage.vision.engine.loop:Loop.epoch", trained)
    )
    edited: dict[str, Any] = {"faverage.fusion.rules": "edited"}
    real_code = code.code_fingerprint
    monkeypatch.setattr(
        code, "code_fingerprint", lambda *names: real_code(*names) + "".join(edited.get(name, "") for name in names)
    )
    before = numbers(undisturbed)
    assert command(*FAST, "--out", undisturbed).exit_code == 0
    assert ran == ["vote"] and not trained and numbers(undisturbed) == before
    edited["faverage.vision.training"] = "edited"
    assert command(*FAST, "--out", undisturbed).exit_code == 0
    assert ran == ["vote", "prototypes", "vote"] and trained
    assert numbers(undisturbed) == before


def _counted(what: str, calls: list[str]) -> Any:
    module, _, path = what.partition(":")
    owner, name = path.split(".")
    real = getattr(getattr(sys.modules[module], owner), name)

    def call(*args: Any, **options: Any) -> Any:
        calls.append(what)
        return real(*args, **options)

    return call


def test_methods_depend_on_the_code_of_feature_sets_and_of_the_learner() -> None:
    from faverage.code import _here
    from faverage.experiment import code

    behind = _here().behind(code._modules("vote"))
    wanted = ("features", "fscil.learner", "fscil.members", "fscil.knowledge")
    assert {f"faverage.{name}" for name in wanted} <= behind and "faverage.experiment.base" not in behind
    assert "faverage.features" in _here().behind(code._FEATURES)
