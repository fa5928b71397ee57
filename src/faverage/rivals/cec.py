r"""CEC: few-shot incremental learning with continually evolved classifiers (Zhang et al., CVPR 2021).

Stage 1 is cross-entropy of s cos(f, w_c) with s = 16, f the feature of an image and w_c a weight of class c. Stage 2
goes on from that backbone with episodes. An episode has one support image and a few queries of each of 15 base classes;
all images of a class, rotated by one random angle of 90°, 180° or 270°, are a pseudo-new class: 30 classes in all. With
p_c the feature of the support image of class c, every query f is adapted together with all prototypes by one head of
attention over the tokens t = (p_1, …, p_C, f):

    a(t_i) = LayerNorm(t_i + W_o Σ_j α_ij W_v t_j + b),   α_i· = softmax_j(W_q t_i · W_k t_j / √d)
    L = CE(s cos(a(f), a(p_c)))

Attention and backbone learn; batch norm of the backbone keeps its statistics. After that p_c is the mean feature of all
training images of the class under the evaluation transform. A session trains nothing: it adds the means of its shots.
The prototypes are kept as they are, and adapted anew with each image that is to be classified.

Stores a prototype a class, and no exemplars.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, Attention, Resting, episode, turned
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Head
from faverage.vision.model import Network

__all__ = ["CEC"]

_CHUNK = 64  # images that are classified at a time: each has all prototypes adapted to it


class Graph(nn.Module):
    """Backbone, attention, and the prototypes ``(C, d)`` of all classes so far.

    Args:
        backbone: module from images to features.
        attention: adapts prototypes and queries.
        prototypes: before adaptation.
    """

    prototypes: Tensor

    def __init__(self, backbone: nn.Module, attention: Attention, prototypes: Tensor) -> None:
        super().__init__()
        self.backbone, self.attention = backbone, attention
        self.register_buffer("prototypes", prototypes)


class Adapt(Resting):
    """The loss of an episode. Its images come class by class, the support image of a class before its queries.

    Args:
        graph: backbone and attention, both learned.
        ways: classes of an episode, before they are doubled.
        queries: of each class.
        count: episodes an epoch.
        scale: s.
        weight_decay: that of the optimiser.
        backbone_rate: learning rate of the backbone, in units of that of the attention.
    """

    extras = 1

    def __init__(
        self,
        graph: Graph,
        *,
        ways: int,
        queries: int,
        count: int,
        scale: float,
        weight_decay: float,
        backbone_rate: float,
    ) -> None:
        super().__init__()
        self.graph, self.ways, self.queries, self.count, self.scale = graph, ways, queries, count, scale
        self.weight_decay, self.backbone_rate = weight_decay, backbone_rate
        self.resting = (graph.backbone,)
        self.register_buffer("targets", torch.arange(2 * ways).repeat_interleave(queries), persistent=False)

    def order(self, labels: Array, batch_size: int, rng: np.random.Generator) -> Array:
        """Draw the episodes of an epoch from labels ``(n,)``: rows ``(count, ways · (1 + queries))``."""
        drawn = [episode(labels, self.ways, 1 + self.queries, rng).reshape(-1) for _ in range(self.count)]
        return np.stack(drawn)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(2b, d)``: of all images ``(b, 3, s, s)`` as they are, then of all images rotated."""
        features: Tensor = self.graph.backbone(self.doubled(images, extra))
        return features

    def doubled(self, images: Tensor, extra: Tensor) -> Tensor:
        """Append the images ``(b, 3, s, s)``, rotated by one angle a class, which ``extra`` ``(b, 1)`` decides."""
        each = 1 + self.queries
        quarters = 1 + (3 * extra[::each]).long()
        return torch.cat([images, turned(images, quarters.expand(-1, each).flatten())])

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of the queries, and right answers as if all images were queries, ``()`` each."""
        features = embedded.float().unflatten(0, (2 * self.ways, 1 + self.queries))
        queries = features[:, 1:].flatten(0, 1)
        logits = self.scale * adapted_cosines(self.graph.attention, features[:, 0], queries)
        targets: Any = self.targets
        right = (logits.detach().argmax(1) == targets).float().mean() * len(labels)
        return F.cross_entropy(logits, targets), right

    def change_gradients(self) -> None:
        """Scale the backbone's gradients with their weight decay, which is the same as a rate of its own."""
        if self.backbone_rate == 1:
            return
        for parameter in self.graph.backbone.parameters():
            if parameter.grad is not None:
                decay = (self.backbone_rate - 1) * self.weight_decay
                parameter.grad.mul_(self.backbone_rate).add_(parameter.detach(), alpha=decay)


