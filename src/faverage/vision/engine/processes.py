"""Several processes that share one job: their ranks, what they exchange, and batch norm over all of them.

``Team`` is one process alone, and needs nothing. ``join`` makes a team of several with Lightning Fabric, which starts
the processes itself, or finds those that torchrun or Slurm started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from faverage.deprecation import without_effect
from faverage.errors import install_line

__all__ = ["OtherFailed", "Team", "join"]

T = TypeVar("T")


class OtherFailed(RuntimeError):
    """The first process of a team failed, and gave the reason; this one adds none.

    The reason is on the screen already, so a program catches it in order to end without a second message:

    >>> from types import SimpleNamespace
    >>> told = SimpleNamespace(global_rank=1, world_size=2, device=None, broadcast=lambda _: "failed")
    >>> second = Ranks(told)  # what join returns in the second of two processes; here the first one failed
    >>> try:
    ...     second.first_does(lambda: "the first process alone does this")
    ... except OtherFailed as error:
    ...     print("ended:", error)
    ended: the first process failed
    """


class Team:
    """One process alone.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        device: the one that this process must use; None: its own choice.

    >>> Team().size, Team().first
    (1, True)
    """

    rank = 0
    size = 1
    device: torch.device | None = None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return what to call instead of a module, so that its gradients become the mean over all processes."""
        return module

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a wrapped module from its loss ``()``."""
        loss.backward()

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor of any shape over all processes; gradients flow through it."""
        return tensor

    def add_(self, tensor: Tensor) -> None:
        """Sum a tensor of any shape over all processes, in place."""

    def copy_(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors, of any shapes, of the first one, in place."""

    def tell(self, value: T) -> T:
        """Return the first process's value."""
        return value

    def wait(self) -> None:
        """Return when all processes are here."""

    def first_does(self, work: Callable[[], T]) -> T | None:
        """Let the first process do something, and return its result there; all wait for it.

        Raises:
            OtherFailed: in all other processes, where the first one fails.
        """
        return work()

    def close(self) -> None:
        """Leave the team."""


class Ranks(Team):
    """A process among several.

    Args:
        fabric: launched.
    """

    def __init__(self, fabric: Any) -> None:
        self.fabric = fabric
        self.rank, self.size, self.device = fabric.global_rank, fabric.world_size, fabric.device

    def wrap(self, module: nn.Module) -> Callable[..., Any]:
        """Return what to call instead of a module, so that its gradients become the mean over all processes."""
        wrapped: Callable[..., Any] = self.fabric.setup_module(module, move_to_device=False)
        return wrapped

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a wrapped module from its loss ``()``."""
        self.fabric.backward(loss)

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor of any shape over all processes; gradients flow through it."""
        summed: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
        return summed / self.size

    def add_(self, tensor: Tensor) -> None:
        """Sum a tensor of any shape over all processes, in place."""
        torch.distributed.all_reduce(tensor)

    def copy_(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors, of any shapes, of the first one, in place."""
        for tensor in tensors:
            torch.distributed.broadcast(tensor, 0)

    def tell(self, value: T) -> T:
        """Return the first process's value."""
        told: T = self.fabric.broadcast(value)
        return told

    def wait(self) -> None:
        """Return when all processes are here."""
        self.fabric.barrier()

    def first_does(self, work: Callable[[], T]) -> T | None:
        """Let the first process do something, and return its result there; all wait for it."""
        result: T | None = None
        if self.first:
            try:
                result = work()
            except BaseException:
                self.tell("failed")
                raise
        if self.tell("done") == "failed":
            raise OtherFailed("the first process failed")
        return result

    def close(self) -> None:
        """Leave the team."""
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


class _Sum(torch.autograd.Function):
    """The sum over all processes, of values on the way there and of gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """Sum the values."""
        summed = tensor.detach().clone()
        torch.distributed.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Sum the gradients."""
        summed = gradients[0].clone()
        torch.distributed.all_reduce(summed)
        return summed


def join(devices: int = 1, nodes: int = 1, *, strategy: str | None = None, device: str = "auto") -> Team:
    """Return the team of this process; where nobody started the other processes yet, start them.

    They are started with the command line of this one. Under torchrun the numbers may be left out.

    Args:
        devices: processes on each machine, a GPU each, or all on its CPU.
        nodes: machines.
        strategy: has no effect: each process has a copy of the network (DDP).
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ImportError: Lightning Fabric is not installed.
        ValueError: there are fewer GPUs, or other numbers than those of the launcher.

    The same lines serve one process and several; what is written to disk is written once:

    >>> team = join(devices=1, device="cpu")  # join(devices=4) starts three more
    >>> (team.rank, team.size), team.first_does(lambda: "results.json")
    ((0, 1), 'results.json')
    >>> team.close()
    """
    if strategy is not None:
        without_effect("strategy")
    here = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun says so
    if here is not None and devices == nodes == 1:
        devices = int(here)
        nodes = max(int(os.environ.get("WORLD_SIZE", here)) // devices, 1)
    if devices == nodes == 1:
        return Team()
    if device.startswith("cuda:"):
        raise ValueError(f"device '{device}' is one GPU, but {devices} processes were asked for: use 'cuda' or 'cpu'")
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise ImportError(
            f"{devices * nodes} processes need Lightning Fabric: {install_line('scale')}, or use one process"
        ) from None
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    try:
        fabric = Fabric(
            accelerator="cuda" if on_gpu else "cpu",
            devices=devices,
            num_nodes=nodes,
            strategy="ddp",
        )
        fabric.launch()
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{devices} processes on each of {nodes} machines: {error}") from None
    except Exception as error:  # Fabric's own kind of a wrong setting
        if "Misconfiguration" not in type(error).__name__:
            raise
        raise ValueError(f"{devices} processes on each of {nodes} machines: {error}") from None
    return Ranks(fabric)


@contextmanager
def shared_norms(network: nn.Module, team: Team) -> Iterator[None]:
    """Let every batch norm of a network see the whole batch; undone after. Parts must be of one size.

    On a GPU torch has its own, ``SyncBatchNorm``; this one works on any device, and leaves the network's classes alone.
    """
    norms: list[Any] = [m for m in network.modules() if isinstance(m, _BatchNorm)] if team.size > 1 else []
    for norm in norms:
        norm.forward = partial(_forward, norm, team)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: _BatchNorm, team: Team, x: Tensor) -> Tensor:
    """Normalise x by mean and variance over all processes; the running statistics follow as ever."""
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, x)
        return plain
    dims = [0, *range(2, x.ndim)]
    shape = [1, -1] + [1] * (x.ndim - 2)
    wide = x.float()
    mean = team.mean(wide.mean(dims))
    centred = wide - mean.view(shape)
    variance = team.mean(centred.square().mean(dims))
    if norm.track_running_stats and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            share = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
            n = x.numel() // x.shape[1] * team.size
            norm.running_mean.lerp_(mean.detach(), share)
            norm.running_var.lerp_(variance.detach() * n / max(n - 1, 1), share)
    scaled = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        scaled = scaled * norm.weight.view(shape) + norm.bias.view(shape)
    return scaled.to(x.dtype)
