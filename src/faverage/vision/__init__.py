"""Left of the feature seam: backbones, augmentation, base training, and images to cached features."""

from faverage.vision._loop import CheckpointError
from faverage.vision._report import check_tensorboard
from faverage.vision.augment import IMAGENET_MEAN, IMAGENET_STD, Augment, Evaluate, transforms_for
from faverage.vision.backbones import ResNet18, TinyNet, backbone_names, get_backbone, load_weights
from faverage.vision.extract import extract_features
from faverage.vision.eyes import Eyes
from faverage.vision.feature_store import open_features, store_features
from faverage.vision.lesson import turn_heads
from faverage.vision.model import BaseModel, Head
from faverage.vision.optimise import Training, learning_rate, train_network
from faverage.vision.ranks import OtherFailed, Team, join
from faverage.vision.shards import Shards
from faverage.vision.trainable import Trainable
from faverage.vision.training import hold_out, train_base
from faverage.vision.views import View, get_views

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Augment",
    "BaseModel",
    "CheckpointError",
    "Evaluate",
    "Eyes",
    "Head",
    "OtherFailed",
    "ResNet18",
    "Shards",
    "Team",
    "TinyNet",
    "Trainable",
    "Training",
    "View",
    "backbone_names",
    "check_tensorboard",
    "extract_features",
    "get_backbone",
    "get_views",
    "hold_out",
    "join",
    "learning_rate",
    "load_weights",
    "open_features",
    "store_features",
    "train_base",
    "train_network",
    "transforms_for",
    "turn_heads",
]
