"""Mutators that know a format, so that a change gets past its first check: safetensors, npz, zip, png, parquet."""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import zipfile
import zlib
from random import Random
from typing import Any

from fuzz.mutate import ODD, change_bytes, change_json, else_bytes, flip

__all__ = ["change_npz", "change_parquet", "change_png", "change_tensors", "change_zip"]

Tensors = dict[str, tuple[str, list[int], bytes]]  # by name: type, shape, data


def split_tensors(data: bytes) -> tuple[dict[str, str], Tensors]:
    """Return the words in the header of a sound safetensors file, and its tensors."""
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    words = header.pop("__metadata__", {})
    parts = {name: (about["dtype"], about["shape"], about["data_offsets"]) for name, about in header.items()}
    return words, {name: (kind, shape, body[a:b]) for name, (kind, shape, (a, b)) in parts.items()}


def join_tensors(words: dict[str, str], tensors: Tensors) -> bytes:
    """Return a safetensors file."""
    header: dict[str, Any] = {"__metadata__": words} if words else {}
    at = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


@else_bytes
def change_tensors(rng: Random, data: bytes) -> bytes:
    """Change a safetensors file: its configuration, names, shapes, types, numbers, offsets or bytes."""
    words, tensors = split_tensors(data)
    what = rng.random()
    if what < 0.4 and "faverage" in words:
        header = json.loads(words["faverage"])
        if rng.random() < 0.8:
            inner = change_json(rng, header.pop("config"))
            text = json.dumps({**header, "config": "@config@"}).replace('"@config@"', inner)
        else:
            text = change_json(rng, header)
        return join_tensors({"faverage": text.encode("utf-8", "replace").decode()}, tensors)
    if what < 0.75 and tensors:
        for _ in range(rng.choice((1, 1, 2))):
            if tensors:
                _change_tensor(rng, tensors, rng.choice(list(tensors)))
        return join_tensors(words, tensors)
    if what < 0.85:
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        raw = change_json(rng, header).encode("utf-8", "surrogateescape")
        return struct.pack("<Q", len(raw)) + raw + data[8 + length :]
    if what < 0.9:
        return struct.pack("<Q", rng.choice((0, 1, 7, 10**12, 2**63, 2**64 - 1, len(data)))) + data[8:]
    return change_bytes(rng, data)


_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "BOOL": 1}
_FLOATS = {"F64": "<d", "F32": "<f", "F16": "<e"}


