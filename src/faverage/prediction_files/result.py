"""What a run of ``fuse_files`` found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from faverage.afa.explain import Explanation
from faverage.prediction_files.compare import Comparison

__all__ = ["Member", "Result"]


@dataclass(frozen=True)
class Member:
    """One model: its name, its file, how many rows it answered, and the classes it knows."""

    name: str
    path: Path
    rows: int
    classes: list[str]


@dataclass(frozen=True)
class Result:
    """What a run of ``fuse_files`` found.

    Attributes:
        members: the models, in order.
        labels: the file of labels.
        classes: the N labels.
        rows: how many ids were predicted,
        labelled: and how many of them were trained on.
        fuser: the name of the fuser that was fitted.
        comparison: all fusers and models on held-out rows.
        explanation: what the weights of AFA say; None where it could not be fitted.
        unexplained: why there is no explanation.
        warnings: everything odd about the files.
        command: the command that does the same again.
        outputs: the files written: predictions, report, fuser.
    """

    members: list[Member]
    labels: Path
    classes: list[str]
    rows: int
    labelled: int
    fuser: str
    comparison: Comparison
    explanation: Explanation | None
    unexplained: str
    warnings: list[str]
    command: str
    outputs: list[Path]
