"""The commands of fusing and of experiments, and where all commands come together.

A new command is a function with ``@app.command()``; errors that a user can fix are raised as ``UserError``.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from faverage import __version__
from faverage.app.server.serve import command as serve
from faverage.cli.console import Stages, told
from faverage.cli.doctor import doctor
from faverage.cli.model import register
from faverage.deprecation import shown
from faverage.errors import UserError

__all__ = ["app"]


def printable(words: str) -> str:
    """Return words for a terminal, see ``prediction_files``, which help and completion need not wait for."""
    from faverage.prediction_files.base import printable as escaped

    return escaped(words)


class _Group(TyperGroup):
    """Shows a ``UserError`` of any command, whatever its kind, as a red message; the exit code is 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        first, *others = super().list_commands(ctx)
        return [first, "run", *others]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # its settings are declared with experiments, which take time to import: not for every command
        return _run_command() if cmd_name == "run" else super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            with shown(lambda words: Console(stderr=True).print(Text(f"Warning: {printable(words)}"), soft_wrap=True)):
                return super().invoke(ctx)
        except UserError as error:
            first, *rest = str(error).split("\n")
            console = Console(stderr=True)
            console.print(Text.assemble(("Error: ", "bold red"), (printable(first), "red")), soft_wrap=True)
            for line in rest:
                console.print(Text(printable(line)), soft_wrap=True)
            raise typer.Exit(2) from None


app = typer.Typer(cls=_Group, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"faverage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
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
        str | None, typer.Option(help="Fusers to compare, separated by commas; none: no table.", show_default="all")
    ] = None,
    by_position: Annotated[
        bool,
        typer.Option(
            "--by-position", help="With --apply: the files come in the order of the models, whatever their names."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Count rows that a file lacks as 'no answer'.")
    ] = False,
    id: Annotated[str | None, typer.Option(help="The column of ids in every file.", show_default="the first")] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="The column of true classes in the file of --labels, as in --label species.",
            show_default="label, or the only one beside the ids",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.", show_default="0")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Learn from labelled rows how to fuse the predictions of several models, and predict every row.

    Each file has a column of ids and one column a class. Beside the predictions, report.html says what was learned, and
    fuser.safetensors can be applied to new predictions of the same models.
    """
    from faverage.prediction_files import Screen, apply_files, fuse_files, show

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
def forecasts(
    hub: Annotated[Path, typer.Argument(help="A forecast hub: the folder with model-output and target-data.")],
    out: Annotated[Path, typer.Option(help="Folder to write, which must not exist.")],
    season: Annotated[str | None, typer.Option(help="Such as 2023-2024, August to July.", show_default="all")] = None,
    target: Annotated[str | None, typer.Option(help="The target, where the hub has several.")] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            help="File of the truth under the hub, or a pattern of dated versions of it.",
            show_default="target-data/time-series.csv",
        ),
    ] = None,
    horizon: Annotated[list[int] | None, typer.Option(help="A horizon to use; repeat it.", show_default="all")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Model that scores are relative to.", show_default="TEAM-baseline")
    ] = None,
    rival: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of models to compare and not to fuse.", show_default="the baseline's team"),
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help="Pattern of models to leave out.")] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Widen intervals that held too little on earlier dates.")
    ] = False,
) -> None:
    """Fuse the quantile forecasts of a hub, date by date, with weights learned from earlier dates alone.

    Writes model-output in the hub's own format, scores.csv and weights.csv.
    """
    from faverage.forecasts.hub import fuse_hub, score_table
    from faverage.prediction_files import Screen

    with Screen(Console(stderr=True)) as screen:
        scores = fuse_hub(
            hub,
            out,
            season=season,
            target=target,
            truth=truth,
            horizons=horizon or (),
            baseline=baseline,
            rivals=rival or (),
            without=without or (),
            calibrate=calibrate,
            listener=screen,
        )
    typer.echo(score_table(scores))
    Console().print(Text(f"Wrote {printable(str(out))}/model-output, scores.csv, weights.csv"), soft_wrap=True)


def run(
    dataset: Annotated[str | None, typer.Argument(help="A benchmark.", show_default="digits")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.", show_default="runs/DATASET")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings, or the paper's: table4, …")] = None,
    save_features: Annotated[
        Path | None, typer.Option(help="File (.npz) for features of shots and tests, to give to --features.")
    ] = None,
    **given: Any,
) -> None:
    """Train on base classes, learn the sessions, compare the methods: the paper's experiment on one data set.

    A run that was stopped continues when it is started again with the same settings.
    """
    import shlex
    import sys

    from faverage.experiment import RunConfig
    from faverage.experiment import run as carry_out
    from faverage.experiment.tables import markdown
    from faverage.experiment.trouble import explain

    settings = RunConfig.build(dataset, config, given)
    folder = out or Path("runs") / settings.dataset
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
    Console().print(Text(markdown(results, short=True)), soft_wrap=True)
    more = ", figures" if (folder / "figures").is_dir() else ""
    more += f", and {save_features}" if save_features is not None else ""
    wrote = f"Wrote {folder}/results.json, table.md, table.tex, table.csv, report.html{more}"
    Console().print(Text(wrote), soft_wrap=True)


@functools.cache
def _run_command() -> Any:
    """Return the command ``run`` with an option for each setting that is declared to have one."""
    from faverage.experiment.config import SETTINGS
    from faverage.experiment.given import DROPPED

    *own, _ = inspect.signature(run, eval_str=True).parameters.values()
    for name, one in SETTINGS.items():
        if one.option:
            words = one.option if isinstance(one.option, str) else f"{one.help[:1].upper()}{one.help[1:]}."
            usual = one.shown or (False if one.default is None else str(one.default))
            kind: Any = (int if one.kind is int else one.typed) | None
            option = typer.Option(help=words, show_default=usual)
            own.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
                )
            )

    for name in DROPPED:
        added = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        own.append(added.replace(annotation=Annotated[str | None, typer.Option(hidden=True)]))

    def command(**given: Any) -> None:
        run(**given)

    command.__doc__, command.__signature__ = run.__doc__, inspect.Signature(own)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command("run")(command)
    return typer.main.get_command(alone)


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

    Finished runs are kept: the same command continues a sweep that was stopped. The exit code is 1 where runs failed.
    """
    import shlex
    import sys

    from faverage.experiment.sweep.run import sweep_command

    options: dict[str, Any] = {"jobs": jobs, "engine": engine, "scheduler": scheduler, "retries": retries}
    raise typer.Exit(sweep_command(file, out, **options, command=shlex.join(["faverage", *sys.argv[1:]])))


register(app)
app.command("serve")(told(serve))
app.command()(doctor)
