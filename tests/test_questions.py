"""The answers in docs/questions.md: every block runs alone, as a person would paste it, and prints what it says."""

import re
from pathlib import Path

import pytest

from helpers_paths import ROOT

TEXT = (ROOT / "docs/questions.md").read_text()
BLOCKS = re.findall(r"## ([^\n]*)\n(?:(?!\n## ).)*?```python\n(.*?)```", TEXT, re.DOTALL)


def test_every_question_has_an_answer() -> None:
    assert len(BLOCKS) == TEXT.count("```python") >= 7


@pytest.mark.parametrize("block", [pytest.param(block, id=title) for title, block in BLOCKS])
def test_block(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if ".plot(" in block:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "questions.md", "exec"), {})
    said = re.findall(r"print\(.*\)  # prints ([^:\n]*)", block)
    assert said and capsys.readouterr().out.splitlines() == said
