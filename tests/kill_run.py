"""Runs that are killed at random moments, two of them in one folder at a time; the numbers must come out the same.

    python kill_run.py COUNT SEED

The children are forked, so that torch is loaded once.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from faverage.experiment import RunConfig, run
from helpers_run import numbers

SETTINGS = {"epochs": 3, "methods": "prototypes,vote,arithmetic", "jobs": 1, "device": "cpu"}


def campaign(count: int, seed: int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Kill runs ``count`` times, then let one end, and compare it with one that was left alone.

    Two processes run into one folder; one of them is killed at a random moment, half of the time the other one, too.
    Where results are there then, they are compared, and the folder is emptied.

    Returns:
        ``kills``, ``ended`` (how many runs got to the end before the last one), ``equal`` (whether all of those and the
        last one had the numbers of the one left alone) and ``seconds`` (of that one).
    """
    import torch

    torch.set_num_threads(1)
    config, rng = RunConfig.build("digits", None, settings or SETTINGS), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, out = Path(folder) / "whole", Path(folder) / "out"
        whole.mkdir()
        start = time.monotonic()
        _wait([_child(config, whole)])
        seconds, expected = time.monotonic() - start, numbers(whole)
        kills = ended = 0
        equal = True
        while kills < count:
            out.mkdir(exist_ok=True)
            children = [_child(config, out), _child(config, out)]
            time.sleep(rng.uniform(0, 1.2 * seconds))
            victim = rng.choice(children)
            if os.waitpid(victim, os.WNOHANG) == (0, 0):
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
                kills += 1
            children.remove(victim)
            if rng.random() < 0.5:  # the other one goes on, or dies, too
                os.kill(children[0], signal.SIGKILL)
                os.waitpid(children[0], 0)
                kills += 1
            else:
                _wait(children)
            if (out / "results.json").exists():
                ended += 1
                equal = equal and numbers(out) == expected
                for file in sorted(out.rglob("*"), reverse=True):
                    file.unlink() if file.is_file() else file.rmdir()
        out.mkdir(exist_ok=True)
        _wait([_child(config, out)])
        equal = equal and numbers(out) == expected
        return {"kills": kills, "ended": ended, "equal": equal, "seconds": seconds}


def _child(config: RunConfig, out: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            run(config, out)
            code = 0
        finally:
            os._exit(code)
    return pid


def _wait(children: list[int]) -> None:
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0, "a run that was left alone failed"


if __name__ == "__main__":
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]))))
