"""A fitted fuser on disk together with what it takes to apply it: the models' names and classes, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faverage.fuse.base import Listener, UserError, model_names, some
from faverage.fuse.tables import Predictions
from faverage.fusion import Fuser, load_fuser
from faverage.storage import read_tensors, write_tensors

__all__ = ["Bundle", "load_bundle", "save_bundle"]

_KIND = "fused-models"


@dataclass(frozen=True)
class Bundle:
    """A fuser, its N classes, and for each of its K models the name and the classes that it knows."""

    fuser: Fuser
    classes: list[str]
    models: list[str]
    known: list[list[str]]

    def order(self, files: Sequence[Path], listener: Listener) -> list[int]:
        """Return, for each model, which of the files is its: by name where names match, else by position."""
        if len(files) != len(self.models):
            raise UserError(
                f"the fuser was fitted on {len(self.models)} models ({some(self.models, 20)}), "
                f"but {len(files)} files were given"
            )
        names = model_names(files)
        left = [i for i, name in enumerate(names) if name not in self.models]
        chosen = [names.index(model) if model in names else left.pop(0) for model in self.models]
        guessed = [f"{files[i]} as '{m}'" for m, i in zip(self.models, chosen, strict=True) if names[i] != m]
        if guessed:
            listener.warn(f"files fit the fuser's models by position only, not by name: {', '.join(guessed)}")
        return chosen

    def check(self, model: int, table: Predictions) -> None:
        """Refuse a file whose classes are not those that its model had when the fuser was fitted."""
        expected, found = set(self.known[model]), set(table.classes)
        lacking = [name for name in self.known[model] if name not in found]
        extra = [name for name in table.classes if name not in expected]
        if lacking or extra:
            parts = [f"lacks the class {some(lacking)}"] if lacking else []
            parts += [f"has the class {some(extra)}, which was not there when the fuser was fitted"] if extra else []
            raise UserError(f"{table.path} {' and '.join(parts)} (model '{self.models[model]}')")


def save_bundle(bundle: Bundle, path: Path) -> Path:
    """Write a bundle as one safetensors file. The rows that ``partial_fit`` would train on again stay out of it."""
    with tempfile.TemporaryDirectory() as folder:
        config, tensors = read_tensors(bundle.fuser.save(Path(folder) / "fuser.safetensors"), "fuser")
    learned = {name: tensor for name, tensor in tensors.items() if not name.startswith("kept.")}
    about = {"fuser": config, "classes": bundle.classes, "models": bundle.models, "known": bundle.known}
    return write_tensors(path, _KIND, about, learned)


def load_bundle(path: Path) -> Bundle:
    """Read what ``save_bundle`` wrote, or raise UserError that says what the file is instead."""
    try:
        about, tensors = read_tensors(path, _KIND)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = write_tensors(Path(folder) / "fuser.safetensors", "fuser", about["fuser"], tensors)
            try:
                fuser = load_fuser(copy)
            except ValueError as error:
                raise UserError(str(error).replace(str(copy), str(path))) from None
        bundle = Bundle(fuser, about["classes"], about["models"], about["known"])
        sizes = (len(bundle.models), len(bundle.known), len(bundle.classes))
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} does not describe fused models: {error}") from None
    if sizes != (fuser.n_models, fuser.n_models, fuser.n_classes):
        raise UserError(f"{path} names {sizes[0]} models and {sizes[2]} classes, but its fuser has others")
    return bundle
