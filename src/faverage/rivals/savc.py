r"""SAVC: semantic-aware virtual contrastive constraint (Song et al., CVPR 2023).

Every image is also seen in m − 1 fantasies, such as rotated by 180°. Fantasy t of class y is a class of its own, number
m y + t; t = 0 is the image as it is. With f the feature of such an image, w_c a weight of each of these classes, and
q, k projections to length 1 of a feature, k by an encoder whose weights follow those that learn (k ← μ k + (1 − μ) q):

    L_class    = CE(s cos(f, w), m y + t)                                                      s = 16
    L(q)       = mean over positives p of log(1 + e^{−q·k_p / τ} Σ_{negatives n} e^{q·k_n / τ})    τ = 0.07
    L          = L_class + 0.2 mean L(q_global) + 0.8 mean L(q_local)

The positives are the key of the same image and fantasy, and those keys of the same class and fantasy among the latest
ones, which a queue keeps with their labels; the negatives are all others in the queue. An image has a plain view, for
L_class, a global view for q and one for its key, and a few small local views, each at least a tenth of it inside the
key's crop; the last three kinds also have their colours changed. All fantasies of an image share its crops and colours.

After training each fantasy of each class has a prototype p_{c,t}, the mean feature under the evaluation transform, and

    probabilities = softmax over c of s (mean over t of cos(f_t, p_{c,t})),   f_t the feature of the image's fantasy t

Assumed, where we know too little of the original: the projection has one hidden layer of d units; fantasies are made of
normalised images; places of the queue that are still empty count for nothing; the encoder of keys is moved before each
step and has batch norm in training mode; each kind of view is a batch of its own for batch norm; hue is rotated about
the grey axis; the tenth is one of the local view's area. Unlike in the original program, local views have the labels of
their own fantasies. Twelve fantasies cost six times as much as two, and only the paper's recipe for mini-ImageNet has
them.

Stores m prototypes a class, no exemplars. Trains nothing after the base session.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.rivals.parts import Array, cosine
from faverage.rivals.rival import BASE, Recipe, Rival
from faverage.vision import Augment, Trainable, extract_features

__all__ = ["SAVC"]

# by name: quarter turns and channel shifts, of which 0, 1 and 2 give RGB, GBR and BRG
FANTASIES = {"rotation2": ((0, 0), (2, 0)), "rot_color_perm12": tuple(itertools.product(range(4), range(3)))}
TRIES = 4  # places that are drawn for a local view, of which the first inside the key's crop counts
INSIDE = 0.1  # share of a local view's area in the key's crop, at least
JITTER, JITTERED, HUE, GREY = 0.4, 0.8, 0.1, 0.2  # strength and probability of colour changes, share of hue, of grey

_CIFAR: Recipe = {
    "contrast": {"momentum": 0.995, "dimension": 32},
    "views": {"global": [0.9, 1.0], "local": [0.2, 0.7]},
}


def fantasies(images: Tensor, name: str) -> list[Tensor]:
    """Return images ``(n, 3, s, s)`` in each of the m fantasies, the first as they are."""
    return [torch.rot90(images.roll(-shift, 1), quarters, (2, 3)) for quarters, shift in FANTASIES[name]]


def fantasy_labels(labels: Tensor, m: int) -> Tensor:
    """Return m y + t, ``(m · n,)``, of labels ``(n,)``, one fantasy after the other.

    >>> fantasy_labels(torch.tensor([5, 7]), 2)
    tensor([10, 14, 11, 15])
    """
    return torch.cat([m * labels + t for t in range(m)])


def contrast(queries: Tensor, keys: Tensor, queue: Tensor, same: Tensor, filled: Tensor, temperature: float) -> Tensor:
    """Return the mean of L(q), ``()``.

    Args:
        queries: of length 1, ``(n, d)``.
        keys: of the same images, ``(n, d)``.
        queue: earlier keys, ``(Q, d)``.
        same: whether they are of the same class and fantasy, ``(n, Q)``.
        filled: which places of the queue count, ``(Q,)``.
        temperature: τ.
    """
    own = (queries * keys).sum(1, keepdim=True)
    near = torch.cat([own, queries @ queue.T], 1) / temperature
    positive = torch.cat([torch.ones_like(own, dtype=torch.bool), same & filled], 1)
    negative = torch.cat([torch.zeros_like(own, dtype=torch.bool), ~same & filled], 1)
    others = near.masked_fill(~negative, -math.inf).logsumexp(1, keepdim=True)
    return ((F.softplus(others - near) * positive).sum(1) / positive.sum(1)).mean()


def aggregated(features: Tensor, prototypes: Tensor, m: int) -> Tensor:
    """Return the mean over t of cos(f_t, p_{c,t}), ``(n, N)``; features ``(n, m · d)``, prototypes ``(N, m · d)``."""
    parts = zip(features.chunk(m, 1), prototypes.chunk(m, 1), strict=True)
    return torch.stack([cosine(own, prototype) for own, prototype in parts]).mean(0)


def inside(size: Tensor, places: Tensor, key_size: Tensor, key_centre: Tensor) -> Tensor:
    """Choose the first place ``(n, 2)`` at which a tenth of the crop is in the key's; if none is, the key's middle.

    Sizes ``(n, 2)`` and centres ``(n, 2)`` are in shares of the image; places ``(n, j, 2)`` are 0 where the crop is at
    the left or upper edge of the image, and 1 where it is at the other.
    """
    middle = ((key_centre - size / 2) / (1 - size).clamp(min=1e-6)).clamp(0, 1)
    places = torch.cat([places, middle[:, None]], 1)
    start, key_start = (1 - size)[:, None] * places, (key_centre - key_size / 2)[:, None]
    end, key_end = start + size[:, None], key_start + key_size[:, None]
    overlap = (torch.minimum(end, key_end) - torch.maximum(start, key_start)).clamp(min=0).prod(2)
    first = (overlap >= INSIDE * size.prod(1, keepdim=True)).int().argmax(1)
    return places.gather(1, first.view(-1, 1, 1).expand(-1, 1, 2))[:, 0]


def hue(images: Tensor, angle: Tensor) -> Tensor:
    """Rotate the colours of images ``(n, 3, s, s)`` about the grey axis by angles ``(n, 1, 1, 1)``."""
    grey = images.mean(1, keepdim=True)
    across = (images.roll(1, 1) - images.roll(-1, 1)) / math.sqrt(3)
    return grey + (images - grey) * angle.cos() + across * angle.sin()


class Stored(Augment):
    """Leaves images as they are stored: the network makes its views of them itself."""

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return ``images`` ``(n, S, S, 3)``, whatever the ``noise`` ``(n, 8)``."""
        return images


