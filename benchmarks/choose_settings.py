"""Which fuser and which settings find new classes best? Second step: learning the pretend-new classes.

    python benchmarks/choose_recipe.py mini-imagenet --data ROOT --out FOLDER --trainings plain:100 rotations:40
    python benchmarks/choose_settings.py FOLDER
    python benchmarks/choose_settings.py FOLDER --networks rotations-40 rotations-40+plain-100@1:30 --rows afa --grid

The pretend-new classes that ``choose_recipe.py`` held out are learned in one session, from five images each; 20 images
of each known class are the memory. Other images of all classes, which no training saw, measure. Each draw takes other
images for each part. A row is a fuser with its settings; ``a+b`` are two trainings as members of one learner, ``b@1``
has the first view alone, and ``:30`` at the end keeps 30 of the known classes, so that new ones are a larger share.

``--json FILE`` writes every draw, row by row: a stopped call goes on where it was, unless code or features changed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray

import faverage
from faverage.experiment.recipes import BEST
from faverage.features import FeatureSet
from faverage.fscil import CosineHead, FewShotLearner, LinearHead, Whitening, session_metrics
from faverage.storage import replacing

Array = NDArray[Any]
PER_CLASS: dict[str, Any] = {
    **{"fuser": "afa-paper", "members": "views", "ridge": None},
    "fuser_options": {"structure": "per_class", "scale": 10.0, "lr": 0.01},
}
ROWS: dict[str, dict[str, Any]] = {  # options of FewShotLearner
    "one-view": {"fuser": "prototypes"},
    **{name: {"fuser": name} for name in ("arithmetic", "geometric", "log-pool", "logistic", "afa")},
    **{f"{name}-no-ridge": {"fuser": name, "ridge": None} for name in ("log-pool", "afa")},
    **{f"afa-per-class-{kind}": {**PER_CLASS, "rehearsal": kind} for kind in ("residual", "left-out")},
}
BALANCES, CALIBRATIONS = (1.0, 1.5, 2.0, 2.5, 3.0), (0.0, 0.1, 0.2, 0.3, 0.5)
MEMORY, SHOTS, TESTS = 20, 5, 40  # images of each class; tests of known classes are all that are left
VIEWS = ["plain", "rotate-90", "rotate-180", "rotate-270"]  # where no .json names them
METRICS = {"f1": "F1", "accuracy": "accuracy", "base": "base", "new": "new"}


def drawn(features: FeatureSet, seed: int) -> FeatureSet:
    """Return the same with what one draw takes for memory, shots and tests of all that was seen."""
    rng, labels = np.random.default_rng([seed, 3]), features.labels
    new = [np.flatnonzero(labels == c) for c in features.sessions[1]]
    held = [np.flatnonzero(labels == c) for c in features.sessions[0]]
    memory = np.concatenate([rng.permutation(rows)[:MEMORY] for rows in held])
    shots = np.concatenate([rng.permutation(rows)[:SHOTS] for rows in new])
    tests = [np.setdiff1d(np.concatenate(held), memory), *(np.setdiff1d(rows, shots)[:TESTS] for rows in new)]
    return replace(features, memory=memory, shots=(shots,), test=np.concatenate(tests))


def parts_of(network: str) -> tuple[list[tuple[str, int | None]], int | None]:
    """Return trainings with how many of their views to take, and how many known classes; None: all.

    >>> parts_of("rotations-40+plain-100@1:30")
    ([('rotations-40', None), ('plain-100', 1)], 30)
    """
    names, _, known = network.partition(":")
    pairs = [name.partition("@") for name in names.split("+")]
    try:
        trainings = [(name, int(count) if count else None) for name, _, count in pairs]
        return trainings, int(known) if known else None
    except ValueError:
        raise SystemExit(f"cannot read the network {network!r}: expected NAME, NAME@VIEWS, A+B or A+B:KNOWN") from None


def files_of(folder: Path, network: str, split: int) -> list[Path]:
    """Return the files of features of a network's trainings."""
    names = [name for name, _ in parts_of(network)[0]]
    return [folder / f"{name}.{split}.{part}.npz" for name in names for part in ("held", "new")]


