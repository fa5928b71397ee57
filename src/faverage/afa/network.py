"""The f-average network and its aggregation, AFA: ``(n, K, N)`` scores of K models to ``(n, N)``.

Section 3 of the paper. For each mean j, with f_j applied entry by entry and x the K score vectors side by side,

    x̃_j = f_j⁻¹( W_j f_j(x) ),   W_j ≥ 0, rows of W_j sum to one          (FAverage)
    x̂   = g( Σ_j A_j x̃_j ),     A_j ≥ 0                                   (AFA)

W_j says which model is trusted for which class, A how the means are mixed, g brings the result to its domain.
No training code lives here: see ``faverage.fit``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from faverage.afa.means import Mean, get_mean
from faverage.afa.weights import Blocks, Constraint, Groups, GroupSpec, Parts, Rows, Tied, row_pieces

__all__ = ["AFA", "FAverage"]

Structure = Literal["full", "per_class", "scalar", "block", "tied"]
Output = Literal["softmax", "normalise", "power", "identity"]
MeanSpec = str | Mean | Mapping[str, Any]

DEFAULT_MEANS: tuple[MeanSpec, ...] = ("arithmetic", "geometric", "harmonic")
_TINY = 1e-12  # keeps logarithms and divisions of the normalised output finite


def _plus(x: Tensor, small: float) -> Tensor:
    """Return x + small. Exporters drop the sum with a number near 0, which leaves 0 / 0 and log 0, but not this one."""
    return x + torch.full_like(x, small)


class FAverage(nn.Module):
    """One f-average of K models with a matrix of weights: x̃ = f⁻¹(W f(x)) (equation 4 of the paper).

    Args:
        n_models: K, the number of models.
        n_outputs: N, the number of classes (or of regression targets).
        mean: a mean, its name, or ``{"name": ..., **options}``.
        structure: ``full``, W is N x KN (the paper); ``block``, a class reads the classes of its own group only;
            ``per_class``, one weight a model and class; ``tied``, one a model and group of classes; ``scalar``, one
            weight a model.
        constraint: how the rows of W are kept on the simplex: ``projection`` after each step, or a ``softmax``.
        groups: for ``block`` and ``tied``, a group number for each class, or a number of contiguous groups of about
            equal size.

    >>> average = FAverage(n_models=2, n_outputs=3, mean="geometric", structure="scalar")
    >>> average(torch.tensor([[[0.8, 0.1, 0.1], [0.2, 0.4, 0.4]]]))
    tensor([[0.4002, 0.2002, 0.2002]], grad_fn=<SubBackward0>)
    """

    def __init__(
        self,
        n_models: int,
        n_outputs: int,
        mean: MeanSpec = "arithmetic",
        structure: Structure = "full",
        constraint: Constraint = "projection",
        groups: GroupSpec | Groups | None = None,
    ) -> None:
        super().__init__()
        self.validate = True
        self.n_models, self.n_outputs = _check_sizes(n_models, n_outputs)
        self.mean = get_mean(mean)
        self.structure = _choice("structure", structure, Structure)
        self.groups, self.tied = _check_groups(self.structure, groups, self.n_outputs)
        each, constraint = 1 / self.n_models, _choice("constraint", constraint, Constraint)
        self.weights = _start_matrix(self, self.n_models, each, simplex=True, constraint=constraint)

    @property
    def weight(self) -> Tensor:
        """W: ``(N, K·N)`` full and block, ``(N, K)`` per_class and tied, ``(1, K)`` scalar.

        Column k·N + m is class m of model k. The matrix of ``block`` is made anew with its zeros; ``weights.stored()``
        has the blocks alone.
        """
        value: Tensor = self.weights()
        return value

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to their f-average ``(n, N)``."""
        _check_scores(self, scores, (self.mean,))
        return self._average(scores)

    def _average(self, scores: Tensor) -> Tensor:
        if self.groups is not None:
            return self.groups.join(self._average_blocks(self.groups.split(scores)))
        values = self.mean(scores)
        if self.structure == "full":
            mixed = values.flatten(1) @ self.weight.T
        else:
            mixed = (values * self.weight.T).sum(1)
        return self.mean.inverse(mixed)

    def _average_blocks(self, parts: Parts) -> Parts:
        """Map scores by group, pieces ``(g, n, K·s)``, to their f-averages ``(g, n, s)``."""
        assert isinstance(self.weights, Blocks)
        products = self.weights.product([[self.mean(piece) for piece in pieces] for pieces in parts])
        return [[self.mean.inverse(piece) for piece in pieces] for pieces in products]

    def project_(self) -> None:
        """Bring W back to its set."""
        self.weights.project_()


