"""AFA for regression: candidates from weights on the simplex to signed ones, averaged by held-out loss.

A member's predictions are clipped to the range of the target, with a margin. The candidates are the arithmetic mean
with weights on the simplex, with a scale and a constant, and with weights of any sign (``linear``), each for several λ;
and, where other means promise less error, the network of all means, with a scale and a constant where these serve. With
predictions and targets brought to z and t in [0, 1], ω the sample weights (Σ ω = 1), Δ the unit simplex and u its
centre, its w_1 … w_J ∈ Δ_K and a ∈ Δ_J minimise

    Σ_i ω_i ( Σ_j a_j f_j⁻¹( w_j · f_j(z_i) ) − t_i )² / L₀  +  λ ( Σ_j KL(u ‖ w_j)/J + KL(u ‖ a) )

where L₀ is the squared loss of the plain mean. Each candidate is fitted on all folds but one and judged on that one;
its share of the prediction is in proportion to MSE^(−n/4), the square root of its likelihood. Absolute and quantile
losses are squared ones of rows that are weighed anew until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from faverage.afa.explain import shares
from faverage.afa.means import Arithmetic, Mean, get_mean
from faverage.afa.network import AFA, DEFAULT_MEANS, MeanSpec
from faverage.estimators.linear import (
    AFFINE,
    NO_ERROR,
    SIMPLEX,
    Candidate,
    centre_and_scale,
    fit_linear,
    folds_of,
    simplex_weights,
)
from faverage.threads import few_threads

Array = NDArray[Any]
MEANS = "means"
SHRINKAGES = (1.0, 0.1, 0.01, 1e-3)  # λ of the network, from weights that are drawn to uniform ones to nearly free ones
_SHARPNESS = 0.5  # candidates weigh exp(-_SHARPNESS x summed held-out log-loss), as in classification
_LEAST = 0.01  # candidates of a smaller share are dropped
_GAIN = 0.05  # other means must promise so much less error than the arithmetic one to be worth their time
_ROWS = 2000  # the network is chosen on so many rows, at most
_STEPS = 60  # Newton steps for each λ, at most
_TINY = 1e-300
_TOLERANCE = 1e-9  # of the gradient
_MARGIN = 0.05  # of the range of the predictions, left free at both ends: the means are steep at 0
_REACH = (0.1, 0.5)  # margins of clipping, as parts of the range of the target and of a member's own predictions
_ROUNDS = 20  # of weighing rows anew for another loss, at most
_NEAR = 0.02  # of the mean absolute error: smaller errors count as squares
_TAIL = 0.05  # of a member's own predictions, which do not count at either end of its range


@dataclass(frozen=True)
class Fused:
    """Candidates that are in use, and how they make one prediction.

    Attributes:
        low: ``(K,)``, the least that counts of each member.
        high: ``(K,)``, the most.
        parts: the candidates in use, one of each kind, with their shares.
        network: a scalar AFA from ``(n, K, 1)`` to ``(n, 1)``, with weights on the simplex: that of all means where it
            is in use, else the arithmetic mean.
        zero: the prediction that is 0 to the network.
        span: how far it is from there to 1.
        spread: ``(K,)``, standard deviation of the members' predictions.
        keep_range: whether a prediction is kept within those of the members.
    """

    low: Array
    high: Array
    parts: list[tuple[Candidate, float]]
    network: AFA
    zero: float
    span: float
    spread: Array
    keep_range: bool

    @property
    def shares(self) -> dict[str, float]:
        """The share of each kind of candidate, by name."""
        return {part.kind: share for part, share in self.parts}

    @property
    def shrinkage(self) -> float:
        """The λ of the candidate with the largest share."""
        return max(self.parts, key=lambda pair: pair[1])[0].strength

    def __call__(self, values: Array) -> Array:
        """Fuse predictions ``(n, K)`` to ``(n,)``."""
        clipped = np.clip(values, self.low, self.high)
        fused = np.zeros(len(values))
        for part, share in self.parts:
            inputs = self._averages(clipped)[:, None] if part.kind == MEANS else clipped
            fused += share * (inputs @ part.weights + part.constant)
        return np.clip(fused, values.min(1), values.max(1)) if self.keep_range else fused

    @torch.no_grad()
    def _averages(self, values: Array) -> Array:
        """Return what the network says to ``(n, K)``; a row that reaches below 0 is moved up for it, then back down."""
        z = (values - self.zero) / self.span
        below = np.minimum(z.min(1, keepdims=True), 0.0)
        with few_threads(float(values.size)):
            mean = self.network(torch.from_numpy((z - below)[:, :, None])).numpy() + below
        averages: Array = np.clip(self.zero + self.span * mean[:, 0], values.min(1), values.max(1))
        return averages

    @torch.no_grad()
    def importance(self, means: Sequence[Mean]) -> tuple[Array, Array]:
        """Return the share of each mean ``(J,)`` and of each member ``(K,)`` in the prediction.

        Off the simplex, a member's share is that of its weight, without sign, times the spread of its predictions.
        """
        by_mean, by_member = np.zeros(len(means)), np.zeros(len(self.low))
        for part, share in self.parts:
            if part.kind == MEANS:
                mix, trust = (shared.numpy()[0] for shared in shares(self.network))
            else:
                mix = np.eye(len(means))[next(j for j, mean in enumerate(means) if isinstance(mean, Arithmetic))]
                trust = part.weights if part.kind == SIMPLEX else np.abs(part.weights) * self.spread
                trust = trust / trust.sum() if trust.sum() > 0 else np.full(len(trust), 1 / len(trust))
            by_mean, by_member = by_mean + share * mix, by_member + share * trust
        return by_mean, by_member


def build_means(means: Sequence[MeanSpec]) -> list[Mean]:
    """Return the means that are named, or raise ValueError where ``means`` is no list of them."""
    if isinstance(means, str | Mean | Mapping):
        raise ValueError(f"means must be a list of means, got {means!r} alone; write means=[{means!r}]")
    built = [get_mean(mean) for mean in means]
    if not built:
        raise ValueError(f"means must hold at least one mean, got {means!r}")
    return built


def fit_regression(
    values: Array,
    y: Array,
    weight: Array | None = None,
    means: Sequence[MeanSpec] = DEFAULT_MEANS,
    *,
    keep_range: bool = False,
) -> Fused:
    """Learn to fuse predictions.

    The order of the rows does not matter, and a weight of 2 is the same as a row that occurs twice.

    Args:
        values: predictions ``(n, K)``, each made by a model that had not seen the row.
        y: targets ``(n,)``.
        weight: ``(n,)``, non-negative, not all zero.
        means: the means to choose from; without the arithmetic one, the network of the others is all there is.
        keep_range: choose among weights on the simplex only, and keep predictions within the range of the members.

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
    low, high = _bounds(values, y, weight)
    values, y, weight = _merge(np.clip(values, low, high), y, weight)
    weight = weight / weight.mean()
    zero, span = _range_of(values)
    alone = [mean for mean in chosen if isinstance(mean, Arithmetic)][:1]
    n = len(y)
    with few_threads(float(n) * (len(chosen) * (values.shape[1] + 1)) ** 2):
        linear = fit_linear(values, y, weight, keep_range=keep_range)
        found = linear if alone else []
        simplex = start = _blend(_in_use(linear, n, SIMPLEX))[0]
        if n > 1 and not keep_range:  # a scale and a constant that serve the arithmetic mean serve the others, too
            affine = _blend(_in_use(linear, n, AFFINE))[0]
            start = affine if affine.loss < simplex.loss and affine.weights.any() else simplex
        scale = float(start.weights.sum())
        z, t = (values - zero) / span, ((y - start.constant) / scale - zero) / span
        network = _network(alone, simplex.weights[None], np.ones(1)) if alone else None
        more = n > 1 and len(chosen) > 1 and _Problem(z, t, weight, chosen).promises(start.weights / scale, weight)
        if network is None or more:
            several, strength, loss = _fit_network(z, t, weight, chosen)
            found = [*found, Candidate(MEANS, strength, loss, np.array([scale]), start.constant)]
    parts = _in_use(found, n)
    kinds = dict.fromkeys(part.kind for part, _ in parts)
    parts = [_blend([(part, share) for part, share in parts if part.kind == kind]) for kind in kinds]
    if network is None or MEANS in kinds:
        network = several
    spread = np.sqrt(np.average((values - np.average(values, 0, weight)) ** 2, 0, weight))
    return Fused(low, high, parts, network, zero, span, spread, keep_range)


