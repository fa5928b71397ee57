"""Several copies of one small network, each trained on other rows, side by side in the same steps.

The copies share no weights, and the gradient of a sum of losses, Adam and the projections work on each copy alone: each
gets the steps that ``faverage.fit`` would give it, up to rounding. Small steps cost what their many small operations
cost: one step of five copies, in numpy and with gradients written out, takes less time than one of a single copy there.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from faverage.afa.means import Arithmetic, Geometric, Harmonic
from faverage.afa.network import AFA
from faverage.afa.steps import batches
from faverage.afa.weights import Rows
from faverage.fusion.arrays import Array

__all__ = ["FullAFA", "Layers", "Rule", "WeightedLayer", "train_copies"]

_BETAS = (0.9, 0.999)  # Adam's, as in torch
_EPS = 1e-8
_SPREAD = 60.0  # logits that lie closer together than this need no shift of their own before exp


class Rule:
    """How a stack of networks computes. ``w`` and ``dw`` are their parameters and gradients, each ``(copies, …)``."""

    def prepare(self, scores: Array) -> Array:
        """Map scores ``(n, K, N)`` to whatever of them does not depend on the weights, ``(n, …)``."""
        return scores.reshape(len(scores), -1)

    def forward(self, w: list[Array], x: Array) -> Array:
        """Map prepared rows ``(copies, b, …)`` to logits ``(copies, b, N)``."""
        raise NotImplementedError

    def backward(self, w: list[Array], dw: list[Array], g: Array) -> Array | None:
        """Write the gradients, given that ``(copies, b, N)`` of the last logits."""
        raise NotImplementedError


class Layers(Rule):
    """Fully connected layers with ReLU between them; parameters are weight and bias of each."""

    def forward(self, w: list[Array], x: Array) -> Array:
        """Keep what each layer took in."""
        self._inputs = []
        for i in range(0, len(w), 2):
            if i:
                x = np.maximum(x, 0, out=x)
            self._inputs.append(x)
            x = np.matmul(x, w[i].transpose(0, 2, 1))
            x += w[i + 1][:, None]
        return x

    def backward(self, w: list[Array], dw: list[Array], g: Array) -> Array:
        """Go from the last layer to the first, and return the gradient of what the first one gave."""
        for i in range(len(w) - 2, -1, -2):
            x = self._inputs[i // 2]
            np.matmul(g.transpose(0, 2, 1), x, out=dw[i])
            np.sum(g, 1, out=dw[i + 1])
            if i:
                g = np.matmul(g, w[i])
                g *= x > 0
        return g


class WeightedLayer(Rule):
    """One weight a model, then a fully connected layer."""

    def __init__(self) -> None:
        self._layer = Layers()

    def prepare(self, scores: Array) -> Array:
        """Put the models last: ``(n, N, K)``."""
        return np.ascontiguousarray(scores.transpose(0, 2, 1))

    def forward(self, w: list[Array], x: Array) -> Array:
        """Average, then the layer."""
        copies, rows, classes, models = x.shape
        self._x = x.reshape(copies, rows * classes, models)
        average = np.matmul(self._x, w[0].transpose(0, 2, 1)).reshape(copies, rows, classes)
        return self._layer.forward(w[1:], average)

    def backward(self, w: list[Array], dw: list[Array], g: Array) -> None:
        """The layer, then the weights."""
        g = np.matmul(self._layer.backward(w[1:], dw[1:], g), w[1])
        np.matmul(g.reshape(len(g), 1, -1), self._x, out=dw[0])


class FullAFA(Rule):
    """The paper's AFA: a full matrix for each mean, and one that mixes them."""

    def __init__(self, network: AFA) -> None:
        self._means = network.means

    @staticmethod
    def takes(network: AFA) -> bool:
        """Return whether a network is of this kind."""
        kind = (network.structure, network.constraint, network.output, network.mixing)
        known = all(type(mean) in (Arithmetic, Geometric, Harmonic) for mean in network.means)
        return known and kind == ("full", "projection", "softmax", "nonnegative")

    def prepare(self, scores: Array) -> Array:
        """Apply every f: ``(n, J, K·N)``."""
        flat = torch.from_numpy(scores.reshape(len(scores), -1))
        values: Array = torch.stack([mean(flat) for mean in self._means], 1).numpy()
        return values

    def forward(self, w: list[Array], x: Array) -> Array:
        """Average with each mean, then mix."""
        self._x = [x[:, :, j] for j in range(len(self._means))]
        averages, self._slopes = [], []
        for mean, values, weights in zip(self._means, self._x, w[:-1], strict=True):
            y = np.matmul(values, weights.transpose(0, 2, 1))
            slope = None
            if isinstance(mean, Geometric):
                slope = np.exp(y)
                y = slope - mean.eps
            elif isinstance(mean, Harmonic):
                y = 1 / (np.minimum(y, 1 / mean.eps - mean.eps) + mean.eps)
                slope = -(y**2)
                y -= mean.eps
            averages.append(y)
            self._slopes.append(slope)
        self._mixed = np.concatenate(averages, 2)
        logits: Array = np.matmul(self._mixed, w[-1].transpose(0, 2, 1))
        return logits

    def backward(self, w: list[Array], dw: list[Array], g: Array) -> None:
        """The mixture, then each mean."""
        np.matmul(g.transpose(0, 2, 1), self._mixed, out=dw[-1])
        width = g.shape[2]
        g = np.matmul(g, w[-1])
        for j, (values, slope) in enumerate(zip(self._x, self._slopes, strict=True)):
            part = g[:, :, j * width : (j + 1) * width]
            np.matmul((part if slope is None else part * slope).transpose(0, 2, 1), values, out=dw[j])


