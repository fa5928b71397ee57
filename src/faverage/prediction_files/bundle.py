"""A fitted fuser on disk together with what it takes to apply it: the models' names and classes, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faverage.fusion import Fuser
from faverage.fusion.base import unpack_fuser
from faverage.prediction_files.base import UserError, model_names, some
from faverage.prediction_files.tables import Predictions
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

    def order(self, files: Sequence[Path], by_position: bool) -> list[int]:
        """Return, for each model, which of the files is its: by name, or with ``by_position`` in the order given.

        The file ``a_new`` is that of the model ``a``: its words begin with the model's. Otherwise names are compared
        without the words that all of them share: ``svm-test``, ``net-test`` are those of ``svm-val``, ``net-val``.
        """
        if len(files) != len(self.models):
            raise UserError(
                f"the fuser was fitted on {len(self.models)} models ({some(self.models, 20)}), "
                f"but {len(files)} files were given"
            )
        if by_position:
            return list(range(len(files)))
        names = model_names(files)
        words, models = _words(names), _words(self.models)
        begun = [max((m for m in models if w[: len(m)] == m), key=len, default=w) for w in words]
        pairs: list[tuple[list[Any], list[Any]]] = [(names, self.models), (begun, models), (_own(words), _own(models))]
        for found, wanted in pairs:
            if sorted(found) == sorted(wanted) and len(set(found)) == len(found):
                return [found.index(key) for key in wanted]
        raise UserError(
            f"the names of the files ({some(names, 20)}) do not say which is whose: the fuser was fitted on the models "
            f"{some(self.models, 20)}. Give the files names that begin with the models', or give them in the order of "
            "the models and add --by-position"
        )

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
    config, tensors = bundle.fuser.pack()
    learned = {name: tensor for name, tensor in tensors.items() if not name.startswith("kept.")}
    about = {"fuser": config, "classes": bundle.classes, "models": bundle.models, "known": bundle.known}
    return write_tensors(path, _KIND, about, learned)


def load_bundle(path: Path) -> Bundle:
    """Read what ``save_bundle`` wrote, or raise UserError that says what the file is instead."""
    try:
        about, tensors = read_tensors(path, _KIND)
    except (OSError, ValueError) as error:
        raise UserError(str(error), what=path) from None
    try:
        fuser = unpack_fuser(about.get("fuser"), tensors)
        classes, models = (_names(about.get(key), f"{key} of the file") for key in ("classes", "models"))
        given = about.get("known")
        if not isinstance(given, list) or len(given) != len(models):
            raise ValueError("its models and the lists of what they know differ in number")
        known = [_names(each, f"the classes of the model '{model}'") for each, model in zip(given, models, strict=True)]
        if not all(set(each) <= set(classes) for each in known):
            raise ValueError("a model knows a class that the file does not name")
        if (fuser.n_models, fuser.n_classes) != (len(models), len(classes)):
            raise ValueError(
                f"it names {len(models)} models and {len(classes)} classes, but its fuser has {fuser.n_models} and "
                f"{fuser.n_classes}"
            )
    except ValueError as error:
        raise UserError(f"{path} does not describe fused models: {error}", what=path) from None
    return Bundle(fuser, classes, models, known)


def _names(given: Any, what: str) -> list[str]:
    """Return a list of different names, or raise ValueError."""
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise ValueError(f"{what} must be a list of different names")
    return given


def _words(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the words of each name, in lower case.

    >>> _words(["svm-Test_1"])
    [('svm', 'test', '1')]
    """
    return [tuple(re.findall(r"[^\W_]+", name.lower())) for name in names]


def _own(words: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave out the words that all names share.

    >>> _own([("svm", "test"), ("net", "test")])
    [('svm',), ('net',)]
    """
    shared = set.intersection(*map(set, words))
    return [tuple(word for word in each if word not in shared) for each in words]
