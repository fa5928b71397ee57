"""What one training step is made of: checked data, the update, and its capture as a CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from faverage.afa.means import Arithmetic, Mean
from faverage.afa.network import AFA, FAverage
from faverage.afa.weights import Rows

Loss = Literal["cross-entropy", "squared"]

_CHUNK = 1 << 22  # scores checked, or judged without a gradient, at a time


def make_step(
    network: nn.Module, data: Data, batch_size: int, lr: float, weight_decay: float = 0.0
) -> Callable[[Tensor], Tensor]:
    """Return ``step(rows)``: one update on rows ``(b,)``, returning the sum ``()`` of their weighted losses.

    Rows of -1 fill up the last batch and weigh nothing, so that every batch has one shape. On a GPU the step is
    captured once as a CUDA graph and replayed.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    on_gpu = data.scores.is_cuda
    optimizer: Any
    if data.scores.device.type == "cpu" and {p.dtype for p in parameters} == {torch.float32}:
        optimizer = _Adam(parameters, lr, weight_decay)
    else:
        options: dict[str, Any] = {"capturable": True} if on_gpu else {}
        fused = data.scores.device.type in ("cpu", "cuda")
        optimizer = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, fused=fused, **options)
    centered = [m for m in network.modules() if isinstance(m, Rows)]

    def step(rows: Tensor) -> Tensor:
        weight = data.weight[rows] * (rows >= 0)
        total = (data.losses(network, rows) * weight).sum()
        (total / weight.sum().clamp(min=1e-30)).backward()
        for matrix in centered:
            matrix.center_gradient_()
        optimizer.step()
        project(network)
        return total.detach()

    def eager(rows: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        return step(rows)

    return _captured(step, network, optimizer, batch_size) if on_gpu else eager


class _Adam:
    """``torch.optim.Adam(fused=True)`` on a CPU, bit for bit, without loading torch's compiler, which takes seconds."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.states = [(p, torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have gradients."""
        states: Any = [state for state in self.states if state[0].grad is not None]
        if not states:
            return
        parameters, first, second, steps = (list(part) for part in zip(*states, strict=True))
        torch._foreach_add_(steps, 1)
        gradients = [parameter.grad for parameter in parameters]
        betas: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
        torch._fused_adam_(
            *(parameters, gradients, first, second, [], steps), lr=self.lr, weight_decay=self.weight_decay, **betas
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        for state in self.states:
            state[0].grad = None


def _captured(
    step: Callable[[Tensor], Tensor], network: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int
) -> Callable[[Tensor], Tensor]:
    """Capture ``step`` as a CUDA graph, with network and optimiser as they were before the warm-up."""
    device = next(network.parameters()).device
    rows = torch.zeros(batch_size, dtype=torch.long, device=device)
    before = snapshot(network)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step(rows)
    torch.cuda.current_stream(device).wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = step(rows)
    network.load_state_dict(before)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()

    def replay(batch: Tensor) -> Tensor:
        rows.copy_(batch)
        graph.replay()
        return total

    return replay


@dataclass
class Data:
    """Checked training data on one device.

    Scores of half precision and scores in a memory map stay as they are and are cast batch by batch; a part of the rows
    is a list of their indices. So there is never a second copy of all scores.

    Attributes:
        scores: ``(n, K, N)``, or more rows than those in use.
        targets: labels ``(n,)`` or values ``(n, N)``.
        weight: ``(n,)``, in the network's type.
        loss: ``cross-entropy`` or ``squared``.
        index: ``(n,)``, the rows of ``scores`` in use; None: all.
    """

    scores: Tensor
    targets: Tensor
    weight: Tensor
    loss: Loss
    index: Tensor | None = None

    @classmethod
    def check(cls, network: nn.Module, scores: Any, targets: Any, weight: Any = None, loss: Loss | None = None) -> Data:
        """Return the arguments of ``fit`` as data for ``network``, or raise ValueError naming the one that is wrong."""
        first = next(network.parameters(), None)
        if first is None:
            raise ValueError(f"network {type(network).__name__} has no parameters to train")
        dtype = first.dtype
        on_disk = _on_disk(scores)
        scores = _tensor(scores)
        if scores.ndim != 3 or 0 in scores.shape:
            raise ValueError(
                "scores must have shape (n, K, N), examples x models x classes, with no size of 0, "
                f"got {tuple(scores.shape)}"
            )
        if not scores.is_floating_point() or not (on_disk or scores.dtype in (torch.float16, torch.bfloat16)):
            scores = scores.to(dtype)
        means: tuple[Mean, ...] = (Arithmetic(),)
        if isinstance(network, AFA | FAverage):
            means = network.means if isinstance(network, AFA) else (network.mean,)
        for part in scores.split(rows_of(scores, _CHUNK)):
            for mean in means:
                mean.check(part, "scores")
        targets = torch.as_tensor(targets).detach()
        if targets.ndim == 0:
            raise ValueError(f"targets must have one entry for each of the {len(scores)} rows of scores, got a number")
        whole = not targets.is_floating_point() and not targets.is_complex()
        loss = loss or ("cross-entropy" if whole else "squared")
        if loss not in ("cross-entropy", "squared"):
            raise ValueError(f"loss must be 'cross-entropy' or 'squared', got {loss!r}")
        if len(targets) != len(scores):
            raise ValueError(
                f"targets must have one entry for each of the {len(scores)} rows of scores, got {len(targets)}"
            )
        n_outputs = scores.shape[-1]
        if loss == "cross-entropy":
            if not hasattr(network, "log_prob"):
                raise ValueError(
                    f"the cross-entropy needs log_prob(scores), which {type(network).__name__} does not have"
                )
            if targets.ndim != 1 or not whole:
                raise ValueError(f"targets must be whole-number labels of shape ({len(scores)},) for the cross-entropy")
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= n_outputs:
                raise ValueError(f"targets must be labels in 0 … {n_outputs - 1}, found {low if low < 0 else high}")
            targets = targets.long()
        else:
            targets = targets.to(dtype)
            targets = targets[:, None] if targets.ndim == 1 else targets
            if targets.shape != (len(scores), n_outputs):
                raise ValueError(f"targets must have shape ({len(scores)}, {n_outputs}), got {tuple(targets.shape)}")
            if not bool(targets.isfinite().all()):
                raise ValueError("targets must be finite")
        weight = torch.ones(len(scores)) if weight is None else torch.as_tensor(weight).detach()
        if weight.shape != (len(scores),):
            raise ValueError(f"sample_weight must have shape ({len(scores)},), got {tuple(weight.shape)}")
        if not bool(weight.isfinite().all()) or not bool((weight >= 0).all()) or not bool(weight.sum() > 0):
            raise ValueError("sample_weight must be finite, non-negative and not all zero")
        data = cls(scores, targets, weight.to(dtype), loss)
        return data.take((weight > 0).nonzero().squeeze(1)) if bool((weight == 0).any()) else data

    def losses(self, network: nn.Module, rows: Tensor) -> Tensor:
        """Return the loss ``(b,)`` of each of the rows ``(b,)``."""
        scores = self.scores[rows if self.index is None else self.index[rows]].to(self.weight.dtype)
        if self.loss == "cross-entropy":
            log_prob: Tensor = network.log_prob(scores)  # type: ignore[operator]
            return -log_prob.gather(1, self.targets[rows, None]).squeeze(1)
        output: Tensor = network(scores)
        return (output - self.targets[rows]).square().mean(-1)

    def split(self, share: float, seed: int) -> tuple[Data, Data]:
        """Hold out a share of the rows, of each class alike."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.targets), generator=generator)
        if self.loss == "cross-entropy":
            order = order[torch.argsort(self.targets.cpu()[order], stable=True)]
            # every class in turn gives its share: row i is held out where the running count of held-out rows grows
            position = torch.arange(1, len(order) + 1, dtype=torch.float64)
            taken = (position * share + 0.5).floor()
            mask = taken != torch.cat([torch.zeros(1, dtype=torch.float64), taken[:-1]])
        else:
            mask = torch.arange(len(order)) < round(share * len(order))
        if not mask.any() or mask.all():
            raise ValueError(f"validation={share:g} leaves no rows to train or to validate on, out of {len(order)}")
        return self.take(order[~mask]), self.take(order[mask])

    def take(self, rows: Tensor) -> Data:
        """Return the rows ``(m,)`` as data of their own, which share the scores."""
        rows = rows.to(self.scores.device)
        index = rows if self.index is None else self.index[rows]
        return Data(self.scores, self.targets[rows], self.weight[rows], self.loss, index)

    def to(self, device: torch.device) -> Data:
        """Return the same data on another device."""
        index = None if self.index is None else self.index.to(device)
        return Data(self.scores.to(device), self.targets.to(device), self.weight.to(device), self.loss, index)


@torch.no_grad()
def data_loss(network: nn.Module, data: Data) -> float:
    """Return the weighted mean loss over all rows."""
    network.eval()
    total = 0.0
    for rows in torch.arange(len(data.targets), device=data.scores.device).split(rows_of(data.scores, _CHUNK)):
        total += float((data.losses(network, rows) * data.weight[rows]).sum())
    return total / float(data.weight.sum())


def batches(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Return a random order of n rows as ``(batches, size)``, filled up with -1."""
    order = torch.randperm(n, generator=generator)
    return torch.nn.functional.pad(order, (0, -n % size), value=-1).reshape(-1, size)


def project(network: nn.Module) -> None:
    """Bring the network back to its constraints, if it has any."""
    project = getattr(network, "project_", None)
    if project is not None:
        project()


def snapshot(network: nn.Module, into: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return a copy of all weights, of any shapes: a new one, or ``into`` with its contents replaced."""
    if into is None:
        return {name: value.detach().clone() for name, value in network.state_dict().items()}
    for name, value in network.state_dict().items():
        into[name].copy_(value)
    return into


def rows_of(scores: Tensor, chunk: int) -> int:
    """Return how many rows of ``(n, K, N)`` hold about ``chunk`` scores, at least one."""
    return max(1, chunk // max(1, scores[0].numel()))


def _tensor(scores: Any) -> Tensor:
    """Return scores as a tensor, without a copy where that is possible."""
    if isinstance(scores, np.ndarray) and not scores.flags.writeable and scores.dtype.kind == "f":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it written to
            return torch.from_numpy(scores)
    return torch.as_tensor(scores).detach()


def _on_disk(scores: Any) -> bool:
    """Return whether an array is a memory map, or a view of one."""
    while isinstance(scores, np.ndarray):
        if isinstance(scores, np.memmap):
            return True
        scores = scores.base
    return False
