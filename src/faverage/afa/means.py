"""Generalised (quasi-arithmetic) means: a function f and its inverse, as one object.

With weights ω ≥ 0 that sum to one, the f-average of x_1 … x_K is (Kolmogorov; equation 2 of the paper)

    f⁻¹( Σ_k ω_k f(x_k) )

f = identity gives the arithmetic mean, ln the geometric, 1/x the harmonic, x^q the power mean. Everything else in
the package asks a mean only for ``mean(x)``, ``mean.inverse(y)`` and ``mean.lower``, so a new mean is one small class:
``register_mean`` has an example.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from numbers import Real
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from faverage.registry import Registry

__all__ = ["Arithmetic", "Geometric", "Harmonic", "Mean", "Power", "get_mean", "mean_names", "register_mean"]


class Mean:
    """A scalar bijection f, applied to every entry, and its inverse.

    Subclasses define ``__call__`` (f) and ``inverse`` (f⁻¹) on tensors of any shape. ``lower`` is the smallest score
    that f accepts: 0 for the paper's means, minus infinity where f is defined on the whole line.
    """

    name: ClassVar[str] = ""
    lower: ClassVar[float] = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """Return f(x), entry by entry, for x of any shape."""
        raise NotImplementedError

    def inverse(self, y: Tensor) -> Tensor:
        """Return f⁻¹(y), entry by entry, for y of any shape."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments that rebuild this mean: ``get_mean(m.name, **m.options())``."""
        found = asdict(self) if is_dataclass(self) and not isinstance(self, type) else dict(vars(self))
        return {name: float(value) if isinstance(value, Real) else value for name, value in found.items()}

    def average(self, values: Tensor, weights: Tensor | None = None, dim: int = -1) -> Tensor:
        """Return the weighted f-average of ``values`` along ``dim`` (the paper's Table 1).

        Args:
            values: any shape; the numbers to average lie along ``dim``.
            weights: ``(K,)``, one for each of the K entries along ``dim``, scaled to sum to one; None: equal ones.
            dim: the dimension to average over; it is removed.

        >>> x = torch.tensor([1.0, 4.0])
        >>> [round(get_mean(m, **o).average(x).item(), 2) for m, o in
        ...  [("harmonic", {"eps": 1e-4}), ("geometric", {"eps": 1e-4}), ("arithmetic", {}), ("power", {"q": 2})]]
        [1.6, 2.0, 2.5, 2.92]
        """
        values = torch.as_tensor(values)
        if values.ndim == 0 or values.shape[dim] == 0:
            raise ValueError(f"values must have at least one entry along dim {dim}, got shape {tuple(values.shape)}")
        values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        self.check(values, "values")
        moved = values.movedim(dim, -1)
        if weights is None:
            return self.inverse(self(moved).mean(-1))
        weights = torch.as_tensor(weights, dtype=values.dtype, device=values.device)
        if weights.shape != moved.shape[-1:]:
            raise ValueError(
                f"weights must have shape ({moved.shape[-1]},), one for each entry along dim {dim}, "
                f"got {tuple(weights.shape)}"
            )
        total = weights.sum()
        if not bool((weights >= 0).all()) or not bool(total > 0) or not bool(total.isfinite()):
            raise ValueError("weights must be finite, non-negative and not all zero")
        return self.inverse((self(moved) * (weights / total)).sum(-1))

    def check(self, values: Tensor, name: str) -> None:
        """Raise ValueError unless all ``values``, of any shape, are finite and at least ``lower``."""
        if values.numel() == 0:
            return
        low, high = (float(v) for v in values.detach().aminmax())
        if math.isnan(low) or math.isnan(high):
            raise ValueError(f"{name} must not contain NaN (mean '{self.name}')")
        if math.isinf(low) or math.isinf(high):
            raise ValueError(f"{name} must be finite, found an infinite value (mean '{self.name}')")
        if low < self.lower:
            raise ValueError(f"{name} must be >= {self.lower:g} for the mean '{self.name}', found {low:g}")


MEANS: Registry[type[Mean]] = Registry("mean", named=True)
M = TypeVar("M", bound=type[Mean])


def register_mean(name: str) -> Callable[[M], M]:
    """Class decorator: make a mean known to ``get_mean`` and ``AFA(means=...)`` under ``name``.

    >>> @register_mean("log-exp")
    ... @dataclass(frozen=True)
    ... class LogExp(Mean):
    ...     sharpness: float = 1.0
    ...     lower = float("-inf")
    ...     def __call__(self, x):
    ...         return (self.sharpness * x).exp()
    ...     def inverse(self, y):
    ...         return y.log() / self.sharpness
    >>> round(get_mean("log-exp", sharpness=50.0).average(torch.tensor([0.1, 0.9])).item(), 2)
    0.89
    >>> MEANS.unregister("log-exp")
    """
    return MEANS.register(name)


