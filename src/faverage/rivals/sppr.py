r"""SPPR: self-promoted prototype refinement (Zhu et al., CVPR 2021).

Each base class c has a learned prototype p_c. A step of the base session takes a batch of queries (x, y), and five
images, the support, of each of ``way`` + 3 base classes. It makes three episodes. An episode plays an increment: it
chooses ``way`` of those classes, and P' is P with their rows replaced by the means of their support features. Then

    P''    = P' + dropout(softmax(W_q P' · W_k P' / √d) W_v P' W_o)
    s_c(x) = relation(f(x), p''_c),   f and p'' of length 1
    L      = mean over the three episodes of CE(s, y)

where relation takes feature and prototype as one vector through three pointwise layers, 2d → 64 → 64 → 1, with batch
norm, ReLU and a dropout of 0.5 after the first two. Support features are of length 1 in a mean, and prototypes have
length √d where they enter the attention, so that learned ones and means are alike there.

The learned prototypes of the classes that are replaced are not attended to: classes that are really new have none.

After training P is refined once. An increment trains nothing: the means of the new classes, which attend to themselves
and to P, are refined and appended; the prototypes of old classes stay as they are. With few base classes an episode is
smaller: at most all but three of them are replaced.

Stores prototypes, no exemplars.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, Attention, class_means, unit
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Trainable

__all__ = ["SPPR"]

HIDDEN = 64


class Relation(nn.Module):
    """How well features and prototypes fit, as logits.

    The first layer on [f; p] is a map of f plus a map of p, so the pairs themselves are never laid out.

    Args:
        dimension: d.
        hidden: width of the two layers inside.
        dropout: after each of them.
    """

    def __init__(self, dimension: int, hidden: int = HIDDEN, dropout: float = 0.5) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Linear(a, b) for a, b in ((2 * dimension, hidden), (hidden, hidden), (hidden, 1))
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return logits ``(…, n, C)`` of features ``(n, d)`` and prototypes ``(…, C, d)``."""
        of_feature, of_prototype = self.first.weight.chunk(2, 1)
        a = F.linear(F.normalize(features, dim=-1), of_feature)
        b = F.linear(F.normalize(prototypes, dim=-1), of_prototype, self.first.bias)
        x = a[:, None] + b[..., None, :, :]
        shape = x.shape[:-1]
        x = self.dropout(F.relu(self.norms[0](x.reshape(-1, x.shape[-1]))))
        x = self.dropout(F.relu(self.norms[1](self.second(x))))
        logits: Tensor = self.last(x)
        return logits.view(shape)


