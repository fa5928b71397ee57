"""AFA for regression: one weight a model and mean, fitted to the squared loss.

Predictions v and targets y are brought to z = (v − lo)/(hi − lo) and t = (y − lo)/(hi − lo), so that any sign and scale
will do. With ω the sample weights (Σ ω = 1), Δ the unit simplex and u its centre, w_1 … w_J ∈ Δ_K and a ∈ Δ_J minimise

    Σ_i ω_i ( Σ_j a_j f_j⁻¹( w_j · f_j(z_i) ) − t_i )² / L₀  +  λ ( Σ_j KL(u ‖ w_j)/J + KL(u ‖ a) )

where L₀ is the squared loss of the plain mean. λ, and whether the arithmetic mean serves alone or together with the
others, are chosen by the loss on five held-out folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from faverage.afa.means import Arithmetic, Mean, get_mean
from faverage.afa.network import AFA, DEFAULT_MEANS, MeanSpec
from faverage.threads import few_threads

Array = NDArray[Any]
SHRINKAGES = (1.0, 0.1, 0.01, 1e-3)  # λ, from weights that are drawn to uniform ones to nearly free ones
_FOLDS = 5
_ROWS = 2000  # the choice is made on so many rows, at most
_STEPS = 60  # Newton steps for each λ, at most
_TINY = 1e-300
_TOLERANCE = 1e-9  # of the gradient
_MARGIN = 0.05  # of the range of the predictions, left free at both ends: the means are steep at 0


@dataclass(frozen=True)
class Fused:
    """A fitted network with the range that it works on.

    Attributes:
        network: a scalar AFA from z ``(n, K, 1)`` to ``(n, 1)``.
        low: lo.
        span: hi − lo.
        shrinkage: the λ that was chosen.
    """

    network: AFA
    low: float
    span: float
    shrinkage: float

    @torch.no_grad()
    def __call__(self, values: Array) -> Array:
        """Fuse predictions ``(n, K)`` to ``(n,)``, which lie between the least and the largest of their row.

        A row that reaches below lo is moved up for the means and back down afterwards.
        """
        z = (values - self.low) / self.span
        below = np.minimum(z.min(1, keepdims=True), 0.0)
        with few_threads(float(values.size)):
            mean = self.network(torch.from_numpy((z - below)[:, :, None])).numpy() + below
        fused: Array = np.clip(self.low + self.span * mean[:, 0], values.min(1), values.max(1))
        return fused


def build_means(means: Sequence[MeanSpec]) -> list[Mean]:
    """Return the means that are named, or raise ValueError where ``means`` is no list of them."""
    if isinstance(means, str | Mean | Mapping):
        raise ValueError(f"means must be a list of means, got {means!r} alone; write means=[{means!r}]")
    built = [get_mean(mean) for mean in means]
    if not built:
        raise ValueError(f"means must hold at least one mean, got {means!r}")
    return built


def fit_regression(
    values: Array, y: Array, weight: Array | None = None, means: Sequence[MeanSpec] = DEFAULT_MEANS
) -> Fused:
    """Learn to fuse predictions.

    The order of the rows does not matter, and a weight of 2 is the same as a row that occurs twice.

    Args:
        values: predictions ``(n, K)``, each made by a model that had not seen the row.
        y: targets ``(n,)``.
        weight: ``(n,)``, non-negative, not all zero.
        means: the means to choose from.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=200)
    >>> good, bad = y + 0.1 * rng.normal(size=200), y + rng.normal(size=200)
    >>> fused = fit_regression(np.stack([good, bad], 1), y, means=["arithmetic"])
    >>> bool(fused.network.averages[0].weight[0, 0] > 0.95)
    True
    """
    chosen = build_means(means)
    weight = np.ones(len(y)) if weight is None else weight
    values, y, weight = values[weight > 0], y[weight > 0], weight[weight > 0]
    low, span = _range_of(values)
    z, t, weight = _merge((values - low) / span, (y - low) / span, weight)
    alone = [mean for mean in chosen if isinstance(mean, Arithmetic)][:1]
    sets: list[list[Mean]] = [[*alone], chosen] if 0 < len(alone) < len(chosen) else [chosen]

    means_used, shrinkage = sets[0], SHRINKAGES[0]
    with few_threads(float(len(t)) * (len(chosen) * (z.shape[1] + 1)) ** 2):
        if len(t) > 1:
            thin = slice(None, None, -(-len(t) // _ROWS))
            means_used, shrinkage = _choose(z[thin], t[thin], weight[thin], sets)
        problem = _Problem(z, t, weight, means_used)
        w, a = problem.path(weight[None], shrinkage)[-1]
        return Fused(problem.network(w[0], a[0]), low, span, shrinkage)


def _choose(z: Array, t: Array, weight: Array, sets: list[list[Mean]]) -> tuple[list[Mean], float]:
    """Return the means and the shrinkage of least held-out loss; of equals the simplest."""
    fold = np.arange(len(t)) % _FOLDS  # the rows are sorted: deal them in turn
    held_out = np.stack([np.where(fold == k, weight, 0.0) for k in range(min(_FOLDS, len(t)))])
    losses = {}
    for i, means in enumerate(sets):
        problem = _Problem(z, t, weight, means)
        for shrinkage, (w, a) in zip(SHRINKAGES, problem.path(weight - held_out), strict=True):
            losses[i, shrinkage] = float(problem.loss(w, a, held_out).sum())
    best, shrinkage = min(losses, key=lambda key: losses[key])
    return sets[best], shrinkage


class _Problem:
    """The objective for one set of means on merged rows, for B sets of sample weights ``(B, n)`` at a time."""

    def __init__(self, z: Array, t: Array, weight: Array, means: list[Mean]) -> None:
        self.t, self.means = t, means
        self.values = [mean(torch.from_numpy(z)).numpy() for mean in means]  # f_j(z): (n, K) each
        plain = weight @ (z.mean(1) - t) ** 2 / weight.sum()
        noise = np.finfo(np.float64).eps * np.abs(t).max()
        self.plain_loss = max(float(plain), float(noise) ** 2, 1e-300)

    def path(self, weight: Array, least: float = 0.0) -> list[tuple[Array, Array]]:
        """Return the minimisers w ``(B, J, K)`` and a ``(B, J)`` for each shrinkage down to ``least``.

        Each is started from the one before.

        Newton steps on the logarithms of w and a, damped until the objective falls (Levenberg, Marquardt).
        """
        weight = weight / weight.sum(1, keepdims=True)
        n_means, n_models = len(self.means), self.values[0].shape[1]
        logs = np.zeros((len(weight), n_means, n_models + 1))  # the last column is that of a
        found = []
        for shrinkage in (s for s in SHRINKAGES if s >= least):
            damping = np.full(len(weight), 1e-3)
            value, gradient, hessian = self.expand(logs, weight, shrinkage)
            for _ in range(_STEPS):
                if np.abs(gradient).max() < _TOLERANCE:
                    break
                damped = hessian + damping[:, None, None] * np.eye(hessian.shape[1])
                trial = logs - np.linalg.solve(damped, gradient[:, :, None]).reshape(logs.shape)
                new = self.expand(trial, weight, shrinkage)
                better = new[0] <= value + 1e-14  # up to rounding
                logs[better] = trial[better]
                for old, latest in zip((value, gradient, hessian), new, strict=True):
                    old[better] = latest[better]
                damping = np.clip(np.where(better, damping / 8, damping * 8), 1e-9, 1e6)
            found.append(_weights(logs))
        return found

    def averages(self, w: Array) -> list[tuple[Array, Array, Array, Array]]:
        """Return for each mean y = w_j · f_j(z), f_j⁻¹(y), and its first and second derivative, each ``(B, n)``."""
        mixed = [w[:, j] @ x.T for j, x in enumerate(self.values)]
        return [(y, *_inverse(mean, y)) for mean, y in zip(self.means, mixed, strict=True)]

    def loss(self, w: Array, a: Array, weight: Array) -> Array:
        """Return the weighted sum of squares ``(B,)``."""
        fused = sum(a[:, j, None] * average[1] for j, average in enumerate(self.averages(w)))
        total: Array = (weight * (fused - self.t) ** 2).sum(1)
        return total

    def expand(self, logs: Array, weight: Array, shrinkage: float) -> tuple[Array, Array, Array]:
        """Return the objective ``(B,)``, its gradient ``(B, P)`` and its Hessian ``(B, P, P)`` in the logarithms."""
        w, a = _weights(logs)
        n_sets, n_means, n_models = w.shape
        averages = self.averages(w)
        means = np.stack([average[1] for average in averages], 1)  # (B, J, n)
        fused = (a[:, None] @ means)[:, 0]
        residual = fused - self.t
        slope = 2 / self.plain_loss * weight * residual  # of the loss by the fused value, (B, n)
        distance = -np.log(n_models * w + _TINY).mean((1, 2)) - np.log(n_means * a + _TINY).mean(1)
        value = 0.5 * (slope * residual).sum(1) + shrinkage * distance

        jacobian = np.empty((n_sets, n_means, n_models + 1, len(self.t)))  # of the fused value
        hessian = np.zeros((n_sets, n_means, n_models + 1, n_means, n_models + 1))
        pull = np.concatenate([(w - 1 / n_models) / n_means, (a - 1 / n_means)[:, :, None]], 2)
        for j, (x, (mixed, _, first, second)) in enumerate(zip(self.values, averages, strict=True)):
            inner = w[:, j, :, None] * (x.T - mixed[:, None])  # of w_j · f_j(z), (B, K, n)
            jacobian[:, j, :-1] = (a[:, j, None] * first)[:, None] * inner
            gain = a[:, j, None] * slope
            bend = (inner * (gain * second)[:, None]) @ inner.transpose(0, 2, 1)
            bend += _softmax_hessian(w[:, j], (gain * first) @ x)
            hessian[:, j, :-1, j, :-1] = bend + shrinkage / n_means * _softmax_covariance(w[:, j])
            across = np.einsum("bkn,bn->bk", jacobian[:, j, :-1], slope)[:, None] * (np.eye(n_means)[j] - a)[:, :, None]
            hessian[:, :, -1, j, :-1] = across
            hessian[:, j, :-1, :, -1] = across.transpose(0, 2, 1)
        jacobian[:, :, -1] = a[:, :, None] * (means - fused[:, None])
        by_mean = (means @ slope[:, :, None])[:, :, 0]
        hessian[:, :, -1, :, -1] = _softmax_hessian(a, by_mean) + shrinkage * _softmax_covariance(a)
        flat = jacobian.reshape(n_sets, -1, len(self.t))
        gradient = (flat @ slope[:, :, None])[:, :, 0] + shrinkage * pull.reshape(n_sets, -1)
        gram = (flat * (2 / self.plain_loss * weight)[:, None]) @ flat.transpose(0, 2, 1)
        return value, gradient, gram + hessian.reshape(gram.shape)

    def network(self, w: Array, a: Array) -> AFA:
        """Return weights ``(J, K)`` and ``(J,)`` as a network."""
        network = AFA(w.shape[1], 1, self.means, structure="scalar", output="identity").double()
        for average, row in zip(network.averages, w, strict=True):
            average.weights.set_(torch.from_numpy(row[None]))  # type: ignore[operator, call-overload]
        network.aggregation.set_(torch.from_numpy(a[None]))
        return network.eval()


def _weights(logs: Array) -> tuple[Array, Array]:
    return softmax(logs[:, :, :-1], axis=2), softmax(logs[:, :, -1], axis=1)


def _softmax_covariance(p: Array) -> Array:
    """Return diag(p) − p pᵀ for p ``(B, m)``: the Hessian of KL(u ‖ softmax) in the logarithms."""
    covariance: Array = p[:, :, None] * (np.eye(p.shape[1]) - p[:, None])
    return covariance


def _softmax_hessian(p: Array, q: Array) -> Array:
    """Return the Hessian of q · softmax in the logarithms, at the softmax p ``(B, m)``."""
    centred = p * (q - (p * q).sum(1, keepdims=True))
    mixed = centred[:, :, None] * p[:, None]
    hessian: Array = centred[:, :, None] * np.eye(p.shape[1]) - mixed - mixed.transpose(0, 2, 1)
    return hessian


def _inverse(mean: Mean, y: Array) -> tuple[Array, Array, Array]:
    """Return f⁻¹(y) and its first and second derivative."""
    if isinstance(mean, Arithmetic):
        return y, np.ones_like(y), np.zeros_like(y)
    with torch.enable_grad():
        inputs = torch.from_numpy(y).requires_grad_()
        outputs = mean.inverse(inputs)
        (first,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), inputs) if first.requires_grad else (torch.zeros_like(first),)
    return outputs.detach().numpy(), first.detach().numpy(), second.numpy()


def _range_of(values: Array) -> tuple[float, float]:
    """Return lo and hi − lo: the range of all predictions with a margin."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    size = max(abs(low), abs(high))
    if span <= 1e-12 * size or span == 0:
        span = size or 1.0
    return low - _MARGIN * span, span * (1 + 2 * _MARGIN)


def _merge(z: Array, t: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Sort the rows by target, then by predictions, and merge those that are equal up to rounding."""
    keys = np.concatenate([t[:, None], z], 1)
    low, spread = keys.min(0), np.ptp(keys, 0)
    keys = np.round((keys - low) / np.where(spread > 0, spread, 1.0), 9)
    _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return z[first], t[first], np.bincount(group.ravel(), weight)
