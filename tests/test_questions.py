"""The answers in docs/questions.md: every block runs alone, as a person would paste it, and prints what it says."""

import re
from pathlib import Path

import pytest

from helpers_paths import ROOT

TEXT = (ROOT / "docs/questions.md").read_text()
BLOCKS = [
    pytest.param(block, id=f"{section.splitlines()[0]} {i}")
    for section in TEXT.split("\n## ")
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if ".plot(" in block:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "questions.md", "exec"), {})
    said = re.findall(r"print\(.*\)  # prints ([^:\n]*)", block)
    assert said and capsys.readouterr().out.splitlines() == said
