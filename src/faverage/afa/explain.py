"""What a fitted AFA says: which mean it uses, and which model it trusts for which class.

The output of class c is Σ_j Σ_m A_j[c, m] x̃_j[m], and x̃_j[m] rests on model k with weight ω_jk[m], the sum of W_j's row
m over the columns of model k. So, with a_c the sum of A's row c,

    share of mean j for class c   =  Σ_m A_j[c, m] / a_c
    share of model k for class c  =  Σ_j Σ_m A_j[c, m] ω_jk[m] / a_c

Both sum to one for each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faverage.afa.means import Mean
from faverage.afa.network import AFA
from faverage.afa.weights import Blocks
from faverage.errors import install_line

__all__ = ["Explanation", "Table", "explain"]


@dataclass(frozen=True)
class Table:
    """A small tidy table: one observation a row.

    >>> print(Table(("model", "share"), [("a", 0.25), ("b", 0.75)]).to_markdown(digits=2))
    | model | share |
    |-------|------:|
    | a     |  0.25 |
    | b     |  0.75 |
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.rows, columns=list(self.columns))

    def to_markdown(self, digits: int = 3) -> str:
        """Return a Markdown table; numbers are rounded and set to the right."""
        cells = [[_cell(value, digits) for value in row] for row in self.rows]
        numeric = [all(isinstance(row[i], int | float) for row in self.rows) for i in range(len(self.columns))]
        widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(self.columns)]

        def line(values: Sequence[str]) -> str:
            padded = (v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True))
            return "| " + " | ".join(padded) + " |"

        ends = (":" if right else "-" for right in numeric)
        ruler = "|".join("-" * (w + 1) + end for w, end in zip(widths, ends, strict=True))
        return "\n".join([line(self.columns), f"|{ruler}|", *map(line, cells)])


