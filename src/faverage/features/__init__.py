"""The feature set: features by view, labels, splits and base heads, with one save and load."""

from faverage.features.feature_set import FeatureSet, Splits, permuted
from faverage.features.files import check_chosen, file_views

__all__ = ["FeatureSet", "Splits", "check_chosen", "file_views", "permuted"]
