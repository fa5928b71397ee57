"""One training step: what can be trained, and a step on buffers in place, which a GPU can replay as one graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from faverage.vision.engine.device import autocast
from faverage.vision.engine.processes import Team
from faverage.vision.transforms import Augment

__all__ = ["Trainable"]


class Trainable(nn.Module):
    """A network with its loss, for ``train_network``.

    A subclass defines ``embed`` and ``loss``; the other methods have defaults that suit plain classification. A step
    may be compiled and replayed as a CUDA graph, so ``embed`` and ``loss`` must not branch on values of tensors, and
    what changes between epochs must be changed in place.

    Attributes:
        extras: random numbers that an image needs beyond augmentation, see ``draw``.

    >>> from faverage.vision import train_network
    >>> class Colours(Trainable):  # tells classes apart by the mean colour of an image
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.head = nn.Linear(3, 2)
    ...     def embed(self, images, labels, extra):
    ...         return self.head(images.mean((2, 3)))
    ...     def loss(self, logits, labels, extra):
    ...         right = (logits.argmax(1) == labels).sum()
    ...         return nn.functional.cross_entropy(logits, labels), right
    >>> labels = np.arange(24) % 2
    >>> images = np.full((24, 8, 8, 3), 40, dtype=np.uint8)
    >>> images[labels == 1, ..., 0] = 200  # class 1 is red
    >>> training = train_network(Colours(), images, labels, epochs=5, batch_size=8, device="cpu")
    >>> training.history["accuracy"][-1]
    1.0
    """

    extras = 0

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Any:
        """Compute what is costly, in bfloat16 where that pays.

        Args:
            images: normalised, ``(b, 3, s, s)``.
            labels: ``(b,)``.
            extra: ``(b, extras)``, see ``draw``.
        """
        raise NotImplementedError

    def loss(self, embedded: Any, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the number of right answers, ``()`` each, from what ``embed`` gave, in float32."""
        raise NotImplementedError

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return random numbers ``(n, extras)`` for n images, on the generator's device; uniform in [0, 1)."""
        return torch.rand(n, self.extras, generator=generator, device=generator.device)

    def order(self, labels: NDArray[Any], batch_size: int, rng: np.random.Generator) -> NDArray[Any] | None:
        """Return the rows of every batch of an epoch, ``(steps, b)``, of labels ``(n,)``; None: all in random order."""
        return None

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Prepare for an epoch, counted from 0."""

    def change_gradients(self) -> None:
        """Change the gradients after a backward pass, in place."""


_WARM_UP = 5  # steps before a capture, so that cuDNN has chosen its algorithms and every buffer exists


class Objective(nn.Module):
    """Augmentation, network and loss in one module, to be compiled as one.

    Args:
        network: what is trained.
        augment: the training transform, on the device of the network.
        device: where they are.
        dtype: in which the network embeds images; its loss is float32.
        layout: memory format of the images.
    """

    def __init__(
        self,
        network: Trainable,
        augment: Augment,
        device: torch.device,
        dtype: torch.dtype,
        layout: torch.memory_format = torch.channels_last,
    ) -> None:
        super().__init__()
        self.network, self.augment, self.device, self.dtype, self.layout = network, augment, device, dtype, layout

    def forward(self, batch: Tensor, labels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and how many of the images ``(b, S, S, 3)`` were classified right, ``()`` each.

        ``labels`` are ``(b,)``, ``noise`` is ``(b, 8 + extras)``.
        """
        images = self.augment(batch, noise[:, : Augment.NOISE]).contiguous(memory_format=self.layout)
        extra = noise[:, Augment.NOISE :]
        with autocast(self.device, self.dtype):
            embedded = self.network.embed(images, labels, extra)
        return self.network.loss(embedded, labels, extra)


