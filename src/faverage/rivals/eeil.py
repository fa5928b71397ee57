r"""EEIL: end-to-end incremental learning (Castro et al., ECCV 2018).

A linear head on the features of the backbone; the base session is plain cross-entropy. A session adds the rows of its
classes to the head and trains head and backbone in two stages. With z the logits of all classes, z^h those of the
classes of session h, z'^h the same of a network that is kept as it was, and T = 2:

    L = CE(z) + Σ_h D(z^h, z'^h),   D = −Σ_c q_c ln p_c with p = softmax(z^h / T), q = softmax(z'^h / T)

Stage 1 learns from the new images and the exemplars; h goes over the earlier sessions, and z' is of the network before
the session. Then exemplars of the new classes are chosen by herding. Stage 2 is balanced: as many images of each class
as the class with the fewest has, chosen by herding too; h goes over the new session as well, and z' is of the network
after stage 1. Every gradient has normal noise added, with the variance 0.3 / (1 + epoch)^0.55. As in the authors'
program it is added to the gradient that is summed over a batch, so its deviation is divided by the size of the batch
where, as here, losses are means.

Stores exemplars: 400 images of base classes, drawn evenly, and one image a new class, chosen by herding. Trains the
backbone in every session.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from faverage.rivals.parts import Array, Exemplars, Resting, distillation, herded
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Head, extract_features
from faverage.vision.model import Network

__all__ = ["EEIL"]

QUARTERS = {"at": [0.25, 0.5, 0.75], "times": 0.1}
THIRDS = {"at": [1 / 3, 2 / 3], "times": 0.1}


class Increment(Resting):
    """The loss of a stage: a network that learns, and an earlier one, which does not.

    Args:
        network: with the new classes.
        before: the earlier network; it knows the first classes of ``network``, or all.
        sizes: number of classes of each session that ``before`` knows.
        temperature: T.
        noise: variance of the noise in the first epoch, on gradients summed over a batch.
        decay: the power of 1 + epoch by which the variance is divided.
        batch_size: images a step.

    Attributes:
        deviation: ``()``, of the noise in this epoch.
    """

    deviation: Tensor

    def __init__(
        self,
        network: Network,
        before: Network,
        sizes: list[int],
        *,
        temperature: float,
        noise: float,
        decay: float,
        batch_size: int,
    ) -> None:
        super().__init__()
        self.network, self.before = network, before.requires_grad_(False)
        self.sizes, self.temperature = sizes, temperature
        self.noise, self.decay, self.batch_size = noise, decay, batch_size
        self.register_buffer("deviation", torch.zeros(()))
        self.resting = (before,)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Set the size of the noise."""
        self.deviation.fill_((self.noise / (1 + epoch) ** self.decay) ** 0.5 / self.batch_size)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of both networks, ``(b, d)`` each, of images ``(b, 3, s, s)``."""
        with torch.no_grad():
            old = self.before.backbone(images)
        return self.network.backbone(images), old

    def loss(self, embedded: tuple[Tensor, Tensor], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropy + the distillation of each session's logits, and the right answers, ``()`` each."""
        features, before = (part.float() for part in embedded)
        logits, old = self.network.head(features), self.before.head(before)
        loss = F.cross_entropy(logits, labels) + distilled(logits, old, self.sizes, self.temperature)
        return loss, (logits.detach().argmax(1) == labels).sum()

    def change_gradients(self) -> None:
        """Add the noise."""
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(torch.randn_like(parameter.grad) * self.deviation)


def distilled(logits: Tensor, old: Tensor, sizes: list[int], temperature: float) -> Tensor:
    """Return Σ_h D(z^h, z'^h), ``()``, for sessions of these sizes.

    ``logits`` ``(b, N)`` may have more columns than ``old`` ``(b, sum(sizes))``.
    """
    pairs = zip(logits[:, : sum(sizes)].split(sizes, 1), old.split(sizes, 1), strict=True)
    return torch.stack([distillation(now, before, temperature) for now, before in pairs]).sum()


