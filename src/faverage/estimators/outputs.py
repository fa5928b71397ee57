"""Labels in one column or several, what each class counts, and classifiers that answer for each of them.

y is ``(n,)``, a matrix ``(n, m)`` of zeros and ones (multi-label), or m columns of classes ``(n, m)`` (multi-output).
Members are fitted to y as it is; each output has its own part of what they answer, and its own fuser.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from faverage.errors import UserError
from faverage.estimators.members import (
    Member,
    are_probabilities,
    call_model,
    check_labels,
    encode,
    fit_member,
    method_of,
    take,
)

Array = NDArray[Any]
Answer = tuple[Array, Array]  # of one member for one output: probabilities (n, C) of C classes, and these
_RARE = 5  # combinations of labels in fewer rows than this are dealt to folds together


@dataclass(frozen=True)
class Targets:
    """Labels, output by output.

    Attributes:
        given: what members are fitted to, ``(n,)`` or ``(n, m)``: labels, or their positions where types differ.
        labels: the labels of each output in order, m arrays ``(N_j,)``.
        codes: ``(n, m)``, the position of each row's label in them.
        several: whether y has more than one column.
        indicator: whether it is a matrix of zeros and ones: each column says whether a label applies.
        coded: whether ``given`` has positions.
    """

    given: Array
    labels: list[Array]
    codes: Array
    several: bool
    indicator: bool
    coded: bool

    @property
    def names(self) -> list[Array] | None:
        """What the positions stand for where members are fitted to positions: m arrays ``(N_j,)``."""
        return self.labels if self.coded else None

    @property
    def strata(self) -> Array:
        """The group ``(n,)`` of each row for folds that are alike: its class, or its combination of labels."""
        if not self.several:
            return self.codes[:, 0]
        _, group, count = np.unique(self.codes, axis=0, return_inverse=True, return_counts=True)
        rare = count < _RARE
        together = len(count) if count[rare].sum() >= _RARE else int(count.argmax())
        merged: Array = np.where(rare, together, np.arange(len(count)))[group.ravel()]
        return merged

    def known(self, rows: Array | None = None) -> list[Array]:
        """Return for each output what a model that is fitted on the rows ``(r,)`` of ``given`` knows."""
        if self.indicator:
            return [np.array([0, 1])] * len(self.labels)
        part = self.given if rows is None else self.given[rows]
        return [np.unique(column) for column in part.reshape(len(part), -1).T]

    def check_classes(self, weight: Array | None) -> None:
        """Refuse an output with one class only among rows of non-zero weight ``(n,)``; a label may be in no row."""
        codes = self.codes if weight is None else self.codes[weight > 0]
        for j, column in enumerate([] if self.indicator else codes.T):
            if len(np.unique(column)) < 2:
                which = f"column {j} of y" if self.several else "y"
                raise UserError(
                    f"{which} has one class only among rows of non-zero weight; at least two classes are needed"
                )


def read_targets(y: Any) -> Targets:
    """Read y: labels ``(n,)``, or several outputs ``(n, m)``, as an array, a frame, lists or a sparse matrix."""
    y = as_table(y)
    if getattr(y, "ndim", 1) != 2 or y.shape[1] == 1:
        given = check_labels(y)
        labels, codes, mixed = encode(given)
        return Targets(codes if mixed else given, [labels], codes[:, None], False, False, mixed)
    if y.shape[1] == 0:
        raise UserError("y has no column; give labels (n,), or a matrix (n, m)", what="y")
    columns = [check_labels(column) for column in y.T]
    encoded = [encode(column) for column in columns]
    codes = np.stack([codes for _, codes, _ in encoded], 1)
    indicator = all(column.dtype.kind in "iufb" for column in columns) and bool(np.isin(y.astype(float), (0, 1)).all())
    if indicator:
        given = y.astype(int) if y.dtype.kind == "O" else y
        return Targets(given, [np.array([0, 1], given.dtype)] * y.shape[1], given.astype(np.int64), True, True, False)
    coded = any(mixed for _, _, mixed in encoded) or len({column.dtype.kind for column in columns}) > 1
    return Targets(
        codes if coded else np.stack(columns, 1), [labels for labels, _, _ in encoded], codes, True, False, coded
    )


def as_table(y: Any) -> Any:
    """Return y of two dimensions as an array ``(n, m)``, anything else as it is; refuse lists of different lengths."""
    if issparse(y):
        return y.toarray()
    rows = (
        list(y)
        if isinstance(y, list | tuple) or (getattr(getattr(y, "dtype", None), "kind", "") == "O" and y.ndim == 1)
        else []
    )
    listed = [row for row in rows if isinstance(row, list | tuple | set | frozenset | np.ndarray)]
    if listed:
        if len(listed) < len(rows) or len({len(row) for row in listed}) > 1 or isinstance(listed[0], set | frozenset):
            raise UserError(
                "y has a list of labels in each row, of different lengths",
                what="y",
                hint="make a matrix of zeros and ones of it, with sklearn.preprocessing.MultiLabelBinarizer",
            )
        plain = len({type(value) for row in listed for value in row}) == 1
        return np.array(rows) if plain else np.array(rows, dtype=object)
    return np.asarray(y) if getattr(y, "ndim", 1) == 2 else y


def weigh_classes(given: Any, labels: list[Array], codes: Array, weight: Array | None) -> list[Array | None]:
    """Return the weights of the rows for the fuser of each output, m arrays ``(n,)``; None where all are one.

    Args:
        given: ``"balanced"`` (all classes of an output weigh the same together), a dict from labels to weights in which
            labels that it lacks have weight 1, or None.
        labels: of each output ``(N_j,)``.
        codes: ``(n, m)``, positions in them.
        weight: the rows' own weights ``(n,)``, which are multiplied.

    >>> weigh_classes("balanced", [np.array(["no", "yes"])], np.array([[0], [0], [0], [1]]), None)
    [array([0.66666667, 0.66666667, 0.66666667, 2.        ])]
    """
    if given is None:
        return [weight] * len(labels)
    own = np.ones(len(codes)) if weight is None else weight
    if isinstance(given, str) and given == "balanced":
        totals = [np.bincount(column, own, len(names)) for column, names in zip(codes.T, labels, strict=True)]
        factors = [own.sum() / (np.count_nonzero(total) * np.where(total > 0, total, 1.0)) for total in totals]
    elif isinstance(given, Mapping):
        _check_weights(given, labels)
        factors = [np.array([float(given.get(label, 1.0)) for label in names.tolist()]) for names in labels]
    else:
        raise UserError(
            f"class_weight must be None, 'balanced' or a dict from labels to weights, got {given!r}",
            what="class_weight",
        )
    found: list[Array | None] = []
    for j, factor in enumerate(factors):
        found.append(own * factor[codes[:, j]])
        if not found[-1].any():  # type: ignore[union-attr]
            raise UserError("class_weight leaves no row of non-zero weight", what="class_weight")
    return found


def _check_weights(given: Mapping[Any, Any], labels: list[Array]) -> None:
    for label, value in given.items():
        if isinstance(value, str) or not np.isscalar(value) or not 0 <= float(value) < np.inf:  # type: ignore[arg-type]
            raise UserError(
                f"class_weight must have non-negative numbers, got {value!r} for {label!r}", what="class_weight"
            )
    known = {label for names in labels for label in names.tolist()}
    strangers = [label for label in given if label not in known]
    if strangers:  # no error: a fold of a cross-validation may lack a rare class
        warnings.warn(f"class_weight has {strangers[0]!r}, which is not among the labels of y", stacklevel=4)


@dataclass(frozen=True)
class Joint:
    """A fitted classifier and how to read its answers, output by output.

    Attributes:
        parts: one an output: how to read that part of the answer.
        several: whether y has more than one column.
        logits: whether one array of outputs ``(n, m)`` holds log-odds.
    """

    parts: list[Member]
    several: bool
    logits: bool = False

    def answers(self, X: Any) -> list[Answer]:
        """Return probabilities ``(n, C)`` of the member's own classes ``(C,)``, and these, for each output."""
        one = self.parts[0]
        outputs = call_model(one.name, one.model, one.method, X, several=self.several)
        columns = _split(one.name, outputs, one.method, len(self.parts), self.logits) if self.several else [outputs]
        return _converted(self.parts, columns)


