"""The rivals of the paper's tables, one file each, behind the learner's verbs and under one protocol."""

from faverage.rivals.cec import CEC
from faverage.rivals.eeil import EEIL
from faverage.rivals.fact import FACT
from faverage.rivals.lucir import LUCIR
from faverage.rivals.rival import Rival
from faverage.rivals.sppr import SPPR

__all__ = ["CEC", "EEIL", "FACT", "LUCIR", "RIVALS", "SPPR", "Rival", "get_rival"]

RIVALS: dict[str, type[Rival]] = {rival.name: rival for rival in (CEC, EEIL, LUCIR, SPPR, FACT)}


def get_rival(name: str) -> type[Rival]:
    """Return the class of a rival by its name.

    >>> get_rival("lucir").name
    'lucir'
    """
    if name not in RIVALS:
        raise ValueError(f"unknown rival {name!r}: choose from {', '.join(RIVALS)}")
    return RIVALS[name]
