"""FGVC-Aircraft, 100 variants of aircraft: 50 base classes, then 10 x 5-way 5-shot; shots are drawn with the seed."""

from __future__ import annotations

from pathlib import Path

from faverage.data.assemble import assemble_files
from faverage.data.benchmark import Benchmark, DataError
from faverage.data.registry import Protocol, Request, register_benchmark
from faverage.data.sources import Item, find_below, locate, read_lines

__all__ = ["load_fgvc_aircraft"]

NAME = "fgvc-aircraft"
TABLES = {"images_variant_trainval.txt": False, "images_variant_test.txt": True}
LAYOUT = """\
fgvc-aircraft needs fgvc-aircraft-2013b.tar.gz (https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/), unpacked below
the data folder:
  fgvc-aircraft-2013b/
    data/images_variant_trainval.txt
    data/images_variant_test.txt
    data/images/0034309.jpg, ..."""


@register_benchmark(NAME)
def load_fgvc_aircraft(request: Request) -> Benchmark:
    """224 px photos with the official test images; labels are the variants in sorted order."""
    root = locate(request.root, NAME, LAYOUT)
    protocol = request.protocol(Protocol(base=50, way=5, sessions=10))
    places = ("data", "fgvc-aircraft-2013b/data", "fgvc-aircraft/data", "fgvc-aircraft")
    folder = find_below(root, places, "images_variant_trainval.txt")
    if folder is None:
        raise DataError(f"{NAME}: no images_variant_trainval.txt below {root}.\n{LAYOUT}")
    rows = [(image, variant, test) for table, test in TABLES.items() for image, variant in read_rows(folder / table)]
    names = sorted({variant for _, variant, _ in rows})
    rank = {name: label for label, name in enumerate(names)}
    items = [Item(f"{i}.jpg", rank[v], folder / "images" / f"{i}.jpg", test=test) for i, v, test in rows]
    return assemble_files(request, NAME, 224, names, items, protocol)


def read_rows(path: Path) -> list[tuple[str, str]]:
    """Lines ``<image number> <variant>``; a variant's name may hold blanks."""
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        image, _, variant = line.partition(" ")
        if not variant:
            raise DataError(f"{path} line {number} is '{line}', expected an image's number and a variant")
        rows.append((image, variant.strip()))
    return rows