def read_joint(
    name: str, model: Any, X: Any, labels: list[Array], *, several: bool, names: list[Array] | None = None
) -> tuple[Joint, list[Answer]]:
    """Find out how to read a fitted classifier; return that, and what it answers for each output ``(n, C)``.

    Args:
        name: of the member.
        model: the estimator, module or function.
        X: examples.
        labels: for each output ``(N_j,)``, the classes of a model that does not name them in ``classes_``.
        several: whether y has more than one column.
        names: for each output ``(N_j,)``, where the model was trained on positions in these instead of labels.
    """
    method = method_of(name, model)
    outputs = call_model(name, model, method, X, several=several)
    known = getattr(model, "classes_", None)
    if not several:
        known = [known]
    elif not (isinstance(known, list) and len(known) == len(labels)):
        known = [None] * len(labels)  # a model of many labels names its columns 0, 1, …, not their two classes
    logits = several and not method and isinstance(outputs, np.ndarray) and not ((outputs >= 0) & (outputs <= 1)).all()
    columns = _split(name, outputs, method, len(labels), bool(logits)) if several else [outputs]
    parts = []
    for j, (column, mine, usual) in enumerate(zip(columns, known, labels, strict=True)):
        own = usual if mine is None else np.asarray(mine)
        classes = own if names is None else names[j][own.astype(np.int64)]
        parts.append(Member(name, model, method, own, classes, logits=not method and not are_probabilities(column)))
    return Joint(parts, several, bool(logits)), _converted(parts, columns)


def fold_outputs(
    name: str, model: Any, train: Array, test: Array, X: Any, targets: Targets, weight: Array | None
) -> list[Answer]:
    """Fit a classifier on rows ``train``; return its answers ``(r, C)`` for rows ``test`` ``(r,)``, one an output.

    ``weight`` is ``(n,)``.
    """
    part = None if weight is None else weight[train]
    fit_member(name, model, take(X, train), targets.given[train], part)
    known = targets.known(train)
    return read_joint(name, model, take(X, test), known, several=targets.several, names=targets.names)[1]


def _converted(parts: list[Member], columns: list[Array]) -> list[Answer]:
    return [(part.convert(column), part.classes) for part, column in zip(parts, columns, strict=True)]


def _split(name: str, outputs: Array | list[Array], method: str, m: int, logits: bool) -> list[Array]:
    """Return what a model of m outputs says of each: from a list of m arrays, or from one array with a column each.

    A column of the array speaks for the second of two classes, unless it holds predicted labels.
    """
    if isinstance(outputs, list):
        if len(outputs) != m:
            raise ValueError(f"member '{name}' must answer for {m} outputs, the columns of y, got {len(outputs)}")
        return outputs
    if outputs.ndim != 2 or outputs.shape[1] != m:
        raise ValueError(
            f"member '{name}' must give a list of {m} arrays (n, N_j), one a column of y, or an array (n, {m}), got "
            f"shape {outputs.shape}"
        )
    columns = list(outputs.T)
    if method in ("predict", "decision_function"):
        return columns
    return [np.stack([np.zeros(len(p)) if logits else 1 - p, p], 1) for p in columns]
