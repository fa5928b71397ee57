r"""FACT: forward compatible training (Zhou et al., CVPR 2022).

With f the feature of an image of base class y, w_c the weight of base class c, v_k the k-th of V virtual prototypes,
and all logits s = 16 cos(f, ·):

    L1 = CE(s over base classes, y)
    L2 = CE(s over all but y, k*),    k* the virtual class with the highest logit among those tied to y
    L3 = CE(s' over all, k'),         k' the virtual class with the highest logit
    L4 = CE(s' over all but k', c'),  c' the base class with the highest logit
    L  = L1 + γ (L2 + L3 + L4)

where s' are the logits of mixed images: λ h_i + (1 − λ) h_j after the second stage of the backbone, with λ drawn from
Beta(α, α) once a batch, and j a random partner of i. Pairs of one class do not count. γ is 0 in the first share of all
epochs. A fixed random mask ties each virtual class to three base classes; an image of a class with no ties does not
count in L2. Weights and virtual prototypes start orthogonal to each other; the weights learn, the virtual prototypes
stay where they are.

After training each class has a prototype p_c, the mean of its features under the evaluation transform, and

    probabilities = 0.1 softmax(r P) + 0.9 softmax(16 cos(f, p)),   r_k = cos(f, v_k),   P_kc = cos(v_k, p_c)

with all but the 40 highest of the r_k set to 0.

There are V = ``total`` − base virtual prototypes. Where ``total`` is not given, V is two thirds of the base classes, as
in the usual splits of mini-ImageNet and CIFAR-100, and any number of classes may come.

Stores prototypes, no exemplars. Trains nothing after the base session.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, cosine
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Trainable

__all__ = ["FACT"]

TIES = 3  # base classes that a virtual class is tied to


class Network(Trainable):
    """Backbone, weights of base classes, virtual prototypes, and the prototypes of all known classes.

    Args:
        backbone: module from images to features, in two halves.
        n_base: number of base classes.
        n_virtual: V.
        n_known: number of classes known so far.
        dimension: d.
        scale: of the cosine.
        alpha: α, from 0.5 on.
        weight: γ.
        start: share of all epochs in which γ is 0.

    Attributes:
        prototypes: of all known classes, ``(N, d)``.
        ties: whether virtual class k is tied to base class c, ``(V, C)``.
        virtual: the virtual prototypes, ``(V, d)``.
        weight_now: γ in this epoch, ``()``.
    """

    extras = 2
    prototypes: Tensor
    ties: Tensor
    virtual: Tensor
    weight_now: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        n_base: int,
        n_virtual: int,
        n_known: int,
        dimension: int,
        *,
        scale: float,
        alpha: float,
        weight: float,
        start: float,
    ) -> None:
        super().__init__()
        if alpha < 0.5:
            raise ValueError(f"alpha must be at least 0.5, got {alpha}")
        self.backbone: Any = backbone
        self.scale, self.alpha, self.weight, self.start = scale, alpha, weight, start
        first = nn.init.orthogonal_(torch.empty(n_base + n_virtual, dimension))
        base, virtual = first.split([n_base, n_virtual])
        self.base = nn.Parameter(base.clone())
        self.register_buffer("virtual", virtual.clone())
        self.register_buffer("ties", torch.rand(n_virtual, n_base).argsort(1).argsort(1) < TIES)
        self.register_buffer("prototypes", torch.zeros(n_known, dimension))
        self.register_buffer("weight_now", torch.zeros(()), persistent=False)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return ``(n, 2)``: λ, of which a batch uses its first, and a number whose order makes the pairs."""
        even = torch.rand(n, 3, generator=generator, device=generator.device)
        return torch.stack([beta(even[:, 0], even[:, 1], self.alpha), even[:, 2]], 1)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Switch γ on after its share of all epochs."""
        self.weight_now.fill_(self.weight if epoch >= self.start * epochs else 0.0)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the images and of the mixed images, ``(b, d)`` each."""
        half = self.backbone.first_half(images)
        share = extra[0, 0]
        mixed = share * half + (1 - share) * half[pairs(extra)]
        return self.backbone.second_half(half), self.backbone.second_half(mixed)

    def loss(self, embedded: tuple[Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return L1 + γ (L2 + L3 + L4), and the right answers, ``()`` each."""
        n_base = len(self.base)
        weights = torch.cat([self.base, self.virtual])
        logits, mixed = (self.scale * cosine(part.float(), weights) for part in embedded)
        known = logits[:, :n_base]
        differ = labels != labels[pairs(extra)]
        more = reserving(logits, labels, self.ties.T[labels]) + forecasting(mixed, n_base, differ)
        loss = F.cross_entropy(known, labels) + self.weight_now * more
        return loss, (known.detach().argmax(1) == labels).sum()


def beta(u: Tensor, v: Tensor, alpha: float) -> Tensor:
    """Return samples ``(n,)`` of Beta(α, α), α ≥ 0.5, from uniform ones in [0, 1), ``u`` and ``v`` ``(n,)``.

    The first coordinate of a point in the unit disc whose squared radius is 1 − u^(2 / (2α − 1)) follows this law on
    [−1, 1]; for α = 0.5 the point is on the circle.

    >>> beta(torch.tensor([0.25]), torch.tensor([0.0]), 1.5)
    tensor([0.9330])
    """
    squared = 1 - u ** (2 / (2 * alpha - 1)) if alpha > 0.5 else torch.ones_like(u)
    return (1 + squared.sqrt() * (2 * math.pi * v).cos()) / 2


def pairs(extra: Tensor) -> Tensor:
    """Return the partner of each image in a batch, a permutation ``(b,)``, by ``extra`` ``(b, 2)``."""
    return extra[:, 1].argsort()


def reserving(logits: Tensor, labels: Tensor, allowed: Tensor) -> Tensor:
    """Return L2 of logits ``(b, C + V)``; ``allowed`` ``(b, V)``: the virtual classes tied to the labels ``(b,)``."""
    n_base = logits.shape[1] - allowed.shape[1]
    target = n_base + logits[:, n_base:].masked_fill(~allowed, -math.inf).argmax(1)
    others = logits.scatter(1, labels[:, None], -math.inf)
    return mean_of(F.cross_entropy(others, target, reduction="none"), allowed.any(1))


def forecasting(mixed: Tensor, n_base: int, differ: Tensor) -> Tensor:
    """Return L3 + L4 of the logits ``(b, C + V)`` of mixed images, over the pairs that ``differ`` ``(b,)`` in class."""
    virtual = n_base + mixed[:, n_base:].argmax(1)
    others = mixed.scatter(1, virtual[:, None], -math.inf)
    to_virtual = F.cross_entropy(mixed, virtual, reduction="none")
    to_base = F.cross_entropy(others, mixed[:, :n_base].argmax(1), reduction="none")
    return mean_of(to_virtual + to_base, differ)


def mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean ``()`` of the chosen ones of ``(b,)`` values, 0 where none is."""
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


def blended(features: Tensor, prototypes: Tensor, virtual: Tensor, *, scale: float, share: float, top: int) -> Tensor:
    """Return the probabilities ``(n, N)`` of the module's docstring for features ``(n, d)``.

    Prototypes are ``(N, d)``, virtual ones ``(V, d)``, with ``share`` of the probability.
    """
    near = cosine(features, virtual)
    best = near.topk(min(top, len(virtual)), dim=1)
    near = torch.zeros_like(near).scatter(1, best.indices, best.values)
    through = (near @ cosine(virtual, prototypes)).softmax(1)
    return share * through + (1 - share) * (scale * cosine(features, prototypes)).softmax(1)


class FACT(Rival):
    """See the module's docstring.

    Told that there will be five classes, it keeps room for two in training; one of them comes:

    >>> import numpy as np
    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> rival = FACT("tiny", total=5, recipe={"base": {"epochs": 2}}, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> rival.net.virtual.shape, rival.net.prototypes.shape, rival.predict_proba(images[:2]).shape
    (torch.Size([2, 128]), torch.Size([4, 128]), (2, 4))
    """

    name = "fact"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "alpha": 0.5,
            "weight": 0.01,
            "start": 0.15,
            "scale": 16.0,
            "share": 0.1,
            "top": 40,
        },
        "shared/digits": {"base": {"epochs": 20, "batch_size": 64, "lr": 0.05}},
        "paper": {},
        "paper/mini-imagenet": {"base": {"epochs": 1000}, "backbone": "resnet18_large", "crop": 84},
        "paper/cub200": {
            "base": {
                "epochs": 400,
                "batch_size": 256,
                "lr": 0.005,
                "schedule": {"at": [0.125, 0.25, 0.375, 0.5, 0.625, 0.75], "times": 0.25},
            },
            "alpha": 2.0,
            "start": 0.0,
            "backbone": "resnet18_large",
            "crop": 224,
        },
        "paper/cifar100": {"base": {"epochs": 600, "batch_size": 256}, "weight": 0.001, "start": 0.0, "crop": 32},
    }

    def build(self, sizes: list[int]) -> Network:
        """Return backbone, base weights and virtual prototypes."""
        backbone: Any = self._backbone()
        n_base = sizes[0]
        n_virtual = max(round(n_base / 1.5), 1) if self.total is None else self.total - n_base
        if n_virtual < 1:
            raise ValueError(f"fact was told of {self.total} classes in all, and the base session has {n_base}")
        settings = {name: self.recipe[name] for name in ("scale", "alpha", "weight", "start")}
        return Network(backbone, n_base, n_virtual, sum(sizes), backbone.dimension, **settings)

    def _fit(self, images: Array, numbers: Array) -> None:
        self._train(self.net, images, numbers, "base")
        self.net.prototypes = self._means(images, numbers, len(self.sessions[0]))

    def _probabilities(self, features: Tensor) -> Tensor:
        settings = {name: self.recipe[name] for name in ("scale", "share", "top")}
        return blended(features, self.net.prototypes, self.net.virtual, **settings)
