"""What a learner refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_options", "check_session", "check_shares"]


def check_options(rehearsal: Any, scope: Any, temperature: float | None, draws: int, hold_out: int) -> None:
    """Raise ValueError where an option of a learner cannot be."""
    if rehearsal not in (None, "residual", "shots", "left-out"):
        raise ValueError(f"rehearsal must be 'residual', 'shots' or 'left-out', got {rehearsal!r}")
    if scope not in ("all", "session"):
        raise ValueError(f"scope must be 'all' or 'session', got {scope!r}")
    if temperature is not None and not 0 < temperature < np.inf:
        raise ValueError(f"temperature must be a finite number > 0, got {temperature!r}")
    if draws < 1 or hold_out < 1:
        raise ValueError(f"draws and hold_out must be at least 1, got {draws!r} and {hold_out!r}")


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
