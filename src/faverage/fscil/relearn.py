"""Sessions learned again from their shots: how a learner forgets a class, and how it is built from what is stored."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from faverage.fscil.files import check_array, check_whole
from faverage.fusion import Fuser

if TYPE_CHECKING:
    from faverage.fscil.learner import FewShotLearner

__all__ = ["relearn", "restored", "shots_of"]

Array = NDArray[Any]
Shots = Mapping[Any, Array]  # label -> features of its shots (n, d)


def shots_of(learner: FewShotLearner) -> list[dict[Any, Array]]:
    """Return for each session after the base session its classes and the features of their shots."""
    number = {label: i for i, label in enumerate(learner.classes)}
    return [{label: learner.memory.shots[number[label]] for label in session} for session in learner.sessions[1:]]


def base_of(learner: FewShotLearner) -> FewShotLearner:
    """Return a learner that knows the base classes alone; it shares their arrays with ``learner``."""
    base = copy.copy(learner)
    count = len(learner.sessions[0])
    base.classes, base.sessions = learner.classes[:count], learner.sessions[:1]
    base.heads, base.prototypes = learner.heads[:1], learner.prototypes[:count]
    base.memory, base.fitted = replace(learner.memory, shots={}), None
    return base


def relearn(learner: FewShotLearner, sessions: Sequence[Shots], *, fitted: Fuser | None = None) -> FewShotLearner:
    """Return a new learner of the same base classes that learned ``sessions`` instead; ``learner`` is not changed.

    Args:
        learner: knows the base classes.
        sessions: for each session its classes and the features of their shots; sessions without a class are left out.
        fitted: the fuser of exactly these sessions; by default it is fitted here.

    Returns:
        What ``learn_session`` makes of the same features, one session after the other.
    """
    new = base_of(learner)
    sessions = [session for session in sessions if session]
    for i, session in enumerate(sessions):
        new._add_session(dict(session))
        if fitted is None and (i == len(sessions) - 1 or _settles(new)):
            new.fitted = new._fit_fuser()
    if sessions and fitted is not None:
        new.fitted = fitted
    return new


def restored(learner: FewShotLearner, sessions: Sequence[Shots], fitted: Fuser | None) -> FewShotLearner:
    """Return what ``relearn`` does, of sessions and a fuser that were read from files; ValueError unless they fit."""
    for label, shots in ((label, shots) for session in sessions for label, shots in session.items()):
        check_array(f"the shots of {label!r}", shots, None, learner.prototypes.shape[1])
        if label in learner.sessions[0]:
            raise ValueError(f"class {label!r} is a base class, and was taught")
    new = relearn(learner, sessions, fitted=fitted)
    check_whole(new)
    return new


def check_forgettable(learner: FewShotLearner, label: Any) -> None:
    """Raise ValueError unless a session brought the class."""
    if label not in learner.classes:
        raise ValueError(f"class {label!r} is not known: there is nothing to forget")
    if label in learner.sessions[0]:
        raise ValueError(f"class {label!r} is a base class: only classes that a session brought can be forgotten")


def _settles(learner: FewShotLearner) -> bool:
    """Whether a fuser keeps choices of the session before, so that every session has to be fitted in turn."""
    from faverage.fscil.fusers import METHODS
    from faverage.fusion.base import FUSERS

    name = learner.fuser.name if isinstance(learner.fuser, Fuser) else METHODS.get(learner.fuser, (learner.fuser,))[0]
    return name in FUSERS and FUSERS[name].settled is not Fuser.settled
