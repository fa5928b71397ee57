"""Started by test_app_folder: teaches a model in child processes that are killed at random moments.

    python kill_teacher.py MODEL TIMES

The children are forked, so that torch is loaded once. A change of an odd version teaches a class that is named after
the new version, one of an even version undoes that; so the classes of every version are known.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from faverage.app.model import Model
from helpers_model import pictures


def teach_for_ever(folder: str, pipe: int) -> None:
    images = pictures("cross", 2)
    model = Model.load(folder, device="cpu")
    os.write(pipe, b"%d\n" % model.version)
    while True:
        if model.version % 2:
            model.teach(f"class {model.version + 1}", images)
        else:
            model.undo()
        os.write(pipe, b"%d\n" % model.version)


def main(folder: str, times: int) -> None:
    torch.set_num_threads(1)
    images = pictures("cross", 2)
    first = Model.load(folder, device="cpu")
    for _ in range(2):  # the second time, everything is loaded
        start = time.monotonic()
        first.teach("trial", images)
        first.undo()
        length = time.monotonic() - start
    rng = random.Random(0)
    between = 0
    for _ in range(times):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            teach_for_ever(folder, writer)
        os.close(writer)
        os.read(reader, 100)  # it is loaded and begins
        time.sleep(rng.uniform(0, 2 * length))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = b""
        while part := os.read(reader, 1000):
            said += part
        os.close(reader)
        left = list((Path(folder) / "states").iterdir())
        model = Model.load(folder, device="cpu")
        known = [int(line) for line in said.split()] or [0]
        if known[-1] and model.version not in (known[-1], known[-1] + 1):
            sys.exit(f"version {model.version} after {known[-1]} was reached")
        names = [c.name for c in model.classes()]
        expected = [] if model.version % 2 else [f"class {model.version}"]
        if names[3:] != expected or len(model.predict(images)[0].top) != len(names):
            sys.exit(f"version {model.version} holds {names}")
        between += len(left) > len(model._now.record["states"])  # killed between the state and model.json
    print(f"{times} kills, {between} of them in the middle of a change; {length:.2f} s for two changes")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
