r"""C-FSCIL: constrained few-shot class-incremental learning (Hersche et al., CVPR 2022).

A fully connected layer (FC) takes the feature of an image to 512 dimensions, q. Pretraining is cross-entropy of a
linear head on q. Then come episodes: some images of each class, the support, give a prototype p_c = Σ q, with the
network in evaluation mode and without gradients; from the other images, the queries, the network learns with

    s_c = softabs(cos(tanh q, tanh p_c)),   softabs(x) = σ(10 (x − ½)) + σ(10 (−x − ½))
    L   = BCE(s / Σ s, one-hot of the class), the mean over queries and classes

so that classes become nearly orthogonal. After that the backbone is frozen, and a_c, the mean feature of images of
class c, is kept of each class. In every session, that of the base classes too, p = FC(a) for all classes so far. What
follows is the ``mode``:

    1  nothing
    2  targets t = sign p; 10 gradient steps of the FC on L = −mean cos(tanh FC(a), tanh t); then p = FC(a)
    3  the same with 50 steps and targets nudged from t = p by 100 steps, with Nesterov's momentum, on
       L = mean_{i<j} (e^{4c} + e^{−4c} − 2) + mean_i (1 − cos(tanh t_i, tanh p_i)),   c = cos(tanh t_i, tanh t_j)

An image is of the class with the largest |cos(tanh q, tanh p_c)|; its probabilities are s / Σ s, in the same order.

Assumed, since we could not verify it: the head of the pretraining is on q; the FC has a bias; support images are
augmented; the FC starts where the last session left it; its steps have neither momentum nor weight decay; the momentum
of the nudging is 0.9. The paper's backbone is ResNet-12 with 640 dimensions; here it is that of the run. The recipe
``shared`` has 5,000 of the paper's 70,000 episodes: as many queries as 100 epochs of mini-ImageNet have images.

Stores a mean feature a class, and no exemplars.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, cosine, episode
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Head, Trainable
from faverage.vision.model import Network

__all__ = ["CFSCIL"]

DIMENSION = 512
STEPS = {1: 0, 2: 10, 3: 50}  # of the FC, by mode
_DROPS = {"at": [3 / 7, 6 / 7], "times": 0.1}


class Memory(nn.Module):
    """Backbone, FC, and what is kept of ``n`` classes: mean features a ``(n, d)`` and prototypes p ``(n, 512)``.

    Args:
        backbone: module from images to features.
        n: number of classes.
        dimension: d.
    """

    means: Tensor
    prototypes: Tensor

    def __init__(self, backbone: nn.Module, n: int, dimension: int) -> None:
        super().__init__()
        self.backbone, self.fc = backbone, nn.Linear(dimension, DIMENSION)
        self.register_buffer("means", torch.zeros(n, dimension))
        self.register_buffer("prototypes", torch.zeros(n, DIMENSION))


class Episodes(Trainable):
    """The loss of an episode. Its images are the support, class by class, then the queries, class by class.

    Args:
        network: from images to q, all of it learned.
        ways: classes of an episode.
        shots: support images of each.
        queries: of each.
        count: episodes an epoch.

    Attributes:
        targets: of the queries, ``(ways · queries,)``.
    """

    targets: Tensor

    def __init__(self, network: nn.Module, *, ways: int, shots: int, queries: int, count: int) -> None:
        super().__init__()
        self.network, self.ways, self.shots, self.queries, self.count = network, ways, shots, queries, count
        self.register_buffer("targets", torch.arange(ways).repeat_interleave(queries), persistent=False)

    def order(self, labels: Array, batch_size: int, rng: np.random.Generator) -> Array:
        """Draw the episodes of an epoch from labels ``(n,)``: rows ``(count, ways · (shots + queries))``."""
        drawn = [episode(labels, self.ways, self.shots + self.queries, rng) for _ in range(self.count)]
        parts = [(rows[:, : self.shots].ravel(), rows[:, self.shots :].ravel()) for rows in drawn]
        return np.stack([np.concatenate(both) for both in parts])

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return q of the support, ``(ways · shots, 512)``, and of the queries, ``(ways · queries, 512)``."""
        n = self.ways * self.shots
        with torch.no_grad():
            support = self.network.eval()(images[:n])
        return support, self.network.train(self.training)(images[n:])

    def loss(self, embedded: tuple[Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the queries, and right answers as if all images were queries, ``()`` each."""
        support, queries = (part.float() for part in embedded)
        shares = similarities(queries, support.unflatten(0, (self.ways, self.shots)).sum(1))
        right = (shares.detach().argmax(1) == self.targets).float().mean() * len(labels)
        return F.binary_cross_entropy(shares, F.one_hot(self.targets, self.ways).float()), right


def softabs(x: Tensor) -> Tensor:
    """Return σ(10 (x − ½)) + σ(10 (−x − ½)), elementwise, for x of any shape: near 0 at 0, near 1 at ±1.

    >>> softabs(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.9933, 0.0134, 0.9933])
    """
    return torch.sigmoid(10 * (x - 0.5)) + torch.sigmoid(10 * (-x - 0.5))


def similarities(queries: Tensor, prototypes: Tensor) -> Tensor:
    """Return s / Σ s, ``(n, C)``, of queries ``(n, 512)`` and prototypes ``(C, 512)``; it grows with |cos|."""
    raw = softabs(cosine(queries.tanh(), prototypes.tanh()))
    return raw / raw.sum(1, keepdim=True)


def nudging_loss(nudged: Tensor, start: Tensor) -> Tensor:
    """Return how alike the classes are, and how far ``nudged`` is from ``start``, ``()``; both are ``(C, 512)``."""
    cosines = cosine(nudged.tanh(), nudged.tanh())
    i, j = torch.triu_indices(len(nudged), len(nudged), 1)
    between = 2 * torch.cosh(4 * cosines[i, j]) - 2
    return between.mean() + 1 + alignment_loss(nudged, start)


def alignment_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −mean cos(tanh o_i, tanh t_i), ``()``, of outputs and targets ``(C, 512)``."""
    return -F.cosine_similarity(outputs.tanh(), targets.tanh()).mean()


def nudge(prototypes: Tensor) -> Tensor:
    """Return targets ``(C, 512)`` near to prototypes ``(C, 512)``, and more nearly orthogonal to each other."""
    nudged = prototypes.clone().requires_grad_()
    optimizer = torch.optim.SGD([nudged], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(100):
        optimizer.zero_grad()
        nudging_loss(nudged, prototypes).backward()
        optimizer.step()
    return nudged.detach()


def retrain(fc: nn.Linear, means: Tensor, targets: Tensor, steps: int) -> None:
    """Take gradient steps on the FC, in place, from mean features ``(C, d)`` towards targets ``(C, 512)``."""
    optimizer = torch.optim.SGD(fc.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        alignment_loss(fc(means), targets).backward()
        optimizer.step()
    optimizer.zero_grad()


class CFSCIL(Rival):
    """See the module's docstring.

    Of each class it keeps the mean feature, and in every session makes the prototypes of all classes from them:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 1}, "meta": {"epochs": 1}, "mode": 2}
    >>> recipe["episode"] = {"count": 2, "shots": 2, "queries": 2}
    >>> rival = CFSCIL("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> list(rival.trainings), rival.net.means.shape, rival.net.prototypes.shape
    (['c-fscil-base', 'c-fscil-meta'], torch.Size([4, 128]), torch.Size([4, 512]))
    """

    name = "c-fscil"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "meta": {"epochs": 100, "lr": 0.01, "schedule": _DROPS, "weight_decay": 5e-4},
            "episode": {"count": 50, "ways": 60, "shots": 5, "queries": 10},
            "images": 100,
            "mode": 3,
        },
        "shared/digits": {"meta": {"epochs": 10, "lr": 0.1}, "episode": {"count": 10}},
        "paper": {
            "base": {"epochs": 120, "lr": 0.01, "schedule": {"at": [0.25, 0.5, 0.75], "times": 0.1}},
            "meta": {"epochs": 700},
            "episode": {"count": 100},
        },
        "paper/mini-imagenet": {"crop": 84},
        # the paper has no CUB-200: a thousand episodes from a trained start
        "paper/cub200": {
            **{"meta": {"epochs": 20}, "episode": {"count": 50}},
            **{"backbone": "resnet18_large", "crop": 224},
        },
        "paper/cifar100": {"crop": 32, "images": 200},
    }

    def build(self, sizes: list[int]) -> Memory:
        """Return backbone, FC, and room for what is kept of the classes."""
        if self.recipe["mode"] not in STEPS:
            raise ValueError(f"mode of {self.name} must be 1, 2 or 3, got {self.recipe['mode']!r}")
        backbone: Any = self._backbone()
        return Memory(backbone, sum(sizes), backbone.dimension)

    def _fit(self, images: Array, numbers: Array) -> None:
        n_classes = len(self.net.means)
        network: Any = nn.Sequential(self.net.backbone, self.net.fc)
        head = self._seeded(lambda: Head(DIMENSION, n_classes))
        self._train(Network(network, head), images, numbers, "base")
        episodes = {**self.recipe["episode"], "ways": min(self.recipe["episode"]["ways"], n_classes)}
        self._train(Episodes(network, **episodes), images, numbers, "meta")
        rng, most = self._rng(), self.recipe["images"]
        rows = np.concatenate([rng.permutation(np.flatnonzero(numbers == c))[:most] for c in range(n_classes)])
        self._settle(self._means(images[rows], numbers[rows], n_classes))

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        means = self._means(images, numbers - len(self.classes), n_new)
        self._settle(torch.cat([self.net.means, means]))

    def _settle(self, means: Tensor) -> None:
        """Keep mean features ``(N, d)`` of all classes, retrain the FC as the mode wants, and compute prototypes."""
        net, mode = self.net, self.recipe["mode"]
        net.means = means
        prototypes = net.fc(net.means).detach()
        if mode > 1:
            retrain(net.fc, net.means, nudge(prototypes) if mode == 3 else prototypes.sign(), STEPS[mode])
            prototypes = net.fc(net.means).detach()
        net.prototypes = prototypes

    def _probabilities(self, features: Tensor) -> Tensor:
        return similarities(self.net.fc(features), self.net.prototypes)