def _change_tensor(rng: Random, tensors: Tensors, name: str) -> None:
    kind, shape, data = tensors[name]
    what = rng.randrange(7)
    if what == 0:
        del tensors[name]
    elif what == 1:
        tensors[rng.choice((name + "x", "", "state.x", "shots.99", "kept.0", name.upper()))] = tensors.pop(name)
    elif what == 2:  # the same numbers in another shape
        count = len(data) // _SIZES.get(kind, 1)
        tensors[name] = (
            kind,
            rng.choice(([count], [1, *shape], [*shape, 1], shape[::-1], [1, count], [count, 1])),
            data,
        )
    elif what == 3 and kind in _SIZES:  # the same bytes as another type
        other = rng.choice(list(_SIZES))
        tensors[name] = (other, [len(data) // _SIZES[other]], data[: len(data) // _SIZES[other] * _SIZES[other]])
        if _SIZES[other] == _SIZES[kind]:
            tensors[name] = (other, shape, data)
    elif what == 4 and shape and shape[0]:  # fewer or more rows
        row = len(data) // shape[0]
        rows = rng.choice((0, 1, max(0, shape[0] - 1), shape[0] + 1, 2 * shape[0]))
        tensors[name] = (kind, [rows, *shape[1:]], (data * 3)[: rows * row] if shape[0] else b"")
    elif kind in _FLOATS and data:  # numbers that cannot be
        width = struct.calcsize(_FLOATS[kind])
        value = rng.choice((float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 6e4, -6e4))
        changed = bytearray(data)
        for _ in range(rng.choice((1, 3, len(data) // width))):
            at = rng.randrange(len(data) // width) * width
            changed[at : at + width] = struct.pack(_FLOATS[kind], value)
        tensors[name] = (kind, shape, bytes(changed))
    else:
        tensors[name] = (kind, shape, flip(rng, data))


# ---------------------------------------------------------------------------------------------------------- npz and zip


@else_bytes
def change_npz(rng: Random, data: bytes) -> bytes:
    """Change a .npz file: headers of arrays, arrays, names, or the archive around them."""
    if rng.random() < 0.25:
        return change_zip(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.choice((1, 1, 2))):
        if not members:
            break
        name, what = rng.choice(list(members)), rng.random()
        if what < 0.1:
            del members[name]
        elif what < 0.2:
            members[rng.choice((name + ".npy", name[:-4], "../x.npy", "views.npy", "\x1b[31m.npy"))] = members.pop(name)
        elif what < 0.3:
            members[name] = members[rng.choice(list(members))]
        elif what < 0.85:
            members[name] = _change_npy(rng, members[name])
        else:
            members[name] = change_bytes(rng, members[name])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((0, 8, 8, 12, 14))) as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return buffer.getvalue()


_TYPES = (
    "|O",
    "<f2",
    ">f8",
    "<f4",
    "<c16",
    "<M8[ns]",
    "<m8[s]",
    "|S5",
    "|V8",
    "<U1",
    "<U99999999",
    "|b1",
    "<i8",
    "<u8",
)


def _change_npy(rng: Random, data: bytes) -> bytes:
    """Change what the header of a .npy file says, or the numbers behind it."""
    length = struct.unpack("<H", data[8:10])[0]
    text, body = data[10 : 10 + length].decode("latin-1"), data[10 + length :]
    fields = ast.literal_eval(text)
    what = rng.randrange(8)
    if what == 0:
        shapes = ((10**12,), (2**62, 2**62), (-1,), (0,), (), (1,), fields["shape"][::-1], (*fields["shape"], 1))
        fields["shape"] = rng.choice((*shapes, (3, 10**9), (True,), (1.5,), "x", None, (2**70,)))
    elif what == 1:
        fields["descr"] = rng.choice((*_TYPES, [("a", "<f4"), ("b", "<i2")], "x", 3, "", [("a", "<f4")] * 2, "<U0"))
    elif what == 2:
        fields["fortran_order"] = rng.choice((True, 1, "x", None))
    elif what == 3:
        del fields[rng.choice(list(fields))]
    elif what == 4:
        new = rng.choice((float("nan"), float("inf"), -1.0, 0.0, 1e30))
        size = 4 if "4" in str(fields["descr"]) else 8
        changed = bytearray(body)
        for _ in range(rng.choice((1, 1, 5))):
            if len(body) >= size:
                at = rng.randrange(len(body) // size) * size
                changed[at : at + size] = struct.pack("<f" if size == 4 else "<d", new)
        body = bytes(changed)
    elif what == 5:
        deep = rng.choice(
            ("(" * 3000, "[" * 300, "-" * 5000 + "1", "1" * 5000, "__import__('os')", "{}", "{'a': 1}", "\0")
        )
        return data[:6] + rng.choice((b"\1\0", b"\3\0", b"\7\7")) + struct.pack("<H", len(deep)) + deep.encode() + body
    elif what == 6:
        return data[:8] + struct.pack("<H", rng.choice((0, 1, length + 64, 65535))) + data[10:]
    else:
        return data[: 10 + length] + change_bytes(rng, body)
    said = (repr(fields) + "\n").encode("latin-1", "replace")
    return data[:8] + struct.pack("<H", len(said)) + said + body


@else_bytes
def change_zip(rng: Random, data: bytes) -> bytes:
    """Change the headers of a zip archive: encrypted, of an odd method, with another sum, size or name."""
    changed = bytearray(data)
    central = [match.start() for match in re.finditer(b"PK\x01\x02", data)]
    local = [match.start() for match in re.finditer(b"PK\x03\x04", data)]
    what = rng.randrange(8)
    if not central or not local or what == 7:
        return change_bytes(rng, data)
    k = rng.randrange(min(len(central), len(local)))
    a, b = central[k], local[k]
    if what == 0:  # encrypted
        changed[a + 8] |= 1
        changed[b + 6] |= 1
    elif what == 1:
        method = struct.pack("<H", rng.choice((0, 1, 6, 8, 9, 12, 14, 95, 99, 65535)))
        changed[a + 10 : a + 12] = changed[b + 8 : b + 10] = method
    elif what == 2:  # a wrong sum
        changed[a + 16] ^= 0xFF
    elif what == 3:
        at = a + rng.choice((20, 24))
        changed[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1, 2**32 - 2)))
    elif what == 4:
        size = struct.unpack("<H", data[a + 28 : a + 30])[0]
        name = rng.choice((b"../" * 30, b"/etc/passwd/", b"\xff" * 80, b"a\0" * 50, b"\x1b[31m" * 20))[:size]
        changed[a + 46 : a + 46 + len(name)] = name
    elif what == 5:  # where the member begins
        changed[a + 42 : a + 46] = struct.pack("<I", rng.choice((0, 1, len(data), 2**32 - 1)))
    else:  # how many members there are
        end = data.rfind(b"PK\5\6")
        at = end + rng.choice((8, 10, 12, 16, 20))
        changed[at : at + 2] = struct.pack("<H", rng.choice((0, 1, 65535)))
    return bytes(changed)


# --------------------------------------------------------------------------------------------------------------- images


@else_bytes
def change_png(rng: Random, data: bytes) -> bytes:
    """Change a chunk of a PNG file and put its sum right, so that the decoder goes on."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    if not chunks:
        return change_bytes(rng, data)
    k, what = rng.randrange(len(chunks)), rng.randrange(5)
    kind, body = chunks[k]
    if what == 0 and len(chunks[0][1]) == 13:  # the size that it claims
        sides = (0, 1, 9, 10_000, 60_000, 2**31 - 1, 2**32 - 1)
        head = struct.pack(">II", rng.choice(sides), rng.choice(sides))
        chunks[0] = (chunks[0][0], head + chunks[0][1][8:])
    elif what == 1 and len(chunks[0][1]) == 13:  # depth, colour type, interlacing
        chunks[0] = (chunks[0][0], chunks[0][1][:8] + bytes(rng.choice((0, 1, 2, 3, 4, 6, 8, 16)) for _ in range(5)))
    elif what == 2:
        words = rng.choice((b"text\0" + b"a" * 5000, b"zip\0\0" + zlib.compress(b"\0" * 20_000_000), rng.randbytes(50)))
        chunks.insert(
            k, (rng.choice((b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"iCCP", b"gAMA", b"acTL", b"PLTE", b"XXXX")), words)
        )
    elif what == 3:
        chunks[k] = (kind, change_bytes(rng, body))
    else:
        del chunks[k]
    made = data[:8]
    for kind, body in chunks:
        made += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return made


def change_parquet(rng: Random, data: bytes) -> bytes:
    """Change columns of a table: their names, types and values; or the bytes of the file."""
    import pandas

    if rng.random() < 0.4:
        return change_bytes(rng, data)
    frame = pandas.read_parquet(io.BytesIO(data))
    column = rng.choice(list(frame.columns))
    odd = rng.choice(ODD).decode("utf-8", "replace")
    what = rng.randrange(7)
    if what == 0:
        frame = frame.rename(columns={column: odd})
    elif what == 1:
        values = (None, float("nan"), float("inf"), -1.0, 0.0, 1e300, odd, True, [0.1, 0.2], {"a": 1}, b"\xff", 10**18)
        frame[column] = [rng.choice((values[k % len(values)], values[0])) for k in [rng.randrange(99)] * len(frame)]
    elif what == 2:
        frame[column] = frame[column].astype(rng.choice(("category", "string", "object")))
    elif what == 3 and column != "id":
        frame[column] = frame[column].astype(rng.choice(("float16", "float64", "Float64", "int8", "bool", "complex64")))
    elif what == 4:
        frame[column] = pandas.to_datetime(range(len(frame)))
    elif what == 5:
        frame = frame.set_index(column)
    else:
        frame = frame.iloc[: rng.randrange(3)]
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer)
    except Exception:  # what cannot be written cannot be read
        return change_bytes(rng, data)
    return buffer.getvalue()