def balanced(features: Array, numbers: Array) -> Array:
    """Choose as many rows of each class as the smallest class ``(n,)`` has, by herding on features ``(n, d)``.

    >>> balanced(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 1.0]]), np.array([0, 0, 0, 1]))
    array([2, 3])
    """
    _, counts = np.unique(numbers, return_counts=True)
    return herded(features, numbers, int(counts.min()))


class EEIL(Rival):
    """See the module's docstring.

    A session trains twice, the second time on as many images of each class:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 2}, "increment": {"epochs": 2}, "balance": {"epochs": 2}}
    >>> rival = EEIL("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> list(rival.trainings), rival.predict_proba(images[:2]).shape
    (['eeil-base', 'eeil-increment-1', 'eeil-balance-1'], (2, 4))
    """

    name = "eeil"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "increment": {"epochs": 40, "batch_size": 128, "lr": 0.1, "schedule": QUARTERS, "weight_decay": 1e-4},
            "balance": {"epochs": 30, "batch_size": 128, "lr": 0.01, "schedule": THIRDS, "weight_decay": 1e-4},
            "temperature": 2.0,
            "noise": 0.3,
            "decay": 0.55,
            "exemplars": {"base": 400, "new": 1},
        },
        "shared/digits": {
            "base": {"epochs": 20, "batch_size": 64, "lr": 0.05},
            "increment": {"epochs": 20, "batch_size": 64},
            "balance": {"epochs": 30, "batch_size": 64},
        },
        "shared/cub200": {"increment": {"lr": 0.01}, "balance": {"lr": 0.001}},  # all start from trained weights
        "paper": {"base": {"epochs": 40, "schedule": QUARTERS, "weight_decay": 1e-4}},
        "paper/mini-imagenet": {"backbone": "resnet18_large", "crop": 84},
        "paper/cub200": {
            **{"base": {"lr": 0.01}, "increment": {"lr": 0.01}, "balance": {"lr": 0.001}},
            **{"backbone": "resnet18_large", "crop": 224},
        },
        "paper/cifar100": {"crop": 32},
    }

    def build(self, sizes: list[int]) -> Network:
        """Return backbone and linear head."""
        backbone: Any = self._backbone()
        return Network(backbone, Head(backbone.dimension, sum(sizes)))

    def _fit(self, images: Array, numbers: Array) -> None:
        self._train(self.net, images, numbers, "base")
        kept = Exemplars.of_base(images, numbers, self.recipe["exemplars"]["base"], self._rng())
        self.arrays = kept.arrays()

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        assert self.transform is not None
        exemplars = Exemplars.of_arrays(self.arrays)
        sizes = [len(session) for session in self.sessions]
        network = self._wider(n_new)
        all_images, all_numbers = exemplars.joined(images, numbers)
        self._stage(network, copy.deepcopy(self.net), sizes, all_images, all_numbers, "increment")
        features = extract_features(network.backbone, all_images, transform=self.transform, device=self.device)
        kept = exemplars.with_new(
            images, numbers, features[len(exemplars.numbers) :], self.recipe["exemplars"]["new"]
        ).arrays()
        rows = balanced(features, all_numbers)
        self._stage(network, copy.deepcopy(network), [*sizes, n_new], all_images[rows], all_numbers[rows], "balance")
        self.net, self.arrays = network, kept

    def _wider(self, n_new: int) -> Network:
        """Return a copy of the network whose head has rows for new classes."""
        old = self.net.head
        n_old, dimension = old.weight.shape
        head: Head = self._seeded(lambda: Head(dimension, n_old + n_new))
        with torch.no_grad():
            head.weight[:n_old] = old.weight
            head.bias[:n_old] = old.bias
        return Network(copy.deepcopy(self.net.backbone), head)

    def _stage(
        self, network: Network, before: Network, sizes: list[int], images: Array, numbers: Array, section: str
    ) -> None:
        stage = Increment(
            network,
            before,
            sizes,
            temperature=self.recipe["temperature"],
            noise=self.recipe["noise"],
            decay=self.recipe["decay"],
            batch_size=min(self.recipe[section]["batch_size"], len(numbers)),
        )
        self._train(stage, images, numbers, section)

    def _probabilities(self, features: Tensor) -> Tensor:
        logits: Tensor = self.net.head(features)
        return logits.softmax(1)
