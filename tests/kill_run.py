"""Runs that are killed; the numbers must come out the same.

First once in each stage, when its file appears, then at random moments, two of them in one folder at a time.

    python kill_run.py COUNT SEED

The children are forked from a process that has run once, so that everything is loaded once.
"""

import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sklearn import datasets

import faverage.vision as vision
from faverage.experiment import RunConfig, report, run
from faverage.vision import training
from helpers_run import few_digits, numbers

MOMENTS = ("base-checkpoint.safetensors", "features", "vote-")
SETTINGS = {"epochs": 2, "methods": "prototypes,vote,arithmetic", "jobs": 1, "device": "cpu"}


def campaign(count: int, seed: int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Kill runs at all ``MOMENTS`` and ``count`` times more, then let one end; compare it with one that was left alone.

    A run that was killed at one of the moments is started again, and must end. After that, two processes run into one
    folder; one of them is killed at a random moment, half of the time the other one, too.
    Where results are there then, they are compared, and the folder is emptied.

    Returns:
        ``kills`` (after those of the moments), ``ended`` (how many runs got to the end before the last one), ``equal``
        (whether all of those and the last one had the numbers of the one left alone) and ``seconds`` (of one run).
    """
    import torch

    torch.set_num_threads(1)
    config, rng = RunConfig.build("digits", None, settings or SETTINGS), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, out = Path(folder) / "whole", Path(folder) / "out"
        whole.mkdir()
        _run(config, whole)
        expected = numbers(whole)
        out.mkdir()
        start = time.monotonic()
        _wait([_child(config, out)])
        seconds = time.monotonic() - start
        equal = numbers(out) == expected
        _empty(out)
        kills = ended = 0
        for moment in MOMENTS:
            child = _child(config, out)
            while not list(out.glob(f"work/*/{moment}*")):
                assert os.waitpid(child, os.WNOHANG) == (0, 0), f"a run ended without {moment}"
                time.sleep(0.002)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert not (out / "results.json").exists(), f"{moment} came with the results"
            _wait([_child(config, out)])
            equal = equal and numbers(out) == expected
            _empty(out)
        while kills < count:
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
                _empty(out)
        _wait([_child(config, out)])
        equal = equal and numbers(out) == expected
        return {"kills": kills, "ended": ended, "equal": equal, "seconds": seconds}


def _child(config: RunConfig, out: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _run(config, out)
            code = 0
        finally:
            os._exit(code)
    return pid


def _run(config: RunConfig, out: Path) -> None:
    """Run on few digits, with a checkpoint after every epoch and without figures, which take two seconds each."""
    datasets.load_digits = few_digits
    vision.train_base = functools.partial(training.train_base, checkpoint_seconds=0)
    report.draw_figures = lambda _: {}
    run(config, out)


def _empty(out: Path) -> None:
    for file in sorted(out.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()


def _wait(children: list[int]) -> None:
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0, "a run that was left alone failed"


if __name__ == "__main__":
    print(json.dumps(campaign(int(sys.argv[1]), int(sys.argv[2]))))
