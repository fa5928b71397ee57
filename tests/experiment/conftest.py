from collections.abc import Iterator

import pytest
from sklearn import datasets


@pytest.fixture(scope="module", autouse=True)
def _half_of_the_digits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs of these tests see half of the digits; not sweeps, whose workers are processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        if "sweep" not in request.path.parts:
            digits = datasets.load_digits()
            few = type(digits)(**{name: digits[name][::2] for name in ("data", "images", "target")})
            patch.setattr(datasets, "load_digits", lambda: few)
        yield
