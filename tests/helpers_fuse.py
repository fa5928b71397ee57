"""Files to fuse, the command ``faverage fuse``, and the check that it refused."""

import csv
from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from faverage.cli.commands import app

CLASSES = ["cat", "cow", "dog", "emu"]
KNOWN = {"a": [0, 1, 2, 3], "b": [2, 0, 1], "c": [3, 1, 2]}
QUICK = ["arithmetic", "log-pool"]


def make(folder: Path, n: int = 60, labelled: int = 45) -> Path:
    """Write a.csv, b.csv, c.csv (other classes, other orders) and labels.csv; ids 0 … n-1."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % len(CLASSES)
    for k, (name, known) in enumerate(KNOWN.items()):
        logits = rng.normal(size=(n, 4)) + 2 * np.eye(4)[y]
        p = np.exp(logits[:, known])
        p /= p.sum(1, keepdims=True)
        order = rng.permutation(n) if k else np.arange(n)
        rows = [[str(i), *(f"{v:.7f}" for v in p[i])] for i in order]
        write(folder / f"{name}.csv", [["id", *(CLASSES[c] for c in known)], *rows])
    write(folder / "labels.csv", [["id", "label"], *([str(i), CLASSES[y[i]]] for i in range(labelled))])
    return folder


def write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def table(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def change(path: Path, line: int, new: str) -> None:
    lines = path.read_text().split("\n")
    lines[line - 1] = new
    path.write_text("\n".join(lines))


def fuse(folder: Path, *options: str, files: tuple[str, ...] = ("a.csv", "b.csv", "c.csv")) -> Result:
    paths = [str(folder / file) for file in files]
    words = ["fuse", *paths, "--labels", str(folder / "labels.csv"), "--out", str(folder / "fused.csv"), *options]
    return CliRunner().invoke(app, words)


def said(result: Result) -> str:
    return result.stderr


def assert_refused(folder: Path, result: Result, *words: str) -> None:
    """Check for exit code 2, one line on stderr with the words, and no new file."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    errors = [line for line in said(result).splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, said(result)
    for word in words:
        assert word in errors[0], errors[0]
    inputs = {"a", "b", "c", "labels", "in"}
    assert [file.name for file in folder.rglob("*") if file.is_file() and file.name.split(".")[0] not in inputs] == []
