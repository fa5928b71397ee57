"""What a learner refuses, and how it says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from faverage.fscil.fusers import ALONE, new_fuser

if TYPE_CHECKING:
    from faverage.fscil.learner import FewShotLearner

__all__ = ["check_array", "check_labels", "check_options", "check_session", "check_shares", "check_whole"]

LARGEST = 1e12  # of any number in a learner; its square, summed over features and times the steepest τ, is still finite
STEEPEST = 1e9
MOST_STAND_INS = 100_000


def check_options(rehearsal: Any, scope: Any, temperature: float | None, stand_ins: int, hold_out: int) -> None:
    """Raise ValueError where an option of a learner cannot be."""
    if rehearsal not in (None, "residual", "shots", "left-out"):
        raise ValueError(f"rehearsal must be 'residual', 'shots' or 'left-out', got {rehearsal!r}")
    if scope not in ("all", "session"):
        raise ValueError(f"scope must be 'all' or 'session', got {scope!r}")
    if temperature is not None:
        check_steepness("temperature", temperature)
    if stand_ins < 1 or hold_out < 1:
        raise ValueError(f"stand_ins and hold_out must be at least 1, got {stand_ins!r} and {hold_out!r}")
    if stand_ins > MOST_STAND_INS:
        raise ValueError(f"stand_ins must be at most {MOST_STAND_INS:,}, got {stand_ins!r}")


def check_steepness(name: str, value: float) -> None:
    """Raise ValueError unless a number can stand before distances or cosines in a softmax."""
    if not 0 < value <= STEEPEST:
        raise ValueError(f"{name} must be a finite number > 0 (at most {STEEPEST:g}), got {value!r}")


def check_shares(*, spread: float, balance: float, calibration: float) -> None:
    """Raise ValueError where a number of the rehearsal, or the share of calibration, is out of its range."""
    for name, value, least, most in (
        ("spread", spread, 0.0, np.inf),
        ("balance", balance, 1e-6, np.inf),
        ("calibration", calibration, 0.0, 1.0),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} must lie in {least:g} … {most:g}, got {value!r}")


def check_session(known: Sequence[Any], n: int, labels: NDArray[Any]) -> list[Any]:
    """Return the classes that a session of ``n`` examples brings; ValueError unless all are new."""
    if n != len(labels) or n == 0:
        raise ValueError(f"learn_session got {n} examples and {len(labels)} labels")
    new = list(dict.fromkeys(labels.tolist()))
    for label in new:
        if label in known:
            raise ValueError(f"class {label!r} is known already; a session brings new classes only")
    return new


# Learners that were read from files -----------------------------------------------------------------------------------


def check_array(name: str, array: NDArray[Any], *shape: int | None) -> None:
    """Raise ValueError unless an array of floating-point numbers has this shape (None: at least one) and is finite."""
    sizes = zip(array.shape, shape, strict=False)
    fits = array.ndim == len(shape) and all(n > 0 if wanted is None else n == wanted for n, wanted in sizes)
    if not fits or array.dtype.kind != "f" or array.dtype.itemsize < 4:
        wanted = ", ".join("n" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be numbers of shape ({wanted}), got {array.dtype} of shape {array.shape}")
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{name} has numbers that are not finite, or far too large")


def check_labels(classes: Any, sessions: Any) -> None:
    """Raise ValueError unless these are different labels, and the numbers of them that each session brought."""
    if not isinstance(classes, list) or not all(isinstance(label, str | int | float) for label in classes):
        raise ValueError("the classes must be a list of text or numbers")
    if len(set(classes)) < len(classes) or any(isinstance(x, float) and not math.isfinite(x) for x in classes):
        raise ValueError("the classes must differ from each other")
    counts = sessions if isinstance(sessions, list) else []
    if not all(type(n) is int and n > 0 for n in counts) or sum(counts) != len(classes) or counts[:1] in ([], [1]):
        raise ValueError(f"the sessions {str(sessions)[:60]} do not bring the {len(classes)} classes")


def check_whole(learner: FewShotLearner) -> None:
    """Raise ValueError unless the parts of a learner that was read from files fit each other, and it gives answers."""
    memory, first, n, base = learner.memory, learner.heads[0], len(learner.classes), len(learner.sessions[0])
    check_array("the prototypes", learner.prototypes, n, None)
    d = learner.prototypes.shape[1]
    check_array("the weights of the base head", first.weight, base, d)  # type: ignore[union-attr]
    if hasattr(first, "bias"):
        check_array("the bias of the base head", first.bias, base)
    else:
        check_steepness("the scale of the base head", first.scale)  # type: ignore[union-attr]
    check_steepness("the temperature", learner.tau)
    check_array("the memory", memory.base, None, d)
    check_array("the residuals", memory.residuals, len(memory.base), d)
    labels = memory.base_labels
    if labels.shape != memory.base.shape[:1] or labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= base:
        raise ValueError(f"the labels of the memory must be {len(memory.base)} numbers in 0 … {base - 1}")
    if not 0 <= memory.length <= LARGEST:
        raise ValueError(f"the length of features must be a finite number, got {memory.length!r}")
    if list(memory.shots) != list(range(base, n)):
        raise ValueError(
            f"there must be shots of the classes {base} … {n - 1}, got those of {str([*memory.shots])[:60]}"
        )
    for c, shots in memory.shots.items():
        check_array(f"the shots of class {c}", shots, None, d)
    if len(learner.heads) > 1 and learner.fitted is None and learner.fuser not in ALONE:
        raise ValueError("the fuser of its sessions is missing")
    if learner.fuser not in ALONE:
        new_fuser(learner.fuser, None, learner.fuser_options, padding=learner.padding, threshold=learner.threshold)
    if not all(type(n) is int and n >= 0 for n in (learner.stand_ins, learner.hold_out, learner.seed)):
        raise ValueError("stand_ins, hold_out and seed must be whole numbers")
    _check_answers(learner)


def _check_answers(learner: FewShotLearner) -> None:
    features = learner.memory.examples()[0]
    rows = np.linspace(0, len(features) - 1, min(len(features), 32)).astype(np.int64)
    try:
        said = learner.fuse(learner.scores_of(features[rows]))
    except Exception as error:  # every fuser has its own way to fail with weights that are not its own
        raise ValueError(f"the fuser does not fit the heads: {error}") from None
    if said.shape != (len(rows), len(learner.classes)) or not np.isfinite(said).all():
        raise ValueError("its answers are not finite numbers")
