from pathlib import Path

import pytest
from typer.testing import Result

from faverage.prediction_files import compare
from helpers_fuse import QUICK, fuse, make


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fusers are compared where nothing else is said."""
    monkeypatch.setattr(compare, "fuser_names", lambda: QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = make(tmp_path_factory.mktemp("fused"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "fuser_names", lambda: QUICK)
        return folder, fuse(folder)
