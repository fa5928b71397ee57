"""Fuse six scikit-learn models on the bundled digits: the table of all fusers, and what AFA learned.

make run
python examples/fuse_digits.py --plot weights.png     # also draw the explanation
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from faverage import Table
from faverage.fusion import fuser_names, get_fuser

MEMBERS = {
    "logistic": LogisticRegression(max_iter=1000),
    "neighbours": KNeighborsClassifier(),
    "naive Bayes": GaussianNB(),
    "tree": DecisionTreeClassifier(random_state=0),
    "forest": RandomForestClassifier(random_state=0),
    "neural net": MLPClassifier((50,), max_iter=300, random_state=0),
}


def judge(p: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return accuracy in percent and log-loss of probabilities ``(n, N)``."""
    return 100 * float((p.argmax(1) == y).mean()), float(-np.log(np.clip(p[np.arange(len(y)), y], 1e-15, 1)).mean())


def main() -> None:
    """Train the models, fuse them in every way, print."""
    warnings.simplefilter("ignore")
    console = Console()
    x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.5, random_state=0)
    train, test = [], []
    for model in track(MEMBERS.values(), description="training six models", console=console, transient=True):
        train.append(cross_val_predict(model, x / 16, y, method="predict_proba"))
        test.append(model.fit(x / 16, y).predict_proba(x_test / 16))
    scores, scores_test = np.stack(train, 1), np.stack(test, 1)  # (n, K, N): examples, models, classes

    rows = [(f"model: {name}", *judge(p, y_test), "") for name, p in zip(MEMBERS, test, strict=True)]
    fusers = {}
    for name in track(fuser_names(), description="fusing", console=console, transient=True):
        start = time.perf_counter()
        fusers[name] = get_fuser(name).fit(scores, y)
        seconds = f"{time.perf_counter() - start:.2f}"
        rows.append((name, *judge(fusers[name].predict_proba(scores_test), y_test), seconds))
    rows.sort(key=lambda row: row[2])
    table = Table(("model or fuser", "accuracy %", "log-loss", "fit, seconds"), rows)
    print(f"Digits: {len(x)} images to learn from, {len(x_test)} held out. Lowest log-loss first.\n")
    print(table.to_markdown(), "\n")

    explanation = fusers["afa"].explain(models=list(MEMBERS))
    print("What AFA learned: which mean, and which model it trusts for which digit\n")
    print(explanation.to_markdown())
    if "--plot" in sys.argv:
        explanation.plot(sys.argv[sys.argv.index("--plot") + 1])


if __name__ == "__main__":
    main()
