"""Left of the feature seam: backbones, augmentation, base training, and images to cached features."""

from faverage.errors import CheckpointError
from faverage.vision.backbones import (
    ResNet18,
    TinyNet,
    average_weights,
    backbone_names,
    get_backbone,
    load_weights,
    register_backbone,
)
from faverage.vision.efficientnet import EfficientNetLite, pretrained, pretrained_names
from faverage.vision.engine.optimise import Training, learning_rate, train_network
from faverage.vision.engine.processes import OtherFailed, Team, join
from faverage.vision.engine.report import check_tensorboard
from faverage.vision.engine.step import Trainable
from faverage.vision.extraction import Extractor, Eyes, extract_features, fit_pools
from faverage.vision.feature_store import open_features, store_features
from faverage.vision.model import BaseModel, Head
from faverage.vision.objectives import rotation_heads, turn_heads
from faverage.vision.shards import Shards
from faverage.vision.together import Together, together
from faverage.vision.training import hold_out, train_base
from faverage.vision.transforms import IMAGENET_MEAN, IMAGENET_STD, Augment, Evaluate, transforms_for
from faverage.vision.views import View, get_views

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Augment",
    "BaseModel",
    "CheckpointError",
    "EfficientNetLite",
    "Evaluate",
    "Extractor",
    "Eyes",
    "Head",
    "OtherFailed",
    "ResNet18",
    "Shards",
    "Team",
    "TinyNet",
    "Together",
    "Trainable",
    "Training",
    "View",
    "average_weights",
    "backbone_names",
    "check_tensorboard",
    "extract_features",
    "fit_pools",
    "get_backbone",
    "get_views",
    "hold_out",
    "join",
    "learning_rate",
    "load_weights",
    "open_features",
    "pretrained",
    "pretrained_names",
    "register_backbone",
    "rotation_heads",
    "store_features",
    "together",
    "train_base",
    "train_network",
    "transforms_for",
    "turn_heads",
]