def mean_names() -> list[str]:
    """Return the registered names, in order of registration.

    >>> mean_names()[:4]
    ['arithmetic', 'geometric', 'harmonic', 'power']
    """
    return MEANS.names()


def get_mean(mean: str | Mean | Mapping[str, Any], **options: Any) -> Mean:
    """Return a mean by name, by ``{"name": ..., **options}``, or unchanged when it is one already.

    >>> get_mean("power", q=3)
    Power(q=3)
    >>> get_mean({"name": "geometric", "eps": 0.01})
    Geometric(eps=0.01)
    """
    if isinstance(mean, Mean):
        if options:
            raise ValueError(f"options {sorted(options)} were given for a mean that is built already: {mean!r}")
        return mean
    if isinstance(mean, Mapping):
        options = {**{k: v for k, v in mean.items() if k != "name"}, **options}
        mean = str(mean.get("name"))
    kind = MEANS.get(mean)
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"mean '{mean}' does not take the options {sorted(options)}: {error}") from None


def _check_positive(owner: str, option: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{option} of the {owner} mean must be a finite number > 0, got {value!r}")


@register_mean("arithmetic")
@dataclass(frozen=True)
class Arithmetic(Mean):
    """f(x) = x, on the whole line.

    >>> Arithmetic().average(torch.tensor([0.1, 0.9])).item()
    0.5
    """

    lower = -math.inf

    def __call__(self, x: Tensor) -> Tensor:
        """Return x, of any shape."""
        return x

    def inverse(self, y: Tensor) -> Tensor:
        """Return y, of any shape."""
        return y


@register_mean("geometric")
@dataclass(frozen=True)
class Geometric(Mean):
    """f(x) = ln(x + ε), on [0, ∞); the geometric mean as ε → 0.

    >>> round(Geometric().average(torch.tensor([0.1, 0.9])).item(), 2)
    0.3
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        _check_positive("geometric", "eps", self.eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ln(x + ε) for x of any shape."""
        return (x + self.eps).log()

    def inverse(self, y: Tensor) -> Tensor:
        """Return exp(y) − ε for y of any shape."""
        return y.exp() - self.eps


@register_mean("harmonic")
@dataclass(frozen=True)
class Harmonic(Mean):
    """The leaky hyperbola h_ε, which is its own inverse on the whole line; the harmonic mean as ε → 0.

    With top = 1/ε − ε (equation 3 of the paper):

        h(x) = 1/(x + ε) − ε     for 0 ≤ x ≤ top
        h(x) = top − x/ε²        for x < 0
        h(x) = −ε² (x − top)     for x > top

    >>> h = Harmonic(eps=0.5)
    >>> h(h(torch.tensor([-2.0, 0.0, 0.7, 1.5, 9.0])))
    tensor([-2.0000,  0.0000,  0.7000,  1.5000,  9.0000])
    """

    eps: float = 1e-2

    def __post_init__(self) -> None:
        _check_positive("harmonic", "eps", self.eps)
        if self.eps >= 1:
            raise ValueError(f"eps of the harmonic mean must be below 1 (else 1/eps - eps <= 0), got {self.eps!r}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return h_ε(x) for x of any shape."""
        top = 1 / self.eps - self.eps
        inside = x.clamp(0.0, top)
        beyond = x - inside
        leak = torch.where(beyond < 0, beyond / self.eps**2, beyond * self.eps**2)
        return 1 / (inside + self.eps) - self.eps - leak

    def inverse(self, y: Tensor) -> Tensor:
        """Return h_ε(y) for y of any shape."""
        return self(y)


@register_mean("power")
@dataclass(frozen=True)
class Power(Mean):
    """f(x) = x^q with q > 0, on [0, ∞); q = 2 is the quadratic mean, large q leans to the maximum.

    >>> round(Power(q=20).average(torch.tensor([0.1, 0.9])).item(), 2)
    0.87
    """

    q: float = 2.0

    def __post_init__(self) -> None:
        _check_positive("power", "q", self.q)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x^q for x of any shape."""
        return _power(x, self.q)

    def inverse(self, y: Tensor) -> Tensor:
        """Return y^(1/q) for y of any shape."""
        return _power(y, 1 / self.q)


def _power(x: Tensor, exponent: float) -> Tensor:
    """Return x^exponent, and 0 with gradient 0 (instead of an infinite one) where x ≤ 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0) ** exponent, 0.0)
