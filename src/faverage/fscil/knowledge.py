"""What a learner knows, right of the features: classes, the examples that it keeps, and its base heads.

A ``Knowledge`` is never changed, only replaced: teaching, forgetting, renaming and merging each return a new one, so
a change that fails leaves everything as it was, and the one before is there to go back to.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from faverage.errors import UserError
from faverage.fscil.heads import Array, CosineHead, LinearHead, unit
from faverage.fscil.whitening import Whitening

__all__ = ["BaseHead", "Knowledge", "Looked", "Views", "as_views"]

Views = Mapping[str, Array]  # features (n, d_v) of each view, by name

ONLY = "plain"  # the name of a single view that has none
_BEHIND = 5  # a base class has at least so many examples for each that is held out, see ``hold_out``


def as_views(X: ArrayLike | Mapping[str, ArrayLike], like: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Return features by view, float32 ``(n, d_v)``; ValueError says what is wrong with them.

    Args:
        X: ``(n, d)`` for a single view, or such an array for each view, by name.
        like: the views that are needed, and their numbers of columns.
    """
    if isinstance(X, Mapping):
        given = {str(name): np.asarray(x) for name, x in X.items()}
    else:
        given = {next(iter(like)) if like and len(like) == 1 else ONLY: np.asarray(X)}
    if not given:
        raise ValueError("X must have at least one view")
    for x in given.values():
        if x.ndim != 2 or x.dtype.kind not in "fiub" or x.shape[1] == 0:
            more = "images need a backbone" if x.ndim == 4 else "one row an example"
            raise ValueError(f"features must be numbers of shape (n, d), got {x.dtype} {x.shape}; {more}")
        if len(x) != len(next(iter(given.values()))):
            raise ValueError("all views must have the same examples: their numbers of rows differ")
    if like is not None and set(given) != set(like):
        missing, foreign = [v for v in like if v not in given], [v for v in given if v not in like]
        what = f"'{missing[0]}' is missing" if missing else f"'{foreign[0]}' is unknown"
        raise ValueError(f"the learner has the views {', '.join(like)}: {what} in X")
    views = {name: given[name].astype(np.float32, copy=False) for name in (like or given)}
    for name, x in views.items():
        if like is not None and x.shape[1] != like[name]:
            of = f" of the view '{name}'" if len(views) > 1 else ""
            raise ValueError(f"features{of} must have {like[name]} columns, got {x.shape[1]}: use the same backbone")
        if not np.isfinite(x).all():
            raise ValueError("features must be finite")
    return views


class Looked(dict[str, Array]):
    """Features ``(n, d_v)`` by view, with what prototypes and ridge regression see of them, made once.

    Attributes:
        seen: ``(n, d_v)``, by view: whitened where the learner whitens.
    """

    def __init__(self, views: Views, seen: Views) -> None:
        super().__init__(views)
        self.seen = dict(seen)

    def rows(self, which: Array) -> Looked:
        """Return some of the examples: numbers ``(m,)``, or a mask ``(n,)``."""
        views = {v: x[which] for v, x in self.items()}
        return Looked(views, {v: views[v] if z is self[v] else z[which] for v, z in self.seen.items()})

    @classmethod
    def joined(cls, parts: Sequence[Looked]) -> Looked:
        """Return the examples of all parts, one after the other."""
        views = {v: np.concatenate([part[v] for part in parts]) for v in parts[0]}
        as_is = {v: all(part.seen[v] is part[v] for part in parts) for v in views}
        return cls(views, {v: x if as_is[v] else np.concatenate([p.seen[v] for p in parts]) for v, x in views.items()})


def check_label(label: Any) -> None:
    """Raise ValueError for what can be no label; None is the answer "none of these"."""
    if label is None or not isinstance(label, Hashable) or label != label:
        raise ValueError(f"a label must be a text, a number or the like, got {label!r}")


@dataclass(frozen=True)
class BaseHead:
    """A head that was trained with its backbone, or on the base session.

    Attributes:
        view: whose features it takes.
        head: the classifier.
        classes: ``(C,)``, the number of the class of each of its rows.
    """

    view: str
    head: LinearHead | CosineHead
    classes: Array

    def same(self, other: BaseHead) -> bool:
        """Return whether the other is this head once more."""
        return (
            self.view == other.view
            and np.array_equal(self.classes, other.classes)
            and type(self.head) is type(other.head)
            and all(np.array_equal(part, vars(other.head)[name]) for name, part in vars(self.head).items())
        )


