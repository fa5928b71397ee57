"""The learner of the paper's section 3.4: a frozen backbone, one head a session, a fuser on top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from faverage.afa.explain import Explanation
from faverage.deprecation import renamed
from faverage.fscil.fusers import ALONE, check_fuser, explain_fuser, most_probable, new_fuser
from faverage.fscil.heads import (
    CosineHead,
    PrototypeHead,
    Scorer,
    as_head,
    calibrated,
    fit_head,
    learn_temperature,
    scores_by,
    unit,
)
from faverage.fscil.images import ImageBackbone, as_backbone
from faverage.fscil.rehearsal import Memory, Rehearsal, Rehearsed
from faverage.fusion import Fuser
from faverage.fusion.align import Padding

if TYPE_CHECKING:
    from faverage.vision import BaseModel

__all__ = ["FewShotLearner"]

Array = NDArray[Any]

STEEPEST = 1e9
MOST_STAND_INS = 100_000


class FewShotLearner:
    """Learns base classes once, then new classes from a few examples at a time, without forgetting.

    The base session has the linear head of the backbone. Every later session adds a head of nearest prototypes for all
    classes seen so far. A fuser, trained on rehearsed features, turns the heads' scores into one prediction.

    Args:
        backbone: None: X are features. Otherwise X are images, uint8 ``(n, S, S, 3)``, and this is a name of
            ``faverage.vision.backbone_names`` (``fit_base`` trains it), a module or a ``BaseModel`` (used as they
            are), or any function from X to features ``(n, d)``.
        fuser: ``afa`` (one weight a class, trained by gradient steps), ``afa-paper`` (full matrices and rehearsal of
            the shots, the paper to the letter), ``prototypes`` (the last head alone), ``no-fine-tuning`` (the base head
            alone), any fuser of ``faverage.fusion`` by name, or a fuser.
        fuser_options: options of the fuser.
        rehearsal: ``residual``, ``shots`` or ``left-out``, see ``faverage.fscil.rehearsal``; by default residual, but
            shots for ``afa-paper``.
        stand_ins: drawn examples of each new class, with ``residual``.
        spread: how wide they lie around their prototype, in units of base classes.
        balance: how much a new class's example counts in rehearsal: above 1, new classes are found more often, and base
            classes less.
        calibration: share in which prototypes of new classes are drawn towards similar base classes.
        temperature: τ of the prototype heads; None learns it on the held-out base features.
        padding: how heads are padded with classes that they do not know, for fusers that take no gaps.
        threshold: t of the padding ``inlierness``.
        scope: ``all``: a session's head knows all classes so far; ``session``: only its own.
        hold_out: features of each base class kept for rehearsal, at most, and never more than a sixth of the class.
        training: options of ``faverage.vision.train_base``, for a backbone given by name.
        device: where the backbone works: ``auto``, ``cpu``, ``cuda``.
        seed: of everything that is drawn.
        draws: ``stand_ins`` under its old name.

    >>> rng = np.random.default_rng(0)
    >>> centres = rng.normal(size=(4, 16)) * 3
    >>> def examples(classes, n):
    ...     y = np.repeat(classes, n)
    ...     return np.abs(centres[y] + rng.normal(size=(len(y), 16))), y
    >>> learner = FewShotLearner(fuser="afa").fit_base(*examples([0, 1], 60))
    >>> learner = learner.learn_session(*examples([2, 3], 5))
    >>> X, y = examples([0, 1, 2, 3], 25)
    >>> bool((learner.predict(X) == y).mean() > 0.8)
    True
    """

    def __init__(
        self,
        backbone: str | Callable[[Any], Any] | BaseModel | None = None,
        fuser: str | Fuser = "afa",
        *,
        fuser_options: dict[str, Any] | None = None,
        rehearsal: Rehearsal | None = None,
        stand_ins: int = 50,
        spread: float = 1.0,
        balance: float = 1.0,
        calibration: float = 0.0,
        temperature: float | None = None,
        padding: Padding = "inlierness",
        threshold: float = 0.5,
        scope: Literal["all", "session"] = "all",
        hold_out: int = 20,
        training: dict[str, Any] | None = None,
        device: str = "auto",
        seed: int = 0,
        draws: int | None = None,
    ) -> None:
        if draws is not None:
            renamed("draws", "stand_ins")
            stand_ins = draws
        check_fuser(fuser)
        _check_options(rehearsal, scope, temperature, stand_ins, hold_out)
        _check_shares(spread=spread, balance=balance, calibration=calibration)
        self.training, self.device = dict(training or {}), device
        self.backbone = as_backbone(backbone, self.training, device)
        self.fuser, self.fuser_options = fuser, dict(fuser_options or {})
        self.rehearsal, self.stand_ins, self.temperature = rehearsal, stand_ins, temperature
        self.spread, self.balance, self.calibration = spread, balance, calibration
        self.padding: Padding = padding
        self.threshold, self.scope, self.hold_out, self.seed = threshold, scope, hold_out, seed
        self.classes: list[Any] = []
        self.sessions: list[list[Any]] = []
        self.heads: list[Scorer] = []
        self.fitted: Fuser | None = None

    @property
    def draws(self) -> int:
        """``stand_ins`` under its old name."""
        renamed("draws", "stand_ins")
        return self.stand_ins

    def fit_base(
        self,
        X: ArrayLike,
        y: Sequence[Any] | Array,
        *,
        head: tuple[ArrayLike, ArrayLike] | CosineHead | None = None,
        prototypes: ArrayLike | None = None,
    ) -> Self:
        """Learn the base classes.

        Args:
            X: images, or features ``(n, d)`` without a backbone.
            y: labels of any type.
            head: W ``(C, d)`` and b ``(C,)`` of a linear head for the sorted classes, or a ``CosineHead``; by default a
                linear one is fitted.
            prototypes: ``(C, d)``, means of normalised features of the sorted classes. X is then the memory: features
                that neither head nor prototypes were made from.
        """
        labels, n = np.asarray(y), len(np.asarray(X))
        classes, numbers = np.unique(labels, return_inverse=True)
        if n != len(labels) or len(classes) < 2:
            raise ValueError(
                f"fit_base needs one label for each of the {n} examples and at least two classes, "
                f"got {len(labels)} labels of {len(classes)} classes"
            )
        kept = np.ones(n, dtype=bool)
        if prototypes is None:
            from faverage.vision import hold_out

            kept = np.isin(np.arange(n), hold_out(numbers, per_class=self.hold_out, small="drawn", seed=self.seed))
        if isinstance(self.backbone, ImageBackbone) and self.backbone.name is not None:
            if head is not None or prototypes is not None:
                raise ValueError("a backbone given by name is trained here and brings its own head and prototypes")
            head = self.backbone.fit(np.asarray(X), numbers, np.flatnonzero(~kept), self.seed)
        features = self._features(X, fresh=True)
        rest = ~kept if prototypes is None else kept
        if prototypes is None:
            means = np.stack([unit(features[rest & (numbers == c)]).mean(0) for c in range(len(classes))])
        else:
            means = np.asarray(prototypes, dtype=features.dtype)
        linear = fit_head(features[rest], numbers[rest], len(classes)) if head is None else as_head(head)
        if means.shape != (len(classes), features.shape[1]) or linear.weight.shape != means.shape:
            raise ValueError(
                f"head and prototypes must have {len(classes)} rows of {features.shape[1]} numbers, one a class, got "
                f"{linear.weight.shape} and {means.shape}"
            )
        memory = Memory.of_base(features[kept], numbers[kept], means)
        self.classes, self.sessions = classes.tolist(), [classes.tolist()]
        self.heads, self.memory, self.prototypes = [linear], memory, means
        self.tau = self.temperature or learn_temperature(PrototypeHead(means, 16.0), memory.base, memory.base_labels)
        self.fitted = None
        return self

    def learn_session(self, X: ArrayLike, y: Sequence[Any] | Array) -> Self:
        """Learn new classes from a few examples of each; any number of classes and of shots."""
        if not self.classes:
            raise ValueError("learn_session needs the base classes: call fit_base(X, y) first")
        features, labels = self._features(X), np.asarray(y)
        new = _check_session(self.classes, len(features), labels)
        self._add_session({label: features[labels == label] for label in new})
        self.fitted = self._fit_fuser()
        return self

    def forget(self, label: Any) -> Self:
        """Forget a class that a session brought: the learner is then as if it had never learned it.

        Every later session is learned again from its shots; base classes are part of the backbone and stay.
        """
        from faverage.fscil.relearn import check_forgettable, relearn, shots_of

        check_forgettable(self, label)
        sessions = [{name: x for name, x in session.items() if name != label} for session in shots_of(self)]
        self.__dict__.update(vars(relearn(self, sessions)))
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return probabilities ``(n, N)`` of all classes seen so far, in the order of ``classes``."""
        if not self.classes:
            raise ValueError("the learner knows no classes yet: call fit_base(X, y) first")
        return self.fuse(self.head_scores(X))

    def fuse(self, scores: Array) -> Array:
        """Return probabilities ``(n, N)`` of what ``head_scores`` gave."""
        if len(self.heads) == 1:
            return scores[:, 0]
        if self.fuser == "prototypes":
            return np.nan_to_num(scores[:, -1])
        if self.fuser == "no-fine-tuning":
            return np.nan_to_num(scores[:, 0])
        assert self.fitted is not None
        return self.fitted.predict_proba(scores)

    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable label ``(n,)``."""
        return most_probable(self.predict_proba(X), self.classes)

    def head_scores(self, X: ArrayLike) -> Array:
        """Return what each head says: ``(n, K, N)``, NaN for classes that came after it (or before, by scope)."""
        return self.scores_of(self._features(X))

    def explain(self) -> Explanation:
        """Return which head is trusted for which class, and with which mean."""
        models = ["base", *(f"session {k}" for k in range(1, len(self.heads)))]
        return explain_fuser(self.fitted, models, self.classes)

    def save(self, folder: str | Path) -> Path:
        """Write the learner to a folder, with a backbone that was given by name or as a ``BaseModel``."""
        from faverage.fscil.files import save_learner

        return save_learner(self, Path(folder))

    @classmethod
    def load(
        cls, folder: str | Path, backbone: Callable[[Any], Any] | None = None, *, device: str = "auto"
    ) -> FewShotLearner:
        """Read a learner that ``save`` wrote; a backbone that is a module or a function must be given again."""
        from faverage.fscil.files import load_learner

        return load_learner(Path(folder), backbone, device)

    def _add_session(self, shots: dict[Any, Array]) -> None:
        """Take in the features of new classes, by label, and add their head; the fuser is not fitted."""
        first = len(self.classes)
        means = np.stack([unit(features).mean(0) for features in shots.values()])
        means = calibrated(means, self.prototypes[: len(self.sessions[0])], share=self.calibration)
        self.memory.shots.update({first + i: features for i, features in enumerate(shots.values())})
        self.prototypes = np.concatenate([self.prototypes, means])
        self.classes, self.sessions = [*self.classes, *shots], [*self.sessions, list(shots)]
        start = 0 if self.scope == "all" else first
        self.heads = [*self.heads, PrototypeHead(self.prototypes[start:], self.tau, start)]

    def rehearse(self, rehearsal: Rehearsal | None = None) -> tuple[Array, Array, Array]:
        """Return scores ``(n, K, N)``, labels and weights that a fuser of this session learns from.

        Args:
            rehearsal: where the learner has none of its own.
        """
        found = self.rehearsed(rehearsal)
        return self.scores_of(found.features, own=(found.labels, found.own)), found.labels, found.weight

    def rehearsed(self, rehearsal: Rehearsal | None = None) -> Rehearsed:
        """Return what ``rehearse`` scores."""
        rng = np.random.default_rng([self.seed, len(self.heads)])
        options: dict[str, Any] = {"spread": self.spread, "balance": self.balance}
        kind = self.rehearsal or rehearsal or "residual"
        found = self.memory.rehearse(kind, self.prototypes, self.stand_ins, rng, **options)
        base = self.prototypes[: len(self.sessions[0])]
        return replace(found, own=calibrated(found.own, base, share=self.calibration))

    def _fit_fuser(self) -> Fuser | None:
        if self.fuser in ALONE:
            return None
        padding = {"padding": self.padding, "threshold": self.threshold}
        fuser, rehearsal = new_fuser(self.fuser, self.fitted, self.fuser_options, **padding)
        if fuser.trains:
            fuser.fit(*self.rehearse(rehearsal))
        return fuser

    def scores_of(
        self, features: Array, heads: Sequence[Scorer] | None = None, own: tuple[Array, Array] | None = None
    ) -> Array:
        """Return what heads say of features: ``(n, K, N)``, NaN for classes that a head does not know.

        Args:
            features: ``(n, d)``.
            heads: by default all.
            own: see ``PrototypeHead.scores``.
        """
        return scores_by(self.heads if heads is None else heads, features, len(self.classes), own)

    def _features(self, X: ArrayLike, *, fresh: bool = False) -> Array:
        features = np.asarray(X if self.backbone is None else self.backbone(X))
        if features.ndim != 2:
            raise ValueError(f"features must have shape (n, d), got {features.shape}; images need a backbone")
        features = features.astype(np.float32, copy=False)
        if not np.isfinite(features).all():
            raise ValueError("features must be finite")
        if self.heads and not fresh and features.shape[1] != self.prototypes.shape[1]:
            raise ValueError(f"features must have {self.prototypes.shape[1]} columns, got {features.shape[1]}")
        return features


def _check_options(rehearsal: Any, scope: Any, temperature: float | None, stand_ins: int, hold_out: int) -> None:
    """Raise ValueError where an option of a learner cannot be."""
    if rehearsal not in (None, "residual", "shots", "left-out"):
        raise ValueError(f"rehearsal must be 'residual', 'shots' or 'left-out', got {rehearsal!r}")
    if scope not in ("all", "session"):
        raise ValueError(f"scope must be 'all' or 'session', got {scope!r}")
    if temperature is not None:
        check_steepness("temperature", temperature)
    if stand_ins < 1 or hold_out < 1:
        raise ValueError(f"stand_ins and hold_out must be at least 1, got {stand_ins!r} and {hold_out!r}")
    if stand_ins > MOST_STAND_INS:
        raise ValueError(f"stand_ins must be at most {MOST_STAND_INS:,}, got {stand_ins!r}")


def check_steepness(name: str, value: float) -> None:
    """Raise ValueError unless a number can stand before distances or cosines in a softmax."""
    if not 0 < value <= STEEPEST:
        raise ValueError(f"{name} must be a finite number > 0 (at most {STEEPEST:g}), got {value!r}")


def _check_shares(*, spread: float, balance: float, calibration: float) -> None:
    """Raise ValueError where a number of the rehearsal, or the share of calibration, is out of its range."""
    for name, value, least, most in (
        ("spread", spread, 0.0, np.inf),
        ("balance", balance, 1e-6, np.inf),
        ("calibration", calibration, 0.0, 1.0),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} must lie in {least:g} … {most:g}, got {value!r}")


def _check_session(known: Sequence[Any], n: int, labels: Array) -> list[Any]:
    """Return the classes that a session of ``n`` examples brings; ValueError unless all are new."""
    if n != len(labels) or n == 0:
        raise ValueError(f"learn_session got {n} examples and {len(labels)} labels")
    new = list(dict.fromkeys(labels.tolist()))
    for label in new:
        if label in known:
            raise ValueError(f"class {label!r} is known already; a session brings new classes only")
    return new
