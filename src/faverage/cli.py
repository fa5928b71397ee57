"""The command line: it parses, calls and prints.

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
from faverage.fuse import Screen, UserError, apply_files, fuse_files, show

__all__ = ["app", "main"]


class _Group(TyperGroup):
    """Turns a ``UserError`` of any command into one red line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            line = Text.assemble(("Error: ", "bold red"), (" ".join(str(error).split()), "red"))
            Console(stderr=True).print(line, soft_wrap=True)
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
    folds: Annotated[int, typer.Option(help="Folds of the comparison of fusers.")] = 5,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what is odd instead of warning.")] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Take rows that a file lacks for 'no answer'.")
    ] = False,
    id: Annotated[str | None, typer.Option(help="The column of ids.", show_default="the first")] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels.", show_default="label")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Learn from labelled rows how to fuse the predictions of several models, and predict every row.

    Each file has a column of ids and one column a class. Beside the predictions, report.html says what was learned, and
    fuser.safetensors can be applied to new predictions of the same models.
    """
    console = Console()
    with Screen(Console(stderr=True)) as screen:
        if apply is not None:
            if labels is not None or fuser is not None or label is not None:
                raise UserError("--apply takes a fitted fuser as it is: leave out --labels, --label and --fuser")
            written = apply_files(
                apply,
                files,
                out,
                strict=strict,
                allow_missing=allow_missing,
                id_column=id,
                force=force,
                listener=screen,
            )
            console.print(Text(f"Wrote {written}"), soft_wrap=True)
            return
        if labels is None:
            raise UserError("give --labels FILE to learn from, or --apply FUSER to use an earlier run")
        result = fuse_files(
            files,
            labels,
            out,
            fuser=fuser or "afa",
            folds=folds,
            strict=strict,
            allow_missing=allow_missing,
            id_column=id,
            label_column=label,
            seed=seed,
            force=force,
            listener=screen,
        )
    show(result, console)


def main() -> None:
    """Run the command line."""
    app()
