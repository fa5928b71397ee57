"""Small files of features."""

from pathlib import Path
from typing import Any

import numpy as np

VIEWS = ["plain", "rotate-90", "rotate-180"]
BASE, NEW, D = 4, 5, 6


def made(path: Path, **changes: Any) -> Path:
    """A small file with three views and cosine heads; a change to None leaves an array out."""
    rng = np.random.default_rng(0)
    centres = np.abs(3 * rng.normal(size=(BASE + NEW, 3, D)))
    labels = {
        "test": np.arange(36) % (BASE + NEW),
        "novel": BASE + np.arange(25) % NEW,
        "base_memory": np.arange(20) % BASE,
    }
    data: dict[str, Any] = {name: np.abs(centres[y] + rng.normal(size=(len(y), 3, D))) for name, y in labels.items()}
    data |= {f"{name}_labels": y for name, y in labels.items()} | {"views": np.array(VIEWS)}
    prototypes = (centres / np.linalg.norm(centres, axis=2, keepdims=True))[:BASE]
    data |= {"base_prototypes": prototypes, "base_head_weight": centres[:BASE], "base_head_scale": 10.0}
    np.savez(path, **{name: value for name, value in (data | changes).items() if value is not None})
    return path


def plain(path: Path) -> Path:
    """The first view of it, as a file without views."""
    made(path)
    with np.load(path) as file:
        data = {name: file[name][:, 0] if file[name].ndim == 3 else file[name] for name in file.files}
    del data["views"], data["base_head_scale"]
    np.savez(path, **data, base_head_bias=np.zeros(BASE))
    return path
