"""Fusers, and every model alone, on the same held-out rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.fusion import Fuser, fuser_names, get_fuser
from faverage.fusion.align import pad
from faverage.fusion.arrays import folds_of, subsample
from faverage.prediction_files.base import Listener, UserError
from faverage.prediction_files.calibration import Calibration, calibration

__all__ = ["Comparison", "Score", "chosen_fusers", "compare", "measure", "new_fuser"]

Array = NDArray[Any]
_MOST_ROWS = 5_000  # rows that are compared, at most,
_MOST_SCORES = 1 << 21  # and how many scores they may hold
_LEAST_PROBABILITY = 1e-15  # log-loss counts smaller ones as this


@dataclass(frozen=True)
class Score:
    """How one fuser or model did on held-out rows; ``failed`` says why it did not."""

    name: str
    log_loss: float = float("nan")
    accuracy: float = float("nan")
    macro_f1: float = float("nan")
    seconds: float | None = None
    failed: str = ""


@dataclass(frozen=True)
class Comparison:
    """The scores of all fusers and models, the lowest log-loss first.

    Attributes:
        scores: one a fuser (by its name) and one a model (``model`` and its name).
        folds: how many.
        rows: how many labelled rows were looked at,
        of: and how many there are.
        calibrations: of the fuser that is fitted, if it was compared, and of each model.
    """

    scores: list[Score] = field(default_factory=list)
    folds: int = 0
    rows: int = 0
    of: int = 0
    calibrations: list[Calibration] = field(default_factory=list)

    def describe(self) -> str:
        """Say in one sentence what was measured."""
        sample = f"{self.rows:,} labelled rows"
        if self.rows < self.of:
            sample = f"a sample of {self.rows:,} of {self.of:,} labelled rows, to save time"
        return f"Held-out scores over {self.folds} folds of {sample}; lower log-loss is better."


def chosen_fusers(text: str) -> list[str]:
    """Return the fusers that ``--compare`` names: ``all``, ``none``, or names separated by commas."""
    known = fuser_names()
    if text.strip() in ("all", "none"):
        return known if text.strip() == "all" else []
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UserError(
                f"--compare has the unknown fuser '{name}'; give all, none, or some of these: {', '.join(known)}"
            )
    return names


def compare(
    names: Sequence[str],
    scores: Array,
    y: Array,
    models: Sequence[str],
    *,
    folds: int,
    seed: int,
    of: int,
    chosen: str,
    listener: Listener,
) -> Comparison:
    """Fit each fuser on all folds but one, predict that one, and score all rows together.

    Args:
        names: of the fusers.
        scores: ``(n, K, N)``, as ``sample`` chose them.
        y: labels ``(n,)``.
        models: the K names.
        folds: how many; the rows of each class are dealt to them in turn.
        seed: of the folds.
        of: how many labelled rows there are in all.
        chosen: the fuser whose probabilities are looked at more closely, with those of the models.
        listener: hears of progress.
    """
    fold = _folds(y, folds, seed)
    found, calibrations = [], []
    listener.progress("comparing fusers", 0, len(names))
    for i, name in enumerate(names):
        score, fused = _held_out(name, scores, y, fold, seed)
        found.append(score)
        if name == chosen and fused is not None:
            calibrations.append(calibration(name, fused, y))
        listener.progress("comparing fusers", i + 1, len(names))
    for k, model in enumerate(models):
        alone = pad(scores[:, k : k + 1], "uniform")[:, 0]
        found.append(Score(f"model {model}", *measure(alone, y)))
        calibrations.append(calibration(f"model {model}", alone, y))
    found.sort(key=lambda score: (bool(score.failed), score.log_loss, score.name))
    return Comparison(found, folds, len(y), of, calibrations)


def sample(y: Array, width: int, seed: int) -> Array:
    """Return which rows of ``y`` ``(n,)`` are compared: all, or as many as fit, drawn evenly from the classes."""
    most = min(_MOST_ROWS, _MOST_SCORES // width)
    return subsample(np.arange(len(y)), y, np.ones(len(y)), most, seed)[0]


def measure(probabilities: Array, y: Array) -> tuple[float, float, float]:
    """Return log-loss, accuracy and macro F1 (over the classes in ``y`` ``(n,)``) of probabilities ``(n, N)``.

    >>> measure(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 1]))
    (0.34657359027997264, 1.0, 1.0)
    """
    n_classes = probabilities.shape[1]
    chosen = probabilities[np.arange(len(y)), y].astype(np.float64)
    loss = float(-np.log(np.clip(chosen, _LEAST_PROBABILITY, 1.0)).mean())
    predicted = probabilities.argmax(1)
    hits = np.bincount(y[predicted == y], minlength=n_classes)
    true, claimed = np.bincount(y, minlength=n_classes), np.bincount(predicted, minlength=n_classes)
    f1 = 2 * hits / np.maximum(true + claimed, 1)
    return loss, float((predicted == y).mean()), float(f1[true > 0].mean())


def new_fuser(name: str, seed: int) -> Fuser:
    """Return a new fuser; those that draw random numbers get the seed."""
    fuser = get_fuser(name)
    return get_fuser(name, seed=seed) if "seed" in fuser.options() else fuser


def _held_out(name: str, scores: Array, y: Array, fold: Array, seed: int) -> tuple[Score, Array | None]:
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # slow convergence and the like show in the scores
            fused = new_fuser(name, seed).held_out(scores, y, fold)
    except Exception as error:
        return Score(name, failed=str(error) or type(error).__name__), None
    seconds = (time.perf_counter() - start) / (int(fold.max()) + 1)
    return Score(name, *measure(fused, y), seconds=seconds), fused


def _folds(y: Array, n_folds: int, seed: int) -> Array:
    """Deal the rows of each class, shuffled, to folds in turn; return each row's fold ``(n,)``."""
    order = np.random.default_rng(seed).permutation(len(y))
    fold = np.empty(len(y), dtype=np.int64)
    fold[order] = folds_of(y[order], n_folds)
    return fold
