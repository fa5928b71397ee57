"""Handwritten digits from scikit-learn: nothing to fetch, loaded in a moment; for first steps and for tests."""

from __future__ import annotations

import numpy as np

from faverage.data.assemble import assemble
from faverage.data.benchmark import Benchmark
from faverage.data.decode import resize_stack, store_size
from faverage.data.registry import Protocol, Request, register_benchmark

__all__ = ["PROTOCOL", "load_digits"]

IMAGE_SIZE = 16
"""Twice the original 8 px: room for two poolings in a small network."""
MEAN, STD = 0.305, 0.376
PROTOCOL = Protocol(base=6, way=2, sessions=2)


@register_benchmark("digits")
def load_digits(request: Request) -> Benchmark:
    """1,797 grey images of ten digits: 6 base classes, then 2 sessions of 2 classes; 30 % of each class for testing."""
    from sklearn import datasets

    digits = datasets.load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    size = request.size or IMAGE_SIZE
    return assemble(
        request,
        "digits",
        size,
        [str(digit) for digit in range(10)],
        resize_stack(np.repeat(grey[..., None], 3, axis=3), store_size(size)),
        digits.target.astype(np.int64),
        None,
        request.protocol(PROTOCOL),
        normalise=((MEAN,) * 3, (STD,) * 3),
    )