class AFA(nn.Module):
    """Aggregated f-averages: several f-averages, mixed by non-negative weights (equations 6–8 of the paper).

    Full AFA has J·N²·(K+1) parameters, block with groups of s classes J·N·s·(K+1), per_class J·N·(K+1), tied with G
    groups J·G·(K+1) and scalar J·(K+1). In ``block`` both W and A keep to the groups: it is full AFA with zeros
    outside. In ``tied`` the classes of a group share the weights of per_class: few examples of each are enough then.

    Args:
        n_models: K, the number of models.
        n_outputs: N, the number of classes (or of regression targets).
        means: the J means: names, ``Mean`` objects, or ``{"name": ..., **options}``.
        structure: shape of the weights: ``full`` (the paper), ``block``, ``per_class``, ``tied`` or ``scalar``.
        output: g. ``softmax``, probabilities from x̂ = Σ_j A_j x̃_j as logits (the paper); ``normalise``, x̂ / Σ x̂;
            ``power``, (x̂ + floor)^T scaled to sum to one, with one more parameter, the temperature T > 0: with the
            geometric mean of the same eps this is the log-opinion pool; ``identity``, for regression.
        constraint: ``projection`` after each step (the paper), or a ``softmax`` parametrisation.
        mixing: the set of A: ``nonnegative`` (the paper) or ``simplex``, rows that sum to one. By default the simplex
            where g ignores the scale of A or must keep it (normalise, identity), else nonnegative.
        scale: start of A, which is (scale/J)·I where A is free: softmax of numbers in [0, 1] is nearly flat without it.
        floor: what ``power`` adds to x̂.
        groups: for ``block`` and ``tied``, a group number for each class (``faverage.groups_by_confusion`` proposes
            them for ``block``), or a number of contiguous groups of about equal size.

    >>> network = AFA(n_models=4, n_outputs=10)
    >>> sum(p.numel() for p in network.parameters()) == 3 * 10**2 * (4 + 1)
    True
    >>> network(torch.rand(5, 4, 10)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        n_models: int,
        n_outputs: int,
        means: Sequence[MeanSpec] = DEFAULT_MEANS,
        structure: Structure = "full",
        output: Output = "softmax",
        constraint: Constraint = "projection",
        mixing: Literal["nonnegative", "simplex"] | None = None,
        scale: float = 10.0,
        floor: float = 1e-3,
        groups: GroupSpec | None = None,
    ) -> None:
        super().__init__()
        self.validate = True
        self.n_models, self.n_outputs = _check_sizes(n_models, n_outputs)
        if isinstance(means, str | Mapping | Mean) or not means:
            raise ValueError(f"means must be a non-empty list of means, got {means!r}")
        for name, value in (("scale", scale), ("floor", floor)):
            if not isinstance(value, Real) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
        self.structure = _choice("structure", structure, Structure)
        self.output = _choice("output", output, Output)
        self.constraint = _choice("constraint", constraint, Constraint)
        self.mixing = mixing or ("nonnegative" if output == "softmax" else "simplex")
        if self.mixing not in ("nonnegative", "simplex"):
            raise ValueError(f"mixing must be 'nonnegative' or 'simplex', got {mixing!r}")
        self.scale, self.floor = float(scale), float(floor)
        if output == "power":
            self.log_temperature = nn.Parameter(torch.zeros(()))
        self.groups, self.tied = _check_groups(self.structure, groups, self.n_outputs)
        shared = self.groups or self.tied
        self.averages = nn.ModuleList(FAverage(n_models, n_outputs, m, structure, constraint, shared) for m in means)
        simplex = self.mixing == "simplex"
        each = (1.0 if simplex else self.scale) / len(means)
        self.aggregation = _start_matrix(self, len(means), each, simplex=simplex, constraint=self.constraint)

    @property
    def branches(self) -> list[FAverage]:
        """The J f-averages, ``self.averages`` as a plain list."""
        return list(self.averages)  # type: ignore[arg-type]

    @property
    def means(self) -> tuple[Mean, ...]:
        """The J means."""
        return tuple(average.mean for average in self.branches)

    @property
    def temperature(self) -> Tensor:
        """T, ``()``, of the output ``power``; 1 for the others."""
        return self.log_temperature.exp() if self.output == "power" else torch.ones(())

    @property
    def mix(self) -> Tensor:
        """A: ``(N, J·N)`` full and block, ``(N, J)`` per_class and tied, ``(1, J)`` scalar; j·N + m: class m of j."""
        value: Tensor = self.aggregation()
        return value

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to fused probabilities (or values) ``(n, N)``."""
        mixed = self.aggregate(scores)
        if self.output in ("softmax", "power"):
            return self._logits(mixed).softmax(-1)
        if self.output == "normalise":
            mixed = _plus(mixed.relu(), _TINY)
            return mixed / mixed.sum(-1, keepdim=True)
        return mixed

    def log_prob(self, scores: Tensor) -> Tensor:
        """Map scores ``(n, K, N)`` to log-probabilities ``(n, N)``."""
        if self.output == "identity":
            raise ValueError(
                "a network with output='identity' gives no probabilities; use 'softmax', 'normalise' or 'power'"
            )
        if self.output in ("softmax", "power"):
            return self._logits(self.aggregate(scores)).log_softmax(-1)
        return self.forward(scores).log()

    def _logits(self, mixed: Tensor) -> Tensor:
        return mixed if self.output == "softmax" else self.temperature * _plus(mixed.relu(), self.floor).log()

    def aggregate(self, scores: Tensor) -> Tensor:
        """Return Σ_j A_j x̃_j, ``(n, N)``, of scores ``(n, K, N)``, before g."""
        _check_scores(self, scores, self.means)
        if self.groups is not None:
            assert isinstance(self.aggregation, Blocks)
            parts = self.groups.split(scores)
            by_mean = [average._average_blocks(parts) for average in self.branches]
            merged = [[torch.cat(p, -1) for p in zip(*pieces, strict=True)] for pieces in zip(*by_mean, strict=True)]
            return self.groups.join(self.aggregation.product(merged))
        if self.structure == "full":
            return torch.cat([average._average(scores) for average in self.branches], -1) @ self.mix.T
        mixed = []
        for piece in row_pieces(scores):
            averaged = [average._average(piece) for average in self.branches]
            mixed.append((torch.stack(averaged, 1) * self.mix.T).sum(1))
        return torch.cat(mixed)

    def rows(self) -> list[Rows]:
        """Return every constrained matrix of the network."""
        return [module for module in self.modules() if isinstance(module, Rows)]

    def project_(self) -> None:
        """Bring every weight back to its set; the training loop calls it after each step."""
        for rows in self.rows():
            rows.project_()

    def config(self) -> dict[str, Any]:
        """Return what rebuilds this network untrained: ``AFA(**network.config())``, as plain JSON data."""
        shared = self.groups or self.tied
        return {
            "n_models": self.n_models,
            "n_outputs": self.n_outputs,
            "means": [{"name": mean.name, **mean.options()} for mean in self.means],
            "structure": self.structure,
            "output": self.output,
            "constraint": self.constraint,
            "mixing": self.mixing,
            "scale": self.scale,
            "floor": self.floor,
            **({} if shared is None else {"groups": shared.numbers}),
        }

    def extra_repr(self) -> str:
        """Say what was built."""
        return ", ".join(f"{k}={json.dumps(v)}" for k, v in self.config().items() if k not in ("means", "groups"))