class Step:
    """A step: fill ``batch``, ``labels``, ``noise`` and ``lr``, then call. Nothing is read back to the host.

    Args:
        objective: what to minimise, on its device.
        side: of the stored images.
        batch_size: images a step, of this process.
        momentum: of SGD with Nesterov's momentum.
        weight_decay: on every parameter.
        team: the processes that share a step; by default this one alone.

    Attributes:
        batch: uint8 ``(b, S, S, 3)``.
        labels: int64 ``(b,)``.
        noise: ``(b, 8 + extras)``, see ``Augment`` and ``Trainable``.
        lr: the learning rate, ``()``, a tensor, so that a captured step sees its changes.
        totals: ``(2,)``, sums of loss x images and of right answers since it was last zeroed.
        variant: ``plain``, ``compiled``, ``captured`` or ``compiled+captured``.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        side: int,
        batch_size: int,
        momentum: float,
        weight_decay: float,
        team: Team | None = None,
    ) -> None:
        device = objective.device
        self.team = team or Team()
        self.plain: Callable[..., Any] = self.team.wrap(objective)
        self.objective = self.plain
        self.network = objective.network
        self.batch = torch.zeros((batch_size, side, side, 3), dtype=torch.uint8, device=device)
        self.labels = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.noise = torch.zeros((batch_size, Augment.NOISE + self.network.extras), device=device)
        self.totals = torch.zeros(2, device=device)
        self.lr = torch.zeros((), device=device)
        learned = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.SGD(
            list(learned.values()),
            lr=self.lr,
            momentum=momentum,
            nesterov=momentum > 0,
            weight_decay=weight_decay,
            fused=True,
        )
        # zeros give the same first step as no buffer, and make every step, and every checkpoint, alike
        self.momentum = {name: torch.zeros_like(p) for name, p in learned.items()}
        for name, parameter in learned.items():
            self.optimizer.state[parameter]["momentum_buffer"] = self.momentum[name]
        self.variant = "plain"
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Take one step with what is in the buffers."""
        if self._graph is None:
            self._work()
        else:
            self._graph.replay()

    def _work(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss, right = self.objective(self.batch, self.labels, self.noise)
        self.team.backward(loss)
        self.network.change_gradients()
        self.optimizer.step()
        self.totals += torch.stack([loss.detach().float() * len(self.labels), right.float()])

    def state(self) -> dict[str, Tensor]:
        """Return every tensor, of any shape, that a step changes, by name: weights, running statistics, momentum."""
        return {
            **self.network.state_dict(),
            **{f"momentum.{name}": tensor for name, tensor in self.momentum.items()},
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Copy what ``state`` gave, tensors of any shapes, back into place."""
        state = self.state()
        if state.keys() != tensors.keys():
            raise ValueError(f"the state does not fit: {sorted(state.keys() ^ tensors.keys())[:5]}")
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(tensors[name])

    def speed_up(self, *, compile_mode: str | None, capture: bool) -> None:
        """Compile the objective and capture the whole step where that works; warn and go on where it does not.

        The trial steps that this takes leave no trace in the network. Where the objective has changed, as the side of
        its crops, a further call does it all again.

        Args:
            compile_mode: a mode of ``torch.compile``; None: do not compile.
            capture: whether to record the step as a CUDA graph.
        """
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        done = []
        self.objective, self._graph = self.plain, None
        if compile_mode is not None:
            torch.compiler.reset()  # what was compiled before counts towards a limit, from which on nothing is compiled
            try:
                self.objective = torch.compile(self.plain, mode=compile_mode, dynamic=False)
                self._work()
                torch.cuda.synchronize()
                done.append("compiled")
            except Exception as error:
                self.objective = self.plain
                warnings.warn(f"torch.compile failed, training goes on without it: {_first_line(error)}", stacklevel=2)
        if capture:
            try:
                self._capture()
                done.append("captured")
            except Exception as error:
                self._graph = None
                warnings.warn(f"CUDA graph capture failed, steps run one by one: {_first_line(error)}", stacklevel=2)
        self.variant = "+".join(done) or "plain"
        self.restore(before)
        self.totals.zero_()

    def _capture(self) -> None:
        """Record one step; from then on a call replays it."""
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(_WARM_UP):
                self._work()
        torch.cuda.current_stream().wait_stream(side_stream)
        self.optimizer.zero_grad(set_to_none=True)  # the graph must allocate the gradients itself
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._work()
        self._graph = graph


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
