"""AFA that chooses for itself: structure, means, temperature and shrinkage, by held-out loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from faverage.afa.explain import Explanation, check_names, from_shares
from faverage.afa.means import get_mean
from faverage.afa.network import AFA
from faverage.fusion.arrays import Array, couple, folds_of, normalise, number, softmax, subsample
from faverage.fusion.base import Fuser, register_fuser
from faverage.fusion.fits import SOFT, SOFTENINGS, Full, LinearFit, ScalarFit, Tied

__all__ = ["AFAFuser"]

Fit = ScalarFit | LinearFit
ARITHMETIC, GEOMETRIC, BOTH = ("arithmetic",), ("geometric",), ("arithmetic", "geometric")

_CHOOSE_SCORES = 1 << 22  # how many scores the choice between candidates looks at, at most,
_FIT_SCORES = 1 << 24  # and the final fits
_WORK = 2e7  # rows x features x classes above which so many softened copies are not tried
_FULL_WEIGHTS = 1 << 22  # full matrices of more weights are not tried: each costs about 360 bytes while fitting
_SHARPNESS = 0.5  # candidates weigh exp(-_SHARPNESS x summed held-out loss)
_LEAST = 0.01  # candidates of a smaller weight are dropped
_BEHIND = 20.0  # summed held-out loss by which a candidate is behind the best that is given up after some folds
_FEW = 10  # rows a class: with fewer, nearly equal weights are tried, too, and no weights a class that all models know
_TIED = (1e-2, 1e-3, 1e-4)  # softenings of the tied structure

_SCALARS: dict[str, tuple[tuple[str, ...], bool, float, float]] = {  # means, whether T is free, shrinkage, floor
    "mean": (ARITHMETIC, False, 0.0, 1e-6),
    "mean, shrunk": (ARITHMETIC, False, 1.0, 1e-6),
    "mean, T": (ARITHMETIC, True, 1.0, 1e-3),
    "both, T": (BOTH, True, 1.0, 1e-3),
    "geometric, T": (GEOMETRIC, True, 1.0, SOFT),
    "mean, equal": (ARITHMETIC, False, 100.0, 1e-6),  # where rows are few
    "both, T, shrunk": (BOTH, True, 10.0, 1e-3),
}

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
    - tied: the same pool, of scores that are softened less;
    - per_class and full: the geometric mean, shrunk to the scalar one. With fewer than ten rows a class there are means
      with (nearly) equal weights in their place.

    Where models know different classes, scores are coupled first (``arrays.couple``): of a class that it does not know
    a model says what the others make of it, so that all candidates begin at a mean that needs no examples. They are the
    scalar ones; tied: the geometric mean with weights and a bias that are shared by all classes that the same models
    know; and full matrices over four softened copies of what each model knows, uncoupled, from strong to weak
    shrinkage. Full matrices of more than four million weights (K·N² of them) are not tried, unless ``structure`` asks
    for them. With a structure that is named, what a model does not know has 1/N instead.

    A model that is missing for a row says the mean of those present.

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
        coupled: whether all of them but full matrices take coupled scores.

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
        self.coupled = False
        self.losses: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.fits: dict[str, Fit] = {}

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        known = np.asarray(self._known)
        self.coupled = self.structure == "auto" and not known.all()
        x, labels, w = subsample(scores, y, weight, _CHOOSE_SCORES)
        candidates = Candidates(*self._inputs(x), labels, known, self.structure, tuple(self.means), len(x))
        names = candidates.names()
        self.losses = {}
        if len(names) > 1 and len(x) > 1:
            fit = candidates.fitter(w)
            tied = {name: fit(name) for name in names if name.startswith("tied")}
            total = _held_out(candidates, names, w, min(self.folds, len(x)))
            self.losses = {name: float(v / w.sum()) for name, v in zip(names, total, strict=True)}
            share = softmax(-_SHARPNESS * total) if self.combine == "average" else np.eye(len(total))[total.argmin()]
            share = np.where(share < _LEAST, 0.0, share)
            self.weights = {n: float(s / share.sum()) for n, s in zip(names, share, strict=True) if s > 0}
            if len(x) == int((weight > 0).sum()):  # all rows that count
                self.fits = {name: tied[name] if name in tied else fit(name) for name in self.weights}
                return
        else:
            self.weights = {names[0]: 1.0}
        x, labels, w = subsample(scores, y, weight, _FIT_SCORES)
        padded, coupled = self._inputs(x)
        fit = replace(candidates, x=padded, coupled=coupled, y=labels, last={}).fitter(w)
        self.fits = {name: fit(name) for name in self.weights}

    def _predict(self, scores: Array) -> Array:
        padded, coupled = self._inputs(scores)
        parts = (
            share * np.exp(self.fits[name].log_prob(padded if name.startswith("full") else coupled))
            for name, share in self.weights.items()
        )
        return np.asarray(sum(parts))

    def networks(self) -> list[tuple[float, AFA]]:
        """Return the AFA modules in use with their shares; their weighted mean is the prediction.

        A scalar network takes the scores ``(n, K, N)`` without gaps, the others ``fit.members(...)`` of them: padded
        with 1/N, or, with the structure ``auto``, what ``arrays.couple`` makes of them, except for full matrices.
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
            trust = fit.shares(self.n_classes)
            if self.coupled:  # of a class that it does not know a model says what others say
                known = np.asarray(self._known).T
                trust = np.where(known.any(1, keepdims=True), normalise(trust * known), trust)
            by_model += share * trust
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
        return fit.contributions(self._inputs(scores)[1], first, second) if isinstance(fit, LinearFit) else None

    def _inputs(self, scores: Array) -> tuple[Array, Array]:
        """Return scores ``(n, K, N)`` without NaN for full matrices, and for other networks.

        A model that is missing for a row says the mean of those present. The first are padded: every class that a model
        never knew, or that nobody present knows, gets 1/N. The others are coupled where models know different classes
        and the choice is free.
        """
        filled = self._filled(scores)
        padded = np.where(np.isnan(filled), 1 / scores.shape[2], filled)
        return padded, couple(filled) if self.coupled else padded

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"losses": self.losses, "weights": self.weights, "fits": {}, "coupled": self.coupled}
        for i, (name, fit) in enumerate(self.fits.items()):
            parts = vars(fit)
            state["fits"][name] = {k: v for k, v in parts.items() if not isinstance(v, np.ndarray)}
            state |= {f"{i}.{k}": v for k, v in parts.items() if isinstance(v, np.ndarray)}
        return state

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        self.coupled = state.get("coupled", False) is True  # files of older versions lack it
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
    """The networks to choose from, for scores ``(n, K, N)`` without NaN and labels ``(n,)``."""

    x: Array  # padded, for full matrices
    coupled: Array  # coupled where models know different classes, for all others
    y: Array
    known: Array  # (K, N), which model knows which class
    structure: str
    means: tuple[str, ...]
    n_rows: int  # of the choice: on them depends what is tried
    last: dict[Any, Any] = field(default_factory=dict)  # the latest fits, to other rows, to start from

    def names(self) -> list[str]:
        """Return the candidates; the first is the one to fall back on where nothing can be held out."""
        found = [name for name in self._usual() if set(_means_of(name)) <= set(self.means)]
        others = [mean for mean in self.means if mean not in BOTH]
        if others and self.structure in ("auto", "scalar"):
            found += [*(f"{mean}, T" for mean in others), *(["all, T"] if len(self.means) > 1 else [])]
        if not found:
            raise ValueError(f"the structure '{self.structure}' has no network with the means {', '.join(self.means)}")
        return found

    def _usual(self) -> list[str]:
        shared = bool(self.known.all())
        if self.structure == "scalar":
            return ["both, T"]
        if self.structure == "per_class":
            return ["per class"]
        tied = [f"tied {softening:g}" for softening in _TIED]
        if self.structure == "tied":
            return tied
        if self.structure == "full":
            usual = 10.0 if shared else 1.0
            return [name for name, (_, strength) in self._full().items() if strength == usual][-1:]
        narrow = ["mean, shrunk", "mean", "mean, T", "both, T", "geometric, T", *(["tied 0.001"] if shared else tied)]
        few = self.n_rows < _FEW * self.known.shape[1]
        narrow += ["mean, equal", "both, T, shrunk"] if few else ["per class"] if shared else []
        large = int(self.known.sum()) * self.known.shape[1] > _FULL_WEIGHTS
        return narrow if large or (few and shared) else [*narrow, *self._full()]

    def _full(self) -> dict[str, tuple[tuple[float, ...], float]]:
        """Return the softenings and the strength of shrinkage, from strong to weak, of each full structure, by name."""
        if self.known.all():
            return {f"full {strength:g}": ((SOFT,), strength) for strength in (30.0, 10.0)}
        for copies in (SOFTENINGS, (SOFT, 1.0)):
            if self.n_rows * int(self.known.sum()) * self.known.shape[1] * len(copies) <= _WORK:
                strengths = (10.0, 3.0, 1.0, 0.3, 0.1)
                return {f"full {strength:g}, {len(copies)} copies": (copies, strength) for strength in strengths}
        return {f"full {strength:g}": ((SOFT,), strength) for strength in (10.0, 1.0)}

    def inputs(self, name: str) -> Array:
        """Return the scores ``(n, K, N)`` that a candidate takes."""
        return self.x if name.startswith("full") else self.coupled

    def fitter(self, weight: Array) -> Callable[[str], Fit]:
        """Return what fits a candidate, by name, to rows of weights ``(n,)``; 0 leaves one out.

        Wider ones are shrunk to the geometric mean. Those of one kind start from each other.
        """
        used = weight > 0
        y, w = self.y[used], weight[used]
        x = self.coupled[used].astype(np.float32)  # half of the bytes, and they are what costs
        before: dict[str, Array] = {}  # the tied and the full one before
        pool: list[ScalarFit] = []  # the scalar fit that wider ones are shrunk to, once it is there

        def scalar(name: str) -> ScalarFit:
            usual = (self.means if name == "all, T" else (name.removesuffix(", T"),), True, 1.0, 1e-3)
            means, temperature, shrink, floor = _SCALARS.get(name, usual)
            near = self.last.get(name)
            return ScalarFit.fit(x, y, w, means, temperature=temperature, shrink=shrink, floor=floor, near=near)

        def geometric() -> ScalarFit:
            if not pool:
                pool.append(scalar("geometric, T"))
                self.last["geometric, T"] = pool[0]
            return pool[0]

        def start() -> Array:
            if self.known.all():
                return np.asarray(geometric().temperature * geometric().weights[0])
            return np.full(x.shape[1], 0.5)  # of its own log-probability: the scalar fit is no sane start

        def fit(name: str) -> Fit:
            if name.startswith("tied"):
                tied = Tied(self.coupled, self.y, self.known, float(name.split()[1]))
                before["tied"] = tied.fit(weight, warm=before.get("tied"))
                self.last[name] = tied, before["tied"]
                return tied.linear(before["tied"])
            if name.startswith("full"):
                softenings, shrink = self._full()[name]
                if softenings not in self.last:
                    self.last[softenings] = Full(self.x, self.y, self.known, softenings)
                full: Full = self.last[softenings]
                before["full"] = full.fit(weight, start(), shrink, self.last.get(name, before.get("full")))
                self.last[name] = before["full"]
                return full.linear(before["full"], start())
            found: Fit
            if name == "per class":
                found = LinearFit.fit(x, y, w, self.known, start(), shrink=30.0, warm=self.last.get(name))
            else:
                found = geometric() if name == "geometric, T" else scalar(name)
            self.last[name] = found
            return found

        return fit


