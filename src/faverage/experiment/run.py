"""One run: features, every method through every session, results on disk; and what it left for others to use."""

from __future__ import annotations

import re
import time
import warnings
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from faverage.experiment.base import Progress, features_of_benchmark
from faverage.experiment.code import digest, versions, work_folder
from faverage.experiment.config import RIVAL_METHODS, ConfigError, RunConfig
from faverage.experiment.cost import flops, in_words, left_of
from faverage.experiment.given import DROPPED, of_today
from faverage.experiment.methods import run_methods
from faverage.experiment.pictures import Pictures, check_orders, load_pictures
from faverage.experiment.report import write
from faverage.experiment.results import NOTES, PAPER, combine, compare
from faverage.experiment.rivals import rival_recipe
from faverage.experiment.tables import earlier_in_words
from faverage.experiment.trouble import results_folder
from faverage.features import FeatureSet
from faverage.fscil.fusers import ALONE
from faverage.rivals import RIVALS, get_rival
from faverage.storage import alone, read_json
from faverage.vision.views import passes

if TYPE_CHECKING:
    from faverage.vision import Team

__all__ = ["costs_of", "finished_run", "flops", "run"]


def run(
    config: RunConfig,
    out: Path,
    *,
    command: str = "",
    progress: Progress = lambda *_: None,
    save_features: Path | None = None,
) -> dict[str, Any] | None:
    """Carry out a run and write it to ``out``: results.json, table.md, table.tex, table.csv, report.html, figures.

    Base training, features and every finished method are kept there; a run that was killed and is started again with
    the same settings goes on where it was and ends with the same numbers. Several processes share base training and
    extraction; the first one does the rest.

    Args:
        config: the settings.
        out: folder for the results.
        command: what was typed, for the report.
        progress: is called with what is being done, how much of it is done, and of how much (0: not known); and once
            with what training will cost, in sentences, which end with a full stop.
        save_features: a ``.npz`` to write after the base session, which ``features`` reads: what the methods see, but
            without spare examples, which further draws take shots from.

    Returns:
        What is in results.json; None in a process that is not the first.

    A run on ready features, which needs no images and no training:

    >>> import tempfile
    >>> x = np.eye(3)  # features of three classes; the third one comes after the base session
    >>> arrays = {"base_memory": x[[0, 1] * 5], "base_memory_labels": [0, 1] * 5, "base_prototypes": x[:2]}
    >>> arrays |= {"base_head_weight": x[:2], "base_head_bias": np.zeros(2)}
    >>> arrays |= {"novel": x[[2] * 5], "novel_labels": [2] * 5, "test": x, "test_labels": [0, 1, 2]}
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     np.savez(folder / "features.npz", **arrays)
    ...     given = {"features": str(folder / "features.npz"), "methods": ["prototypes", "geometric"], "jobs": 1}
    ...     results = run(RunConfig.build("folder", None, given), folder / "out")
    ...     print(sorted(file.name for file in (folder / "out").glob("*.*")))
    ['report.html', 'results.json', 'table.csv', 'table.md', 'table.tex']
    >>> {name: [s["accuracy"] for s in method["sessions"]] for name, method in results["methods"].items()}
    {'prototypes': [1.0, 1.0], 'geometric': [1.0, 1.0]}
    """
    if save_features is not None:
        _check_saving(config, save_features)
    with results_folder(out, "work"):
        team = _team(config)
        if not team.first:
            _features(config, out, lambda *_: None, team)
            return None
        with alone(out / "work", "run", lambda: progress(f"waiting for another run in {out}", 0, 0)):
            return _alone(config, out, command, progress, save_features, team)


