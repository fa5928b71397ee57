"""Where things are: the repository, the tests with their scripts, and real data where there are some."""

import os
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DATA = Path(os.environ.get("FAVERAGE_DATA") or ROOT.parent / "shared" / "data")
FEATURES = DATA / "features" / "mini_imagenet_resnet18.npz"
