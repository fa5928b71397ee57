"""Campaigns against the folder of a model: killed writers, full disks, writers at the same time, a lock that is held.

    python folder_campaigns.py kill 50            kinds: kill, full, limit, race, lock
    python folder_campaigns.py kill 50 SEED MODEL
    python folder_campaigns.py answer             reads [kind, count, seed, model] in lines of JSON

After every blow the folder must hold the state before the change or the one after it. The changes go round: teach a
class, rename it, merge another model, forget a base class, and undo all four; so the classes of every version are
known. Children are forked, so that torch is loaded once.
"""

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest.mock import patch

import torch

from faverage.app.model import Model, ModelError
from faverage.app.names import BusyError
from faverage.fscil import FewShotLearner
from helpers_model import learner_of_shapes, pictures

IMAGES = pictures("cross", 2)
BASE = ["bar", "frame", "square"]
ROUND = ("teach", "rename", "merge", "forget", "undo", "undo", "undo", "undo")


def campaign(kind: str, count: int, seed: int = 0, folder: Path | None = None) -> dict:
    """Return what happened; AssertionError where a folder holds anything but the old or the new state.

    Args:
        kind: ``kill``: a writer is killed; ``full``: its disk is full; ``limit``: its files may not grow; ``race``: two
            processes change the model at once; ``lock``: another process holds the lock.
        count: of blows; of changes of each process, in a race.
        seed: of their moments.
        folder: a model of three base classes that nothing was taught; by default one is made.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        if folder is None:
            folder = Model.create(Path(place) / "model", learner_of_shapes(), side=16, device="cpu").folder
        eyes = Model.load(folder, device="cpu").learner.backbone
        global other
        other = Model.create(Path(place) / "other", FewShotLearner(eyes.model, device="cpu"), side=16, device="cpu")
        other.teach("merged", pictures("stripes 1", 2))
        return {"kind": kind, **KINDS[kind](Path(folder), count, random.Random(seed))}


other: Model  # what is merged


def due(version: int) -> str:
    """Return the name of the change that is due at a version of the model."""
    return ROUND[(version - 1) % len(ROUND)]


def change(model: Model) -> str:
    """Make the change that is due; return its name."""
    version = model.version
    kind, start = due(version), version - (version - 1) % len(ROUND)
    if kind == "teach":
        model.teach(f"class {start}", IMAGES)
    elif kind == "rename":
        model.rename(f"class {start}", f"renamed {start}")
    elif kind == "merge":
        model.merge(other)
    elif kind == "forget":
        model.forget("square")
    else:
        model.undo()
    return kind


def expected(version: int) -> list[str]:
    """Return the classes of a version of the model."""
    step = (version - 1) % len(ROUND)
    name = f"{'class' if step in (1, 7) else 'renamed'} {version - step}"
    new = [] if step == 0 else [name, "merged"] if step in (3, 4, 5) else [name]
    return [*(BASE[:2] if step == 4 else BASE), *new]


def check(folder: Path, *versions: int) -> int:
    """Return the version of a folder that must be one of ``versions`` and know just what belongs to it."""
    model = Model.load(folder, device="cpu")
    version, names = model.version, [c.name for c in model.classes()]
    assert version in versions, f"version {version}, expected one of {versions}"
    assert names == expected(version), f"version {version} holds {names}"
    assert len(model.predict(IMAGES)[0].top) == len(names)
    return version


def kill(folder: Path, count: int, rng: random.Random) -> dict:
    """A writer is killed at a random moment of a change, of each kind by turns."""
    model, length = Model.load(folder, device="cpu"), dict.fromkeys(ROUND, 0.0)
    for _ in range(2 * len(ROUND)):  # the second time, everything is loaded
        start = time.monotonic()
        done = change(model)
        length[done] = time.monotonic() - start
    between, version, hit = 0, model.version, dict.fromkeys(length, 0)
    for i in range(count):
        aim = list(length)[i % len(length)]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            model = Model.load(folder, device="cpu")
            while due(model.version) != aim:
                change(model)
            while True:
                os.write(writer, b"%d\n" % model.version)
                change(model)
        os.close(writer)
        said = os.read(reader, 100)  # it is loaded and begins
        time.sleep(rng.uniform(0, 1.1 * length[aim]))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while part := os.read(reader, 1000):
            said += part
        os.close(reader)
        reached = int(said.split()[-1])
        hit[due(reached)] += 1
        left = len(list((folder / "states").iterdir()))
        version = check(folder, reached, reached + 1)
        between += left > len(json.loads((folder / "model.json").read_text())["states"])
    seconds = {kind: round(took, 3) for kind, took in length.items()}
    return {"kills": count, "in the middle": between, "during": hit, "version": version, "seconds": seconds}


def limit(folder: Path, count: int, rng: random.Random) -> dict:
    """No file may grow beyond a random size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def blow(model: Model) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.choice([rng.randrange(3000), rng.randrange(40_000)]), before[1]))
        try:
            change(model)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return _refused(folder, count, blow)


