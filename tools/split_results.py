"""Keep what runs wrote, one JSON a method and data set, and make tables from such a folder: F1 by session, all metrics.

    python tools/split_results.py runs/a/results.json …    # writes results/DATASET/METHOD.json
    python tools/split_results.py results/mini-imagenet     # prints the tables in Markdown, and the command of each row
    python tools/split_results.py results/cub200-paper --figures docs/figures/cub200    # draws all its methods together

Runs with another recipe than ``shared`` have a folder of their own, DATASET-RECIPE, and so have those with several
orders of the classes, DATASET-orders.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from faverage.experiment.config import all_methods
from faverage.experiment.figures import write_figures
from faverage.experiment.results import PAPER
from faverage.fscil.metrics import summary
from faverage.report.tables import in_markdown, markdown_table, plus_minus
from faverage.storage import read_json, rounded

ROOT = Path(__file__).parent.parent
SAME = ("dataset", "command", "config", "versions", "device", "date", "protocol")
KEPT = (
    *("chosen", "confusion", "history", "sessions", "spread", "summary", "summary_spread"),
    *("costs", "costs_spread", "trade"),
)
OVERALL = {
    **{"first": "session 0", "accuracy": "last", "average_accuracy": "average", "base": "base", "new": "new"},
    **{"harmonic": "HM", "average_harmonic": "aHM", "gacc_auc": "gAcc AUC", "performance_drop": "PD"},
}
PLACES = ("data", "features", "weights", "tensorboard")  # settings that are paths


def split(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return by method what a run's ``results.json`` says of it, without what was learned and without local paths."""
    kept = {}
    for name, method in results["methods"].items():
        base = method.get("base") or results.get("networks") or results.get("base")
        told = {key: results.get(key) for key in SAME} | {"method": name}
        told["command"] = without_places(results.get("command") or "")
        told["config"] = {k: Path(v).name if k in PLACES and v else v for k, v in (results.get("config") or {}).items()}
        # a method that an earlier run had finished is as old as that
        dates = [one["date"] for one in results.get("earlier") or [] if one["method"] == name]
        told["date"] = max(dates, default=results.get("date"))
        told["seconds"] = {"run": results.get("seconds"), "sessions": sum(s["seconds"] for s in method["sessions"])}
        told["base"] = [_brief(network) for network in base] if isinstance(base, list) else _brief(base or {})
        told |= {key: method.get(key) for key in KEPT}
        sizes = [session["classes"] for session in results["protocol"]["sessions"]]
        told["summary"] = told["summary"] or summary(method["sessions"], sizes)  # earlier versions had none
        told["repeats"] = [
            {key: one.get(key, 0) for key in ("seed", "order", "draw")} | {"sessions": one["methods"][name]["sessions"]}
            for one in results.get("repeats") or []
        ]
        kept[name] = rounded(told)
    return kept


def _brief(base: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key != "history"}


def without_places(command: str) -> str:
    """Return a command without what is of one machine: the folders of data and results.

    >>> without_places("faverage run cub200 --data '/home/me/a cub' --weights=../x/r.pth --out a/b --config e/t.yaml")
    'faverage run cub200 --data ROOT --weights=r.pth --config e/t.yaml'
    """
    command = re.sub(r" --out[ =]('[^']*'|\S+)", "", command)
    command = re.sub(r" --data[ =]('[^']*'|\S+)", " --data ROOT", command)
    return re.sub(r"(?<=[ =])\.{0,2}/\S*/", "", command)


