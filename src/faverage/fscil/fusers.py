"""The methods of a learner: which fuser, with which options, which rehearsal and which members."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from faverage.fscil.rehearsal import Rehearsal
from faverage.fusion import Fuser, get_fuser

__all__ = ["ALONE", "METHODS", "Members", "Method", "method_of", "new_fuser"]

Members = Literal["views", "sessions"]


class Method(NamedTuple):
    """What a name stands for in a learner.

    Attributes:
        fuser: by name, or a fuser.
        options: of the fuser.
        rehearsal: where the learner has none of its own.
        members: likewise.
    """

    fuser: str | Fuser
    options: Mapping[str, Any] = MappingProxyType({})
    rehearsal: Rehearsal = "left-out"
    members: Members = "views"


METHODS: dict[str, Method] = {
    # full matrices have more weights than a learner has examples, and took minutes to lose against tied ones
    "afa": Method("afa", {"structure": "tied"}),
    "afa-paper": Method("afa-paper", {"epochs": 40}, "shots", "sessions"),
    # two members that disagree are a tie: by the first class the paper's numbers come back, by the mean they do not
    "vote": Method("vote", {"ties": "first"}),
}
ALONE = ("no-fine-tuning", "prototypes")  # methods that are one member, without a fuser
_RULES = ("arithmetic", "geometric", "harmonic", "power", "vote")


def method_of(fuser: str | Fuser) -> Method:
    """Return what a name, or a fuser, stands for."""
    return METHODS.get(fuser, Method(fuser)) if isinstance(fuser, str) else Method(fuser)


def new_fuser(fuser: str | Fuser, before: Fuser | None, options: dict[str, Any], **padding: Any) -> Fuser:
    """Return the unfitted fuser of a method.

    Args:
        fuser: the method.
        before: the fuser so far; what it settled is kept.
        options: of the fuser.
        **padding: options of plain rules alone.
    """
    method = method_of(fuser)
    options = {**method.options, **(before.settled() if before is not None else {}), **options}
    return get_fuser(method.fuser, **({**padding, **options} if method.fuser in _RULES else options))
