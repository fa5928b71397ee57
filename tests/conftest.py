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
