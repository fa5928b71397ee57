"""What one f-average and their aggregation have in common: checks of their input, and matrices at their start."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, Protocol, get_args

import torch
from torch import Tensor

from faverage.afa.blocks import Blocks, Groups, GroupSpec
from faverage.afa.means import Mean
from faverage.afa.weights import Constraint, Rows, Tied


class Sized(Protocol):
    """What is asked of a network here."""

    validate: bool
    n_models: int
    n_outputs: int
    structure: Any
    groups: Groups | None
    tied: Groups | None


def check_scores(network: Sized, scores: Tensor, means: Sequence[Mean]) -> None:
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


def start_matrix(network: Sized, copies: int, each: float, *, simplex: bool, constraint: Constraint) -> Rows | Blocks:
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


def check_groups(structure: str, groups: GroupSpec | Groups | None, n: int) -> tuple[Groups | None, Groups | None]:
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


def check_sizes(n_models: int, n_outputs: int) -> tuple[int, int]:
    """Return K and N, or raise ValueError."""
    for name, value in (("n_models", n_models), ("n_outputs", n_outputs)):
        if isinstance(value, bool) or not isinstance(value, Real) or int(value) != value or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(n_models), int(n_outputs)


def choice(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` if it is one of those that the Literal ``kind`` names, else raise ValueError."""
    if value not in get_args(kind):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, get_args(kind)))}, got {value!r}")
    return value
