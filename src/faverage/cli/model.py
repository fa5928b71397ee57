"""The commands of a model: train, teach, predict, evaluate, explain, forget, rename, merge, undo, export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from faverage.app.names import ModelError, clean_name, pictures_of, printable
from faverage.cli.console import (
    Stages,
    files_of,
    open_each,
    percent,
    quoted,
    say,
    stopped,
    sub_folders,
    told,
    waiting,
)

__all__ = ["register"]

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of the model.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Own = Annotated[
    str | None,
    typer.Option(help="Of a model whose network is code of your own: package.module:build, which returns it."),
]
Unknown = typer.Option(help="Say 'none of these' where no class fits: the rate at which that may be wrong, as 0.05.")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (train, teach, predict, evaluate, explain, forget, rename, merge, undo, export):
        app.command()(told(command))


def train(
    images: Annotated[
        Path | None, typer.Argument(metavar="IMAGES", help="Photos: a folder with one sub-folder a class.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the model to make.")] = None,
    from_run: Annotated[
        Path | None, typer.Option("--from-run", help="A folder of 'faverage run', instead of photos.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network; several with ready weights, with commas between; or package.module:build.",
            show_default="efficientnet_lite0",
        ),
    ] = None,
    views: Annotated[
        str, typer.Option(help="Ways to look at each photo, such as plain,flip: slower, right more often.")
    ] = "plain",
    fine_tune: Annotated[
        bool, typer.Option("--fine-tune", help="Train the ready network further on these photos: minutes to hours.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a network from nothing: hours, and many photos.")
    ] = False,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Of training: passes over the photos.", show_default="50, 5 to fine-tune"),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Of training: a checkpoint to start from.")] = None,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
) -> None:
    """Learn the classes of your photos, in seconds; new classes can be taught to the model afterwards."""
    from rich.console import Console

    from faverage.app.train import how_to_train, train_from_run, train_model

    if out is None:
        raise ModelError("give --out MODEL, the folder of the model to make")
    if (images is None) == (from_run is None):
        raise ModelError("give a folder of photos, or --from-run DIR; exactly one of them")
    with stopped("Stopped; the same command goes on where it was."), Stages(Console(stderr=True)) as screen:
        if from_run is not None:
            given = {"epochs": epochs, "backbone": backbone, "weights": weights}
            given |= {"fine-tune": fine_tune or None, "from-scratch": from_scratch or None}
            given |= {"views": None if views == "plain" else views}
            needless = [f"--{name}" for name, value in given.items() if value is not None]
            if needless:
                raise ModelError(f"--from-run takes the trained network as it is: leave out {', '.join(needless)}")
            made = train_from_run(from_run, out, device=device, progress=screen.progress)
        else:
            assert images is not None
            options: dict[str, Any] = {"epochs": epochs, "backbone": backbone, "weights": weights}
            options |= {"from_scratch": from_scratch, "fine_tune": fine_tune}
            if how_to_train(**options) == "from-scratch" and not from_scratch:
                why = next(f"--{name} {value}" for name, value in options.items() if value)
                screen.progress(f"{why} asks for a network that is trained from nothing, as --from-scratch does", 0, 0)
            options |= {"views": [view.strip() for view in views.split(",")], "seed": seed, "device": device}
            made = train_model(images, out, **options, progress=screen.progress)
    right = f"recognises {percent(made.accuracy)} of {pictures_of(made.held_out)} that were held out"
    say(f"{out} knows {len(made.model.classes())} classes and {right}.")
    say(f"Teach it more with: faverage teach {quoted(out)} NAME PHOTO...")


def teach(
    model: ModelFolder,
    name: Annotated[str, typer.Argument(help="The class, or a folder with one sub-folder a class.")],
    photos: Annotated[list[Path] | None, typer.Argument(help="Photos of it, or folders of them.")] = None,
    device: Device = "auto",
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Of a new model: its network, as for train; of one whose network is code of your own: that.",
            show_default="efficientnet_lite0",
        ),
    ] = None,
) -> None:
    """Teach a model a new class from a few photos (1 or more, 5 are a good number); or add photos to a known one.

    Where there is no model yet, one is made that knows nothing else.
    """
    given = {clean_name(name): open_each(files_of(photos))} if photos else sub_folders(Path(name))
    new = not model.exists() and not model.is_symlink()
    known = _new(model, backbone, device) if new else _load(model, device, backbone)
    try:
        with waiting("teaching"):
            done = known.teach_many(given)
    except BaseException:
        if new:
            shutil.rmtree(model, ignore_errors=True)
        raise
    for taught in done:
        kept = taught.kept
        right = f"it recognises {round(taught.right * kept)} of {kept}, each left out in turn"
        right = right if kept == taught.count else f"of the {kept} that it keeps, {right}"
        tells = kept > 1 and len(known.classes()) > 1  # of one class, any picture is recognised
        say(f"Taught '{taught.name}' from {pictures_of(taught.count)}" + (f"; {right}." if tells else "."))
        if taught.again:
            say(f"Left out {pictures_of(taught.again)} of '{taught.name}' that the model keeps already.")
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
    unknown: Annotated[float | None, Unknown] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the reasons.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write a table to this file, a line a picture.")] = None,
    device: Device = "auto",
    backbone: Own = None,
) -> None:
    """Predict the classes of pictures; the exit code is 1 where some of them cannot be read."""
    from faverage.progress import Progress

    if unknown is not None and not 0 < unknown < 1:
        raise ModelError(f"--unknown must be a rate between 0 and 1, such as 0.05, got {unknown:g}")
    known = _load(model, device, backbone)
    files = files_of(images)
    _check_output("--csv", csv, ".csv")
    with Progress() as bar:
        answers = known.predict_files(files, progress=bar)
    found: list[tuple[Path, Any]] = [
        (f, a) for f, a in zip(files, answers, strict=True) if not isinstance(a, Exception)
    ]
    broken = [(f, str(a)) for f, a in zip(files, answers, strict=True) if isinstance(a, Exception)]
    if not found:
        more = f"; nor can the {len(broken) - 1} others be read" if len(broken) > 1 else ""
        raise ModelError(f"{broken[0][0]}: {broken[0][1]}{more}")
    if csv is not None:
        _write(csv, _answers_csv(found, unknown))
    _print_answers(found, top, unknown, as_json)
    if csv is not None and not as_json:
        say(f"Wrote {csv}.")
    _tell_broken(broken, len(files))


def evaluate(
    model: ModelFolder,
    images: Annotated[Path, typer.Argument(metavar="FOLDER", help="Pictures: a folder with one sub-folder a class.")],
    unknown: Annotated[float, Unknown] = 0.05,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures to this file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a table to this file, a line a picture.")] = None,
    device: Device = "auto",
    backbone: Own = None,
) -> None:
    """Say how well a model does on pictures that you have labels for; classes that it does not know are strangers.

    The exit code is 1 where some of the pictures cannot be read.
    """
    from faverage.afa.explain import Table
    from faverage.app.evaluate import NONE, evaluation_page, rows_csv
    from faverage.app.evaluate import evaluate as ask
    from faverage.progress import Progress

    if not 0 < unknown < 1:
        raise ModelError(f"--unknown must be a rate between 0 and 1, such as 0.05, got {unknown:g}")
    known = _load(model, device, backbone)
    _check_output("--html", html, ".html")
    _check_output("--csv", csv, ".csv")
    with Progress() as bar:
        found = ask(known, images, unknown=unknown, progress=bar)
    shares = [("all known classes", "all"), ("base classes", "base"), ("taught classes", "new")]
    rows = [(name, len(found.of(which)), _share(found.accuracy(which))) for name, which in shares if found.of(which)]  # type: ignore[arg-type]
    if rows:
        say(f"{Table(('pictures of', 'pictures', 'right'), rows).to_markdown()}\n")
        say(f"Macro F1: {_share(found.macro_f1)}. Of these, {_share(found.none(found.of('all')))} are '{NONE}'.")
    if found.strangers:
        names = sorted({one.label for one in found.strangers})
        listed = ", ".join(f"'{name}'" for name in names[:5]) + (
            f" and {len(names) - 5} more" if len(names) > 5 else ""
        )
        count = pictures_of(len(found.strangers))
        share = _share(found.none(found.strangers))
        say(f"Of {count} of classes that it does not know ({listed}), {share} are '{NONE}'.")
    if found.confused():
        say(f"\n{Table(('shows', 'taken for', 'pictures'), found.confused()[:10]).to_markdown()}\n")
    if csv is not None:
        _write(csv, rows_csv(found))
    if html is not None:
        _write(html, evaluation_page(found, f"{model.resolve().name} on {images.resolve().name}"))
    wrote = " and ".join(str(file) for file in (html, csv) if file is not None)
    say(f"Wrote {wrote}." if wrote else "With --html FILE and --csv FILE: what is taken for what, with pictures.")
    _tell_broken(list(found.broken), len(found.rows) + len(found.broken))


def _print_answers(found: list[tuple[Path, Any]], top: int, unknown: float | None, as_json: bool) -> None:
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


def explain(model: ModelFolder, backbone: Own = None) -> None:
    """Show what a model knows, its history, and which member and mean it trusts for which class."""
    from faverage.afa.explain import Table

    known = _load(model, "cpu", backbone)
    rows = [(c.name, c.count, "base" if c.session == 0 else f"session {c.session}") for c in known.classes()]
    say(f"**Classes**\n\n{Table(('class', 'pictures', 'learned in'), rows).to_markdown()}\n")
    lines = [(line.get("when", ""), line.get("words", "")) for line in known.history()]
    say(f"**History**\n\n{Table(('when', 'what'), lines).to_markdown()}\n")
    try:
        say(known.explain().to_markdown())
    except ModelError as error:
        say(str(error)[:1].upper() + str(error)[1:] + ".")


def forget(
    model: ModelFolder, name: Annotated[str, typer.Argument(help="A class that it knows.")], backbone: Own = None
) -> None:
    """Make a model forget a class."""
    known = _load(model, "cpu", backbone)
    with waiting("learning without it"):
        known.forget(name)
    say(f"Forgot '{clean_name(name)}'. Take it back with: faverage undo {quoted(model)}")


def rename(
    model: ModelFolder,
    old: Annotated[str, typer.Argument(help="A class that it knows.")],
    new: Annotated[str, typer.Argument(help="The name to give it.")],
    backbone: Own = None,
) -> None:
    """Give a class of a model another name."""
    _load(model, "cpu", backbone).rename(old, new)
    say(f"'{clean_name(old)}' is now '{clean_name(new)}'. Take it back with: faverage undo {quoted(model)}")


def merge(
    model: ModelFolder,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="A model with the same backbone; it stays as it is.")],
    backbone: Own = None,
) -> None:
    """Add all that another model knows; both must come from the same trained network."""
    known = _load(model, "cpu", backbone)
    with waiting("learning from both"):
        new = known.merge(other)
    brought = ", ".join(f"'{name}'" for name in new) or "no new class"
    say(f"{other} brought {brought}. {model} now knows {_classes(known)}.")
    say(f"Take it back with: faverage undo {quoted(model)}")


def undo(model: ModelFolder, backbone: Own = None) -> None:
    """Undo the last change of a model: a teaching, a forgetting, a new name or a merge."""
    say(f"Undone: {_load(model, 'cpu', backbone).undo()}.")


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="The file to write.")],
    backbone: Own = None,
) -> None:
    """Write a model as one ONNX file, which runs without Python."""
    from faverage.app.onnx import export_learner

    known = _load(model, "cpu", backbone)
    _check_output("", out, ".onnx")
    worst = export_learner(known, out)
    say(f"Wrote {out}: images (n, {known.side}, {known.side}, 3) in, probabilities out; within {worst:.0e}.")


def _load(folder: Path, device: str, backbone: str | None) -> Any:
    """Return the model in a folder; ``backbone`` names the network that its maker wrote."""
    from faverage.app.model import Model
    from faverage.app.own import given_backbone

    return Model.load(folder, device=device, backbone=given_backbone(backbone, folder))


def _new(folder: Path, backbone: str | None, device: str) -> Any:
    """Return a new model that knows nothing; say so, since a name may have been mistyped."""
    from faverage.app.own import PHOTOS
    from faverage.app.train import empty_model

    made = empty_model(folder, backbone=backbone, device=device)
    say(f"There was no model in {folder}: made one that knows nothing yet and sees with {backbone or PHOTOS}.")
    return made


def _check_output(option: str, file: Path | None, suffix: str) -> None:
    """Refuse, before the work, a file that cannot be written, or whose name says that it is something else."""
    if file is None:
        return
    called = f"{option} {file}".strip()
    if file.is_dir():
        raise ModelError(f"{called} is a folder: give a file")
    if file.suffix.lower() != suffix:
        raise ModelError(f"{called} must end in {suffix}")
    if not file.parent.is_dir():
        raise ModelError(f"cannot write {file}: the folder {file.parent} does not exist")


def _write(file: Path, content: str) -> None:
    from faverage.storage import replacing

    with replacing(file) as partial:
        partial.write_text(content, encoding="utf-8", errors="backslashreplace")


def _answers_csv(found: list[tuple[Path, Any]], unknown: float | None) -> str:
    from faverage.report.tables import csv_table, exact

    lines = []
    for file, answer in found:
        (name, p), fits = answer.top[0], answer.familiarity
        none = [] if unknown is None else ["yes" if answer.unknown(unknown) else "no"]
        lines.append([str(file), name, exact(p), exact(fits), *none])
    columns = ["file", "answer", "probability", "familiarity", *([] if unknown is None else ["none of these"])]
    return csv_table(columns, lines)


def _tell_broken(broken: list[tuple[Path, str]], total: int) -> None:
    """List the pictures that cannot be read; the exit code is then 1."""
    if not broken:
        return
    typer.echo(printable(f"{len(broken):,} of {pictures_of(total)} cannot be read:"), err=True)
    for file, wrong in broken[:50]:
        typer.echo(printable(f"  {file}: {wrong}"), err=True)
    if len(broken) > 50:
        typer.echo(f"  and {len(broken) - 50:,} more", err=True)
    raise typer.Exit(1)


def _share(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _classes(model: Any) -> str:
    """Return how many classes a model knows, in words."""
    count = len(model.classes())
    return f"{count} class{'' if count == 1 else 'es'}"
