"""Every way to fuse, behind one interface: ``get_fuser(name).fit(scores, y).predict_proba(scores)``."""

import faverage.fusion.nets  # noqa: F401 - its fusers are the first in every list
from faverage.fusion import logistic, pools, rules  # noqa: F401 - they register their fusers
from faverage.fusion.afa import AFAFuser
from faverage.fusion.base import FUSERS, Fuser, fuser_names, get_fuser, load_fuser, register_fuser
from faverage.fusion.maps import MapFuser, MapScore

__all__ = [
    "FUSERS",
    "AFAFuser",
    "Fuser",
    "MapFuser",
    "MapScore",
    "fuser_names",
    "get_fuser",
    "load_fuser",
    "register_fuser",
]
