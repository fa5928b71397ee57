"""Run the tutorials: every block of Python or of commands, page by page, in an empty folder.

    python tools/tutorials.py docs/tutorials/*.md              # and write what they print below each block
    python tools/tutorials.py --notebooks docs/tutorials/*.md  # write each as a notebook beside it, and run nothing

A block after ``<!-- not run -->`` is left out. What is printed must agree with the block of text: for Python word for
word, and numbers roughly, since other versions of scikit-learn fit a little differently; for commands, which print
times, in its words.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"(?P<skip><!-- not run -->\n)?^```(?P<kind>python|sh)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def run(page: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each block of a page with what it prints."""
    space: dict[str, object] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
                if not block["skip"]:
                    yield block, _printed(block["kind"], block["code"], space, page.name)
        finally:
            os.chdir(before)


def _printed(kind: str, code: str, space: dict[str, object], name: str) -> str:
    if kind == "python":
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(code, name, "exec"), space)
        return said.getvalue()
    command = re.sub(r"^faverage ", f"'{sys.executable}' -m faverage ", code, flags=re.MULTILINE)
    wide = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, env=wide, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {code}{done.stdout}{done.stderr}")
    return done.stdout


def alike(printed: str, written: str, kind: str = "python") -> bool:
    """Return whether two outputs have the same words, and numbers within 0.02 and 10 % of each other.

    Of commands (``sh``) the words must be the same, in any order.

    >>> alike("accuracy 97.1 %", "accuracy 96.8 %"), alike("accuracy 97.1 %", "accuracy 61.0 %")
    (True, False)
    """

    def words(text: str) -> list[str]:
        return re.sub(r"[\s─-]+", " ", NUMBER.sub(" 0 ", text)).split()

    def numbers(text: str) -> list[float]:
        return [float(one.replace(",", "")) for one in NUMBER.findall(text)]

    if kind == "sh":
        return set(words(printed)) == set(words(written))
    pairs = zip(numbers(printed), numbers(written), strict=False)
    return words(printed) == words(written) and all(abs(a - b) <= 0.02 + 0.1 * abs(b) for a, b in pairs)


def notebook(page: Path) -> str:
    """Return a page as a notebook: the same code, with what it printed; commands are cells of the shell."""
    text, cells, at = page.read_text(encoding="utf-8"), list[dict[str, object]](), 0

    def add(kind: str, source: str, **more: object) -> None:
        if source.strip():
            lines = source.strip("\n").splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **more})

    for block in BLOCK.finditer(text):
        if block["skip"]:
            continue
        add("markdown", text[at : block.start()])
        printed = {"name": "stdout", "output_type": "stream", "text": (block["text"] or "").splitlines(keepends=True)}
        code = ("%%sh\n" if block["kind"] == "sh" else "") + block["code"]
        add("code", code, execution_count=None, outputs=[printed] if block["text"] else [])
        at = block.end()
    add("markdown", text[at:])
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": cells, "metadata": kernel | {"language_info": {"name": "python"}}, "nbformat": 4}
    return json.dumps(whole | {"nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


def main(pages: list[str]) -> None:
    """Run pages, and write what they print; or write them as notebooks."""
    if pages[:1] == ["--notebooks"]:
        for page in map(Path, pages[1:]):
            page.with_suffix(".ipynb").write_text(notebook(page), encoding="utf-8")
        return
    for name in pages:
        page = Path(name).resolve()
        text = page.read_text(encoding="utf-8")
        for block, said in run(page):
            clean = "\n".join(line.rstrip() for line in said.strip("\n").splitlines())
            shown = f"\n```text\n{clean}\n```\n" if clean else ""
            text = text.replace(block[0], f"```{block['kind']}\n{block['code']}```\n{shown}")
        page.write_text(text, encoding="utf-8")
        print(f"{name}: written")


if __name__ == "__main__":
    main(sys.argv[1:])
