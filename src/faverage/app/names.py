"""Names of classes as people type them, and text as a terminal can show it."""

from __future__ import annotations

import re
import unicodedata

from faverage.errors import BusyError, ModelError

__all__ = ["BusyError", "ModelError", "check_stored", "clean_name", "pictures_of", "printable"]

LONGEST = 80
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # they reorder the text around them
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean_name(name: str) -> str:
    r"""Return the name of a class in its one spelling: composed characters, single blanks, 1 to 80 characters.

    Names are labels and never become part of a path, so slashes and dots are fine.

    >>> clean_name("  red\tpanda ")
    'red panda'
    >>> clean_name("a\x00b")
    Traceback (most recent call last):
    faverage.errors.ModelError: the name 'a\x00b' has a character that cannot be shown ('\x00'): leave it out
    """
    if not isinstance(name, str):
        raise ModelError(f"the name of a class must be text, got {type(name).__name__}")
    clean = " ".join(unicodedata.normalize("NFC", name).split())
    for character in clean:
        if unicodedata.category(character) in ("Cc", "Cs", "Cn") or character in _TURNING:
            shown = ascii(clean if len(clean) <= LONGEST else clean[:LONGEST])
            raise ModelError(f"the name {shown} has a character that cannot be shown ({character!a}): leave it out")
    if not any(unicodedata.category(character)[0] in "LNPS" for character in clean):
        raise ModelError("the name of the class is empty: give it a name of 1 to 80 characters, such as 'red panda'")
    if len(clean) > LONGEST:
        raise ModelError(f"the name '{clean[:30]}…' has {len(clean)} characters: at most {LONGEST} are allowed")
    return clean


def check_stored(name: object) -> str:
    r"""Return the name of a class that was read from a file; ValueError where it could not be shown.

    It may be spelled as ``clean_name`` would not, for instance by a version of Python that knows more characters.

    >>> check_stored("a\x1b[2J")
    Traceback (most recent call last):
    ValueError: the name of a class is 'a\x1b[2J'
    """
    fine = isinstance(name, str) and 0 < len(name) <= 4 * LONGEST
    if not fine or any(unicodedata.category(c) in ("Cc", "Cs") or c in _TURNING for c in str(name)):
        raise ValueError(f"the name of a class is {str(name)[:LONGEST]!a}")
    return str(name)


def printable(text: str) -> str:
    r"""Return text for a terminal: what would steer it, or cannot be written, becomes an escape as JSON has them.

    >>> print(printable("red\x1b[31m\npanda"))
    red\u001b[31m
    panda
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def pictures_of(number: int) -> str:
    """Return a number of pictures in words.

    >>> pictures_of(1), pictures_of(5)
    ('1 picture', '5 pictures')
    """
    return f"{number:,} picture{'' if number == 1 else 's'}"
