"""What a run says while it goes on: a bar on a terminal, sparse lines in a file, curves in TensorBoard."""

from pathlib import Path

import pytest

from faverage import progress
from faverage.errors import install_line
from faverage.progress import Progress
from faverage.vision.engine.report import Report
from helpers_run import FAST, command, said

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets by hand."""
    now = [0.0]
    for module in ("faverage.progress", "faverage.vision.engine.report"):
        monkeypatch.setattr(f"{module}.time.monotonic", lambda: now[0])
    return now


def test_lines_come_at_every_tenth(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Progress("training", 1000)
    for step in range(1, 1001):
        clock[0] = step * 0.1
        lines.update(step, "loss 0.5")
    said = capsys.readouterr()
    assert not said.out and len(said.err.splitlines()) == 9
    assert said.err.splitlines()[2] == "training: 30 %, 300 of 1,000, about 1.2 min left, loss 0.5"


def test_lines_come_every_minute_of_a_slow_job(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Progress("training", 10_000, done=5_000)
    for step in range(1, 11):
        clock[0] = step * 30.0
        lines.update(5_000 + step)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5 and said[0] == "training: 50 %, 5,002 of 10,000, about 41.6 h left"


def test_a_quick_job_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Progress("training", 10)
    for step in range(1, 11):
        clock[0] = step * 0.1
        lines.update(step)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_decoding_and_training_show_the_time_left(
    terminal: bool, clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    else:
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
    with Progress("decoding photos", 100) as bar:
        for _ in range(10):
            clock[0] += 1
            bar.advance(10)
    decoding = capsys.readouterr().err
    with Report("training", 100, unit=32, show=True) as report:
        for epoch in range(10):
            clock[0] += 5
            report.advance(10)
            report.epoch(epoch, {"loss": 0.25, "accuracy": 0.5})
    training = capsys.readouterr().err
    if terminal:
        assert "━" in decoding and "100/100" in decoding and "0:00:0" in decoding
        assert "━" in training and "epoch 9: loss 0.250, accuracy 50.0%" in training
    else:
        assert "━" not in decoding + training
        assert decoding.splitlines()[0] == "decoding photos: 20 %, 20 of 100, about 8.0 s left"
        assert training.splitlines()[1] == (
            "training: 20 %, 20 of 100, about 40.0 s left, 64 images/s, epoch 1: loss 0.250, accuracy 50.0%"
        )


def test_a_run_into_a_file_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0)
    result = command(*FAST, "--out", tmp_path / "out")
    words = result.stderr.splitlines()
    for part in ("training: ", "features: ", "running the methods: "):
        assert any(line.startswith(part) and " left" in line for line in words), part
    assert "━" not in result.output and "loading images" not in result.stdout
    assert sum(line.startswith("Base session: 1 network, 1 epoch of ") for line in words) == 1  # what it costs, once
    assert words.count("loading images") == 1


def test_tensorboard_gets_the_base_loss(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def losses(folder: Path) -> list[tuple[int, float]]:
        events = EventAccumulator(str(folder))
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars("base/loss")]

    arguments = (*FAST, "--epochs", 3, "--out", tmp_path / "out", "--tensorboard")
    assert command(*arguments, tmp_path / "board").exit_code == 0
    first = losses(tmp_path / "board")
    assert [step for step, _ in first] == [1, 2, 3] and first[2][1] < first[0][1]
    assert command(*arguments, tmp_path / "board").exit_code == 0  # all epochs are done, none is written twice
    assert command(*arguments, tmp_path / "later").exit_code == 0  # asked for after the training
    assert losses(tmp_path / "board") == losses(tmp_path / "later") == first


def test_tensorboard_is_missing_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        result = command(*FAST, "--out", tmp_path / "out", "--tensorboard", tmp_path / "board")
    assert result.exit_code == 2 and f"is not installed: {install_line('tensorboard')}" in said(result)
    assert "loading images" not in said(result)
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("")
    result = command(*FAST, "--out", tmp_path / "out", "--tensorboard", tmp_path / "file")
    assert result.exit_code == 2 and "is a file, expected a folder: name another" in said(result)
