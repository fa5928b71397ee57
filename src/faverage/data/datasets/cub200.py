"""CUB-200-2011, 200 kinds of birds: 100 base classes, then 10 x 10-way 5-shot."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from faverage.data.assemble import assemble_files, find_lists, read_lists
from faverage.data.benchmark import Benchmark, DataError
from faverage.data.registry import Protocol, Request, register_benchmark
from faverage.data.sources import Item, find_below, locate, read_lines

__all__ = ["load_cub200"]

NAME = "cub200"
LAYOUT = """\
cub200 needs Caltech-UCSD Birds-200-2011 (CUB_200_2011.tgz, https://data.caltech.edu/records/65de6-vp158), unpacked
below the data folder:
  CUB_200_2011/
    images.txt  image_class_labels.txt  train_test_split.txt
    images/001.Black_footed_Albatross/Black_Footed_Albatross_0001_796111.jpg, ...
  index_list/cub200/session_1.txt ... session_11.txt     (optional: the official lists of few-shot images)"""


@register_benchmark(NAME)
def load_cub200(request: Request) -> Benchmark:
    """224 px photos with the official split into training and test images; a label is a class's number less one."""
    root = locate(request.root, NAME, LAYOUT)
    protocol = request.protocol(Protocol(base=100, way=10, sessions=10))
    folder = find_below(root, ("CUB_200_2011", "cub200/CUB_200_2011", "cub200", "data/CUB_200_2011"), "images.txt")
    if folder is None:
        raise DataError(f"{NAME}: no images.txt below {root}.\n{LAYOUT}")
    names, items = read_items(folder)
    where = find_lists(root, folder, "cub200")
    if where is None:
        return assemble_files(request, NAME, 224, names, items, protocol)
    position = {"/".join(PurePosixPath(item.name).parts[-2:]): i for i, item in enumerate(items)}
    lists = []
    for number, lines in enumerate(read_lists(where, protocol), 1):
        keys = ["/".join(PurePosixPath(line).parts[-2:]) for line in lines]
        unknown = [key for key in keys if key not in position]
        if unknown:
            raise DataError(f"{where}/session_{number}.txt lists {unknown[0]}, which {folder}/images.txt does not have")
        tested = [key for key in keys if items[position[key]].test]
        if tested:
            raise DataError(f"{where}/session_{number}.txt lists {tested[0]}, which is a test image")
        lists.append([position[key] for key in keys])
    return assemble_files(request, NAME, 224, names, items, protocol, lists)


def read_items(folder: Path) -> tuple[list[str], list[Item]]:
    """Class names and all images, from the three tables of the data set."""
    paths = read_table(folder / "images.txt")
    labels = read_table(folder / "image_class_labels.txt")
    train = read_table(folder / "train_test_split.txt")
    names: dict[int, str] = {}
    items = []
    for key, path in paths.items():
        if key not in labels or key not in train:
            raise DataError(f"{folder}: image {key} of images.txt is not in both of the other tables")
        label = int(labels[key]) - 1
        names[label] = PurePosixPath(path).parent.name
        items.append(Item(path, label, folder / "images" / path, test=train[key] == "0"))
    if sorted(names) != list(range(len(names))):
        raise DataError(
            f"{folder}/image_class_labels.txt has {len(names)} classes, but not the numbers 1 to {len(names)}"
        )
    return [names[label] for label in range(len(names))], items


def read_table(path: Path) -> dict[str, str]:
    """Lines ``<image number> <value>`` as a dictionary."""
    table = {}
    for number, line in enumerate(read_lines(path), 1):
        key, _, value = line.partition(" ")
        if not value or (path.name != "images.txt" and not value.isdigit()):
            raise DataError(f"{path} line {number} is '{line}', expected an image's number and a value")
        table[key] = value
    return table