@dataclass(frozen=True)
class Knowledge:
    """Classes and examples of a learner.

    Attributes:
        classes: N labels, in order of arrival.
        session: ``(N,)``, the session that brought each class; 0 is the base session.
        views: features ``(n, d_v)`` of all kept examples, by view, as the backbone gives them.
        labels: ``(n,)``, numbers of their classes.
        shot: ``(n,)``, whether the prototype of its class is made of the example; the others were held out from the
            base session, and serve rehearsal alone.
        anchors: by view ``(N, d_v)``, the mean of the normalised features, as prototypes see them, of examples that
            are not kept; zero for classes without such.
        counts: ``(N,)``, how many these are.
        heads: of the base session; none where there was no such session.
        whitening: by view; none where prototypes see features as they are.

    >>> from faverage.fscil import FewShotLearner
    >>> learner = FewShotLearner().learn_session(np.eye(6), ["a", "a", "a", "b", "b", "b"])
    >>> learner.known.classes, learner.known.labels.tolist()
    (('a', 'b'), [0, 0, 0, 1, 1, 1])
    """

    classes: tuple[Any, ...]
    session: Array
    views: dict[str, Array]
    labels: Array
    shot: Array
    anchors: dict[str, Array]
    counts: Array
    heads: tuple[BaseHead, ...] = ()
    whitening: Mapping[str, Whitening] = field(default_factory=dict)

    @classmethod
    def empty(cls, widths: Mapping[str, int]) -> Knowledge:
        """Return the knowledge of nothing, with views of these numbers of columns."""
        none = {view: np.zeros((0, d), dtype=np.float32) for view, d in widths.items()}
        numbers = np.zeros(0, dtype=np.int64)
        return cls((), numbers, none, numbers, np.zeros(0, dtype=bool), dict(none), numbers)

    @classmethod
    def of_base(
        cls,
        classes: Sequence[Any],
        held_out: Views,
        labels: Array,
        prototypes: Views,
        heads: Mapping[str, LinearHead | CosineHead],
        counts: Array | None = None,
        whitening: Mapping[str, Whitening] | None = None,
    ) -> Knowledge:
        """Return what is known after a base session.

        Args:
            classes: C labels.
            held_out: features ``(n, d_v)`` of examples that neither heads nor prototypes were made from.
            labels: ``(n,)``, numbers of their classes.
            prototypes: by view ``(C, d_v)``, means of normalised features, whitened where there is whitening.
            heads: by view.
            counts: ``(C,)``, how many examples each prototype is the mean of; by default what ``hold_out`` leaves.
            whitening: of every view, or none.
        """
        n_base = len(classes)
        for view in held_out:
            shape = (n_base, held_out[view].shape[1])
            found = (heads[view].weight.shape, prototypes[view].shape)
            if found != (shape, shape):
                raise ValueError(
                    f"head and prototypes must have {n_base} rows of {shape[1]} numbers, one a class, got {found[0]} "
                    f"and {found[1]}"
                )
            numbers = {name: x for name, x in vars(heads[view]).items() if isinstance(x, np.ndarray)}
            if "bias" in numbers and numbers["bias"].shape != shape[:1]:
                raise ValueError(f"head must have {n_base} biases, got {numbers['bias'].shape}")
            if not all(np.isfinite(x).all() for x in numbers.values()):
                raise ValueError("head must be made of finite numbers")
        check_whitening(whitening or {}, {view: x.shape[1] for view, x in held_out.items()})
        behind = _BEHIND * np.bincount(labels, minlength=n_base) if counts is None else np.asarray(counts)
        return cls(
            tuple(classes),
            np.zeros(n_base, dtype=np.int64),
            dict(held_out),
            np.asarray(labels, dtype=np.int64),
            np.zeros(len(labels), dtype=bool),
            {view: np.array(prototypes[view], dtype=np.float32) for view in held_out},  # not what a caller may change
            behind.astype(np.int64),
            tuple(BaseHead(view, deepcopy(heads[view]), np.arange(n_base)) for view in held_out),
            dict(whitening or {}),
        )

    @property
    def widths(self) -> dict[str, int]:
        """Number of columns of each view."""
        return {view: x.shape[1] for view, x in self.views.items()}

    @property
    def sessions(self) -> list[list[Any]]:
        """Labels of the classes that each session brought and that are still known; the base session first."""
        last = int(self.session.max(initial=0))
        return [[self.classes[c] for c in np.flatnonzero(self.session == k)] for k in range(last + 1)]

    @property
    def shots(self) -> Array:
        """How many shots each class has, ``(N,)``."""
        return np.bincount(self.labels[self.shot], minlength=len(self.classes))

    @property
    def leavable(self) -> Array:
        """Numbers ``(m,)`` of the kept examples without which something is left of their class."""
        behind = self.counts + self.shots
        return np.flatnonzero(~self.shot | (behind > 1)[self.labels])

    def of_views(self, names: Sequence[str]) -> Knowledge:
        """Return the same of some of the views alone; ValueError where there is none, or one is not known."""
        missing = [name for name in names if name not in self.views]
        if missing or isinstance(names, str) or not names or len(set(names)) < len(names):
            raise ValueError(f"views must be different names among {', '.join(self.views)}, got {names!r}")
        return replace(
            self,
            views={view: self.views[view] for view in names},
            anchors={view: self.anchors[view] for view in names},
            heads=tuple(one for one in self.heads if one.view in names),
            whitening={view: one for view, one in self.whitening.items() if view in names},
        )

    def looked(self, views: Views) -> Looked:
        """Return features ``(n, d_v)`` of examples, with what prototypes see of them."""
        if isinstance(views, Looked):
            return views
        return Looked(views, {v: self.whitening[v](x) if v in self.whitening else x for v, x in views.items()})

    @cached_property
    def kept(self) -> Looked:
        """All kept examples, as ``looked`` returns them."""
        return self.looked(self.views)

    def number(self, label: Any) -> int:
        """Return the number of a class; ValueError where it is not known."""
        if label not in self.classes:
            known = ", ".join(repr(c) for c in self.classes[:8]) + (" …" if len(self.classes) > 8 else "")
            raise ValueError(f"class {label!r} is not known; known are: {known or 'none'}")
        return self.classes.index(label)

    def prototypes(self, view: str) -> Array:
        """Return ``(N, d_v)``: the mean of the normalised features of each class, anchors and shots together."""
        total, behind = self._sums(view)
        return np.asarray(total / np.maximum(behind, 1)[:, None], dtype=np.float32)

    def others(self, view: str) -> Array:
        """Return for each kept example the prototype ``(n, d_v)`` of its class without it.

        NaN where that is the usual one, for what was held out, and where there is none, for a single example.
        """
        total, behind = self._sums(view)
        z = unit(self.kept.seen[view])
        left = behind[self.labels] - 1
        without = (total[self.labels] - z) / np.maximum(left, 1)[:, None]
        return np.where((self.shot & (left > 0))[:, None], without, np.nan).astype(np.float32)

    def _sums(self, view: str) -> tuple[Array, Array]:
        """Return the sum of the normalised features of each class ``(N, d_v)``, and how many they are."""
        shots, labels = unit(self.kept.seen[view][self.shot]).astype(np.float64), self.labels[self.shot]
        total = self.anchors[view].astype(np.float64) * self.counts[:, None]
        np.add.at(total, labels, shots)
        return total, self.counts + np.bincount(labels, minlength=len(self.classes))

    def taught(self, views: Views, labels: Sequence[Any]) -> Knowledge:
        """Return what is known after a session that brings examples of new classes, of known ones, or of both.

        Raises:
            ValueError: there is nothing to learn, or an example is known by another label.
        """
        names = list(dict.fromkeys(labels))
        if not names:
            raise ValueError("there are no examples to learn from: give at least one")
        new = [label for label in names if label not in self.classes]
        number = {label: c for c, label in enumerate((*self.classes, *new))}
        numbers = np.array([number[label] for label in labels], dtype=np.int64)
        if new:
            order = np.argsort(numbers, kind="stable")  # class by class, however they came
            views, numbers = {view: x[order] for view, x in views.items()}, numbers[order]
        last = int(self.session.max(initial=0)) + 1
        both = self.with_shots(new, np.full(len(new), last), views, numbers)
        both._check_twins()
        return both

    def with_shots(self, new: Sequence[Any], sessions: Array, views: Views, numbers: Array) -> Knowledge:
        """Return the same, unchecked, with new classes, of sessions ``(C,)``, and more shots.

        Their features are ``(m, d_v)`` by view, the numbers of their classes ``(m,)``.
        """
        none = {view: np.zeros((len(new), d), dtype=np.float32) for view, d in self.widths.items()}
        return replace(
            self,
            classes=(*self.classes, *new),
            session=np.concatenate([self.session, sessions]),
            views={view: np.concatenate([x, views[view]]) for view, x in self.views.items()},
            labels=np.concatenate([self.labels, numbers]),
            shot=np.concatenate([self.shot, np.ones(len(numbers), dtype=bool)]),
            anchors={view: np.concatenate([a, none[view]]) for view, a in self.anchors.items()},
            counts=np.concatenate([self.counts, np.zeros(len(new), dtype=np.int64)]),
        )

    def _check_twins(self) -> None:
        """Raise ValueError where a shot has two labels, or was held out from the base session under another.

        Its ``what`` is the row of the shot.
        """
        seen: dict[bytes, int] = {}
        for i in np.argsort(self.shot, kind="stable"):  # what was held out comes first
            c = int(self.labels[i])
            first = seen.setdefault(b"".join((x[i] + 0.0).tobytes() for x in self.views.values()), c)  # -0 is 0
            if first != c and self.shot[i]:
                raise UserError(
                    f"an example of {self.classes[c]!r} is the same as one of {self.classes[first]!r}: an example has "
                    "one label; leave it out, or forget the other class first",
                    what=int(i),
                )

    def without(self, label: Any) -> Knowledge:
        """Return what is known without a class, its examples and its rows of the base heads."""
        c = self.number(label)
        rows, stay = self.labels != c, np.arange(len(self.classes)) != c
        heads = []
        for one in self.heads:
            kept = one.classes != c
            if kept.sum() > 1:  # a head of one class says nothing
                head = one.head.of_rows(kept)
                heads.append(BaseHead(one.view, head, one.classes[kept] - (one.classes[kept] > c)))
        labels, session = self.labels[rows], self.session[stay]
        _, close = np.unique([0, *session], return_inverse=True)  # sessions without a class are no sessions
        return replace(
            self,
            classes=tuple(name for name in self.classes if name != label),
            session=close[1:].astype(np.int64),
            views={view: x[rows] for view, x in self.views.items()},
            labels=labels - (labels > c),
            shot=self.shot[rows],
            anchors={view: a[stay] for view, a in self.anchors.items()},
            counts=self.counts[stay],
            heads=tuple(heads),
        )

    def without_examples(self, rows: Sequence[int] | Array) -> Knowledge:
        """Return what is known without some kept examples; ValueError where a class would have none left.

        Args:
            rows: their numbers ``(m,)``.
        """
        stay = np.ones(len(self.labels), dtype=bool)
        stay[np.asarray(rows, dtype=np.int64)] = False
        less = replace(
            self,
            views={view: x[stay] for view, x in self.views.items()},
            labels=self.labels[stay],
            shot=self.shot[stay],
        )
        less._check_filled()
        return less

    def moved(self, rows: Sequence[int] | Array, label: Any) -> Knowledge:
        """Return the same with some kept examples in another class; ValueError where a class would have none left.

        Args:
            rows: their numbers ``(m,)``.
            label: of a known class.
        """
        labels = self.labels.copy()
        labels[np.asarray(rows, dtype=np.int64)] = self.number(label)
        other = replace(self, labels=labels)
        other._check_filled()
        other._check_twins()
        return other

    def _check_filled(self) -> None:
        """Raise ValueError where a class has no example behind its prototype."""
        behind = self.counts + np.bincount(self.labels[self.shot], minlength=len(self.classes))
        for c in np.flatnonzero(behind == 0):
            raise ValueError(
                f"class {self.classes[c]!r} would have no example left: forget it, or give it another example first"
            )

    def renamed(self, label: Any, new: Any) -> Knowledge:
        """Return the same with another label for a class."""
        c = self.number(label)
        check_label(new)
        if new in self.classes and new != label:
            raise ValueError(f"class {new!r} is known already: forget it first, or choose another name")
        return replace(self, classes=(*self.classes[:c], new, *self.classes[c + 1 :]))

    def merged(self, other: Knowledge) -> Knowledge:
        """Return the knowledge of both, from features of the same backbone; a class that both know is one class.

        Base classes of either stay base classes, with the base heads of both; then come the sessions of this one, then
        those of the other. Where the two whiten differently, the whitening of the first that has one counts, and what
        the other keeps of base classes alone, means of what it saw, is carried over.
        """
        if self.widths != other.widths:
            raise ValueError(
                f"the learners have different views, {_told(self.widths)} and {_told(other.widths)}: only learners "
                "with the same backbone and the same views share their examples"
            )
        whitening = self.whitening or other.whitening
        own_anchors, their_anchors = self._carried(whitening), other._carried(whitening)
        last = int(self.session.max(initial=0))
        session = {label: int(s) for label, s in zip(self.classes, self.session, strict=True)}
        for label, s in zip(other.classes, other.session, strict=True):
            theirs = int(s) + last if s else 0
            session[label] = min(session.get(label, theirs), theirs)
        classes = tuple(sorted(session, key=lambda label: session[label]))  # sorted keeps the order within a session
        number = {label: c for c, label in enumerate(classes)}
        mine, theirs_ = (np.array([number[c] for c in one.classes], dtype=np.int64) for one in (self, other))
        counts, again = np.zeros((2, len(classes)), dtype=np.int64)
        counts[mine], again[theirs_] = self.counts, other.counts
        anchors, second = ({v: np.zeros((len(classes), d)) for v, d in self.widths.items()} for _ in range(2))
        for view in self.views:
            anchors[view][mine], second[view][theirs_] = own_anchors[view], their_anchors[view]
        same = np.all([(anchors[view] == second[view]).all(1) for view in self.views], 0)
        again[same] = 0  # copies of one model have one base session
        for view in self.views:
            total = anchors[view] * counts[:, None] + second[view] * again[:, None]
            anchors[view] = (total / np.maximum(counts + again, 1)[:, None]).astype(np.float32)
        counts += again
        labels = np.concatenate([mine[self.labels], theirs_[other.labels]])
        shot = np.concatenate([self.shot, other.shot])
        views = {view: np.concatenate([x, other.views[view]]) for view, x in self.views.items()}
        rows = _distinct(views, labels, shot)
        heads = [BaseHead(one.view, one.head, mine[one.classes]) for one in self.heads]
        for one in (BaseHead(one.view, one.head, theirs_[one.classes]) for one in other.heads):
            heads += [] if any(one.same(head) for head in heads) else [one]
        _, close = np.unique([0, *(session[label] for label in classes)], return_inverse=True)
        both = Knowledge(
            classes,
            close[1:].astype(np.int64),
            {view: x[rows] for view, x in views.items()},
            labels[rows],
            shot[rows],
            anchors,
            counts,
            tuple(heads),
            whitening,
        )
        both._check_twins()
        return both

    def _carried(self, whitening: Mapping[str, Whitening]) -> dict[str, Array]:
        """Return the anchors ``(N, d_v)`` as they would be with another whitening.

        Each is taken for that of one image, and keeps its length: what is lost is how its examples differed.
        """
        if all(v in self.whitening and self.whitening[v].same(one) for v, one in whitening.items()):
            return self.anchors
        found = {}
        for view, anchors in self.anchors.items():
            length = np.linalg.norm(anchors, axis=1, keepdims=True)
            usual = np.linalg.norm(self.kept.seen[view], axis=1).mean() if len(self.labels) else 1.0
            before = self.whitening.get(view)
            means = anchors if before is None else before.inverse(usual * anchors)
            found[view] = np.where(length > 0, unit(whitening[view](means)) * length, 0.0).astype(np.float32)
        return found


