"""Fusers on streams: what a half-life is worth where members change, and what it costs where they do not.

    python benchmarks/streams.py                      # about ten minutes on one core
    python benchmarks/streams.py --rows 2000 --seeds 1   # a quick look

Five members and four classes, on synthetic streams that are read in batches of 100: every batch is predicted before it
is learned from, and the mean log-loss is that of all batches after the first quarter. Members are good at different
classes, share some of their noise and are too sure or too timid. In "slow" their skills turn into those of other
members and back, in "sudden" they change in the middle, in "late" and "gone" the best member is missing before or after
the middle.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from faverage.fusion import get_fuser
from faverage.fusion.arrays import fill_gaps, log_softmax, softmax

Array = np.ndarray[Any, Any]
K, N, BATCH = 5, 4, 100
KINDS = ("steady", "slow", "sudden", "late", "gone")


def make(kind: str, n: int, seed: int) -> tuple[Array, Array]:
    """Return scores ``(n, K, N)`` and labels ``(n,)``."""
    rng = np.random.default_rng(seed)
    y, t = rng.integers(0, N, n), np.arange(n) / n
    skill = rng.uniform(0.2, 2.5, (K, N)) * rng.uniform(0.4, 1.4, (K, 1))
    other = skill[::-1] * rng.uniform(0.7, 1.3, (K, N))
    turned = {"slow": 0.5 - 0.5 * np.cos(3 * np.pi * t), "sudden": (t > 0.5).astype(float)}.get(kind, np.zeros(n))
    logits = rng.normal(size=(n, K, N)) + 0.6 * rng.normal(size=(n, 1, N))
    own = skill[:, y].T * (1 - turned)[:, None] + other[:, y].T * turned[:, None]
    logits[np.arange(n)[:, None], np.arange(K), y[:, None]] += own
    scores = softmax(logits * rng.uniform(0.7, 2.2, (K, 1)))
    best, half = int(skill.sum(1).argmax()), n // 2
    scores[{"late": slice(0, half), "gone": slice(half, n)}.get(kind, slice(0, 0)), best] = np.nan
    return scores, y


class Library:
    """A fuser with ``partial_fit``; without a half-life, and with ``until``: the batch fit to so many rows."""

    def __init__(self, name: str, half_life: float | None, until: float = math.inf, **options: Any) -> None:
        self.fuser, self.half_life, self.until, self.seen = get_fuser(name, **options), half_life, until, 0

    def predict(self, scores: Array) -> Array:
        """Return probabilities ``(n, N)``."""
        return self.fuser.predict_proba(scores) if self.seen else np.full((len(scores), N), 1 / N)

    def learn(self, scores: Array, y: Array) -> None:
        """Take a batch."""
        if self.seen < self.until:
            self.fuser.partial_fit(scores, y, half_life=self.half_life)
        self.seen += len(y)


class Newton:
    """A log-opinion pool with K weights and N biases: online Newton steps that forget, without any rows kept."""

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self.first = self.t = np.r_[np.full(K, 1 / K), np.zeros(N)]
        self.precision = np.eye(K + N)

    def _features(self, scores: Array) -> Array:
        x = fill_gaps(scores, np.ones((K, N), dtype=bool))
        return np.concatenate([np.log(x + 1e-3), np.broadcast_to(np.eye(N), (len(x), N, N))], 1)

    def predict(self, scores: Array) -> Array:
        """Return probabilities ``(n, N)``."""
        return np.exp(log_softmax(np.einsum("p,npc->nc", self.t, self._features(scores))))

    def learn(self, scores: Array, y: Array) -> None:
        """Take a batch."""
        left, x = 0.5 ** (len(y) / self.half_life), self._features(scores)
        prior = left * self.precision + (1 - left) * np.eye(K + N)
        t = middle = np.linalg.solve(prior, left * self.precision @ self.t + (1 - left) * self.first)
        for _ in range(8):
            p = np.exp(log_softmax(np.einsum("p,npc->nc", t, x)))
            expected = np.einsum("npc,nc->np", x, p)
            gradient = (expected - x[np.arange(len(y)), :, y]).sum(0) + prior @ (t - middle)
            self.precision = np.einsum("npc,nc,nqc->pq", x, p, x) - expected.T @ expected + prior
            t = t - np.linalg.solve(self.precision, gradient)
            t[:K] = np.maximum(t[:K], 0)
        self.t = t


class ExponentiatedGradient:
    """The linear pool with K weights on the simplex, one multiplicative step a row."""

    def __init__(self, rate: float) -> None:
        self.rate, self.weights = rate, np.full(K, 1 / K)

    def predict(self, scores: Array) -> Array:
        """Return probabilities ``(n, N)``."""
        weights = self.weights * ~np.isnan(scores[:, :, 0])
        return np.einsum("nk,nkc->nc", weights / weights.sum(1, keepdims=True), np.nan_to_num(scores))

    def learn(self, scores: Array, y: Array) -> None:
        """Take a batch."""
        for own in np.nan_to_num(scores[np.arange(len(y)), :, y]):
            self.weights = self.weights * np.exp(self.rate * own / max(self.weights @ own, 1e-9))
            self.weights /= self.weights.sum()


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    n = options.rows
    methods: dict[str, Callable[[], Any]] = {
        "`afa`, batch fit to the first quarter": lambda: Library("afa", None, until=n / 4),
        "`afa`, nothing forgotten": lambda: Library("afa", math.inf),
        f"`afa`, half-life {n // 4:,}": lambda: Library("afa", n / 4),
        f"`afa`, half-life {n // 12:,}": lambda: Library("afa", n / 12),
        f"`log-pool`, half-life {n // 12:,}": lambda: Library("log-pool", n / 12),
        f"online Newton, half-life {n // 12:,}": lambda: Newton(n / 12),
        "exponentiated gradient, rate 0.02": lambda: ExponentiatedGradient(0.02),
    }
    print(f"| | {' | '.join(KINDS)} |\n|---|{'---:|' * len(KINDS)}")
    for name, method in methods.items():
        cells = []
        for kind in KINDS:
            found = []
            for seed in range(options.seeds):
                (scores, y), model = make(kind, n, seed), method()
                for start in range(0, n, BATCH):
                    x, labels = scores[start : start + BATCH], y[start : start + BATCH]
                    if start >= n / 4:
                        found.append(-np.log(model.predict(x)[np.arange(len(labels)), labels] + 1e-15).mean())
                    model.learn(x, labels)
            cells.append(f"{np.mean(found):.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
