"""The command line: it parses, calls and prints."""

import gc
import sys

from faverage import __version__

__all__ = ["main"]


def main() -> None:
    """Run the command line; ``--version`` alone is answered without loading anything."""
    if sys.argv[1:] == ["--version"]:
        print(f"faverage {__version__}")
        return
    gc.disable()  # imports make objects by the hundred thousand, and no garbage
    from faverage.cli.commands import app

    gc.freeze()  # what was imported stays: no collection has to look at it again
    gc.enable()
    app()
