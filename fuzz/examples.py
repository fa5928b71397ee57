"""Sound inputs to begin with: a small model, a run, predictions, pictures. All are made here, with fixed seeds."""

from __future__ import annotations

import functools
import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["fuser_files", "learner_folders", "model_folder", "picture", "pictures", "predictions", "run_folder"]

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
CLASSES = ["cat", "cow", "dog"]


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="faverage-fuzz-")


def home() -> Path:
    """A folder that lasts as long as this process."""
    return Path(_home().name)


def picture(seed: int = 0, side: int = 16, colour: tuple[int, int, int] = (120, 90, 200)) -> Image.Image:
    """Return noise around a colour."""
    noise = np.random.default_rng(seed).normal(colour, 30, (side, side, 3))
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8))


def as_bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@functools.cache
def pictures() -> dict[str, bytes]:
    """Pictures of every format that Pillow writes here, and of many modes."""
    image = picture(side=24)
    grey = image.convert("L")
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "camera"
    frames: dict[str, Any] = {"save_all": True, "append_images": [picture(1, 24), picture(2, 24)]}
    wide = np.random.default_rng(0).integers(0, 2**16, (9, 11)).astype(np.uint16)
    made: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "rgb.png": (image, "PNG", {}),
        "grey.png": (grey, "PNG", {}),
        "palette.png": (image.convert("P"), "PNG", {"transparency": 3}),
        "alpha.png": (image.convert("RGBA"), "PNG", {}),
        "bit.png": (image.convert("1"), "PNG", {}),
        "deep.png": (Image.fromarray(wide), "PNG", {}),
        "animated.png": (image, "PNG", frames),
        "exif.png": (image, "PNG", {"exif": exif}),
        "rgb.jpg": (image, "JPEG", {"exif": exif}),
        "grey.jpg": (grey, "JPEG", {}),
        "cmyk.jpg": (image.convert("CMYK"), "JPEG", {}),
        "progressive.jpg": (image, "JPEG", {"progressive": True}),
        "one.gif": (image.convert("P"), "GIF", {}),
        "animated.gif": (image.convert("P"), "GIF", frames),
        "rgb.bmp": (image, "BMP", {}),
        "bit.bmp": (image.convert("1"), "BMP", {}),
        "rgb.tif": (image, "TIFF", {}),
        "deep.tif": (Image.fromarray(wide), "TIFF", {}),
        "float.tif": (grey.convert("F"), "TIFF", {}),
        "pages.tif": (image, "TIFF", {**frames, "compression": "tiff_lzw"}),
        "cmyk.tif": (image.convert("CMYK"), "TIFF", {"compression": "jpeg"}),
        "rgb.ppm": (image, "PPM", {}),
        "rgb.webp": (image, "WEBP", {"exif": exif.tobytes()}),
        "animated.webp": (image, "WEBP", frames),
        "lossless.webp": (image.convert("RGBA"), "WEBP", {"lossless": True}),
        "rgb.jp2": (image, "JPEG2000", {}),
        "rgb.ico": (image, "ICO", {}),
        "rgb.tga": (image, "TGA", {}),
        "rgb.pcx": (image, "PCX", {}),
        "rgb.eps": (image, "EPS", {}),
    }
    found = {}
    for name, (one, kind, options) in made.items():
        try:
            found[name] = as_bytes(one, kind, **options)
        except (OSError, KeyError, ValueError):  # this build of Pillow does not write it
            continue
    found["wide.png"] = as_bytes(Image.new("L", (3000, 2)), "PNG")
    return found


def scores(rows: int = 12, models: int = 3, classes: int = 3, seed: int = 0) -> NDArray[np.float32]:
    """Return probabilities ``(rows, models, classes)``."""
    drawn = np.random.default_rng(seed).dirichlet(np.ones(classes), (rows, models))
    return np.asarray(drawn, dtype=np.float32)


def predictions(folder: Path, kinds: tuple[str, ...] = ("csv", "npz", "parquet")) -> None:
    """Write predictions of three models, a, b and c, and labels."""
    given = scores(24)
    ids = [f"row {i}" for i in range(len(given))]
    labels = [CLASSES[i % 3] for i in range(len(given))]
    for k, name in enumerate("abc"):
        if "csv" in kinds:
            rows = [",".join([i, *(f"{v:.6f}" for v in row)]) for i, row in zip(ids, given[:, k], strict=True)]
            (folder / f"{name}.csv").write_text("\n".join(["id," + ",".join(CLASSES), *rows]) + "\n")
        if "npz" in kinds:
            np.savez(folder / f"{name}.npz", ids=np.array(ids), classes=np.array(CLASSES), scores=given[:, k])
        if "parquet" in kinds:
            import pandas

            columns = {"id": ids, **{c: given[:, k, j] for j, c in enumerate(CLASSES)}}
            pandas.DataFrame(columns).to_parquet(folder / f"{name}.parquet")
    lines = [f"{i},{label}" for i, label in zip(ids, labels, strict=True)]
    (folder / "labels.csv").write_text("\n".join(["id,label", *lines]) + "\n")
    if "npz" in kinds:
        np.savez(folder / "labels.npz", ids=np.array(ids), labels=np.array(labels))


@functools.cache
def fuser_files() -> dict[str, bytes]:
    """Fitted fusers of every kind, by name."""
    from faverage.fusion import fuser_names, get_fuser

    given, y = scores(60), np.arange(60) % 3
    given[np.arange(60), :, y] += 1
    given /= given.sum(2, keepdims=True)
    found = {}
    for name in fuser_names():
        file = get_fuser(name).fit(given, y).save(home() / "fuser.safetensors")
        found[name] = Path(file).read_bytes()
    given[:, 1, 0] = given[:, 2, :2] = np.nan
    tied = get_fuser("afa", structure="tied", means=("geometric", "harmonic")).fit(given, y)
    found["afa, tied"] = tied.save(home() / "fuser.safetensors").read_bytes()
    return found


