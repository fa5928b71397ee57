"""Networks as fusers: the paper's AFA as it stands, the three networks that the paper compares it with, and a gate.

All are trained by ``faverage.fit`` in the same way on padded scores; only the learning rates differ. The gate weighs
the models anew for each row, by what all of them say about it: a mixture of experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from faverage.afa.explain import Explanation, explain
from faverage.afa.network import AFA, DEFAULT_MEANS, MeanSpec, Output, Structure
from faverage.afa.train import History, diverged, fit
from faverage.afa.weights import Constraint, Groups, GroupSpec, Rows
from faverage.fusion._stack import FullAFA, Layers, Rule, WeightedLayer, train_copies
from faverage.fusion.align import Padding, check_padding, pad
from faverage.fusion.arrays import Array, check_labels, check_scores, learned, merge_rows, number, subsample
from faverage.fusion.base import Fuser, get_fuser, register_fuser
from faverage.threads import few_threads

_LIMIT = 1 << 26  # scores that a network learns from, at most
_MOST_GROUPS = 1 << 20  # of classes, where their number is given alone
_STACK_WEIGHTS = 1 << 18  # weights of all folds' networks that are trained side by side, at most,
_STACK_SCORES = 1 << 24  # and the scores that they learn from
_WIDTH = 32  # hidden units of the gate of a mixture of experts
_EPS = 1e-3  # softening of the logarithm of scores
_FLOOR = 1e-4  # share of the uniform distribution in what it returns
_DRAWS = 4096  # how many choices of dropped models are drawn beforehand; training goes through them again and again


class Perceptron(nn.Module):
    """Fully connected layers with ReLU between them, from all K·N scores to N logits.

    >>> net = Perceptron(2, 3, [8])
    >>> sum(p.numel() for p in net.parameters()) == 8 * (2 * 3 + 1) + 3 * (8 + 1)
    True
    """

    def __init__(self, n_models: int, n_outputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        sizes = [n_models * n_outputs, *widths, n_outputs]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to probabilities ``(n, N)``."""
        return self.log_prob(scores).exp()

    def log_prob(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to log-probabilities ``(n, N)``."""
        logits: Tensor = self.layers(scores.flatten(1))
        return logits.log_softmax(-1)


class WeightedAverage(nn.Module):
    """A weighted average of the K models, then a fully connected layer: softmax(B Σ_k w_k x_k + b).

    w ≥ 0 sums to one; there are K + N² + N parameters.
    """

    def __init__(self, n_models: int, n_outputs: int) -> None:
        super().__init__()
        self.weights = Rows(torch.full((1, n_models), 1 / n_models), simplex=True)
        self.dense = nn.Linear(n_outputs, n_outputs)

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to probabilities ``(n, N)``."""
        return self.log_prob(scores).exp()

    def log_prob(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to log-probabilities ``(n, N)``."""
        logits: Tensor = self.dense((scores * self.weights().T).sum(1))
        return logits.log_softmax(-1)

    def project_(self) -> None:
        """Bring w back to the simplex."""
        self.weights.project_()


class GatedMixture(nn.Module):
    """A convex combination of the K models with other weights in each row: p = Σ_k g_k(x) x_k, each x_k summing to one.

        g(x) = softmax(V relu(U φ(x) + u) + v),   φ(x) = ln(1 + x/ε) / ln(1 + 1/ε)

    over the models in use: one without any mass in a row gets no weight there, nor, in training, one that is dropped;
    to the gate it looks as if it gave 0 to every class. V and v start at 0, so that the untrained mixture is the plain
    mean. A hundredth of a percent of p is uniform.

    Args:
        n_models: K.
        n_outputs: N.
        dropout: the chance of each model to be dropped from a row in training; where all would be, none is.

    >>> GatedMixture(2, 3).eval().gate(torch.tensor([[[0.7, 0.2, 0.1], [0.4, 0.3, 0.3]], [[0.0] * 3, [1.0] * 3]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]], grad_fn=<SoftmaxBackward0>)
    """

    _kept: Tensor
    _drawn: Tensor

    def __init__(self, n_models: int, n_outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_models * n_outputs, _WIDTH)
        self.out = nn.Linear(_WIDTH, n_models)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        # drawn here and not at each step: so they depend on the start's seed alone, in a CUDA graph too
        self.register_buffer("_kept", torch.rand(_DRAWS, n_models) >= dropout, persistent=False)
        self.register_buffer("_drawn", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to probabilities ``(n, N)``."""
        return self.log_prob(scores).exp()

    def log_prob(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to log-probabilities ``(n, N)``."""
        members, weights = self._weigh(scores)
        mixed = torch.bmm(weights[:, None], members).squeeze(1)
        return ((1 - _FLOOR) * mixed + _FLOOR / scores.shape[2]).log()

    def gate(self, scores: Tensor) -> Tensor:
        """Return the weight of each model in each row, ``(n, K)``, for scores ``(n, K, N)``; rows sum to one."""
        return self._weigh(scores)[1]

    def _weigh(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each model says, summing to one, ``(n, K, N)``, and its weight ``(n, K)``."""
        mass = scores.sum(2, keepdim=True)
        members = scores / torch.where(mass > 0, mass, 1.0)
        used = self._used(mass.squeeze(2) > 0)
        seen = torch.log1p(members / _EPS) * used[:, :, None] / math.log1p(1 / _EPS)
        logits = self.out(self.hidden(seen.flatten(1)).relu())
        return members, logits.masked_fill(~used, -1e9).softmax(1)

    def _used(self, answered: Tensor) -> Tensor:
        """Return which models count in which row ``(n, K)``, of those that answered."""
        if not self.training:
            return answered
        rows = (torch.arange(len(answered), device=answered.device) + self._drawn) % _DRAWS
        self._drawn += len(answered)
        kept = answered & self._kept[rows]
        return torch.where(kept.any(1, keepdim=True), kept, answered)


@dataclass(eq=False, kw_only=True)
class NetworkFuser(Fuser):
    """A network trained with Adam on the cross-entropy. Subclasses define ``build``.

    Data of more than 67 million scores is thinned. ``partial_fit`` trains a new network on the old and the new rows.

    Args:
        padding: how classes that a model does not know are filled (see ``faverage.pad``).
        threshold: of the padding ``inlierness``.
        epochs: passes over the data, at most.
        lr: Adam's learning rate.
        batch_size: rows a step.
        validation: share of the rows to hold out; the network then ends with the weights of its best epoch there.
        patience: with ``validation``, stop after this many epochs without a better one.
        seed: of the start, the held-out part and the order of the batches.
        device: where to train, for example ``"cuda"``; by default the CPU.

    Attributes:
        network: the trained network.
        history: its losses by epoch.
    """

    padding: Padding = "inlierness"
    threshold: float = 0.5
    epochs: int = 100
    lr: float = 0.01
    batch_size: int = 128
    validation: float = 0.0
    patience: int | None = None
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_padding(self.padding, self.threshold)
        for name in ("epochs", "batch_size"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")

    def build(self, n_models: int, n_classes: int) -> nn.Module:
        """Return an untrained network with ``log_prob`` from ``(n, K, N)`` to ``(n, N)``."""
        raise NotImplementedError

    def _start(self, n_models: int, n_classes: int) -> nn.Module:
        """Return the network with weights that depend on ``seed`` alone, and leave torch's own generator as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            return self.build(n_models, n_classes)

    def _fit(self, scores: Array, y: Array, weight: Array) -> None:
        scores, y, weight = subsample(scores, y, weight, _LIMIT, self.seed)
        self.network = self._start(*scores.shape[1:])
        self.history: History = fit(
            self.network,
            self._input(scores),
            torch.from_numpy(y),
            sample_weight=torch.from_numpy(weight),
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self._weight_decay(float(weight.sum())),
            batch_size=self.batch_size,
            validation=self.validation,
            patience=self.patience,
            seed=self.seed,
            device=self.device,
        )

    def held_out(self, scores: ArrayLike, y: ArrayLike, fold: Array) -> Array:
        """Return ``(n, N)``, as for every fuser; small networks of all folds are trained together, as if one by one."""
        scores = check_scores(scores)
        y, ones = check_labels(scores, y, None)
        parts = np.unique(fold)
        networks = [self._start(*scores.shape[1:]) for _ in parts]
        rule = self._rule(networks[0])
        weights = len(parts) * sum(p.numel() for p in networks[0].parameters())
        plain = self.device in (None, "cpu") and not self.validation
        if rule is None or not plain or weights > _STACK_WEIGHTS or len(parts) * scores.size > _STACK_SCORES:
            return super().held_out(scores, y, fold)
        fused = np.empty((len(y), scores.shape[2]))
        with few_threads(float(self.batch_size) * weights):
            groups: dict[tuple[int, int], list[int]] = {}  # folds that make as many batches of one size
            data = []
            for i, part in enumerate(parts):
                x, labels, weight = merge_rows(*(a[fold != part] for a in (scores, y, ones)))
                data.append((self._input(x).numpy(), labels, weight))
                size = min(self.batch_size, len(labels))
                groups.setdefault((size, -(-len(labels) // size)), []).append(i)
            options = {name: getattr(self, name) for name in ("epochs", "batch_size", "lr", "seed")}
            for group in groups.values():
                losses = train_copies([networks[i] for i in group], rule, [data[i] for i in group], **options)
                for i, history in zip(group, losses, strict=True):
                    fuser, rows = get_fuser(self), fold == parts[i]
                    assert isinstance(fuser, NetworkFuser)
                    if diverged(history):
                        fuser.fit(scores[~rows], y[~rows])  # it goes back to its last good weights
                    else:
                        fuser.network, fuser._fitted = networks[i].eval(), scores.shape[1:]
                        fuser.n_models, fuser.n_classes = scores.shape[1:]
                    fused[rows] = fuser.predict_proba(scores[rows])
        return fused

    def _weight_decay(self, n_rows: float) -> float:
        """Return the ``weight_decay`` of ``faverage.fit``, for rows of this weight in all."""
        return 0.0

    def _rule(self, network: nn.Module) -> Rule | None:
        """Return how copies of a network are trained side by side; None: they are not."""
        return None

    def _input(self, scores: Array) -> Tensor:
        scores = scores.astype(np.promote_types(scores.dtype, np.float32), copy=False)
        return torch.from_numpy(pad(scores, self.padding, self.threshold).astype(np.float32, copy=False))

    @torch.no_grad()
    def _predict(self, scores: Array) -> Array:
        where = next(self.network.parameters()).device
        log_prob: Tensor = self.network.log_prob(self._input(scores).to(where))  # type: ignore[operator]
        fused: Array = log_prob.double().exp().cpu().numpy()
        return fused

    def _state(self) -> dict[str, Any]:
        weights = {f"weights.{name}": value.cpu().numpy() for name, value in self.network.state_dict().items()}
        return {"history": self.history.to_dict(), **weights}

    def _set_state(self, state: dict[str, Any], n_models: int, n_classes: int) -> None:
        self.history = _read_history(state["history"])
        weights = {name: state[name] for name in state if name.startswith("weights.")}
        given = sum(np.size(value) for value in weights.values())
        if given < self._least(n_models, n_classes):  # before a network is built of sizes that a broken file claims
            raise ValueError(f"{given} weights are too few for {n_models} models and {n_classes} classes")
        self.network = self._start(n_models, n_classes).eval()
        for name, value in weights.items():
            learned(state, name, np.shape(value))
        self.network.load_state_dict({n.removeprefix("weights."): torch.from_numpy(v) for n, v in weights.items()})

    def _least(self, n_models: int, n_classes: int) -> int:
        """Return how many weights a network of these sizes has at least."""
        return 0


def _read_history(given: Any) -> History:
    """Return a history from a file, or raise ValueError."""
    losses = {name: [number(v, name, high=math.inf) for v in given[name]] for name in ("train", "validation")}
    if given["stopped"] not in ("finished", "early", "diverged"):
        raise ValueError(f"'stopped' is {given['stopped']!r}, which no training ends with")
    return History(
        **losses, best_epoch=int(number(given["best_epoch"], "best_epoch", low=-1)), stopped=given["stopped"]
    )


@register_fuser("afa-paper")
@dataclass(eq=False, kw_only=True)
class AFAPaper(NetworkFuser):
    """The paper's AFA: full matrices, softmax output, projection onto the constraints after each step of Adam.

    The options are those of ``faverage.AFA``. ``groups``, for the structures block and tied, are those of all classes:
    to learn classes that were added, make a new fuser.
    """

    means: Sequence[MeanSpec] = DEFAULT_MEANS
    structure: Structure = "full"
    output: Output = "softmax"
    constraint: Constraint = "projection"
    mixing: Literal["nonnegative", "simplex"] | None = None
    scale: float = 10.0
    groups: GroupSpec | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output == "identity":
            raise ValueError("output must be one that gives probabilities, got 'identity'")
        n = 1
        if isinstance(self.groups, Integral):
            if not 1 <= self.groups <= _MOST_GROUPS:
                raise ValueError(f"groups must be from 1 to {_MOST_GROUPS:,}, got {self.groups}")
            n = self.groups = int(self.groups)
        elif self.groups is not None:
            n = np.size(self.groups)
            self.groups = Groups(self.groups, n).numbers
        self.means = self.build(1, max(1, n)).config()["means"]  # checks the options; the means as plain data

    def build(self, n_models: int, n_classes: int) -> AFA:
        """Return the AFA network at its start, W = [I/K … I/K] and A = (scale/J)·[I … I]."""
        options: dict[str, Any] = {name: getattr(self, name) for name in ("mixing", "scale", "groups")}
        return AFA(n_models, n_classes, self.means, self.structure, self.output, self.constraint, **options)

    def _least(self, n_models: int, n_classes: int) -> int:
        wide = {"full": n_models * n_classes**2, "per_class": n_models * n_classes, "block": n_models * n_classes}
        return len(self.means) * wide.get(self.structure, n_models)

    def _rule(self, network: nn.Module) -> Rule | None:
        assert isinstance(network, AFA)
        return FullAFA(network) if FullAFA.takes(network) else None

    def explain(self, models: Sequence[str] | None = None, classes: Sequence[Any] | None = None) -> Explanation:
        """Return the shares of means and of models for each class, read off the weights."""
        self._need_settled("explain")
        network = self.network
        assert isinstance(network, AFA)
        return explain(network, models, classes)


@register_fuser("shallow-net")
@dataclass(eq=False, kw_only=True)
class ShallowNet(NetworkFuser):
    """Two fully connected layers with about as many parameters as full AFA with J = 3 means.

    H hidden units make H·(K·N + N + 1) + N parameters; H ≈ 3N is the one nearest to 3·N²·(K+1).
    """

    def build(self, n_models: int, n_classes: int) -> Perceptron:
        """Return the untrained network."""
        target = len(DEFAULT_MEANS) * n_classes**2 * (n_models + 1)
        hidden = round((target - n_classes) / (n_models * n_classes + n_classes + 1))
        return Perceptron(n_models, n_classes, [max(1, hidden)])

    def _least(self, n_models: int, n_classes: int) -> int:
        return n_models * n_classes**2

    def _rule(self, network: nn.Module) -> Rule:
        return Layers()


@register_fuser("deep-net")
@dataclass(eq=False, kw_only=True)
class DeepNet(NetworkFuser):
    """Five fully connected layers.

    Args:
        width: of the four hidden layers; None: K·N, but at least 16 and at most 256.
    """

    lr: float = 0.003
    width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None and (not isinstance(self.width, int) or self.width < 1):
            raise ValueError(f"width must be a whole number of at least 1, got {self.width!r}")

    def build(self, n_models: int, n_classes: int) -> Perceptron:
        """Return the untrained network."""
        width = min(max(n_models * n_classes, 16), 256) if self.width is None else self.width
        return Perceptron(n_models, n_classes, [width] * 4)

    def _least(self, n_models: int, n_classes: int) -> int:
        return (self.width or 16) * n_models * n_classes + 3 * (self.width or 16) ** 2

    def _rule(self, network: nn.Module) -> Rule:
        return Layers()


@register_fuser("weighted-average")
@dataclass(eq=False, kw_only=True)
class WeightedAverageNet(NetworkFuser):
    """A layer of K weights, one a model, and a fully connected output layer (see ``WeightedAverage``)."""

    lr: float = 0.03

    def build(self, n_models: int, n_classes: int) -> WeightedAverage:
        """Return the untrained network."""
        return WeightedAverage(n_models, n_classes)

    def _least(self, n_models: int, n_classes: int) -> int:
        return n_models + n_classes**2

    def _rule(self, network: nn.Module) -> Rule:
        return WeightedLayer()


@register_fuser("mixture-of-experts")
@dataclass(eq=False, kw_only=True)
class MixtureOfExperts(NetworkFuser):
    """A mixture of experts (Jacobs et al., 1991): see ``GatedMixture``. ``network.gate`` says who counts in which row.

    The models are given and only the gate is trained, with random models dropped as in neural ensemblers (Arango et
    al., 2025). It minimises the sum of the rows' log-losses plus decay/2 · ‖parameters‖²: with few rows it stays near
    the plain mean. A model without an answer in a row leaves its weight to the others. Options not named here are
    those of every network.

    Args:
        padding: by default a model gives 0 to what it does not know, so that the gate alone decides between models.
        dropout: the chance of a model to be dropped from a row in training, below 1.
        decay: strength of the penalty.
    """

    padding: Padding = "zero"
    dropout: float = 0.1
    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number in [0, 1), got {self.dropout!r}")
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"decay must be a finite number >= 0, got {self.decay!r}")

    def build(self, n_models: int, n_classes: int) -> GatedMixture:
        """Return the untrained mixture: the plain mean."""
        return GatedMixture(n_models, n_classes, self.dropout)

    def _weight_decay(self, n_rows: float) -> float:
        return self.decay / max(n_rows, 1e-6)  # finite for rows of next to no weight, too

    def _input(self, scores: Array) -> Tensor:
        padded = super()._input(scores)
        silent = np.isnan(scores).all(2)
        return padded.masked_fill(torch.from_numpy(silent)[:, :, None], 0.0) if silent.any() else padded

    def _least(self, n_models: int, n_classes: int) -> int:
        return _WIDTH * n_models * n_classes
