"""Your own photos: any folder with one sub-folder a class."""

from __future__ import annotations

from faverage.data.assemble import assemble_files
from faverage.data.benchmark import Benchmark, DataError, shown
from faverage.data.registry import Protocol, Request, register_benchmark
from faverage.data.sources import class_folders, class_items, locate

__all__ = ["load_folder"]

NAME = "folder"
BASE_SHARE = 0.6
LAYOUT = """\
folder needs a folder with one sub-folder a class, or the same below 'train' and 'test':
  photos/                      photos/
    cat/1.jpg, 2.png, ...        train/cat/1.jpg, ...    train/dog/7.jpg, ...
    dog/7.jpg, ...               test/cat/9.jpg, ...     test/dog/8.jpg, ..."""


@register_benchmark(NAME)
def load_folder(request: Request) -> Benchmark:
    """Classes in the order of their names: 60 % of them in the base session, then up to 5 new ones a session.

    30 % of the images of each class are drawn for testing, unless there are folders ``train`` and ``test``.
    """
    root = locate(request.root, NAME, LAYOUT)
    parts = {sub.name: sub for sub in class_folders(root)}
    held_out = next((name for name in ("test", "val") if set(parts) == {"train", name}), None)
    if held_out is None:
        names, items = class_items(root)
    else:
        names, items = class_items(parts["train"], test=parts[held_out])
        foreign = sorted({sub.name for sub in class_folders(parts[held_out])} - set(names))
        if foreign:
            raise DataError(
                f"{NAME}: {parts[held_out]} has a class '{shown(foreign[0])}' that {parts['train']} does not have"
            )
    if len(names) < 2:
        raise DataError(f"{NAME}: {root} has {len(names)} sub-folders, at least 2 classes are needed.\n{LAYOUT}")
    if not items:
        raise DataError(f"{NAME}: {root} has {len(names)} sub-folders, but no images in them.\n{LAYOUT}")
    return assemble_files(request, NAME, 84, names, items, usual_protocol(request, len(names)))


def usual_protocol(request: Request, classes: int) -> Protocol:
    """60 % of the classes first, then at least two sessions where there are enough, of at most 5 classes.

    >>> usual_protocol(Request(), 10)
    Protocol(base=6, way=2, sessions=2, uneven=True)
    """
    base = request.base or min(max(1, round(BASE_SHARE * classes)), classes - 1)
    new = max(0, classes - base)
    way = request.way or max(1, min(5, new // 2))
    return request.protocol(Protocol(base, way, sessions=-(-new // way), uneven=True))
