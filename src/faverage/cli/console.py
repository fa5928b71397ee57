"""What the commands of a model share: photos from paths, progress, and errors as messages."""

from __future__ import annotations

import functools
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import typer

from faverage.app.names import printable
from faverage.errors import ModelError, UserError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Stages",
    "files_of",
    "open_each",
    "open_file",
    "percent",
    "quoted",
    "say",
    "stopped",
    "sub_folders",
    "told",
    "waiting",
]

P = ParamSpec("P")
R = TypeVar("R")


def told(command: Callable[P, R]) -> Callable[P, R]:
    """Raise errors that a user can fix as UserError, which the command line shows without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:  # whoever reads the output has closed it
            raise
        except (ValueError, FloatingPointError, ImportError, MemoryError) as error:
            kind = type(error) if isinstance(error, UserError) else UserError
            raise kind(printable(str(error)) or "the memory ran out") from None
        except OSError as error:
            where = f": {error.filename}" if error.filename is not None else ""
            raise UserError(printable(f"{error.strerror or error}{where}")) from None

    return run


class Stages:
    """Prints each stage of a run once; one of known size gets a bar, or plain lines where the output is no terminal.

    Stages of unknown size may show their own bar. Warnings are shown without their place in the code.

    Attributes:
        console: where all of it goes.
        stage: the current stage.
    """

    def __init__(self, console: Console) -> None:
        from faverage.progress import Progress

        self.console, self.stage = console, ""
        self._bar = Progress(patient=False, columns="bar count elapsed left remaining", console=console)
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> Self:
        self._caught.__enter__()
        warnings.showwarning = self._warn
        return self

    def __exit__(self, *about: Any) -> None:
        self._bar.close()
        self._caught.__exit__(*about)

    def _warn(self, message: Warning | str, *_: Any, **__: Any) -> None:
        from rich.text import Text

        self.console.print(Text(f"Warning: {message}"), soft_wrap=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Say that ``done`` parts of ``total`` (0: not known) of ``what`` are done; sentences are no stage."""
        if what.endswith("."):
            from rich.text import Text

            self._bar.close()
            self.console.print(Text(what), soft_wrap=True)
            return
        if what != self.stage:
            self._bar.close()
            self.stage = what
            self.console.print(what, highlight=False, markup=False)
        self._bar(what, done, total)


def say(words: str) -> None:
    """Print, with control characters escaped."""
    typer.echo(printable(words))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show the time left where learning takes more than two seconds."""
    from faverage.afa.train import watched
    from faverage.progress import Progress

    bar = Progress()

    def watch(done: int, total: int) -> None:
        if done == 1 or not bar.total:
            bar.begin(what, total)
        bar.update(done)
        if done == total:
            bar.close()

    with watched(watch):
        yield


@contextmanager
def stopped(words: str) -> Iterator[None]:
    """Say ``words`` where a person stops what is inside."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(words, err=True)
        raise typer.Exit(130) from None


def quoted(path: Path) -> str:
    """Return a path as it is typed into a shell."""
    return shlex.quote(str(path))


def percent(p: float) -> str:
    """Return a probability as a percentage.

    >>> percent(0.971), percent(0.0004)
    ('97 %', 'under 1 %')
    """
    return "under 1 %" if p < 0.01 else f"{100 * p:.0f} %"


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are named, and those in the folders that are."""
    from faverage.data.sources import image_files

    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ModelError(f"no such file: {path}")
        found = list(image_files(path)) if path.is_dir() else [path]
        if not found:
            raise ModelError(f"there are no images in the folder {path}")
        files += found
    return files


def open_file(file: Path) -> Any:
    """Return the picture in a file; ModelError names the file."""
    from faverage.app.photos import MAX_BYTES, open_picture
    from faverage.storage import read_regular

    try:
        picture: Any = open_picture(read_regular(file, MAX_BYTES + 1))
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None
    picture.filename = str(file)  # as of pictures that Pillow opens; messages name it
    return picture


def open_each(files: Sequence[Path]) -> Iterator[Any]:
    """Yield the pictures in files, one after the other: they may be large."""
    from faverage.progress import Progress

    with Progress("opening the photos", len(files)) as bar:
        for file in files:
            yield open_file(file)
            bar.advance(1)


def sub_folders(folder: Path) -> dict[str, Iterator[Any]]:
    """Return the photos of each class in a folder with one sub-folder a class."""
    from faverage.data.sources import class_folders

    if not folder.is_dir():
        raise ModelError(f"there is no photo of '{folder}': give photos after the name, or a folder of sub-folders")
    found = class_folders(folder)
    if not found:
        raise ModelError(
            f"{folder} has no sub-folders: for one class, give its name first, as in: teach MODEL NAME {folder}"
        )
    return {sub.name: open_each(files_of([sub])) for sub in found}
