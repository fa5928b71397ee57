"""Seeded mutators: from a sound input and a random generator to one that is broken in a way that can be made again."""

from __future__ import annotations

import copy
import functools
import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from zipfile import BadZipFile

__all__ = ["ODD", "Mutator", "change_bytes", "change_json", "change_json_file", "change_text", "else_bytes", "flip"]

Mutator = Callable[[Random, bytes], bytes]

NUMBERS = (
    *(b"0", b"-1", b"1", b"-0.0", b"2", b"1e-320", b"1e308", b"1e309", b"-1e309", b"nan", b"NaN", b"inf", b"-Infinity"),
    *(b"2147483648", b"-9223372036854775809", b"18446744073709551616", b"1000000000000", b"0x10", b"1_000", b"1e", b""),
    *(b"9" * 400, b"7" * 5000, b"0." + b"3" * 3000, "１２".encode(), "٣".encode(), b"1,5", b" 1", b"true", b"null"),
)
ODD = (
    *(b"", b" ", b"\0", b"a\0b", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3\x28", b"\xf4\x90\x80\x80"),
    *(b"\x1b[31mred\x1b[0m", b"\x1b]0;title\x07", b"\x9b2J", b"\r", b"\n", b"\x0b", b"\x85", b"\x7f", b"\x08\x08"),
    *("é".encode(), "e\u0301".encode(), "\u202eevil".encode(), "\u2028".encode(), "\ufeff".encode(), "😀".encode()),
    *(b'"', b"'", b'""', b'"unclosed', b",", b";", b"\t", b"|", b"\\", b"/", b"../../etc/passwd", b"C:\\nul", b"~"),
    *(b"=1+1", b"%s%n", b"{0.__class__}", b"$(id)", b"<script>alert(1)</script>", b"__proto__", b"x" * 70_000),
    *(b"None", b"[red]", b"[/]", b"id", b"label", b"#", b"- -", b"[" * 3000, b"{" * 2000, b"(" * 2000),
)
_DEEP = ("@deep list@", "@deep map@", "@digits@", "@surrogate@", "@huge@", "@bare nan@")
_RAW = {
    "@deep list@": "[" * 100_000 + "]" * 100_000,
    "@deep map@": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "@digits@": "9" * 5000,
    "@surrogate@": '"\\ud800"',
    "@huge@": "1e400",
    "@bare nan@": "NaN",
}
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e308, 10**12, 2**31, 2**63, 2**64, -(2**63), 10**30),
    *(
        "",
        "x",
        "0",
        "-1",
        "000001",
        "999999",
        "../..",
        "/",
        "\0",
        "\x1b[31m",
        "é",
        "e\u0301",
        "\u202e",
        "a" * 3000,
        "NaN",
    ),
    *([], {}, [[]], [None], [0], [1, 2, 3], ["x"], {"": 0}, {"x": {}}, [[1, 2], [3]], [1e308, -1e308], [True], "afa"),
    *_DEEP,
)


def else_bytes(change: Mutator) -> Mutator:
    """Change bytes where data that were changed before have no such structure any more."""

    @functools.wraps(change)
    def changed(rng: Random, data: bytes) -> bytes:
        try:
            return change(rng, data)
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            SyntaxError,
            RecursionError,
            struct.error,
            BadZipFile,
        ):
            return change_bytes(rng, data)

    return changed


