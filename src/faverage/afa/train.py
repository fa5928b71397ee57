"""The one loop that trains a network on scores ``(n, K, N)`` and labels.

It serves AFA and any other ``nn.Module`` from ``(n, K, N)`` to ``(n, N)``. A module may have ``log_prob(scores)``
(needed for the cross-entropy), and ``project_()``, which is called after each step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from faverage.afa.steps import Data, Loss, batches, data_loss, make_step, project, snapshot
from faverage.progress import Progress
from faverage.threads import few_threads

__all__ = ["History", "fit", "watched"]

_WATCHER: ContextVar[Callable[[int, int], None] | None] = ContextVar("watcher", default=None)
_EXPLODED = 1e3  # a training loss this many times the first one (plus one) counts as diverged


@dataclass
class History:
    """What happened in training: the mean loss by epoch, and why it ended.

    Attributes:
        train: training loss of each epoch (the average over its batches, as the weights move).
        validation: loss on the held-out part after each epoch; empty without one.
        best_epoch: the epoch (from 0) whose weights the network has now; -1: those it was started with.
        stopped: ``"finished"``, ``"early"`` or ``"diverged"``.

    >>> from faverage import AFA
    >>> scores = torch.rand(40, 2, 3, generator=torch.manual_seed(0)).softmax(-1)
    >>> history = fit(AFA(2, 3, structure="scalar"), scores, scores[:, 0].argmax(-1), epochs=5)
    >>> len(history.train), history.train[0] > history.train[-1], history.stopped
    (5, True, 'finished')
    """

    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = -1
    stopped: Literal["finished", "early", "diverged"] = "finished"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


def fit(
    network: nn.Module,
    scores: Tensor | np.ndarray[Any, Any],
    targets: Tensor | np.ndarray[Any, Any],
    *,
    sample_weight: Tensor | np.ndarray[Any, Any] | None = None,
    loss: Loss | None = None,
    epochs: int = 100,
    batch_size: int = 128,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    validation: float | tuple[Any, ...] = 0.0,
    patience: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = False,
) -> History:
    """Train ``network`` in place with Adam, and a projection onto its constraints after each step.

    Args:
        network: an ``AFA``, or any module from ``(n, K, N)`` to ``(n, N)``.
        scores: ``(n, K, N)``, one score vector a model. A memory map (``np.load(file, mmap_mode="r")``) is read batch
            by batch, and half precision stays so until a batch is used: a CPU never holds a second copy of them.
        targets: labels ``(n,)`` in 0 … N-1 for the cross-entropy; values ``(n, N)``, or ``(n,)`` if N is 1, for the
            squared loss.
        sample_weight: ``(n,)``, non-negative; a weight of 2 counts as the same row twice.
        loss: ``cross-entropy`` or ``squared``. By default what the targets' type says: whole numbers are labels.
        epochs: passes over the data, at most.
        batch_size: rows a step.
        lr: Adam's learning rate.
        weight_decay: λ of a penalty λ/2 · ‖parameters‖², beside the mean loss; the history has the loss alone.
        validation: a share in (0, 1) of the rows to hold out (of each class alike), or a tuple of (scores, targets) or
            (scores, targets, sample_weight). The network then ends with the weights of its best epoch on that part.
        patience: with ``validation``, stop after this many epochs without a better one.
        seed: of the order of the batches and the held-out part.
        device: where to train; by default where the network is. The network ends up there. A GPU gets all scores, in
            the type that they are stored in, and the whole step is one CUDA graph.
        progress: show a progress bar, or lines where there is no terminal, on standard error.

    Returns:
        The history of losses.

    A run whose loss stops being finite, or grows a thousandfold, ends with a RuntimeWarning; the network then has the
    weights of the last good epoch.

    >>> from faverage import AFA
    >>> y = torch.arange(60) % 3
    >>> good = torch.nn.functional.one_hot(y, 3) * 0.7 + 0.1
    >>> network = AFA(n_models=2, n_outputs=3, structure="scalar")
    >>> history = fit(network, torch.stack([good, torch.full((60, 3), 1 / 3)], 1), y, lr=0.03)
    >>> history.train[-1] < history.train[0], network.averages[0].weight[0, 0].item() > 0.9
    (True, True)
    """
    data = Data.check(network, scores, targets, sample_weight, loss)
    _check_options(epochs, batch_size, lr, weight_decay, patience, validation, seed)
    where = torch.device(device) if device is not None else next(network.parameters()).device
    held_out: Data | None = None
    if isinstance(validation, tuple):
        scores, targets, weight = (*validation, None)[:3]
        held_out = Data.check(network, scores, targets, weight, data.loss).to(where)
    data = data.to(where)
    if not isinstance(validation, tuple) and validation > 0:
        data, held_out = data.split(validation, seed)
    network.to(where)
    history = History()
    weights = sum(p.numel() for p in network.parameters())
    step = float(min(batch_size, len(data.targets))) * max(weights, data.scores[0].numel())
    bar = Progress("training", epochs, show=progress, patient=False, columns="what bar count remaining words")
    with few_threads(step), _validation_off(network), bar:
        _train(network, data, held_out, history, epochs, batch_size, lr, weight_decay, patience, seed, bar)
    return history


def _train(
    network: nn.Module,
    data: Data,
    held_out: Data | None,
    history: History,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    patience: int | None,
    seed: int,
    bar: Progress,
) -> None:
    """Run the epochs; leave the best (or last good) weights in the network and the losses in ``history``."""
    n = len(data.targets)
    batch_size = min(batch_size, n)
    step = make_step(network, data, batch_size, lr, weight_decay)
    best = data_loss(network, held_out) if held_out is not None else math.inf
    recent = [(-1, snapshot(network))]  # the weights to go back to, newest last
    generator, watcher = torch.Generator().manual_seed(seed), _WATCHER.get()
    for epoch in range(epochs):
        network.train()
        total = torch.zeros((), dtype=torch.float64, device=data.scores.device)
        for batch in batches(n, batch_size, generator).to(data.scores.device):
            total += step(batch)
        if data.scores.is_cuda:
            project(network)  # the captured projection could not look at its result; this one does
        loss = float(total) / float(data.weight.sum())
        if _bad(loss, history):
            history.stopped = "diverged"
            break
        history.train.append(loss)
        bar.update(epoch + 1, f"loss {loss:.4f}")
        if watcher is not None:
            watcher(epoch + 1, epochs)
        if held_out is None:
            oldest = recent.pop(0)[1] if len(recent) > 1 else None
            recent.append((epoch, snapshot(network, into=oldest)))
            continue
        history.validation.append(data_loss(network, held_out))
        if history.validation[-1] < best:
            best, recent = history.validation[-1], [(epoch, snapshot(network, into=recent[0][1]))]
        elif patience is not None and epoch - recent[-1][0] >= patience:
            history.stopped = "early"
            break
    # the loss of an epoch is that of the weights before its steps: see that what is kept is good itself
    for history.best_epoch, weights in reversed(recent):
        network.load_state_dict(weights)
        if len(recent) == 1 or not _bad(data_loss(network, data), history):
            break
        history.stopped = "diverged"
    if history.stopped == "diverged":
        kept = f"epoch {history.best_epoch}" if history.best_epoch >= 0 else "its start"
        warnings.warn(
            f"training diverged in epoch {len(history.train)} and was stopped; the network keeps the weights of "
            f"{kept}. Try a learning rate below {lr:g}",
            RuntimeWarning,
            stacklevel=3,
        )


def diverged(losses: Sequence[float]) -> bool:
    """Return whether the loss of any epoch is not finite, or a thousand times the first."""
    return any(not math.isfinite(loss) or loss > _EXPLODED * (losses[0] + 1) for loss in losses)


def _bad(loss: float, history: History) -> bool:
    return diverged([*history.train[:1], loss])


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_options(
    epochs: Any, batch_size: Any, lr: Any, weight_decay: Any, patience: Any, validation: Any, seed: Any
) -> None:
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
        if name == "patience" and value is None:
            continue
        if not _is_number(value) or int(value) != value or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    if not _is_number(lr) or not 0 < lr < math.inf:
        raise ValueError(f"lr must be a finite number > 0, got {lr!r}")
    if not _is_number(weight_decay) or not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay must be a finite number >= 0, got {weight_decay!r}")
    if isinstance(validation, tuple):
        if len(validation) not in (2, 3):
            raise ValueError("validation as a tuple must be (scores, targets) or (scores, targets, sample_weight)")
    elif not _is_number(validation) or not 0 <= validation < 1:
        raise ValueError(f"validation must be a share in [0, 1) or a tuple of held-out data, got {validation!r}")
    elif patience is not None and not validation:
        raise ValueError("patience needs held-out data: give validation, for example validation=0.2")


@contextmanager
def _validation_off(network: nn.Module) -> Iterator[None]:
    """Skip the value checks of forward while training: the data was checked once. Ends in evaluation mode."""
    validate = getattr(network, "validate", None)
    if validate is not None:
        setattr(network, "validate", False)  # noqa: B010 - a plain flag, not a submodule
    try:
        yield
    finally:
        network.eval()
        if validate is not None:
            setattr(network, "validate", validate)  # noqa: B010


@contextmanager
def watched(watcher: Callable[[int, int], None]) -> Iterator[None]:
    """Tell ``watcher`` after each epoch of every ``fit`` inside how many are done, and of how many."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)
