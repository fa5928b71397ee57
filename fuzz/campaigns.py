"""Campaigns with processes of their own: killed while they write, many at once, a full disk.

A campaign is a function ``(count, seed) -> {"tried": n, "refused": n, "accepted": n, "broken": n}``; what broke may be
told in words under ``"kinds"``, and the most memory in megabytes under ``"peak"``. Put it into ``CAMPAIGNS``, as
``Process(share, "module:function")``; modules of ``tests/`` can be named.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.target import Counts, Finding

__all__ = ["CAMPAIGNS", "Process", "carry_out"]


@dataclass(frozen=True)
class Process:
    """A campaign and its share of ten thousand inputs.

    Attributes:
        share: of ten thousand inputs.
        what: the function, or where it is: ``module:function``.
    """

    share: int
    what: str | Callable[[int, int], dict[str, Any]]

    def function(self) -> Callable[[int, int], dict[str, Any]]:
        """The function itself."""
        if callable(self.what):
            return self.what
        tests = str(Path(__file__).parent.parent / "tests")
        if tests not in sys.path:
            sys.path.insert(0, tests)
        module, _, name = self.what.partition(":")
        found: Callable[[int, int], dict[str, Any]] = getattr(importlib.import_module(module), name)
        return found


CAMPAIGNS: dict[str, Process] = {}


def carry_out(name: str, count: int, seed: int) -> Counts:
    """Run a campaign; one that fails itself has broken."""
    start, line = time.monotonic(), f"python -m fuzz --target {name} --seed {seed} --count {count}"
    try:
        said = CAMPAIGNS[name].function()(count, seed)
        kinds = [str(kind) for kind in said.get("kinds", [])]
    except Exception as error:
        said, kinds = {"tried": 1, "broken": 1}, [f"{type(error).__name__}: {error}"]
        traceback.print_exc()
    numbers = [int(said.get(key, 0)) for key in ("tried", "refused", "accepted", "broken")]
    found = Counts(name, numbers[0], numbers[0], numbers[1], numbers[2], numbers[3], float(said.get("peak", 0)))
    found.seconds = time.monotonic() - start
    kinds += ["broken"] * (found.broken - len(kinds))
    found.findings = [Finding(name, k, kind, kind, line) for k, kind in enumerate(kinds)]
    return found
