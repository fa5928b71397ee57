"""Sweeps: methods x seeds x draws x options, each run once, on the cores of one machine or on a cluster."""

from faverage.experiment.sweep.plan import Plan
from faverage.experiment.sweep.run import sweep

__all__ = ["Plan", "sweep"]
