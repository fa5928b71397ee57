"""Try broken and hostile inputs on everything that reads, and count what came of them.

    python -m fuzz                                       10,000 inputs over all targets, at most 15 minutes
    python -m fuzz --target csv --target npz --count 500
    python -m fuzz --target csv --seed 123 --only 57     one input again, with its traceback

The exit code is 1 where anything broke. Broken inputs are kept in a folder, each with the line that makes it again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz.campaigns import CAMPAIGNS, carry_out
from fuzz.engine import run_campaign, shares
from fuzz.files import file_targets
from fuzz.target import Counts, Target

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; return the exit code."""
    import torch

    torch.set_num_threads(1)  # one process a core, and forked ones must not wait for threads that they do not have
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Broken and hostile inputs for all that reads.")
    parser.add_argument("--count", type=int, default=10_000, help="inputs in all (10000)")
    parser.add_argument("--seconds", type=float, default=900, help="stop after so long (900)")
    parser.add_argument("--seed", type=int, default=0, help="of all inputs (0)")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--only", type=int, help="only the input of this number, of one target")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="targets at a time")
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="folder for broken inputs (runs/fuzz)")
    given = parser.parse_args(arguments)
    targets = all_targets()
    names = [target.name for target in targets] + list(CAMPAIGNS)
    unknown = [name for name in given.target or () if name not in names]
    if unknown:
        parser.error(f"unknown target '{unknown[0]}'; known are: {', '.join(names)}")
    if given.only is not None and len(given.target or ()) != 1:
        parser.error("--only needs one --target")
    if given.count < 1 or given.jobs < 1:
        parser.error("--count and --jobs must be at least 1")
    chosen = given.target or names
    counts = campaign(
        [target for target in targets if target.name in chosen],
        [name for name in CAMPAIGNS if name in chosen],
        **{"count": given.count, "seed": given.seed, "seconds": given.seconds, "jobs": given.jobs},
        keep=given.keep,
        only=given.only,
    )
    return show(counts, given.keep, told=given.only is not None)


def all_targets() -> list[Target]:
    """Return every target, those first that take longest."""
    from fuzz.commands import command_targets
    from fuzz.server import server_targets

    return [*server_targets(), *command_targets(), *file_targets()]


def campaign(
    targets: Sequence[Target],
    processes: Sequence[str] = (),
    *,
    count: int,
    seed: int = 0,
    seconds: float = 900,
    jobs: int = 2,
    keep: Path,
    only: int | None = None,
) -> list[Counts]:
    """Share ``count`` inputs among the targets and the campaigns with processes, and try them."""
    deadline = time.monotonic() + seconds
    weights = [*((t.name, t.share) for t in targets), *((name, CAMPAIGNS[name].share) for name in processes)]
    number = shares(weights, count)
    wanted: dict[str, Sequence[int]] = {t.name: range(number[t.name]) if only is None else [only] for t in targets}
    scratch = Path(tempfile.mkdtemp(prefix="faverage-fuzz-"))

    def done(count: Counts) -> None:
        print(f"{count.target}: {count.tried} tried, {count.broken} broken, {count.seconds:.0f} s", file=sys.stderr)

    try:
        found = run_campaign(targets, wanted, seed, scratch=scratch, keep=keep, jobs=jobs, deadline=deadline, done=done)
        for name in processes:
            if time.monotonic() < deadline:
                found.append(carry_out(name, number[name], seed))
                done(found[-1])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def show(counts: Sequence[Counts], keep: Path, *, told: bool = False) -> int:
    """Print the table and what broke; return the exit code."""
    head = ("target", "tried", "refused", "accepted", "broken", "peak MB", "seconds")
    rows = [(c.target, c.tried, c.refused, c.accepted, c.broken, f"{c.peak:.0f}", f"{c.seconds:.0f}") for c in counts]
    sums = [sum(getattr(c, name) for c in counts) for name in ("tried", "refused", "accepted", "broken")]
    peak, seconds = max((c.peak for c in counts), default=0.0), sum(c.seconds for c in counts)
    for row in (head, *rows, ("all", *sums, f"{peak:.0f}", f"{seconds:.0f}")):
        print(f"{row[0]:<12}" + "".join(f"{cell!s:>10}" for cell in row[1:]))
    left = sum(c.wanted - c.tried for c in counts)
    if left:
        print(f"Time was up: {left:,} inputs were not tried.")
    findings = [finding for c in counts for finding in c.findings]
    kinds = Counter((finding.target, finding.kind) for finding in findings)
    for (target, kind), times in kinds.most_common():
        first = next(finding for finding in findings if (finding.target, finding.kind) == (target, kind))
        print(f"\n{target}: {kind} ({times}x)\n  {first.line}")
        if told:
            print(first.why)
    if findings:
        print(f"\n{len(findings)} broken inputs of {len(kinds)} kinds are kept in {keep}")
    return 1 if any(c.broken for c in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