def check_whitening(whitening: Mapping[str, Whitening], widths: Mapping[str, int]) -> None:
    """Raise ValueError unless every view, of these numbers of columns, is whitened, or none is."""
    if whitening and set(whitening) != set(widths):
        raise ValueError(f"whitening must be of each of the views {', '.join(widths)}, got {', '.join(whitening)}")
    for view, one in whitening.items():
        d = widths[view]
        if one.centre.shape != (d,) or one.matrix.shape != (d, d):
            raise ValueError(
                f"whitening of the view '{view}' must be of {d} features, got {one.centre.shape} and {one.matrix.shape}"
            )
        if not (np.isfinite(one.centre).all() and np.isfinite(one.matrix).all()):
            raise ValueError(f"whitening of the view '{view}' must be made of finite numbers")


def _distinct(views: Views, labels: Array, shot: Array) -> Array:
    """Return the rows of examples, the first of those that are the same in all views and label."""
    seen: dict[bytes, int] = {}
    for i in range(len(labels)):
        key = b"".join(x[i].tobytes() for x in views.values()) + bytes([bool(shot[i])]) + int(labels[i]).to_bytes(8)
        seen.setdefault(key, i)
    return np.array(sorted(seen.values()), dtype=np.int64)


def _told(widths: Mapping[str, int]) -> str:
    return ", ".join(f"{view} ({d})" for view, d in widths.items())
