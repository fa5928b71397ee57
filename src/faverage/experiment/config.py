"""What a run is: every setting in one place, from defaults, a YAML file and the command line."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from faverage.data import benchmark_names
from faverage.experiment.given import methods_of, read_yaml, scaled, seeds_of, views_of
from faverage.experiment.networks import check_networks, each_network, networks_of, settled
from faverage.experiment.ready import check_chosen, file_views
from faverage.experiment.recipes import USUAL, recipe_of
from faverage.experiment.settings import FLOATS, ConfigError, as_float, check_settings
from faverage.fscil.fusers import METHODS as FEW_SHOT
from faverage.fusion import fuser_names
from faverage.rivals import RIVALS

__all__ = ["AFTER_BASE", "DEFAULT_METHODS", "ConfigError", "RunConfig", "all_methods", "read_yaml"]

DEFAULT_METHODS = (
    "no-fine-tuning",
    "prototypes",
    "arithmetic",
    "geometric",
    "harmonic",
    "vote",
    "shallow-net",
    "deep-net",
    "weighted-average",
    "logistic",
    "afa-paper",
    "afa",
)
RIVAL_METHODS = RIVALS  # those registered from outside, too

AFTER_BASE = ("views", "networks", "stand_ins", "temperature", "threshold", "spread", "calibration", "balance")


def all_methods() -> list[str]:
    """Return the names of all methods: rivals and fusers, those registered from outside, too."""
    return list(dict.fromkeys([*RIVALS, *DEFAULT_METHODS, *fuser_names(), *FEW_SHOT]))


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    Attributes:
        dataset: a benchmark's name.
        data: folder of the data; by default the variable FAVERAGE_DATA.
        features: a ``.npz`` of ready features, of one view or several; the base session is then not trained.
        methods: what to compare.
        recipe: how to train: ``shared`` gives all methods the same backbone, crops and epochs of the base session;
            ``paper`` gives each rival those of its own paper; ``best`` is ``shared``, with ``recipes.BEST`` under
            what is given.
        seed: of everything that is drawn.
        seeds: several seeds, for a run each; the first is ``seed``.
        draws: how often the shots are drawn; the first draw is the usual one.
        device: ``auto``, ``cpu``, ``cuda``.
        shots: examples of each new class.
        backbone: a name of ``faverage.vision``.
        weights: a checkpoint to start the backbone from.
        epochs: of the base session.
        rival_epochs: of the base session of rivals with the recipe ``paper``; None: each paper's.
        batch_size: images a step, of all processes together.
        lr: learning rate; where ``batch_size`` is given and this is not, the data set's, scaled as the batch size is.
        schedule: ``cosine`` or ``paper``.
        weight_decay: of the base session.
        flip: whether training images are mirrored at random.
        crop: side of the training crops in pixels; None: as ``faverage.vision.transforms_for`` has it.
        jitter: how much brightness, contrast and saturation of training images change, see ``faverage.vision.Augment``.
        turned: train on classes and quarter turns together, with a cosine head.
        mix: share of training images that carry a part of another one, with both labels (CutMix).
        smoothing: of the labels.
        start: which of several networks of one seed this is: other first weights, order and augmentation, the same
            held-out images.
        views: ways to look at each image, see ``faverage.vision.View``; each gives members to fuse. A number takes that
            many of them, from the first, counted over all networks. By default a file of features gives all of its.
        networks: settings of each network, laid over those of the run, see ``networks.SETTINGS``; none: the run's own.
        hold_out: images of each base class kept for rehearsal.
        stand_ins: examples that stand in for each new class in rehearsal.
        spread: how wide they lie around their prototype, in units of base classes.
        calibration: share in which new prototypes are drawn towards similar base classes.
        balance: how much stand-ins count against base images: the trade between new and base classes.
        temperature: of the prototype heads; None learns it.
        threshold: of the padding.
        devices: processes on each machine that share base training and extraction, a GPU each, or all on its CPU.
        nodes: machines that share them.
        strategy: how they share them; ``ddp``.
        jobs: methods at a time; by default as many as there are cores.
        tensorboard: folder for TensorBoard, or None.
    """

    dataset: str = "digits"
    data: str | None = None
    features: str | None = None
    methods: tuple[str, ...] = DEFAULT_METHODS
    recipe: Literal["shared", "paper", "best"] = "shared"
    seed: int = 0
    seeds: tuple[int, ...] | None = field(default=None, metadata={"neutral": True})
    draws: int = field(default=1, metadata={"neutral": True})
    device: str = "auto"
    shots: int = 5
    backbone: str = "resnet18_small"
    weights: str | None = None
    epochs: int = USUAL["epochs"]
    rival_epochs: int | None = None
    batch_size: int = USUAL["batch_size"]
    lr: float = USUAL["lr"]
    schedule: Literal["cosine", "paper"] = "cosine"
    weight_decay: float = 5e-4
    flip: bool = True
    crop: int | None = None
    jitter: float = 0.2
    turned: bool = False
    mix: float = 0.0
    smoothing: float = 0.0
    start: int = 0
    views: tuple[str, ...] = ("plain",)
    networks: tuple[dict[str, Any], ...] = ()
    hold_out: int = 20
    stand_ins: int = 50
    spread: float = 1.0
    calibration: float = 0.0
    balance: float = 1.0
    temperature: float | None = None
    threshold: float = 0.5
    devices: int = field(default=1, metadata={"neutral": True})
    nodes: int = field(default=1, metadata={"neutral": True})
    strategy: str = field(default="ddp", metadata={"neutral": True})
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1, metadata={"neutral": True})
    tensorboard: str | None = field(default=None, metadata={"neutral": True})

    @classmethod
    def build(cls, dataset: str | None, file: Path | None, given: dict[str, Any]) -> RunConfig:
        """Lay the data set's recipe, a YAML file and given settings (None: not given) over the defaults."""
        settings = read_yaml(file) if file is not None else {}
        given = {name: value for name, value in given.items() if value is not None}
        name = dataset or settings.get("dataset", "digits")
        if name not in benchmark_names():
            raise ConfigError(f"unknown dataset '{name}'; known are: {', '.join(benchmark_names())}")
        explicit = {**settings, **given}
        usual = recipe_of(name, explicit.get("recipe"), ready=explicit.get("features") is not None)
        layers = [usual, settings, given]
        merged = {**usual, **explicit, "dataset": name}
        known = {f.name for f in fields(cls)}
        for key in merged:
            if key not in known:
                raise ConfigError(f"unknown setting '{key}' in {file}; known are: {', '.join(sorted(known))}")
        if "batch_size" in explicit and "lr" not in explicit:
            lr = merged.get("lr", cls.lr)
            merged["lr"] = scaled(lr, usual.get("batch_size", cls.batch_size), explicit["batch_size"])
        merged["methods"] = methods_of(merged.get("methods", DEFAULT_METHODS), (*RIVAL_METHODS, *DEFAULT_METHODS))
        ready = merged.get("features")
        there = file_views(Path(ready)) if isinstance(ready, str) and Path(ready).is_file() else None
        merged["views"], count = views_of(layers, there or cls.views)
        merged["seeds"] = seeds_of(merged.get("seeds"))
        if merged["seeds"]:
            merged["seed"] = merged["seeds"][0]
        if merged.get("recipe") == "paper":
            merged.setdefault("rival_epochs", explicit.get("epochs"))
        for name in FLOATS & merged.keys():
            merged[name] = as_float(merged[name])
        batch = (merged.get("lr", cls.lr), merged.get("batch_size", cls.batch_size))
        merged["networks"] = networks_of(layers, *batch)
        config = replace(cls(), **merged)
        config.check()
        config = settled(config, count)
        if there is not None:
            check_chosen(Path(str(ready)), config.views, there)
        elif config.recipe == "best" and ready is not None:
            raise ConfigError(f"recipe 'best' fuses views, and {ready} has none: write one with --save-features")
        return config

    def check(self) -> None:
        """Raise ConfigError where a setting cannot be."""
        for method in self.methods:
            if method not in all_methods():
                raise ConfigError(f"unknown method '{method}'; known are: {', '.join(all_methods())}")
        if not self.methods:
            raise ConfigError("methods must name at least one method")
        rivals = [method for method in self.methods if method in RIVAL_METHODS]
        if rivals and self.features is not None:
            raise ConfigError(f"'{rivals[0]}' trains its own network on images, and --features has none: leave one out")
        if self.recipe not in ("shared", "paper", "best"):
            raise ConfigError(f"recipe must be 'shared', 'paper' or 'best', got {self.recipe!r}")
        check_settings(self)
        check_networks(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        lists = {name: list(getattr(self, name)) for name in ("methods", "views", "networks")}
        return {**asdict(self), **lists, "seeds": list(self.seeds) if self.seeds else None}

    @property
    def each(self) -> tuple[RunConfig, ...]:
        """The settings of each network, as of a run with that one alone."""
        return each_network(self)

    @property
    def view_names(self) -> list[str]:
        """All views of all networks."""
        if not self.networks:
            return list(self.views)
        return [f"network {k}: {view}" for k, one in enumerate(self.each, 1) for view in one.views]

    @property
    def many(self) -> bool:
        """Whether the learner is one of views: there are several, or one whose head is a cosine."""
        return bool(self.networks) or self.turned or self.views != ("plain",)

    @property
    def training_seed(self) -> int:
        """Of base training; shots and held-out images go by ``seed`` alone."""
        if self.start == 0:
            return self.seed
        return int(np.random.SeedSequence([self.seed, self.start]).generate_state(1)[0])

    @property
    def repeated(self) -> bool:
        """Whether there are several seeds or several draws."""
        return self.draws > 1 or len(self.seeds or ()) > 1

    def key(self) -> dict[str, Any]:
        """Return what one repeat depends on, apart from which methods are compared and how many at a time.

        The recipe of rivals is left out, too: base training and features are the same with either.
        """
        neutral = {f.name for f in fields(self) if f.metadata.get("neutral")}
        return {k: v for k, v in self.to_dict().items() if k not in neutral | {"methods", "recipe", "rival_epochs"}}

    def base_key(self) -> dict[str, Any]:
        """Return what base training depends on: ``key`` without what counts after it."""
        return {k: v for k, v in self.key().items() if k not in AFTER_BASE}
