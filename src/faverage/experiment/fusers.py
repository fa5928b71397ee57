"""Fusers in a run: a learner with each of them goes through all sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from faverage.fscil import FewShotLearner
from faverage.fscil.metrics import Outcome

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig
    from faverage.experiment.features import Features

__all__ = ["learner_of", "run_method"]


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
    options: dict[str, Any] = {"stand_ins": config.stand_ins, **{name: getattr(config, name) for name in names}}
    if config.many or widths is not None:
        return ViewLearner(config.view_names, fuser=method, widths=widths, **options)
    return FewShotLearner(fuser=method, threshold=config.threshold, **options)


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
