"""Quantiles of several models, fused to one set of quantiles that never cross.

z_ikq is the quantile of member k at level τ_q for row i. A member that is missing in a row is filled in with the mean
of those present. Two more columns are the median of those present, which no wild member moves, and their linear pool,
the quantiles of the mixture of their distributions, which is the wider the less they agree. With w on the simplex of
all K + 2 columns, and c three quarters of the plain mean of the members and one of the pool, w minimises

    Σ_i ω_i / s_i Σ_q ρ_τq( y_i − w · z_iq ) / L₀  +  λ | w − c |²

where ρ is the pinball loss (their mean is half the weighted interval score), s_i the spread of row i, so that rows of
large and small targets count alike, and L₀ the loss of c. An average of increasing quantiles is increasing.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from faverage.errors import UserError
from faverage.estimators.held_out import conformal_quantile
from faverage.estimators.linear import simplex_weights
from faverage.forecasts.scores import check_levels, pinball_loss
from faverage.threads import few_threads

Array = NDArray[Any]
STRENGTHS = (3.0, 1.0, 0.3)  # λ, from nearly the plain mean to nearly free weights
_GROUP_STRENGTH = 1.0  # λ of a group's weights, which are drawn to those of all groups
_POOLED = 0.25  # of the linear pool in the average that weights are drawn to
_FOLDS = 4
_CELLS = 50_000  # rows times levels that weights are fitted to, at most
_LEAST_SPREAD = 0.05  # of the median of all spreads: rows of less spread count as if they had this
_CHUNK = 1000  # rows that are pooled at a time
_STEPS, _TOLERANCE = 30, 1e-4
_SHARPNESS = 0.5  # candidates weigh (held-out loss)^(-_SHARPNESS x number of dates)


class QuantileFuser:
    """Quantiles of K models, fused by learned weights.

    Candidates are a fixed average of the members (three quarters the plain mean of their quantiles, one quarter their
    linear pool) and weights on the simplex that are drawn to it more or less; where groups are given, also weights of
    each group's own, drawn to those of all. Each has a share by its pinball loss on dates that were held out.

    Args:
        levels: of the quantiles ``(Q,)``, increasing, between 0 and 1.
        calibrate: widen intervals that held too little on the dates that were held out (conformalised quantile
            regression), by group where there are groups. None is narrowed: held-out dates are kinder than coming ones.

    Attributes:
        weights_: ``(K,)``, weights of the members; where one is missing, its weight goes to the mean of those
            present.
        pooled_weights_: the weights of the ``median`` and of the ``pool`` of the members; all weights sum to one.
        group_weights_: the same by group, ``(K + 2,)`` each, median and pool last; empty where no groups were given.
        shares_: the share of each candidate, by name.
        margins_: by group, ``(Q,)``: how far ``calibrate`` moves the quantiles, in spreads of a row.

    >>> rng = np.random.default_rng(0)
    >>> y, levels = rng.normal(size=400), [0.1, 0.5, 0.9]
    >>> good = y[:, None] + 0.1 * rng.normal(size=(400, 1)) + [-0.13, 0, 0.13]
    >>> bad = np.tile([-1.3, 0, 1.3], (400, 1))
    >>> fuser = QuantileFuser(levels).fit(np.stack([good, bad], 1), y)
    >>> bool(fuser.weights_[0] > 0.8), fuser.predict(np.stack([good, bad], 1)).shape
    (True, (400, 3))
    """

    def __init__(self, levels: ArrayLike, *, calibrate: bool = False) -> None:
        self.levels = levels
        self.calibrate = calibrate

    def fit(
        self,
        predictions: ArrayLike,
        y: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        dates: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn weights.

        Args:
            predictions: quantiles ``(n, K, Q)``, NaN where a member is missing; made without knowing y. A member that
                lacks some levels of a row is missing there.
            y: what came true ``(n,)``.
            groups: ``(n,)``, such as the horizon of each row.
            dates: ``(n,)``, anything that can be sorted. Rows of one date are held out together, and dates in runs:
                what is common to a date does not leak. Without dates, rows are taken to be in order of time.
            sample_weight: ``(n,)``, non-negative, such as less for long ago.
        """
        levels = check_levels(self.levels)
        z = check_quantiles(predictions, levels)
        n = len(z)
        y = _column("y", y, n).astype(np.float64)
        if not np.isfinite(y).all():
            raise UserError("y has NaN or infinite values: leave out rows whose truth is not known", what="y")
        weight = np.ones(n) if sample_weight is None else _column("sample_weight", sample_weight, n).astype(np.float64)
        if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
            raise UserError("sample_weight must be non-negative numbers, not all zero", what="sample_weight")
        group = np.zeros(n, dtype=np.int64) if groups is None else _column("groups", groups, n)
        when = np.arange(n) if dates is None else _column("dates", dates, n)
        use = weight > 0
        z, y, weight, group, when = z[use], y[use], weight[use], group[use], when[use]
        self._n_members = z.shape[1]
        self._grouped = groups is not None

        columns, spread = columns_of(z, levels)
        self._least = _LEAST_SPREAD * float(np.median(spread))
        spread = np.maximum(spread, self._least) + np.finfo(float).tiny
        order = np.unique(when, return_inverse=True)[1].ravel()
        blocks = int(order.max()) + 1
        fold = order * min(_FOLDS, blocks) // blocks
        names = list(np.unique(group))
        centre = np.append(np.full(z.shape[1], (1 - _POOLED) / z.shape[1]), [0.0, _POOLED])
        problem = _Problem(columns, y, levels, weight / spread, group, names, centre)
        with few_threads(float(problem.rows.size) * len(levels) * z.shape[1] ** 2):
            every = problem.solve(np.ones(len(y), dtype=bool))
            held_out, loss = [], np.zeros(len(every))
            if fold.any():
                fused = np.empty((len(every), len(y), len(levels)))
                for f in range(int(fold.max()) + 1):
                    rest = problem.solve(fold != f, every)
                    for c, weights in enumerate(rest.values()):
                        fused[c, fold == f] = problem.fuse(weights, fold == f)
                held_out = [weight / spread @ pinball_loss(y, one, levels).mean(1) for one in fused]
                loss = np.log(np.array(held_out) + np.finfo(float).tiny)
        share = np.exp(-_SHARPNESS * blocks * (loss - loss.min()))
        share = share / share.sum() if held_out else np.eye(len(every))[0]
        self.shares_ = dict(zip(every, share.tolist(), strict=True))
        mixed = {g: sum(s * w[g] for s, w in zip(share, every.values(), strict=True)) for g in names}
        self.group_weights_ = mixed if self._grouped else {}
        overall = np.asarray(sum(np.count_nonzero(group == g) * mixed[g] for g in names)) / len(group)
        self.weights_ = overall[:-2]
        self.pooled_weights_ = {"median": float(overall[-2]), "pool": float(overall[-1])}
        self._weights = {**mixed, None: overall}
        self.margins_ = {}
        for g in names if self.calibrate and held_out else ():
            rows = group == g
            together = np.einsum("c,cnq->nq", share, fused[:, rows])
            self.margins_[g] = margins(together, y[rows], levels, weight[rows], spread[rows])
        return self

    def predict(self, predictions: ArrayLike, *, groups: ArrayLike | None = None) -> Array:
        """Return fused quantiles ``(n, Q)``, increasing in each row.

        Args:
            predictions: quantiles ``(n, K, Q)``, NaN where a member is missing.
            groups: ``(n,)``, where ``fit`` had groups; one that it did not have gets the weights of all together.
        """
        if not hasattr(self, "weights_"):
            raise UserError("this QuantileFuser is not fitted yet: call fit first")
        levels = check_levels(self.levels)
        z = check_quantiles(predictions, levels, self._n_members)
        if (groups is None) == self._grouped:
            raise UserError("give groups to predict if and only if fit had them", what="groups")
        group = np.zeros(len(z), dtype=np.int64) if groups is None else _column("groups", groups, len(z))
        columns, spread = columns_of(z, levels)
        spread = np.maximum(spread, self._least)
        fused = np.empty((len(z), len(levels)))
        for g in np.unique(group):
            rows = group == g
            fused[rows] = np.einsum("ncq,c->nq", columns[rows], self._weights.get(g, self._weights[None]))
            fused[rows] += spread[rows, None] * self.margins_.get(g, np.zeros(len(levels)))
        fused.sort(1)  # moves by margins may cross; and rounding
        return fused


