"""Every fuser on many public tables: classification and regression, three random halves, nothing chosen on test data.

    make bench-fusion-wide                                   # half `choose`; writes results/, docs/fusion-wide.*
    python benchmarks/fusion_wide.py --check                 # which tables are there, and nothing else
    python benchmarks/fusion_wide.py --fusers afa,greedy     # only these are computed anew; then all that are known

benchmarks/wide.json names the tables, where a person gets them, their checksums, and how they become numbers. They are
read from --data, or from the folder `tables` in $FAVERAGE_DATA. One that is missing or differs is named and skipped.
Half of them are for choosing constants; the other half, `--half measure`, is for measuring once everything is chosen.

Members and splits are those of benchmarks/fusion.py. Scores of members are kept under --out, one file a table and
split, and results of each fuser until its code changes: a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import inspect
import io
import json
import os
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import sklearn
from scipy.optimize import nnls
from scipy.stats import rankdata, studentized_range, wilcoxon
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import faverage
import fusion
from faverage.code import code_fingerprint
from faverage.errors import ConfigError, DataError, UserError
from faverage.estimators.regression import fit_regression
from faverage.fusion import fuser_names, get_fuser
from faverage.storage import read_json, replacing, rounded

Array = np.ndarray[Any, Any]
Entry = dict[str, Any]
MANIFEST = Path(__file__).with_name("wide.json")
MOST_VALUES = 10  # of a column of names that becomes one column a value; with more it becomes one of numbers
MISSING = 0.2  # of all pairs of a member and a row
FEW = 25  # rows, where regression has few
CLASSIFICATION = {
    "shared": "eight members that know all classes, fused with all training rows",
    "shared, 5 shots": "the same, fused with five rows a class",
    "shared, a fifth missing": "the same with all rows, a fifth of all pairs of member and row missing",
    "half each": "five logistic regressions that know half of the classes each (sets of three classes or more)",
    "half each, 5 shots": "the same, fused with five rows a class",
    "a fifth each": "five that know a fifth of the classes each, two at least (sets of five classes or more)",
    "a fifth each, 5 shots": "the same, fused with five rows a class",
}
REGRESSION = {
    "regression": "eight members, fused with all training rows",
    "regression, few rows": f"the same, fused with {FEW} rows",
}
LOSS = {"log-loss": "log-loss", "rmse": "RMSE"}  # what is ranked, and its name

# Tables ---------------------------------------------------------------------------------------------------------------


def half_of(names: list[str]) -> dict[str, str]:
    """Return the half of each name of one kind: sorted by SHA-256, the first half measures and the rest chooses."""
    order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: "measure" if i < len(order) // 2 else "choose" for i, name in enumerate(order)}


def problem_of(entry: Entry, folder: Path) -> str:
    """Return what is wrong with the file of a set, in one line; nothing where it is the one of the manifest."""
    file = folder / entry["file"]
    if not file.is_file():
        return f"{entry['name']}: no file {file}; it is {entry['path']} of {entry['repository']}; skipped"
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != entry["sha256"]:
        return f"{entry['name']}: {file} has sha256 {found[:12]}…, expected {entry['sha256'][:12]}…; skipped"
    return ""


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest, each set with the address of its repository and where its file lies."""
    manifest: dict[str, Any] = read_json(path)
    for entry in manifest["sets"]:
        entry["repository"] = manifest["sources"][entry["source"]]["repository"]
        entry["file"] = f"{entry['source']}/{entry['path']}"
    return manifest


def cells_of(file: Path) -> tuple[list[str], list[list[str]]]:
    """Return names of columns (their numbers, in a CSV file without a header) and rows of text."""
    text = file.read_text(encoding="utf-8", errors="replace")
    names = []
    if file.suffix == ".arff":
        head, text = re.split(r"(?im)^\s*@data\b.*$", text, maxsplit=1)
        found = re.findall(r"(?im)^\s*@attribute\s+(?:'([^']*)'|\"([^\"]*)\"|(\S+))", head)
        names = ["".join(parts) for parts in found]
        text = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    reader = csv.reader(io.StringIO(text), quotechar="'", skipinitialspace=True)
    rows = [[cell.strip() for cell in row] for row in reader if any(cell.strip() for cell in row)]
    rows = [row if row[-1] else row[:-1] for row in rows]  # some files have a comma at the end of a line
    names = names or [str(i) for i in range(len(rows[0]))]
    if any(len(row) != len(names) for row in rows):
        raise DataError(f"{file} has rows that do not have {len(names)} values", what=file)
    return names, rows


