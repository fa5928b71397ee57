"""Classes that count more or less when a fuser is fitted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.errors import UserError

Array = NDArray[Any]


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
        _check(given, labels)
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


def _check(given: Mapping[Any, Any], labels: list[Array]) -> None:
    for label, value in given.items():
        if isinstance(value, str) or not np.isscalar(value) or not 0 <= float(value) < np.inf:  # type: ignore[arg-type]
            raise UserError(
                f"class_weight must have non-negative numbers, got {value!r} for {label!r}", what="class_weight"
            )
    known = {label for names in labels for label in names.tolist()}
    strangers = [label for label in given if label not in known]
    if strangers:  # no error: a fold of a cross-validation may lack a rare class
        warnings.warn(f"class_weight has {strangers[0]!r}, which is not among the labels of y", stacklevel=4)
