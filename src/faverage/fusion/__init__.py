"""Every way to fuse, behind one interface: ``get_fuser(name).fit(scores, y).predict_proba(scores)``."""

from faverage.fusion.base import FUSERS, Fuser, fuser_names, get_fuser, load_fuser, register_fuser

__all__ = ["FUSERS", "Fuser", "fuser_names", "get_fuser", "load_fuser", "register_fuser"]
