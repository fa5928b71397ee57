"""Left of the feature seam: backbones, augmentation, base training, and images to cached features."""

from faverage.vision._loop import CheckpointError
from faverage.vision._report import check_tensorboard
from faverage.vision.augment import IMAGENET_MEAN, IMAGENET_STD, Augment, Evaluate, transforms_for
from faverage.vision.backbones import ResNet18, TinyNet, backbone_names, get_backbone, load_weights
from faverage.vision.extract import extract_features
from faverage.vision.eyes import Eyes
from faverage.vision.model import BaseModel, Head
from faverage.vision.optimise import Training, learning_rate, train_network
from faverage.vision.trainable import Trainable
from faverage.vision.training import hold_out, train_base

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Augment",
    "BaseModel",
    "CheckpointError",
    "Evaluate",
    "Eyes",
    "Head",
    "ResNet18",
    "TinyNet",
    "Trainable",
    "Training",
    "backbone_names",
    "check_tensorboard",
    "extract_features",
    "get_backbone",
    "hold_out",
    "learning_rate",
    "load_weights",
    "train_base",
    "train_network",
    "transforms_for",
]
