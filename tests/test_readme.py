"""Every Python block of the README and of the docs runs as it stands, given the names that it speaks of."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from helpers_paths import ROOT

pytestmark = pytest.mark.slow

BLOCKS = [
    pytest.param(block, id=f"{page}-{i}")
    for page in ("README.md", "docs/fusion.md", "docs/learner.md", "docs/rivals.md")
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL))
]


def names() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = np.eye(3)[y] + 0.3 * rng.normal(size=(90, 3))
    p = [rng.dirichlet([1, 1], 90) for _ in range(2)]
    features = np.abs(rng.normal(size=(90, 8)) + 3 * np.eye(3, 8)[y])
    five = np.abs(rng.normal(size=(5, 8)) + 3 * np.eye(8)[7])
    return {
        "forest": RandomForestClassifier(5, random_state=0),
        "svm": LogisticRegression(),
        "net": GaussianNB(),
        "X": X,
        "y": y,
        "X_new": X,
        "p1": p[0],
        "p2": p[1],
        "scores_new": np.full((2, 2, 3), 0.5),
        "features": features,
        "images": rng.integers(0, 256, (90, 8, 8, 3), dtype=np.uint8),
        "labels": torch.from_numpy(y),
        "five_features_each": five,
        "new_labels": ["new"] * 5,
        "new_images": rng.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8),
        "more_images": rng.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8),
        "more_features": features,
        "scores": torch.rand(90, 3, 10).softmax(-1),
    }


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS)
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
    exec(compile(block, "README", "exec"), space)
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
