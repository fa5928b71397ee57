"""faverage: fuse models with learned, readable averages.

The core is here: generalised means, the exact projection onto the simplex, the aggregated f-averages network (AFA),
the loop that trains it, what its weights say, and ensembles for scikit-learn users. ``faverage.fusion`` has every way
to fuse, ``faverage.fscil`` the learner that meets new classes. Names are loaded when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faverage.deprecation import install

if TYPE_CHECKING:
    from faverage.afa.explain import Explanation, Table, explain
    from faverage.afa.export import export_onnx, load, save
    from faverage.afa.groups import groups_by_confusion
    from faverage.afa.means import Arithmetic, Geometric, Harmonic, Mean, Power, get_mean, mean_names, register_mean
    from faverage.afa.network import AFA, FAverage
    from faverage.afa.simplex import project_simplex
    from faverage.afa.train import History, fit
    from faverage.estimators import AFAClassifier, AFARegressor
    from faverage.fusion.align import Aligned, align, pad

__version__ = "0.2.0"

install()

__all__ = [
    "AFA",
    "AFAClassifier",
    "AFARegressor",
    "Aligned",
    "Arithmetic",
    "Explanation",
    "FAverage",
    "Geometric",
    "Harmonic",
    "History",
    "Mean",
    "Power",
    "Table",
    "align",
    "explain",
    "export_onnx",
    "fit",
    "get_mean",
    "groups_by_confusion",
    "load",
    "mean_names",
    "pad",
    "project_simplex",
    "register_mean",
    "save",
]

_HOMES = {
    "afa.explain": ("Explanation", "Table", "explain"),
    "afa.export": ("export_onnx", "load", "save"),
    "afa.groups": ("groups_by_confusion",),
    "afa.means": ("Arithmetic", "Geometric", "Harmonic", "Mean", "Power", "get_mean", "mean_names", "register_mean"),
    "afa.network": ("AFA", "FAverage"),
    "afa.simplex": ("project_simplex",),
    "afa.train": ("History", "fit"),
    "estimators": ("AFAClassifier", "AFARegressor"),
    "fusion.align": ("Aligned", "align", "pad"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the version needs no torch, and the rest no scikit-learn."""
    for module, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"faverage.{module}"), name)
            return value
    raise AttributeError(f"module 'faverage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