class Strong(Augment):
    """A resized crop with changed colours; its noise has three more columns: whether to change them, hue, grey."""

    NOISE = 11

    def __init__(self, size: int, area: list[float], plain: Augment) -> None:
        # normalised in the end, after hue and grey
        limits = area[0], area[1]
        super().__init__(size, area=limits, flip=plain.flip, jitter=JITTER, mean=(0, 0, 0), std=(1, 1, 1))
        self.plain = plain

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return ``(n, 3, size, size)`` of uint8 ``images`` ``(n, S, S, 3)``, with ``noise`` ``(n, 11)``."""
        changed, turn, grey = noise[:, 8:].T.unflatten(1, (-1, 1))
        colours = torch.where(changed < JITTERED, noise[:, 5:8], 0.5)  # the middle changes nothing
        x = super().forward(images, torch.cat([noise[:, :5], colours], 1))
        angle = torch.where(changed < JITTERED, 2 * math.pi * HUE * (2 * turn - 1), 0.0)
        x = hue(x, angle[..., None, None]).clamp(0, 1)
        return self.plain.normalise(torch.where(grey[..., None, None] < GREY, self._grey(x), x))


class Contrast(Trainable):
    """All that learns in the base session.

    Args:
        backbone: module from images to features.
        n_classes: number of base classes.
        augment: the plain view.
        recipe: of ``SAVC``.

    Attributes:
        query: backbone and projection, which learn; ``key``: those that follow.
        weights: w, ``(m · C, d)``.
        queue: keys, ``(Q, e)``, and ``queue_labels``: their m y + t, ``(Q,)``, −1 where there is none yet.
        next: the place of the queue that is filled next, ``()``.
    """

    queue: Tensor
    queue_labels: Tensor
    next: Tensor

    def __init__(self, backbone: nn.Module, n_classes: int, augment: Augment, recipe: Recipe) -> None:
        super().__init__()
        d: Any = backbone.dimension
        self.fantasies, self.scale, settings, views = (
            recipe[name] for name in ("fantasies", "scale", "contrast", "views")
        )
        self.m, self.settings = len(FANTASIES[self.fantasies]), settings
        e, length = settings["dimension"], settings["queue"]
        self.query = nn.Sequential(backbone, nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, e)))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.weights = nn.Parameter(nn.Linear(d, self.m * n_classes, bias=False).weight.detach())
        self.register_buffer("queue", torch.zeros(length, e))
        self.register_buffer("queue_labels", torch.full((length,), -1))
        self.register_buffer("next", torch.zeros((), dtype=torch.int64))
        self.plain = augment
        self.large = Strong(augment.size, views["global"], augment)
        # 18 px of 32, 50 of 84, 96 of 224
        side = round(np.interp(augment.size, (0, 32, 84, 224), (0, 18, 50, 96)))
        self.small = Strong(side, views["local"], augment)
        self.columns = [Augment.NOISE, *[Strong.NOISE] * 2, *[Strong.NOISE + 2 * (TRIES - 1)] * views["count"]]
        self.extras = sum(self.columns)

    def embed(self, images: Tensor, labels: Tensor, extra: Tensor) -> tuple[Tensor, ...]:
        """Return the features of all views of stored images ``(b, S, S, 3)``, one fantasy after the other.

        First of local views, one after the other, ``(count · m · b, d)``; then of global ones, of keys and of plain
        ones, ``(m · b, d)`` each.
        """
        plain, query, key, *local = extra.split(self.columns, 1)
        with torch.no_grad():
            self.follow()
            keys = self.key[0](self.seen([self.large(images, key)], images))
        crop = self.large.boxes(key, images.shape[1])
        kinds = (
            [self.small(images, self.placed(noise, *crop)) for noise in local],
            [self.large(images, query)],
            [self.plain(images, plain)],  # the last, so that the running statistics of batch norm are nearest to it
        )
        locals_, queries, plains = (self.query[0](self.seen(views, images)) for views in kinds)
        return locals_, queries, keys, plains

    def loss(self, embedded: tuple[Tensor, ...], labels: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        """Return L, and the mean over fantasies of the number of right answers, ``()`` each."""
        local, query, keys, plain = (part.float() for part in embedded)
        targets = fantasy_labels(labels, self.m)
        with torch.no_grad():
            keys = F.normalize(self.key[1](keys))
        logits = self.scale * cosine(plain, self.weights)
        loss = F.cross_entropy(logits, targets)
        for name, features in (("global", query), ("local", local)):
            loss = loss + self.settings[name] * self.contrasted(features, keys, targets)
        self.enqueue(keys, targets)
        return loss, (logits.detach().argmax(1) == targets).sum() / self.m

    def contrasted(self, features: Tensor, keys: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of L(q), ``()``: features ``(v · n, d)`` of v views, keys ``(n, e)``, targets ``(n,)``."""
        views = len(features) // len(keys)
        same = targets.repeat(views)[:, None] == self.queue_labels
        # a copy of the queue, which changes before the gradients are computed
        queue, filled = self.queue.clone(), self.queue_labels >= 0
        queries = F.normalize(self.query[1](features))
        return contrast(queries, keys.repeat(views, 1), queue, same, filled, self.settings["temperature"])

    @torch.no_grad()
    def enqueue(self, keys: Tensor, targets: Tensor) -> None:
        """Put keys ``(n, e)`` and their targets ``(n,)`` in place of the oldest ones."""
        length = len(self.queue)
        keys, targets = keys[-length:], targets[-length:]
        places = (self.next + torch.arange(len(keys), device=keys.device)) % length
        self.queue.index_copy_(0, places, keys)
        self.queue_labels.index_copy_(0, places, targets)
        self.next.add_(len(keys)).remainder_(length)

    @torch.no_grad()
    def follow(self) -> None:
        """Move the encoder of keys towards the one that learns."""
        for own, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
            key.lerp_(own, 1 - self.settings["momentum"])

    def placed(self, noise: Tensor, key_size: Tensor, key_centre: Tensor) -> Tensor:
        """Return noise ``(b, 11)`` of a local view inside the key's crop, from ``(b, 11 + 2 (TRIES − 1))``."""
        places = torch.cat([noise[:, 2:4], noise[:, Strong.NOISE :]], 1).unflatten(1, (TRIES, 2))
        place = inside(self.small.boxes(noise, 1)[0], places, key_size, key_centre)
        return torch.cat([noise[:, :2], place, noise[:, 4 : Strong.NOISE]], 1)

    def seen(self, views: list[Tensor], images: Tensor) -> Tensor:
        """Return all fantasies of views, ``(n, 3, s, s)`` each, as one batch in the memory format of ``images``."""
        channels_last = images.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        made = [fantasy for view in views for fantasy in fantasies(view, self.fantasies)]
        return torch.cat(made).contiguous(memory_format=layout)


