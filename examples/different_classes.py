"""Five models, each of which knows five of the ten digits, fused by label.

Run it with ``python examples/different_classes.py [--plot FILE] [--weights FILE]``; it prints the accuracies.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from faverage import AFAClassifier

FUSERS = ("arithmetic", "log-pool", "logistic", "afa")


def digit_models(X: np.ndarray, y: np.ndarray) -> list[tuple[str, FrozenEstimator]]:
    """Train five models; model k sees only the digits 2k, …, 2k + 4 (modulo ten)."""
    models = []
    for k in range(5):
        rows = np.isin(y, [(2 * k + i) % 10 for i in range(5)])
        models.append((f"model {k}", FrozenEstimator(LogisticRegression(max_iter=1000).fit(X[rows], y[rows]))))
    return models


def plot(accuracy: dict[str, float], path: Path) -> None:
    """Save a bar plot of the accuracies."""
    figure = Figure(figsize=(6, 2.5), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(accuracy), list(accuracy.values()), color=["tab:gray", *["tab:blue"] * len(FUSERS)])
    axes.bar_label(bars, fmt="{:.1%}", padding=3)
    axes.set(xlim=(0, 1.12), xlabel="accuracy on unseen digits", title="Five models that know five digits each")
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the accuracies; save the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a bar plot of the accuracies")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="save a plot of the weights of afa")
    given = parser.parse_args()
    X, y = load_digits(return_X_y=True)
    X_models, X, y_models, y = train_test_split(X / 16, y, test_size=0.75, stratify=y, random_state=0)
    X_fuse, X_test, y_fuse, y_test = train_test_split(X, y, test_size=2 / 3, stratify=y, random_state=0)
    models = digit_models(X_models, y_models)

    accuracy = {"VotingClassifier": VotingClassifier(models, voting="soft").fit(X_fuse, y_fuse).score(X_test, y_test)}
    for fuser in FUSERS:
        model = AFAClassifier(models, fuser=fuser, cv="prefit").fit(X_fuse, y_fuse)
        accuracy[f"faverage, {fuser}"] = model.score(X_test, y_test)
        if fuser == "afa" and given.weights:
            model.explain().plot(given.weights)
    for name, value in accuracy.items():
        print(f"{name:22} {value:6.1%}")
    if given.plot:
        plot(accuracy, given.plot)


if __name__ == "__main__":
    main()