def train_copies(
    networks: list[nn.Module],
    rule: Rule,
    data: list[tuple[Array, Array, Array]],
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
) -> list[list[float]]:
    """Train each network in place with Adam on its own rows; return the losses of each by epoch.

    Args:
        networks: copies of one network, on the CPU.
        rule: how they compute.
        data: scores ``(n, K, N)`` in float32, labels ``(n,)`` and weights ``(n,)`` of each; all make as many batches.
        epochs: passes over the data.
        batch_size: rows a step.
        lr: Adam's learning rate.
        seed: of the order of the batches.
    """
    stack = _Stack(networks)
    sizes = [len(y) for _, y, _ in data]
    size = min(batch_size, max(sizes))
    x = np.concatenate([rule.prepare(scores) for scores, _, _ in data])
    y, weight = np.concatenate([y for _, y, _ in data]), np.concatenate([w for _, _, w in data]).astype(np.float32)
    offset = np.cumsum([0, *sizes[:-1]])[:, None, None]
    generators = [torch.Generator().manual_seed(seed) for _ in networks]
    at = (np.arange(len(networks))[:, None], np.arange(size))
    losses = []
    with np.errstate(all="ignore"):  # what diverges shows in the losses
        for _ in range(epochs):
            order = np.stack([batches(n, size, g).numpy() for n, g in zip(sizes, generators, strict=True)])
            rows = np.where(order < 0, 0, order + offset)  # (copies, batches, rows)
            mass = np.where(order < 0, np.float32(0), weight[rows])
            share = mass / np.maximum(mass.sum(2, keepdims=True), np.float32(1e-30))
            chosen = np.empty_like(mass)
            for step in range(order.shape[1]):
                here = rows[:, step]
                p = _softmax(rule.forward(stack.w, x[here]))
                label = (*at, y[here])
                chosen[:, step] = p[label]
                p[label] -= 1
                p *= share[:, step, :, None]
                rule.backward(stack.w, stack.dw, p)
                stack.step(lr)
            losses.append(-(mass * np.log(chosen, dtype=np.float64)).sum((1, 2)) / mass.sum((1, 2), dtype=np.float64))
    stack.write(networks)
    return np.stack(losses, 1).tolist()  # type: ignore[no-any-return]