def _alone(
    config: RunConfig, out: Path, command: str, progress: Progress, save_features: Path | None, team: Team
) -> dict[str, Any]:
    """Do all of it, in a folder where no other run is under way."""
    start = time.perf_counter()
    ready = _features(config, out, progress, team)
    if save_features is not None:
        progress("writing the features", 0, 0)
        ready[0].features.save(save_features)
    repeats: list[dict[str, Any]] = []
    earlier: list[dict[str, Any]] = []
    for one, order, work, features, pictures in ready:
        for draw in range(config.draws):
            methods, dates = run_methods(one, features, draw, work, progress, order=order, pictures=pictures)
            methods = {m: {**r, "costs": costs_of(m, r, one, features, pictures)} for m, r in methods.items()}
            which = {"seed": one.seed, "order": order, "draw": draw}
            repeats.append({**which, "methods": methods})
            earlier += [{"method": m, **which, "date": date} for m, date in dates.items()]
    if earlier:
        progress(earlier_in_words(earlier), 0, 0)
    first = ready[0].features
    methods = combine(repeats)
    results = {
        "dataset": config.dataset,
        "protocol": _protocol(ready[0], config),
        "seed": config.seed,
        "config": config.to_dict(),
        "command": command.encode(errors="backslashreplace").decode(),
        "versions": versions(),
        "device": _device(config.device) if config.features is None else "cpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - start,
        "earlier": earlier,
        "work": work_folder(ready[0].config.each[0], out / "work").name,
        "base": first.base,
        **({"networks": first.networks} if first.networks else {}),
        "methods": methods,
        "repeats": [_brief(repeat) for repeat in repeats] if len(repeats) > 1 else None,
        "comparisons": [
            one
            for one in compare(repeats, "afa" if "afa" in methods else config.methods[-1])
            if one["what"] != "last" or not _same_end(ready[0], config)  # it would count the same end several times
        ],
        "paper": PAPER.get(config.dataset),
        "notes": NOTES.get(config.dataset, []),
    }
    progress("writing the results", 0, 0)
    write(out, results)
    return results


def finished_run(out: Path) -> tuple[RunConfig, Path]:
    """Return the settings of the run in ``out``, for its first seed and network, and the file of its base session.

    Raises:
        ConfigError: there is no finished run, or none that trained a backbone.
    """
    file = out / "results.json"
    try:
        results = read_json(file)
        given = of_today({name: v for name, v in results["config"].items() if name not in DROPPED})
        given["dataset"] = results["config"]["dataset"]  # never the default
        found = results["versions"]
        known = {f.name for f in fields(RunConfig)}
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        config = RunConfig(**{name: v for name, v in plain.items() if name in known}).each[0]
        # what counted where and when it ran, such as a GPU, need not be here now
        replace(config, device="auto", weights=None, features=None, tensorboard=None).check()
        # older runs did not tell where their base session is
        work = results.get("work") or digest({**config.base_key(), "versions": found})
        if not isinstance(work, str) or not re.fullmatch("[0-9a-f]{12}", work):
            raise ValueError(f"work is {work!r:.80}, expected the name of a folder")
    except FileNotFoundError:
        hint = "make one with: faverage run folder --data IMAGES --out DIR"
        raise ConfigError(f"no finished run in {out}: there is no results.json; {hint}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{file} is not of a finished run ({error}): run it again") from None
    if config.features is not None:
        raise ConfigError(f"the run in {out} used ready features and trained no backbone: run it on images instead")
    base = out / "work" / work / "base.safetensors"
    if not base.is_file():
        raise ConfigError(f"the run in {out} has no trained backbone: {base} is missing; run it again")
    return config, base


def _check_saving(config: RunConfig, file: Path) -> None:
    """Raise ConfigError where a run has no features of one seed to write, or must not write there."""
    if len(config.seeds or ()) > 1:
        raise ConfigError(f"--save-features is for one seed, and this run has {len(config.seeds or ())}")
    if set(config.methods) <= set(RIVAL_METHODS):
        raise ConfigError("--save-features: these methods train networks of their own: add another, such as afa")
    if config.features is not None and Path(config.features).resolve() == file.resolve():
        raise ConfigError(f"--save-features {file} is what --features reads: name another file")
    if file.is_dir():
        raise ConfigError(f"--save-features {file} is a folder, expected a .npz file: name another")
    if file.suffix != ".npz":
        raise ConfigError(f"--save-features {file} must end in .npz")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--save-features {file}: its folder cannot be made ({reason}): name another") from None


class _Ready(NamedTuple):
    """What the methods of a seed and an order of the classes start from; features from a file have no images."""

    config: RunConfig
    order: int
    work: Path
    features: FeatureSet
    pictures: Pictures | None


def _features(config: RunConfig, out: Path, progress: Progress, team: Team) -> list[_Ready]:
    """Return what methods start from, for every seed and order; orders that keep the base classes share it."""
    from faverage.vision import OtherFailed

    if not team.first:
        warnings.simplefilter("ignore")  # the first process says it
    ready: list[_Ready] = []
    try:
        if config.features is None:
            team.first_does(lambda: _say_cost(config, out, progress, team))
        for seed in config.seeds or (config.seed,):
            one = replace(config, seed=seed)
            for order in range(config.class_orders):
                before = ready[-1] if order else None
                if before is not None and (before.pictures is None or not before.pictures.any_base):
                    ready.append(before._replace(order=order))
                    continue
                work = work_folder(one, out / "work", order)
                work.mkdir(parents=True, exist_ok=True)
                if config.features is not None:
                    features = FeatureSet.load(Path(config.features), config.views)
                    check_orders(features.sessions, one, any_base=False)
                    ready.append(_Ready(one, order, work, features, None))
                    continue
                folders = [work_folder(network, out / "work", order) for network in one.each]
                ready.append(_Ready(one, order, work, *features_of_benchmark(one, folders, progress, team, order)))
    except KeyboardInterrupt:
        if team.first:
            raise
        raise OtherFailed("stopped") from None
    team.close()
    return ready


