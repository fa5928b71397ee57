"""Every fuser on scikit-learn's bundled data: eight models, ten random halves, nothing chosen on test data.

    make bench-fusion                                     # all tasks; writes results/fusion.json, docs/fusion.md
    python benchmarks/fusion.py --tasks wine --splits 2   # a quick look; prints only

Shared-class tasks: the training half gives 5-fold out-of-fold predictions of eight models, which train the fuser; the
models, fitted on the whole training half, are fused on the other half. Class-subset tasks: five logistic regressions,
each fitted on the rows of its own classes alone (two each, without overlap, or five each), fused with 5 labelled rows a
class or with all of the training half. Class sets and shots are drawn anew for each split.

Each split's result is kept under runs/bench-fusion until the code changes: a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import sklearn
from sklearn import datasets
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeCV
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import faverage
from faverage.fusion import fuser_names, get_fuser

SHARED = ("digits", "wine", "breast_cancer", "iris")
SUBSET = ("2 classes each, 5 shots", "2 classes each, all", "5 classes each, 5 shots", "5 classes each, all")
LOAD: dict[str, Callable[..., Any]] = {name: getattr(datasets, f"load_{name}") for name in SHARED}
VARIANTS = {"afa, best": ("afa", {"combine": "best"})}  # beside every registered fuser with its defaults


def classifiers(seed: int) -> list[Any]:
    """Return the eight models."""
    scaled = [
        LogisticRegression(max_iter=2000),
        KNeighborsClassifier(5),
        CalibratedClassifierCV(SVC(random_state=seed), ensemble=False),
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        MLPClassifier((50,), max_iter=400, random_state=seed),
    ]
    plain = [GaussianNB(), DecisionTreeClassifier(random_state=seed), RandomForestClassifier(100, random_state=seed)]
    return [*(make_pipeline(StandardScaler(), m) for m in scaled), *plain]


def regressors(seed: int) -> list[Any]:
    """Return the eight regression models."""
    scaled = [LinearRegression(), Ridge(10.0), KNeighborsRegressor(7), SVR(C=100.0), SVR(kernel="linear", C=10.0)]
    scaled.append(MLPRegressor(hidden_layer_sizes=(30,), max_iter=1500, random_state=seed))
    plain = [DecisionTreeRegressor(max_depth=5, random_state=seed), RandomForestRegressor(100, random_state=seed)]
    return [*(make_pipeline(StandardScaler(), m) for m in scaled), *plain]


def shared_scores(name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Return training scores (out of fold), labels, test scores, labels."""
    x, y = LOAD[name](return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.5, stratify=y, random_state=seed)
    train, test = member_scores(x, y, x_test, seed)
    return train, y, test, y_test


