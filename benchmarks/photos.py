"""Photos: classes taught from a few pictures each, through backbones that are ready, beside simpler methods.

    python benchmarks/photos.py FOLDER             # one sub-folder a class, such as Caltech-101

Of the classes with 60 to 130 photos, eighteen are drawn (by seed 0), and six more as strangers. Two tables: twelve of
them as base classes, then six taught from five photos each; and all eighteen from nothing, from 1, 3, 5 and 10 photos.
Features are kept in a folder beside the results, so that a second run takes seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from faverage.app.photos import open_picture, squares
from faverage.app.train import WHITEN
from faverage.fscil import FewShotLearner
from faverage.vision import Extractor, pretrained, pretrained_names

Array = np.ndarray[Any, Any]
N_BASE, N_NEW, N_STRANGERS = 12, 6, 6
SHOTS = (1, 3, 5, 10)


def chosen(folder: Path) -> list[Path]:
    """Return the folders of eighteen classes and six strangers."""
    fit = [one for one in sorted(folder.iterdir()) if one.is_dir() and 60 <= len(list(one.glob("*.jpg"))) <= 130]
    order = np.random.default_rng(0).permutation(len(fit))[: N_BASE + N_NEW + N_STRANGERS]
    return [fit[i] for i in order]


def features_of(name: str, classes: list[Path], cache: Path) -> tuple[Array, Array, float]:
    """Return features ``(n, d)``, class numbers ``(n,)``, and seconds of processor for all of them."""
    file = cache / f"{name}.npz"
    if file.is_file():
        with np.load(file) as kept:
            return kept["x"], kept["y"], float(kept["seconds"])
    model = pretrained(name)
    extractor = Extractor(model.backbone, model.transform, device="cpu", batch_size=32)
    side = model.transform.resize or model.transform.size
    start, parts, labels = time.process_time(), [], []
    for c, one in enumerate(classes):
        files = sorted(one.glob("*.jpg"))
        small = np.concatenate([squares([open_picture(file.read_bytes())], side) for file in files])
        parts.append(extractor(small))
        labels += [c] * len(files)
        print(f"{name}: {c + 1} of {len(classes)} classes", end="\r", flush=True)
    seconds = time.process_time() - start
    x, y = np.concatenate(parts), np.array(labels)
    cache.mkdir(parents=True, exist_ok=True)
    np.savez(file, x=x, y=y, seconds=seconds)
    return x, y, seconds


def logistic(x: Array, y: Array, test: Array) -> Array:
    """Answer by logistic regression on normalised features, its strength chosen by cross-validation where it can be."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    def unit(z: Array) -> Array:
        return np.asarray(z / np.linalg.norm(z, axis=1, keepdims=True))

    least = int(np.bincount(y)[np.unique(y)].min())
    if least < 3:
        model: Any = LogisticRegression(C=10, max_iter=1000)
    else:
        model = LogisticRegressionCV(Cs=[1, 10, 100], cv=3, scoring="accuracy", max_iter=500, l1_ratios=(0,))
    return np.asarray(model.fit(unit(x), y).predict(unit(test)))


