r"""IDLVQ-C: incremental few-shot learning via vector quantization in deep embedded space (Chen and Lee, ICLR 2021).

Each class c has one reference vector m_c in the space of features f; the nearest one wins. With u_c = ‖f − m_c‖² / γ
and γ learned, the base session is

    L = CE(softmax(−u), y) + α ‖f − m_y‖²

A session starts its new m_c at the mean features of its shots. Then backbone and new m_c learn on the shots and on one
stored image of each known class, with f_old the feature before the session:

    L = mean max(0, μ + u_y − min_{c≠y} u_c) + α mean over shots ‖f − m_y‖² + β mean over stored ‖f − f_old‖²

Known m_c are fixed meanwhile. After that each moves with its stored image x_c: m_c += f(x_c) − f_old(x_c).

Assumed, since no code of the method is public and we could not verify it: f is what the backbone gives divided by √d,
so that the weights mean the same for every backbone; α = 1, β = 10, μ = 1 in units of γ, and all learning rates and
numbers of epochs; base m_c start at 0 and γ at 0.1, γ learns slowly, and is fixed after the base session; stored images
have a part in the margin; the stored image of a class is the one nearest to its m_c; all images of a session are one
batch; and batch norm keeps its statistics in sessions.

Stores one image a class. Trains the backbone in every session.
"""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, Exemplars, Resting
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Trainable

__all__ = ["IDLVQ"]


class Network(Trainable):
    """Backbone and reference vectors: those of known classes are fixed, those of the newest session learn.

    Args:
        backbone: module from images to features.
        old: reference vectors of known classes ``(C, d)``.
        new: of the newest session ``(C', d)``.
        intra: α.
    """

    old: Tensor

    def __init__(self, backbone: nn.Module, old: Tensor, new: Tensor, intra: float) -> None:
        super().__init__()
        self.backbone, self.intra = backbone, intra
        self.register_buffer("old", old)
        self.new = nn.Parameter(new)
        self.slow = nn.Parameter(torch.tensor(0.0))

    def gamma(self) -> Tensor:
        """Return γ, ``()``; it starts at 0.1, and learns a hundred times slower than its logarithm would."""
        return 0.1 * (0.1 * self.slow).exp()

    def references(self) -> Tensor:
        """Return the reference vectors of all classes, ``(N, d)``."""
        return torch.cat([self.old, self.new])

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(b, d)`` of images ``(b, 3, s, s)``."""
        features: Tensor = self.backbone(images)
        return features / math.sqrt(features.shape[1])

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropy + α · distance to the own reference, and the right answers, ``()`` each."""
        distances = squared_distances(embedded.float(), self.references())
        own = distances.gather(1, labels[:, None]).mean()
        right = (distances.detach().argmin(1) == labels).sum()
        return F.cross_entropy(-distances / self.gamma(), labels) + self.intra * own, right


class Increment(Resting):
    """The loss of a session: a network that learns, and the backbone before it, which does not.

    Args:
        network: with the new classes.
        before: the backbone of the session before.
        forget: β.
        margin: μ.
    """

    def __init__(self, network: Network, before: nn.Module, *, forget: float, margin: float) -> None:
        super().__init__()
        self.network, self.before = network, before.requires_grad_(False)
        self.forget, self.margin = forget, margin
        self.resting = (network.backbone, before)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of both backbones, ``(b, d)`` each, of images ``(b, 3, s, s)``."""
        with torch.no_grad():
            old = self.before(images)
        return self.network.embed(images, labels, extra), old / math.sqrt(old.shape[1])

    def loss(self, embedded: tuple[Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return margin + α · distance of shots + β · drift of stored images, and the right answers, ``()`` each."""
        features, before = (part.float() for part in embedded)
        distances = squared_distances(features, self.network.references())
        stored = (labels < len(self.network.old)).float()
        own = distances.gather(1, labels[:, None])[:, 0]
        drift = (features - before).square().sum(1)
        loss = margin_loss(distances / self.network.gamma().detach(), labels, self.margin)
        loss = loss + self.network.intra * (own * (1 - stored)).sum() / (1 - stored).sum().clamp(min=1)
        loss = loss + self.forget * (drift * stored).sum() / stored.sum().clamp(min=1)
        return loss, (distances.detach().argmin(1) == labels).sum()


