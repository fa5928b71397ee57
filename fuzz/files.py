"""All targets that are files and folders."""

from __future__ import annotations

from fuzz.formats import change_npz, change_parquet
from fuzz.fusing import Apply, Fuse, LabelFile, Predictions
from fuzz.images import Archive, Picture
from fuzz.learned import FuserFile, Learner, ModelFolder, Network
from fuzz.lessons import Lessons
from fuzz.mutate import change_text
from fuzz.runs import Features, FinishedRun, Settings, Weights
from fuzz.target import Target

__all__ = ["file_targets"]


def file_targets() -> list[Target]:
    """Return all targets that are files or folders."""
    return [
        ModelFolder(),
        FinishedRun(),
        Picture(),
        Archive("zip", 200),
        Archive("photos", 100),
        Archive("cifar", 150),
        Learner(),
        Lessons(),
        Predictions("csv", 1400, change_text),
        Predictions("npz", 900, change_npz),
        Predictions("parquet", 300, change_parquet),
        LabelFile(),
        Fuse(),
        Apply(),
        Network(),
        FuserFile(),
        Features(),
        Settings("run-yaml", 600),
        Settings("sweep-yaml", 300),
        Weights(),
    ]
