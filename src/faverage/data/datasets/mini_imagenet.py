"""mini-ImageNet with the official lists of few-shot class-incremental learning: 60 base classes, 8 x 5-way 5-shot."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from faverage.data.assemble import assemble_files, find_lists, read_lists
from faverage.data.benchmark import Benchmark, DataError
from faverage.data.registry import Protocol, Request, register_benchmark
from faverage.data.sources import Item, check_parts, class_items, image_files, locate, read_lines, zip_members

__all__ = ["load_mini_imagenet"]

NAME = "mini-imagenet"
PARTS = "images-"
WNID = 9
"""Length of a WordNet id, with which the file names begin."""

LAYOUT = """\
mini-imagenet needs the 84 px images and the lists of its few-shot class-incremental protocol, which the repositories
of TOPIC and CEC distribute, in one of these forms below the data folder:
  mini_imagenet/                        MINI-ImageNet/
    images-0.zip, images-1.zip, ...       train/n01532829/n0153282900000005.jpg, ...
    split/                                test/n01532829/n0153282900000007.jpg, ...
      session_1.txt ... session_9.txt   index_list/mini_imagenet/
      test.txt                            session_1.txt ... session_9.txt, test.txt
The folder form also works without lists; then the few-shot images are drawn."""

Found = dict[str, tuple[Path, str]]


@register_benchmark(NAME)
def load_mini_imagenet(request: Request) -> Benchmark:
    """84 px images of 100 classes; a label is the rank of a WordNet id in sorted order."""
    root = locate(request.root, NAME, LAYOUT)
    protocol = request.protocol(Protocol(base=60, way=5, sessions=8))
    folder, found = find_images(root)
    where = find_lists(root, folder, "mini_imagenet")
    if where is None:
        if not (folder / "train").is_dir():
            raise DataError(f"{NAME}: {folder} has images but no lists.\n{LAYOUT}")
        test = folder / "test"
        names, items = class_items(folder / "train", test=test if test.is_dir() else None)
        return assemble_files(request, NAME, 84, names, items, protocol, most_test=100)
    sessions = read_lists(where, protocol)
    names, items, lists = list_images(folder, found, sessions, read_lines(where / "test.txt"))
    return assemble_files(request, NAME, 84, names, items, protocol, lists)


def find_images(root: Path) -> tuple[Path, Found]:
    """The folder that holds the images, and where each is by its file name."""
    for name in ("MINI-ImageNet", "data/MINI-ImageNet", "miniimagenet", "mini_imagenet", "mini-imagenet", ""):
        folder = root / name
        for inner in ("train", "images"):
            if (folder / inner).is_dir():
                files = [*image_files(folder / inner), *(image_files(folder / "test") if inner == "train" else ())]
                return folder, {file.name: (file, "") for file in files}
        parts = sorted(folder.glob(f"{PARTS}*.zip"))
        if parts:
            check_parts(parts, PARTS)
            return folder, zip_members(parts)
    raise DataError(f"{NAME}: no images below {root}.\n{LAYOUT}")


def list_images(
    folder: Path, found: Found, sessions: list[list[str]], test: list[str]
) -> tuple[list[str], list[Item], list[list[int]]]:
    """Class names, all images, and the positions of each session's training images among them.

    Images that no list names follow at the end, for ``draw_shots``; test folders are not among them.
    """
    parsed = [[class_and_file(line) for line in lines] for lines in [*sessions, test]]
    names = sorted({wnid for lines in parsed for wnid, _ in lines})
    rank = {name: label for label, name in enumerate(names)}
    items: list[Item] = []
    lists: list[list[int]] = []
    for k, lines in enumerate(parsed):
        lists.append(list(range(len(items), len(items) + len(lines))))
        for wnid, name in lines:
            file, member = found.get(name) or (folder / wnid / name, "")
            items.append(Item(f"{wnid}/{name}", rank[wnid], file, member, test=k == len(sessions)))
    listed = Counter(name for lines in parsed for _, name in lines)
    twice = next((name for name, count in listed.items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{NAME}: the lists name {twice} more than once; an image may train or test, and only once")
    for name, (file, member) in sorted(found.items()):
        wnid = name[:WNID] if name[:WNID] in rank else file.parent.name
        if name not in listed and wnid in rank and file.parent.parent.name != "test":
            items.append(Item(name, rank[wnid], file, member, test=False))
    return names, items, lists[:-1]


def class_and_file(line: str) -> tuple[str, str]:
    """The WordNet id and the file name of a line of a list.

    >>> class_and_file("MINI-ImageNet/train/n01532829/n0153282900000005.jpg")
    ('n01532829', 'n0153282900000005.jpg')
    """
    *folders, name = line.rsplit("/", 2)
    return folders[-1] if folders else name[:WNID], name
