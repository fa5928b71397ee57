"""AFA that chooses for itself: structure, means, temperature and shrinkage, by held-out loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from faverage.afa.explain import Explanation, check_names, from_shares
from faverage.afa.means import get_mean
from faverage.afa.network import AFA
from faverage.fusion.arrays import Array, folds_of, number, softmax, subsample
from faverage.fusion.base import Fuser, register_fuser
from faverage.fusion.fits import SOFT, SOFTENINGS, LinearFit, ScalarFit, Tied

__all__ = ["AFAFuser"]

Fit = ScalarFit | LinearFit
ARITHMETIC, GEOMETRIC, BOTH = ("arithmetic",), ("geometric",), ("arithmetic", "geometric")

_CHOOSE_SCORES = 1 << 22  # how many scores the choice between candidates looks at, at most,
_FIT_SCORES = 1 << 24  # and the final fits
_WORK = 2e7  # rows x features x classes above which different classes are fused with one softening only
_FULL_WEIGHTS = 1 << 22  # full matrices of more weights are not tried: each costs about 360 bytes while fitting
_SHARPNESS = 0.5  # candidates weigh exp(-_SHARPNESS x summed held-out loss)
_LEAST = 0.01  # candidates of a smaller weight are dropped
_TIED = (1e-2, 1e-3, 1e-4)  # softenings of the tied structure

Structure = Literal["auto", "scalar", "tied", "per_class", "full"]
STRUCTURES = ("auto", "scalar", "tied", "per_class", "full")


@register_fuser("afa")
@dataclass(eq=False)
class AFAFuser(Fuser):
    """Aggregated f-averages, fitted to the optimum, with everything chosen by held-out loss.

    Candidates go from the plain mean with K weights to full matrices, each with its shrinkage (see ``fits``). Each is
    fitted on all folds but one and judged on that one. Where all models know all classes:

    - scalar: the arithmetic mean (weights free, or shrunk to equal ones; or with a temperature), the geometric mean
      with a temperature (a log-opinion pool), both means with a temperature;
    - per_class and full: the geometric mean, shrunk to the scalar one.

    Where models know different classes: arithmetic and both means over padded scores; tied: the geometric mean with
    weights and a bias that are shared by all classes that the same models know; and full matrices over four softened
    copies of what each model knows, from strong to weak shrinkage. Full matrices of more than four million weights
    (K·N² of them) are not tried, unless ``structure`` asks for them.

    Args:
        structure: ``auto``, or one of ``scalar``, ``tied``, ``per_class``, ``full``: then the candidates of this
            structure alone are fitted (one, but for tied, which has three softenings to choose from).
        combine: with ``auto``: ``average``, the candidates' predictions averaged with weights exp(−½ · summed held-out
            loss), or ``best``, the one network of the lowest held-out loss.
        folds: how many.
        means: names of the means to choose from, registered ones of your own among them: each beside arithmetic and
            geometric has a scalar candidate with a temperature, and all of them together have one.

    Attributes:
        losses: held-out loss of each candidate, by name.
        weights: share of each candidate that is in use, by name.
        fits: those candidates.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 200)
    >>> good = np.eye(3)[y] * 0.6 + rng.dirichlet([1, 1, 1], 200) * 0.4
    >>> scores = np.stack([good, rng.dirichlet([1, 1, 1], 200)], 1)
    >>> fuser = AFAFuser().fit(scores, y)
    >>> explanation = fuser.explain(models=["good", "noise"])
    >>> explanation.trusted.rows[0][1]
    'good'
    """

    structure: Structure = "auto"
    combine: Literal["average", "best"] = "average"
    folds: int = 5
    means: Sequence[str] = BOTH

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES:
            raise ValueError(f"structure must be one of {', '.join(STRUCTURES)}, got {self.structure!r}")
        if self.combine not in ("average", "best"):
            raise ValueError(f"combine must be 'average' or 'best', got {self.combine!r}")
        if not isinstance(self.folds, int) or self.folds < 2:
            raise ValueError(f"folds must be a whole number of at least 2, got {self.folds!r}")
        if isinstance(self.means, str):
            raise ValueError(f"means must be a list of names, such as [{self.means!r}]")
        self.means = tuple(self.means)
        if not self.means or len(set(self.means)) < len(self.means):
            raise ValueError(f"means must be different names of means, at least one, got {self.means!r}")
        for mean in self.means:
            get_mean(mean)
            if mean in ("mean", "both", "all") or mean.startswith("tied"):
                raise ValueError(f"'{mean}' is what afa calls a network of its own: register the mean by another name")
        self.losses: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.fits: dict[str, Fit] = {}

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        candidates = Candidates(np.asarray(self._known), self.structure, tuple(self.means))
        x, labels, w = subsample(scores, y, weight, _CHOOSE_SCORES)
        names = candidates.names(len(x))
        self.losses = {}
        if len(names) > 1 and len(x) > 1:
            dense = self._dense(x)
            every = candidates.fit(names, dense, labels, w)
            losses = _held_out(candidates, every, dense, labels, w, min(self.folds, len(x)))
            total = np.array([losses[name] for name in names])
            self.losses = {name: float(v / w.sum()) for name, v in zip(names, total, strict=True)}
            share = softmax(-_SHARPNESS * total) if self.combine == "average" else np.eye(len(total))[total.argmin()]
            share = np.where(share < _LEAST, 0.0, share)
            self.weights = {n: float(s / share.sum()) for n, s in zip(names, share, strict=True) if s > 0}
            if len(x) == int((weight > 0).sum()):  # all rows that count
                self.fits = {name: every[name] for name in self.weights}
                return
        else:
            self.weights = {names[0]: 1.0}
        x, labels, w = subsample(scores, y, weight, _FIT_SCORES)
        self.fits = candidates.fit(list(self.weights), self._dense(x), labels, w)

    def _predict(self, scores: Array) -> Array:
        x = self._dense(scores)
        return np.asarray(sum(share * np.exp(self.fits[name].log_prob(x)) for name, share in self.weights.items()))

    def networks(self) -> list[tuple[float, AFA]]:
        """Return the AFA modules in use with their shares; their weighted mean is the prediction.

        A scalar network takes the padded scores ``(n, K, N)``; the others take ``fit.members(...)`` of them.
        """
        self._need_fit("networks")
        n_classes = (self._fitted or (0, 0))[1]
        return [(share, self.fits[name].network(n_classes)) for name, share in self.weights.items()]

    def explain(self, models: Sequence[str] | None = None, classes: Sequence[Any] | None = None) -> Explanation:
        """Return the shares of means and of models for each class, averaged over the networks in use.

        A class's constant part, which no model decides, is left out.
        """
        self._need_settled("explain")
        names = check_names("models", models, self.n_models, "model {}")
        labels = check_names("classes", classes, self.n_classes, "{}")
        by_mean = np.zeros((self.n_classes, len(self.means)))
        by_model = np.zeros((self.n_classes, self.n_models))
        for name, share in self.weights.items():
            fit = self.fits[name]
            mix = dict(zip(fit.means, fit.mix, strict=True)) if isinstance(fit, ScalarFit) else {"geometric": 1.0}
            by_mean += share * np.array([mix.get(mean, 0.0) for mean in self.means])
            by_model += share * fit.shares(self.n_classes)
        return from_shares(torch.from_numpy(by_mean), torch.from_numpy(by_model), tuple(self.means), names, labels)

    def contributions(self, scores: Array, first: Array, second: Array) -> Array | None:
        """Return how much each model speaks for one class and against another, ``(n, K)``, in log-odds.

        It is that of the network in use with the largest share; None where that is no sum over models.

        Args:
            scores: ``(n, K, N)``.
            first: the class ``(n,)`` of each row that models speak for.
            second: the class ``(n,)`` that they speak against.
        """
        self._need_settled("contributions")
        fit = self.fits[max(self.weights, key=self.weights.__getitem__)]
        return fit.contributions(self._dense(scores), first, second) if isinstance(fit, LinearFit) else None

    def _dense(self, scores: Array) -> Array:
        """Return scores ``(n, K, N)`` without NaN: a model that is missing for a row says the mean of those present.

        Every class that it never knew, or that nobody present knows, gets 1/N.
        """
        scores = self._filled(scores)
        return np.where(np.isnan(scores), 1 / scores.shape[2], scores)

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"losses": self.losses, "weights": self.weights, "fits": {}}
        for i, (name, fit) in enumerate(self.fits.items()):
            parts = vars(fit)
            state["fits"][name] = {k: v for k, v in parts.items() if not isinstance(v, np.ndarray)}
            state |= {f"{i}.{k}": v for k, v in parts.items() if isinstance(v, np.ndarray)}
        return state

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        self.losses = {name: number(loss, "losses") for name, loss in state["losses"].items()}
        self.weights = {name: number(share, "weights", low=0) for name, share in state["weights"].items()}
        if set(self.weights) != set(state["fits"]) or not sum(self.weights.values()) > 0:
            raise ValueError("its weights are not those of its fits")
        self.fits = {}
        for i, (name, plain) in enumerate(state["fits"].items()):
            arrays = {k.split(".", 1)[1]: v for k, v in state.items() if k.startswith(f"{i}.")}
            kind: type[Fit] = ScalarFit if "mix" in arrays else LinearFit
            self.fits[name] = kind.read(plain | arrays, n_models, n_classes)


@dataclass
class Candidates:
    """The networks to choose from, given which model knows which class ``(K, N)``."""

    known: Array
    structure: str
    means: tuple[str, ...] = BOTH
    tied: dict[str, tuple[Tied, Array]] = field(default_factory=dict)  # the latest fits of the tied structure

    def names(self, n: int) -> list[str]:
        """Return the candidates for n rows; the first is the one to fall back on where nothing can be held out."""
        found = [name for name in self._usual(n) if set(_means_of(name)) <= set(self.means)]
        others = [mean for mean in self.means if mean not in BOTH]
        if others and self.structure in ("auto", "scalar"):
            found += [*(f"{mean}, T" for mean in others), *(["all, T"] if len(self.means) > 1 else [])]
        if not found:
            raise ValueError(f"the structure '{self.structure}' has no network with the means {', '.join(self.means)}")
        return found

    def _usual(self, n: int) -> list[str]:
        shared = bool(self.known.all())
        full = self._shrinkages(n)[1]
        if self.structure == "scalar":
            return ["both, T"]
        if self.structure == "per_class":
            return ["per class"]
        tied = [f"tied {softening:g}" for softening in _TIED]
        if self.structure == "tied":
            return tied
        if self.structure == "full":
            return [f"full {full[-1] if shared else full[len(full) // 2]:g}"]
        scalar = ["mean, shrunk", "mean", "mean, T", "both, T", "geometric, T", "per class"]
        if int(self.known.sum()) * self.known.shape[1] > _FULL_WEIGHTS:
            full = ()
        narrow = scalar if shared else ["mean, T", "both, T", *tied]
        return [*narrow, *(f"full {strength:g}" for strength in full)]

    def _shrinkages(self, n: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the softenings and the strengths of shrinkage of the full structure, for n rows."""
        if self.known.all():
            return (SOFT,), (30.0, 10.0)
        if n * int(self.known.sum()) * self.known.shape[1] * len(SOFTENINGS) > _WORK:
            return (SOFT,), (10.0, 1.0)
        return SOFTENINGS, (10.0, 3.0, 1.0, 0.3, 0.1)

    def fit(
        self, names: list[str], x: Array, y: Array, weight: Array, near: dict[str, Fit] | None = None
    ) -> dict[str, Fit]:
        """Fit candidates to padded scores ``(n, K, N)``; wider structures are shrunk to the scalar geometric mean.

        ``near`` has fits to similar rows to start from.
        """
        near = near or {}
        fits: dict[str, Fit] = {}
        scalars: dict[str, tuple[tuple[str, ...], bool, float, float]] = {  # means, temperature, shrink, floor
            "mean": (ARITHMETIC, False, 0.0, 1e-6),
            "mean, shrunk": (ARITHMETIC, False, 1.0, 1e-6),
            "mean, T": (ARITHMETIC, True, 1.0, 1e-3),
            "both, T": (BOTH, True, 1.0, 1e-3),
            "geometric, T": (GEOMETRIC, True, 1.0, SOFT),
        }
        for name in set(names) - set(scalars):
            if name.endswith(", T"):
                scalars[name] = (self.means if name == "all, T" else (name.removesuffix(", T"),), True, 1.0, 1e-3)
        shared = bool(self.known.all())
        start = np.full(x.shape[1], 0.5)  # of its own log-probability, where the scalar fit is no sane start

        def scalar(name: str) -> ScalarFit:
            means, temperature, shrink, floor = scalars[name]
            old = near.get(name)
            return ScalarFit.fit(
                x, y, weight, means, temperature=temperature, shrink=shrink, floor=floor,
                near=old if isinstance(old, ScalarFit) else None,
            )  # fmt: skip

        def linear(name: str, structure: Literal["per_class", "full"], warm: LinearFit | None) -> LinearFit:
            old = near.get(name, warm)
            return LinearFit.fit(
                x, y, weight, self.known, structure, start,
                softenings=softenings if structure == "full" else (SOFT,),
                shrink=float(name.split()[1]) if structure == "full" else 30.0,
                warm=old if isinstance(old, LinearFit) else None,
            )  # fmt: skip

        if shared and any(name.startswith(("per class", "full", "geometric")) for name in names):
            pool = scalar("geometric, T")
            start = pool.temperature * pool.weights[0]
            fits["geometric, T"] = pool
        softenings = self._shrinkages(len(x))[0]
        previous: LinearFit | None = None
        found: Array | None = None
        for name in names:
            if name in scalars and name not in fits:
                fits[name] = scalar(name)
            elif name.startswith("tied"):
                tied = Tied(x, y, self.known, float(name.split()[1]))
                found = tied.fit(weight, warm=found)
                fits[name], self.tied[name] = tied.linear(found), (tied, found)
            elif name == "per class":
                fits[name] = linear(name, "per_class", None)
            elif name.startswith("full"):
                fits[name] = previous = linear(name, "full", previous)
        return {name: fits[name] for name in names}