def read(folder: Path, network: str, split: int) -> FeatureSet:
    """Return what the trainings of a network, ``a+b`` for two, saw; SystemExit where files are missing or disagree."""
    for file in files_of(folder, network, split):
        if not file.is_file():
            raise SystemExit(
                f"{folder} has no {file.name}: train it with choose_recipe.py, or give other --networks or --splits"
            )
    trainings, known = parts_of(network)
    if len({name for name, _ in trainings}) < len(trainings):
        raise SystemExit(f"the network {network!r} has a training twice: name each once")
    views: dict[str, Array] = {}
    prototypes: dict[str, Array] = {}
    heads: dict[str, LinearHead | CosineHead] = {}
    whitening: dict[str, Whitening] = {}
    learned: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    for name, count in trainings:
        arrays = {part: dict(np.load(folder / f"{name}.{split}.{part}.npz")) for part in ("held", "new")}
        for part in arrays:
            if not np.array_equal(labels.setdefault(part, arrays[part]["labels"]), arrays[part]["labels"]):
                raise SystemExit(
                    f"{name} saw other images than {trainings[0][0]}: they cannot be members of one learner"
                )
        held, about = arrays["held"], folder / f"{name}.{split}.json"
        n_views = sum(key.startswith("features.") for key in held)
        own = json.loads(about.read_text())["views"] if about.is_file() else VIEWS[:n_views]
        if len(own) != n_views:
            raise SystemExit(f"{name}.{split} has features of {n_views} views and names of {len(own)}: train it again")
        if not 1 <= (count or n_views) <= n_views:
            raise SystemExit(f"{network}: {name} has {n_views} views, {count} were asked for")
        for v, view in enumerate(own[:count]):
            named, weight = f"{name}: {view}", held[f"head_weight.{v}"]
            scale, whitened = float(held[f"scale.{v}"]), bool(held[f"whitened.{v}"])
            linear = LinearHead(weight, held[f"head_bias.{v}"])
            heads[named] = CosineHead(weight, scale, whitened) if scale > 0 else linear
            if f"matrix.{v}" in held:
                whitening[named] = Whitening(held[f"centre.{v}"], held[f"matrix.{v}"])
            prototypes[named] = held[f"prototypes.{v}"]
            seen = [one[f"features.{v}"] for one in arrays.values()]
            lessons = [one.get(f"learned_from.{v}", x) for one, x in zip(arrays.values(), seen, strict=True)]
            views[named], learned[named] = (np.concatenate(parts).astype(np.float32) for parts in (seen, lessons))
    for part, least in (("held", MEMORY), ("new", SHOTS)):
        fewest = int(np.unique(labels[part], return_counts=True)[1].min())
        if fewest <= least:
            raise SystemExit(f"{network}.{split}.{part}: a class has {fewest} images, at least {least + 1} are needed")
    n_known, n_all = len(next(iter(prototypes.values()))), 1 + int(labels["new"].max())
    none = np.zeros(0, dtype=np.int64)
    found = FeatureSet(
        views=views,
        labels=np.concatenate([labels["held"], labels["new"]]),
        sessions=[list(range(n_known)), list(range(n_known, n_all))],
        memory=none,
        shots=(none,),
        test=none,
        spare=none,
        prototypes=prototypes,
        heads=heads,
        whitening=whitening,
        learned_from=learned,
        class_names=[str(c) for c in range(n_all)],
        source=network,
    )
    return found if known is None else fewer(found, known)


def fewer(seen: FeatureSet, known: int) -> FeatureSet:
    """Return the same with the first ``known`` of the known classes alone."""
    all_known = len(seen.sessions[0])
    if not 2 <= known <= all_known:
        raise SystemExit(f"{known} known classes were asked for, expected 2 to {all_known}")
    rows, classes = (seen.labels < known) | (seen.labels >= all_known), np.arange(all_known) < known
    labels = seen.labels[rows]
    return replace(
        seen,
        views={view: x[rows] for view, x in seen.views.items()},
        learned_from={view: x[rows] for view, x in seen.learned_from.items()},
        labels=np.where(labels < known, labels, labels - all_known + known),
        sessions=[list(range(known)), [c - all_known + known for c in seen.sessions[1]]],
        prototypes={view: means[classes] for view, means in seen.prototypes.items()},
        heads={view: head.of_rows(classes) for view, head in seen.heads.items()},
    )


def measure(folder: Path, network: str, split: int, settings: dict[str, Any], draw: int) -> dict[str, float]:
    """Learn the pretend-new classes once; return the metrics on other images, all in [0, 1], and seconds."""
    torch.set_num_threads(1)
    seen = drawn(read(folder, network, split), draw)
    start = time.perf_counter()
    learner = FewShotLearner(seed=draw, **settings)
    learner.fit_base(*seen.lesson(seen.memory), **seen.base_parts)
    learner.learn_session(*seen.lesson(seen.shots[0]))
    test, y = seen.examples(seen.test)
    said = learner.predict(test)
    seconds = time.perf_counter() - start
    found = session_metrics(y, said, [np.array(group) for group in seen.sessions])
    return {name: found[name] for name in METRICS} | {"seconds": seconds}


