"""A small model of drawn shapes, made once, and pictures to teach it."""

from __future__ import annotations

import io
import json
import random
import struct
from typing import Any

import numpy as np
from PIL import Image

from faverage.fscil import FewShotLearner
from helpers_vision import drawn, quick

NAMES = np.array(["square", "bar", "frame", "cross"])


def pictures(kind: str, n: int = 5, seed: int = 7, side: int = 16) -> list[Image.Image]:
    """Draw a shape of the base classes, a cross, or stripes of another kind (``stripes 0`` … ``stripes 9``)."""
    if kind.startswith("stripes"):
        which, rng = int(kind.split()[1]), np.random.default_rng(seed)
        images = rng.integers(0, 60, (n, side, side, 3)).astype(np.uint8)
        for image in images:
            image[:: 2 + which % 3, :, which % 3] = 220
            image[:, :: 2 + which // 3, (which + 1) % 3] = 120
    else:
        images, labels = drawn(4 * n, side, seed)
        images = images[NAMES[labels] == kind]
    return [Image.fromarray(image) for image in images]


def data_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def learner_of_shapes(fuser: str = "afa") -> FewShotLearner:
    images, labels = drawn(240)
    images, labels = images[labels < 3], labels[labels < 3]
    base = quick(images, labels, epochs=6)
    return FewShotLearner(base, fuser, device="cpu").fit_base(images, NAMES[labels])


ODD: list[Any] = [None, True, -1, 0, 3, 10**9, 10**30, 0.5, -1e300, float("nan"), float("inf")]
ODD += ["", "x", "\x1b[2J", [], [1], [[]], {}, {"a": 1}]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a file of JSON or safetensors with one thing wrong: its end, a byte, numbers, a tensor, a value."""
    if data[:1] == b"{":
        return json.dumps(_odd(json.loads(data), rng)).encode()
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    kind = rng.randrange(6)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        broken = bytearray(data)
        broken[rng.randrange(min(len(data), 8 + size))] ^= 1 << rng.randrange(8)
        return bytes(broken)
    if kind == 2:  # bytes of the numbers
        for _ in range(rng.choice([1, 1, 20])):
            body[rng.randrange(len(body))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    elif kind == 3:  # numbers that are not finite, negative or huge
        number = struct.pack("<f", rng.choice([float("nan"), float("inf"), -1e30, 3e38]))
        start = 4 * rng.randrange(len(body) // 4)
        body[start : start + 4] = number
    elif kind == 4:  # a tensor of another type or shape
        tensor = header[rng.choice([name for name in header if name != "__metadata__"])]
        if rng.random() < 0.5 and tensor["dtype"] in ("F32", "I64"):
            wide = {"F32": ["I32", "U32"], "I64": ["F64", "U64"]}
            tensor["dtype"] = rng.choice(wide[tensor["dtype"]])
        else:
            tensor["shape"] = rng.choice(
                [tensor["shape"][::-1], [1, *tensor["shape"]], [int(np.prod(tensor["shape"]))]]
            )
    else:
        about = json.loads(header["__metadata__"]["faverage"])
        header["__metadata__"]["faverage"] = json.dumps(_odd(about, rng))
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _odd(value: Any, rng: random.Random) -> Any:
    """Return JSON with one value, anywhere in it, replaced by an odd one, or left out."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = _odd(value[key], rng)
        return value
    return rng.choice(ODD)