def _means_of(name: str) -> tuple[str, ...]:
    """Return the means of a usual candidate."""
    return {"mean": ARITHMETIC, "both": BOTH}.get(name.split(",")[0], GEOMETRIC)


def _held_out(
    candidates: Candidates, every: dict[str, Fit], x: Array, y: Array, weight: Array, n_folds: int
) -> dict[str, float]:
    """Return the summed loss of each candidate on rows that it was not fitted on; ``every``: the fits to all rows.

    Tied ones among themselves are compared row by row, each left out to first order: as good as folds, and cheaper.
    """
    fold = folds_of(y, n_folds)
    total = dict.fromkeys(every, 0.0)
    names = [name for name in every if not name.startswith("tied")]
    for name in every.keys() - set(names):
        tied, near = candidates.tied[name]
        if names:  # folds, as for the others
            losses = np.empty(len(y))
            for f in range(n_folds):
                losses[fold == f] = tied.losses(tied.fit(np.where(fold == f, 0.0, weight), warm=near))[fold == f]
        else:
            losses = tied.left_out(near, weight)
        total[name] = float(weight @ np.minimum(losses, -np.log(1e-15)))
    for f in range(n_folds if names else 0):
        inside, outside = fold != f, fold == f
        rows = np.arange(int(outside.sum()))
        for name, fit in candidates.fit(names, x[inside], y[inside], weight[inside], every).items():
            log_prob = fit.log_prob(x[outside])[rows, y[outside]]
            total[name] -= float(weight[outside] @ np.maximum(log_prob, np.log(1e-15)))
    return total
