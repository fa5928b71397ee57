"""Experiments as data: a configuration, one run, results on disk, tables and a report."""

from faverage.experiment.config import DEFAULT_METHODS, ConfigError, RunConfig
from faverage.experiment.methods import run_method
from faverage.experiment.run import run

__all__ = ["DEFAULT_METHODS", "ConfigError", "RunConfig", "run", "run_method"]
