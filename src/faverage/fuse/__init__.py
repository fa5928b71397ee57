"""Fuse files of predictions: ``fuse_files`` learns how from labelled rows, ``apply_files`` repeats it on new ones."""

from faverage.fuse.base import Listener, UserError
from faverage.fuse.result import Member, Result
from faverage.fuse.run import apply_files, fuse_files
from faverage.fuse.show import Screen, show

__all__ = ["Listener", "Member", "Result", "Screen", "UserError", "apply_files", "fuse_files", "show"]
