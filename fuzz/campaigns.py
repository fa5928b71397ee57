"""Campaigns with processes of their own: killed while they write, many at once, a full disk.

A campaign is a function ``(count, seed) -> {"tried": n, "refused": n, "accepted": n, "broken": n}``; what broke may be
told in words under ``"kinds"``, and the most memory in megabytes under ``"peak"``. Those of ``tests/`` are used.
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

_FOLDER = {"kill": 100, "full": 30, "limit": 30, "race": 20, "lock": 30}  # campaigns against a model folder, and shares
_KILLED_RUNS = 6


@dataclass(frozen=True)
class Process:
    """A campaign and its share of ten thousand inputs.

    Attributes:
        share: of ten thousand inputs.
        function: the campaign.
    """

    share: int
    function: Callable[[int, int], dict[str, Any]]


def _of_folder(kind: str) -> Callable[[int, int], dict[str, Any]]:
    """Return a campaign of tests/folder_campaigns.py, which raises where a state is lost."""

    def campaign(count: int, seed: int) -> dict[str, Any]:
        said = _of_tests("folder_campaigns")(kind, count, seed)
        refused = said.get("refused", 0)
        refused = sum(refused.values()) if isinstance(refused, dict) else refused
        tried = 0 if "skipped" in said else max(count, refused)
        return {"tried": tried, "refused": refused, "accepted": tried - refused, "broken": 0}

    return campaign


def _of_runs(count: int, seed: int) -> dict[str, Any]:
    """Kill runs as tests/kill_run.py does; all that end have equal numbers."""
    said = _of_tests("kill_run")(count, seed)
    return {"tried": said["kills"], "accepted": said["kills"], "broken": int(not said["equal"])}


def _of_tests(module: str) -> Callable[..., dict[str, Any]]:
    tests = str(Path(__file__).parent.parent / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)
    found: Callable[..., dict[str, Any]] = importlib.import_module(module).campaign
    return found


CAMPAIGNS: dict[str, Process] = {
    **{f"model-{kind}": Process(share, _of_folder(kind)) for kind, share in _FOLDER.items()},
    "run-kill": Process(_KILLED_RUNS, _of_runs),
}


def carry_out(name: str, count: int, seed: int) -> Counts:
    """Run a campaign; one that fails itself has broken."""
    start, line = time.monotonic(), f"python -m fuzz --target {name} --seed {seed} --count {count}"
    try:
        said = CAMPAIGNS[name].function(count, seed)
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