class Network(Trainable):
    """Backbone, prototypes, their refinement, and the relation head.

    Args:
        backbone: module from images to features.
        n_base: number of base classes.
        n_known: number of classes known so far.
        dimension: d.
        queries: images of a batch that are classified; the support comes on top.
        way: classes whose prototypes an episode replaces.
        shots: support images a class.
        spare: classes beyond ``way`` that support is drawn of.
        episodes: how many share a batch.

    Attributes:
        prototypes: P, learned, ``(C, d)``.
        refined: prototypes of all known classes, ``(N, d)``, as they are used.
    """

    refined: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        n_base: int,
        n_known: int,
        dimension: int,
        *,
        queries: int,
        way: int,
        shots: int,
        spare: int,
        episodes: int,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.prototypes = nn.Parameter(F.normalize(torch.randn(n_base, dimension), dim=1))
        self.attention = Attention(dimension, dropout=0.1, norm=False)
        self.relation = Relation(dimension)
        self.register_buffer("refined", torch.zeros(n_known, dimension))
        self.queries, self.shots, self.extras = queries, shots, episodes
        self.way = min(way, max(n_base - spare, 1))
        self.drawn = min(self.way + spare, n_base)

    def order(self, labels: Array, batch_size: int, rng: np.random.Generator) -> Array:
        """Return rows ``(steps, b)``: queries, each image once an epoch, then the support, class by class."""
        queries = min(self.queries, len(labels))
        query = rng.permutation(len(labels))[: len(labels) // queries * queries].reshape(-1, queries)
        own = [np.flatnonzero(labels == c) for c in range(len(self.prototypes))]
        support = [
            [
                rng.choice(own[c], self.shots, replace=len(own[c]) < self.shots)
                for c in rng.permutation(len(own))[: self.drawn]
            ]
            for _ in query
        ]
        return np.concatenate([query, np.array(support).reshape(len(query), -1)], 1)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(b, d)``."""
        features: Tensor = self.backbone(images)
        return features

    def refine(self, prototypes: Tensor, others: Tensor | None = None) -> Tensor:
        """Return prototypes ``(…, n, d)`` after attention to themselves and to ``others`` ``(m, d)``."""
        length = prototypes.shape[-1] ** 0.5
        own = length * F.normalize(prototypes, dim=-1)
        keys = own if others is None else torch.cat([own, length * F.normalize(others, dim=-1)])
        refined: Tensor = self.attention(own, keys)
        return refined

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of the queries, the mean of all episodes, and the right answers, ``()`` each."""
        n = len(labels) - self.drawn * self.shots
        features = embedded.float()
        means = F.normalize(features[n:], dim=1).view(self.drawn, self.shots, -1).mean(1)
        classes = labels[n :: self.shots]
        chosen = extra[n :: self.shots].argsort(0)[: self.way]  # a column an episode
        prototypes = torch.stack([replaced(self.prototypes, classes[rows], means[rows]) for rows in chosen.unbind(1)])
        logits = self.relation(features[:n], self.refine(prototypes))
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:n].repeat(self.extras))
        right = (logits.detach().argmax(2) == labels[:n]).float().mean()
        return loss, right * len(labels)  # as if of all images, for the share of right answers


def replaced(prototypes: Tensor, classes: Tensor, means: Tensor) -> Tensor:
    """Return prototypes ``(C, d)`` with the rows of ``classes`` ``(m,)`` replaced by ``means`` ``(m, d)``."""
    return prototypes.index_copy(0, classes, means)


class SPPR(Rival):
    """See the module's docstring.

    A session appends a refined prototype, and trains nothing:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 2}, "episode": {"way": 1, "spare": 1}}
    >>> rival = SPPR("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> list(rival.trainings), rival.net.prototypes.shape, rival.net.refined.shape
    (['sppr-base'], torch.Size([3, 128]), torch.Size([4, 128]))
    """

    name = "sppr"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": {**BASE, "momentum": 0.0},
            "episode": {"way": 5, "shots": 5, "spare": 3, "episodes": 3},
        },
        "shared/digits": {"base": {"epochs": 20, "batch_size": 64, "lr": 0.5}, "episode": {"way": 2}},
        "paper": {},
        "paper/mini-imagenet": {"base": {"epochs": 68}, "crop": 84},
        "paper/cub200": {"base": {"epochs": 70}, "episode": {"way": 10}, "backbone": "resnet18_large", "crop": 224},
        "paper/cifar100": {"base": {"epochs": 56}, "crop": 32},
    }

    def build(self, sizes: list[int]) -> Network:
        """Return backbone, prototypes, attention and relation head."""
        backbone: Any = self._backbone()
        settings = {"queries": self.recipe["base"].get("batch_size", 128), **self.recipe["episode"]}
        return Network(backbone, sizes[0], sum(sizes), backbone.dimension, **settings)

    def _fit(self, images: Array, numbers: Array) -> None:
        self._train(self.net, images, numbers, "base")
        self.net.refined = self._refine(self.net.prototypes)

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        means = torch.from_numpy(class_means(unit(self.features(images)), numbers - len(self.classes), n_new))
        self.net.refined = torch.cat([self.net.refined, self._refine(means, self.net.prototypes)])

    @torch.no_grad()
    def _refine(self, prototypes: Tensor, others: Tensor | None = None) -> Tensor:
        refined: Tensor = self.net.refine(prototypes, others)
        return refined

    def _probabilities(self, features: Tensor) -> Tensor:
        logits: Tensor = self.net.relation(features, self.net.refined)
        return logits.softmax(1)
