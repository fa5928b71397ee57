"""Ensembles for users of scikit-learn: ``AFAClassifier`` and ``AFARegressor``."""

from faverage.estimators.afa import AFAClassifier, AFARegressor

__all__ = ["AFAClassifier", "AFARegressor"]
