"""Several processes that share training and extraction: they end where one ends, and a lost one costs little."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.errors import install_line
from faverage.vision import BaseModel, Team, join, open_features, train_base
from helpers_data import photos
from helpers_paths import TESTS
from helpers_run import command, numbers, said
from helpers_vision import drawn
from rank_train import work

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(  # it takes seconds to import
        find_spec("lightning_fabric") is None, reason="needs the extra: pip install 'faverage[scale]'"
    ),
]

# crops below 64 px are trained in float32 on any CPU: in bfloat16 two halves of a batch are not quite the whole
QUICK = (
    "backbone: tiny\nepochs: 4\nbatch_size: 16\nlr: 0.01\ncrop: 60\nmethods: [prototypes, vote]\njobs: 1\ndevice: cpu\n"
)


def launch(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "NODE_RANK")}
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    clean |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "COLUMNS": "200", **environment}
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "env": clean}
    return subprocess.run([sys.executable, *map(str, arguments)], **options)


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    work(one)
    done = launch("-m", "torch.distributed.run", "--nproc-per-node", 2, TESTS / "rank_train.py", two)
    assert done.returncode == 0, done.stderr
    alone, shared = (torch.load(folder / "model.pt") for folder in (one, two))
    for name, tensor in alone.items():
        assert torch.allclose(tensor.double(), shared[name].double(), rtol=0, atol=1e-5), name
    first, second = (json.loads((folder / "about.json").read_text()) for folder in (one, two))
    assert second["ran"]["processes"] == 2 and second["norm"] == "BatchNorm2d"
    assert np.allclose(first["history"]["loss"], second["history"]["loss"], rtol=0, atol=1e-5)
    assert first["history"]["accuracy"] == second["history"]["accuracy"]
    assert first["history"]["loss"][-1] < 0.8 * first["history"]["loss"][0]
    features = [open_features(folder / "features", check=True) for folder in (one, two)]
    assert features[0].shape == (160, 16) and len(features[1].parts) == 6
    assert np.allclose(*features, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def drawn_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drawn")
    (root / "run.yaml").write_text(QUICK)
    photos(root / "photos", each=9)
    return root


def run_two(root: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = ("--data", root / "photos", "--config", root / "run.yaml", "--out", out, "--devices", 2)
    return launch(TESTS / "rank_run.py", "run", "folder", *settings, FAVERAGE_CACHE=str(root / "cache"), **environment)


def run_one(root: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same run by this process alone; returns what it said."""
    monkeypatch.setenv("FAVERAGE_CACHE", str(root / "cache"))
    done = command("folder", "--data", root / "photos", "--config", root / "run.yaml", "--out", out, "--devices", 1)
    assert done.exit_code == 0, done.stderr
    return str(done.stderr)


@pytest.fixture(scope="module")
def undisturbed(drawn_photos: Path) -> Path:
    out = drawn_photos / "undisturbed"
    done = run_two(drawn_photos, out)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training the base session") == 1 and done.stdout.count("| prototypes |") == 2
    return out


def base(out: Path) -> dict[str, torch.Tensor]:
    (file,) = out.glob("work/*/base.safetensors")
    return BaseModel.load(file).backbone.state_dict()


def test_a_run_by_two_has_the_metrics_of_a_run_by_one(
    drawn_photos: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = drawn_photos / "alone"
    run_one(drawn_photos, alone, monkeypatch)
    assert numbers(alone) == numbers(undisturbed)
    results = json.loads((undisturbed / "results.json").read_text())
    assert results["base"]["ran"]["processes"] == 2
    assert (alone / "work").exists() and {p.name for p in alone.glob("work/*")} == {
        p.name for p in undisturbed.glob("work/*")
    }


@pytest.fixture(scope="module", params=[0, 1], ids=["first", "second"])
def lost(request: pytest.FixtureRequest, drawn_photos: Path) -> tuple[int, Path]:
    """A run whose first or second process is killed after the third epoch."""
    out = drawn_photos / f"lost-{request.param}"
    ended = run_two(drawn_photos, out, LOSE=f"{request.param}:2")
    assert ended.returncode != 0 and not (out / "results.json").exists()
    words = " ".join(ended.stderr.split())
    assert "another process of this run was lost" in words and "the same command goes on from there" in words, words
    assert "Traceback" not in words, words
    return request.param, out


def test_a_run_with_a_lost_process_goes_on(
    lost: tuple[int, Path], drawn_photos: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two processes again it ends as an undisturbed run, bit for bit; with one, but for rounding."""
    which, out = lost
    shutil.copytree(out, tmp_path / "out")
    if which == 0:
        again = run_two(drawn_photos, tmp_path / "out")
        assert again.returncode == 0, again.stderr
        words = again.stderr
    else:
        words = run_one(drawn_photos, tmp_path / "out", monkeypatch)
    assert "starts anew" not in words
    assert numbers(tmp_path / "out") == numbers(undisturbed)
    expected, rounding = base(undisturbed), 0.0 if which == 0 else 1e-5
    for name, tensor in base(tmp_path / "out").items():
        assert torch.allclose(tensor.double(), expected[name].double(), rtol=rounding, atol=rounding), name


class Three(Team):
    size = 3


def test_what_cannot_be_shared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = drawn(64)
    with pytest.raises(
        ValueError, match="a batch of 32 images cannot be shared evenly by 3 processes: set batch_size to 30"
    ):
        train_base(images, labels, backbone="tiny", epochs=1, batch_size=32, device="cpu", team=Three())
    with pytest.warns(DeprecationWarning, match="'strategy' has no effect"):
        assert type(join(strategy="ddp")) is Team
    with pytest.raises(ValueError, match="'cuda:1' is one GPU, but 2 processes"):
        join(2, device="cuda:1")
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=re.escape(install_line("scale"))):
        join(2, device="cpu")
    assert type(join()) is Team


def test_the_command_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    result = command("digits", "--devices", 2, "--device", "cpu", "--out", tmp_path)
    assert result.exit_code == 2 and f"{install_line('scale')}, or use one process" in said(result)
    assert "devices must be a whole number of at least 1" in said(command("digits", "--devices", 0))
    assert "nodes must be a whole number of at least 1" in said(command("digits", "--nodes", 0))