def level_of(loss: Any) -> float | None:
    """Return the level of a quantile loss, 1/2 of the absolute one, None of the squared one; refuse anything else."""
    known = {"squared": None, "absolute": 0.5}
    if isinstance(loss, str) and loss in known:
        return known[loss]
    if isinstance(loss, tuple | list) and len(loss) == 2 and loss[0] == "quantile":
        level = loss[1]
        if isinstance(level, int | float | np.floating) and 0 < level < 1:
            return float(level)
    raise ValueError(f"loss must be 'squared', 'absolute' or ('quantile', q) with q between 0 and 1, got {loss!r}")


def fit_quantile(
    values: Array,
    y: Array,
    weight: Array | None,
    means: Sequence[MeanSpec],
    level: float,
    *,
    keep_range: bool = False,
) -> Fused:
    """Learn to fuse predictions with the least pinball loss at a level; 1/2 is the absolute loss.

    A row's squared error is divided by its absolute error in the round before, so that both losses have one slope.
    The arguments are those of ``fit_regression``: predictions ``(n, K)``, targets ``(n,)``, weights ``(n,)``.
    """
    own = np.ones(len(y)) if weight is None else weight
    fused, best = fit_regression(values, y, own, means, keep_range=keep_range), np.inf
    latest = fused
    for _ in range(_ROUNDS):
        error = y - latest(values)
        loss = float(own @ np.maximum(level * error, (level - 1) * error))
        if loss >= best * (1 - 1e-4):
            break
        fused, best = latest, loss
        size = np.abs(error)
        near = _NEAR * own @ size / own.sum()
        if near == 0:
            break
        tilt = own * np.where(error >= 0, level, 1 - level) / np.maximum(size, near)
        latest = fit_regression(values, y, tilt, means, keep_range=keep_range)
    return fused