@dataclass(frozen=True)
class Explanation:
    """The weights of an AFA network as shares that sum to one.

    Attributes:
        means: share of each mean, over all classes: columns mean, share.
        models: share of each model for each class: columns class, model, share.
        trusted: the most trusted model of each class: columns class, model, share, mean (the class's largest mean).

    >>> said = explain(AFA(2, 3, structure="scalar"), models=["a", "b"], classes=["cat", "cow", "dog"])
    >>> said.models.rows[:2]
    [('cat', 'a', 0.5), ('cat', 'b', 0.5)]
    """

    means: Table
    models: Table
    trusted: Table
    _shares: Tensor  # (N, K)
    _names: tuple[tuple[str, ...], tuple[str, ...]]  # models, classes

    def to_pandas(self) -> dict[str, Any]:
        """Return the three tables as DataFrames, by name."""
        return {name: getattr(self, name).to_pandas() for name in ("means", "models", "trusted")}

    def to_markdown(self, digits: int = 3) -> str:
        """Return the means, the models (one row a model, over all classes) and the most trusted models."""
        models, _ = self._names
        overall = self._shares.mean(0)
        by_model = Table(("model", "share"), [(m, float(s)) for m, s in zip(models, overall, strict=True)])
        parts = {"Means": self.means, "Models, over all classes": by_model, "Most trusted by class": self.trusted}
        return "\n\n".join(f"**{title}**\n\n{table.to_markdown(digits)}" for title, table in parts.items())

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the share of each model for each class, with the shares of the means above; return the figure.

        Args:
            path: also save the figure there; the ending says the format.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError(f"plot needs matplotlib: {install_line('plot')}") from None

        shares, (models, classes) = self._shares.numpy(), self._names
        n, k = shares.shape
        width, height = min(14.0, 3.2 + 0.42 * n), min(14.0, 1.9 + 0.36 * k)
        figure = Figure(figsize=(max(width, 5.5), height), layout="constrained")
        top, main = figure.subplots(2, 1, gridspec_kw={"height_ratios": [0.5, max(1.0, 0.36 * k)]})

        left = 0.0
        for i, (name, share) in enumerate(self.means.rows):
            top.barh(0, share, left=left, color=f"C{i}", edgecolor="white", label=f"{name} {share:.0%}")
            left += share
        top.set(xlim=(0, max(left, 1e-9)), yticks=[], xticks=[])
        top.set_title("share of each mean", loc="left", fontsize="medium")
        top.legend(ncols=4, loc="upper left", bbox_to_anchor=(0, -0.05), frameon=False, fontsize="small")
        for spine in top.spines.values():
            spine.set_visible(False)

        image = main.imshow(shares.T, aspect="auto", cmap="Blues", vmin=0, vmax=max(float(shares.max()), 1e-9))
        main.set_title("share of each model for each class", loc="left", fontsize="medium")
        main.set_yticks(range(k), models)
        step = max(1, n // 30)
        rotation, side = (45, "right") if max(map(len, classes)) > 3 else (0, "center")
        main.set_xticks(range(0, n, step), classes[::step], rotation=rotation, ha=side)
        main.set_xlabel("class")
        if n * k <= 150:
            for c in range(n):
                for m in range(k):
                    dark = shares[c, m] > 0.6 * shares.max()
                    said, colour = f"{shares[c, m]:.2f}".lstrip("0") or "0", "white" if dark else "0.25"
                    main.text(c, m, said, ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(image, ax=main, pad=0.01)
        if path is not None:
            figure.savefig(path, dpi=150, bbox_inches="tight")
        return figure


@torch.no_grad()
def explain(network: AFA, models: Sequence[str] | None = None, classes: Sequence[Any] | None = None) -> Explanation:
    """Read the weights of ``network`` as shares of means and of models.

    Args:
        network: an AFA.
        models: the K names of the models; by default model 0, model 1, …
        classes: the N names of the classes; by default 0, 1, …

    >>> network = AFA(n_models=2, n_outputs=2, means=["arithmetic", "geometric"], structure="scalar")
    >>> network.averages[0].weights.set_(torch.tensor([[0.9, 0.1]]))
    >>> print(explain(network, models=["forest", "svm"], classes=["cat", "dog"]).trusted.to_markdown())
    | class | model  | share | mean       |
    |-------|--------|------:|------------|
    | cat   | forest | 0.700 | arithmetic |
    | dog   | forest | 0.700 | arithmetic |
    """
    if not isinstance(network, AFA):
        raise ValueError(f"network must be an AFA, got {type(network).__name__}")
    model_names = check_names("models", models, network.n_models, "model {}")
    class_names = check_names("classes", classes, network.n_outputs, "{}")
    mean_names = names_of(network.means)
    return from_shares(*shares(network), mean_names, model_names, class_names)


def from_shares(
    by_mean: Tensor, by_model: Tensor, means: Sequence[str], models: Sequence[str], classes: Sequence[str]
) -> Explanation:
    """Return the explanation of shares ``(N, J)`` of means and ``(N, K)`` of models, rows summing to one."""
    overall = Table(("mean", "share"), [(n, float(s)) for n, s in zip(means, by_mean.mean(0), strict=True)])
    rows = [(c, m, float(by_model[i, k])) for i, c in enumerate(classes) for k, m in enumerate(models)]
    best, which, mean = *by_model.max(1), by_mean.argmax(1)
    trusted = [(c, models[int(which[i])], float(best[i]), means[int(mean[i])]) for i, c in enumerate(classes)]
    return Explanation(
        overall,
        Table(("class", "model", "share"), rows),
        Table(("class", "model", "share", "mean"), trusted),
        by_model.float().cpu(),
        (tuple(models), tuple(classes)),
    )


def shares(network: AFA) -> tuple[Tensor, Tensor]:
    """Return the share of each mean ``(N, J)`` and of each model ``(N, K)`` for each class."""
    n, k, j = network.n_outputs, network.n_models, len(network.means)
    if network.groups is not None:
        return _scaled(*_block_sums(network))
    mix = network.mix.double()
    weights = []
    for average in network.branches:
        weight = average.weight.double()
        weights.append(weight.reshape(n, k, n).sum(-1) if network.structure == "full" else weight.expand(n, k))
    trust = torch.stack(weights)  # (J, N, K)
    if network.structure == "full":
        mix = mix.reshape(n, j, n)
        by_mean, by_model = mix.sum(-1), torch.einsum("cjm,jmk->ck", mix, trust)
    else:
        by_mean = mix.expand(n, j)
        by_model = torch.einsum("cj,jck->ck", by_mean, trust)
    return _scaled(by_mean, by_model)


def _block_sums(network: AFA) -> tuple[Tensor, Tensor]:
    """Return what ``_scaled`` takes, group by group, so that no matrix of N x N is made."""
    mixing, groups = network.aggregation, network.groups
    assert isinstance(mixing, Blocks) and groups is not None
    mixes = [block.double() for block in mixing.stored()]  # (g, s, J, s) for each size
    trusts = [average.weights.stored() for average in network.branches if isinstance(average.weights, Blocks)]
    by_model = []
    for mix, *blocks in zip(mixes, *trusts, strict=True):
        trust = torch.stack([block.double().sum(-1) for block in blocks])  # (J, g, s, K)
        by_model.append(torch.einsum("gcjm,jgmk->gck", mix, trust))
    return mixing.by_copy().double(), groups.rows(by_model)


def _scaled(by_mean: Tensor, by_model: Tensor) -> tuple[Tensor, Tensor]:
    """Scale the sums over A of means ``(N, J)`` and of models ``(N, K)`` to shares."""
    j, k = by_mean.shape[1], by_model.shape[1]
    total = by_mean.sum(-1, keepdim=True)
    # a class whose row of A is all zero rests on nothing: call every mean and model equal there
    safe = total.clamp(min=1e-30)
    return (torch.where(total > 0, by_mean / safe, 1 / j), torch.where(total > 0, by_model / safe, 1 / k))


def check_names(argument: str, given: Sequence[Any] | None, n: int, default: str) -> tuple[str, ...]:
    """Return n names: those given, or the default with each number in it."""
    if given is None:
        return tuple(default.format(i) for i in range(n))
    if len(given) != n:
        raise ValueError(f"{argument} must have {n} names, got {len(given)}")
    return tuple(str(name) for name in given)


def names_of(means: Iterable[Mean]) -> list[str]:
    """Return the names of means, with the options of those that occur twice, as two power means do."""
    found = [(mean.name, mean.options()) for mean in means]
    names = [name for name, _ in found]
    return [n if names.count(n) == 1 else f"{n}({', '.join(f'{k}={v:g}' for k, v in o.items())})" for n, o in found]


def _cell(value: Any, digits: int) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return " ".join(str(value).split()).replace("|", "\\|")
