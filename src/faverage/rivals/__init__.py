"""The rivals of the paper's tables and of its related work, one file each, behind the learner's verbs."""

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
from faverage.rivals.savc import SAVC
from faverage.rivals.sppr import SPPR
from faverage.rivals.topic import TOPIC

__all__ = [
    "CEC",
    "CFSCIL",
    "EEIL",
    "FACT",
    "IDLVQ",
    "LUCIR",
    "RIVALS",
    "SAVC",
    "SPPR",
    "TOPIC",
    "Rival",
    "get_rival",
    "register_rival",
]

RIVALS: Registry[type[Rival]] = Registry("rival", named=True)
"""Every rival by its name: a dict of classes."""
R = TypeVar("R", bound=type[Rival])


def register_rival(name: str) -> Callable[[R], R]:
    """Class decorator: make a rival known to ``get_rival`` and to the methods of a run.

    >>> @register_rival("nothing")
    ... class Nothing(Rival):
    ...     recipes = {"shared": {}}
    >>> get_rival("nothing").name
    'nothing'
    >>> RIVALS.unregister("nothing")
    """
    return RIVALS.register(name)


# those of the paper's tables in its order, then those that it names, then a later one
for _rival in (LUCIR, EEIL, SPPR, CEC, FACT, TOPIC, IDLVQ, CFSCIL, SAVC):
    register_rival(_rival.name)(_rival)


def get_rival(name: str) -> type[Rival]:
    """Return the class of a rival by its name.

    >>> get_rival("lucir").name
    'lucir'
    """
    return RIVALS.get(name)
