"""The commands of a model: train, teach, predict, explain, forget, undo, export."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from faverage.app.names import ModelError, clean_name, pictures_of, printable

__all__ = ["register"]

P = ParamSpec("P")
R = TypeVar("R")


def told(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what a person can put right into a ModelError, which the command line shows without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from faverage.data import DataError
        from faverage.experiment.settings import ConfigError

        try:
            return command(*args, **kwargs)
        except BrokenPipeError:  # who reads the output has seen enough
            raise
        except (DataError, ConfigError, ValueError, FloatingPointError, ImportError, MemoryError) as error:
            kind = type(error) if isinstance(error, ModelError) else ModelError
            raise kind(printable(str(error)) or "the memory ran out") from None
        except OSError as error:
            where = f": {error.filename}" if error.filename is not None else ""
            raise ModelError(printable(f"{error.strerror or error}{where}")) from None

    return run


def say(words: str) -> None:
    """Print; what a name could do to the terminal is written out."""
    typer.echo(printable(words))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show the time left where learning takes more than two seconds."""
    from faverage.afa.train import watched
    from faverage.data.progress import Progress

    bars: list[Progress] = []

    def watch(done: int, total: int) -> None:
        if done == 1 or not bars:
            bars[:] = [Progress(what, total)]
        bars[0].advance(done - bars[0].done)
        if done == total:
            bars[0].__exit__()

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
    """Return a probability in words.

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
        return open_picture(read_regular(file, MAX_BYTES))
    except ValueError as error:
        raise ModelError(f"{file}: {error}") from None


def open_each(files: Sequence[Path]) -> Iterator[Any]:
    """Yield the pictures in files, one after the other: they may be large."""
    from faverage.data.progress import Progress

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


_BATCH = 32

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of the model.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (train, teach, predict, explain, forget, undo, export):
        app.command()(told(command))


def train(
    images: Annotated[
        Path | None, typer.Argument(metavar="IMAGES", help="Photos: a folder with one sub-folder a class.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the model to make.")] = None,
    from_run: Annotated[
        Path | None, typer.Option("--from-run", help="A folder of 'faverage run', instead of photos.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the photos.", show_default="50")] = None,
    backbone: Annotated[str | None, typer.Option(help="The network.", show_default="by the photos' size")] = None,
    weights: Annotated[Path | None, typer.Option(help="A checkpoint for the network to start from.")] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
) -> None:
    """Train a model on your photos; new classes can be taught to it afterwards."""
    from rich.console import Console

    from faverage.app.train import train_from_run, train_model
    from faverage.experiment.screen import Stages

    if out is None:
        raise ModelError("give --out MODEL, the folder of the model to make")
    if (images is None) == (from_run is None):
        raise ModelError("give a folder of photos, or --from-run DIR; exactly one of them")
    with stopped("Stopped; the same command goes on where it was."), Stages(Console(stderr=True)) as screen:
        if from_run is not None:
            given = {"epochs": epochs, "backbone": backbone, "weights": weights}
            needless = [f"--{name}" for name, value in given.items() if value is not None]
            if needless:
                raise ModelError(f"--from-run takes the trained network as it is: leave out {', '.join(needless)}")
            made = train_from_run(from_run, out, device=device, progress=screen.progress)
        else:
            assert images is not None
            options: dict[str, Any] = {"epochs": epochs, "backbone": backbone, "weights": weights, "seed": seed}
            made = train_model(images, out, **options, device=device, progress=screen.progress)
    right = f"recognises {percent(made.accuracy)} of {pictures_of(made.held_out)} that were held out"
    say(f"{out} knows {len(made.model.classes())} classes and {right}.")
    say(f"Teach it more with: faverage teach {quoted(out)} NAME PHOTO...")


def teach(
    model: ModelFolder,
    name: Annotated[str, typer.Argument(help="The class, or a folder with one sub-folder a class.")],
    photos: Annotated[list[Path] | None, typer.Argument(help="Photos of it, or folders of them.")] = None,
    device: Device = "auto",
) -> None:
    """Teach a model a new class from a few photos (1 or more, 5 are a good number); or add photos to a taught one."""
    from faverage.app.model import Model

    known = Model.load(model, device=device)
    given = {clean_name(name): open_each(files_of(photos))} if photos else sub_folders(Path(name))
    with waiting("teaching"):
        done = known.teach_many(given)
    for taught in done:
        right = f"it recognises {round(taught.right * taught.count)} of {taught.count}, each left out in turn"
        say(f"Taught '{taught.name}' from {pictures_of(taught.count)}" + (f"; {right}." if taught.count > 1 else "."))
        if taught.count > 1 and taught.right < 0.5:
            say(f"The pictures of '{taught.name}' are not alike to this model: more of them may help.")
    if done[-1].confused:
        said = ", ".join(f"'{a}' taken for '{b}' {n}x" for a, b, n in done[-1].confused[:5])
        say(f"Mistaken among the pictures it keeps: {said}.")
    before, after = percent(done[0].before), percent(done[0].after)
    say(f"Of the pictures it keeps of the classes it knew before, it recognised {before}, and now {after}.")
    if done[0].worse:
        say(f"Warning: that is clearly worse. Undo it with 'faverage undo {quoted(model)}', and try other pictures.")
    say(f"{model} now knows {len(known.classes())} classes. Take it back with: faverage undo {quoted(model)}")


def predict(
    model: ModelFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the reasons.")] = False,
    device: Device = "auto",
) -> None:
    """Say what pictures show."""
    from faverage.app.model import Model
    from faverage.data.progress import Progress

    known = Model.load(model, device=device)
    files = files_of(images)
    found: list[tuple[Path, Any]] = []
    with Progress("looking at the pictures", len(files)) as bar:
        for start in range(0, len(files), _BATCH):
            part = files[start : start + _BATCH]
            answers = known.predict(open_file(file) for file in part)
            found += zip(part, answers, strict=True)
            bar.advance(len(part))
    if as_json:
        rows = [
            {
                "image": str(file),
                "top": [{"class": c, "probability": round(p, 6)} for c, p in answer.top[:top]],
                "heads": [{"head": h, "class": c, "probability": round(p, 6)} for h, c, p in answer.heads],
                "means": [{"mean": m, "share": round(s, 6)} for m, s in answer.means],
            }
            for file, answer in found
        ]
        say(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for file, answer in found:
        say(f"{file}: " + ", ".join(f"{name} {percent(p)}" for name, p in answer.top[:top]))


def explain(model: ModelFolder) -> None:
    """Say what a model knows, what happened to it, and which head and mean it trusts for which class."""
    from faverage.afa.explain import Table
    from faverage.app.model import Model

    known = Model.load(model, device="cpu")
    rows = [(c.name, c.count, "base" if c.session == 0 else f"session {c.session}") for c in known.classes()]
    say(f"**Classes**\n\n{Table(('class', 'pictures', 'learned in'), rows).to_markdown()}\n")
    lines = [(line.get("when", ""), line.get("words", "")) for line in known.history()]
    say(f"**History**\n\n{Table(('when', 'what'), lines).to_markdown()}\n")
    try:
        say(known.explain().to_markdown())
    except ModelError as error:
        say(str(error)[:1].upper() + str(error)[1:] + ".")


def forget(model: ModelFolder, name: Annotated[str, typer.Argument(help="A taught class.")]) -> None:
    """Make a model forget a class that it was taught."""
    from faverage.app.model import Model

    known = Model.load(model, device="cpu")
    with waiting("learning without it"):
        known.forget(name)
    say(f"Forgot '{clean_name(name)}'. Take it back with: faverage undo {quoted(model)}")


def undo(model: ModelFolder) -> None:
    """Undo the last change of a model: a teaching or a forgetting."""
    from faverage.app.model import Model

    say(f"Undone: {Model.load(model, device='cpu').undo()}.")


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The file to write.")],
) -> None:
    """Write a model as one ONNX file, which runs without Python."""
    from faverage.app.model import Model
    from faverage.app.onnx import export_learner

    known = Model.load(model, device="cpu")
    worst = export_learner(known, out)
    say(f"Wrote {out}: images (n, {known.side}, {known.side}, 3) in, probabilities out; within {worst:.0e}.")
