"""Every method of a run through all sessions, several at a time, and from disk where an earlier run finished it."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from faverage.experiment.base import Progress
from faverage.experiment.code import method_code
from faverage.experiment.config import AFTER_BASE, RunConfig
from faverage.experiment.fusers import run_method
from faverage.experiment.pictures import Pictures
from faverage.experiment.resume import read_left, write_left
from faverage.experiment.rivals import rival_folder, run_rival
from faverage.features import FeatureSet
from faverage.registry import adopt, outside
from faverage.rivals import RIVALS

__all__ = ["on_gpu", "run_method", "run_methods"]


def run_methods(
    config: RunConfig,
    features: FeatureSet,
    draw: int,
    work: Path,
    progress: Progress,
    *,
    order: int = 0,
    pictures: Pictures | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the results of every method with one draw of the shots, and the dates of those from earlier runs.

    Results are in the order of ``config.methods``. Those of an earlier run count where settings, all that the method
    sees and its code are the same, and where they are as they were written.

    Args:
        config: of one seed.
        features: with the usual shots, in the official order of classes or in this one.
        draw: its number.
        work: folder for the results of each method.
        progress: hears what is being done.
        order: of the classes.
        pictures: the images, for rivals, in the same order as the features.
    """
    from joblib import Parallel, delayed

    drawn = features.reordered(config.seed, order).redrawn(config.seed, draw)
    which = f", seed {config.seed}{f', order {order}' if config.class_orders > 1 else ''}, draw {draw}"
    doing = "running the methods" + (which if config.repeated else "")
    settings = {name: getattr(config, name) for name in AFTER_BASE}
    stamp = _fingerprint(drawn, settings)
    names = {m: f"{m}-{draw}-{_joined(stamp, method_code(m))}" for m in config.methods}
    if pictures is not None:
        names |= {m: f"{rival_folder(m, config, pictures)}-{order}-{draw}" for m in config.methods if m in RIVALS}
    # whole paths: the processes of joblib stay where they were started, whoever goes elsewhere
    files = {method: work.absolute() / f"{name}.json" for method, name in names.items()}
    found = {method: _read_method(file, len(features.sessions)) for method, file in files.items()}
    done = {method: pair[0] for method, pair in found.items() if pair is not None}
    earlier = {method: pair[1] for method, pair in found.items() if pair is not None}
    rest = [method for method in config.methods if method not in done]
    own = [method for method in rest if method in RIVALS and on_gpu(config)]
    for method in own:  # one at a time where all want the same GPU
        progress(f"running {method}", 0, 0)
        done[method] = _finish(method, pictures, drawn, config, (order, draw), files[method])[1]
    rest = [method for method in rest if method not in own]
    progress(doing, len(done), len(config.methods))
    if rest:
        jobs = Parallel(n_jobs=min(config.jobs, len(rest)), return_as="generator_unordered")
        seen = {m: (pictures if m in RIVALS else None, drawn, config, (order, draw), files[m]) for m in rest}
        tasks = (delayed(_elsewhere)(outside(), m, *of) for m, of in seen.items())
        for method, result in jobs(tasks):
            done[method] = result
            progress(doing, len(done), len(config.methods))
    return {method: done[method] for method in config.methods}, earlier


def _elsewhere(registered: list[Any], method: str, *of: Any) -> tuple[str, dict[str, Any]]:
    """Do ``_finish`` in another process, where what was registered from outside is not known yet."""
    adopt(registered)
    return _finish(method, *of)


def _read_method(file: Path, n_sessions: int) -> tuple[dict[str, Any], str] | None:
    """Return the results of a method that an earlier run finished, and when; None where there are none, or broken."""
    found = read_left(file, "the method is run again")
    try:
        result, date = (found or {})["result"], str((found or {})["date"])
        return (result, date) if len(result["sessions"]) == n_sessions else None
    except (KeyError, TypeError):
        return None


def _finish(
    method: str, pictures: Pictures | None, drawn: FeatureSet, config: RunConfig, which: tuple[int, int], file: Path
) -> tuple[str, dict[str, Any]]:
    """Run a method and write its results; where they cannot be read back as they are, the run should not go on."""
    import torch

    alone = on_gpu(config)
    if not alone:
        torch.set_num_threads(1)
    if method in RIVALS:
        assert pictures is not None
        order, draw = which
        folder = file.with_name(file.stem.removesuffix(f"-{order}-{draw}"))
        result = run_rival(method, pictures, config, folder, draw, order=order, progress=alone)
    else:
        result = run_method(method, drawn, config, trade=which == (0, 0))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_left(file, {"date": date, "result": result})
    again = read_left(file, "it was just written")
    if again is None:
        raise OSError(f"{file} cannot be read back")
    return method, again["result"]


def on_gpu(config: RunConfig) -> bool:
    """Return whether a run with these settings would use a GPU here."""
    import torch

    return config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())


def _fingerprint(features: FeatureSet, settings: dict[str, Any]) -> str:
    """Return what stands for the arrays that a method sees, and for its settings."""
    digest = hashlib.sha256()
    heads = {view: type(head).__name__ for view, head in features.heads.items()}
    digest.update(json.dumps([features.sessions, features.class_names, heads, settings]).encode())
    lessons = [features.lesson(rows) for rows in (features.memory, *features.shots)]
    for views, labels in (*lessons, features.examples(features.test)):
        for array in (labels, *views.values()):
            digest.update(np.ascontiguousarray(array).tobytes())
    for view, head in features.heads.items():
        whitening = vars(features.whitening[view]).values() if view in features.whitening else ()
        for array in (features.prototypes[view], *vars(head).values(), *whitening):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:12]


def _joined(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
