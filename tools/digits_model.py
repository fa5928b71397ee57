"""Train the model of digits that ``faverage serve`` starts with, and write it into the package.

The same seed on the same machine and version of torch gives the same file; commit it when it changes.

    python tools/digits_model.py
"""

from __future__ import annotations

from pathlib import Path

from faverage.app.demo import SHIPPED, train_digits

if __name__ == "__main__":
    file = Path(__file__).parent.parent / "src" / "faverage" / "app" / SHIPPED
    print(f"{train_digits(file)}: {file.stat().st_size:,} bytes")
