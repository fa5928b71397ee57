"""The command ``faverage run`` in this process, and drawn photos with every oddity that real ones have."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from faverage.cli.commands import app
from helpers_data import put

ODD = ["a b", "c\nd", "é<b>&|\\_$%#{}", "x`*\"'", "\x1b[31mred", "zz"]
QUICK = "backbone: tiny\nepochs: 1\nbatch_size: 16\nmethods: [prototypes, afa]\njobs: 1\n"


FAST = ("digits", "--epochs", 1, "--methods", "prototypes,vote", "--jobs", 1)


def command(*arguments: object) -> Any:
    return invoke("run", *arguments)


def invoke(*arguments: object) -> Any:
    """Run ``faverage``; a traceback is never the answer to a person's mistake."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def said(result: Any) -> str:
    return " ".join(result.stderr.split())


@functools.cache
def few_digits(step: int = 4) -> Any:
    """Return every fourth of scikit-learn's digits, for runs that need not be good."""
    digits = load_digits()
    return type(digits)(**{name: digits[name][::step] for name in ("data", "images", "target")})


def photo(colour: tuple[int, int, int], side: int, mode: str = "RGB", seed: int = 0) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 30, (side, side + 3, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise + np.array(colour, np.uint8)).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


def odd_photos(root: Path, each: int = 8) -> Path:
    """Classes with odd names; photos of many sizes, grey, CMYK, one pixel, cut off; and files that are no photos."""
    for c, name in enumerate(ODD):
        colour = (40 * c, 220 - 40 * c, 90 * c % 220)
        for i in range(each):
            mode = {1: "L", 2: "CMYK"}.get(i, "RGB")
            put(root / name / f"{i}.jpg", photo(colour, 20 + 7 * c + i, mode, 100 * c + i))
        put(root / name / "notes.txt", "no photo")
    one = io.BytesIO()
    Image.new("RGB", (1, 1), (0, 220, 0)).save(one, "PNG")
    put(root / ODD[0] / "one pixel.png", one.getvalue())
    put(root / ODD[1] / "cut.jpg", photo((40, 180, 90), 40)[:500])
    put(root / "readme.md", "no class")
    return root


def numbers(out: Path) -> dict:
    """The results of a run without times."""
    methods = json.loads((out / "results.json").read_text())["methods"]
    for method in methods.values():
        del method["costs"], method["base"]
        for session in method["sessions"]:
            del session["seconds"], session["learn_seconds"]
    return methods


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def ready(path: Path, **changes: Any) -> Path:
    """A small file of ready features: four base classes, five new ones."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(9, 8))
    labels = {"test": np.arange(36) % 9, "novel": 4 + np.arange(25) % 5, "base_memory": np.arange(20) % 4}
    data: dict[str, Any] = {name: centres[y] + rng.normal(size=(len(y), 8)) for name, y in labels.items()}
    data |= {f"{name}_labels": y for name, y in labels.items()}
    data |= {"base_prototypes": centres[:4], "base_head_weight": centres[:4], "base_head_bias": np.zeros(4)}
    np.savez(path, **{name: value for name, value in (data | changes).items() if value is not None})
    return path


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with some flipped, cut off, left out, put in, or written over."""
    place, length = int(rng.integers(len(data) or 1)), int(rng.integers(1, 40))
    kind = rng.integers(6)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + data[place + length :]
    if kind == 2:
        return data[:place] + rng.bytes(length) + data[place:]
    if kind == 3:
        odd = [
            b"[" * 5000,
            b"{" * 5000,
            b"9" * 5000,
            b'"\\ud800"',
            b"null",
            b"NaN",
            b"-1",
            b"[]",
            b"{}",
            b"\0",
            b"1e999",
        ]
        return data[:place] + odd[rng.integers(len(odd))] + data[place + length :]
    changed = bytearray(data)
    for i in rng.integers(0, len(data) or 1, 1 if kind == 4 else length):
        changed[i : i + 1] = rng.bytes(1)
    return bytes(changed)
