import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from faverage.app.model import Model

pytest.register_assert_rewrite("helpers_fuse")
settings.register_profile("faverage", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("faverage")
torch.set_num_threads(1)  # the arrays are tiny: more threads would only wait for each other
os.environ.setdefault("MPLBACKEND", "Agg")
collect_ignore_glob = ["*conftest.py"]  # they have no examples to run, and all have one name


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _no_figures() -> Iterator[None]:
    """Runs draw no figures, which takes two seconds each, but in the tests of figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("faverage.experiment.report.draw_figures", lambda _: {})
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that processes that share the files end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own for a test, and no real data."""
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FAVERAGE_DATA", raising=False)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all tests of a file, and no real data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAVERAGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("FAVERAGE_DATA", raising=False)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that knows three drawn shapes; look at it, do not change it."""
    from faverage.app.model import Model
    from helpers_model import NAMES, learner_of_shapes, pictures

    folder = tmp_path_factory.mktemp("made") / "model"
    shown = {name: pictures(name, 6) for name in NAMES[:3]}
    Model.create(folder, learner_of_shapes(), side=16, counts=dict.fromkeys(NAMES[:3], 60), thumbnails=shown)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the model's folder."""
    return Path(shutil.copytree(made, tmp_path / "model"))


@pytest.fixture
def model(folder: Path) -> "Model":
    """The model in that copy."""
    from faverage.app.model import Model

    return Model.load(folder, device="cpu")