@functools.cache
def learner_folders() -> dict[str, Path]:
    """Learners on disk: of features with several sessions, one that whitens, and one of two views from nothing."""
    from faverage.fscil import FewShotLearner

    rng = np.random.default_rng(0)
    means = rng.normal(0, 3, (5, 6))
    x, y = np.repeat(means, 40, 0) + rng.normal(0, 1, (200, 6)), np.repeat(list("abcde"), 40)
    found = {}
    for name, fuser, whiten in (("afa", "afa", None), ("mean", "arithmetic", None), ("whitened", "afa", 0.5)):
        learner = FewShotLearner(None, fuser, whiten=whiten).fit_base(x[:120].astype(np.float32), y[:120])
        learner.learn_session(x[120:125].astype(np.float32), y[120:125])
        learner.learn_session(x[160:165].astype(np.float32), y[160:165])
        found[name] = Path(learner.save(home() / f"learner-{name}"))
    views = {"wide": x.astype(np.float32), "narrow": x[:, :4].astype(np.float32)}
    nothing = FewShotLearner(balance=2.0)
    for c in range(3):
        nothing.learn_session(
            {view: one[40 * c : 40 * c + 4 - c] for view, one in views.items()}, [f"class {c}"] * (4 - c)
        )
    found["views"] = Path(nothing.save(home() / "learner-views"))
    return found


@functools.cache
def model_folder() -> Path:
    """A model that knows three colours, was taught two more, and can be undone."""
    from faverage.app.model import Model
    from faverage.fscil import FewShotLearner

    images = np.stack(
        [np.asarray(picture(10 * k + i, 16, c)) for k, c in enumerate(COLOURS.values()) for i in range(24)]
    )
    learner = FewShotLearner("tiny", training={"epochs": 2, "device": "cpu", "batch_size": 16})
    learner.fit_base(images, np.repeat(list(COLOURS), 24))
    folder = home() / "model"
    shown = {name: [picture(k, 16, c)] for k, (name, c) in enumerate(COLOURS.items())}
    model = Model.create(folder, learner, side=16, counts=dict.fromkeys(COLOURS, 24), thumbnails=shown, device="cpu")
    model.teach("grey", [picture(k, 16, (120, 120, 120)) for k in range(3)])
    model.teach("white", [picture(k, 16, (230, 230, 230)) for k in range(3)])
    return folder


def photos(folder: Path, classes: int = 5, each: int = 6) -> Path:
    """Write a folder of small photos with one sub-folder a class."""
    for c in range(classes):
        (folder / f"class {c}").mkdir(parents=True)
        for i in range(each):
            data = as_bytes(picture(100 * c + i, 9, (50 * c, 200 - 40 * c, 90)), "JPEG")
            (folder / f"class {c}" / f"{i}.jpg").write_bytes(data)
    return folder


@functools.cache
def run_folder() -> Path:
    """A finished run on a folder of photos, with its base session."""
    import os

    from faverage.experiment import RunConfig
    from faverage.experiment import run as carry_out

    cache, os.environ["FAVERAGE_CACHE"] = os.environ.get("FAVERAGE_CACHE"), str(home() / "cache")
    try:
        given: dict[str, Any] = {
            "data": str(photos(home() / "photos")),
            "backbone": "tiny",
            "epochs": 1,
            "batch_size": 8,
        }
        given |= {"methods": "prototypes", "jobs": 1, "shots": 2, "device": "cpu"}
        config = RunConfig.build("folder", None, given)
        carry_out(config, home() / "run", save_features=home() / "features.npz")
    finally:
        if cache is None:
            del os.environ["FAVERAGE_CACHE"]
        else:
            os.environ["FAVERAGE_CACHE"] = cache
    return home() / "run"


def mini_imagenet(root: Path) -> None:
    """Write drawings in the layout of mini-ImageNet with two zip archives: 7 classes, 3 sessions."""
    split = root / "mini_imagenet" / "split"
    split.mkdir(parents=True)
    names = {f"n{c:08d}": [f"n{c:08d}{i:08d}.jpg" for i in range(7)] for c in range(7)}
    groups = (list(names)[:3], list(names)[3:5], list(names)[5:])
    for number, group in enumerate(groups, 1):
        lines = [f"MINI-ImageNet/train/{c}/{name}" for c in group for name in names[c][:5]]
        (split / f"session_{number}.txt").write_text("\n".join(lines) + "\n")
    (split / "test.txt").write_text("\n".join(f"MINI-ImageNet/test/{c}/{n}" for c in names for n in names[c][5:]))
    for part in (0, 1):
        with zipfile.ZipFile(root / "mini_imagenet" / f"images-{part}.zip", "w") as archive:
            for c, files in names.items():
                for i, name in enumerate(files):
                    if i % 2 == part:
                        data = as_bytes(picture(int(c[1:]) * 10 + i, 6), "JPEG")
                        archive.writestr(zipfile.ZipInfo(f"images/{name}"), data)


def cifar(root: Path) -> None:
    """Write drawings in the layout of CIFAR-100: pickles of Python 2."""
    import pickle

    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    names = [f"thing {c}".encode() for c in range(7)]
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=2))
    for part, each in (("train", 8), ("test", 2)):
        data = np.random.default_rng(each).integers(0, 256, (7 * each, 3072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": [i % 7 for i in range(7 * each)]}
        (folder / part).write_bytes(pickle.dumps(content, protocol=2))