def _means_of(name: str) -> tuple[str, ...]:
    """Return the means of a usual candidate."""
    return {"mean": ARITHMETIC, "both": BOTH}.get(name.split(",")[0], GEOMETRIC)


def _held_out(candidates: Candidates, names: list[str], weight: Array, n_folds: int) -> Array:
    """Return the summed loss of each candidate, ``(names,)``, on rows that it was not fitted on; weights are ``(n,)``.

    Tied ones, which are fitted already, are compared row by row where there are no others, each left out to first
    order: as good as folds, and cheaper. A candidate that falls far behind the best in a few folds is not fitted to the
    others, and counts as so far behind in the end; nor are full matrices at all that are shrunk less than one that
    falls behind in the first fold already.
    """
    most = -np.log(1e-15)
    tied = {name: candidates.last[name] for name in names if name.startswith("tied")}
    if len(tied) == len(names):
        return np.array([float(weight @ np.minimum(t.left_out(near, weight), most)) for t, near in tied.values()])
    y = candidates.y
    fold = folds_of(y, n_folds)
    total, behind = np.zeros(len(names)), np.zeros(len(names))
    for f in range(n_folds):
        out = fold == f
        w, rows, inside = weight[out], np.arange(int(out.sum())), np.where(out, 0.0, weight)
        racing, fit = behind < _BEHIND, candidates.fitter(inside)
        full: list[float] = []  # losses of full matrices, from strong to weak shrinkage
        for i in np.flatnonzero(racing):
            name = names[i]
            if f == 0 and full and (full[-1] - min(full)) * n_folds > _BEHIND:
                racing[i], behind[i] = False, _BEHIND
                continue
            if name in tied:
                t, near = tied[name]
                losses = t.losses(t.fit(inside, warm=near))[out]
            else:
                losses = -fit(name).log_prob(candidates.inputs(name)[out])[rows, y[out]]
            loss = float(w @ np.minimum(losses, most))
            total[i] += loss
            full += [loss] if name.startswith("full") else []
        behind = np.where(racing, total - total[racing].min(), behind)
    racing = behind < _BEHIND
    return np.asarray(np.where(racing, total, total[racing].min() + behind))
