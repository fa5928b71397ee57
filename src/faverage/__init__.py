"""faverage: fuse models with learned, readable averages.

The core is here: generalised means, the exact projection onto the simplex, the aggregated f-averages network (AFA),
the loop that trains it, and what its weights say.
"""

from faverage.explain import Explanation, Table, explain
from faverage.export import export_onnx
from faverage.fit import History, fit
from faverage.means import Arithmetic, Geometric, Harmonic, Mean, Power, get_mean, mean_names, register_mean
from faverage.network import AFA, FAverage
from faverage.simplex import project_simplex
from faverage.storage import load, save

__version__ = "0.1.0"

__all__ = [
    "AFA",
    "Arithmetic",
    "Explanation",
    "FAverage",
    "Geometric",
    "Harmonic",
    "History",
    "Mean",
    "Power",
    "Table",
    "explain",
    "export_onnx",
    "fit",
    "get_mean",
    "load",
    "mean_names",
    "project_simplex",
    "register_mean",
    "save",
]
