"""The command line: it parses, calls and prints."""

import gc
import sys

from faverage import __version__

__all__ = ["main"]


def main() -> None:
    """Run the command line; ``--version`` and ``doctor`` need nothing that may be missing or slow to load.

    >>> from unittest import mock
    >>> with mock.patch("sys.argv", ["faverage", "--version"]):  # what a terminal would pass on
    ...     main()  # doctest: +ELLIPSIS
    faverage ...
    """
    if sys.argv[1:] == ["--version"]:
        print(f"faverage {__version__}")
        return
    if sys.argv[1:2] == ["doctor"]:
        from faverage.cli.doctor import alone

        alone()
    gc.disable()  # imports make objects by the hundred thousand, and no garbage
    from faverage.cli.commands import app

    gc.freeze()  # what was imported stays: no collection has to look at it again
    gc.enable()
    app()
