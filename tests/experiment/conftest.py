from collections.abc import Iterator

import pytest
from sklearn import datasets

from helpers_run import few_digits


@pytest.fixture(scope="module", autouse=True)
def _few_digits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs of these tests see few of the digits; not those of sweeps whose workers are processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in ("test_sweep", "test_sweep_dask"):
            patch.setattr(datasets, "load_digits", few_digits)
        yield
