"""Small drawings of the real layouts of the benchmarks."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from faverage.data import Benchmark

SMALL = {"base": 3, "way": 2, "sessions": 2}  # 7 classes


def picture(seed: int = 0, side: int = 6, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def photos(root: Path, classes: int = 7, each: int = 8) -> Path:
    for c in range(classes):
        for i in range(each):
            put(root / f"class {c} é'&" / f"{i}.jpg", picture(100 * c + i))
    return root


def mini_names() -> dict[str, list[str]]:
    return {f"n{c:08d}": [f"n{c:08d}{i:08d}.jpg" for i in range(9)] for c in range(7)}


def mini_lists(folder: Path) -> None:
    """5 training images of each class, 2 test images; images 7 and 8 are on no list."""
    classes = sorted(mini_names())
    for number, group in enumerate((classes[:3], classes[3:5], classes[5:]), 1):
        lines = [f"MINI-ImageNet/train/{c}/{name}" for c in group for name in mini_names()[c][:5]]
        put(folder / f"session_{number}.txt", "\n".join(lines) + "\n")
    put(folder / "test.txt", "\n".join(f"MINI-ImageNet/test/{c}/{n}" for c in classes for n in mini_names()[c][5:7]))


def mini_zips(root: Path) -> Path:
    """Two parts with the listed images only."""
    mini_lists(root / "mini_imagenet" / "split")
    for part in (0, 1):
        with zipfile.ZipFile(root / "mini_imagenet" / f"images-{part}.zip", "w") as archive:
            for c, names in mini_names().items():
                for i, name in enumerate(names[:7]):
                    if i % 2 == part:
                        archive.writestr(f"images/{name}", picture(int(c[1:]) * 10 + i))
    return root


def mini_folders(root: Path) -> Path:
    """All nine images of a class, of which two are on no list."""
    mini_lists(root / "index_list" / "mini_imagenet")
    for c, names in mini_names().items():
        for i, name in enumerate(names):
            put(root / "MINI-ImageNet" / ("test" if i in (5, 6) else "train") / c / name, picture(int(c[1:]) * 10 + i))
    return root


def cub(root: Path, lists: bool = True) -> Path:
    folder = root / "CUB_200_2011"
    tables: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for c in range(7):
        for i in range(8):
            path = f"{c + 1:03d}.Bird_{c}/Bird_{c}_{i:04d}.jpg"
            put(folder / "images" / path, picture(100 * c + i))
            number = 8 * c + i + 1
            values = (path, str(c + 1), str(int(i < 6)))
            for lines, value in zip(tables.values(), values, strict=True):
                lines.append(f"{number} {value}")
    for name, lines in tables.items():
        put(folder / f"{name}.txt", "\n".join(lines))
    for k, group in enumerate(((0, 1, 2), (3, 4), (5, 6)) if lists else (), 1):
        chosen = [f"CUB_200_2011/images/{c + 1:03d}.Bird_{c}/Bird_{c}_{i:04d}.jpg" for c in group for i in range(1, 6)]
        put(root / "index_list" / "cub200" / f"session_{k}.txt", "\n".join(chosen))
    return root


def tiered(root: Path) -> Path:
    for c in range(9):
        for i in range(8):
            put(root / "tiered_imagenet" / "train" / f"n{c:08d}" / f"{i}.jpg", picture(100 * c + i))
    return root


def aircraft(root: Path) -> Path:
    folder = root / "fgvc-aircraft-2013b" / "data"
    lines: dict[bool, list[str]] = {False: [], True: []}
    for c in range(7):
        for i in range(8):
            lines[i > 5].append(f"{100 * c + i:07d} Jet 7{c}7/b")
            put(folder / "images" / f"{100 * c + i:07d}.jpg", picture(100 * c + i))
    put(folder / "images_variant_trainval.txt", "\n".join(lines[False]))
    put(folder / "images_variant_test.txt", "\n".join(lines[True]))
    return root


def cifar(root: Path) -> Path:
    folder = root / "cifar-100-python"
    names = [f"thing {c}".encode() for c in range(7)]
    put(folder / "meta", pickle.dumps({b"fine_label_names": names}, protocol=2))
    for part, each in (("train", 8), ("test", 2)):
        data = np.random.default_rng(each).integers(0, 256, (7 * each, 3072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": [i % 7 for i in range(7 * each)]}
        put(folder / part, pickle.dumps(content, protocol=2 if part == "train" else 5))
    for k, group in enumerate(((0, 1, 2), (3, 4), (5, 6)), 1):
        lines = "\n".join(str(7 * i + c) for c in group for i in range(5))
        put(root / "index_list" / "cifar100" / f"session_{k}.txt", lines)
    return root


def same(a: Benchmark, b: Benchmark) -> bool:
    pairs = zip(a.sessions, b.sessions, strict=True)
    return all(np.array_equal(x.train, y.train) and np.array_equal(x.test, y.test) for x, y in pairs)
