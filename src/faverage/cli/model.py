"""The commands of a model: train, teach, predict, explain, forget, rename, merge, undo, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from faverage.app.names import ModelError, clean_name, pictures_of
from faverage.cli.console import (
    Stages,
    files_of,
    open_each,
    open_file,
    percent,
    quoted,
    say,
    stopped,
    sub_folders,
    told,
    waiting,
)

__all__ = ["register"]

_BATCH = 32

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of the model.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (train, teach, predict, explain, forget, rename, merge, undo, export):
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
    """Teach a model a new class from a few photos (1 or more, 5 are a good number); or add photos to a known one."""
    from faverage.app.model import Model

    known = Model.load(model, device=device)
    given = {clean_name(name): open_each(files_of(photos))} if photos else sub_folders(Path(name))
    with waiting("teaching"):
        done = known.teach_many(given)
    for taught in done:
        kept = taught.kept
        right = f"it recognises {round(taught.right * kept)} of {kept}, each left out in turn"
        right = right if kept == taught.count else f"of the {kept} that it keeps, {right}"
        say(f"Taught '{taught.name}' from {pictures_of(taught.count)}" + (f"; {right}." if kept > 1 else "."))
        if kept > 1 and taught.right < 0.5:
            say(f"The pictures of '{taught.name}' are not alike to this model: more of them may help.")
    if done[-1].confused:
        said = ", ".join(f"'{a}' taken for '{b}' {n}x" for a, b, n in done[-1].confused[:5])
        say(f"Mistaken among the pictures it keeps: {said}.")
    if done[0].before is not None and done[0].after is not None:
        before, after = percent(done[0].before), percent(done[0].after)
        say(f"Of the pictures it keeps of the classes it knew before, it recognised {before}, and now {after}.")
    if done[0].worse:
        say(f"Warning: that is clearly worse. Undo it with 'faverage undo {quoted(model)}', and try other pictures.")
    say(f"{model} now knows {_classes(known)}. Take it back with: faverage undo {quoted(model)}")


def predict(
    model: ModelFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 3,
    unknown: Annotated[
        float | None,
        typer.Option(help="Say 'none of these' where no class fits: the rate at which that may be wrong, as 0.05."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the reasons.")] = False,
    device: Device = "auto",
) -> None:
    """Predict the classes of pictures."""
    from faverage.app.model import Model
    from faverage.progress import Progress

    if unknown is not None and not 0 < unknown < 1:
        raise ModelError(f"--unknown must be a rate between 0 and 1, such as 0.05, got {unknown:g}")
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
                "heads": [
                    {
                        "head": said.member,
                        "class": said.best,
                        "probability": round(said.probability or 0.0, 6),
                        "push": None if said.push is None else round(said.push, 6),
                    }
                    for said in answer.members
                ],
                "familiarity": round(answer.familiarity, 6),
                **({} if unknown is None else {"unknown": answer.unknown(unknown)}),
            }
            for file, answer in found
        ]
        say(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for file, answer in found:
        said = ", ".join(f"{name} {percent(p)}" for name, p in answer.top[:top])
        none = unknown is not None and answer.unknown(unknown)
        say(f"{file}: " + (f"none of these (else {said})" if none else said))


def explain(model: ModelFolder) -> None:
    """Show what a model knows, its history, and which member and mean it trusts for which class."""
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


def forget(model: ModelFolder, name: Annotated[str, typer.Argument(help="A class that it knows.")]) -> None:
    """Make a model forget a class."""
    from faverage.app.model import Model

    known = Model.load(model, device="cpu")
    with waiting("learning without it"):
        known.forget(name)
    say(f"Forgot '{clean_name(name)}'. Take it back with: faverage undo {quoted(model)}")


def rename(
    model: ModelFolder,
    old: Annotated[str, typer.Argument(help="A class that it knows.")],
    new: Annotated[str, typer.Argument(help="The name to give it.")],
) -> None:
    """Give a class of a model another name."""
    from faverage.app.model import Model

    Model.load(model, device="cpu").rename(old, new)
    say(f"'{clean_name(old)}' is now '{clean_name(new)}'. Take it back with: faverage undo {quoted(model)}")


def merge(
    model: ModelFolder,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="A model with the same backbone; it stays as it is.")],
) -> None:
    """Add all that another model knows; both must come from the same trained network."""
    from faverage.app.model import Model

    known = Model.load(model, device="cpu")
    with waiting("learning from both"):
        new = known.merge(other)
    brought = ", ".join(f"'{name}'" for name in new) or "no new class"
    say(f"{other} brought {brought}. {model} now knows {_classes(known)}.")
    say(f"Take it back with: faverage undo {quoted(model)}")


def undo(model: ModelFolder) -> None:
    """Undo the last change of a model: a teaching, a forgetting, a new name or a merge."""
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


def _classes(model: Any) -> str:
    """Return how many classes a model knows, in words."""
    count = len(model.classes())
    return f"{count} class{'' if count == 1 else 'es'}"
