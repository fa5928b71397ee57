"""The command ``doctor``: what is installed, which device is seen, and what is missing for what.

It needs typer alone, so that it can speak where torch cannot be imported.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import textwrap
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer

from faverage import __version__
from faverage.errors import install_line

__all__ = ["FEATURES", "alone", "doctor"]

FEATURES = {
    "plot": "figures of 'run' as SVG and PDF, plots of explanations",
    "photos": "'train' and 'teach' with ready weights for photos",
    "app": "'serve'",
    "onnx": "'export', export_onnx",
    "scale": "'run --devices', 'sweep --engine dask'",
    "tensorboard": "'run --tensorboard'",
}
"""What each extra is for."""

_PARQUET = {"pandas": "", "pyarrow": ""}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is installed, which device is seen, and what is missing for which command, with the line to type."""
    found = examine()
    typer.echo(json.dumps(found, indent=1) if as_json else in_words(found))


def alone() -> None:
    """Run the command without loading the others."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(lambda: None)  # so that its name is expected
    app.command()(doctor)
    app(prog_name="faverage")


def examine() -> dict[str, Any]:
    """Return versions of packages (None: missing), the device, and for each feature what it lacks and what to type."""
    wanted = _requirements()
    features = []
    for extra, what in FEATURES.items():
        lacking = _lacking(wanted.get(extra, {}))
        line = install_line(extra) if lacking else None
        features.append({"extra": extra, "for": what, "missing": lacking, "install": line})
    lacking = _lacking(_PARQUET)
    line = f"{install_line('plot').partition(' install ')[0]} install {' '.join(lacking)}" if lacking else None
    features.append({"extra": None, "for": ".parquet files in 'fuse'", "missing": lacking, "install": line})
    names = {name for extra in ("", *FEATURES) for name in wanted.get(extra, {})} | _PARQUET.keys()
    return {
        "faverage": __version__,
        "folder": str(Path(__file__).parents[1]),
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": _device(),
        "packages": {name: _version(name) for name in sorted(names, key=str.lower)},
        "missing": _lacking(wanted[""]),
        "features": features,
    }


def in_words(found: dict[str, Any]) -> str:
    """Return what was found as text for a terminal."""
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items() if number is not None)
    lines = [f"faverage {found['faverage']} in {found['folder']}", f"Python {found['python']}", found["system"]]
    lines += [
        f"device: {found['device']}",
        textwrap.fill(f"packages: {packages}", 100, subsequent_indent="  ", break_on_hyphens=False),
    ]
    if found["missing"]:
        lines.append(f"MISSING, and needed by everything: {', '.join(found['missing'])}")
    lines += ["", "Fusing models and running experiments need no more than that. What extras are for:"]
    for one in found["features"]:
        what = one["for"] + (f" (extra '{one['extra']}')" if one["extra"] else "")
        if one["missing"]:
            lines += [f"  no   {what}: lacks {', '.join(one['missing'])}", f"       {one['install']}"]
        else:
            lines.append(f"  yes  {what}")
    return "\n".join(lines)


def _requirements() -> dict[str, dict[str, str]]:
    """Return what each extra needs, and '' what everything does: names of packages, and their lowest versions."""
    file = Path(__file__).parents[3] / "pyproject.toml"
    if file.is_file():  # a checkout, which may have changed since it was installed
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        said = {"": project["dependencies"], **project["optional-dependencies"]}
    else:
        said = {"": []}
        for line in requires("faverage") or ():
            requirement, _, when = line.partition(";")
            extra = re.search(r"extra == ['\"](\w+)['\"]", when)
            said.setdefault(extra.group(1) if extra else "", []).append(requirement.strip())
    wanted: dict[str, dict[str, str]] = {}
    for extra, lines in said.items():
        parts = [re.match(r"([\w.-]+)(?:\[[\w,]+\])?(?:>=([\d.]+))?", line) for line in lines]
        found = [part.groups("") for part in parts if part is not None]
        wanted[extra] = {name: lowest for name, lowest in found if name != "faverage"}
    return wanted


def _lacking(needed: dict[str, str]) -> list[str]:
    """Return the packages that are missing, or older than is needed."""
    lacking = []
    for name, lowest in needed.items():
        found = _version(name)
        if found is None:
            lacking.append(name)
        elif _numbers(found) < _numbers(lowest):
            lacking.append(f"{name}>={lowest} (there is {found})")
    return lacking


def _numbers(said: str) -> list[int]:
    """Return the numbers that a version begins with.

    >>> _numbers("2.13.0+cpu"), _numbers("0.18rc1"), _numbers("")
    ([2, 13, 0], [0, 18], [])
    """
    found = re.match(r"[\d.]*", said)
    return [int(part) for part in (found.group() if found else "").split(".") if part]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device() -> str:
    """Return what ``--device auto`` takes."""
    try:
        import torch

        if torch.cuda.is_available():
            return f"cuda, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
        return "cpu"
    except Exception as error:  # whatever is wrong with torch, it is what this command is asked for
        return f"none: torch cannot be imported ({error})"