def numbers_of(column: list[str]) -> Array | None:
    """Return a column as numbers, NaN where it says ``?``; None where it has words."""
    try:
        return np.array([float("nan") if cell in ("?", "") else float(cell) for cell in column])
    except ValueError:
        return None


def encoded(column: list[str]) -> Array:
    """Return a column as numbers ``(n, c)``: as they are, or one column a word, or ordinal where words are many."""
    numbers = numbers_of(column)
    if numbers is not None:
        return numbers[:, None]
    words = sorted(set(column) - {"?", ""})
    if len(words) > MOST_VALUES:
        return np.array([[words.index(cell) if cell in words else np.nan] for cell in column])
    return np.array([[float(cell == word) for word in words] for cell in column])


def load(entry: Entry, manifest: dict[str, Any], folder: Path) -> tuple[Array, Array]:
    """Return inputs ``(n, d)``, with NaN, and targets ``(n,)``: class numbers from 0 on, or numbers."""
    names, rows = cells_of(folder / entry["file"])
    if (len(rows), len(names)) != (entry["rows"], entry["columns"]):
        expected = f"{entry['rows']} rows and {entry['columns']} columns"
        raise DataError(f"{entry['file']} has {len(rows)} and {len(names)}, the manifest says {expected}")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    target = columns.pop(str(entry["target"]))
    for name in entry.get("drop", []):
        columns.pop(name)
    kept = np.random.default_rng(0).permutation(len(rows))[: manifest["most rows"]]
    x = np.concatenate([encoded(column) for column in columns.values()], 1)[kept]
    if entry["kind"] == "regression":
        numbers = numbers_of(target)
        if numbers is None:
            raise DataError(f"{entry['file']}: the target '{entry['target']}' has words, expected numbers")
        return x, numbers[kept]
    labels = np.array(target)[kept]
    classes, counts = np.unique(labels, return_counts=True)
    large = np.isin(labels, classes[counts >= manifest["fewest rows of a class"]])
    return x[large], np.unique(labels[large], return_inverse=True)[1]


# Members --------------------------------------------------------------------------------------------------------------


