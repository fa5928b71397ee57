"""One run: features, every method through every session, results on disk."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.config import RunConfig
from faverage.experiment.features import Features, Progress, features_of_benchmark, features_of_file
from faverage.experiment.paper import NOTES, PAPER
from faverage.experiment.tables import write_tables
from faverage.fscil import FewShotLearner, forgetting, session_metrics
from faverage.storage import replacing

__all__ = ["run", "run_method"]

Array = NDArray[Any]


def run(config: RunConfig, out: Path, *, command: str = "", progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Carry out a run and write it to ``out``: results.json, table.md, table.tex, table.csv, report.html.

    Base training, features and every finished method are kept there; a run that was killed and is started again with
    the same settings goes on where it was and ends with the same numbers.
    """
    from joblib import Parallel, delayed

    from faverage.experiment.report import write_report

    start = time.perf_counter()
    work = out / "work" / _digest({**config.key(), "versions": _versions()})
    work.mkdir(parents=True, exist_ok=True)
    if config.features is not None:
        features = features_of_file(Path(config.features))
    else:
        features = features_of_benchmark(config, work, progress)
    progress("methods", 0, len(config.methods))
    jobs = min(config.jobs, len(config.methods))
    found = Parallel(n_jobs=jobs, return_as="generator_unordered")(
        delayed(_kept_method)(method, features, config, work) for method in config.methods
    )
    by_name: dict[str, Any] = {}
    for name, result in found:
        by_name[name] = result
        progress("methods", len(by_name), len(config.methods))
    results = {
        "dataset": config.dataset,
        "protocol": _protocol(features),
        "seed": config.seed,
        "config": config.to_dict(),
        "command": command,
        "versions": _versions(),
        "device": _device(config.device) if config.features is None else "cpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - start,
        "base": features.base,
        "methods": {name: by_name[name] for name in config.methods},
        "paper": PAPER.get(config.dataset),
        "notes": NOTES.get(config.dataset, []),
    }
    write_tables(out, results)
    with replacing(out / "report.html") as partial:
        write_report(partial, results)
    write_json(out / "results.json", results)
    return results


def run_method(method: str, features: Features, config: RunConfig) -> dict[str, Any]:
    """Take one method through all sessions; return its metrics, and what it learned, as plain data."""
    import torch

    torch.set_num_threads(1)
    learner = FewShotLearner(
        fuser=method, draws=config.draws, temperature=config.temperature, threshold=config.threshold, seed=config.seed
    )
    learner.fit_base(features.memory, features.memory_labels, head=features.head, prototypes=features.prototypes)
    history: list[dict[str, Any]] = []
    said = np.empty(0, dtype=np.int64)
    y = said
    for k in range(len(features.sessions)):
        start = time.perf_counter()
        if k > 0:
            learner.learn_session(*features.train[k - 1])
        seen = np.isin(features.test_labels, np.concatenate(features.sessions[: k + 1]))
        y, said = features.test_labels[seen], learner.predict(features.test[seen])
        history.append(session_metrics(y, said, features.sessions[: k + 1]))
        history[-1] |= {"forgetting": forgetting(history), "seconds": time.perf_counter() - start}
    fitted = getattr(learner.fitted, "history", None)
    return {
        "sessions": history,
        "confusion": _confusion(y, said, len(features.sessions[0])) if len(history) > 1 else None,
        "history": fitted.to_dict() if fitted is not None else None,
        "explanation": _explanation(learner, features.class_names),
    }


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write plain data; the file appears whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(data, indent=1) + "\n")


def _kept_method(method: str, features: Features, config: RunConfig, work: Path) -> tuple[str, dict[str, Any]]:
    """Return a method's results, from disk where an earlier run of the same settings finished it."""
    file = work / f"{method}-{_fingerprint(features)}.json"
    if not file.exists():
        write_json(file, run_method(method, features, config))
    result: dict[str, Any] = json.loads(file.read_text())
    return method, result


def _confusion(y: Array, said: Array, n_base: int) -> dict[str, dict[str, float]]:
    """Return where base and new examples go: to the right class, a wrong one of their kind, or the other kind."""
    result = {}
    for kind, rows in (("base", y < n_base), ("new", y >= n_base)):
        right = said[rows] == y[rows]
        own = (said[rows] < n_base) == (kind == "base")
        other = "new" if kind == "base" else "base"
        result[kind] = {
            "right": float(right.mean()),
            f"other {kind}": float((own & ~right).mean()),
            other: float((~own).mean()),
        }
    return result


def _explanation(learner: FewShotLearner, class_names: list[str]) -> dict[str, Any] | None:
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


def _protocol(features: Features) -> dict[str, Any]:
    n_train = [None, *(len(y) for _, y in features.train)]
    sessions = [
        {"classes": len(classes), "train": n, "test": int(np.isin(features.test_labels, classes).sum())}
        for classes, n in zip(features.sessions, n_train, strict=True)
    ]
    return {"source": features.source, "sessions": sessions, "skipped": features.skipped}


def _versions() -> dict[str, str]:
    import sklearn
    import torch

    from faverage import __version__

    return {
        "faverage": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }


def _device(wanted: str) -> str:
    import torch

    on_gpu = wanted.startswith("cuda") or (wanted == "auto" and torch.cuda.is_available())
    return torch.cuda.get_device_name() if on_gpu else "cpu"


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _fingerprint(features: Features) -> str:
    """Return what stands for the arrays that a method sees."""
    digest = hashlib.sha256()
    for array in (features.memory, features.prototypes, *features.head, features.test, *(x for x, _ in features.train)):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:12]
