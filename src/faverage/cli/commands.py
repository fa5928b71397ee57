"""The commands of fusing and of experiments, and where all commands come together.

A new command is a function with ``@app.command()``; whatever a person can put right is raised as ``UserError``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from faverage import __version__
from faverage.app.names import ModelError
from faverage.app.server.serve import command as serve
from faverage.cli.model import register
from faverage.prediction_files import Screen, UserError, apply_files, fuse_files, show
from faverage.prediction_files.base import printable

__all__ = ["app"]


class _Group(TyperGroup):
    """Turns a ``UserError`` or ``ModelError`` of any command into a red message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (UserError, ModelError) as error:
            first, *rest = str(error).split("\n")
            console = Console(stderr=True)
            console.print(Text.assemble(("Error: ", "bold red"), (printable(first), "red")), soft_wrap=True)
            for line in rest:
                console.print(Text(printable(line)), soft_wrap=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"faverage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Fuse models with learned, readable averages."""


@app.command()
def fuse(
    files: Annotated[list[Path], typer.Argument(help="Predictions: one .csv, .npz or .parquet file a model.")],
    out: Annotated[Path, typer.Option(help="The .csv file to write.")],
    labels: Annotated[Path | None, typer.Option(help="Ids and their labels, to learn from.")] = None,
    apply: Annotated[
        Path | None, typer.Option(help="A fuser.safetensors of an earlier run, instead of labels.")
    ] = None,
    fuser: Annotated[str | None, typer.Option(help="The fuser to fit.", show_default="afa")] = None,
    folds: Annotated[int | None, typer.Option(help="Folds of the comparison of fusers.", show_default="5")] = None,
    compare: Annotated[
        str | None, typer.Option(help="Fusers to compare, with commas between; none: no table.", show_default="all")
    ] = None,
    by_position: Annotated[
        bool,
        typer.Option("--by-position", help="With --apply: the files are the models in order, whatever their names."),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what is odd instead of warning.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Take rows that a file lacks for 'no answer'.")
    ] = False,
    id: Annotated[str | None, typer.Option(help="The column of ids.", show_default="the first")] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels.", show_default="label")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.", show_default="0")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Learn from labelled rows how to fuse the predictions of several models, and predict every row.

    Each file has a column of ids and one column a class. Beside the predictions, report.html says what was learned, and
    fuser.safetensors can be applied to new predictions of the same models.
    """
    console = Console()
    with Screen(Console(stderr=True)) as screen:
        if apply is not None:
            given = {"labels": labels, "label": label, "fuser": fuser, "folds": folds, "seed": seed, "compare": compare}
            needless = [f"--{name}" for name, value in given.items() if value is not None]
            if needless:
                raise UserError(f"--apply takes a fitted fuser as it is: leave out {', '.join(needless)}")
            written = apply_files(
                apply,
                files,
                out,
                by_position=by_position,
                strict=strict,
                allow_missing=allow_missing,
                id_column=id,
                force=force,
                listener=screen,
            )
            console.print(Text(f"Wrote {printable(str(written))}"), soft_wrap=True)
            return
        if labels is None:
            raise UserError("give --labels FILE to learn from, or --apply FUSER to use an earlier run")
        if by_position:
            raise UserError("--by-position goes with --apply: what is learned from labels needs no order")
        result = fuse_files(
            files,
            labels,
            out,
            fuser=fuser or "afa",
            folds=5 if folds is None else folds,
            compare="all" if compare is None else compare,
            strict=strict,
            allow_missing=allow_missing,
            id_column=id,
            label_column=label,
            seed=0 if seed is None else seed,
            force=force,
            listener=screen,
        )
    show(result, console)


@app.command()
def run(
    dataset: Annotated[str | None, typer.Argument(help="A benchmark.", show_default="digits")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="runs/DATASET")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Names, with commas between; all: every one.", show_default="the fusers")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of the data.", show_default="$FAVERAGE_DATA")] = None,
    features: Annotated[str | None, typer.Option(help="Ready features (.npz) instead of images.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.", show_default="0")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.", show_default="auto")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the base session.")] = None,
    shots: Annotated[int | None, typer.Option(help="Examples of each new class.", show_default="5")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="shared; best: views, networks; paper: rivals' own.", show_default="shared"),
    ] = None,
    views: Annotated[
        int | None, typer.Option(help="How many of the settings' views to fuse; 1 is fast.", show_default="all")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, with commas between: a run each.")] = None,
    draws: Annotated[int | None, typer.Option(help="How often to draw the few shots.", show_default="1")] = None,
    weights: Annotated[str | None, typer.Option(help="A checkpoint for the backbone to start from.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Processes that share training, on a GPU each or on the CPU.", show_default="1"),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Machines that share training.", show_default="1")] = None,
    strategy: Annotated[str | None, typer.Option(help="How they share it.", show_default="ddp")] = None,
    jobs: Annotated[int | None, typer.Option(help="Methods at a time.", show_default="all cores")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="Folder for TensorBoard.")] = None,
    save_features: Annotated[
        Path | None, typer.Option(help="File (.npz) for features of shots and tests, to give to --features.")
    ] = None,
) -> None:
    """Train on base classes, learn the sessions, compare the methods: the paper's experiment on one data set.

    A run that was stopped goes on where it was when it is started again with the same settings.
    """
    import shlex
    import sys

    from faverage.experiment import ConfigError, RunConfig
    from faverage.experiment import run as carry_out
    from faverage.experiment.report import markdown
    from faverage.experiment.screen import Stages
    from faverage.experiment.trouble import explain

    given = {"methods": methods, "data": data, "features": features, "seed": seed, "device": device, "epochs": epochs}
    given |= {"shots": shots, "weights": weights, "jobs": jobs, "tensorboard": tensorboard}
    given |= {"recipe": recipe, "seeds": seeds, "draws": draws}
    given |= {"views": views, "devices": devices, "nodes": nodes, "strategy": strategy}
    try:
        settings = RunConfig.build(dataset, config, given)
        folder = out or Path("runs") / settings.dataset
    except ConfigError as error:
        raise UserError(str(error)) from None
    screen = Stages(Console(stderr=True))
    try:
        with screen:
            command = shlex.join(["faverage", *sys.argv[1:]])
            say = screen.progress
            results = carry_out(settings, folder, command=command, progress=say, save_features=save_features)
    except (Exception, KeyboardInterrupt) as error:
        said = explain(error, folder, screen.stage)
        if said is None:
            raise
        if not said:
            raise typer.Exit(2) from None
        if not isinstance(error, KeyboardInterrupt):
            raise UserError(said) from None
        screen.console.print(Text(said[:1].upper() + said[1:]), soft_wrap=True)
        raise typer.Exit(130) from None
    if results is None:  # not the first of several processes
        return
    Console().print(Text(markdown(results)), soft_wrap=True)
    more = f", and {save_features}" if save_features is not None else ""
    wrote = f"Wrote {folder}/results.json, table.md, table.tex, table.csv, report.html{more}"
    Console().print(Text(wrote), soft_wrap=True)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="Settings of a run, and options to vary.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="runs/NAME")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.", show_default="all cores, 1 on a GPU")] = None,
    engine: Annotated[str, typer.Option(help="loky: this machine; dask: a cluster.")] = "loky",
    scheduler: Annotated[str | None, typer.Option(help="Address of the cluster's scheduler.")] = None,
    retries: Annotated[int, typer.Option(help="How often to try again what failed.")] = 1,
) -> None:
    """Run methods x seeds x draws x options, and name the best setting by held-out loss.

    Finished runs are kept: the same command goes on where it was stopped. The exit code is 1 where runs failed.
    """
    import shlex
    import sys

    from faverage.experiment import ConfigError
    from faverage.experiment.sweep.run import sweep_command

    options: dict[str, Any] = {"jobs": jobs, "engine": engine, "scheduler": scheduler, "retries": retries}
    try:
        code = sweep_command(file, out, **options, command=shlex.join(["faverage", *sys.argv[1:]]))
    except ConfigError as error:
        raise UserError(str(error)) from None
    raise typer.Exit(code)


register(app)
app.command("serve")(serve)
