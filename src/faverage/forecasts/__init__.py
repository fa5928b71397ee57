"""Probabilistic forecasts: ``QuantileFuser`` fuses quantiles of several models; scores say how good quantiles are."""

from faverage.forecasts.quantiles import QuantileFuser
from faverage.forecasts.scores import (
    coverage,
    crps,
    interval_score,
    pinball_loss,
    quantiles_of_samples,
    weighted_interval_score,
)

__all__ = [
    "QuantileFuser",
    "coverage",
    "crps",
    "interval_score",
    "pinball_loss",
    "quantiles_of_samples",
    "weighted_interval_score",
]
