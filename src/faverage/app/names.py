"""Names of classes as people type them, and the error that is meant for people."""

from __future__ import annotations

import unicodedata

__all__ = ["BusyError", "ModelError", "clean_name", "pictures_of"]

LONGEST = 80
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # they reorder the text around them


class ModelError(ValueError):
    """What a person can put right: a name, a picture, a folder. The message says what to do."""


class BusyError(ModelError):
    """Another process holds the model: try again in a moment."""


def clean_name(name: str) -> str:
    r"""Return the name of a class in its one spelling: composed characters, single blanks, 1 to 80 characters.

    Names are labels and never become part of a path, so slashes and dots are fine.

    >>> clean_name("  red\tpanda ")
    'red panda'
    >>> clean_name("a\x00b")
    Traceback (most recent call last):
    faverage.app.names.ModelError: the name 'a\x00b' has a character that cannot be shown ('\x00'): leave it out
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


def pictures_of(number: int) -> str:
    """Return a number of pictures in words.

    >>> pictures_of(1), pictures_of(5)
    ('1 picture', '5 pictures')
    """
    return f"{number:,} picture{'' if number == 1 else 's'}"
