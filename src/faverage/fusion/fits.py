"""Small AFA networks fitted to the optimum: L-BFGS on the whole set, with analytic gradients.

``ScalarFit`` has one weight a model and mean. With aggregated means x̂ = Σ_j a_j x̃_j and p ∝ (x̂ + floor)^T it minimises

    Σ_i CE_i + shrink · Σ_j KL(w_j ‖ uniform) + 5 (log T)²,    w_j, a on the simplex, T > 0.

``LinearFit`` has one weight a model and class, or a full matrix. With one geometric mean, f(x) = log x of members
softened to (x + e)/(1 + e), AFA with the output ``power`` is log-linear, log p = T W f(x) + const, and so convex in
B = T W:

    Σ_i CE_i + λ/2 (‖B − B₀‖² + ‖b‖²).

The bias b stands for two constant members, "always" (x = 1, log x = 0) and "never" (x = 0): their weights take up what
a row of B leaves to sum to T. In the full structure one number may be added to a column of B for all classes without
any effect, so B ≥ 0 costs nothing. ``network()`` writes either fit as the ``AFA`` module that it is.

``Tied`` fits the same with as few weights as possible: one a model, and one bias, for all classes that the same models
know. Where all models know all classes it is the log-opinion pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import minimize, nnls

from faverage.afa.means import get_mean, mean_names
from faverage.afa.network import AFA
from faverage.fusion.arrays import Array, learned, log_softmax, number, softmax

SOFT = 0.03  # eps of the geometric mean, and the softening of members where there is only one
SOFTENINGS = (1e-6, 1e-3, SOFT, 1.0)  # copies of each member where models know different classes
_UNIT = {
    1e-6: 0.2,
    1e-4: 0.25,
    1e-3: 0.3,
    1e-2: 0.4,
    SOFT: 0.5,
    1.0: 1.0,
}  # unit of each copy's logarithm in the shrinkage, about 1 / its spread
_LOG_T_PRIOR = 10.0
_LEAST_SHARE = 1e-4  # a fit that starts from another takes smaller weights for this: from 0 there is no way back
_NEWTON_STEPS = 30
_CLOSE = 1e-6  # relative decrease of the loss that is not worth another step
_FEW = 10  # steps before the curvature is looked at again
_FEEBLE = 0.05  # axes whose sum of squares is less than this times λ are held at zero: there is nothing to learn
_FLAT = 1e-10  # axes along which rows differ less than this, relative to the longest, are left out
_EPS = 1e-12  # eps of the geometric mean of softened members; log of the member "never"


@dataclass
class ScalarFit:
    """p ∝ (Σ_j a_j x̃_j + floor)^T with one weight a model in each mean: ``(J, K)``, and ``(J,)`` for the means."""

    means: tuple[str, ...]  # names; arithmetic and geometric are quick, others go through their own functions
    weights: Array  # (J, K)
    mix: Array  # (J,)
    temperature: float
    floor: float

    @classmethod
    def fit(
        cls,
        x: Array,
        y: Array,
        weight: Array,
        means: tuple[str, ...],
        *,
        temperature: bool,
        shrink: float,
        floor: float,
        near: ScalarFit | None = None,
    ) -> ScalarFit:
        """Fit to probabilities ``(n, K, N)`` without NaN, in their precision; ``temperature`` False keeps T = 1.

        It starts from equal weights, or from a fit to similar rows.
        """
        n, k, classes = x.shape
        j = len(means)
        by_model = np.ascontiguousarray(x.transpose(1, 2, 0)).reshape(k, classes * n)
        features = [forward(mean, by_model) for mean in means]

        def unpack(t: Array) -> tuple[Array, Array, float]:
            return softmax(t[: j * k].reshape(j, k)), softmax(t[j * k : j * k + j]), float(np.exp(t[-1]))

        def objective(t: Array) -> tuple[float, Array]:
            w, a, big_t = unpack(t)
            raw = [(v.astype(x.dtype) @ f).reshape(classes, n) for f, v in zip(features, w, strict=True)]
            averaged, slope = zip(*(backward(m, r) for m, r in zip(means, raw, strict=True)), strict=True)
            x_hat = sum(v * xt for v, xt in zip(a.tolist(), averaged, strict=True)) + floor
            log_x = np.log(x_hat)
            loss, g = cross_entropy(big_t * log_x, y, weight)
            log_w, log_t = np.log(w + 1e-30), t[-1]
            loss += shrink * float((w * log_w).sum()) + 0.5 * _LOG_T_PRIOR * log_t**2
            out = np.zeros_like(t)
            out[-1] = big_t * (g * log_x).sum() + _LOG_T_PRIOR * log_t if temperature else 0.0
            g = big_t * g / x_hat
            g_a = np.array([(g * xt).sum() for xt in averaged])
            out[j * k : j * k + j] = a * (g_a - a @ g_a)
            for i in range(j):
                g_w = a[i] * (features[i] @ (g * slope[i]).ravel()) + shrink * (log_w[i] + 1)
                out[i * k : (i + 1) * k] = w[i] * (g_w - w[i] @ g_w)
            return loss / weight.sum(), out / weight.sum()

        start = np.zeros(j * k + j + 1)
        if near is not None:
            shares = np.concatenate([near.weights.ravel(), near.mix])
            start[:-1], start[-1] = np.log(np.maximum(shares, _LEAST_SHARE)), np.log(near.temperature)
        w, a, big_t = unpack(lbfgs(objective, start, 200))
        return cls(means, w, a, big_t, floor)

    def log_prob(self, x: Array) -> Array:
        """Return log-probabilities ``(n, N)``."""
        x_hat = np.zeros((len(x), x.shape[2]))
        for mean, w, a in zip(self.means, self.weights, self.mix, strict=True):
            x_hat += a * backward(mean, np.matmul(w, forward(mean, x)))[0]
        return log_softmax(self.temperature * np.log(np.maximum(x_hat, 0) + self.floor))

    @classmethod
    def read(cls, parts: dict[str, Any], n_models: int, n_classes: int) -> ScalarFit:
        """Return the fit whose parts come from a file, or raise ValueError."""
        means = tuple(parts["means"])
        if not means or not set(means) <= set(mean_names()):
            raise ValueError(f"'means' must be names of registered means, got {means}")
        weights, mix = (
            learned(parts, "weights", (len(means), n_models), low=0),
            learned(parts, "mix", (len(means),), low=0),
        )
        if not np.allclose(np.append(weights.sum(1), mix.sum()), 1, atol=1e-3):
            raise ValueError("'weights' and 'mix' must sum to one")
        temperature = number(parts["temperature"], "temperature", low=1e-12)
        return cls(means, weights, mix, temperature, number(parts["floor"], "floor", low=1e-12))

    def shares(self, n_classes: int) -> Array:
        """Return the share of each model ``(N, K)``: its weights, mixed as the means are."""
        return np.tile(self.mix @ self.weights, (n_classes, 1))

    def network(self, n_classes: int) -> AFA:
        """Return the same as an AFA module from ``(n, K, N)``, in float64."""
        means = [{"name": m, "eps": SOFT} if m == "geometric" else m for m in self.means]
        k = self.weights.shape[1]
        afa = AFA(k, n_classes, means=means, structure="scalar", output="power", floor=self.floor).double()
        for average, w in zip(afa.branches, self.weights, strict=True):
            average.weights.set_(torch.from_numpy(w)[None])
        afa.aggregation.set_(torch.from_numpy(self.mix)[None])
        afa.log_temperature.data.fill_(float(np.log(self.temperature)))
        return afa.eval()


@dataclass
class LinearFit:
    """log p = B log(softened members) + b, up to a constant: a geometric AFA with constant members.

    B is ``(N, C·K)`` per class and ``(N, C·K·N)`` in full, b is ``(N,)``.
    """

    structure: Literal["per_class", "full"]
    weights: Array  # B: (N, C·K) per class; (N, C·K·N) full, column (copy·K + k)·N + m is class m of model k
    bias: Array  # (N,)
    softenings: tuple[float, ...]

    @classmethod
    def fit(
        cls,
        x: Array,
        y: Array,
        weight: Array,
        known: Array,
        start: Array,
        *,
        shrink: float,
        warm: LinearFit | None = None,
    ) -> LinearFit:
        """Fit one weight a model and class to probabilities ``(n, K, N)``, where ``known`` ``(K, N)``.

        ``start`` ``(K,)`` is B₀: the weight of each model's own class. For full matrices see ``Full``.
        """
        classes, unit = x.shape[2], _UNIT[SOFT]
        logs = np.log(soften(x, (SOFT,))) * known * unit
        features = np.ascontiguousarray(logs.transpose(2, 0, 1))  # (N, n, K)
        first = np.where(known, start[:, None], 0.0).T / unit  # (N, K)
        begin = first if warm is None else warm.weights / unit
        size = first.size

        def objective(t: Array) -> tuple[float, Array]:
            b_matrix, bias = t[:size].reshape(first.shape), t[size:]
            logits = np.matmul(features, b_matrix[:, :, None].astype(x.dtype))[:, :, 0]
            loss, g = cross_entropy(logits + bias[:, None].astype(x.dtype), y, weight)
            away = b_matrix - first
            loss += 0.5 * shrink * (float((away**2).sum()) + float(bias @ bias))
            gradient = np.matmul(g[:, None], features)[:, 0] + shrink * away
            return loss / weight.sum(), np.concatenate([gradient.ravel(), g.sum(1) + shrink * bias]) / weight.sum()

        bounds = [(0, None)] * size + [(None, None)] * classes
        bias0 = np.zeros(classes) if warm is None else warm.bias
        t = lbfgs(objective, np.concatenate([begin.ravel(), bias0]), 100, bounds)
        return cls("per_class", t[:size].reshape(first.shape) * unit, t[size:], (SOFT,))

    def log_prob(self, x: Array) -> Array:
        """Return log-probabilities ``(n, N)``."""
        logs = soften(x, self.softenings)
        np.log(logs, out=logs)
        if self.structure == "full":
            return log_softmax(logs.reshape(len(x), -1) @ self.weights.T + self.bias)
        return log_softmax(np.einsum("nkc,ck->nc", logs, self.weights) + self.bias)

    def contributions(self, x: Array, first: Array, second: Array) -> Array | None:
        """Return what each model adds to the log-odds of one class over another, ``(n, K)``, for the rows of x.

        None for the full structure, where a model speaks for a class with its scores of all others.
        """
        if self.structure == "full":
            return None
        rows, logs = np.arange(len(x)), np.log(soften(x, self.softenings))
        found = logs[rows, :, first] * self.weights[first] - logs[rows, :, second] * self.weights[second]
        return np.asarray(found.reshape(len(x), len(self.softenings), -1).sum(1))

    @classmethod
    def read(cls, parts: dict[str, Any], n_models: int, n_classes: int) -> LinearFit:
        """Return the fit whose parts come from a file, or raise ValueError."""
        structure, softenings = parts["structure"], tuple(parts["softenings"])
        if structure not in ("per_class", "full") or not softenings or not set(softenings) <= set(_UNIT):
            raise ValueError(f"the structure {structure!r} with the softenings {softenings} is not known")
        width = len(softenings) * n_models * (n_classes if structure == "full" else 1)
        weights = learned(parts, "weights", (n_classes, width))
        return cls(structure, weights, learned(parts, "bias", (n_classes,)), softenings)

    def shares(self, n_classes: int) -> Array:
        """Return the share of each model for each class, ``(N, K)``.

        In the full structure a number added to a column of B for all classes changes nothing, so a share must not
        depend on it: it is the positive part of B − (its mean over the classes). What counts for class c is the column
        of class c itself, and all columns where no model's own score speaks for the class.
        """
        copies = len(self.softenings)
        if self.structure == "per_class":
            trust = self.weights.reshape(n_classes, copies, -1).sum(1)
        else:
            b = np.maximum(self.weights - self.weights.mean(0), 0).reshape(n_classes, copies, -1, n_classes).sum(1)
            own = np.diagonal(b, axis1=0, axis2=2).T
            trust = np.where(own.sum(1, keepdims=True) > 0, own, b.sum(2))
        total = trust.sum(1, keepdims=True)
        return np.asarray(np.where(total > 0, trust / np.where(total > 0, total, 1.0), 1 / trust.shape[1]))

    def network(self, n_classes: int) -> AFA:
        """Return the same as an AFA module from ``members(x)``, ``(n, C·K + 2, N)``, in float64."""
        b = self.weights - (self.weights.min(0) if self.structure == "full" else 0)
        never = (self.bias - self.bias.max()) / np.log(_EPS)
        total = b.sum(1) + never
        big_t = max(float(total.max()), 1e-9)
        if self.structure == "full":
            eye = np.eye(n_classes)
            rows = np.concatenate([b, (big_t - total)[:, None] * eye, never[:, None] * eye], 1) / big_t
        else:
            rows = np.column_stack([b, big_t - total, never]) / big_t
        k = (b.shape[1] // n_classes if self.structure == "full" else b.shape[1]) + 2
        mean = {"name": "geometric", "eps": _EPS}
        afa = AFA(k, n_classes, means=[mean], structure=self.structure, output="power", floor=_EPS).double()
        afa.branches[0].weights.set_(torch.from_numpy(rows))
        afa.log_temperature.data.fill_(float(np.log(big_t)))
        return afa.eval()

    def members(self, x: Array) -> Array:
        """Return what ``network()`` takes: the softened copies, and the members "always" and "never"."""
        shape = (len(x), 1, x.shape[2])
        return np.concatenate([soften(x, self.softenings), np.ones(shape), np.zeros(shape)], 1)


def forward(mean: str, x: Array) -> Array:
    """Return f(x) of a mean, for numbers of any shape."""
    if mean == "arithmetic":
        return x
    if mean == "geometric":
        return np.asarray(np.log(x + SOFT))
    return np.asarray(get_mean(mean)(torch.from_numpy(np.ascontiguousarray(x))).numpy())


def backward(mean: str, y: Array) -> tuple[Array, Array]:
    """Return f⁻¹(y) of a mean and its derivative (or one number for all), for numbers of any shape."""
    if mean == "arithmetic":
        return y, np.ones(1, dtype=y.dtype)
    if mean == "geometric":
        slope = np.exp(y)
        return slope - SOFT, slope
    tensor = torch.from_numpy(np.ascontiguousarray(y)).requires_grad_()
    inverse = get_mean(mean).inverse(tensor)
    (slope_of,) = torch.autograd.grad(inverse.sum(), tensor)
    return inverse.detach().numpy(), slope_of.numpy()


class Tied:
    """The fit of a ``LinearFit`` whose classes share weights and bias in groups: those that the same models know.

    The logarithms are taken once; rows are left out of a fit by a weight of zero, so that folds cost no copies.

    Args:
        x: probabilities ``(n, K, N)`` without NaN.
        y: labels ``(n,)``.
        known: which model knows which class, ``(K, N)``.
        softening: of the members.
    """

    def __init__(self, x: Array, y: Array, known: Array, softening: float) -> None:
        n, _, classes = x.shape
        self.known, self.softening = known, softening
        self.patterns, group = np.unique(known.T, axis=0, return_inverse=True)  # (G, K)
        self.group = group.ravel()  # (N,)
        order = np.argsort(self.group, kind="stable")
        place = np.empty(classes, dtype=np.int64)
        place[order] = np.arange(classes)
        self.row, self.label = np.arange(n), place[y]
        ends, counts = np.searchsorted(self.group[order], np.arange(len(self.patterns) + 1)), self.patterns.sum(1)
        cuts = np.cumsum([0, *counts])
        self.size = int(cuts[-1])  # number of weights; the biases follow
        self.classes_of = [slice(a, b) for a, b in pairwise(ends)]
        self.weights_of = [slice(a, b) for a, b in pairwise(cuts)]
        logs = np.log((x + softening) / (1 + softening), dtype=np.float32)  # half of the bytes, and they are what costs
        self.blocks = [  # for each group (models, classes, n)
            np.ascontiguousarray(logs[:, pattern][:, :, order[part]].transpose(1, 2, 0))
            for pattern, part in zip(self.patterns, self.classes_of, strict=True)
        ]
        labels = [(self.label >= part.start) & (self.label < part.stop) for part in self.classes_of]
        self.rows_of = [np.flatnonzero(inside) for inside in labels]
        self.own = [  # for each group, of the rows whose label is in it (models, rows)
            block[:, self.label[rows] - part.start, rows]
            for block, rows, part in zip(self.blocks, self.rows_of, self.classes_of, strict=True)
        ]
        self.start = np.concatenate([*(np.full(c, 1 / max(c, 1)) for c in counts), np.zeros(len(counts))])

    def fit(self, weight: Array, shrink: float = 1.0, warm: Array | None = None) -> Array:
        """Return all weights, group by group, then the biases, by Newton's method with weights >= 0.

        A step leads to the least of the quadratic model over such weights, so that some step along it always descends.

        Args:
            weight: of each row ``(n,)``.
            shrink: λ of λ/2 ‖t − start‖², in units of rows.
            warm: the weights and biases of a fit to similar rows, to start from.
        """
        t = self.start.copy() if warm is None else warm.copy()
        for _ in range(_NEWTON_STEPS):
            loss, gradient, hessian = self._slopes(t, weight, shrink)
            step = self._least(t, gradient, hessian) - t
            if -float(gradient @ step) <= _CLOSE * loss:
                break
            for length in (1.0, 0.5, 0.25, 0.1, 0.01):
                new = t + length * step
                away = new - self.start
                if float(weight @ self.losses(new)) + shrink / 2 * float(away @ away) < loss:
                    break
            else:
                break  # as low as single precision sees
            t = new
        return t

    def _least(self, t: Array, gradient: Array, hessian: Array) -> Array:
        """Return the least ``(parameters,)`` of the quadratic model around ``t``, with weights >= 0 and any biases."""
        free = ~((np.arange(len(t)) < self.size) & (t <= 0) & (gradient > 0))
        least = np.where(free, t, 0.0)
        least[free] -= np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        if least[: self.size].min(initial=0.0) >= 0:
            return least
        # the model is |factor' u - target|² / 2; a bias is one number minus another, both >= 0
        factor = np.linalg.cholesky(hessian)
        target = solve_triangular(factor, hessian @ t - gradient, lower=True)
        found = nnls(np.hstack([factor.T, -factor.T[:, self.size :]]), target)[0]
        found[self.size : len(t)] -= found[len(t) :]
        return np.asarray(found[: len(t)])

    def left_out(self, t: Array, weight: Array, shrink: float = 1.0) -> Array:
        """Return the loss ``(n,)`` of every row under a fit without it, to first order: a Newton step from ``t``."""
        _, gradient, hessian = self._slopes(t, weight, shrink)
        free = ~((np.arange(len(t)) < self.size) & (t <= 0) & (gradient > 0))
        logits = self._logits(t)
        p = np.exp(logits - logits.max(0))
        each = self._expected(p / p.sum(0))  # the slope of every row's loss
        for g, rows in enumerate(self.rows_of):
            each[self.weights_of[g], rows] -= self.own[g]
            each[self.size + g, rows] -= 1
        moved = np.zeros_like(each)
        moved[free] = np.linalg.solve(hessian[np.ix_(free, free)], each[free] * weight)
        moved[: self.size] = np.maximum(moved[: self.size], -t[: self.size, None])  # weights stay >= 0
        moved = moved.astype(np.float32)
        for g, block in enumerate(self.blocks):
            shift = np.einsum("kcn,kn->cn", block, moved[self.weights_of[g]])
            logits[self.classes_of[g]] += shift + moved[self.size + g]
        return self._losses(logits)

    def losses(self, t: Array) -> Array:
        """Return the loss of every row ``(n,)``."""
        return self._losses(self._logits(t))

    def linear(self, t: Array) -> LinearFit:
        """Return the fit with the weights ``(N, K)`` of every class."""
        by_group = np.zeros(self.patterns.shape)
        by_group[self.patterns] = t[: self.size]
        return LinearFit("per_class", by_group[self.group], t[self.size :][self.group], (self.softening,))

    def _logits(self, t: Array) -> Array:
        """Return ``(N, n)``, the classes in the order of their groups."""
        logits = np.empty((len(self.group), len(self.row)), dtype=np.float32)
        small = t.astype(np.float32)
        for g, block in enumerate(self.blocks):
            part = small[self.weights_of[g]] @ block.reshape(len(block), math.prod(block.shape[1:]))
            logits[self.classes_of[g]] = part.reshape(block.shape[1:]) + small[self.size + g]
        return logits

    def _losses(self, logits: Array) -> Array:
        logits = logits - logits.max(0)
        return np.asarray(np.log(np.exp(logits).sum(0)) - logits[self.label, self.row], dtype=np.float64)

    def _expected(self, p: Array) -> Array:
        """Return the mean of the slopes of the logits under probabilities ``(N, n)``: ``(parameters, n)``."""
        found = np.empty((len(self.start), len(self.row)))
        for g, block in enumerate(self.blocks):
            found[self.weights_of[g]] = np.einsum("kcn,cn->kn", block, p[self.classes_of[g]])
            found[self.size + g] = p[self.classes_of[g]].sum(0)
        return found

    def _slopes(self, t: Array, weight: Array, shrink: float) -> tuple[float, Array, Array]:
        """Return the loss, its gradient and its Hessian."""
        logits = self._logits(t)
        logits -= logits.max(0)
        own = logits[self.label, self.row]
        p = np.exp(logits, out=logits)
        sums = p.sum(0)
        away = t - self.start
        loss = float(weight @ (np.log(sums) - own)) + shrink / 2 * float(away @ away)
        p /= sums
        expected = self._expected(p)
        hessian = shrink * np.eye(len(t)) - (expected * weight) @ expected.T
        gradient = shrink * away + expected @ weight
        p *= weight.astype(np.float32)
        for g, block in enumerate(self.blocks):
            here, bias, rows = self.weights_of[g], self.size + g, self.rows_of[g]
            flat = block.reshape(len(block), math.prod(block.shape[1:]))
            weighted = flat * p[self.classes_of[g]].reshape(-1)
            cross = weighted.sum(1)
            hessian[here, here] += weighted @ flat.T
            hessian[here, bias] += cross
            hessian[bias, here] += cross
            hessian[bias, bias] += p[self.classes_of[g]].sum()
            gradient[here] -= self.own[g] @ weight[rows]
            gradient[bias] -= weight[rows].sum()
        return loss, gradient, hessian


class Full:
    """The fits of a ``LinearFit`` of full matrices to the same rows, for any weights and strengths of shrinkage.

    The logarithms are taken once, and turned to their principal axes. B − B₀ lies in the span of the rows, so there are
    no more axes than rows or features; each is scaled so that the Hessian is about the identity, for a tenth of the
    steps.

    Args:
        x: probabilities ``(n, K, N)`` without NaN.
        y: labels ``(n,)``.
        known: which model knows which class, ``(K, N)``.
        softenings: of the copies; SOFT is one of them.
    """

    def __init__(self, x: Array, y: Array, known: Array, softenings: tuple[float, ...]) -> None:
        n, k, _ = x.shape
        self.y, self.known, self.softenings = y, known, softenings
        logs = np.log(soften(x, softenings))  # (n, C·K, N)
        self.copy = softenings.index(SOFT)
        self.own = logs[:, self.copy * k : (self.copy + 1) * k] * known  # (n, K, N)
        self.unit = np.repeat([_UNIT[e] for e in softenings], int(known.sum()))[:, None]
        inside = np.tile(known.ravel(), len(softenings))
        features = np.column_stack([logs.reshape(n, -1)[:, inside] * self.unit[:, 0], np.ones(n)])  # the bias is last
        wide = features.shape[1] > n
        size, axes = np.linalg.eigh(features @ features.T if wide else features.T @ features)
        size, axes = size[size > _FLAT * size[-1]], axes[:, size > _FLAT * size[-1]]
        self.axes = features.T @ (axes / np.sqrt(size)) if wide else axes  # (features, axes)
        rows = axes * np.sqrt(size) if wide else features @ axes
        self.rows = rows.astype(np.float32)  # (n, axes); half of the bytes, and of the time
        self.size = size / n

    def fit(self, weight: Array, start: Array, shrink: float, warm: Array | None = None) -> Array:
        """Return B − B₀ ``(axes, N)``.

        Args:
            weight: of each row ``(n,)``; rows of weight 0 are left out.
            start: ``(K,)``, B₀: the weight of each model's own class, in its copy softened by SOFT.
            shrink: λ.
            warm: a fit to similar rows, to start from.
        """
        used = weight > 0
        flat = int(np.searchsorted(self.size * len(self.y), _FEEBLE * shrink))  # axes are sorted by size
        w, y, rows = weight[used], self.y[used], self.rows[used, flat:]
        offset = np.einsum("nkc,k->cn", self.own[used], start).astype(np.float32)
        shape = (rows.shape[1], len(offset))
        t = np.zeros(shape) if warm is None else warm[flat:]
        for steps in (_FEW, 100) if warm is None else (100,):  # the scale is that of where it starts: not far, at first
            p = softmax(rows @ t + offset.T)
            scale = 1 / np.sqrt(self.size[flat:, None] * (w @ (p * (1 - p))) + shrink)

            def objective(u: Array, scale: Array = scale) -> tuple[float, Array]:
                t = u.reshape(shape) * scale
                loss, g = cross_entropy(t.T.astype(np.float32) @ rows.T + offset, y, w)
                loss += 0.5 * shrink * float((t**2).sum())
                return loss / w.sum(), (((g @ rows).T + shrink * t) * scale / w.sum()).ravel()

            t = lbfgs(objective, (t / scale).ravel(), steps).reshape(shape) * scale
        return np.concatenate([np.zeros((flat, len(offset))), t])

    def linear(self, t: Array, start: Array) -> LinearFit:
        """Return the fit with B and b, of what ``fit`` returned ``(axes, N)`` and took for ``start`` ``(K,)``."""
        apart = self.axes @ t
        model, column = np.nonzero(self.known)
        k, n_classes = self.known.shape
        b = np.zeros((len(self.softenings), k, n_classes, n_classes))
        b[:, model, column] = (apart[:-1] * self.unit).reshape(len(self.softenings), len(model), n_classes)
        b[self.copy, model, column, column] += start[model]
        return LinearFit("full", np.ascontiguousarray(b.reshape(-1, n_classes).T), apart[-1], self.softenings)


def soften(x: Array, softenings: tuple[float, ...]) -> Array:
    """Return the copies (x + e)/(1 + e) of every member: ``(n, C·K, N)``."""
    copies = [(x + e) / (1 + e) for e in softenings]
    return copies[0] if len(copies) == 1 else np.concatenate(copies, 1)


def cross_entropy(logits: Array, y: Array, weight: Array) -> tuple[float, Array]:
    """Return the weighted sum of losses of logits ``(N, n)``, and its gradient.

    Sums over classes are several times as fast where the rows come last.
    """
    rows = np.arange(len(y))
    gradient = logits - logits.max(0)
    own = gradient[y, rows]
    np.exp(gradient, out=gradient)
    total = gradient.sum(0)
    gradient *= weight.astype(gradient.dtype, copy=False) / total
    gradient[y, rows] -= weight
    return float(weight @ (np.log(total) - own)), gradient


def lbfgs(objective: Callable[[Array], Any], start: Array, iterations: int, bounds: Any = None) -> Array:
    """Minimise from ``start`` ``(p,)``; ``objective`` returns value and gradient."""
    options = {"maxiter": iterations, "maxcor": 8, "ftol": 1e-6, "gtol": 1e-5}
    result: Array = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return result
