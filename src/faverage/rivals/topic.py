r"""TOPIC: topology-preserving knowledge incrementer (Tao et al., CVPR 2020).

With f the feature of an image, scaled to length 1, session h has a linear head W_h without bias: logits W_h f. The base
session is plain cross-entropy. After it a neural gas of nodes m_j, which start at random features, learns where the
features are. For one feature after the other, with r_j the rank of node j by its distance to f, 0 being the nearest:

    m_j ← m_j + η e^(−r_j/α) (f − m_j)

then the edges of the nearest node grow older by one, those older than T go, and the two nearest get an edge of age 0.
A node has the class that most of the features that it wins have, and the image z_j of that class whose feature is
nearest. A session adds one node a class, at the mean of its shots, and a head; it trains this head, the last residual
block and the new nodes, on all shots at once:

    L = CE(x) + λ_A mean_j mean_d (f(z_j) − f_prev(z_j))_d² + λ_min mean_x ‖f(x) − m_y‖²
        + λ_max mean_{(j, i)} max(0, ξ − ‖m_j − m_i‖²)

CE goes over all heads; (j, i) are new nodes and their neighbours; f_prev is f before the session. Batch norm keeps its
statistics; other heads, nodes and layers stay as they are.

The authors did not publish their code of the gas and of the last two terms. Assumed here: the rule of the gas, with
η = 0.02, α = 1 and T = 200, and three passes; a node that wins nothing takes the class of the nearest feature; the
image of a new node is the shot nearest to it; each shot gives its class's node an edge to the node of another class
that is nearest to the shot; squared distances in both terms; new nodes have a rate of their own, the momentum and the
drops of the rest, and no weight decay; the base head sees f too, and its training, 50 epochs with ``paper``, is a
guess. Unlike in the paper, the anchor loss is not divided by variances; it covers the nodes of all earlier sessions,
where the authors' settings have base nodes only. Their learning rate of 0.1 (recipe ``paper``) lets the new head grow,
on features of length 1, until nearly every image goes to it; ``shared`` has 0.02, chosen on base classes.

Stores an image a node: 400 of base classes, and one a new class.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, Resting, class_means
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Trainable
from faverage.vision.backbones import Block

__all__ = ["TOPIC"]

_CUB: Recipe = {
    "increment": {"epochs": 120, "lr": 0.01, "schedule": {"at": [110 / 120], "times": 0.1}},
    "min": {"weight": 5e-5, "rate": 0.5},
    "max": {"weight": 1e-6},
}
_CIFAR: Recipe = {"increment": {"epochs": 70, "schedule": {"at": [60 / 70], "times": 0.1}}, "max": {"weight": 1e-4}}


@dataclass
class Gas:
    """Nodes ``(m, d)`` and the ages of edges between them ``(m, m)``, −1 where there is none.

    Args:
        nodes: changed in place.
        ages: changed in place.
        rate: η.
        reach: α.
        lifetime: T.
    """

    nodes: Array
    ages: Array
    rate: float
    reach: float
    lifetime: int
    _halves: Array = field(init=False)  # of the nodes' squared lengths

    def __post_init__(self) -> None:
        self._halves = (self.nodes**2).sum(1) / 2
        count = min(len(self.nodes), int(17 * self.reach) + 2)  # further nodes move by less than float32 resolves
        self._moves = (self.rate * np.exp(-np.arange(count) / self.reach)).astype(self.nodes.dtype)[:, None]

    @classmethod
    def of_features(cls, features: Array, rng: np.random.Generator, *, nodes: int, passes: int, **options: Any) -> Self:
        """Start at random rows of features ``(n, d)``, and learn from all, in random order, ``passes`` times."""
        start = features[rng.permutation(len(features))[:nodes]]
        gas = cls(start, np.full((len(start), len(start)), -1, dtype=np.int32), **options)
        for _ in range(passes):
            for row in rng.permutation(len(features)):
                gas.step(features[row])
        return gas

    def step(self, feature: Array) -> None:
        """Learn from one feature ``(d,)``."""
        distances, count = self._halves - self.nodes @ feature, len(self._moves)
        near = np.argpartition(distances, count - 1)[:count]
        near = near[np.argsort(distances[near], kind="stable")]
        moved = self.nodes[near]
        moved += self._moves * (feature - moved)
        self.nodes[near], self._halves[near] = moved, np.einsum("md,md->m", moved, moved) / 2
        if count > 1:
            self.link(near[0], near[1])

    def link(self, winner: int, second: int) -> None:
        """Let the edges of a node grow older, drop those that are too old, and join it with another one."""
        row = self.ages[winner]
        row[row >= 0] += 1
        row[row > self.lifetime] = -1
        row[second] = 0
        self.ages[:, winner] = row

    def distances(self, features: Array) -> Array:
        """Return half the squared distance to each node, ``(n, m)``, less a constant, of features ``(n, d)``."""
        result: Array = self._halves - features @ self.nodes.T
        return result

    def classes(self, features: Array, numbers: Array) -> Array:
        """Return the class ``(m,)`` of each node: that of most of the features ``(n, d)`` that it is nearest to."""
        distances = self.distances(features)
        counts = np.zeros((len(self.nodes), numbers.max() + 1), dtype=np.int64)
        np.add.at(counts, (distances.argmin(1), numbers), 1)
        idle = counts.sum(1) == 0
        result: Array = np.where(idle, numbers[distances.argmin(0)], counts.argmax(1))
        return result


def nearest(distances: Array, numbers: Array, classes: Array) -> Array:
    """Return the row ``(m,)`` that is nearest to each node, by distances ``(n, m)``, of those ``(n,)`` of its class."""
    rows: Array = np.where(numbers[:, None] == classes, distances, np.inf).argmin(0)
    return rows


class Network(Trainable):
    """Backbone and a head without bias for each session, on features of length 1.

    Args:
        backbone: module from images to features.
        dimension: d.
        sizes: number of classes of each session.
    """

    def __init__(self, backbone: nn.Module, dimension: int, sizes: list[int]) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ParameterList(nn.Linear(dimension, size, bias=False).weight for size in sizes)

    def logits(self, unit: Tensor) -> Tensor:
        """Return logits of all classes, ``(n, N)``, for features of length 1, ``(n, d)``."""
        return F.linear(unit, torch.cat(list(self.heads)))

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(b, d)`` of images ``(b, 3, s, s)``."""
        features: Tensor = self.backbone(images)
        return features

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy, all of the base session's loss, and the right answers, ``()`` each."""
        logits = self.logits(F.normalize(embedded.float()))
        return F.cross_entropy(logits, labels), (logits.detach().argmax(1) == labels).sum()


