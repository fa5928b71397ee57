"""The epochs of base training, and the checkpoint that lets them go on after a kill."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faverage.errors import CheckpointError, OtherTrainingError
from faverage.storage import read_tensors, write_tensors
from faverage.vision.engine.device import Store
from faverage.vision.engine.step import Step
from faverage.vision.transforms import Augment

COLUMNS = ("loss", "accuracy", "lr", "seconds")
_KIND = "BaseCheckpoint"
_HINT = "give another path, or delete the file to start anew"


class Loop:
    """Runs epochs: draws order and noise on the device, feeds the step, reads the totals once.

    Args:
        step: the training step.
        store: the images.
        labels: ``(n,)`` on the step's device.
        augment: the training transform, for its noise.
        seed: with the number of the epoch, it determines all that the epoch draws.
        rate: learning rate at a moment, in epochs.
        epochs: how many there will be, for the network to know.
        asked: the batch size that was asked for, where the network makes batches of its own.

    Every process of a team draws the same order and the same noise for whole batches, and takes its part of each.
    """

    def __init__(
        self,
        step: Step,
        store: Store,
        labels: Tensor,
        augment: Augment,
        *,
        seed: int,
        rate: Callable[[float], float],
        epochs: int = 1,
        asked: int | None = None,
    ) -> None:
        self.step, self.store, self.labels, self.augment = step, store, labels, augment
        self.seed, self.rate, self.epochs = seed, rate, epochs
        self.batch_size = len(step.labels) * step.team.size
        self.asked = asked or self.batch_size
        self.generator = torch.Generator(labels.device)
        self.on_host = labels.cpu().numpy()
        self.steps = len(self._order(0)) // self.batch_size

    def _order(self, number: int) -> Tensor:
        """Seed everything for an epoch and return its rows, one batch after the other."""
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
        torch.manual_seed(seed)  # for layers that draw on their own, such as dropout
        self.generator.manual_seed(seed)
        own = self.step.network.order(self.on_host, self.asked, np.random.default_rng(seed))
        if own is not None:
            return torch.from_numpy(np.ascontiguousarray(own).reshape(-1)).to(self.labels.device)
        return torch.randperm(len(self.labels), generator=self.generator, device=self.labels.device)

    def epoch(self, number: int, advance: Callable[[], None]) -> dict[str, float]:
        """Train for one epoch and return its row of the history."""
        begin = time.perf_counter()
        order = self._order(number)
        step, size, part = self.step, self.batch_size, len(self.step.labels)
        own = slice(step.team.rank * part, (step.team.rank + 1) * part)
        step.network.start_epoch(number, self.epochs)
        labels = self.labels[order]
        order = order if self.store.resident is not None else order.cpu()
        n = self.steps * size
        noise = self.augment.draw(n, self.generator)
        if step.network.extras:
            noise = torch.cat([noise, step.network.draw(n, self.generator)], 1)
        noise = noise.view(self.steps, size, -1)
        step.totals.zero_()
        for i in range(self.steps):
            rows = slice(i * size + own.start, i * size + own.stop)
            self.store.take(order[rows], step.batch)
            step.labels.copy_(labels[rows])
            step.noise.copy_(noise[i, own])
            step.lr.fill_(self.rate(number + i / self.steps))
            step()
            advance()
        step.team.add_(step.totals)
        loss, accuracy = (step.totals / n).tolist()
        return {"loss": loss, "accuracy": accuracy, "lr": self.rate(number), "seconds": time.perf_counter() - begin}


class Checkpoint:
    """A file with the state after an epoch; it appears whole or not at all.

    Args:
        path: of the file; None: nothing is read or written.
        config: what the training depends on; a file with another one is refused.
        seconds: the least time between two writes.
    """

    def __init__(self, path: str | Path | None, config: dict[str, Any], seconds: float) -> None:
        self.path, self.seconds = None if path is None else Path(path), seconds
        # as JSON reads it back, so that tuples and NumPy numbers compare equal to what was stored
        self.config: dict[str, Any] = json.loads(json.dumps(config, default=lambda value: value.item()))
        self.written = time.monotonic()
        if self.path is not None and not self.path.parent.is_dir():
            raise FileNotFoundError(f"cannot write {path}: the folder {self.path.parent} does not exist")

    def exists(self) -> bool:
        """Return whether there is a file to go on from."""
        return self.path is not None and self.path.exists()

    def resume(self, step: Step) -> dict[str, list[float]]:
        """Put a stored state into ``step`` and return the history up to it; without a file, an empty history."""
        if self.path is None or not self.exists():
            return {name: [] for name in COLUMNS}
        try:
            about, tensors = read_tensors(self.path, _KIND)
        except ValueError as error:
            raise CheckpointError(str(error), what=self.path, hint=_HINT) from None
        there = about.get("config")
        differences = _differences(there if isinstance(there, dict) else {}, self.config)
        if differences:
            said = "; ".join(f"{name} is {a} there and {b} here" for name, a, b in differences)
            raise OtherTrainingError(
                f"checkpoint {self.path} belongs to another training: {said}",
                what=self.path,
                hint=_HINT.capitalize(),
                differences=differences,
            )
        try:
            step.restore(tensors)
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.path}: {error}", what=self.path, hint=_HINT) from None
        if about.get("checksum") != _checksum(about, tensors):
            raise CheckpointError(f"{self.path} was changed", what=self.path, hint=_HINT)
        return {name: list(about["history"][name]) for name in COLUMNS}

    def write(self, step: Step, history: dict[str, list[float]], *, last: bool) -> None:
        """Write the state, if it is time to."""
        if self.path is None or not (last or time.monotonic() - self.written >= self.seconds):
            return
        # a folder that was taken away meanwhile is no reason to lose what was learned
        self.path.parent.mkdir(parents=True, exist_ok=True)
        about, state = {"config": self.config, "history": history}, step.state()
        write_tensors(self.path, _KIND, {**about, "checksum": _checksum(about, state)}, state)
        self.written = time.monotonic()


def _checksum(about: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Return what stands for a state and all that is said of it."""
    said = json.dumps([about.get("config"), about.get("history")], sort_keys=True)
    digest = hashlib.blake2b(said.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return where two configurations differ: name, value there, value here."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted(there.keys() | here.keys()):
        a, b = there.get(name), here.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found.append((f"{prefix}{name}", a, b))
    return found