def margins(fused: Array, y: Array, levels: Array, weight: Array, spread: Array) -> Array:
    """Return how far to move each quantile ``(Q,)``, in spreads of a row, so that intervals have their coverage.

    The levels τ and 1 − τ are the ends of an interval, and are moved outwards by the same margin: with r rows of equal
    weight, the ⌈(r + 1)(1 − 2τ)⌉-th smallest of max(low − y, y − high), or the largest where there are too few
    (conformalised quantile regression; Romano, Patterson and Candès, 2019); they stay where that is negative. A level
    whose mirror image is not there is moved alone; the median stays.

    Args:
        fused: quantiles ``(r, Q)`` of rows that were held out.
        y: ``(r,)``.
        levels: ``(Q,)``.
        weight: positive, ``(r,)``.
        spread: of each row, ``(r,)``.

    >>> q = np.tile([-1.0, 0.0, 1.0], (4, 1))
    >>> margins(q, np.array([0.5, -2.0, 1.5, 4.0]), np.array([0.2, 0.5, 0.8]), np.ones(4), np.ones(4))
    array([-1.,  0.,  1.])
    """
    # beyond the quantile, away from the median
    outside = np.sign(levels - 0.5) * (y[:, None] - fused) / spread[:, None]
    found = np.zeros(len(levels))
    for q in np.flatnonzero(np.abs(levels - 0.5) > 1e-9):
        alike = np.abs(np.abs(levels - 0.5) - np.abs(levels[q] - 0.5)) < 1e-9  # it, and its mirror image
        scores, both = outside[:, alike].max(1), np.count_nonzero(alike) > 1
        held = 2 * abs(levels[q] - 0.5) if both else max(levels[q], 1 - levels[q])
        margin = min(conformal_quantile(scores, weight, held), scores.max())
        found[q] = np.sign(levels[q] - 0.5) * max(margin, 0.0)
    return found


