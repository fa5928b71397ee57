"""A small model of drawn shapes, made once, and pictures to teach it."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faverage.app.model import Model
from faverage.fscil import FewShotLearner
from helpers_vision import drawn, quick

NAMES = np.array(["square", "bar", "frame", "cross"])


def pictures(kind: str, n: int = 5, seed: int = 7, side: int = 16) -> list[Image.Image]:
    """Draw a shape of the base classes, a cross, or stripes of another kind (``stripes 0`` … ``stripes 9``)."""
    if kind.startswith("stripes"):
        which, rng = int(kind.split()[1]), np.random.default_rng(seed)
        images = rng.integers(0, 60, (n, side, side, 3)).astype(np.uint8)
        for image in images:
            image[:: 2 + which % 3, :, which % 3] = 220
            image[:, :: 2 + which // 3, (which + 1) % 3] = 120
    else:
        images, labels = drawn(4 * n, side, seed)
        images = images[NAMES[labels] == kind]
    return [Image.fromarray(image) for image in images]


def data_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def learner_of_shapes(fuser: str = "afa") -> FewShotLearner:
    images, labels = drawn(240)
    images, labels = images[labels < 3], labels[labels < 3]
    base = quick(images, labels, epochs=6)
    return FewShotLearner(base, fuser, device="cpu").fit_base(images, NAMES[labels])


@pytest.fixture(scope="session", name="made")
def made_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "model"
    shown = {name: pictures(name, 6) for name in NAMES[:3]}
    Model.create(folder, learner_of_shapes(), side=16, counts=dict.fromkeys(NAMES[:3], 60), thumbnails=shown)
    return folder


@pytest.fixture(name="folder")
def folder_fixture(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


@pytest.fixture(name="model")
def model_fixture(folder: Path) -> Model:
    return Model.load(folder, device="cpu")
