"""Commands of a model in this process, and folders of small drawn pictures for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from faverage.cli.commands import app
from helpers_model import pictures


def call(*arguments: object, code: int = 0) -> Any:
    """Run a command; a traceback is never the answer to a person's mistake."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: object) -> str:
    return " ".join(call(*arguments, code=2).stderr.split())


def save(folder: Path, kind: str, n: int = 6, seed: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(pictures(kind, n, seed)):
        image.save(folder / f"{i}.png")
    return folder
