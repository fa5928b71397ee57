"""Draw accuracy after the last session against passes an image: ``afa`` by its budget, and every rival as a point.

python tools/passes.py    # reads results/, writes docs/figures/passes.svg
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from faverage.experiment.figures import STYLE
from faverage.rivals import RIVALS

ROOT = Path(__file__).parent.parent
TITLES = {"cub200": "CUB-200", "mini-imagenet": "mini-ImageNet"}
NEAR = 1.7  # points of accuracy: names of points that are nearer than this stand in one line


def points_of(dataset: str) -> dict[str, tuple[int, float]]:
    """Return passes and accuracy (%) of every rival by name, of its own recipe or the shared one: what is better."""
    found: dict[str, tuple[int, float]] = {}
    files = [*(ROOT / "results").glob(f"{dataset}*.json"), *(ROOT / "results" / f"{dataset}-paper").glob("*.json")]
    for told in (json.loads(file.read_text()) for file in files):
        methods = told.get("methods") or {told.get("method"): told}
        for name in RIVALS.keys() & methods.keys() if isinstance(methods, dict) else ():
            passes = (methods[name].get("costs") or {}).get("passes", 1)
            found[name] = max(
                found.get(name, (1, 0.0)),
                (int(passes), 100 * methods[name]["sessions"][-1]["accuracy"]),
                key=lambda point: point[1],
            )
    printed = ROOT / "results" / f"{dataset}-printed.txt"  # of some runs there is no more
    text = printed.read_text() if printed.is_file() else ""
    for name, accuracy in re.findall(r"^(\S+), faverage.*\nacc \[.*?([\d.]+)\]", text, re.MULTILINE):
        passes, best = found.get(name, (1, 0.0))
        found[name] = (passes, max(best, float(accuracy)))
    return found


def lines_of(points: dict[str, tuple[int, float]]) -> dict[tuple[int, float], str]:
    """Return names by their place, those that would overlap in one line."""
    lines: dict[tuple[int, float], str] = {}
    for name, (passes, accuracy) in sorted(points.items(), key=lambda item: item[1]):
        near = next((at for at in lines if at[0] == passes and accuracy - at[1] < NEAR), None)
        lines[near or (passes, accuracy)] = f"{lines[near]}, {name}" if near else name
    return lines


def main() -> None:
    """Draw both data sets side by side."""
    from matplotlib import style
    from matplotlib.figure import Figure

    curves = json.loads((ROOT / "results" / "passes.json").read_text())
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        for axes, (dataset, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
            budgets = {int(passes): accuracy for passes, accuracy in curves[dataset].items()}
            axes.plot(list(budgets), list(budgets.values()), "o-", markersize=4, label="afa, --passes N")
            points = points_of(dataset)
            axes.plot(
                *zip(*points.values(), strict=True),
                "s",
                color="0.45",
                markersize=4,
                label="rivals, the better of two recipes",
            )
            for place, names in lines_of(points).items():
                axes.annotate(names, place, xytext=(6, 0), textcoords="offset points", va="center", fontsize=7)
            ticks = sorted({1, *budgets})
            axes.set(title=title, xlabel="passes an image", xscale="log", xticks=ticks, xlim=(0.85, 20))
            axes.set_xticks([], minor=True)
            axes.set_xticklabels([str(tick) for tick in ticks])
        figure.axes[0].set_ylabel("accuracy, last session (%)")
        figure.axes[0].legend(loc="lower right")
        figure.savefig(ROOT / "docs" / "figures" / "passes.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