def change_bytes(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Change bytes without knowing what they mean, at a few places."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        mutator = rng.choice((*_BYTES, _splice(others)) if others else _BYTES)
        data = mutator(rng, data)
    return data


def flip(rng: Random, data: bytes) -> bytes:
    """Turn over single bits; the length stays."""
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 32))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _early(rng: Random, data: bytes) -> bytes:
    """Change the first bytes, where most formats say what follows."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        if changed:
            changed[rng.randrange(min(64, len(changed)))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.7 else data[rng.randrange(len(data) + 1) :]


def _drop(rng: Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _double(rng: Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 2, 20)) + data[end:]


def _insert(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return (
        data[:at] + rng.choice((rng.choice(ODD), rng.choice(NUMBERS), rng.randbytes(rng.randrange(1, 40)))) + data[at:]
    )


def _zero(rng: Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + bytes([rng.choice((0, 255))]) * (end - start) + data[end:]


def _front(rng: Random, data: bytes) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0" * 8, b"\x1f\x8b", b"PK\3\4", b"\x80\x04")) + data


def _whole(rng: Random, data: bytes) -> bytes:
    """Put something else in the place of everything."""
    return rng.choice((b"", b"\0" * 100, rng.choice(ODD), rng.randbytes(300), data.decode("latin-1").encode("utf-16")))


def _number(rng: Random, data: bytes) -> bytes:
    """Put an extreme number in the place of one that is written in digits."""
    window = rng.randrange(max(1, len(data) - 4000))
    found = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", data[window : window + 4000]))
    if not found:
        return flip(rng, data)
    match = rng.choice(found)
    return data[: window + match.start()] + rng.choice(NUMBERS) + data[window + match.end() :]


def _splice(others: Sequence[bytes]) -> Mutator:
    def splice(rng: Random, data: bytes) -> bytes:
        other = rng.choice(others)
        return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]

    return splice


def _span(rng: Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 8, 64, 1000)))


_BYTES: tuple[Mutator, ...] = (flip, flip, _early, _cut, _drop, _double, _insert, _zero, _front, _whole, _number)


def change_text(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Change lines, words and numbers of a text; sometimes single bytes."""
    if rng.random() < 0.2:
        return change_bytes(rng, data, others)
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice((_number, _number, _word, _word, _lines, _lines, _newlines, _separators, _insert))(rng, data)
    return data


def _word(rng: Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"[^\s,:;\"'\[\]{}]+", data[:20_000]))
    if not found:
        return _insert(rng, data)
    match = rng.choice(found)
    new = rng.choice(ODD) if rng.random() < 0.7 else rng.choice(found).group()
    return data[: match.start()] + new + data[match.end() :]


def _lines(rng: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        lines[a], lines[b] = lines[b], lines[a]
    elif what == 1:
        lines.insert(b, lines[a])
    elif what == 2:
        del lines[min(a, b) : max(a, b)]
    elif what == 3:
        lines[a] = rng.choice(
            (b"", b",", lines[a] + b",", lines[a][:-1], lines[a] * 2, b" " + lines[a], rng.choice(ODD))
        )
    else:
        lines = lines[:1]
    return b"\n".join(lines)


def _newlines(rng: Random, data: bytes) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"", b"\0\n", b"\x85", b"\n\r")))


def _separators(rng: Random, data: bytes) -> bytes:
    old, new = rng.choice(((b",", b";"), (b",", b"\t"), (b",", b",,"), (b".", b","), (b":", b"="), (b" ", b"\t")))
    return data.replace(old, new, rng.choice((1, -1)))


@else_bytes
def change_json_file(rng: Random, data: bytes) -> bytes:
    """Change a file of JSON: mostly its values, else its text."""
    if rng.random() < 0.2:
        return change_text(rng, data)
    return change_json(rng, json.loads(data)).encode("utf-8", "surrogateescape")


def change_json(rng: Random, value: Any) -> str:
    """Return JSON in which some values are of another kind, missing, doubled, extreme or deep; or broken as text."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _change_value(rng, value)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    for mark, raw in _RAW.items():
        text = text.replace(json.dumps(mark), raw)
    if rng.random() < 0.1:
        text = change_text(rng, text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogateescape")
    return text


def _change_value(rng: Random, value: Any) -> Any:
    """Change one node, found by going down at random."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        what = rng.random()
        if what < 0.12:
            del value[key]
        elif what < 0.2 and isinstance(value, dict):
            value[str(rng.choice(_VALUES))] = value.pop(key)
        elif what < 0.2:
            value.insert(key, value[key])  # type: ignore[union-attr]
        else:
            value[key] = _change_value(rng, value[key])
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice((value + 1, value - 1, -value, value * 10**6, float(value), str(value), [value]))
    return copy.deepcopy(rng.choice(([value], {"x": value}, *_VALUES)))