def table(folder: Path) -> str:
    """Return F1 by session of all methods in a folder, in the paper's order, the paper's lines below ours."""
    records = {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))}
    if not records:
        raise SystemExit(f"{folder} holds no results: make some with tools/split_results.py RUN/results.json")
    paper = PAPER.get(next(iter(records.values()))["dataset"], {})
    n = max(len(values) for values in [*paper.values(), *(record["sessions"] for record in records.values())])
    runs = list(dict.fromkeys((r["command"], r["device"], r["date"][:10]) for r in records.values()))
    rows, overall = [], []
    for name in dict.fromkeys([*all_methods(), *sorted(records)]):
        if name in records:
            record = records[name]
            values = [session["f1"] for session in record["sessions"]]
            spread = [session["f1"] for session in record["spread"] or []] or [None] * len(values)
            cells = [plus_minus(v, s, scale=100) for v, s in zip(values, spread, strict=True)]
            said = record["command"], record["device"], record["date"][:10]
            rows.append([in_markdown(name), *_filled(cells, n), _mean(values, 100), str(runs.index(said) + 1)])
            overall.append([in_markdown(name), *_overall(record)])
        if name in paper:
            cells = [f"{v:.2f}" for v in paper[name]]
            rows.append([f"*{in_markdown(name)}, the paper*", *_filled(cells, n), _mean(paper[name], 1), ""])
    lines = markdown_table(["method"], [*map(str, range(n)), "mean 1…", "run"], rows)
    lines += ["", *markdown_table(["method"], [*OVERALL.values(), "base (s)", "session (s)", "passes"], overall)]
    told = [re.sub(r"experiments/(\w+)\.yaml", r"\1", command) for command, _, _ in runs]  # there is no such folder now
    lines += ["", *(f"{k}. `{told[k - 1]}`, {one[1]}, {one[2]}" for k, one in enumerate(runs, 1))]
    return "\n".join(lines) + "\n"


def _overall(record: dict[str, Any]) -> list[str]:
    last, spread = record["sessions"][-1], (record["spread"] or [{}])[-1]
    found = {**record["summary"], "accuracy": last["accuracy"], "first": record["sessions"][0]["accuracy"]}
    spreads = {**(record["summary_spread"] or {}), "accuracy": spread.get("accuracy")}
    cells = [plus_minus(found[key], spreads.get(key), scale=100) for key in OVERALL]
    costs = record["costs"] or {"base_seconds": (record["base"] or {}).get("seconds")}
    return cells + [_cost(costs.get(key)) for key in ("base_seconds", "session_seconds", "passes")]


def _cost(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _filled(cells: list[str], n: int) -> list[str]:
    return [*cells, *["–"] * (n - len(cells))]


def _mean(values: list[float], scale: float) -> str:
    later = values[1:] or values
    return f"{scale * sum(later) / len(later):.2f}"


def together(folder: Path) -> dict[str, Any]:
    """Return all methods of a folder, in the order of the tables, as the results of one run: what figures need."""
    records = {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))}
    names = [name for name in all_methods() if name in records]
    if not names:
        raise SystemExit(f"{folder} holds no results: make some with tools/split_results.py RUN/results.json")
    dataset = records[names[0]]["dataset"]
    return {"dataset": dataset, "methods": {name: records[name] for name in names}, "paper": PAPER.get(dataset)}


def main(places: list[Path], figures: Path | None = None) -> None:
    """Write what runs left, or print the tables of folders, or draw a folder's figures."""
    for place in places:
        if figures is not None:
            print(*write_figures(together(place), figures), sep="\n")
            continue
        if place.is_dir():
            print(table(place))
            continue
        results = read_json(place)
        if not isinstance(results, dict) or not results.get("methods"):
            raise SystemExit(f"{place} is not the results.json of a run: it has no methods")
        config = results.get("config") or {}
        recipe, orders = config.get("recipe", "shared"), config.get("class_orders", 1)
        kind = ("" if recipe == "shared" else f"-{recipe}") + ("-orders" if orders > 1 else "")
        folder = ROOT / "results" / f"{results['dataset']}{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, record in split(results).items():
            lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
            (folder / f"{name}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
            print(folder / f"{name}.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", type=Path, nargs="+", help="results.json of runs, or folders of kept results")
    parser.add_argument("--figures", type=Path, help="where to draw the figures of a folder")
    given = parser.parse_args()
    try:
        main(given.places, given.figures)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