def adapted_cosines(attention: Attention, prototypes: Tensor, queries: Tensor) -> Tensor:
    """Return cos(a(f), a(p_c)), ``(n, C)``, for ``queries`` ``(n, d)``, each with all ``prototypes`` ``(C, d)``.

    It is what ``attention`` gives for the C + 1 tokens of each query, but what prototypes say to each other is computed
    once for all queries. With m_c what c hears from the prototypes alone, and v what the query says, c hears
    (1 − β) m_c + β v, where β is the share of the query in the softmax.
    """
    root = prototypes.shape[1] ** 0.5
    asks, keys, values = (part(prototypes) for part in (attention.query, attention.key, attention.value))
    own_asks, own_keys, own_values = (part(queries) for part in (attention.query, attention.key, attention.value))
    among = asks @ keys.T / root
    share = torch.sigmoid(own_keys @ asks.T / root - among.logsumexp(1))
    heard = attention.out(among.softmax(1) @ values)
    mixed = torch.lerp(heard[None], attention.out(own_values)[:, None], share[..., None])
    nodes = attention.norm(prototypes + attention.dropout(mixed))

    scores = torch.cat([own_asks @ keys.T, (own_asks * own_keys).sum(1, keepdim=True)], 1) / root
    weights = scores.softmax(1)
    mixed = attention.out(weights[:, :-1] @ values + weights[:, -1:] * own_values)
    adapted = attention.norm(queries + attention.dropout(mixed))
    return torch.einsum("nd,ncd->nc", F.normalize(adapted, dim=-1), F.normalize(nodes, dim=-1))


class CEC(Rival):
    """See the module's docstring.

    Both stages are of the base session; a new class is one more prototype:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 2}, "adapt": {"epochs": 1}, "episode": {"count": 2, "queries": 2}}
    >>> rival = CEC("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> list(rival.trainings), rival.net.prototypes.shape, rival.predict_proba(images[:2]).shape
    (['cec-base', 'cec-adapt'], torch.Size([4, 128]), (2, 4))
    """

    name = "cec"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "adapt": {
                "epochs": 100,
                "lr": 2e-4,
                "schedule": {"at": [0.2, 0.4, 0.6, 0.8], "times": 0.5},
                "weight_decay": 5e-4,
            },
            "episode": {"count": 50, "ways": 15, "queries": 15},
            "scale": 16.0,
            "dropout": 0.5,
            "backbone_rate": 1.0,
        },
        "shared/digits": {
            "base": {"epochs": 20, "batch_size": 64, "lr": 0.05},
            "adapt": {"epochs": 10, "lr": 0.01},
            "episode": {"count": 15, "queries": 5},
        },
        "paper": {"base": {"schedule": {"at": [0.4, 0.7], "times": 0.1}}},
        "paper/mini-imagenet": {"backbone": "resnet18_large", "crop": 84},
        "paper/cub200": {
            "backbone": "resnet18_large",
            "crop": 224,
            "base": {"lr": 0.01, "schedule": {"at": [0.3, 0.4, 0.6, 0.8], "times": 0.1}},
            "episode": {"queries": 10},
        },
        "paper/cifar100": {"crop": 32, "base": {"schedule": {"at": [0.6, 0.7], "times": 0.1}}, "backbone_rate": 10.0},
    }

    def build(self, sizes: list[int]) -> Graph:
        """Return backbone, attention, and room for the prototypes."""
        backbone: Any = self._backbone()
        attention = Attention(backbone.dimension, dropout=self.recipe["dropout"], norm=True)
        return Graph(backbone, attention, torch.zeros(sum(sizes), backbone.dimension))

    def _fit(self, images: Array, numbers: Array) -> None:
        n_classes, dimension = self.net.prototypes.shape
        head = self._seeded(lambda: Head(dimension, n_classes, "cosine", scale=self.recipe["scale"]))
        self._train(Network(self.net.backbone, head), images, numbers, "base")
        episodes = self.recipe["episode"]
        adapt = Adapt(
            self.net,
            ways=min(episodes["ways"], n_classes),
            queries=episodes["queries"],
            count=episodes["count"],
            scale=self.recipe["scale"],
            weight_decay=self.recipe["adapt"]["weight_decay"],
            backbone_rate=self.recipe["backbone_rate"],
        )
        self._train(adapt, images, numbers, "adapt")
        self.net.prototypes = self._means(images, numbers, n_classes)

    def _probabilities(self, features: Tensor) -> Tensor:
        attention, prototypes = self.net.attention, self.net.prototypes
        cosines = torch.cat([adapted_cosines(attention, prototypes, part) for part in features.split(_CHUNK)])
        return torch.softmax(self.recipe["scale"] * cosines, 1)