def last_block(backbone: nn.Module) -> list[nn.Module]:
    """Return the last residual block; without any, the last convolution (or linear map) and the last batch norm."""
    parts = list(backbone.modules())
    for kinds in ([(Block,)], [(nn.Conv2d, nn.Linear), (nn.BatchNorm2d,)]):
        found = [[part for part in parts if isinstance(part, kind)][-1:] for kind in kinds]
        if found[0]:
            return [part for last in found for part in last]
    return []


class Increment(Resting):
    """The loss of a session, for a network whose last head is new.

    Args:
        network: of which the last head and the last block learn.
        anchors: normalised images of nodes ``(m, 3, s, s)``.
        before: their features of length 1 before the session, ``(m, d)``.
        old: nodes of earlier sessions ``(m, d)``.
        new: nodes of this one ``(c, d)``, learned.
        edges: of new nodes, ``(p, 2)``; numbers of nodes, the old ones first.
        anchor: λ_A.
        weights: λ_min and λ_max.
        margin: ξ.
        node_rate: learning rate of the nodes in units of that of the rest.
        weight_decay: that of the optimiser, which the nodes are spared.
    """

    anchors: Tensor
    before: Tensor
    old: Tensor
    edges: Tensor

    def __init__(
        self,
        network: Network,
        *,
        anchors: Tensor,
        before: Tensor,
        old: Tensor,
        new: Tensor,
        edges: Tensor,
        anchor: float,
        weights: tuple[float, float],
        margin: float,
        node_rate: float,
        weight_decay: float,
    ) -> None:
        super().__init__()
        self.network, self.new = network.requires_grad_(False), nn.Parameter(new)
        for part in (network.heads[-1:], *last_block(network.backbone)):
            part.requires_grad_(True)
        self.n_old = sum(len(head) for head in list(network.heads)[:-1])
        for name, fixed in {"anchors": anchors, "before": before, "old": old, "edges": edges}.items():
            self.register_buffer(name, fixed, persistent=False)
        self.anchor, self.weights, self.margin = anchor, weights, margin
        self.node_rate, self.weight_decay = node_rate, weight_decay
        self.resting = (network.backbone,)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> Tensor:
        """Return features ``(b + m, d)`` of images ``(b, 3, s, s)`` and of the nodes' images after them."""
        features: Tensor = self.network.backbone(torch.cat([images, self.anchors]))
        return features

    def loss(self, embedded: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of all terms, and the right answers, ``()`` each."""
        unit = F.normalize(embedded.float())
        shots, anchored = unit.split([len(labels), len(self.before)])
        logits = self.network.logits(shots)
        loss = F.cross_entropy(logits, labels) + self.anchor * F.mse_loss(anchored, self.before)
        own = self.new[(labels - self.n_old).clamp(min=0)]  # trial steps on a GPU have labels of 0
        loss = loss + self.weights[0] * min_loss(shots, own)
        loss = loss + self.weights[1] * max_loss(torch.cat([self.old, self.new]), self.edges, self.margin)
        return loss, (logits.detach().argmax(1) == labels).sum()

    def change_gradients(self) -> None:
        """Give the nodes their own rate, and take back their weight decay."""
        if self.new.grad is not None:
            self.new.grad.mul_(self.node_rate).sub_(self.new.detach(), alpha=self.weight_decay)


def min_loss(features: Tensor, own: Tensor) -> Tensor:
    """Return the mean squared distance, ``()``, of features ``(b, d)`` to the nodes of their classes ``(b, d)``."""
    return (features - own).square().sum(1).mean()


def max_loss(nodes: Tensor, edges: Tensor, margin: float) -> Tensor:
    """Return the mean of max(0, ξ − ‖m_j − m_i‖²), ``()``, over edges ``(p, 2)`` between nodes ``(m, d)``."""
    return F.relu(margin - (nodes[edges[:, 0]] - nodes[edges[:, 1]]).square().sum(1)).mean()


class TOPIC(Rival):
    """See the module's docstring.

    A gas of six nodes gets a seventh in a session of one class; each node keeps an image:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 2}, "increment": {"epochs": 2}, "gas": {"nodes": 6}}
    >>> rival = TOPIC("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> rival.arrays["nodes"].shape, rival.arrays["node_images"].shape
    ((7, 128), (7, 8, 8, 3))
    >>> [tuple(head.shape) for head in rival.net.heads]  # one a session
    [(3, 128), (1, 128)]
    """

    name = "topic"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "increment": {"epochs": 100, "lr": 0.02, "schedule": {"at": [0.9], "times": 0.1}, "weight_decay": 5e-4},
            "gas": {"nodes": 400, "passes": 3, "rate": 0.02, "reach": 1.0, "lifetime": 200},
            "start": 0.001,
            "anchor": 350.0,
            "min": {"weight": 0.3, "rate": 0.1},
            "max": {"weight": 1e-5, "margin": 0.5},
        },
        "shared/digits": {
            "base": {"epochs": 20, "batch_size": 64, "lr": 0.05},
            "increment": {"epochs": 40, "lr": 0.03},
            "gas": {"nodes": 40},
        },
        "shared/cub200": _CUB,
        "shared/cifar100": _CIFAR,
        "paper": {"base": {"epochs": 50, "schedule": "paper"}, "increment": {"lr": 0.1}},
        "paper/mini-imagenet": {"backbone": "resnet18_large", "crop": 84},
        "paper/cub200": {"backbone": "resnet18_large", "crop": 224, **_CUB},
        "paper/cifar100": {"crop": 32, **_CIFAR},
    }

    def build(self, sizes: list[int]) -> Network:
        """Return backbone and heads."""
        backbone: Any = self._backbone()
        return Network(backbone, backbone.dimension, sizes)

    def _fit(self, images: Array, numbers: Array) -> None:
        self._train(self.net, images, numbers, "base")
        unit = self._unit(images)
        gas = Gas.of_features(unit, self._rng(), **self.recipe["gas"])
        classes = gas.classes(unit, numbers)
        self._keep(gas, classes, np.asarray(images[nearest(gas.distances(unit), numbers, classes)]))

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        assert self.transform is not None
        recipe, kept = self.recipe, self.arrays["node_images"]
        unit = self._unit(images)
        gas, classes = self._grown(unit, numbers, n_new)
        old, new = np.split(gas.nodes, [len(kept)])
        network = copy.deepcopy(self.net)
        network.heads.append(self._seeded(lambda: torch.randn(len(new), new.shape[1]) * recipe["start"]))
        increment = Increment(
            network,
            anchors=self.transform(torch.from_numpy(kept)),
            before=torch.from_numpy(self._unit(kept)),
            old=torch.from_numpy(old),
            new=torch.from_numpy(new.copy()),
            edges=torch.from_numpy(np.argwhere(gas.ages[len(old) :] >= 0) + np.array([len(old), 0])),
            anchor=recipe["anchor"],
            weights=(recipe["min"]["weight"], recipe["max"]["weight"]),
            margin=recipe["max"]["margin"],
            node_rate=recipe["min"]["rate"] / recipe["increment"]["lr"],
            weight_decay=recipe["increment"]["weight_decay"],
        )
        shots = np.arange(max(len(numbers), 2)) % len(numbers)  # training wants two images or more
        self._train(increment, images[shots], numbers[shots], "increment", batch_size=len(shots))
        rows = nearest(gas.distances(unit), numbers, classes)[len(old) :]
        gas.nodes[len(old) :] = increment.new.detach().numpy()
        self.net = network.requires_grad_(True)
        self._keep(gas, classes, np.concatenate([kept, images[rows]]))

    def _grown(self, unit: Array, numbers: Array, n_new: int) -> tuple[Gas, Array]:
        """Return the gas with a node for each new class, and the classes of all nodes."""
        kept, n_old, m = self.arrays, len(self.classes), len(self.arrays["nodes"])
        nodes = np.concatenate([kept["nodes"], class_means(unit, numbers - n_old, n_new)])
        ages = np.pad(kept["node_ages"], (0, n_new), constant_values=-1)
        gas = Gas(nodes, ages, **{key: self.recipe["gas"][key] for key in ("rate", "reach", "lifetime")})
        classes = np.append(kept["node_numbers"], np.arange(n_old, n_old + n_new))
        others = np.where(numbers[:, None] == classes, np.inf, gas.distances(unit)).argmin(1)
        for number, other in zip(numbers, others, strict=True):
            gas.link(m + number - n_old, other)
        return gas, classes

    def _keep(self, gas: Gas, classes: Array, images: Array) -> None:
        self.arrays = {"nodes": gas.nodes, "node_ages": gas.ages, "node_numbers": classes, "node_images": images}

    def _unit(self, images: Array) -> Array:
        """Return features of length 1, ``(n, d)``, of images ``(n, S, S, 3)``."""
        result: Array = F.normalize(torch.from_numpy(self.features(images))).numpy()
        return result

    def _probabilities(self, features: Tensor) -> Tensor:
        logits: Tensor = self.net.logits(F.normalize(features))
        return logits.softmax(1)
