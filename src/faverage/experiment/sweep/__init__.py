"""Sweeps: methods x seeds x draws x options, each run once, on the cores of one machine or on a cluster."""

from faverage.experiment.sweep.loop import sweep
from faverage.experiment.sweep.plan import Plan

__all__ = ["Plan", "sweep"]
