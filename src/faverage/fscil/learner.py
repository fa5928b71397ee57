"""The learner: a frozen backbone, small heads for every view, and a fuser on top that learns whom to trust for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from faverage.afa.explain import Explanation, explain
from faverage.deprecation import renamed
from faverage.fscil.fusers import ALONE, method_of, new_fuser
from faverage.fscil.fusers import Members as MembersKind
from faverage.fscil.heads import Array, CosineHead, LinearHead, as_head, base_heads, fit_head, unit
from faverage.fscil.images import ImageBackbone, as_backbone
from faverage.fscil.knowledge import Knowledge, Looked, Views, as_views, check_label
from faverage.fscil.members import Members
from faverage.fscil.rehearsal import BalanceOf, Rehearsal, rehearse
from faverage.fscil.unknown import Familiarity
from faverage.fscil.whitening import Whitening, whitenings
from faverage.fscil.why import Why, reasons
from faverage.fusion import Fuser, get_fuser
from faverage.fusion.align import Padding
from faverage.fusion.arrays import masked_mean, normalise

if TYPE_CHECKING:
    from faverage.vision import BaseModel

__all__ = ["FewShotLearner"]

Head = tuple[ArrayLike, ArrayLike] | LinearHead | CosineHead

STEEPEST = 1e9
MOST_STAND_INS = 100_000
KEPT_STATES = 20  # how many changes can be undone


class FewShotLearner:
    """Learns classes from a few examples at a time, without forgetting; a base session of many may come first, or not.

    X are features: an array ``(n, d)``, or one for each view of the examples, by name. With a backbone, X are images.
    Every view has two members: its base head, where there was a base session, and the nearest prototypes. One more,
    ridge regression, sees all views. A fuser, trained on rehearsed examples, each of them left out by the members that
    learned from it, turns what the members say into one prediction.

    Args:
        backbone: None: X are features. Otherwise X are images, uint8 ``(n, S, S, 3)``, and this is a name of
            ``faverage.vision.pretrained_names`` (ready to use) or ``backbone_names`` (``fit_base`` trains it), a
            module or a ``BaseModel`` (used as they are), or any function from X to features.
        fuser: ``afa``; ``afa-paper``, full matrices, a head a session and rehearsal of the shots, the paper to the
            letter; ``prototypes`` (of the first view) and ``no-fine-tuning`` (its base head), a member alone; any fuser
            of ``faverage.fusion`` by name, or a fuser.
        fuser_options: options of the fuser.
        views: with a backbone: ways to look at each image, see ``faverage.vision.View``.
        members: ``views``, as above, or ``sessions``, the paper's: a base head, and for each later session a head of
            nearest prototypes; by default views, but sessions for ``afa-paper``.
        rehearsal: ``left-out``, ``residual`` or ``shots``, see ``faverage.fscil.rehearsal``; by default left-out, but
            shots for ``afa-paper``.
        stand_ins: drawn examples of a class, where rehearsal draws them.
        spread: how wide they lie around their prototype, in units of the other classes.
        balance: how much a new class counts in rehearsal against a base class, where there are any: the higher, the
            more often new classes are found, and base classes less.
        balance_of: ``classes``, as above, or ``kinds``: how much all new classes together count against all base
            classes together, so that early sessions, with few new classes, find them as often as late ones do.
        calibration: share in which prototypes of new classes are drawn towards similar base classes.
        temperature: τ of the prototypes; None learns it.
        ridge: penalty of the ridge regression; None: there is no such member.
        whiten: shrinkage with which prototypes and ridge regression see features whitened by their covariance within
            base classes, see ``Whitening``: 0.9 is good for features of photos. None, or base classes with fewer than
            100 examples more than classes: they see them as they are.
        padding: how members are padded with classes that they do not know, for fusers that take no gaps.
        threshold: t of the padding ``inlierness``.
        scope: of the members ``sessions``: ``all``: a session's head knows all classes so far; ``session``: its own.
        hold_out: features of each base class kept for rehearsal, at most, and never more than a sixth of the class.
        training: options of ``faverage.vision.train_base``, for a backbone given by name.
        device: where the backbone works: ``auto``, ``cpu``, ``cuda``.
        seed: of everything that is drawn.
        draws: ``stand_ins`` under its old name.

    Attributes:
        known: classes and examples, see ``faverage.fscil.knowledge``.
        members: the heads, see ``faverage.fscil.members``.
        fitted: the fuser; None where there is nothing to fuse: until something is taught, base heads answer alone.

    >>> rng = np.random.default_rng(0)
    >>> centres = rng.normal(size=(4, 16)) * 3
    >>> def examples(classes, n):
    ...     y = np.repeat(classes, n)
    ...     return np.abs(centres[y] + rng.normal(size=(len(y), 16))), y
    >>> learner = FewShotLearner().learn_session(*examples([0, 1], 5))  # from nothing
    >>> learner = learner.learn_session(*examples([2, 3], 5))
    >>> X, y = examples([0, 1, 2, 3], 25)
    >>> bool((learner.predict(X) == y).mean() > 0.8), learner.members.names
    (True, ['prototypes', 'ridge'])
    >>> learner = FewShotLearner().fit_base(*examples([0, 1], 60)).learn_session(*examples([2, 3], 5))
    >>> bool((learner.predict(X) == y).mean() > 0.8), learner.members.names
    (True, ['base head', 'prototypes', 'ridge'])
    """

    def __init__(
        self,
        backbone: str | Callable[[Any], Any] | BaseModel | None = None,
        fuser: str | Fuser = "afa",
        *,
        fuser_options: dict[str, Any] | None = None,
        views: Sequence[str] = ("plain",),
        members: MembersKind | None = None,
        rehearsal: Rehearsal | None = None,
        stand_ins: int = 50,
        spread: float = 1.0,
        balance: float = 1.5,
        balance_of: BalanceOf = "classes",
        calibration: float = 0.0,
        temperature: float | None = None,
        ridge: float | None = 0.1,
        whiten: float | None = None,
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
        self.training, self.device, self.views = dict(training or {}), device, tuple(views)
        self.fuser, self.fuser_options = fuser, dict(fuser_options or {})
        self.members_kind, self.rehearsal, self.stand_ins = members, rehearsal, stand_ins
        self.spread, self.balance, self.balance_of, self.calibration = spread, balance, balance_of, calibration
        self.temperature, self.ridge, self.whiten = temperature, ridge, whiten
        self.padding: Padding = padding
        self.threshold, self.scope, self.hold_out, self.seed = threshold, scope, hold_out, seed
        _check_options(self)
        self.backbone = as_backbone(backbone, self.training, device, self.views)
        self._state: _State | None = None
        self._past: list[tuple[_State | None, Callable[[Any], Any] | None]] = []

    # What is known ----------------------------------------------------------------------------------------------------

    @property
    def known(self) -> Knowledge:
        """Classes and examples; ValueError before the first."""
        return self._need("the learner knows no class yet").known

    @property
    def members(self) -> Members:
        """The heads; ValueError before the first class."""
        return self._need("there are no members yet").members

    @property
    def fitted(self) -> Fuser | None:
        """The fuser; None where there is nothing to fuse."""
        return None if self._state is None else self._state.fuser

    @property
    def classes(self) -> list[Any]:
        """Labels of all classes seen so far, in order of arrival."""
        return [] if self._state is None else list(self._state.known.classes)

    @property
    def sessions(self) -> list[list[Any]]:
        """Labels that each session brought; the first are the base classes, none where there was no base session."""
        return [] if self._state is None else self._state.known.sessions

    @property
    def draws(self) -> int:
        """``stand_ins`` under its old name."""
        renamed("draws", "stand_ins")
        return self.stand_ins

    # Learning ---------------------------------------------------------------------------------------------------------

    def fit_base(
        self,
        X: ArrayLike | Mapping[str, ArrayLike],
        y: Sequence[Any] | Array,
        *,
        head: Head | Mapping[str, Head] | None = None,
        prototypes: ArrayLike | Mapping[str, ArrayLike] | None = None,
        whitening: Mapping[str, Whitening] | None = None,
    ) -> Self:
        """Learn base classes from many examples, forgetting everything else.

        Args:
            X: images, or features ``(n, d)``, by view where there are several.
            y: labels ``(n,)`` of any type.
            head: W ``(C, d)`` and b ``(C,)`` of a linear head for the sorted classes, or a ``CosineHead``, by view
                where there are several; by default linear ones are fitted.
            prototypes: ``(C, d)``, means of normalised features of the sorted classes, likewise. X is then what was
                held out: examples that neither head nor prototypes were made from.
            whitening: with given prototypes: by view, what these are of; by default features as they are.
        """
        labels = _labels(y)
        first = next(iter(X.values()), ()) if isinstance(X, Mapping) else X
        n = len(np.atleast_1d(np.asarray(first)))
        try:
            classes, numbers = np.unique(labels, return_inverse=True)
        except TypeError:
            raise ValueError("fit_base sorts its labels: give labels of one type, such as text") from None
        if n != len(labels) or len(classes) < 2:
            raise ValueError(
                f"fit_base needs one label for each of the {n} examples and at least two classes, "
                f"got {len(labels)} labels of {len(classes)} classes; with fewer, begin with learn_session"
            )
        if whitening is not None and prototypes is None:
            raise ValueError("whitening comes with prototypes of whitened features: give both, or the option whiten")
        if self.whiten is not None and whitening is None and prototypes is not None:
            raise ValueError("to whiten, given prototypes must be of whitened features: give their whitening, too")
        kept = np.ones(n, dtype=bool)
        if prototypes is None:
            from faverage.vision import hold_out

            kept = np.isin(np.arange(n), hold_out(numbers, per_class=self.hold_out, small="drawn", seed=self.seed))
        trained: dict[str, LinearHead | CosineHead] = {}  # of views that have one
        backbone = self.backbone
        if isinstance(backbone, ImageBackbone) and backbone.name is not None:
            if head is not None or prototypes is not None:
                raise ValueError("a backbone given by name is trained here and brings its own head and prototypes")
            backbone = backbone.fit(np.asarray(X), numbers, np.flatnonzero(~kept), self.seed)
            assert backbone.model is not None
            trained = base_heads(backbone.model, self.views)
        views = as_views(X if backbone is None else backbone(X))
        rest = ~kept if prototypes is None else kept
        means = as_views(prototypes, {v: x.shape[1] for v, x in views.items()}) if prototypes is not None else {}
        counts, maps = None, dict(whitening or {})
        if prototypes is None:
            if self.whiten is not None:
                maps = whitenings({view: x[rest] for view, x in views.items()}, numbers[rest], self.whiten)
            for view, x in views.items():
                x = maps[view](x) if maps else x
                means[view] = np.stack([unit(x[rest & (numbers == c)]).mean(0) for c in range(len(classes))])
            counts = np.bincount(numbers[rest], minlength=len(classes))
        heads = trained or _heads_by_view(head, views)
        for view, x in views.items():
            if view not in heads:
                heads[view] = fit_head(x[rest], numbers[rest], len(classes))
        held_out = {view: x[kept] for view, x in views.items()}
        self._change(Knowledge.of_base(classes.tolist(), held_out, numbers[kept], means, heads, counts, maps))
        self.backbone = backbone
        return self

    def learn_session(self, X: ArrayLike | Mapping[str, ArrayLike], y: Sequence[Any] | Array) -> Self:
        """Learn new classes from a few examples of each, or known ones from more: any number of classes and of shots.

        No base session is needed: a learner may begin here. X are images, or features ``(n, d)``, y labels ``(n,)``.
        """
        labels = _labels(y)
        if len(labels) == 0:
            raise ValueError("learn_session got no examples: give at least one of each class")
        views = self.features(X)
        n = len(next(iter(views.values())))
        if n != len(labels):
            raise ValueError(f"learn_session got {n} examples and {len(labels)} labels")
        known = Knowledge.empty({v: x.shape[1] for v, x in views.items()}) if self._state is None else self._state.known
        self._change(known.taught(views, labels.tolist()))
        return self

    def forget(self, label: Any) -> Self:
        """Forget a class, as if it had never been learned; only a backbone that was trained on it still knows it."""
        self._change(self._need("there is nothing to forget").known.without(label))
        return self

    def rename(self, label: Any, new: Any) -> Self:
        """Give a class another label."""
        self._change(self._need("there is nothing to rename").known.renamed(label, new), refit=False)
        return self

    def undo(self) -> Self:
        """Go back to what was before the last change: a session, a base session, forget, rename or merge."""
        if not self._past:
            raise ValueError("there is nothing to undo")
        self._state, self.backbone = self._past.pop()
        return self

    def merge(self, other: FewShotLearner) -> Self:
        """Learn all that another learner knows, from its features alone; a class that both know becomes one.

        Both must have the same backbone and views, since their features are put side by side; learners with different
        backbones are joined by ``faverage.fscil.join``.
        """
        if other._state is None:
            raise ValueError("the other learner knows no class yet: there is nothing to merge")
        _check_backbones(self, other)
        mine = Knowledge.empty(other.known.widths) if self._state is None else self._state.known
        self._change(mine.merged(other.known))
        return self

    def of_views(self, names: Sequence[str]) -> FewShotLearner:
        """Return a learner of features that knows the same of some views alone; its fuser is fitted to these."""
        other = copy(self)
        other.backbone, other.training, other.views, other._state, other._past = None, {}, ("plain",), None, []
        other._state = _State.of(other, self._need("there are no views yet").known.of_views(names))
        return other

    def _change(self, known: Knowledge, *, refit: bool = True) -> None:
        """Replace what is known, and fit everything that follows from it; a failure changes nothing."""
        if refit or self._state is None:
            new = _State.of(self, known)
        else:
            new = self._state._replace(known=known, members=self._state.members.of(known))
        self._past = [*self._past[1 - KEPT_STATES :], (self._state, self.backbone)]
        self._state = new

    # Answers ----------------------------------------------------------------------------------------------------------

    def predict_proba(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Return probabilities ``(n, N)`` of all classes seen so far, in the order of ``classes``."""
        return self.fuse(self.member_scores(X))

    def predict(self, X: ArrayLike | Mapping[str, ArrayLike], *, unknown: float | None = None) -> Array:
        """Return the most probable label ``(n,)``.

        Args:
            X: images or features.
            unknown: answer None where no class fits; it is the share of examples of known classes that may be answered
                so, as 0.05. ``familiarity`` returns the number behind it.
        """
        state = self._need("the learner knows no class yet")
        if unknown is not None and not 0 < unknown < 1:
            raise ValueError(f"unknown must be a rate between 0 and 1, such as 0.05, got {unknown!r}")
        views = self._look(X)
        found = self.labels_of(self.fuse(self.scores_of(views)).argmax(1))
        if unknown is None:
            return found
        found = found.astype(object)
        found[state.familiarity.of(views) <= unknown] = None
        return found

    def labels_of(self, numbers: Array) -> Array:
        """Return labels by numbers of classes ``(n,)``: as numpy would hold all, of several types as they are."""
        classes = self.classes
        labels = np.empty(len(classes), dtype=object)
        labels[:] = classes
        found: Array = labels[numbers]
        return found.astype(np.array(classes).dtype) if len(set(map(type, classes))) == 1 else found

    def familiarity(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Return for each example ``(n,)`` how usual it would be for a known class: a p-value, see ``fscil.unknown``.

        A share of at most a of the examples of known classes has a familiarity of at most a.
        """
        return self._need("no class is known yet").familiarity.of(self._look(X))

    def usualness(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Return the number ``(n,)`` that ``familiarity`` ranks: about 0 for known classes, lower for unknown ones."""
        return self._need("no class is known yet").familiarity.usualness(self._look(X))

    def why(self, X: ArrayLike | Mapping[str, ArrayLike], *, neighbours: int = 5) -> list[Why]:
        """Return for each example, of features ``(n, d)`` or images, why it has its answer; see ``fscil.why``."""
        state = self._need("no class is known yet")
        views = self._look(X)
        fused = self.fuse(state.members.scores(views))
        return reasons(state.members, state.fuser, views, fused, state.familiarity.of(views), neighbours)

    def member_scores(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Return what each member says: ``(n, K, N)``, NaN for classes that it does not know."""
        return self.scores_of(self._look(X))

    def head_scores(self, X: ArrayLike) -> Array:
        """``member_scores``, ``(n, K, N)``, under its old name."""
        renamed("head_scores", "member_scores")
        return self.member_scores(X)

    def features(self, X: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Return the features ``(n, d_v)`` of examples, by view."""
        like = None if self._state is None else self._state.known.widths
        return as_views(X if self.backbone is None else self.backbone(X), like)

    def _look(self, X: ArrayLike | Mapping[str, ArrayLike]) -> Looked:
        """Return the same, with what prototypes see of them; where that was done before, as it is."""
        known = self._need("the learner knows no class yet").known
        return X if isinstance(X, Looked) else known.looked(self.features(X))

    def scores_of(self, views: Views, left_out: tuple[Array, Array] | None = None) -> Array:
        """Return what the members say of features ``(n, d_v)``, by view: ``(n, K, N)``; see ``Members.scores``."""
        return self.members.scores(views, left_out)

    def fuse(self, scores: Array) -> Array:
        """Return probabilities ``(n, N)`` of scores ``(n, K, N)``, as ``member_scores`` gives them."""
        state = self._need("the learner knows no class yet")
        return _fuse(scores, self.fuser, state.members, state.fuser)

    def explain(self) -> Explanation:
        """Return which member is trusted for which class, and with which mean."""
        fitted, names = self.fitted, self.members.names
        network = getattr(fitted, "network", None)
        if network is not None and hasattr(network, "branches"):
            return explain(network, models=names, classes=self.classes)
        if fitted is not None and hasattr(fitted, "explain"):
            explanation: Explanation = fitted.explain(models=names, classes=self.classes)
            return explanation
        raise ValueError("explain needs several members and a fuser with weights to read: 'afa' or 'afa-paper'")

    def rebalanced(self, balance: float) -> Fuser | None:
        """Return the fuser as it would be with another ``balance``: fitted again to the same rehearsed examples.

        The learner stays as it is. None where there is nothing to fuse.
        """
        other = copy(self)
        other.balance = balance
        _check_options(other)
        return None if self.fitted is None else _State._fit(other, self.members)

    def chosen(self) -> dict[str, float]:
        """Return which networks ``afa`` chose, with their shares; empty for other fusers."""
        found = getattr(self.fitted, "weights", None)
        return dict(found) if isinstance(found, dict) else {}

    # Files ------------------------------------------------------------------------------------------------------------

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

    def _need(self, what: str) -> _State:
        if self._state is None:
            raise ValueError(f"{what}: call learn_session(X, y), or fit_base(X, y) first")
        return self._state


class _State(NamedTuple):
    """A learner between two changes: nothing in it is ever changed."""

    known: Knowledge
    members: Members
    fuser: Fuser | None
    familiarity: Familiarity

    @classmethod
    def of(cls, learner: FewShotLearner, known: Knowledge, fuser: Fuser | None = None) -> _State | None:
        """Return what follows from a knowledge; None where that is of no class.

        Args:
            learner: for its options.
            known: classes and examples.
            fuser: of exactly these, as read from a file; by default it is fitted.
        """
        if not known.classes:
            return None
        method = method_of(learner.fuser)
        members = Members(
            known,
            "views" if learner.fuser in ALONE else learner.members_kind or method.members,
            calibration=learner.calibration,
            temperature=learner.temperature,
            ridge=None if learner.fuser in ALONE else learner.ridge,
            scope=learner.scope,
        )
        if learner.fuser in ALONE:
            members.place("base" if learner.fuser == ALONE[0] else "prototypes")  # whether it is there
        elif fuser is None and len(members.members) > 1 and (known.shot.any() or not known.heads):
            fuser = cls._fit(learner, members)
        name = learner.fuser
        return cls(known, members, fuser, Familiarity(members, lambda scores: _fuse(scores, name, members, fuser)))

    @staticmethod
    def _fit(learner: FewShotLearner, members: Members) -> Fuser | None:
        padding = {"padding": learner.padding, "threshold": learner.threshold}
        fuser = new_fuser(learner.fuser, learner.fitted, learner.fuser_options, **padding)
        if not fuser.trains:
            return fuser
        rehearsed = rehearse(
            members.known,
            learner.rehearsal or method_of(learner.fuser).rehearsal,
            members.prototypes,
            np.random.default_rng([learner.seed, members.n_classes]),
            stand_ins=learner.stand_ins,
            spread=learner.spread,
            balance=learner.balance,
            balance_of=learner.balance_of,
        )
        if len(np.unique(rehearsed.labels)) < 2:
            return None  # too little to learn from: all members count alike
        scores = members.scores(rehearsed.views, (rehearsed.left_out, rehearsed.labels))
        fuser.fit(scores, rehearsed.labels, rehearsed.weight)
        fuser.forget_rows()
        return fuser


def _fuse(scores: Array, method: str | Fuser, members: Members, fuser: Fuser | None) -> Array:
    """Return probabilities ``(n, N)`` of what members say, ``(n, K, N)``."""
    if method in ALONE:
        return np.nan_to_num(scores[:, members.place("base" if method == ALONE[0] else "prototypes")])
    if fuser is not None:
        return fuser.predict_proba(scores)
    if members.known.heads and not members.known.shot.any():  # as long as nothing was taught, base heads answer alone
        scores = scores[:, [member.kind == "base" for member in members.members]]
    return normalise(masked_mean(scores.astype(np.float64)))


def _labels(y: Any) -> Array:
    """Return labels ``(n,)`` as they are, also those of several types; ValueError where they are none."""
    labels = np.asarray(y)
    if labels.dtype.kind in "US" and isinstance(y, list | tuple) and not all(isinstance(one, str) for one in y):
        labels = np.array(y, dtype=object)  # numpy would have made texts of numbers
    if labels.ndim != 1:
        raise ValueError(f"y must be a list of labels, one an example, got an array of shape {labels.shape}")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError("y has labels that are NaN: give every example the label of its class")
    if labels.dtype == object:
        for label in labels:
            check_label(label)
    return labels


def _heads_by_view(head: Any, views: Views) -> dict[str, LinearHead | CosineHead]:
    """Return the given base heads by view; none where None is given."""
    if head is None:
        return {}
    given = head if isinstance(head, Mapping) else {next(iter(views)): head}
    if set(given) != set(views):
        raise ValueError(f"head must have one head for each of the views {', '.join(views)}, got {', '.join(given)}")
    return {view: as_head(given[view]) for view in views}


def _check_backbones(one: FewShotLearner, other: FewShotLearner) -> None:
    """Raise ValueError where two learners see with different backbones."""
    first, second = one.backbone, other.backbone
    if (first is None) != (second is None):
        raise ValueError("one learner takes features and the other images: merge learners of the same kind")
    if isinstance(first, ImageBackbone) and isinstance(second, ImageBackbone):
        if not first.same(second):
            raise ValueError(
                "the learners have different backbones, so their features do not compare: join them by label, with "
                "faverage.fscil.join"
            )
    elif first is not second:
        raise ValueError("the learners have different backbones: give both the same object, or join them by label")


def _check_options(learner: FewShotLearner) -> None:
    """Raise ValueError where an option of a learner is none of its words, or out of its range."""
    if learner.fuser not in ALONE:
        get_fuser(method_of(learner.fuser).fuser)  # whether there is one
    if learner.rehearsal not in (None, "residual", "shots", "left-out"):
        raise ValueError(f"rehearsal must be 'residual', 'shots' or 'left-out', got {learner.rehearsal!r}")
    if learner.scope not in ("all", "session"):
        raise ValueError(f"scope must be 'all' or 'session', got {learner.scope!r}")
    if learner.members_kind not in (None, "views", "sessions"):
        raise ValueError(f"members must be 'views' or 'sessions', got {learner.members_kind!r}")
    if learner.balance_of not in ("classes", "kinds"):
        raise ValueError(f"balance_of must be 'classes' or 'kinds', got {learner.balance_of!r}")
    if learner.temperature is not None:
        check_steepness("temperature", learner.temperature)
    ridge, stand_ins, hold_out = learner.ridge, learner.stand_ins, learner.hold_out
    if ridge is not None and not 0 < ridge < np.inf:
        raise ValueError(f"ridge must be a finite number > 0, or None for no such member, got {ridge!r}")
    if stand_ins < 1 or hold_out < 1:
        raise ValueError(f"stand_ins and hold_out must be at least 1, got {stand_ins!r} and {hold_out!r}")
    if stand_ins > MOST_STAND_INS:
        raise ValueError(f"stand_ins must be at most {MOST_STAND_INS:,}, got {stand_ins!r}")
    if learner.whiten is not None and not 0 < learner.whiten <= 1:
        raise ValueError(f"whiten must be above 0 and at most 1, or None, got {learner.whiten!r}")
    for name, least, most in (("spread", 0.0, np.inf), ("balance", 1e-6, np.inf), ("calibration", 0.0, 1.0)):
        value = getattr(learner, name)
        if not least <= value <= most:
            raise ValueError(f"{name} must lie in {least:g} … {most:g}, got {value!r}")


def check_steepness(name: str, value: float) -> None:
    """Raise ValueError unless a number can stand before distances or cosines in a softmax."""
    if not 0 < value <= STEEPEST:
        raise ValueError(f"{name} must be a finite number > 0 (at most {STEEPEST:g}), got {value!r}")