def member_scores(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores ``(n, 8, N)`` of the eight models: out of fold for rows x ``(n, d)``, and for other rows."""
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    models = classifiers(seed)
    train = [cross_val_predict(m, x, y, cv=folds, method="predict_proba") for m in models]
    test = [clone(m).fit(x, y).predict_proba(x_test) for m in models]
    return np.stack(train, 1), np.stack(test, 1)


def subset_scores(name: str, seed: int) -> tuple[np.ndarray, ...]:
    """Return the same for five heads that know some of the digits each."""
    x, y = datasets.load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x / 16, y, test_size=0.5, stratify=y, random_state=seed)
    rng = np.random.default_rng(seed)
    order, width = rng.permutation(10), int(name[0])
    sets = [np.sort(order[(2 * k + np.arange(width)) % 10]) for k in range(5)]
    train, test = head_scores(LogisticRegression(max_iter=1000), sets, x, y, x_test, seed=seed)
    if name.endswith("5 shots"):
        rows = shots(y, rng)
        train, y = train[rows], y[rows]
    return train, y, test, y_test


def head_scores(
    head: Any, sets: list[np.ndarray], x: np.ndarray, y: np.ndarray, x_test: np.ndarray, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores ``(n, K, N)``, out of fold and for other rows, of a head for each of K sets of classes."""
    n_classes = int(y.max()) + 1
    train, test = (np.full((len(rows), len(sets), n_classes), np.nan) for rows in (x, x_test))
    for k, classes in enumerate(sets):
        own = np.isin(y, classes)
        test[:, k, classes] = clone(head).fit(x[own], y[own]).predict_proba(x_test)
        for inside, outside in StratifiedKFold(5, shuffle=True, random_state=seed).split(x, y):
            rows = inside[own[inside]]
            train[np.ix_(outside, [k], classes)] = clone(head).fit(x[rows], y[rows]).predict_proba(x[outside])[:, None]
    return train, test


def shots(y: np.ndarray, rng: np.random.Generator, each: int = 5) -> np.ndarray:
    """Return the numbers of so many rows of each class of labels ``(n,)``, drawn at random."""
    return np.concatenate([rng.choice(np.flatnonzero(y == c), each, replace=False) for c in np.unique(y)])


def judged(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return how good probabilities ``(n, N)`` are for labels ``(n,)``."""
    return {
        "log-loss": float(-np.log(np.clip(p[np.arange(len(y)), y], 1e-15, 1)).mean()),
        "accuracy": float((p.argmax(1) == y).mean()),
        "f1": float(f1_score(y, p.argmax(1), average="macro")),
    }


def one_split(task: str, seed: int) -> dict[str, dict[str, float]]:
    """Fit and judge every fuser on one split of one task."""
    import torch

    torch.set_num_threads(1)
    result = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train, y, test, y_test = (shared_scores if task in SHARED else subset_scores)(task, seed)
        for name in (*fuser_names(), *VARIANTS):
            registered, options = VARIANTS.get(name, (name, {}))
            start = time.perf_counter()
            fuser = get_fuser(registered, **options).fit(train, y)
            seconds = time.perf_counter() - start
            result[name] = {**judged(fuser.predict_proba(test), y_test), "fit": seconds}
    return result


def regression_scores(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions ``(n, 8)`` of the eight models: out of fold for rows x ``(n, d)``, and for other rows."""
    models = regressors(seed)
    train = [cross_val_predict(m, x, y, cv=5) for m in models]
    test = [clone(m).fit(x, y).predict(x_test) for m in models]
    return np.column_stack(train), np.column_stack(test)


def one_regression(task: str, seed: int) -> dict[str, dict[str, float]]:
    """Judge the fused regressors on one half of diabetes."""
    from scipy.optimize import nnls

    from faverage.estimators.regression import fit_regression

    x, y = getattr(datasets, f"load_{task}")(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.5, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train, test = regression_scores(x, y, x_test, seed)
    big = 1e3 * np.abs(train).max()
    weights = nnls(np.vstack([train, np.full(train.shape[1], big)]), np.append(y, big))[0]
    start = time.perf_counter()
    afa = fit_regression(train, y, means=("arithmetic", "geometric", "harmonic"))
    seconds = time.perf_counter() - start
    fused = {
        "mean": test.mean(1),
        "best single model": test[:, ((train - y[:, None]) ** 2).mean(0).argmin()],
        "simplex least squares": test @ weights,
        "ridge stack": RidgeCV(np.logspace(-3, 3, 13)).fit(train, y).predict(test),
        "afa": afa(test),
    }
    rmse = {name: {"rmse": float(np.sqrt(((p - y_test) ** 2).mean()))} for name, p in fused.items()}
    rmse["afa"]["fit"] = seconds
    return rmse


def code_key() -> str:
    """Return what stands for the code and the libraries: results of other code are not taken for these."""
    digest = hashlib.sha256(f"{sklearn.__version__} {np.__version__}".encode())
    for file in [Path(__file__), *sorted(Path(faverage.__file__).parent.rglob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def kept(run: Callable[..., dict[str, Any]], folder: Path, *arguments: Any) -> dict[str, Any]:
    """Return ``run(*arguments)``, from the folder if it was done before: a stopped benchmark goes on where it was."""
    file = folder / ("-".join(map(str, arguments)).replace(" ", "_").replace(",", "") + ".json")
    if not file.exists():
        result = run(*arguments)
        file.with_suffix(".partial").write_text(json.dumps(result))
        file.with_suffix(".partial").replace(file)
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def ranks(
    results: dict[str, dict[str, list[dict[str, float]]]], tasks: tuple[str, ...], without: str
) -> dict[str, float]:
    """Return each fuser's rank in mean log-loss, averaged over the tasks, among all but one of the two kinds of afa."""
    from scipy.stats import rankdata

    names = [n for n in next(iter(results.values())) if n != without]
    table = [rankdata([np.mean([s["log-loss"] for s in results[t][n]]) for n in names]) for t in tasks if t in results]
    return dict(zip(names, np.mean(table, 0).tolist(), strict=True))


def table(results: dict[str, Any], tasks: list[str], columns: tuple[str, ...], order: list[str]) -> str:
    """Return a Markdown table of means over the splits."""
    digits = {"log-loss": "{:.3f}", "accuracy": "{:.1f}", "f1": "{:.1f}"}
    factor = {"accuracy": 100, "f1": 100}
    lines = ["| fuser | " + " | ".join(tasks) + " |", "|---|" + "---:|" * len(tasks)]
    for name in order:
        cells = []
        for task in tasks:
            means = {c: np.mean([s[c] for s in results[task][name]]) * factor.get(c, 1) for c in columns}
            cells.append(" / ".join(digits[c].format(means[c]) for c in columns))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def paired(results: dict[str, Any], tasks: list[str]) -> str:
    """Return afa against its strongest rivals split by split, as a Markdown table."""
    rivals = ("logistic", "greedy", "afa-paper")
    lines = ["`afa` minus a rival in log-loss: mean ± standard error over the splits (splits won).", ""]
    lines += ["| rival | " + " | ".join(tasks) + " |", "|---|" + "---:|" * len(tasks)]
    for rival in rivals:
        cells = []
        for task in tasks:
            pairs = zip(results[task]["afa"], results[task][rival], strict=True)
            apart = np.array([a["log-loss"] - b["log-loss"] for a, b in pairs])
            error = apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else 0.0
            cells.append(f"{apart.mean():+.3f} ± {error:.3f} ({(apart < 0).sum()} of {len(apart)})")
        lines.append(f"| {rival} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(results: dict[str, Any], regression: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    parts = []
    for title, tasks in (("Models that share their classes", SHARED), ("Models that know different classes", SUBSET)):
        present = [t for t in tasks if t in results]
        if not present:
            continue
        rank = ranks(results, tasks, "afa, best")
        single = ranks(results, tasks, "afa")["afa, best"]
        order = sorted(rank, key=lambda n: rank[n])
        parts.append(
            f"### {title}\n\nLog-loss / accuracy % / macro F1 %, means over the splits; best average rank first."
        )
        parts.append(table(results, present, ("log-loss", "accuracy", "f1"), [*order, *VARIANTS]))
        parts.append("| fuser | average rank in log-loss | fit, seconds (median) |\n|---|---:|---:|")
        seconds = {n: np.median([s["fit"] for t in present for s in results[t][n]]) for n in rank}
        parts[-1] += "".join(f"\n| {n} | {rank[n]:.2f} | {seconds[n]:.3f} |" for n in order)
        parts.append(
            f"With one network instead of the average (`afa, best` in the place of `afa`) its rank is {single:.2f}."
        )
        parts.append(paired(results, present))
    if regression:
        parts.append("### Regression (diabetes)\n\n| | RMSE, mean ± standard deviation |\n|---|---:|")
        for name, splits in sorted(regression.items(), key=lambda item: np.mean([s["rmse"] for s in item[1]])):
            values = [s["rmse"] for s in splits]
            parts[-1] += f"\n| {name} | {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} |"
    return "\n\n".join(parts)


def gather(splits: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn a list of results by name into results by name, each a list."""
    return {name: [split[name] for split in splits] for name in splits[0]}


def main() -> None:
    """Run, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(SHARED) + ";" + ";".join(SUBSET) + ";diabetes")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0, help="splits are drawn with seeds from here on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="replace what lies between the marks in this file")
    options = parser.parse_args()
    tasks = [t for part in options.tasks.split(";") for t in (part.split(",") if part[0].isalpha() else [part])]
    seeds = range(options.first_seed, options.first_seed + options.splits)
    folder = Path("runs/bench-fusion") / code_key()
    folder.mkdir(parents=True, exist_ok=True)
    parallel = joblib.Parallel(n_jobs=options.jobs)
    results: dict[str, Any] = {}
    for task in (t for t in tasks if t != "diabetes"):
        results[task] = gather(parallel(joblib.delayed(kept)(one_split, folder, task, s) for s in seeds))
        print(f"{task}: done", flush=True)
    regression = {}
    if "diabetes" in tasks:
        regression = gather(parallel(joblib.delayed(kept)(one_regression, folder, "diabetes", s) for s in seeds))
    text = report(results, regression)
    print(text)
    if options.json:
        versions = {
            "faverage": faverage.__version__,
            "scikit-learn": sklearn.__version__,
            "python": platform.python_version(),
        }
        data = {"versions": versions, "seeds": list(seeds), "classification": results, "diabetes": regression}
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    if options.markdown:
        before, rest = options.markdown.read_text().split("<!-- begin results -->")
        after = rest.split("<!-- end results -->")[1]
        options.markdown.write_text(f"{before}<!-- begin results -->\n{text}\n<!-- end results -->{after}")


if __name__ == "__main__":
    main()
