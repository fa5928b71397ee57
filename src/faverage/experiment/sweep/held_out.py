"""The held-out loss of a run: how well its setting does on examples that are neither tests nor learned from.

A learner of the same method and settings is fitted once more, for this number alone, from fewer data:

- of the rehearsal memory, images of base classes that the backbone was not trained on, a third of each class is set
  aside, by the seed, at least one image;
- of the shots of each new class one is left out, by seed and draw.

After the last session the loss is the mean negative log-likelihood of what was set aside and left out, among all
classes: first over the examples of a class, then over classes, so that all classes count alike. A probability counts
as 1e-6 at least. A class with one image in memory, or with one shot, is learned and not scored; without any new class
to score there is no loss. Rivals have none: they train on the memory, and would have to be trained twice.

No test image is looked at, so a setting may be chosen by this loss, and its test numbers stay honest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.experiment.config import RIVAL_METHODS, RunConfig
from faverage.experiment.fusers import learner_of
from faverage.features import FeatureSet

__all__ = ["IN_WORDS", "held_out_loss"]

Array = NDArray[Any]
_LEAST = 1e-6

IN_WORDS = (
    "Held-out loss: mean negative log-likelihood after the last session, all classes alike, of a third of the "
    "rehearsal memory (base classes) and of one shot of each new class. Both were kept from a second fit of the same "
    "method with the same settings, made for this number alone. It uses no test image. Rivals have no held-out loss, "
    "since they train on the memory; they are never chosen."
)


def held_out_loss(method: str, features: FeatureSet, config: RunConfig, draw: int) -> float | None:
    """Return the held-out loss of a method, or None where it has none.

    Args:
        method: a fuser's name; None is returned for a rival.
        features: with the shots of this draw.
        config: of the run.
        draw: its number.
    """
    if method in RIVAL_METHODS:
        return None
    memory = features.memory
    aside = _set_aside(features.labels[memory], config.seed)
    sessions = [(rows, _left_out(features.labels[rows], config.seed, draw)) for rows in features.shots]
    if not any(left.any() for _, left in sessions):
        return None
    learner = learner_of(method, config)
    learner.fit_base(*features.lesson(memory[~aside]), **features.base_parts)
    for rows, left in sessions:
        learner.learn_session(*features.lesson(rows[~left]))
    held, labels = features.examples(np.concatenate([memory[aside], *(rows[left] for rows, left in sessions)]))
    return _loss(learner.predict_proba(held), labels, learner.classes)


def _set_aside(labels: Array, seed: int) -> Array:
    """Return a mask of a third of each class, at least one example where there are two."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, len(rows) // 3) if len(rows) > 1 else 0
        mask[np.random.default_rng([seed, int(label)]).permutation(rows)[:count]] = True
    return mask


def _left_out(labels: Array, seed: int, draw: int) -> Array:
    """Return a mask of one shot of each class that has two."""
    mask = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) > 1:
            mask[np.random.default_rng([seed, draw, int(label)]).choice(rows)] = True
    return mask


def _loss(probabilities: Array, labels: Array, classes: list[int]) -> float:
    """Return the mean over classes of their mean negative log-likelihood.

    >>> round(_loss(np.array([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]), np.array([7, 7, 9]), [7, 9]), 4)
    0.3466
    """
    column = {label: i for i, label in enumerate(classes)}
    own = probabilities[np.arange(len(labels)), [column[label] for label in labels.tolist()]]
    loss = -np.log(np.maximum(own, _LEAST))
    return float(np.mean([loss[labels == label].mean() for label in np.unique(labels)]))
