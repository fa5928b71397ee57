"""What each part of the recipe ``best`` adds, after base training: one row a part, over several draws of the shots.

    faverage run mini-imagenet --data ROOT --recipe best --save-features best.npz
    python benchmarks/ablation.py best.npz --json ablation.json

Each row has all that the row above it has, and one thing more. Shots are drawn as ``faverage run --draws`` draws them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from faverage.experiment.recipes import BEST
from faverage.features import FeatureSet
from faverage.fscil import FewShotLearner
from faverage.fscil.metrics import Outcome

PER_CLASS: dict[str, Any] = {
    **{"fuser": "afa-paper", "members": "views"},
    "fuser_options": {"structure": "per_class", "scale": 10.0, "lr": 0.01},
}
TRADE = {name: BEST[name] for name in ("balance", "calibration")}
MEANS: dict[str, Any] = {"largest": False}  # of channels; views of their largest values are left out
PAIRS: dict[str, Any] = {**MEANS, "ridge": None}
ONE: dict[str, Any] = {"network": 1, "balance": 1.0, **PAIRS}
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("nearest prototypes, one view", {**MEANS, "views": 1, "fuser": "prototypes"}),
    ("all views of the first network, their geometric mean", {**ONE, "fuser": "geometric"}),
    ("AFA of the paper, but one weight a class, stand-ins", {**ONE, **PER_CLASS, "rehearsal": "residual"}),
    ("each shot left out in turn", {**ONE, **PER_CLASS, "rehearsal": "left-out"}),
    ("weights that classes of a kind share, fitted to the optimum", ONE),
    ("balance", {**ONE, "balance": TRADE["balance"]}),
    ("calibration", {**ONE, **TRADE}),
    ("the second network", {**PAIRS, **TRADE}),
    ("ridge regression on all views, one more member", {**MEANS, **TRADE}),
    ("the largest value of each channel, as many views more", TRADE),
    ("instead of both networks: the second alone", {"network": 2, **TRADE}),
    ("instead of AFA: log-pool", {"fuser": "log-pool", **TRADE}),
    ("instead of AFA: log-pool, without ridge regression", {"fuser": "log-pool", **PAIRS, **TRADE}),
    ("instead of AFA: logistic", {"fuser": "logistic", **TRADE}),
    ("instead of AFA: arithmetic mean", {"fuser": "arithmetic", **TRADE}),
    ("instead of AFA: geometric mean", {"fuser": "geometric", **TRADE}),
]


def views_of(views: Iterable[str], network: int | None, count: int | None, largest: bool = True) -> list[str]:
    """Return the views of one network, or of all, with those of the largest values or without; the first ``count``.

    >>> views_of(["network 1: plain", "network 2: plain", "network 2: largest", "network 2: flip"], 2, None, False)
    ['network 2: plain', 'network 2: flip']
    """
    own = [name for name in views if network is None or name.startswith(f"network {network}: ")]
    return [name for name in own if largest or not name.endswith("largest")][:count]


def measure(features: FeatureSet, row: dict[str, Any], draw: int, seed: int) -> list[dict[str, Any]]:
    """Take one row through all sessions with one draw of the shots; return the metrics of each."""
    import torch

    torch.set_num_threads(1)
    options = {**row, "seed": seed}
    chosen = options.pop("network", None), options.pop("views", None), options.pop("largest", True)
    views = views_of(features.views, *chosen)
    drawn = replace(
        features.redrawn(seed, draw),
        views={view: features.views[view] for view in views},
        learned_from={view: features.learned_from.get(view, features.views[view]) for view in views},
        prototypes={view: features.prototypes[view] for view in views},
        heads={view: features.heads[view] for view in views},
        whitening={view: one for view, one in features.whitening.items() if view in views},
    )
    learner = FewShotLearner(**options)
    learner.fit_base(*drawn.lesson(drawn.memory), **drawn.base_parts)
    outcome = Outcome(drawn.sessions)
    for k in range(len(drawn.sessions)):
        if k > 0:
            learner.learn_session(*drawn.lesson(drawn.shots[k - 1]))
        classes = np.concatenate(drawn.sessions[: k + 1])
        test, labels = drawn.examples(drawn.test[np.isin(drawn.labels[drawn.test], classes)])
        outcome.add(labels, learner.predict(test), 0.0)
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
    features = FeatureSet.load(options.features)
    if not views_of(features.views, 2, None):
        raise SystemExit(
            f"{options.features} has views of one network, expected those of two: save those of the recipe"
        )
    todo = [(name, row, draw) for name, row in ROWS for draw in range(options.draws)]
    jobs = Parallel(n_jobs=options.jobs, return_as="generator")
    found = jobs(delayed(measure)(features, row, draw, options.seed) for _, row, draw in todo)
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
        options.json.write_text(
            json.dumps({"views": list(features.views), "draws": options.draws, "rows": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
