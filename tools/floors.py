"""Print the lowest versions that pyproject.toml declares, as constraints for pip: ``name==version``, a line each.

torch stands in constraints.txt, whose version is printed instead, unless another one is given: its wheels for older
versions come with several gigabytes of CUDA.

    python tools/floors.py > floors.txt
    python tools/floors.py 2.6.0 > floors.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def floors(project: dict[str, object], torch: str) -> list[str]:
    """Return ``name==version`` for every dependency, optional ones included.

    >>> floors({"dependencies": ["torch>=2.6", "numpy>=1.26"]}, "2.13.0")
    ['numpy==1.26', 'torch==2.13.0']
    """
    optional: dict[str, list[str]] = project.get("optional-dependencies", {})  # type: ignore[assignment]
    wanted = [*project["dependencies"], *(one for group in optional.values() for one in group)]  # type: ignore[misc]
    lowest = {"torch": torch}
    for one in wanted:
        if one.startswith("faverage["):
            continue
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", one)
        if found is None:
            raise SystemExit(f"pyproject.toml: '{one}' states no lowest version; write NAME>=VERSION")
        lowest.setdefault(found[1], found[2])
    return [f"{name}=={version}" for name, version in sorted(lowest.items())]


def main() -> None:
    """Print them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = re.search(r"torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    torch = sys.argv[1] if len(sys.argv) > 1 else pinned[1] if pinned else ""
    print("\n".join(floors(project, torch)))


if __name__ == "__main__":
    main()