def rows_of(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the rows to compare: options of FewShotLearner by name."""
    usual = {"balance": options.balance, "calibration": options.calibration}
    rows = {name: {**ROWS[name], **usual} for name in options.rows}
    if options.grid:
        for balance, calibration in itertools.product(BALANCES, CALIBRATIONS):
            settings = {**ROWS["afa"], "balance": balance, "calibration": calibration}
            rows[f"afa, balance {balance:g}, calibration {calibration:g}"] = settings
    return rows


def table(title: str, entries: Sequence[dict[str, Any]], rows: Iterable[str]) -> str:
    """Return a Markdown table of means in percent, a line for each row."""
    lines = [f"### {title}", "", f"| row | {' | '.join(METRICS.values())} |", "|---|" + "---:|" * len(METRICS)]
    for row in rows:
        own = [entry for entry in entries if entry["row"] == row]
        cells = (f"{100 * np.mean([entry[name] for entry in own]):.2f}" for name in METRICS)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def kept(file: Path | None) -> dict[str, dict[str, Any]]:
    """Return the entries of an earlier call by key."""
    if file is None or not file.exists():
        return {}
    try:
        return {entry["key"]: entry for entry in json.loads(file.read_text())["rows"]}
    except (ValueError, TypeError, KeyError):
        raise SystemExit(f"{file} was not written by choose_settings.py: give another file") from None


def write(file: Path | None, entries: list[dict[str, Any]]) -> None:
    """Write the entries where a file was asked for."""
    if file is not None:
        with replacing(file) as partial:
            partial.write_text(json.dumps({"rows": entries}, indent=1) + "\n")


def code_key() -> str:
    """Return what stands for the code that learns: results of other code are not taken for these."""
    package = Path(faverage.__file__).parent
    files = itertools.chain.from_iterable(sorted(package.glob(p)) for p in ("*.py", "fscil/*.py", "fusion/*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in (Path(__file__), *files))).hexdigest()


def chosen(options: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Return the networks and the splits to measure, all of whose files are there; SystemExit otherwise."""
    folder: Path = options.folder
    files = [file.name.removesuffix(".held.npz").rpartition(".") for file in sorted(folder.glob("*.held.npz"))]
    if not files:
        raise SystemExit(f"{folder} has no features: write them with choose_recipe.py --out {folder}")
    there = list(dict.fromkeys(name for name, _, _ in files))
    networks = list(dict.fromkeys(options.networks or there))
    named = {name for network in networks for name, _ in parts_of(network)[0]}
    for name in sorted(named.difference(there)):
        raise SystemExit(f"{folder} has no training {name!r}: it has {', '.join(there)}")
    splits = sorted(set(options.splits or (int(split) for name, _, split in files if name in named)))
    for network, split in itertools.product(networks, splits):
        read(folder, network, split)
    return networks, splits


def run(options: argparse.Namespace, rows: dict[str, dict[str, Any]]) -> None:
    """Measure every row, print the tables."""
    networks, splits = chosen(options)
    repeats, code = list(itertools.product(splits, range(options.draws))), code_key()
    tasks: dict[str, dict[str, Any]] = {}
    for network, row, (split, draw) in itertools.product(networks, rows, repeats):
        task = {"network": network, "row": row, "split": split, "draw": draw, "settings": rows[row]}
        features = [file.stat() for file in files_of(options.folder, network, split)]
        behind = [task, code, [(stat.st_size, stat.st_mtime_ns) for stat in features]]
        tasks[hashlib.sha256(json.dumps(behind).encode()).hexdigest()[:16]] = task
    entries = {key: entry for key, entry in kept(options.json).items() if key in tasks}
    answers = joblib.Parallel(n_jobs=options.jobs, return_as="generator")(
        joblib.delayed(measure)(options.folder, task["network"], task["split"], task["settings"], task["draw"])
        for key, task in tasks.items()
        if key not in entries
    )
    for i, (key, task) in enumerate(tasks.items(), 1):
        if key not in entries:
            entries[key] = {**task, **next(answers), "key": key}
        if i % len(repeats) == 0:
            write(options.json, [entries[key] for key in tasks if key in entries])
            said = f"{i // len(repeats)} of {len(networks) * len(rows)}: {task['network']}, {task['row']}"
            print(said, file=sys.stderr, flush=True)
    usual = f"balance {options.balance:g} and calibration {options.calibration:g} where a row does not say"
    print(f"Percent, means over draws (splits: {len(splits)}, draws of each: {options.draws}); {usual}.\n")
    for network in networks:
        print(table(network, [entry for entry in entries.values() if entry["network"] == network], rows))
    if len(networks) > 1:
        print(table(f"mean of {len(networks)} networks", list(entries.values()), rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what choose_recipe.py wrote")
    parser.add_argument("--networks", nargs="+", help="trainings, a+b@1:30 as above; by default each alone")
    parser.add_argument("--splits", type=int, nargs="+", help="by default all that there are")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--grid", action="store_true", help="balance x calibration for afa, too")
    parser.add_argument("--balance", type=float, default=BEST["balance"])
    parser.add_argument("--calibration", type=float, default=BEST["calibration"])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=-1, help="processes; by default one a core")
    parser.add_argument("--json", type=Path, help="file for every draw of every row")
    options = parser.parse_args(arguments)
    rows = rows_of(options)
    if not rows or options.draws < 1 or options.jobs == 0:
        parser.error("at least one row, one draw and one job are needed")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"cannot write {options.json}: the folder {options.json.parent} does not exist")
    try:
        for settings in rows.values():
            FewShotLearner(**settings)
    except ValueError as error:
        parser.error(str(error))
    run(options, rows)


if __name__ == "__main__":
    main()