def full(folder: Path, count: int, rng: random.Random) -> dict:
    """The disk has a random room left; skipped where no small one can be mounted."""
    with tempfile.TemporaryDirectory() as place:
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return {"skipped": str(error)}
        try:
            inside = Path(place) / "model"
            subprocess.run(["cp", "-r", folder, inside], check=True)
            ballast = Path(place) / "ballast"

            def blow(model: Model) -> None:
                room = 4096 * rng.randrange(10)
                with ballast.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, os.statvfs(place).f_bavail * 4096 - room)
                try:
                    change(model)
                finally:
                    ballast.unlink()

            return _refused(inside, count, blow)
        finally:
            subprocess.run(["umount", place], check=True)


def _refused(folder: Path, count: int, blow) -> dict:  # type: ignore[no-untyped-def]
    model = Model.load(folder, device="cpu")
    words: dict[str, int] = {}
    made = 0
    for _ in range(count):
        before = model.version
        try:
            blow(model)
            made += 1
        except ModelError as error:
            assert "the model is as it was" in str(error)
            found = str(error).split(" (", 1)[1].split("):")[0]
            words[found] = words.get(found, 0) + 1
            assert check(folder, before) == model.version
            change(model)  # there is room again
        assert check(folder, before + 1) == model.version
    return {"blows": count, "changes made": made, "refused": words}


def race(folder: Path, count: int, rng: random.Random) -> dict:
    """Two processes make random changes."""
    start, children = Model.load(folder, device="cpu").version, []
    for name in "ab":
        reader, writer = os.pipe()
        child, seed = os.fork(), rng.random()
        if child == 0:
            model, own = Model.load(folder, device="cpu"), random.Random(f"{seed} {name}")
            for i in range(count):
                try:
                    kind = own.choice(["teach", "teach", "merge", "forget", "undo"])
                    if kind == "teach":
                        model.teach(f"{name}{i}", pictures("stripes 2", 1, seed=1000 * ord(name) + i))
                    elif kind == "merge":
                        model.merge(other)
                    elif kind == "forget":
                        model.forget(own.choice([c.name for c in model.classes()][len(BASE) :] or ["nothing"]))
                    else:
                        model.undo()
                    os.write(writer, b"+")
                except ModelError as error:  # the other one was quicker, or there is nothing yet
                    said = str(error)
                    os.write(writer, b"-" if "does not know" in said or "nothing to undo" in said else b"!")
            os._exit(0)
        os.close(writer)
        children.append((child, reader))
    said = b""
    for child, reader in children:
        while part := os.read(reader, 1000):
            said += part
        assert os.waitpid(child, 0)[1] == 0 and b"!" not in said
    model = Model.load(folder, device="cpu")
    assert model.version == start + said.count(b"+"), (model.version, start, said)
    assert len(model.predict(IMAGES)[0].top) == len(model.classes())
    return {"changes": said.count(b"+"), "refused": said.count(b"-")}


def lock(folder: Path, count: int, rng: random.Random) -> dict:
    """Another process holds the lock for a while; a change waits for it, or is refused in words and changes nothing."""
    model, waited, made, busy = Model.load(folder, device="cpu"), 0.2, 0, 0
    for _ in range(count):
        reader, writer = os.pipe()
        held, child = rng.choice([0.0, 0.05, 1.0]), os.fork()
        if child == 0:
            handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(writer, b"+")
            time.sleep(held)
            os._exit(0)
        os.read(reader, 1)
        before, start = model.version, time.monotonic()
        with patch("faverage.app.folder.LOCK_SECONDS", waited):
            try:
                change(model)
                made += 1
            except BusyError:
                busy += 1
                assert time.monotonic() - start < waited + 2 and check(folder, before) == model.version
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    check(folder, model.version)
    return {"changes": made, "refused": busy}


KINDS = {"kill": kill, "full": full, "limit": limit, "race": race, "lock": lock}


def answer() -> None:
    """Carry out campaigns as lines of JSON ask for them, ``[kind, count, seed, folder]``; one process, one import."""
    own = os.getpid()
    for line in sys.stdin:
        kind, count, seed, folder = json.loads(line)
        try:
            found = campaign(kind, count, seed, Path(folder))
        except Exception:
            if os.getpid() != own:  # a child that failed, which must not answer
                os._exit(1)
            found = {"broken": traceback.format_exc()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["answer"]:
        sys.exit(answer())
    given = [int(text) for text in sys.argv[2:4]]
    print(json.dumps(campaign(sys.argv[1], *given, folder=Path(sys.argv[4]) if len(sys.argv) > 4 else None)))