class Looks(nn.Module):
    """From images to the features of all their fantasies, side by side."""

    def __init__(self, backbone: nn.Module, name: str) -> None:
        super().__init__()
        self.backbone, self.fantasies = backbone, name
        self.dimension: int = backbone.dimension * len(FANTASIES[name])  # type: ignore[operator, assignment]

    def forward(self, images: Tensor) -> Tensor:
        """Return features ``(n, m · d)`` of images ``(n, 3, s, s)``."""
        return torch.cat([self.backbone(seen) for seen in fantasies(images, self.fantasies)], 1)


class Prototypes(nn.Module):
    """Backbone, and the prototypes ``(N, m · d)`` of all classes so far, those of a class's fantasies side by side."""

    prototypes: Tensor

    def __init__(self, backbone: nn.Module, prototypes: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("prototypes", prototypes)


class SAVC(Rival):
    """See the module's docstring.

    With the image as it is and one fantasy of it, a prototype has twice the 128 features of the backbone:

    >>> labels = np.arange(40) % 4
    >>> images = np.uint8(80 * labels)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)  # four shades of grey
    >>> base, shots = labels < 3, np.flatnonzero(labels == 3)[:5]
    >>> recipe = {"base": {"epochs": 1}, "contrast": {"queue": 64, "dimension": 16}, "views": {"count": 1}}
    >>> rival = SAVC("tiny", recipe=recipe, device="cpu")
    >>> rival = rival.fit_base(images[base], labels[base]).learn_session(images[shots], labels[shots])
    >>> rival.passes(rival.recipe), rival.net.prototypes.shape, rival.predict_proba(images[:2]).shape
    (2, torch.Size([4, 256]), (2, 4))
    """

    name = "savc"
    recipes: ClassVar[dict[str, Recipe]] = {
        "shared": {
            "base": BASE,
            "fantasies": "rotation2",
            "scale": 16.0,
            "contrast": {
                **{"global": 0.2, "local": 0.8, "temperature": 0.07},
                **{"momentum": 0.999, "queue": 8192, "dimension": 128},
            },
            "views": {"global": [0.2, 1.0], "local": [0.05, 0.14], "count": 4},
        },
        "shared/cifar100": _CIFAR,
        "shared/digits": {
            "base": {"epochs": 5, "batch_size": 32, "lr": 0.05},
            "contrast": {"momentum": 0.95, "queue": 512, "dimension": 32},
            "views": {**_CIFAR["views"], "count": 1},
        },
        "paper": {},
        "paper/mini-imagenet": {
            "base": {"epochs": 120, "schedule": {"at": [1 / 3, 7 / 12, 5 / 6], "times": 0.1}},
            "fantasies": "rot_color_perm12",
            "backbone": "resnet18_large",
            "crop": 84,
        },
        "paper/cub200": {
            "base": {"epochs": 120, "lr": 0.002, "schedule": {"at": [1 / 2, 2 / 3, 5 / 6], "times": 0.1}},
            "backbone": "resnet18_large",
            "crop": 224,
        },
        "paper/cifar100": {"base": {"epochs": 600}, **_CIFAR, "crop": 32},
    }

    def build(self, sizes: list[int]) -> Prototypes:
        """Return the backbone, and room for the prototypes."""
        if self.recipe["fantasies"] not in FANTASIES:
            known = ", ".join(FANTASIES)
            raise ValueError(f"savc has no fantasies '{self.recipe['fantasies']}'; known are: {known}")
        backbone: Any = self._backbone()
        return Prototypes(backbone, torch.zeros(sum(sizes), self.passes(self.recipe) * backbone.dimension))

    @classmethod
    def passes(cls, recipe: Recipe) -> int:
        """Return m: every fantasy of an image is looked at."""
        return len(FANTASIES[recipe["fantasies"]])

    def features(self, X: Array) -> Array:
        """Return features ``(n, m · d)`` of all fantasies of images ``(n, S, S, 3)`` under the evaluation transform."""
        assert self.transform is not None
        looks = Looks(self.net.backbone, self.recipe["fantasies"])
        return np.asarray(extract_features(looks, X, transform=self.transform, device=self.device))

    def _fit(self, images: Array, numbers: Array) -> None:
        n_classes, plain = len(self.net.prototypes), self.augment
        assert plain is not None
        learner = self._seeded(lambda: Contrast(self.net.backbone, n_classes, plain, self.recipe))
        self._train(learner, images, numbers, "base", augment=Stored(**plain.config()))
        self.net.prototypes = self._means(images, numbers, n_classes)

    def _probabilities(self, features: Tensor) -> Tensor:
        logits = self.recipe["scale"] * aggregated(features, self.net.prototypes, self.passes(self.recipe))
        return torch.softmax(logits, 1)