def members_key(entry: Entry, manifest: dict[str, Any]) -> str:
    """Return what stands for all that scores of members depend on."""
    code = [cells_of, numbers_of, encoded, load, split_scores, class_sets, fusion.classifiers, fusion.regressors]
    code += [fusion.member_scores, fusion.head_scores, fusion.regression_scores]
    limits = [manifest["most rows"], manifest["fewest rows of a class"], sklearn.__version__]
    parts = [json.dumps([entry, limits], sort_keys=True), *map(inspect.getsource, code)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def class_sets(n_classes: int, share: float, rng: np.random.Generator) -> list[Array]:
    """Return five sets of classes, each a share of all, two at least, which together hold every class."""
    order, width = rng.permutation(n_classes), max(2, int(np.ceil(share * n_classes)))
    return [np.sort(order[(k * n_classes // 5 + np.arange(width)) % n_classes]) for k in range(5)]


def split_scores(x: Array, y: Array, kind: str, seed: int) -> dict[str, Array]:
    """Return labels and scores of members of one random half, ``train`` out of fold and ``test``, by name."""
    classes = kind == "classification"
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.5, stratify=y if classes else None, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        middle = np.nan_to_num(np.nanmedian(x, 0))
        x, x_test = (np.where(np.isnan(rows), middle, rows) for rows in (x, x_test))
        if not classes:
            centre, scale = y.mean(), y.std()  # the error is in standard deviations of the target
            y, y_test = (y - centre) / scale, (y_test - centre) / scale
            train, test = fusion.regression_scores(x, y, x_test, seed)
            return {"y": y, "y_test": y_test, "train": train, "test": test}
        train, test = fusion.member_scores(x, y, x_test, seed)
        scores = {"y": y, "y_test": y_test, "train": train, "test": test}
        n_classes, rng = int(y.max()) + 1, np.random.default_rng(seed)
        head = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        for name, share, fewest in (("half", 1 / 2, 3), ("fifth", 1 / 5, 5)):
            if n_classes >= fewest:
                sets = class_sets(n_classes, share, rng)
                train, test = fusion.head_scores(head, sets, x, y, x_test, seed=seed)
                scores |= {f"{name}_train": train, f"{name}_test": test}
    return scores


def settings_of(scores: dict[str, Array], seed: int) -> Iterator[tuple[str, Array, Array, Array]]:
    """Yield what a fuser is judged on: name of the setting, training scores and labels, test scores."""
    y, rng = scores["y"], np.random.default_rng(seed)
    if scores["train"].ndim == 2:
        few = rng.permutation(len(y))[:FEW]
        yield "regression", scores["train"], y, scores["test"]
        yield "regression, few rows", scores["train"][few], y[few], scores["test"]
        return
    few = fusion.shots(y, rng)
    for name, prefix in (("shared", ""), ("half each", "half_"), ("a fifth each", "fifth_")):
        if f"{prefix}train" in scores:
            train, test = scores[f"{prefix}train"], scores[f"{prefix}test"]
            yield name, train, y, test
            yield f"{name}, 5 shots", train[few], y[few], test
    train, test = (thinned(scores[name], rng) for name in ("train", "test"))
    yield "shared, a fifth missing", train, y, test


def thinned(scores: Array, rng: np.random.Generator) -> Array:
    """Return scores ``(n, K, N)`` without a fifth of all pairs of row and member; each row keeps one at least."""
    gone = rng.random(scores.shape[:2]) < MISSING
    gone[gone.all(1), 0] = False
    return np.where(gone[:, :, None], np.nan, scores)


# Fusers ---------------------------------------------------------------------------------------------------------------


def best_single(train: Array, y: Array, test: Array) -> Array:
    """Return probabilities of the member with the least log-loss on the rows that it answers; elsewhere the mean."""
    own = np.nan_to_num(train[np.arange(len(y)), :, y], nan=1e-15)  # (n, K), of the true class
    loss = np.where(np.isnan(train).all(2), np.nan, -np.log(np.clip(own, 1e-15, 1)))
    chosen = test[:, np.nanmean(loss, 0).argmin()]
    silent = np.isnan(chosen).all(1, keepdims=True)
    return np.nan_to_num(np.where(silent, np.nanmean(test, 1), chosen))


def stacking(train: Array, y: Array, test: Array) -> Array:
    """Return what scikit-learn's StackingClassifier does by default; what is missing is the mean of its column."""
    first = 1 if train.shape[2] == 2 else 0  # of two classes it takes the second alone
    flat, flat_test = (s[:, :, first:].reshape(len(s), -1) for s in (train, test))
    model = make_pipeline(SimpleImputer(keep_empty_features=True), LogisticRegression(max_iter=1000))
    return np.asarray(model.fit(flat, y).predict_proba(flat_test))


def greedy(train: Array, y: Array, test: Array) -> Array:
    """Return the mean of members that were taken one by one, with replacement, each the best next (Caruana)."""
    total, taken = np.zeros(len(y)), []
    errors = []
    for step in range(1, 51):
        trials = (((total[:, None] + train) / step - y[:, None]) ** 2).mean(0)
        taken.append(int(trials.argmin()))
        errors.append(trials.min())
        total += train[:, taken[-1]]
    return np.asarray(test[:, taken[: int(np.argmin(errors)) + 1]].mean(1))


def least_squares(train: Array, y: Array, test: Array) -> Array:
    """Return non-negative least squares with a constant of either sign."""
    ones = np.ones((len(y), 1))
    weights = nnls(np.hstack([train, ones, -ones]), y)[0]
    return np.asarray(test @ weights[:-2] + weights[-2] - weights[-1])


Rule = Callable[[Array, Array, Array], Array]
PLAIN: dict[str, Rule] = {"best single": best_single, "scikit-learn stacking": stacking}
NUMBERS: dict[str, Rule] = {
    "afa": lambda train, y, test: fit_regression(train, y)(test),  # what AFARegressor does
    "mean": lambda train, y, test: test.mean(1),
    "best single": lambda train, y, test: test[:, ((train - y[:, None]) ** 2).mean(0).argmin()],
    "NNLS with a constant": least_squares,
    "ridge stack": lambda train, y, test: RidgeCV(np.logspace(-3, 3, 13)).fit(train, y).predict(test),
    "greedy": greedy,
}


def known_fusers(kind: str) -> list[str]:
    """Return the names of all fusers for one kind of table."""
    return list(NUMBERS) if kind == "regression" else [*fuser_names(), *fusion.VARIANTS, *PLAIN]


def fuser_key(name: str, kind: str) -> str:
    """Return what stands for the code of a fuser and of what it is judged on."""
    frame = "".join(map(inspect.getsource, (settings_of, thinned, judge, fusion.judged, fusion.shots)))
    if kind == "regression":
        code = inspect.getsource(NUMBERS[name])
        code += code_fingerprint("faverage.estimators.regression") if name == "afa" else ""
    elif name in PLAIN:
        code = inspect.getsource(PLAIN[name])
    else:
        registered, options = fusion.VARIANTS.get(name, (name, {}))
        code = f"{options}{code_fingerprint(type(get_fuser(registered, **options)).__module__)}"
    return hashlib.sha256(f"{frame}\0{code}\0{sklearn.__version__}".encode()).hexdigest()[:12]


def judge(name: str, train: Array, y: Array, test: Array, y_test: Array) -> dict[str, float]:
    """Fit one fuser on training scores; return how good it is on test scores, and seconds of processor."""
    start = time.process_time()
    if train.ndim == 2:
        fused = NUMBERS[name](train, y, test)
        seconds = time.process_time() - start
        return {"rmse": float(np.sqrt(((fused - y_test) ** 2).mean())), "fit": seconds}
    if name in PLAIN:
        fused = PLAIN[name](train, y, test)
        seconds = time.process_time() - start
    else:
        registered, options = fusion.VARIANTS.get(name, (name, {}))
        fuser = get_fuser(registered, **options).fit(train, y)
        seconds = time.process_time() - start
        fused = fuser.predict_proba(test)
    return {**fusion.judged(fused, y_test), "fit": seconds}


# A table and a split --------------------------------------------------------------------------------------------------


def one(
    entry: Entry,
    manifest: dict[str, Any],
    data: Path,
    place: Path,
    *,
    seed: int,
    fusers: list[str],
    keys: dict[str, str],
) -> tuple[str, dict[str, Any]]:
    """Do what is not done yet for one table and split; return a line for people, and what all fusers scored.

    Args:
        entry: of the table.
        manifest: it is from.
        data: folder of the tables.
        place: where scores of members are kept; results are beside them.
        seed: of the split.
        fusers: to be computed, where they are not known.
        keys: what stands for the code of each fuser.
    """
    import torch

    torch.set_num_threads(1)
    start, busy = time.perf_counter(), time.process_time()
    if not place.exists():
        scores = split_scores(*load(entry, manifest, data), entry["kind"], seed)
        seconds = time.process_time() - busy
        with replacing(place) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **scores, seconds=np.array(seconds))  # type: ignore[arg-type]
        members = f"{time.perf_counter() - start:.1f} s"
    else:
        members = "kept"
    start = time.perf_counter()
    record = place.with_suffix(".json")
    kept: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    known = {name: kept[name] for name in keys if name in kept}  # not what has gone since
    wanted = [n for n in keys if n in fusers and known.get(n, {}).get("key") != keys[n]]
    with np.load(place) as file:
        scores = dict(file)
    if wanted:
        new: dict[str, Any] = {name: {"key": keys[name], "settings": {}} for name in wanted}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for setting, train, y, test in settings_of(scores, seed):
                for name in wanted:
                    new[name]["settings"][setting] = judge(name, train, y, test, scores["y_test"])
        known = {name: (known | new)[name] for name in keys if name in known | new}  # in their order
        with replacing(record) as partial:
            partial.write_text(json.dumps(known))
    fits = f"{time.perf_counter() - start:.1f} s" if wanted else "kept"
    shape = {"rows": len(scores["y"]) + len(scores["y_test"]), "members": float(scores["seconds"])}
    if entry["kind"] == "classification":
        shape["classes"] = int(scores["y"].max()) + 1
    line = f"{entry['name']}, split {seed}: members {members}, fusers {fits}"
    stale = sorted(n for n in known if known[n]["key"] != keys[n])
    result = {name: known[name]["settings"] for name in known}
    return line, {"shape": shape, "fusers": result, "older code": stale}


# What is said of it ---------------------------------------------------------------------------------------------------


def means_of(results: dict[str, Any], setting: str, value: str) -> tuple[list[str], list[str], Array]:
    """Return fusers, tables, and means over the splits ``(tables, fusers)`` for one setting."""
    tables = [t for t, splits in results.items() if all(setting in next(iter(s["fusers"].values())) for s in splits)]
    if not tables:
        return [], [], np.empty((0, 0))
    sets = [set(split["fusers"]) for t in tables for split in results[t]]
    fusers = [name for name in results[tables[0]][0]["fusers"] if all(name in s for s in sets)]
    rows = [[np.mean([s["fusers"][f][setting][value] for s in results[t]]) for f in fusers] for t in tables]
    return fusers, tables, np.array(rows)


def holm(p: Array) -> Array:
    """Return p-values ``(m,)`` corrected for m tests (Holm)."""
    order = np.argsort(p)
    raised = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(raised, 1)
    return corrected


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """Return for each setting average ranks, means, times, the critical difference, and tests of afa against each."""
    said = {}
    for setting in (*CLASSIFICATION, *REGRESSION):
        value = "rmse" if setting in REGRESSION else "log-loss"
        fusers, tables, means = means_of(results, setting, value)
        if not tables or len(fusers) < 2:
            continue
        ranks = np.mean([rankdata(row) for row in means], 0)
        critical = studentized_range.ppf(0.95, len(fusers), np.inf) * np.sqrt(
            len(fusers) * (len(fusers) + 1) / (12 * len(tables))
        )
        entry: dict[str, Any] = {"value": value, "tables": tables, "critical difference": float(critical)}
        entry["fusers"] = {}
        for i in np.argsort(ranks, kind="stable"):
            splits = [s["fusers"][fusers[i]][setting] for t in tables for s in results[t]]
            row = {"rank": float(ranks[i]), "fit": float(np.median([s["fit"] for s in splits]))}
            row |= {v: float(np.mean([s[v] for s in splits])) for v in splits[0] if v != "fit"}
            entry["fusers"][fusers[i]] = row
        if "afa" in fusers:
            own = fusers.index("afa")
            rivals = [i for i in range(len(fusers)) if i != own]
            p = np.array([signed_rank(means[:, own] - means[:, i]) for i in rivals])
            for i, plain, corrected in zip(rivals, p, holm(p), strict=True):
                better, worse = ((sign * (means[:, own] - means[:, i]) > 0).sum() for sign in (-1, 1))
                test = {
                    "afa better": int(better),
                    "afa worse": int(worse),
                    "p": float(plain),
                    "p, Holm": float(corrected),
                }
                entry["fusers"][fusers[i]] |= test
        said[setting] = entry
    return said


def signed_rank(apart: Array) -> float:
    """Return the p-value of Wilcoxon's signed-rank test, two-sided, of differences ``(tables,)``."""
    return float(wilcoxon(apart).pvalue) if np.any(apart != 0) else 1.0


def counted(number: int, word: str) -> str:
    """Return how many there are, in words."""
    return f"{number} {word}{'s' if number != 1 else ''}"


def markdown(said: dict[str, Any], results: dict[str, Any], half: str, splits: int) -> str:
    """Return all tables as Markdown."""
    times = [s["shape"]["members"] for t in results.values() for s in t]
    fits = [r["fit"] for t in results.values() for s in t for f in s["fusers"].values() for r in f.values()]
    parts = [
        f"Half `{half}`, {counted(len(results), 'table')}, {counted(splits, 'split')} each: {', '.join(results)}. "
        f"Members took {sum(times) / 60:.1f} minutes of one processor, fits of fusers {sum(fits) / 60:.1f}."
    ]
    for setting, entry in said.items():
        what = {**CLASSIFICATION, **REGRESSION}[setting]
        wide = entry["value"] == "log-loss"
        title = ["log-loss", "accuracy %", "macro F1 %"] if wide else ["RMSE"]
        parts.append(f"### {setting[0].upper()}{setting[1:]}")
        parts.append(
            f"{what[0].upper()}{what[1:]}; {counted(len(entry['tables']), 'table')}. "
            f"Ranks in {LOSS[entry['value']]}; two ranks differ from {entry['critical difference']:.2f} on (Nemenyi)."
        )
        lines = [f"| fuser | average rank | {' | '.join(title)} | `afa` better / worse | p | p, Holm | fit, s |"]
        lines.append("|---|" + "---:|" * (len(title) + 5))
        for name, row in entry["fusers"].items():
            values = [f"{row[entry['value']]:.3f}"]
            if wide:
                values += [f"{100 * row['accuracy']:.1f}", f"{100 * row['f1']:.1f}"]
            test = ["–"] * 3
            if "p" in row:
                chances = [f"{p:.3f}" if p >= 0.0005 else "< 0.001" for p in (row["p"], row["p, Holm"])]
                test = [f"{row['afa better']} / {row['afa worse']}", *chances]
            cells = [name, f"{row['rank']:.2f}", *values, *test, f"{row['fit']:.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def cliques(ranks: Array, critical: float) -> list[tuple[int, int]]:
    """Return first and last number of each largest group of sorted ranks ``(m,)`` that do not differ.

    >>> cliques(np.array([1.0, 2.0, 3.5, 9.0]), 2.0)
    [(0, 1), (1, 2)]
    """
    ends = [int(np.flatnonzero(ranks <= r + critical).max()) for r in ranks]
    return [(i, e) for i, e in enumerate(ends) if e > i and (i == 0 or e > ends[i - 1])]


def draw(said: dict[str, Any], stem: Path) -> None:
    """Write critical-difference diagrams, one panel a setting, as SVG and PNG; a line, and none, without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: it needs matplotlib: pip install 'faverage[plot]'")
        return
    longest = max(len(entry["fusers"]) for entry in said.values())
    rows = -(-len(said) // 2)
    with rc_context({"font.size": 8, "svg.fonttype": "path", "svg.hashsalt": "faverage"}):
        figure = Figure(figsize=(11, rows * (0.9 + 0.075 * longest)), layout="constrained")
        axes = figure.subplots(rows, 2, squeeze=False).ravel()
        for axis in axes[len(said) :]:
            axis.axis("off")
        for axis, (setting, entry) in zip(axes, said.items(), strict=False):
            diagram(axis, setting, entry)
        for kind, dates in (("svg", {"Date": None}), ("png", {"Software": "faverage"})):
            figure.savefig(stem.with_suffix(f".{kind}"), dpi=150, metadata=dates)


def diagram(axis: Any, setting: str, entry: dict[str, Any]) -> None:
    """Draw average ranks on a line, names at both sides, and bars over fusers that do not differ (Demšar)."""
    names = list(entry["fusers"])
    ranks = np.array([entry["fusers"][n]["rank"] for n in names])
    count, critical = len(names), entry["critical difference"]
    groups = cliques(ranks, critical)
    side = -(-count // 2)
    depth = 0.55 * len(groups) + 0.5
    margin = 0.02 * (count - 1)
    axis.set(xlim=(1 - margin, count + margin), ylim=(-depth - side, 2.6))
    axis.axis("off")
    axis.set_title(f"{setting} ({counted(len(entry['tables']), 'table')})", fontsize=9, loc="left")
    axis.plot([1, count], [0, 0], color="black", lw=0.8)
    for tick in range(1, count + 1):
        axis.plot([tick, tick], [0, 0.25], color="black", lw=0.8)
        if count <= 8 or tick % 2:
            axis.text(tick, 0.35, str(tick), ha="center", va="bottom", fontsize=7)
    shown = min(critical, count - 1)
    axis.plot([1, 1 + shown], [1.75, 1.75], color="black", lw=1.6)
    axis.text(1, 1.95, f"critical difference {critical:.2f}", va="bottom", fontsize=7)
    for i, (first, last) in enumerate(groups):
        axis.plot(ranks[[first, last]] + [-0.06, 0.06], [-0.45 - 0.55 * i] * 2, color="#777777", lw=2.4)
    for i, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        left = i < side
        y = -depth - (i if left else count - 1 - i) - 0.3
        end = 1 - 0.02 * count if left else count + 0.02 * count
        own = name.startswith("afa")
        colour = "#0072b2" if own else "black"
        axis.plot([rank, rank, end], [0, y, y], color=colour, lw=0.7)
        words = f"{name}  {rank:.1f}" if left else f"{rank:.1f}  {name}"
        weight = "bold" if name == "afa" else "normal"
        axis.text(end, y, f" {words} ", ha="right" if left else "left", va="center", color=colour, weight=weight)


# ----------------------------------------------------------------------------------------------------------------------


def data_folder(given: Path | None) -> Path:
    """Return the folder of the tables."""
    folder = given or (Path(os.environ["FAVERAGE_DATA"]) / "tables" if os.environ.get("FAVERAGE_DATA") else None)
    if folder is None or not folder.is_dir():
        found = f"no folder {folder}" if folder else "no folder of tables"
        raise DataError(
            found, what=folder, hint="name it with --data, or set FAVERAGE_DATA to the folder above `tables`"
        )
    return folder


def run(options: argparse.Namespace) -> None:
    """Check the tables, run what is not done yet, and print and write what was asked for."""
    manifest = read_manifest(options.manifest)
    data = data_folder(options.data)
    entries = [e for e in manifest["sets"] if options.check or e["half"] == options.half]
    unknown = set(options.sets or []) - {e["name"] for e in entries}
    if unknown:
        raise ConfigError(f"no set {', '.join(sorted(unknown))} in half {options.half}", what="--sets")
    every = {*known_fusers("classification"), *known_fusers("regression")}
    if not set(options.fusers or []) <= every:
        wrong = ", ".join(sorted(set(options.fusers) - every))
        raise ConfigError(f"unknown fuser {wrong}", what="--fusers", hint=f"known are {', '.join(sorted(every))}")
    entries = [e for e in entries if not options.sets or e["name"] in options.sets]
    there = []
    for entry in entries:
        wrong = problem_of(entry, data)
        if wrong:
            print(wrong, flush=True)
        else:
            there.append(entry)
    if options.check:
        for entry in there:
            x, y = load(entry, manifest, data)
            classes = f", {y.max() + 1} classes" if entry["kind"] == "classification" else ""
            print(f"{entry['name']} ({entry['half']}): {len(x)} rows, {x.shape[1]} inputs{classes}")
        return
    if not there:
        raise DataError(f"no table of half {options.half} is in {data}", what=data, hint="see docs/fusion-wide.md")
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = [(entry, seed) for seed in range(options.splits) for entry in there]  # every table once before any twice
    parallel = joblib.Parallel(n_jobs=options.jobs, return_as="generator")
    fusers = options.fusers or sorted(every)
    # keys are read off the code at the start: who edits it meanwhile does not confuse what is kept
    kinds = {e["kind"] for e in there}
    keys = {kind: {name: fuser_key(name, kind) for name in known_fusers(kind)} for kind in kinds}
    places = {e["name"]: f"{e['name']}-{{}}-{members_key(e, manifest)}.npz" for e in there}
    done = parallel(
        joblib.delayed(one)(
            e, manifest, data, options.out / places[e["name"]].format(s), seed=s, fusers=fusers, keys=keys[e["kind"]]
        )
        for e, s in jobs
    )
    results: dict[str, Any] = {}
    for i, ((entry, _), (line, result)) in enumerate(zip(jobs, done, strict=True), 1):
        print(f"{line} ({i} of {len(jobs)})", flush=True)
        results.setdefault(entry["name"], []).append(result)
    older = sorted({n for splits in results.values() for s in splits for n in s.pop("older code")})
    if older:
        print(f"results of older code, since --fusers leaves them out: {', '.join(older)}")
    said = summary(results)
    text = markdown(said, results, options.half, options.splits)
    print(text)
    if options.json:
        versions = {"faverage": faverage.__version__, "scikit-learn": sklearn.__version__}
        versions["python"] = platform.python_version()
        whole = {"versions": versions, "half": options.half, "splits": options.splits, "older code": older}
        with replacing(options.json) as partial:
            top = json.dumps({**whole, "summary": said}, indent=1).removesuffix("\n}")
            lines = (f"  {json.dumps(name)}: {json.dumps(rounded(splits))}" for name, splits in results.items())
            partial.write_text(f'{top},\n "tables": {{\n' + ",\n".join(lines) + "\n }\n}\n")  # a line a table
    if options.plot and said:
        draw(said, options.plot)
    if options.markdown:
        before, rest = options.markdown.read_text().split("<!-- begin results -->")
        after = rest.split("<!-- end results -->")[1]
        options.markdown.write_text(f"{before}<!-- begin results -->\n{text}\n<!-- end results -->{after}")


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables; default: tables in $FAVERAGE_DATA")
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-fusion-wide"), help="for what is kept")
    parser.add_argument("--half", choices=("choose", "measure"), default="choose")
    parser.add_argument("--check", action="store_true", help="read the tables of both halves, and nothing else")
    parser.add_argument("--sets", type=lambda text: text.split(","), help="names, with commas")
    parser.add_argument("--fusers", type=lambda text: text.split(","), help="compute these alone; names, with commas")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="write this with .svg and .png")
    parser.add_argument("--markdown", type=Path, help="replace what lies between the marks in this file")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
