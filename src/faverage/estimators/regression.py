"""AFA for regression: candidates from weights on the simplex to signed ones, averaged by held-out loss.

A member's predictions are clipped to the range of the target, with a margin. The candidates are the arithmetic mean
with weights on the simplex, with a scale and a constant, and with weights of any sign (``linear``), each for several λ;
and, where other means promise less error, the network of all means, with a scale and a constant where these serve. With
predictions and targets brought to z and t, about in [0, 1], and ω the sample weights, each of its means is fitted
alone, w_j on the unit simplex minimising

    Σ_i ω_i ( f_j⁻¹( w_j · f_j(z_i) ) − t_i )²  +  λ σ² | w_j − 1/K |²

with σ² the mean squared error of the best member; then a on the simplex, in the same way, mixes them with λ = 1. Each
candidate is fitted on all folds but one and judged on that one; its share of the prediction is in proportion to
MSE^(−n/4), the square root of its likelihood. Absolute and quantile losses are
squared ones of rows that are weighed anew until nothing changes.
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
SHRINKAGE = 5.0  # λ of the network
_SHARPNESS = 0.5  # candidates weigh exp(-_SHARPNESS x summed held-out log-loss), as in classification
_LEAST = 0.01  # candidates of a smaller share are dropped
_GAIN = 0.05  # other means must promise so much less error than the arithmetic one to be worth their time
_STEPS = 3  # from the plain mean to the weights of each mean
_TINY = 1e-300
_MARGIN = 0.05  # of the range of the predictions, left free at both ends: the means are steep at 0
_REACH = (0.1, 0.5)  # margins of clipping, as parts of the range of the target and of a member's own predictions
_ROUNDS = 20  # of weighing rows anew for another loss, at most
_NEAR = 0.02  # of the mean absolute error: smaller errors count as squares
_FEW = 40.0  # over the number of different rows: that margin for the target where it is more, as few rows say little
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
        simplex = _blend(_in_use(linear, n, SIMPLEX))[0]
        starts = [simplex]
        if n > 1 and not keep_range:  # a scale and a constant that serve the arithmetic mean may serve the others, too
            starts += [part for part, _ in [_blend(_in_use(linear, n, AFFINE))] if part.weights.any()]
        z = (values - zero) / span
        inputs = [mean(torch.from_numpy(z)).numpy() for mean in chosen]  # f_j(z): (n, K) each
        aims = [((y - s.constant) / s.weights.sum() - zero) / span for s in starts]
        network = _network(alone, simplex.weights[None], np.ones(1)) if alone else None
        promised = [_promised(inputs, t, weight, chosen, s.weights) for s, t in zip(starts, aims, strict=True)]
        together, apart = np.min(promised, 0)
        if network is None or (n > 1 and together < (1 - _GAIN) * apart):
            best = int(np.argmin(promised, 0)[0])
            several, loss = _fit_network(z, inputs, aims[best], weight, chosen)
            scale = np.array([starts[best].weights.sum()])
            found = [*found, Candidate(MEANS, SHRINKAGE, loss, scale, starts[best].constant)]
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


def _fit_network(z: Array, inputs: list[Array], t: Array, weight: Array, means: list[Mean]) -> tuple[AFA, float]:
    """Fit the network of all means to predictions z and f_j(z), ``(n, K)``, targets and weights ``(n,)``.

    Return it with its held-out loss, as a part of the variance of t; of one row there is none.
    """
    fold = folds_of(len(t))
    held_out = np.stack([np.where(fold == k, weight, 0.0) for k in range(int(fold.max()) + 1)])
    sets = np.concatenate([weight[None], weight - held_out]) if len(t) > 1 else weight[None]
    variance = centre_and_scale(t, weight)[1] ** 2
    unit = max(float(np.min(weight @ (z - t[:, None]) ** 2)) / weight.sum(), NO_ERROR * variance)
    fits = [_fit_mean(mean, x, t, sets, SHRINKAGE * unit) for mean, x in zip(means, inputs, strict=True)]
    errors = np.stack([averages for _, averages in fits], 1) - t  # (B, J, n)
    products = (errors * sets[:, None]) @ errors.transpose(0, 2, 1)
    a = simplex_weights(products + unit * np.eye(len(means)))
    network = _network(means, np.stack([w[0] for w, _ in fits]), a[0])
    if len(t) == 1:
        return network, 1.0
    fused = (a[1:, None] @ errors[1:])[:, 0]
    return network, max(float((held_out * fused**2).sum() / weight.sum() / variance), NO_ERROR)


def _fit_mean(mean: Mean, x: Array, t: Array, sets: Array, shrink: float) -> tuple[Array, Array]:
    """Return the weights ``(B, K)`` of one mean for B sets of sample weights ``(B, n)``, and its averages ``(B, n)``.

    Gauss and Newton's steps from the plain mean of f(z) ``(n, K)``, each to the least squares on the simplex of the
    average as a linear function of w; of all steps the best counts.
    """
    w = np.full((len(sets), x.shape[1]), 1 / x.shape[1])
    best, averages, least = w, np.empty_like(sets), np.full(len(sets), np.inf)
    for step in range(_STEPS + 1):
        mixed = w @ x.T
        average, slope = _inverse(mean, mixed)
        loss = (sets * (average - t) ** 2).sum(1) + shrink * ((w - 1 / w.shape[1]) ** 2).sum(1)
        better = loss < least
        best, least = np.where(better[:, None], w, best), np.where(better, loss, least)
        averages[better] = average[better]
        if step == _STEPS or (step == 1 and isinstance(mean, Arithmetic)):  # which is linear
            break
        errors = slope[:, None] * x.T + (average - slope * mixed - t)[:, None]  # (B, K, n), as w sums to one
        products = (errors * sets[:, None]) @ errors.transpose(0, 2, 1)
        w = simplex_weights(products + shrink * np.eye(w.shape[1]))
    return best, averages


def _promised(inputs: list[Array], t: Array, weight: Array, means: list[Mean], w: Array) -> tuple[float, float]:
    """Return the squared error in y of all means with the weights w ``(K,)`` of the arithmetic one, and of this alone.

    The means take f_j(z) ``(n, K)``. The w sum to the scale that was taken off y to get t ``(n,)``.
    """
    scale = float(w.sum())
    errors = np.stack([_inverse(mean, x @ (w / scale))[0] - t for mean, x in zip(means, inputs, strict=True)])
    products = scale**2 * (errors * weight) @ errors.T
    alone = min((products[j, j] for j, mean in enumerate(means) if isinstance(mean, Arithmetic)), default=np.inf)
    (mix,) = simplex_weights((products + 1e-12 * (np.trace(products) + _TINY) * np.eye(len(errors)))[None])
    return float(mix @ products @ mix), float(alone)


def _network(means: Sequence[Mean], w: Array, a: Array) -> AFA:
    """Return weights ``(J, K)`` and ``(J,)`` as a network."""
    network = AFA(w.shape[1], 1, means, structure="scalar", output="identity").double()
    for average, row in zip(network.averages, w, strict=True):
        average.weights.set_(torch.from_numpy(row[None]))  # type: ignore[operator, call-overload]
    network.aggregation.set_(torch.from_numpy(a[None]))
    return network.eval()


def _inverse(mean: Mean, y: Array) -> tuple[Array, Array]:
    """Return f⁻¹(y) and its derivative, for y of any shape."""
    with torch.enable_grad():
        inputs = torch.from_numpy(y).requires_grad_()
        outputs = mean.inverse(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs)
    return outputs.detach().numpy(), slope.numpy()


def _bounds(values: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Return the least and the most ``(K,)`` that counts of each member: the range of the target, with a margin.

    A member of another scale is not cut off: all but the ends of its own predictions, with a margin, count as well.
    """
    order = np.argsort(values, 0)
    ordered, reached = np.take_along_axis(values, order, 0), weight[order].cumsum(0)
    ends = [ordered[(reached >= part * reached[-1]).argmax(0), np.arange(len(order[0]))] for part in (_TAIL, 1 - _TAIL)]
    own, least, most = _REACH[1] * (ends[1] - ends[0]), float(y.min()), float(y.max())
    reach = max(_REACH[0], _FEW / len(np.unique(values.sum(1)))) * (most - least)
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
