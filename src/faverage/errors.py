"""Errors that a user can fix: one class, its kinds, and fields, so that no caller has to parse a message."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

__all__ = [
    "BusyError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ModelError",
    "OtherTrainingError",
    "UserError",
    "install_line",
]


class UserError(ValueError):
    """A mistake in what was given: files, columns, settings. The command line shows its message and no traceback.

    Args:
        reason: what is wrong; the whole message where there is no hint.
        what: the thing that it is about, such as a file or the name of a setting.
        hint: what to do about it; the message ends with it.

    >>> error = UserError("no such file: a.csv", what="a.csv", hint="name another")
    >>> str(error), error.what
    ('no such file: a.csv: name another', 'a.csv')
    """

    joint: ClassVar[str] = ": "

    def __init__(self, reason: str, *, what: object = None, hint: str = "") -> None:
        super().__init__(reason)
        self.what, self.hint = what, hint

    @property
    def reason(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.reason}{self.joint}{self.hint}" if self.hint else self.reason


class ConfigError(UserError):
    """An invalid setting: the message names it and says what was expected.

    >>> from faverage.experiment import RunConfig
    >>> RunConfig.build("digits", None, {"methods": ["aha"]})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    faverage.errors.ConfigError: ...'aha'...
    """


class DataError(UserError):
    """Data that is absent, or not what its protocol says: the message says what was expected where.

    >>> from faverage.data import load_benchmark
    >>> load_benchmark("digitz")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    faverage.errors.DataError: unknown benchmark 'digitz'; known are: ...; did you mean 'digits'?
    """


class ModelError(UserError):
    """Something wrong with a name, a picture or the folder of a model: the message says what to do."""


class BusyError(ModelError):
    """Another process holds the model: try again in a moment."""


class CheckpointError(UserError):
    """A checkpoint that is broken, or belongs to another training; ``what`` is its path.

    >>> import tempfile
    >>> from faverage.vision import get_backbone, load_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "weights.safetensors")
    ...     _ = file.write_text("not weights")
    ...     try:
    ...         load_weights(get_backbone("tiny"), file)
    ...     except CheckpointError as error:
    ...         print(error.what.name, "in", error)  # doctest: +ELLIPSIS
    weights.safetensors in ...weights.safetensors cannot be read as a checkpoint: ...
    """

    joint = "; "


class OtherTrainingError(CheckpointError):
    """A whole checkpoint of another training.

    Args:
        reason: what is wrong.
        differences: settings that differ, as (name, value there, value here).
        **more: ``what``, the path of the checkpoint, and ``hint``.
    """

    joint = ". "

    def __init__(self, reason: str, *, differences: Sequence[tuple[str, object, object]] = (), **more: Any) -> None:
        super().__init__(reason, **more)
        self.differences = tuple(differences)


def install_line(extra: str) -> str:
    """Return the command that installs an extra of this package, from where the package itself came.

    That is a checkout, a folder, a file or an address; the index, where none of these is known.

    >>> install_line("app")[-6:-1], " install " in install_line("app")
    ('[app]', True)
    """
    python, pip = sys.executable, shutil.which("pip")
    ours = pip is not None and Path(pip).parent == Path(sysconfig.get_path("scripts"))
    mark = '"' if os.name == "nt" else "'"
    return f"{'pip' if ours else f'{_here(Path(python))} -m pip'} install {_origin(mark, f'[{extra}]')}"


def _origin(mark: str, extra: str) -> str:
    """Return what pip is given for this package with an extra, in quotation marks."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, and seldom needed
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    root = Path(__file__).parents[2]
    if (root / "pyproject.toml").is_file():  # a checkout
        return f"-e {mark}{_here(root)}{extra}{mark}"
    try:
        told = json.loads(distribution("faverage").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        told = {}
    url, kind = str(told.get("url", "")), (told.get("vcs_info") or {}).get("vcs")
    if url.startswith("file:") and not kind:
        return f"{mark}{_here(Path(url2pathname(urlsplit(url).path)))}{extra}{mark}"
    return f"{mark}faverage{extra}{f' @ {kind}+{url}' if kind else f' @ {url}' if url else ''}{mark}"


def _here(path: Path) -> Path:
    """Return a path as it is typed here: relative where it lies below the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