def _check_scores(network: FAverage | AFA, scores: Tensor, means: Sequence[Mean]) -> None:
    """Raise ValueError for scores that ``network`` cannot take.

    Shapes are always checked. Values are checked unless ``network.validate`` is False (``fit`` checks them once and
    turns it off while it trains) or the network is being traced.
    """
    expected = f"(n, {network.n_models}, {network.n_outputs})"
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = f"a {scores.dtype} tensor" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"scores must be a floating-point tensor of shape {expected}, got {kind}")
    if scores.ndim != 3 or tuple(scores.shape[1:]) != (network.n_models, network.n_outputs):
        raise ValueError(f"scores must have shape {expected}: examples x models x classes, got {tuple(scores.shape)}")
    if not network.validate or torch.compiler.is_compiling():
        return
    strictest = max(means, key=lambda mean: mean.lower)
    strictest.check(scores, "scores")


def _start_matrix(
    network: FAverage | AFA, copies: int, each: float, *, simplex: bool, constraint: Constraint
) -> Rows | Blocks:
    """Return W or A at its start: class n is read off class n alone, with the same weight ``each`` in every copy."""
    n = network.n_outputs
    if network.groups is not None:
        return Blocks(network.groups, copies, each, simplex=simplex, constraint=constraint)
    if network.tied is not None:
        start = torch.full((len(set(network.tied.numbers)), copies), each)
        return Tied(start, network.tied.numbers, simplex=simplex, constraint=constraint)
    if network.structure == "full":
        start = torch.eye(n).repeat(1, copies).mul_(each)
    else:
        start = torch.full((1 if network.structure == "scalar" else n, copies), each)
    return Rows(start, simplex=simplex, constraint=constraint)


def _check_groups(structure: str, groups: GroupSpec | Groups | None, n: int) -> tuple[Groups | None, Groups | None]:
    """Return the groups of the structures ``block`` and ``tied``, None for another one, or raise ValueError."""
    if structure not in ("block", "tied"):
        if groups is not None:
            raise ValueError(f"groups go with structure='block' or 'tied', got structure {structure!r}")
        return None, None
    if groups is None:
        proposed = " (groups_by_confusion proposes them)" if structure == "block" else ""
        raise ValueError(
            f"structure {structure!r} needs groups: a group number for each class{proposed}, or how many groups"
        )
    found = groups if isinstance(groups, Groups) else Groups(groups, n)
    return (found, None) if structure == "block" else (None, found)


def _check_sizes(n_models: int, n_outputs: int) -> tuple[int, int]:
    """Return K and N, or raise ValueError."""
    for name, value in (("n_models", n_models), ("n_outputs", n_outputs)):
        if isinstance(value, bool) or not isinstance(value, Real) or int(value) != value or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(n_models), int(n_outputs)


def _choice(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` if it is one of those that the Literal ``kind`` names, else raise ValueError."""
    if value not in get_args(kind):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(kind)))}, got {value!r}")
    return value
