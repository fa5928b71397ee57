"""The rivals of the paper's tables and later ones, one file each, behind the learner's verbs and under one protocol."""

from collections.abc import Callable
from typing import TypeVar

from faverage.registry import Registry
from faverage.rivals.cec import CEC
from faverage.rivals.cfscil import CFSCIL
from faverage.rivals.eeil import EEIL
from faverage.rivals.fact import FACT
from faverage.rivals.idlvq import IDLVQ
from faverage.rivals.lucir import LUCIR
from faverage.rivals.rival import Rival
from faverage.rivals.sppr import SPPR

__all__ = ["CEC", "CFSCIL", "EEIL", "FACT", "IDLVQ", "LUCIR", "RIVALS", "SPPR", "Rival", "get_rival", "register_rival"]

RIVALS: Registry[type[Rival]] = Registry("rival", named=True)
R = TypeVar("R", bound=type[Rival])


def register_rival(name: str) -> Callable[[R], R]:
    """Class decorator: make a rival known to ``get_rival`` and to the methods of a run."""
    return RIVALS.register(name)


for _rival in (LUCIR, EEIL, SPPR, CEC, FACT, CFSCIL, IDLVQ):  # those of the paper's tables first, in its order
    register_rival(_rival.name)(_rival)


def get_rival(name: str) -> type[Rival]:
    """Return the class of a rival by its name.

    >>> get_rival("lucir").name
    'lucir'
    """
    return RIVALS.get(name)