def _softmax(z: Array) -> Array:
    """Return the softmax over the classes, in place. One shift for all is enough where logits lie close together."""
    low, high = z.min(), z.max()
    z -= high if high - low < _SPREAD else z.max(2, keepdims=True)
    np.exp(z, out=z)
    z /= np.matmul(z, np.ones((z.shape[2], 1), z.dtype))
    return z


class _Stack:
    """The parameters of all copies in one vector, with Adam's moments, and the sets that rows are kept in."""

    def __init__(self, networks: list[nn.Module]) -> None:
        every = [[p.detach().numpy() for p in network.parameters()] for network in networks]
        together = [np.stack(same) for same in zip(*every, strict=True)]
        self._flat = np.concatenate([p.ravel() for p in together])
        self._gradient, self._first, self._second, self._work = (np.zeros_like(self._flat) for _ in range(4))
        ends = np.cumsum([0, *(p.size for p in together)])
        parts = [slice(a, b) for a, b in pairwise(ends)]
        self.w = [self._flat[part].reshape(p.shape) for part, p in zip(parts, together, strict=True)]
        self.dw = [self._gradient[part].reshape(p.shape) for part, p in zip(parts, together, strict=True)]
        kinds = {id(rows.raw): rows for rows in networks[0].modules() if isinstance(rows, Rows)}
        simplex: list[tuple[slice, int]] = []
        self._nonnegative = []
        for part, parameter in zip(parts, networks[0].parameters(), strict=True):
            rows, width = kinds.get(id(parameter)), parameter.shape[-1] if parameter.ndim else 1
            if rows is not None and not rows.simplex:
                self._nonnegative.append(self._flat[part])
            elif rows is not None and simplex and (simplex[-1][0].stop, simplex[-1][1]) == (part.start, width):
                simplex[-1] = (slice(simplex[-1][0].start, part.stop), width)  # rows of one length, side by side
            elif rows is not None:
                simplex.append((part, width))
        self._simplex = [
            (self._flat[part].reshape(-1, width), self._gradient[part].reshape(-1, width)) for part, width in simplex
        ]
        self._thresholds = [np.zeros((len(rows), 1), rows.dtype) for rows, _ in self._simplex]
        self._steps = 0

    def step(self, lr: float) -> None:
        """Centre the gradients of simplex rows (see ``Rows``), move by Adam, and project."""
        for rows, gradient in self._simplex:
            gradient -= (rows * gradient).sum(1, keepdims=True)
        self._steps += 1
        g, first, second, work = self._gradient, self._first, self._second, self._work
        first *= _BETAS[0]
        first += np.multiply(g, 1 - _BETAS[0], out=work)
        second *= _BETAS[1]
        np.multiply(g, g, out=work)
        work *= 1 - _BETAS[1]
        second += work
        np.sqrt(second, out=work)
        work /= math.sqrt(1 - _BETAS[1] ** self._steps)
        work += _EPS
        np.divide(first, work, out=work)
        work *= lr / (1 - _BETAS[0] ** self._steps)
        self._flat -= work
        for (rows, _), threshold in zip(self._simplex, self._thresholds, strict=True):
            _project(rows, threshold)
        for part in self._nonnegative:
            np.maximum(part, 0, out=part)

    def write(self, networks: list[nn.Module]) -> None:
        """Give each network its weights."""
        with torch.no_grad():
            for i, network in enumerate(networks):
                for parameter, value in zip(network.parameters(), self.w, strict=True):
                    parameter.copy_(torch.from_numpy(value[i]))


def _project(rows: Array, threshold: Array) -> None:
    """Project rows onto the simplex in place, by Newton's method from the last threshold (see ``afa.simplex``)."""
    tolerance = 4 * np.finfo(rows.dtype).eps
    for _ in range(100):
        above = rows - threshold
        np.maximum(above, 0, out=above)
        move = above.sum(1, keepdims=True) - 1
        move /= np.maximum(np.count_nonzero(above, 1, keepdims=True), 1)
        threshold += move
        if not (np.abs(move) > tolerance).any():
            break
    np.maximum(np.subtract(rows, threshold, out=rows), 0, out=rows)
