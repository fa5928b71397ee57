"""CIFAR-100: 60 base classes, then 8 x 5-way 5-shot. Its pickles are read without running what they may hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.data.assemble import assemble, find_lists, read_lists
from faverage.data.benchmark import Benchmark, DataError
from faverage.data.decode import resize_stack, store_size
from faverage.data.registry import Protocol, Request, register_benchmark
from faverage.data.sources import find_below, locate

__all__ = ["load_cifar100", "read_pickle"]

NAME = "cifar100"
SIDE = 32
NORMALISE = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
LAYOUT = """\
cifar100 needs cifar-100-python.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html), unpacked below the data folder:
  cifar-100-python/train  cifar-100-python/test  cifar-100-python/meta
  index_list/cifar100/session_1.txt ... session_9.txt     (optional: the official lists of few-shot images)"""


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into an old pickle."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes text as {encoding}, which CIFAR-100 does not need")
    return text.encode("latin1")


_EMPTY = np.zeros(0, dtype=np.uint8)
_NUMPY: dict[str, Any] = {
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "_reconstruct": _EMPTY.__reduce__()[0],
    "_frombuffer": _EMPTY.__reduce_ex__(5)[0],
}


class _Unpickler(pickle.Unpickler):
    """Builds numpy arrays, numbers, strings, lists and dictionaries; refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR-100 does not need: do not trust it")


def read_pickle(path: Path) -> dict[str, Any]:
    """Read one of the data set's pickles, which were written by Python 2; keys come back as strings."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"{path} is absent.\n{LAYOUT}") from None
    except Exception as error:
        raise DataError(f"{path} is not a file of CIFAR-100: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a file of CIFAR-100: it holds a {type(content).__name__}; fetch it again")
    return {_text(key): value for key, value in content.items()}


@register_benchmark(NAME)
def load_cifar100(request: Request) -> Benchmark:
    """32 px images of 100 classes, kept in memory; a label is the data set's fine label."""
    root = locate(request.root, NAME, LAYOUT)
    protocol = request.protocol(Protocol(base=60, way=5, sessions=8))
    folder = find_below(root / "cifar-100-python", (), "train") or find_below(
        root, ("cifar100", "cifar100/cifar-100-python", "data/cifar-100-python"), "meta"
    )
    if folder is None:
        raise DataError(f"{NAME}: no folder 'cifar-100-python' below {root}.\n{LAYOUT}")
    names = [_text(name) for name in read_pickle(folder / "meta").get("fine_label_names", [])]
    train, train_labels = read_part(folder / "train", len(names))
    test, test_labels = read_part(folder / "test", len(names))
    where = find_lists(root, folder, NAME)
    lists = None
    if where is not None:
        texts = read_lists(where, protocol)
        lists = [read_numbers(lines, where / f"session_{k}.txt", len(train)) for k, lines in enumerate(texts, 1)]
    size = request.size or SIDE
    return assemble(
        request,
        NAME,
        size,
        names,
        resize_stack(np.concatenate([train, test]), store_size(size)),
        np.concatenate([train_labels, test_labels]),
        np.arange(len(train) + len(test)) >= len(train),
        protocol,
        lists=lists,
        normalise=NORMALISE,
    )


def read_part(path: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images ``(n, 32, 32, 3)`` and labels ``(n,)`` of the training or test part."""
    content = read_pickle(path)
    data, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE * SIDE,):
        raise DataError(f"{path}: 'data' must be an (n, {3 * SIDE * SIDE}) uint8 array; fetch the file again")
    if not isinstance(labels, list) or len(labels) != len(data):
        raise DataError(f"{path}: 'fine_labels' must be a list of {len(data)} labels; fetch the file again")
    if not all(isinstance(label, int) and 0 <= label < classes for label in labels):
        raise DataError(f"{path}: labels must be numbers from 0 to {classes - 1}, as 'meta' names {classes} classes")
    images = data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.int64)


def read_numbers(lines: list[str], path: Path, count: int) -> list[int]:
    """Lines as indices into the training images."""
    for number, line in enumerate(lines, 1):
        if not line.isdecimal() or int(line) >= count:
            raise DataError(f"{path} line {number} is '{line}', expected a training image's number, 0 to {count - 1}")
    return [int(line) for line in lines]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
