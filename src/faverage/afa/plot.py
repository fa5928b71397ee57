"""Drawing, apart from what is drawn: the one place that talks to matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from faverage.afa.explain import Table


def draw_explanation(
    means: Table, shares: np.ndarray[Any, Any], models: tuple[str, ...], classes: tuple[str, ...]
) -> Any:
    """Draw a bar of the means' shares above a map of models x classes ``(N, K)``; return the figure."""
    from matplotlib.figure import Figure

    n, k = shares.shape
    width, height = min(14.0, 3.2 + 0.42 * n), min(14.0, 1.9 + 0.36 * k)
    figure = Figure(figsize=(max(width, 5.5), height), layout="constrained")
    top, main = figure.subplots(2, 1, gridspec_kw={"height_ratios": [0.5, max(1.0, 0.36 * k)]})

    left = 0.0
    for i, (name, share) in enumerate(means.rows):
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
    rotate = max(map(len, classes)) > 3
    main.set_xticks(
        range(0, n, step), classes[::step], rotation=45 if rotate else 0, ha="right" if rotate else "center"
    )
    main.set_xlabel("class")
    if n * k <= 150:
        for c in range(n):
            for m in range(k):
                dark = shares[c, m] > 0.6 * shares.max()
                main.text(
                    c,
                    m,
                    f"{shares[c, m]:.2f}".lstrip("0") or "0",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "0.25",
                )
    figure.colorbar(image, ax=main, pad=0.01)
    return figure