def squared_distances(features: Tensor, references: Tensor) -> Tensor:
    """Return ‖f_i − m_c‖², ``(n, C)``, of features ``(n, d)`` and references ``(C, d)``.

    >>> squared_distances(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [4.0, 6.0]]))
    tensor([[ 4., 25.]])
    """
    squares = features.square().sum(1, keepdim=True) + references.square().sum(1)
    return F.relu(squares - 2 * features @ references.T)


def margin_loss(distances: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, μ + u_y − min_{c≠y} u_c), ``()``, of distances u ``(n, C)`` and labels ``(n,)``."""
    own = distances.gather(1, labels[:, None])[:, 0]
    wrong = distances.scatter(1, labels[:, None], torch.inf).amin(1)
    return F.relu(margin + own - wrong).mean()


def nearest(features: Array, numbers: Array, references: Array) -> Array:
    """Return, for each of the references ``(C, d)``, the nearest row of its class, ``(C,)``.

    ``features`` are ``(n, d)``, ``numbers`` ``(n,)``: from 0 to C - 1.
    """
    rows = [np.flatnonzero(numbers == c) for c in range(len(references))]
    away = [np.square(features[own] - m).sum(1) for own, m in zip(rows, references, strict=True)]
    return np.array([own[far.argmin()] for own, far in zip(rows, away, strict=True)])


class IDLVQ(Rival):
    """See the module's docstring.

    It keeps one image of each class, by which the reference vectors of known classes follow the backbone:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 2}, "increment": {"epochs": 2}}
    >>> rival = IDLVQ("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> rival.arrays["exemplar_numbers"].tolist(), rival.net.references().shape
    ([0, 1, 2, 3], torch.Size([4, 128]))
    """

    name = "idlvq-c"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "increment": {"epochs": 50, "batch_size": 1024, "lr": 0.001, "schedule": "cosine", "weight_decay": 5e-4},
            "intra": 1.0,
            "forget": 10.0,
            "margin": 1.0,
        },
        "shared/digits": {},
        "paper": {},
        "paper/mini-imagenet": {"backbone": "resnet18_large", "crop": 84},
        # from trained weights; the rate of sessions was chosen on base classes, a part of them held out as new
        "paper/cub200": {
            **{"base": {"lr": 0.01}, "increment": {"lr": 0.0001}},
            **{"backbone": "resnet18_large", "crop": 224},
        },
        "paper/cifar100": {"crop": 32},
    }

    def build(self, sizes: list[int]) -> Network:
        """Return backbone and reference vectors."""
        backbone: Any = self._backbone()
        old, new = (torch.zeros(n, backbone.dimension) for n in (sum(sizes[:-1]), sizes[-1]))
        return Network(backbone, old, new, self.recipe["intra"])

    def features(self, X: Array) -> Array:
        """Return f ``(n, d)`` of images ``(n, S, S, 3)``: what the backbone gives, divided by √d."""
        features = super().features(X)
        return features / np.float32(math.sqrt(features.shape[1]))

    def _fit(self, images: Array, numbers: Array) -> None:
        self._train(self.net, images, numbers, "base")
        rows = nearest(self.features(images), numbers, self.net.new.detach().numpy())
        self.arrays = Exemplars(np.asarray(images[rows]), numbers[rows]).arrays()

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        stored, n_old = Exemplars.of_arrays(self.arrays), len(self.classes)
        before, features = self.net.backbone, self.features(stored.images)
        means = self._means(images, numbers - n_old, n_new)
        own = copy.deepcopy(before).requires_grad_(True)  # frozen if an earlier try was stopped
        network = Network(own, self.net.references().detach(), means, self.recipe["intra"])
        network.slow.data.copy_(self.net.slow.data)
        increment = Increment(network, before, forget=self.recipe["forget"], margin=self.recipe["margin"])
        self._train(increment, *stored.joined(images, numbers), "increment")
        self.net = network
        network.old += torch.from_numpy(self.features(stored.images) - features)
        rows = nearest(self.features(images), numbers - n_old, network.new.detach().numpy())
        self.arrays = Exemplars(*stored.joined(images[rows], numbers[rows])).arrays()

    def _probabilities(self, features: Tensor) -> Tensor:
        logits: Tensor = -squared_distances(features, self.net.references()) / self.net.gamma()
        return logits.softmax(1)