def _in_use(found: list[Candidate], n: int, kind: str = "") -> list[tuple[Candidate, float]]:
    """Return the candidates for n rows with their shares, which sum to one; those of one ``kind``, or all."""
    found = [part for part in found if kind in ("", part.kind)]
    if n == 1:  # nothing was held out: take the first, the most shrunk one
        return [(found[0], 1.0)]
    share = softmax(-_SHARPNESS * n / 2 * np.log([part.loss for part in found]))
    share = np.where(share < _LEAST, 0.0, share)
    return [(part, float(s / share.sum())) for part, s in zip(found, share, strict=True) if s > 0]


def _blend(parts: list[tuple[Candidate, float]]) -> tuple[Candidate, float]:
    """Return candidates of one kind as one, with their share together; λ and loss are those of the largest."""
    total = sum(share for _, share in parts)
    largest = max(parts, key=lambda pair: pair[1])[0]
    weights = np.asarray(sum(share * part.weights for part, share in parts)) / total
    constant = sum(share * part.constant for part, share in parts) / total
    return Candidate(largest.kind, largest.strength, largest.loss, weights, constant), total


def _fit_network(z: Array, t: Array, weight: Array, means: list[Mean]) -> tuple[AFA, float, float]:
    """Fit the network of all means; return it with its λ, that of least held-out loss, and this loss."""
    strength, loss = SHRINKAGES[0], 1.0
    if len(t) > 1:
        thin = slice(None, None, -(-len(t) // _ROWS))
        strength, loss = _choose(_Problem(z[thin], t[thin], weight[thin], means), weight[thin])
    problem = _Problem(z, t, weight, means)
    w, a = problem.path(weight[None], strength)[-1]
    return _network(means, w[0], a[0]), strength, loss


def _choose(problem: _Problem, weight: Array) -> tuple[float, float]:
    """Return the λ of least held-out loss, and the loss as a part of the variance of t; of equals the largest λ."""
    fold = folds_of(len(weight))
    held_out = np.stack([np.where(fold == k, weight, 0.0) for k in range(int(fold.max()) + 1)])
    paths = zip(SHRINKAGES, problem.path(weight - held_out), strict=True)
    losses = {strength: float(problem.loss(w, a, held_out).sum()) for strength, (w, a) in paths}
    best = min(losses, key=lambda strength: losses[strength])
    return best, max(losses[best] / weight.sum() / centre_and_scale(problem.t, weight)[1] ** 2, NO_ERROR)


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

    def promises(self, w: Array, weight: Array) -> bool:
        """Tell whether other means with the weights w ``(K,)`` of the arithmetic one would clearly fit better."""
        errors = np.stack([average[1][0] - self.t for average in self.averages(np.tile(w, (1, len(self.means), 1)))])
        products = (errors * weight) @ errors.T
        alone = min(products[j, j] for j, mean in enumerate(self.means) if isinstance(mean, Arithmetic))
        (mix,) = simplex_weights((products + 1e-12 * (np.trace(products) + _TINY) * np.eye(len(errors)))[None])
        return bool(mix @ products @ mix < (1 - _GAIN) * alone)

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


def _network(means: Sequence[Mean], w: Array, a: Array) -> AFA:
    """Return weights ``(J, K)`` and ``(J,)`` as a network."""
    network = AFA(w.shape[1], 1, means, structure="scalar", output="identity").double()
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


def _bounds(values: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Return the least and the most ``(K,)`` that counts of each member: the range of the target, with a margin.

    A member of another scale is not cut off: all but the ends of its own predictions, with a margin, count as well.
    """
    order = np.argsort(values, 0)
    ordered, reached = np.take_along_axis(values, order, 0), weight[order].cumsum(0)
    ends = [ordered[(reached >= part * reached[-1]).argmax(0), np.arange(len(order[0]))] for part in (_TAIL, 1 - _TAIL)]
    own, least, most = _REACH[1] * (ends[1] - ends[0]), float(y.min()), float(y.max())
    reach = _REACH[0] * (most - least)
    return np.minimum(ends[0] - own, least - reach), np.maximum(ends[1] + own, most + reach)


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
