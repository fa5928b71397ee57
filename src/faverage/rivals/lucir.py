r"""LUCIR: learning a unified classifier incrementally via rebalancing (Hou et al., CVPR 2019).

With f the feature of an image, f_old that of the network before the session, w_c the weight of class c, all of length
1, and η a learned scale:

    L = CE(η cos(f, w)) + λ (1 − cos(f, f_old)) + Σ_{k=1,2} max(0, m − cos(f, w_y) + cos(f, w_(k)))

where the last term is for exemplars of old classes alone, w_(1) and w_(2) being the new classes with the highest
cosine, m = 0.5, and λ = λ_base √(old classes / new classes). New weights are imprinted: the normalised mean feature of
the shots times the mean length of the old weights. Old weights stay as they are; the backbone goes on learning on the
new images and the exemplars. The last ReLU of the backbone is removed, so that features point in all directions.

Stores exemplars: 400 images of base classes, drawn evenly, and one image a new class, chosen by herding. Trains the
backbone in every session.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, Exemplars, Resting, class_means, cosine, unit
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Trainable

__all__ = ["LUCIR"]

THIRDS = {"at": [1 / 3, 2 / 3], "times": 0.1}


class Network(Trainable):
    """Backbone and cosine head: frozen weights of old classes, free weights of the newest session.

    Args:
        backbone: module from images to features.
        old: weights of old classes ``(C, d)``, kept as they are.
        new: number of classes of the newest session.
        dimension: d.
    """

    old: Tensor

    def __init__(self, backbone: nn.Module, old: Tensor, new: int, dimension: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("old", old)
        self.new = nn.Parameter(nn.Linear(dimension, new, bias=False).weight.detach())
        self.scale = nn.Parameter(torch.tensor(10.0))

    def weights(self) -> Tensor:
        """Return the weights of all classes, ``(N, d)``."""
        return torch.cat([self.old, self.new])

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(b, d)``."""
        features: Tensor = self.backbone(images)
        return features

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy, all of the base session's loss, and the right answers, ``()`` each."""
        logits = self.scale * cosine(embedded.float(), self.weights())
        return F.cross_entropy(logits, labels), (logits.detach().argmax(1) == labels).sum()


class Increment(Resting):
    """The loss of a session: a network that learns, and the one before it, which does not.

    Args:
        network: with the new classes.
        before: the network of the session before.
        n_old: number of old classes.
        weight: λ.
        margin: m.
        top: how many new classes an old exemplar is kept away from.
    """

    def __init__(
        self, network: Network, before: nn.Module, n_old: int, *, weight: float, margin: float, top: int
    ) -> None:
        super().__init__()
        self.network, self.before = network, before.requires_grad_(False)
        self.n_old, self.weight, self.margin, self.top = n_old, weight, margin, top
        self.resting = (before,)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of both networks, ``(b, d)`` each, of images ``(b, 3, s, s)``."""
        with torch.no_grad():
            old = self.before(images)
        return self.network.backbone(images), old

    def loss(self, embedded: tuple[Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropy + λ · less-forget + margin ranking, and the right answers, ``()`` each."""
        features, before = (part.float() for part in embedded)
        cosines = cosine(features, self.network.weights())
        logits = self.network.scale * cosines
        loss = F.cross_entropy(logits, labels) + self.weight * less_forget(features, before)
        loss = loss + margin_ranking(cosines, labels, self.n_old, margin=self.margin, top=self.top)
        return loss, (logits.detach().argmax(1) == labels).sum()


def less_forget(features: Tensor, before: Tensor) -> Tensor:
    """Return the mean of 1 − cos(f, f_old) over features ``(b, d)``."""
    return (1 - F.cosine_similarity(features, before)).mean()