def probe(x: Array, y: Array, test: Array) -> Array:
    """Answer by a linear layer on the features as they are, 200 steps of Adam, as is usual for a linear probe."""
    import torch
    from torch.nn import functional as F

    classes, numbers = np.unique(y, return_inverse=True)
    torch.manual_seed(0)
    layer = torch.nn.Linear(x.shape[1], len(classes))
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(numbers)
    for _ in range(200):
        optimiser.zero_grad()
        F.cross_entropy(layer(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.inference_mode():
        return np.asarray(classes[layer(torch.from_numpy(test)).argmax(1).numpy()])


def learner(fuser: str) -> Callable[[Any, Array, Any], Array]:
    """Return a method that learns from nothing."""
    return lambda x, y, test: FewShotLearner(fuser=fuser).learn_session(x, y).predict(test)


METHODS: dict[str, Callable[[Any, Array, Any], Array]] = {
    "afa": learner("afa"),
    "prototypes": learner("prototypes"),
    "log-pool": learner("log-pool"),
    "logistic regression": logistic,
    "linear probe": probe,
}


def interval(values: list[float]) -> str:
    """Return mean and 95 % interval (Student's t) of repeats, in points."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * np.mean(values):.1f} ± {100 * half:.1f}"


def auroc(known: Array, strangers: Array) -> float:
    """Return the probability that a known example is more familiar than a stranger."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(np.r_[np.ones(len(known)), np.zeros(len(strangers))], np.r_[known, strangers]))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs/photos"))
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    classes = chosen(options.folder)
    print("classes:", ", ".join(one.name for one in classes[: N_BASE + N_NEW]))
    print("strangers:", ", ".join(one.name for one in classes[N_BASE + N_NEW :]))
    found = {name: features_of(name, classes, options.cache) for name in pretrained_names()}
    y = found[pretrained_names()[0]][1]
    sets: dict[str, Any] = {name: x for name, (x, _, _) in found.items()}
    sets["lite0 and lite1"] = {name: sets[name] for name in pretrained_names()[:2]}
    print(f"\n{len(y)} photos; seconds of processor for all features:")
    print(", ".join(f"{name} {seconds:.0f}" for name, (_, _, seconds) in found.items()))

    def rows(x: Any, which: Array) -> Any:
        return {view: part[which] for view, part in x.items()} if isinstance(x, dict) else x[which]

    n = N_BASE + N_NEW
    print("\n| backbone | base | new | all | seconds to teach | familiar from strangers, AUROC | false alarms at 5 % |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, x in sets.items():
        cells: list[list[float]] = []
        for draw in range(options.draws):
            rng = np.random.default_rng(draw)
            base, shots, tests = [], [], []
            for c in range(n):
                own = rng.permutation(np.flatnonzero(y == c))
                (base if c < N_BASE else shots).append(own[: len(own) * 2 // 3] if c < N_BASE else own[:5])
                tests.append(own[len(own) * 2 // 3 :] if c < N_BASE else own[5:])
            b, s, t = (np.concatenate(part) for part in (base, shots, tests))
            one = FewShotLearner(seed=draw, whiten=WHITEN).fit_base(rows(x, b), y[b])
            start = time.perf_counter()
            one.learn_session(rows(x, s), y[s])
            seconds = time.perf_counter() - start
            right = one.predict(rows(x, t)) == y[t]
            familiar, strange = one.familiarity(rows(x, t)), one.familiarity(rows(x, np.flatnonzero(y >= n)))
            weight = 1 / np.bincount(y[t])[y[t]]
            alarms = float(((familiar <= 0.05) * weight).sum() / weight.sum())
            new = y[t] >= N_BASE
            cells.append(
                [right[~new].mean(), right[new].mean(), right.mean(), seconds, auroc(familiar, strange), alarms]
            )
        columns = list(zip(*cells, strict=True))
        shown = [interval(list(column)) for column in columns[:3]]
        seconds_, area = float(np.median(columns[3])), float(np.mean(columns[4]))
        print(f"| {name} | {' | '.join(shown)} | {seconds_:.2f} | {area:.3f} | {100 * np.mean(columns[5]):.1f} % |")
    print("\n| backbone | method | " + " | ".join(f"{k} photo{'s' if k > 1 else ''}" for k in SHOTS) + " |")
    print("|---|---|" + "---:|" * len(SHOTS))
    for name, x in sets.items():
        for method, answer in METHODS.items():
            if isinstance(x, dict) and method in ("logistic regression", "linear probe"):
                continue
            cells_ = []
            for shots_ in SHOTS:
                values = []
                for draw in range(options.draws):
                    rng = np.random.default_rng(draw)
                    order = [rng.permutation(np.flatnonzero(y == c)) for c in range(n)]
                    s, t = (np.concatenate(part) for part in ([o[:shots_] for o in order], [o[10:] for o in order]))
                    values.append(float((answer(rows(x, s), y[s], rows(x, t)) == y[t]).mean()))
                cells_.append(interval(values))
            print(f"| {name} | {method} | {' | '.join(cells_)} |", flush=True)


if __name__ == "__main__":
    main()
