"""Every method of a run through all sessions, several at a time, and from disk where an earlier run finished it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from faverage.experiment.config import AFTER_BASE, RunConfig
from faverage.experiment.features import Features, Progress
from faverage.experiment.resume import read_method
from faverage.experiment.rivals import rival_folder, run_rival
from faverage.experiment.sessions import Outcome
from faverage.fscil import FewShotLearner, ViewLearner
from faverage.rivals import RIVALS
from faverage.storage import replacing

__all__ = ["learner_of", "on_gpu", "run_method", "run_methods"]


def run_methods(
    config: RunConfig, features: Features, draw: int, work: Path, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Return the results of every method with one draw of the shots, in the order of ``config.methods``."""
    from joblib import Parallel, delayed

    drawn = features.redrawn(config.seed, draw)
    doing = "running the methods" + (f", seed {config.seed}, draw {draw}" if config.repeated else "")
    settings = {name: getattr(config, name) for name in AFTER_BASE}
    if config.features is not None and isinstance(features.head, list):  # a file may come with other scales
        settings["scales"] = [getattr(head, "scale", None) for head in features.head]
    stamp = _fingerprint(drawn, settings)
    names = {m: f"{m}-{draw}-{stamp}" for m in config.methods}
    if features.pictures is not None:
        names |= {m: f"{rival_folder(m, config, features.pictures)}-{draw}" for m in config.methods if m in RIVALS}
    files = {method: work / f"{name}.json" for method, name in names.items()}
    found = {method: read_method(file, len(features.sessions)) for method, file in files.items()}
    done = {method: result for method, result in found.items() if result is not None}
    rest = [method for method in config.methods if method not in done]
    own = [method for method in rest if method in RIVALS and on_gpu(config)]
    for method in own:  # one at a time where all want the same GPU
        progress(f"running {method}", 0, 0)
        done[method] = _finish(method, features, drawn, config, draw, files[method])[1]
    rest = [method for method in rest if method not in own]
    progress(doing, len(done), len(config.methods))
    if rest:
        jobs = Parallel(n_jobs=min(config.jobs, len(rest)), return_as="generator_unordered")
        tasks = (delayed(_finish)(m, features if m in RIVALS else None, drawn, config, draw, files[m]) for m in rest)
        for method, result in jobs(tasks):
            done[method] = result
            progress(doing, len(done), len(config.methods))
    return {method: done[method] for method in config.methods}


def run_method(method: str, features: Features, config: RunConfig) -> dict[str, Any]:
    """Take one fuser through all sessions; return its metrics, and what it learned, as plain data."""
    learner = learner_of(method, config, features.widths)
    learner.fit_base(features.memory, features.memory_labels, head=features.head, prototypes=features.prototypes)
    outcome = Outcome(features.sessions)
    train, test, labels = features.train, features.test, features.test_labels
    for k in range(len(features.sessions)):
        start = time.perf_counter()
        if k > 0:
            learner.learn_session(*train[k - 1])
        seen = np.isin(labels, np.concatenate(features.sessions[: k + 1]))
        said = learner.predict(test[seen])
        outcome.add(labels[seen], said, time.perf_counter() - start)
    fitted = getattr(learner.fitted, "history", None)
    return {
        **outcome.to_dict(),
        "history": fitted.to_dict() if fitted is not None else None,
        "explanation": _explanation(learner, features.class_names),
    }


def learner_of(method: str, config: RunConfig, widths: Sequence[int] | None = None) -> FewShotLearner | ViewLearner:
    """Return the learner of a fuser in a run, before it learned anything; ``widths`` are the columns of each view."""
    names = ("spread", "balance", "calibration", "temperature", "seed")
    options: dict[str, Any] = {"draws": config.stand_ins, **{name: getattr(config, name) for name in names}}
    if config.many or widths is not None:
        return ViewLearner(config.view_names, fuser=method, widths=widths, **options)
    return FewShotLearner(fuser=method, threshold=config.threshold, **options)


def _finish(
    method: str, features: Features | None, drawn: Features, config: RunConfig, draw: int, file: Path
) -> tuple[str, dict[str, Any]]:
    """Run a method and write its results; where they cannot be read back as they are, the run should not go on."""
    import torch

    alone = on_gpu(config)
    if not alone:
        torch.set_num_threads(1)
    if method in RIVALS:
        assert features is not None and features.pictures is not None
        folder = file.parent / rival_folder(method, config, features.pictures)
        result = run_rival(method, features.pictures, config, folder, draw, progress=alone)
    else:
        result = run_method(method, drawn, config)
    with replacing(file) as partial:
        partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    again: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return method, again


def on_gpu(config: RunConfig) -> bool:
    """Return whether a run with these settings would use a GPU here."""
    import torch

    return config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())


def _explanation(learner: FewShotLearner | ViewLearner, class_names: list[str]) -> dict[str, Any] | None:
    try:
        explanation = learner.explain()
    except ValueError:
        return None
    heads = list(dict.fromkeys(row[1] for row in explanation.models.rows))
    shares = np.array([row[2] for row in explanation.models.rows]).reshape(-1, len(heads))
    return {
        "heads": heads,
        "classes": [class_names[int(c)] for c in learner.classes],
        "means": [list(row) for row in explanation.means.rows],
        "shares": shares.round(5).tolist(),
    }


def _fingerprint(features: Features, settings: dict[str, Any]) -> str:
    """Return what stands for the arrays that a method sees, and for its settings."""
    digest = hashlib.sha256()
    digest.update(json.dumps([features.sessions, features.class_names, settings]).encode())
    heads = features.head if isinstance(features.head, list) else [features.head]
    arrays = [features.memory, features.memory_labels, features.prototypes]
    arrays += [array for head in heads for array in (head if isinstance(head, tuple) else (head.weight,))]
    arrays += [features.test, features.test_labels, *(part for pair in features.train for part in pair)]
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:12]
