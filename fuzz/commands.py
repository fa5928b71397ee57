"""The command line as a target: exit code 0 or 2, words instead of a traceback, and no escape sequence of an input."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from fuzz import examples as sound
from fuzz.files import file_targets
from fuzz.target import Broken, Target

__all__ = ["command_targets"]


class Refusal(Exception):
    """The exit code was 2."""


class Command(Target):
    """Commands in this process, each with an input of another target."""

    name, share, writes, refusals, seconds = "command", 250, True, (Refusal,), 40.0

    def prepare(self, examples: Path) -> None:
        """Let the targets whose inputs are borrowed write their examples."""
        self.others = {target.name: target for target in file_targets() if target.name in self._lines()}
        for name, other in self.others.items():
            (examples / name).mkdir()
            other.prepare(examples / name)

    def start(self, examples: Path) -> None:
        """Get the other targets ready."""
        for name, other in self.others.items():
            other.start(examples / name)

    def _lines(self) -> dict[str, list[list[str]]]:
        model = [
            ["predict", "model", "picture.png"],
            ["predict", "model", "picture.png", "--json"],
            ["explain", "model"],
        ]
        model += [["undo", "model"], ["forget", "model", "white"], ["teach", "model", "new", "picture.png"]]
        run = ["--methods", "prototypes", "--jobs", "1", "--out", "out"]
        return {
            "fuse": [
                ["fuse", "FILES", "--labels", "labels.csv", "--out", "out.csv", "--fuser", "arithmetic", "--folds", "2"]
            ],
            "apply": [["fuse", "a.csv", "b.csv", "c.csv", "--apply", "fuser.safetensors", "--out", "out.csv"]],
            "model": model,
            "picture": [["predict", "sound", "PICTURE"], ["teach", "sound", "new", "PICTURE"]],
            "features": [["run", "folder", "--features", "features.npz", *run]],
            "from-run": [["train", "--from-run", "run", "--out", "new", "--device", "cpu"]],
            "weights": [
                ["train", "photos", "--out", "new", "--backbone", "tiny", "--epochs", "1", "--weights", "WEIGHTS"]
            ],
        }

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Make an input of one of the targets, and write down a command that reads it."""
        name = rng.choice(list(self._lines()))
        self.others[name].make(rng, examples / name, work)
        line = rng.choice(self._lines()[name])
        files = sorted(file.name for file in work.iterdir())
        if name == "picture":
            shutil.copytree(sound.model_folder(), work / "sound")
        if name == "weights":
            sound.photos(work / "photos", 2, 3)
        (work / "picture.png").write_bytes(sound.as_bytes(sound.picture(), "PNG"))
        given = {"FILES": [file for file in files if file[0] in "abc"], "PICTURE": files[:1], "WEIGHTS": files[:1]}
        self.line = [word for part in line for word in given.get(part, [part])]
        (work / "line.txt").write_text(" ".join(self.line), encoding="utf-8", errors="backslashreplace")

    def read(self, rng: Random, work: Path) -> None:
        """Run it in the folder of its input."""
        before = Path.cwd()
        os.chdir(work)
        try:
            code, words, error = self._run()
        finally:
            os.chdir(before)
        if error is not None:
            raise error
        if code not in (0, 2) or "Traceback (most recent" in words:
            raise Broken(f"exit code {code}: {words.strip().splitlines()[-1:]} ({self.line[0]})\n{words}")
        if "\x1b" in words or "\x9b" in words:
            raise Broken(f"an escape sequence of the input reaches the terminal ({self.line[0]})\n{words!r}")
        if code == 2:
            if not words.strip():
                raise Broken(f"exit code 2 without a word ({self.line[0]})")
            raise Refusal

    def _run(self) -> tuple[int, str, BaseException | None]:
        from typer.testing import CliRunner

        from faverage.cli.commands import app

        result = CliRunner().invoke(app, self.line)
        known = result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.output + result.stderr, None if known else result.exception


class Process(Command):
    """A few of these commands in processes of their own, as a person starts them."""

    name, share, megabytes, seconds = "process", 12, None, 90.0

    def _run(self) -> tuple[int, str, BaseException | None]:
        program = [sys.executable, "-c", "from faverage.cli import main; main()", *self.line]
        done: Any = subprocess.run(
            program, capture_output=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace"), None


def command_targets() -> list[Target]:
    """Commands in this process and in others."""
    return [Process(), Command()]
