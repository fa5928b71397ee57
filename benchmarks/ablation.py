"""What each part of the recipe ``best`` adds, after base training: one row a part, over several draws of the shots.

    faverage run mini-imagenet --data ROOT --recipe best --save-features best.npz
    python benchmarks/ablation.py best.npz --json ablation.json

Each row has all that the row above it has, and one thing more. Shots are drawn as ``faverage run --draws`` draws them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from faverage.experiment.features import Features, features_of_file
from faverage.experiment.recipes import BEST
from faverage.fscil import ViewLearner
from faverage.fscil.metrics import Outcome

PAPER: dict[str, Any] = {
    **{"means": ["arithmetic", "geometric", "harmonic"], "output": "softmax", "mixing": None, "scale": 10.0},
    **{"padding": "inlierness", "lr": 0.01},
}
PER_CLASS = {"structure": "per_class", **PAPER}
TRADE = {name: BEST[name] for name in ("balance", "calibration")}
PAIRS: dict[str, Any] = {"ridge": None}
ONE: dict[str, Any] = {"network": 1, **PAIRS}
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("nearest prototypes, one view", {"views": 1, "fuser": "prototypes"}),
    ("all views of the first network, their geometric mean", {**ONE, "fuser": "geometric"}),
    ("AFA, one weight a class, stand-ins", {**ONE, "fuser_options": PER_CLASS, "rehearsal": "residual"}),
    ("each shot left out in turn", {**ONE, "fuser_options": PER_CLASS}),
    ("weights that classes of a kind share", {**ONE, "fuser_options": PAPER}),
    ("output (Σ A x)^T instead of softmax", ONE),
    ("balance", {**ONE, "balance": TRADE["balance"]}),
    ("calibration", {**ONE, **TRADE}),
    ("the second network", {**PAIRS, **TRADE}),
    ("ridge regression on all views, one more member", TRADE),
    ("instead of both networks: the second alone", {"network": 2, **TRADE}),
    ("instead of AFA: log-pool", {"fuser": "log-pool", **TRADE}),
    ("instead of AFA: log-pool, without ridge regression", {"fuser": "log-pool", **PAIRS, **TRADE}),
    ("instead of AFA: logistic", {"fuser": "logistic", **TRADE}),
    ("instead of AFA: arithmetic mean", {"fuser": "arithmetic", **TRADE}),
    ("instead of AFA: geometric mean", {"fuser": "geometric", **TRADE}),
]


def columns_of(views: list[str], network: int | None, count: int | None) -> list[int]:
    """Return the places of the views of one network, or of all; of them the first ``count``, or all.

    >>> columns_of(["network 1: plain", "network 2: plain", "network 2: flip"], 2, None)
    [1, 2]
    """
    mine = [k for k, name in enumerate(views) if network is None or name.startswith(f"network {network}: ")]
    return mine[:count]


def measure(features: Features, views: list[str], row: dict[str, Any], draw: int, seed: int) -> list[dict[str, Any]]:
    """Take one row through all sessions with one draw of the shots; return the metrics of each."""
    import torch

    torch.set_num_threads(1)
    options = {**row, "seed": seed}
    places = columns_of(views, options.pop("network", None), options.pop("views", None))
    width = features.prototypes.shape[1] // len(views)

    def part(X: Any) -> Any:
        return np.concatenate([X[:, k * width : (k + 1) * width] for k in places], 1)

    drawn = features.redrawn(seed, draw)
    learner = ViewLearner([views[k] for k in places], **options)
    heads = [drawn.head[k] for k in places]
    learner.fit_base(part(drawn.memory), drawn.memory_labels, head=heads, prototypes=part(drawn.prototypes))
    outcome, test, labels = Outcome(drawn.sessions), part(drawn.test), drawn.test_labels
    for k in range(len(drawn.sessions)):
        if k > 0:
            X, y = drawn.train[k - 1]
            learner.learn_session(part(X), y)
        seen = np.isin(labels, np.concatenate(drawn.sessions[: k + 1]))
        outcome.add(labels[seen], learner.predict(test[seen]), 0.0)
    sessions: list[dict[str, Any]] = outcome.to_dict()["sessions"]
    return sessions


def main() -> None:
    """Parse the options, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with np.load(options.features) as file:
        views = [str(name) for name in file["views"]]
    if not columns_of(views, 2, None):
        raise SystemExit(
            f"{options.features} has views of one network, expected those of two: save those of the recipe"
        )
    features = features_of_file(options.features, views)
    todo = [(name, row, draw) for name, row in ROWS for draw in range(options.draws)]
    jobs = Parallel(n_jobs=options.jobs, return_as="generator")
    found = jobs(delayed(measure)(features, views, row, draw, options.seed) for _, row, draw in todo)
    results: dict[str, list[Any]] = {}
    print("| after the last session (%) | F1 | accuracy | base | new |\n|---|---:|---:|---:|---:|")
    for (name, _, _), sessions in zip(todo, found, strict=True):
        results.setdefault(name, []).append(sessions)
        if len(results[name]) == options.draws:
            last = [[100 * run[-1][key] for key in ("f1", "accuracy", "base", "new")] for run in results[name]]
            mean, spread = np.mean(last, 0), np.std(last, 0, ddof=1) if options.draws > 1 else np.zeros(4)
            cells = " | ".join(f"{m:.2f} ± {s:.2f}" for m, s in zip(mean, spread, strict=True))
            print(f"| {name} | {cells} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"views": views, "draws": options.draws, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