def check_quantiles(predictions: ArrayLike, levels: Array, n_members: int | None = None) -> Array:
    """Return quantiles ``(n, K, Q)`` as numbers, NaN in all levels of a member that is missing in a row.

    Refuses another shape, quantiles that cross, infinite ones, and rows without any member. Levels are ``(Q,)``.
    """
    z = np.array(predictions, dtype=np.float64)
    wanted = f"(n, {'K' if n_members is None else n_members}, {len(levels)})"
    if z.ndim != 3 or z.shape[2] != len(levels) or 0 in z.shape or n_members not in (None, z.shape[1]):
        raise UserError(f"predictions must be {wanted}: rows, members, levels; got shape {z.shape}", what="predictions")
    if np.isinf(z).any():
        raise UserError("predictions have infinite values: a missing member is NaN", what="predictions")
    crossing = np.argwhere((np.diff(z, axis=2) < -1e-9 * np.abs(z[:, :, 1:])).any(2))
    if len(crossing):
        row, member = crossing[0].tolist()
        raise UserError(
            f"quantiles of member {member} cross in row {row}, and in {len(crossing) - 1} other places",
            what="predictions",
            hint="leave it out (NaN), or sort them: np.sort(predictions, axis=2)",
        )
    z[np.isnan(z).any(2)] = np.nan
    empty = np.flatnonzero(np.isnan(z[:, :, 0]).all(1))
    if len(empty):
        raise UserError(
            f"row {empty[0]} has no member, and {len(empty) - 1} others have none: leave them out", what="predictions"
        )
    return z


def columns_of(z: Array, levels: Array) -> tuple[Array, Array]:
    """Return members with gaps filled, their median and their pool ``(n, K + 2, Q)``, and spreads of rows ``(n,)``.

    The spread is the median over members of their mean distance from the middle quantile of the median. ``z`` is
    ``(n, K, Q)``, ``levels`` ``(Q,)``.
    """
    missing = np.isnan(z)
    mean = np.where(missing, 0.0, z).sum(1) / (~missing).sum(1)
    median = np.nanmedian(z, 1)
    middle = median[:, None, median.shape[1] // 2, None]
    spread: Array = np.nanmedian(np.abs(z - middle).mean(2), 1)
    pools = [linear_pool(z[i : i + _CHUNK], levels) for i in range(0, len(z), _CHUNK)]
    filled = np.where(missing, mean[:, None], z)
    return np.concatenate([filled, median[:, None], np.concatenate(pools)[:, None]], 1), spread


def linear_pool(z: Array, levels: Array) -> Array:
    """Return quantiles ``(n, Q)`` of the mixture of the members' distributions, each in equal parts.

    A quantile stands for the probability that is nearest to its level. ``z`` is ``(n, K, Q)``, NaN where a member is
    missing, ``levels`` ``(Q,)``.

    >>> linear_pool(np.array([[[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]]), np.array([0.25, 0.5, 0.75]))
    array([[ 1.,  2., 11.]])
    """
    mass = np.diff(np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]]))
    values = np.where(np.isnan(z), np.inf, z).reshape(len(z), -1)
    order = np.argsort(values, 1)
    part = np.take_along_axis(np.where(np.isnan(z), 0.0, mass).reshape(len(z), -1), order, 1).cumsum(1)
    part /= part[:, -1:]
    at = np.stack([(part < level - 1e-12).sum(1) for level in levels], 1)
    pool: Array = np.take_along_axis(np.take_along_axis(values, order, 1), at, 1)
    return pool


