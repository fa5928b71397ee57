"""What all rivals share: the learner's verbs, labels of any type, training, features, and files."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from faverage.rivals.parts import Array, class_means
from faverage.storage import read_tensors, write_tensors
from faverage.vision import (
    Augment,
    Evaluate,
    Trainable,
    Training,
    extract_features,
    get_backbone,
    load_weights,
    train_network,
    transforms_for,
)

__all__ = ["Rival"]

Recipe = dict[str, Any]
BASE: Recipe = {"epochs": 100, "batch_size": 128, "lr": 0.1, "schedule": "cosine", "weight_decay": 5e-4}
"""The base session of the recipes ``shared``."""
_FEW_STEPS = 2000  # trainings shorter than this are not worth compiling


class Rival:
    """A method of the paper's tables behind the verbs of ``FewShotLearner``.

    A subclass gives ``name`` and ``recipes``, and defines ``build``, ``_fit`` and ``_probabilities``; where a session
    does more than to add mean features, ``_learn``; where a prediction takes more than one pass of the backbone, it
    says how many, ``passes``.
    Classes are numbered in order of arrival inside; ``classes`` has their labels.

    Args:
        backbone: a name for ``faverage.vision.get_backbone``.
        recipe: settings of the method, laid over ``recipes["shared"]``; a section such as ``base`` is merged.
        total: number of classes that there will be in the end, for methods that must know (FACT).
        weights: a checkpoint that the backbone starts from, see ``faverage.vision.load_weights``.
        augment: the training transform; by default ``transforms_for`` the side of the images.
        transform: the evaluation transform; by default likewise.
        device: ``auto``, ``cpu``, ``cuda``.
        seed: of everything that is drawn.
        checkpoints: folder for the states of a long training, to go on from after a kill; None: none.
        progress: show progress bars.

    Attributes:
        net: module with all that was learned; its ``backbone`` maps images to features.
        arrays: what else is kept, by name, such as exemplars.
        trainings: what each training said of itself, by name.

    >>> from faverage.rivals import get_rival
    >>> rival = get_rival("fact")("tiny", total=10, recipe={"base": {"epochs": 2}})
    >>> rival.name, rival.recipe["base"]["epochs"], rival.classes
    ('fact', 2, [])
    """

    name: ClassVar[str] = ""
    recipes: ClassVar[dict[str, Recipe]] = {"shared": {}}

    def __init__(
        self,
        backbone: str = "resnet18_small",
        *,
        recipe: Recipe | None = None,
        total: int | None = None,
        weights: str | Path | None = None,
        augment: Augment | None = None,
        transform: Evaluate | None = None,
        device: str = "auto",
        seed: int = 0,
        checkpoints: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self.backbone_name, self.total, self.augment, self.transform = backbone, total, augment, transform
        self.recipe = merged(self.recipes["shared"], recipe or {}, self.name)
        self.weights, self.device, self.seed, self.progress = weights, device, seed, progress
        self.checkpoints = None if checkpoints is None else Path(checkpoints)
        self.classes: list[Any] = []
        self.sessions: list[list[Any]] = []
        self.net: Any = None
        self.arrays: dict[str, Array] = {}
        self.trainings: dict[str, Training] = {}

    def fit_base(self, X: Array, y: Sequence[Any] | Array) -> Self:
        """Learn the base classes from images, uint8 ``(n, S, S, 3)``, and labels ``(n,)`` of any type."""
        labels = self._checked(X, y)
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"fit_base needs at least two classes, got {len(classes)}")
        usual = transforms_for(X.shape[1])
        self.augment, self.transform = self.augment or usual[0], self.transform or usual[1]
        self.classes, self.sessions, self.arrays = [], [classes.tolist()], {}
        self.net = self._seeded(lambda: self.build([len(classes)]))
        if self.weights is not None:
            load_weights(self.net.backbone, self.weights)
        self._fit(X, numbers)
        self.classes = classes.tolist()
        return self

    def learn_session(self, X: Array, y: Sequence[Any] | Array) -> Self:
        """Learn new classes from a few images of each, uint8 ``(n, S, S, 3)``, and labels ``(n,)``."""
        if not self.classes:
            raise ValueError("learn_session needs the base classes: call fit_base(X, y) first")
        labels = self._checked(X, y)
        new = list(dict.fromkeys(labels.tolist()))
        known = [label for label in new if label in self.classes]
        if known:
            raise ValueError(f"class {known[0]!r} is known already; a session brings new classes only")
        first = len(self.classes)
        if self.total is not None and first + len(new) > self.total:
            raise ValueError(f"{self.name} was told of {self.total} classes in all, these would be {first + len(new)}")
        numbers = np.array([first + new.index(label) for label in labels.tolist()])
        self._learn(X, numbers, len(new))
        self.classes, self.sessions = [*self.classes, *new], [*self.sessions, new]
        return self

    def predict_proba(self, X: Array) -> Array:
        """Return probabilities ``(n, N)`` of images ``(n, S, S, 3)``, in the order of ``classes``, all so far."""
        if not self.classes:
            raise ValueError("the learner knows no classes yet: call fit_base(X, y) first")
        with torch.no_grad():
            features = torch.from_numpy(self.features(X))
            parts = [self._probabilities(part) for part in features.split(1024)]
        return torch.cat(parts).numpy() if parts else np.zeros((0, len(self.classes)), dtype=np.float32)

    def predict(self, X: Array) -> Array:
        """Return the most probable label ``(n,)`` of each image ``(n, S, S, 3)``."""
        return np.array([self.classes[i] for i in self.predict_proba(X).argmax(1)])

    def features(self, X: Array) -> Array:
        """Return features ``(n, d)`` of images ``(n, S, S, 3)`` under the evaluation transform."""
        assert self.transform is not None
        return np.asarray(extract_features(self.net.backbone, X, transform=self.transform, device=self.device))

    def save(self, path: str | Path) -> Path:
        """Write everything to one safetensors file."""
        if not self.classes or self.transform is None or self.augment is None:
            raise ValueError("save needs a learner that knows its base classes: call fit_base(X, y) first")
        try:
            json.dumps(self.classes)
        except TypeError:
            raise ValueError("class labels must be text or numbers to be saved") from None
        about = {
            "name": self.name,
            "backbone": self.backbone_name,
            "recipe": self.recipe,
            "total": self.total,
            "seed": self.seed,
            "classes": self.classes,
            "sessions": [len(session) for session in self.sessions],
            "augment": self.augment.config(),
            "transform": self.transform.config(),
        }
        tensors = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        tensors |= {f"array.{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in self.arrays.items()}
        return write_tensors(path, "Rival", about, tensors)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto", progress: bool = False) -> Self:
        """Read what ``save`` wrote."""
        about, tensors = read_tensors(path, "Rival")
        if about.get("name") != cls.name:
            raise ValueError(f"{path} holds the method '{about.get('name')}', not '{cls.name}'")
        try:
            rival = cls(
                about["backbone"],
                recipe=about["recipe"],
                total=about["total"],
                augment=Augment(**about["augment"]),
                transform=Evaluate(**about["transform"]),
                device=device,
                seed=about["seed"],
                progress=progress,
            )
            rival.classes = about["classes"]
            ends = np.cumsum(about["sessions"]).tolist()
            rival.sessions = [rival.classes[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
            rival.net = rival.build(about["sessions"])
            own = {n.removeprefix("net."): tensor for n, tensor in tensors.items() if n.startswith("net.")}
            rival.net.load_state_dict(own)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold a method of this version: {error}") from None
        rival.net.eval()
        rival.arrays = {n.removeprefix("array."): t.numpy() for n, t in tensors.items() if n.startswith("array.")}
        return rival

    @classmethod
    def passes(cls, recipe: Recipe) -> int:
        """Return how many passes of the backbone a prediction takes."""
        return 1

    def build(self, sizes: list[int]) -> nn.Module:
        """Return a fresh network for sessions of these numbers of classes; it must have a ``backbone``."""
        raise NotImplementedError

    def _fit(self, images: Array, numbers: Array) -> None:
        """Train ``net`` on the base session."""
        raise NotImplementedError

    def _learn(self, images: Array, numbers: Array, n_new: int) -> None:
        """Take in a session of ``n_new`` classes, with the next numbers; ``sessions`` still has the old ones.

        By default it trains nothing, and adds their mean features to the ``prototypes`` of ``net``.
        """
        means = self._means(images, numbers - len(self.classes), n_new)
        self.net.prototypes = torch.cat([self.net.prototypes, means])

    def _means(self, images: Array, numbers: Array, n_classes: int) -> Tensor:
        """Return the mean feature of each class, ``(C, d)``."""
        return torch.from_numpy(class_means(self.features(images), numbers, n_classes))

    def _probabilities(self, features: Tensor) -> Tensor:
        """Return probabilities ``(n, N)`` of features ``(n, d)``."""
        raise NotImplementedError

    def _backbone(self) -> nn.Module:
        return get_backbone(self.backbone_name)

    def _train(self, network: Trainable, images: Array, numbers: Array, section: str, **more: Any) -> Training:
        """Train with the settings of a section of the recipe; the session's number is part of seed and file name."""
        session = len(self.sessions) if self.classes else 0
        what = f"{self.name}-{section}" + (f"-{session}" if session else "")
        settings = {"augment": self.augment, **self.recipe[section], **more}
        batch = settings.get("batch_size", 128)
        short = settings.get("epochs", 50) * max(len(numbers) // batch, 1) < _FEW_STEPS
        self.trainings[what] = train_network(
            *(network, images, numbers),
            device=self.device,
            seed=self.seed * 1009 + session,
            checkpoint=None if self.checkpoints is None or short else self.checkpoints / f"{what}.safetensors",
            progress=self.progress,
            what=what,
            compile=False if short else "auto",
            capture=False if short else "auto",
            describe={"method": self.name, "recipe": self.recipe},
            **settings,
        )
        return self.trainings[what]

    def _seeded(self, make: Any) -> Any:
        """Call ``make`` with torch's generator seeded, and put the generator back."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed * 1009 + len(self.sessions))
            return make()

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, len(self.sessions)])

    def _checked(self, X: Any, y: Any) -> Array:
        labels = np.asarray(y)
        if labels.ndim != 1 or len(X) != len(labels) or len(labels) == 0:
            raise ValueError(f"{self.name} got {len(X)} images and labels of shape {labels.shape}: give one an image")
        return labels


def merged(default: Recipe, given: Recipe, name: str) -> Recipe:
    """Return ``given`` over ``default``, section by section; a name that the default does not have is refused."""
    unknown = [key for key in given if key not in default]
    if unknown:
        raise ValueError(f"{name} has no setting '{unknown[0]}'; known are: {', '.join(sorted(default))}")
    result = copy.deepcopy(default)
    for key, value in given.items():
        result[key] = {**default[key], **value} if isinstance(value, dict) and "at" not in value else value
    return result
