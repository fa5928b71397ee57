"""faverage: fuse models with learned, readable averages.

The core is here: generalised means, the exact projection onto the simplex, the aggregated f-averages network (AFA),
the loop that trains it, what its weights say, and ensembles for scikit-learn users. ``faverage.fusion`` has every way
to fuse, ``faverage.fscil`` the learner that meets new classes.
"""

from typing import TYPE_CHECKING, Any

from faverage.align import Aligned, align, pad
from faverage.explain import Explanation, Table, explain
from faverage.export import export_onnx
from faverage.fit import History, fit
from faverage.groups import groups_by_confusion
from faverage.means import Arithmetic, Geometric, Harmonic, Mean, Power, get_mean, mean_names, register_mean
from faverage.network import AFA, FAverage
from faverage.simplex import project_simplex
from faverage.storage import load, save

if TYPE_CHECKING:
    from faverage.estimators import AFAClassifier, AFARegressor

__version__ = "0.1.0"

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


def __getattr__(name: str) -> Any:
    """Import the estimators when they are first asked for: they need scikit-learn, the rest does not."""
    if name in ("AFAClassifier", "AFARegressor"):
        from faverage import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'faverage' has no attribute {name!r}")
