"""Fuse files of predictions: ``fuse_files`` learns how from labelled rows, ``apply_files`` repeats it on new ones."""

from faverage.prediction_files.base import Listener, Screen, UserError
from faverage.prediction_files.report import Member, Result, show
from faverage.prediction_files.run import apply_files, fuse_files

__all__ = ["Listener", "Member", "Result", "Screen", "UserError", "apply_files", "fuse_files", "show"]
