"""Fusers in a run: a learner with each of them goes through all sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from faverage.experiment.results import IN_PAPER
from faverage.features import FeatureSet
from faverage.fscil import Cascade, FewShotLearner
from faverage.fscil.cascade import sureness
from faverage.fscil.metrics import Outcome, session_metrics
from faverage.vision.views import passes

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig

__all__ = ["learner_of", "run_method"]

_BALANCES = (0.25, 0.5, 1.0, 1.5, 2.5, 4.0, 6.0)
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)  # of images that all views look at


def run_method(method: str, features: FeatureSet, config: RunConfig, *, trade: bool = False) -> dict[str, Any]:
    """Take one fuser through all sessions; return its metrics, and what it learned, as plain data.

    Args:
        method: name of a fuser, or of a head alone: ``prototypes``, ``no-fine-tuning``.
        features: what it sees.
        config: settings of the learner.
        trade: for ``afa``, whether to add the metrics after the last session by ``balance``, and those of a cascade by
            passes, where there are several.

    Returns:
        ``sessions``, the metrics after each; ``summary``, those of all together; ``confusion``, ``history``, ``chosen``
        and ``explanation``, what was learned; ``base``, how long the base session took.

    >>> import tempfile
    >>> from faverage.experiment import RunConfig
    >>> x = np.eye(3)  # features of three classes; the third one comes after the base session
    >>> arrays = {"base_memory": x[[0, 1] * 5], "base_memory_labels": [0, 1] * 5, "base_prototypes": x[:2]}
    >>> arrays |= {"base_head_weight": x[:2], "base_head_bias": np.zeros(2)}
    >>> arrays |= {"novel": x[[2] * 5], "novel_labels": [2] * 5, "test": x, "test_labels": [0, 1, 2]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/features.npz", **arrays)
    ...     features = FeatureSet.load(f"{folder}/features.npz")
    >>> result = run_method("geometric", features, RunConfig())
    >>> [session["accuracy"] for session in result["sessions"]], result["summary"]["forgetting"]
    ([1.0, 1.0], 0.0)
    """
    learner = learner_of(method, config)
    start = time.perf_counter()
    learner.fit_base(*features.lesson(features.memory), **features.base_parts)
    base = {"seconds": time.perf_counter() - start}
    outcome = Outcome(features.sessions)
    test, labels = features.examples(features.test)
    looked = learner.known.looked(test)  # in every session alike
    for k in range(len(features.sessions)):
        start = time.perf_counter()
        if k > 0:
            learner.learn_session(*features.lesson(features.shots[k - 1]))
        learned = time.perf_counter()
        seen = np.isin(labels, np.concatenate(features.sessions[: k + 1]))
        asked = looked.rows(seen)
        said = learner.predict(asked)
        outcome.add(labels[seen], said, time.perf_counter() - start, learned - start)
    fitted = getattr(learner.fitted, "history", None)
    stopped = _stopping(learner, asked, labels[seen], features.sessions) if trade and method == "afa" else []
    traded = _trade(learner, asked, labels[seen], features.sessions) if trade and method == "afa" else []
    return {
        **outcome.to_dict(),
        "history": fitted.to_dict() if fitted is not None else None,
        "chosen": learner.chosen() or None,
        "explanation": _explanation(learner, features.class_names),
        "base": base,
        **({"trade": traded} if traded else {}),
        **({"stopping": stopped} if stopped else {}),
    }


def learner_of(method: str, config: RunConfig) -> FewShotLearner:
    """Return the learner of a fuser in a run, before it learned anything."""
    names = ("stand_ins", "spread", "balance", "balance_of", "calibration", "temperature", "threshold", "seed")
    options: dict[str, Any] = {name: getattr(config, name) for name in names}
    by_session = config.members == "sessions" or (config.members == "paper" and method in IN_PAPER)
    return FewShotLearner(fuser=method, members="sessions" if by_session else None, **options)


def _trade(learner: FewShotLearner, test: Any, labels: Any, sessions: list[list[int]]) -> list[dict[str, float]]:
    """Return the metrics of all sessions by balance, the learner's own among them; nothing where nothing is fused."""
    found, scores, classes = [], learner.member_scores(test), np.array(learner.classes)
    for balance in sorted({*_BALANCES, float(learner.balance)}) if len(sessions) > 1 else ():
        fuser = learner.rebalanced(balance)
        if fuser is not None:
            metrics = session_metrics(labels, classes[fuser.predict_proba(scores).argmax(1)], sessions)
            found.append({"balance": balance, **{k: v for k, v in metrics.items() if isinstance(v, float)}})
    return found


def _stopping(learner: FewShotLearner, test: Any, labels: Any, sessions: list[list[int]]) -> list[dict[str, float]]:
    """Return the metrics of all sessions where only the first view looks as long as it is sure, by passes an image.

    Nothing where other views take no pass of their own.
    """
    names, classes = list(learner.known.views), np.array(learner.classes)
    first = [view for view in names if passes([names[0], view]) == passes(names[:1])]
    if len(first) == len(names):
        return []
    cascade = Cascade(learner, first)
    quick = cascade.quick.predict_proba({view: test[view] for view in first})
    all_views, sure = learner.predict_proba(test).argmax(1), sureness(quick)
    found = []
    for share in _SHARES:
        again = sure < cascade.threshold_of(share)
        metrics = session_metrics(labels, classes[np.where(again, all_views, quick.argmax(1))], sessions)
        taken = passes(first) + float(again.mean()) * (passes(names) - passes(first))
        own = {k: v for k, v in metrics.items() if isinstance(v, float)}
        found.append({"share": share, "again": float(again.mean()), "passes": taken, **own})
    return found


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