def _say_cost(config: RunConfig, out: Path, progress: Progress, team: Team) -> None:
    """Say what is left to do before the methods, of all seeds and orders together, before any of it is begun."""
    from faverage.vision.engine.device import pick_device

    progress("loading images", 0, 0)
    left = []
    for seed in config.seeds or (config.seed,):
        one = replace(config, seed=seed)
        for order in range(config.class_orders):
            pictures = load_pictures(one, order)
            left += left_of(one, pictures, out / "work")
            if not pictures.any_base:
                break
    if said := in_words(left, team.device or pick_device(config.device), team.size):
        progress(said, 0, 0)


def _team(config: RunConfig) -> Team:
    """Return the processes of a run, started where they were not yet; ConfigError where they cannot be."""
    from faverage.vision import join

    try:
        return join(config.devices, config.nodes, device=config.device)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"devices: {error}") from None


def _brief(repeat: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a repeat alone, without what was learned."""
    kept = ("sessions", "summary", "costs")
    return {**repeat, "methods": {name: {key: m[key] for key in kept} for name, m in repeat["methods"].items()}}


def _same_end(ready: _Ready, config: RunConfig) -> bool:
    """Return whether there are orders that keep the base classes, and so end with the same classes and shots."""
    return config.class_orders > 1 and (ready.pictures is None or not ready.pictures.any_base)


def _protocol(ready: _Ready, config: RunConfig) -> dict[str, Any]:
    features, pictures = ready.features, ready.pictures
    n_train, tests = [None, *map(len, features.shots)], features.labels[features.test]
    sessions = [
        {"classes": len(classes), "train": n, "test": int(np.isin(tests, classes).sum())}
        for classes, n in zip(features.sessions, n_train, strict=True)
    ]
    protocol = {"source": features.source, "sessions": sessions, "skipped": features.skipped}
    if config.draws > 1:
        protocol["draws"] = "from shots and test examples" if features.drawn_from_test else "from training examples"
    if config.class_orders > 1:
        why = "ready features have a base head" if pictures is None else "some have too few training images"
        kept = f"of later sessions alone, since {why}: at the end all orders have the same classes and shots"
        protocol["orders"] = kept if _same_end(ready, config) else "of all sessions"
    return protocol


def costs_of(
    method: str, result: dict[str, Any], config: RunConfig, features: FeatureSet, pictures: Pictures | None
) -> dict[str, float | None]:
    """Return what a method of a run costs, as plain data.

    Args:
        method: its name.
        result: of the method, see ``run_methods``.
        config: of one seed.
        features: what fusers see.
        pictures: the images; None for features from a file.

    Returns:
        ``passes`` of a backbone for one prediction: those of a fuser's views of all networks, two for one of ``both``
        sides; ``flops`` of these passes, heads and fuser apart, None without images; ``base_seconds``, base training,
        features and what the method adds, None for features from a file; and ``session_seconds``, the mean time to
        learn a later session, None where there is none.
    """
    later = [session.get("learn_seconds") for session in result["sessions"][1:]]
    own = (result.get("base") or {}).get("seconds")
    networks = features.networks or ([features.base] if features.base else [])
    if method in RIVALS:
        recipe, wants = rival_recipe(method, config)
        seen = [(wants.get("backbone", config.backbone), get_rival(method).passes(recipe))]
    else:
        views = [(one.backbone, one.views) for one in config.each] if pictures else [("", tuple(features.views))]
        if method in ALONE:
            views = [(views[0][0], views[0][1][:1])]
        seen = [(backbone, passes(names)) for backbone, names in views]
        own = own + sum(n["seconds"] + n["features_seconds"] for n in networks) if own and networks else None
    operations = [n * flops(backbone, pictures.transform.size) for backbone, n in seen] if pictures else None
    return {
        "passes": sum(n for _, n in seen),
        "flops": sum(operations) if operations is not None else None,
        "base_seconds": own,
        "session_seconds": sum(later) / len(later) if later and None not in later else None,
    }


def _device(wanted: str) -> str:
    import torch

    on_gpu = wanted.startswith("cuda") or (wanted == "auto" and torch.cuda.is_available())
    return torch.cuda.get_device_name() if on_gpu else "cpu"
