import os

import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("helpers_fuse")
settings.register_profile("faverage", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("faverage")
torch.set_num_threads(1)  # the arrays are tiny: more threads would only wait for each other
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that processes that share the files end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