def margin_ranking(cosines: Tensor, labels: Tensor, n_old: int, *, margin: float, top: int) -> Tensor:
    """Return the mean of max(0, m − cos_y + cos_(k)) over the ``top`` new classes k and the examples of old classes.

    ``cosines`` are ``(b, N)``, ``labels`` ``(b,)``.
    """
    top = min(top, cosines.shape[1] - n_old)
    is_old = (labels < n_old).float()
    own = cosines.gather(1, labels[:, None])
    nearest = cosines[:, n_old:].topk(top, dim=1).values
    hinge = F.relu(margin - own + nearest).mean(1)
    return (hinge * is_old).sum() / is_old.sum().clamp(min=1)


class LUCIR(Rival):
    """See the module's docstring.

    Three base classes, then a session of one, which goes on training with ten images of each base class:

    >>> import numpy as np
    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 2}, "increment": {"epochs": 2}}
    >>> rival = LUCIR("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> list(rival.trainings), rival.predict_proba(images[:2]).shape
    (['lucir-base', 'lucir-increment-1'], (2, 4))
    >>> np.bincount(rival.arrays["exemplar_numbers"]).tolist()  # one of the new class is kept for later sessions
    [10, 10, 10, 1]
    """

    name = "lucir"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "increment": {"epochs": 90, "batch_size": 128, "lr": 0.1, "schedule": THIRDS, "weight_decay": 1e-4},
            "weight": 10.0,
            "margin": 0.5,
            "top": 2,
            "exemplars": {"base": 400, "new": 1},
        },
        "shared/digits": {"increment": {"epochs": 20, "lr": 0.05, "batch_size": 64}, "exemplars": {"base": 60}},
        "shared/cub200": {"increment": {"lr": 0.01}},  # as the base session: both start from trained weights
        "paper": {"base": {"epochs": 90, "schedule": THIRDS, "weight_decay": 1e-4}},
        "paper/cub200": {"base": {"lr": 0.01}, "increment": {"lr": 0.01}, "backbone": "resnet18_large", "crop": 224},
        "paper/cifar100": {
            "base": {"epochs": 160, "schedule": {"at": [0.5, 0.75], "times": 0.1}},
            "increment": {"epochs": 160, "schedule": {"at": [0.5, 0.75], "times": 0.1}},
            "weight": 5.0,
        },
    }

    def build(self, sizes: list[int]) -> Network:
        """Return backbone and cosine head."""
        backbone: Any = self._backbone()
        if hasattr(backbone, "last_relu"):
            backbone.last_relu = False
        dimension = backbone.dimension
        return Network(backbone, torch.zeros(sum(sizes[:-1]), dimension), sizes[-1], dimension)

    def _fit(self, images: Array, numbers: Array) -> None:
        self._train(self.net, images, numbers, "base")
        kept = Exemplars.of_base(images, numbers, self.recipe["exemplars"]["base"], self._rng())
        self.arrays = kept.arrays()

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        exemplars = Exemplars.of_arrays(self.arrays)
        n_old = len(self.classes)
        old = self.net.weights().detach()
        directions = class_means(unit(self.features(images)), numbers - n_old, n_new)
        means = F.normalize(torch.from_numpy(directions), dim=1)
        network = Network(copy.deepcopy(self.net.backbone), old, n_new, old.shape[1])
        with torch.no_grad():
            network.new.copy_(means * old.norm(dim=1).mean())
            network.scale.copy_(self.net.scale)
        weight = self.recipe["weight"] * (n_old / n_new) ** 0.5
        increment = Increment(
            network, self.net.backbone, n_old, weight=weight, margin=self.recipe["margin"], top=self.recipe["top"]
        )
        all_images, all_numbers = exemplars.joined(images, numbers)
        self._train(increment, all_images, all_numbers, "increment")
        self.net = network.requires_grad_(True)
        self.arrays = exemplars.with_new(
            images, numbers, self.features(images), self.recipe["exemplars"]["new"]
        ).arrays()

    def _probabilities(self, features: Tensor) -> Tensor:
        logits: Tensor = self.net.scale * cosine(features, self.net.weights())
        return logits.softmax(1)