class _Problem:
    """The weights of all candidates on any part of the rows."""

    def __init__(
        self, columns: Array, y: Array, levels: Array, omega: Array, group: Array, names: list[Any], centre: Array
    ) -> None:
        self.columns, self.y, self.levels, self.omega, self.group = columns, y, levels, omega, group
        self.names, self.centre = names, centre
        most = max(_CELLS // len(levels), 1)
        rows = np.arange(len(y))
        self.rows = rows if len(y) <= most else np.sort(np.random.default_rng(0).permutation(len(y))[:most])

    def solve(self, use: Array, start: dict[str, dict[Any, Array]] | None = None) -> dict[str, dict[Any, Array]]:
        """Return for each candidate the weights ``(C,)`` of each group, fitted to the rows ``use`` ``(n,)``."""
        rows = self.rows[use[self.rows]]
        rows = rows if len(rows) else np.flatnonzero(use)
        parts = {g: rows[self.group[rows] == g] for g in self.names} if len(self.names) > 1 else {}
        found = {"plain": {g: self.centre for g in self.names}}
        weights = self.centre
        for strength in STRENGTHS:
            name = f"weights, {strength:g}"
            weights = self._fit(rows, strength, self.centre, start[name][None] if start else weights)
            found[name] = {g: weights for g in [*self.names, None]}
        if parts:
            name = "weights by group"
            shared = found["weights, 1"][None]
            found[name] = {
                g: self._fit(part, _GROUP_STRENGTH, shared, start[name][g] if start else shared)
                if len(part)
                else shared
                for g, part in parts.items()
            }
        return found

    def fuse(self, weights: dict[Any, Array], rows: Array) -> Array:
        """Return what weights by group say to the rows ``(n,)``."""
        table = np.stack([weights[g] for g in self.names])
        own = table[np.searchsorted(self.names, self.group[rows])]
        fused: Array = np.einsum("ncq,nc->nq", self.columns[rows], own)
        return fused

    def _fit(self, rows: Array, strength: float, centre: Array, start: Array) -> Array:
        """Return the weights ``(C,)`` of least loss, by weighted least squares (IRLS) with a line search.

        The square e² a / |e₀| has the slope of the pinball loss at e₀, so that each step is towards less loss.
        """
        c, q = len(centre), len(self.levels)
        errors = (self.columns[rows] - self.y[rows, None, None]).transpose(0, 2, 1).reshape(-1, c)
        tau, omega = np.tile(self.levels, len(rows)), np.repeat(self.omega[rows], q)
        pull = np.eye(c) - centre[:, None]
        pull = strength * (pull.T @ pull)

        def loss(weights: Array) -> tuple[float, Array]:
            e = -(errors @ weights)
            return float(omega @ np.maximum(tau * e, (tau - 1) * e)), e

        unit = loss(centre)[0]
        if unit <= 0:
            return centre

        def objective(weights: Array) -> tuple[float, Array]:
            value, e = loss(weights)
            return value / unit + strength * float((weights - centre) @ (weights - centre)), e

        weights = start
        value, e = objective(weights)
        for _ in range(_STEPS):
            size = np.abs(e)
            floor = np.repeat(1e-3 * size.reshape(-1, q).mean(1), q) + np.finfo(float).tiny ** 0.5
            ratio = omega * np.where(e >= 0, tau, 1 - tau) / (2 * unit * np.maximum(size, floor))
            gram = (errors * ratio[:, None]).T @ errors + pull
            step = simplex_weights(gram[None] + 1e-9 * np.trace(gram) / c * np.eye(c))[0] - weights
            for length in (1.0, 0.5, 0.25, 0.125, 0.0625):
                new, trial = objective(weights + length * step)
                if new < value:
                    break
            else:
                break
            weights, gain, value, e = weights + length * step, value - new, new, trial
            if gain < _TOLERANCE * value:
                break
        return weights


def _column(name: str, values: ArrayLike, n: int) -> Array:
    """Return ``(n,)`` values, one a row."""
    found = np.asarray(values)
    if found.shape != (n,):
        raise UserError(f"{name} must have one value a row, shape ({n},), got {found.shape}", what=name)
    return found
