"""tiered-ImageNet, the first 200 synsets of its training part in sorted order: 100 base classes, 10 x 10-way 5-shot.

Nobody has published lists for this protocol: shots and test images are drawn with the seed.
"""

from __future__ import annotations

from faverage.data.assemble import assemble_files
from faverage.data.benchmark import Benchmark, DataError
from faverage.data.registry import Protocol, Request, register_benchmark
from faverage.data.sources import class_items, find_below, locate

__all__ = ["load_tiered_imagenet"]

NAME = "tiered-imagenet"
TEST_IMAGES = 100
"""Test images a class, as in mini-ImageNet."""

LAYOUT = """\
tiered-imagenet needs the training part of tiered-ImageNet (https://github.com/renmengye/few-shot-ssl-public), one
folder a synset, below the data folder:
  tiered_imagenet/
    train/<synset, as n01530575>/*.jpg, ...     (351 synsets; the first 200 are used)"""


@register_benchmark(NAME)
def load_tiered_imagenet(request: Request) -> Benchmark:
    """84 px images of 200 classes; up to 100 images of each class are drawn for testing."""
    root = locate(request.root, NAME, LAYOUT)
    protocol = request.protocol(Protocol(base=100, way=10, sessions=10))
    folder = find_below(root / "tiered_imagenet", (), "train") or find_below(
        root, ("tiered-imagenet", "tieredImageNet", "tieredimagenet", "data/tiered_imagenet"), "train"
    )
    if folder is None:
        raise DataError(f"{NAME}: no folder 'train' below {root}.\n{LAYOUT}")
    names, items = class_items(folder / "train", limit=protocol.classes)
    return assemble_files(request, NAME, 84, names, items, protocol, most_test=TEST_IMAGES)
