"""What a run is: every setting in one place, from defaults, a YAML file and the command line."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from faverage.data import benchmark_names
from faverage.data.datasets.digits import PROTOCOL as DIGITS
from faverage.experiment.given import (
    Layers,
    check_names,
    methods_of,
    of_today,
    read_yaml,
    scaled,
    seeds_of,
    views_of,
    within,
)
from faverage.experiment.recipes import recipe_of
from faverage.experiment.settings import ConfigError, Setting, as_float, check_settings, declared, setting
from faverage.features import FeatureSet, check_chosen, file_views
from faverage.fscil import FewShotLearner
from faverage.fscil.fusers import METHODS as FEW_SHOT
from faverage.fusion import fuser_names
from faverage.rivals import RIVALS
from faverage.vision.views import seen_as

__all__ = ["AFTER_BASE", "DEFAULT_METHODS", "SETTINGS", "ConfigError", "RunConfig", "all_methods", "read_yaml"]

DEFAULT_METHODS = (
    "no-fine-tuning",
    "prototypes",
    "arithmetic",
    "geometric",
    "harmonic",
    "vote",
    "performance",
    "shallow-net",
    "deep-net",
    "weighted-average",
    "log-pool",
    "logistic",
    "mixture-of-experts",
    "afa-paper",
    "afa",
)
"""What a run compares by default: the fusers, and two heads alone."""
RIVAL_METHODS = RIVALS  # those registered from outside, too

_CONFIGS = Path(__file__).parent / "configs"  # the paper's tables and figures
_MOST_SEED = 2**32 - 1
_LEARNER = {name: one.default for name, one in inspect.signature(FewShotLearner).parameters.items()}


def all_methods() -> list[str]:
    """Return the names of all methods: rivals and fusers, those registered from outside, too."""
    return list(dict.fromkeys([*RIVALS, *DEFAULT_METHODS, *fuser_names(), *FEW_SHOT]))


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on, each setting with its default.

    >>> config = RunConfig.build("digits", None, {"methods": ["afa"], "epochs": 3})
    >>> config.dataset, config.methods, config.epochs, config.seed
    ('digits', ('afa',), 3, 0)
    """

    dataset: str = setting("digits", "a benchmark's name", varies=False)
    data: str | None = setting(None, "folder of the data", path=True, varies=False, option=True, shown="$FAVERAGE_DATA")
    features: str | None = setting(
        None, "ready features (.npz), of one view or several, instead of images", path=True, varies=False, option=True
    )
    methods: tuple[str, ...] = setting(
        DEFAULT_METHODS,
        "what to compare: names with commas between, or all",
        stage="none",
        varies=False,
        option=True,
        shown="the fusers",
    )
    recipe: Literal["shared", "paper", "best", "balanced"] = setting(
        "shared",
        "how to train: shared, all methods with the same backbone, crops and epochs of the base session; paper, each "
        "rival with those of its own paper; best, as shared, with recipes.BEST under what is given; balanced, the same "
        "with as much weight on new classes as on base classes",
        stage="rivals",
        option="shared; best or balanced: views, networks; paper: rivals' own.",
    )
    seed: int = setting(0, "seed of everything random", at_least=0, at_most=_MOST_SEED, varies=False, option=True)
    seeds: tuple[int, ...] | None = setting(
        None, "several seeds, with commas between: a run each", stage="none", varies=False, option=True
    )
    draws: int = setting(
        1,
        "how often to draw the few shots; the first draw is the usual one",
        at_least=1,
        stage="none",
        varies=False,
        option=True,
    )
    class_orders: int = setting(
        1,
        "orders of the classes, a run each: the first is the official one, others permute all classes, or, where base "
        "classes must stay, those of later sessions",
        at_least=1,
        stage="none",
        varies=False,
        option=True,
    )
    device: str = setting("auto", "where to compute: cpu, cuda or auto", varies=False, option=True)
    shots: int = setting(5, "examples of each new class", at_least=1, option=True)
    backbone: str = setting("resnet18_small", "a name of faverage.vision", of="network")
    weights: str | None = setting(
        None, "a checkpoint for the backbone to start from", path=True, of="network", option=True
    )
    epochs: int = setting(
        57,
        "epochs of the base session; 0: the network stays as its weights are, and nearest means are its head",
        at_least=0,
        of="network",
        option=True,
        shown="the data set's",
    )
    rival_epochs: int | None = setting(
        None,
        "epochs of the base session of rivals with the recipe paper",
        at_least=1,
        stage="rivals",
        shown="each paper's",
    )
    batch_size: int = setting(128, "images a step, of all processes together", at_least=2, of="network")
    lr: float = setting(
        0.1,
        "learning rate; where batch_size is given and this is not, the data set's, scaled as the batch size is",
        above=0,
        of="network",
    )
    schedule: Literal["cosine", "paper"] = setting("cosine", "of the learning rate", of="network")
    weight_decay: float = setting(5e-4, "of the base session", at_least=0, of="network")
    flip: bool = setting(True, "whether training images are flipped left and right at random", of="network")
    crop: int | None = setting(
        None,
        "side of the training crops in pixels",
        at_least=8,
        at_most=1024,
        unit=" pixels",
        of="network",
        shown="as faverage.vision.transforms_for has it",
    )
    progressive: tuple[int, ...] = setting(
        (),
        "sides of training crops that come before crop, each for an equal share of the epochs, as [48, 64]: small ones "
        "first, since they train fast (progressive resizing)",
        at_least=8,
        at_most=1024,
        unit=" pixels",
        of="network",
        rivals=False,
    )
    test_size: int | None = setting(
        None,
        "side in pixels to which the middle of images, as much of them as usual, is scaled to extract features; photos "
        "are read with the detail for it",
        at_least=8,
        at_most=1024,
        unit=" pixels",
        stage="views",
        of="network",
        rivals=False,
        shown="as faverage.vision.transforms_for has it",
    )
    area: float = setting(
        0.08,
        "least share of an image's area that a training crop of random size shows, see faverage.vision.Augment",
        at_least=0.001,
        at_most=1,
        of="network",
    )
    jitter: float = setting(
        0.2,
        "how much brightness, contrast and saturation of training images change, see faverage.vision.Augment",
        at_least=0,
        below=1,
        of="network",
    )
    head: Literal["linear", "cosine"] = setting(
        "linear", "of base training; with rotations always cosine", of="network", rivals=False
    )
    signed: bool = setting(
        False,
        "whether features may be negative: the last ReLU of the backbone is left out",
        of="network",
        rivals=False,
    )
    rotations: bool = setting(
        False, "train on classes and rotations together, with a cosine head", of="network", rivals=False
    )
    mix: float = setting(
        0.0,
        "share of training images that carry a part of another one, with both labels (CutMix)",
        at_least=0,
        at_most=1,
        of="network",
        rivals=False,
    )
    smoothing: float = setting(0.0, "of the labels", at_least=0, below=1, of="network", rivals=False)
    start: int = setting(
        0,
        "which of several networks of one seed this is: other first weights, order and augmentation, the same held-out "
        "images",
        at_least=0,
        at_most=_MOST_SEED,
        of="network",
        rivals=False,
    )
    teachers: tuple[dict[str, Any], ...] = setting(
        (),
        "settings of networks, laid over this one's, that are trained before it: it starts as the first of them, and "
        "learns what all of them see in all rotations beside its labels, for answers in few passes (distilling)",
        of="network",
        rivals=False,
    )
    soup: tuple[dict[str, Any], ...] = setting(
        (),
        "settings of networks, laid over this one's, that are trained in its place from the same weights: its own are "
        "the mean of theirs (a model soup), so that one pass is worth several",
        of="network",
        rivals=False,
    )
    retain: float = setting(
        0.0,
        "share of the weights that it starts from in those of the trained network: what they know of other things than "
        "base classes stays",
        at_least=0,
        below=1,
        of="network",
        rivals=False,
    )
    views: tuple[str, ...] = setting(
        ("plain",),
        "ways to look at each image, see faverage.vision.View; each gives members to fuse. A number takes that many of "
        "them, from the first, counted over all networks. By default a file of features gives all of its",
        stage="views",
        of="network",
        rivals=False,
        option="How many of the settings' views to fuse; 1 is fast.",
        typed=int,
        shown="all",
    )
    learn_from: tuple[str, ...] = setting(
        (),
        "what each view sees of an image to learn from, where that is more than an answer has passes for: views whose "
        "features are averaged, as [both, 'both, zoom-0.85']",
        stage="views",
        rivals=False,
    )
    whiten: float | None = setting(
        None,
        "whiten features by their covariance within base classes, with this shrinkage, see faverage.fscil.Whitening; "
        "base heads that are trained see features as they were",
        above=0,
        at_most=1,
        stage="views",
        rivals=False,
    )
    passes: int | None = setting(
        None,
        "how many passes of a backbone an image may take: of all views the first of each network, then the second of "
        "each, as long as they fit; a view of both sides takes two",
        at_least=1,
        stage="none",
        rivals=False,
        varies=False,
        option="How many passes of a backbone an image may take.",
        shown="all views",
    )
    networks: tuple[dict[str, Any], ...] = setting(
        (), "settings of each network, laid over those of the run; none: the run's own", stage="views", rivals=False
    )
    hold_out: int = setting(20, "images of each base class kept for rehearsal", at_least=1)
    members: Literal["views", "sessions", "paper"] = setting(
        "views",
        "what fusers fuse: views, two heads of each view and ridge regression on all; sessions, as the paper does, "
        "the base head and a head of prototypes for each later session; or paper, sessions for the fusers of the "
        "paper's tables and views for the others; afa-paper always has sessions",
        stage="after",
        rivals=False,
    )
    stand_ins: int = setting(
        _LEARNER["stand_ins"],
        "examples that stand in for a new class in rehearsal, where it has a single shot",
        at_least=1,
        stage="after",
        rivals=False,
    )
    spread: float = setting(
        _LEARNER["spread"],
        "how wide they lie around their prototype, in units of base classes",
        above=0,
        stage="after",
        rivals=False,
    )
    calibration: float = setting(
        _LEARNER["calibration"],
        "share in which new prototypes are drawn towards similar base classes",
        at_least=0,
        at_most=1,
        stage="after",
        rivals=False,
    )
    balance: float = setting(
        _LEARNER["balance"],
        "how much a new class counts in rehearsal against a base class: the trade between the two",
        above=0,
        stage="after",
        rivals=False,
    )
    balance_of: Literal["classes", "kinds"] = setting(
        "classes",
        "of what: classes, each against each; kinds, all new classes together against all base classes together",
        stage="after",
        rivals=False,
    )
    temperature: float | None = setting(
        None, "of the prototype heads; None learns it", above=0, stage="after", rivals=False
    )
    threshold: float = setting(_LEARNER["threshold"], "of the padding", above=0, stage="after", rivals=False)
    devices: int = setting(
        1,
        "processes on each machine that share base training and extraction, on a GPU each or all on its CPU",
        at_least=1,
        stage="none",
        varies=False,
        option=True,
    )
    nodes: int = setting(1, "machines that share training", at_least=1, stage="none", varies=False, option=True)
    jobs: int = setting(
        os.cpu_count() or 1, "methods at a time", at_least=1, stage="none", varies=False, option=True, shown="all cores"
    )
    tensorboard: str | None = setting(
        None, "folder for TensorBoard", path=True, stage="none", varies=False, option=True
    )

    @classmethod
    def build(cls, dataset: str | None, file: Path | None, given: dict[str, Any]) -> RunConfig:
        """Lay the data set's recipe, a YAML file and given settings (None: not given) over the defaults.

        The file may also be the name of one that comes with faverage, such as ``table4``.
        """
        settings = read_yaml(_found(file)) if file is not None else {}
        given = of_today({name: value for name, value in given.items() if value is not None})
        name = dataset or settings.get("dataset", "digits")
        if name not in benchmark_names():
            raise ConfigError(f"unknown dataset '{name}'; known are: {', '.join(benchmark_names())}")
        explicit = {**settings, **given}
        there_are = {"ready": explicit.get("features") is not None, "weights": explicit.get("weights") is not None}
        usual = recipe_of(name, explicit.get("recipe"), passes=explicit.get("passes"), **there_are)
        layers = [usual, settings, given]
        merged = {**usual, **explicit, "dataset": name}
        for key in merged:
            if key not in SETTINGS:
                raise ConfigError(f"unknown setting '{key}' in {file}; known are: {', '.join(sorted(SETTINGS))}")
        if "batch_size" in explicit and "lr" not in explicit:
            lr = merged.get("lr", cls.lr)
            merged["lr"] = scaled(lr, usual.get("batch_size", cls.batch_size), explicit["batch_size"])
        merged["methods"] = methods_of(merged.get("methods", DEFAULT_METHODS), (*RIVAL_METHODS, *DEFAULT_METHODS))
        ready = merged.get("features")
        there = file_views(Path(ready)) if isinstance(ready, str) and Path(ready).is_file() else None
        if dataset is None and "dataset" not in settings and isinstance(ready, str) and Path(ready).is_file():
            _check_digits(Path(ready))
        merged["views"], count = views_of(layers, there or cls.views)
        merged["seeds"] = seeds_of(merged.get("seeds"))
        for name in ("progressive", "learn_from"):
            if isinstance(merged.get(name), list):
                merged[name] = tuple(merged[name])
        if merged["seeds"]:
            merged["seed"] = merged["seeds"][0]
        if merged.get("recipe") == "paper":
            merged.setdefault("rival_epochs", explicit.get("epochs"))
        merged = {name: as_float(value) if SETTINGS[name].kind is float else value for name, value in merged.items()}
        batch = (merged.get("lr", cls.lr), merged.get("batch_size", cls.batch_size))
        merged["networks"] = _networks_of(layers, *batch)
        merged |= {name: tuple(_each(name, merged.get(name, ()), _OF_OTHERS)) for name in _OTHERS}
        config = replace(cls(), **merged)
        config.check()
        config = _settled(config, count)
        if there is not None:
            check_chosen(Path(str(ready)), config.views, there)
        elif config.recipe in ("best", "balanced") and ready is not None:
            raise ConfigError(
                f"recipe '{config.recipe}' fuses views, and {ready} has none: write one with --save-features"
            )
        return config

    def check(self) -> None:
        """Raise ConfigError where a setting is invalid."""
        for method in self.methods:
            if method not in all_methods():
                raise ConfigError(f"unknown method '{method}'; known are: {', '.join(all_methods())}")
        if not self.methods:
            raise ConfigError("methods must name at least one method")
        rivals = [method for method in self.methods if method in RIVAL_METHODS]
        SETTINGS["features"].check(self.features)
        if rivals and self.features is not None:
            file_views(Path(self.features))  # that there is no such file comes first
            raise ConfigError(
                f"'{rivals[0]}' trains its own network and needs images, which --features lacks: "
                "name others with --methods, such as prototypes,afa-paper,afa"
            )
        if rivals and self.recipe != "paper" and not self.epochs:
            raise ConfigError(f"epochs: '{rivals[0]}' needs at least 1, it trains its own network")
        networks = {f"networks: {k}: ": one for k, one in enumerate(self.each, 1)} if self.networks else {"": self}
        teachers = {f"{of}teachers: {k}: ": t for of, one in networks.items() for k, t in enumerate(one.taught, 1)}
        soups = {f"{of}soup: {k}: ": t for of, one in networks.items() for k, t in enumerate(one.averaged, 1)}
        for name, one in {"": self, **networks, **teachers, **soups}.items():
            try:
                check_settings(one, SETTINGS)
                _check_soup(one)
            except ConfigError as error:
                raise ConfigError(f"{name}{error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        several = ("methods", "progressive", "views", "learn_from", "networks", *_OTHERS)
        lists = {name: list(getattr(self, name)) for name in several}
        return {**asdict(self), **lists, "seeds": list(self.seeds) if self.seeds else None}

    @property
    def each(self) -> tuple[RunConfig, ...]:
        """The settings of each network, as of a run with that one alone."""
        if not self.networks:
            return (self,)
        boards: list[str | None] = [None] * len(self.networks)
        if self.tensorboard is not None:
            boards = [str(Path(self.tensorboard) / f"network-{k}") for k in range(1, len(boards) + 1)]
        pairs = zip(self.networks, boards, strict=True)
        return tuple(replace(_alone(self, network), tensorboard=board) for network, board in pairs)

    @property
    def taught(self) -> tuple[RunConfig, ...]:
        """The settings of each teacher of a run with one network, as of a run with that teacher alone."""
        return tuple(_alone(self, {**_ITSELF, "teachers": (), **teacher}) for teacher in self.teachers)

    @property
    def averaged(self) -> tuple[RunConfig, ...]:
        """The settings of each network whose weights are averaged into that of a run with one; none: it is trained."""
        given = self.soup or (({},) if self.retain else ())
        return tuple(_alone(self, {**_ITSELF, **one}) for one in given)

    @property
    def view_names(self) -> list[str]:
        """All views of all networks."""
        if not self.networks:
            return list(self.views)
        return [f"network {k}: {view}" for k, one in enumerate(self.each, 1) for view in one.views]

    @property
    def looks(self) -> tuple[str, ...]:
        """The views of a run with one network, and those that it learns from."""
        return tuple(dict.fromkeys([*self.views, *(look for view in self.views for look in self.learned(view))]))

    def learned(self, view: str) -> list[str]:
        """Return the views of an image to learn from whose mean stands for a view."""
        return [seen_as(view, look) for look in self.learn_from] or [view]

    @property
    def many(self) -> bool:
        """Whether there is more than the one plain view with a linear head."""
        return bool(self.networks) or self.rotations or self.views != ("plain",)

    @property
    def training_seed(self) -> int:
        """Of base training; shots and held-out images go by ``seed`` alone."""
        if self.start == 0:
            return self.seed
        return int(np.random.SeedSequence([self.seed, self.start]).generate_state(1)[0])

    @property
    def repeated(self) -> bool:
        """Whether there are several seeds, orders of the classes or draws."""
        return max(self.draws, self.class_orders, len(self.seeds or ())) > 1

    def key(self) -> dict[str, Any]:
        """Return what one repeat depends on, apart from which methods are compared and how many at a time.

        The recipe of rivals is left out, too: base training and features are the same with either.
        """
        return {k: v for k, v in self.to_dict().items() if SETTINGS[k].stage in ("base", "views", "after")}

    def base_key(self) -> dict[str, Any]:
        """Return what base training depends on: ``key`` without what counts after it; a place, however it is named."""
        found = {k: v for k, v in self.to_dict().items() if SETTINGS[k].stage == "base"}
        places = {k: Path(v).expanduser().absolute() for k, v in found.items() if v and SETTINGS[k].path}
        return {**found, **{k: os.path.normpath(place) for k, place in places.items()}}


SETTINGS = declared(RunConfig)
"""Every setting by name, with what is declared about it."""

AFTER_BASE = tuple(name for name, one in SETTINGS.items() if one.stage in ("views", "after"))
OF_NETWORKS = tuple(name for name, one in SETTINGS.items() if one.of == "network")
_OTHERS = ("teachers", "soup")  # networks that are trained for another one, each with settings of its own
_ITSELF: dict[str, Any] = {"soup": (), "retain": 0.0}  # what a network has that is trained itself
_OF_OTHERS = tuple(name for name in OF_NETWORKS if name not in ("views", *_OTHERS, *_ITSELF))


def _described(one: Setting) -> str:
    default = one.shown or ("" if one.default in (None, ()) else str(one.default))
    return f"        {one.name}: {one.help}{f'; {default} by default' if default else ''}."


RunConfig.__doc__ = "\n".join([f"{RunConfig.__doc__}\n\n    Attributes:", *map(_described, SETTINGS.values())])


def _found(file: Path) -> Path:
    """Return a file of settings: the one of that path, or one that comes with faverage."""
    if file.is_file():
        return file
    own = {one.stem: one for one in sorted(_CONFIGS.glob("*.yaml"))}
    # experiments/NAME.yaml is how stored results name them
    if file.stem in own and file.suffix in ("", ".yaml") and file.parent in (Path(), Path("experiments")):
        return own[file.stem]
    raise ConfigError(f"no such file: {file}; with faverage come: {', '.join(own)}")


def _check_digits(features: Path) -> None:
    """Raise ConfigError for ready features of another data set than digits, which a run has where none is named."""
    found, usual = (
        ", ".join(str(len(classes)) for classes in sessions)
        for sessions in (FeatureSet.load(features).sessions, DIGITS.groups(DIGITS.classes))
    )
    if found != usual:
        raise ConfigError(
            f"{features} has sessions of {found} classes, and digits, the data set where none is named, of {usual}: "
            f"name that of the features, as in: faverage run mini-imagenet --features {shlex.quote(str(features))}; "
            f"known are: {', '.join(benchmark_names())}; folder is for features of your own"
        )


def _networks_of(layers: Layers, lr: Any, batch_size: Any) -> tuple[dict[str, Any], ...]:
    """Return the settings of each network; none where no layer has networks.

    What a layer above that of the networks says, such as the command line above a file, counts for all of them. A
    number of views does not: it says how many of their views to take.

    Args:
        layers: settings, each laid over those before.
        lr: of the run; a network that has a batch size of its own and no learning rate scales it.
        batch_size: of the run.
    """
    place = max((i for i, layer in enumerate(layers) if "networks" in layer), default=-1)
    above = {key: value for layer in layers[place + 1 :] for key, value in layer.items()}
    if isinstance(above.get("views"), int):
        del above["views"]
    found = []
    for number, own in enumerate(_each("networks", layers[place]["networks"] if place >= 0 else (), OF_NETWORKS), 1):
        own = {key: value for key, value in own.items() if key not in above}
        try:
            check_names(own.get("views", ()))
            others = {name: _each(name, own[name], _OF_OTHERS) for name in _OTHERS if name in own}
        except ConfigError as error:
            raise ConfigError(f"networks: {number}: {error}") from None
        for name, ones in others.items():
            own[name] = tuple({key: v for key, v in one.items() if key not in above} for one in ones)
        for one in (own, *(one for name in others for one in own[name])):
            if "batch_size" in one and "lr" not in one:
                one["lr"] = scaled(lr, batch_size, one["batch_size"])
        found.append(own)
    return tuple(found)


def _each(name: str, given: Any, known: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings in a list of them; ConfigError where it is none, or one has a setting that is not known."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, dict) for one in given):
        raise ConfigError(f"{name} must be a list of settings, as [{{}}, {{start: 1}}], got {given!r}")
    for number, one in enumerate(given, 1):
        for key in one:
            if key not in known:
                one_of = {"teachers": "teacher", "soup": "network of a soup"}.get(name, "network")
                raise ConfigError(f"{name}: {number}: '{key}' is not for one {one_of}; these are: {', '.join(known)}")
    return [{key: as_float(v) if SETTINGS[key].kind is float else v for key, v in one.items()} for one in given]


def _check_soup(config: RunConfig) -> None:
    """Raise ConfigError where the weights of a network with one are no mean of others': those must start alike."""
    averaged = config.averaged
    if averaged and config.weights is None:
        name = "soup" if config.soup else "retain"
        raise ConfigError(f"{name} averages weights that started alike: name those with --weights, or leave it out")
    keys = [one.base_key() for one in averaged]
    for number, one in enumerate(averaged, 1):
        if (one.backbone, one.weights) != (config.backbone, config.weights):
            raise ConfigError(f"soup: {number}: its networks have one backbone and start from the same weights")
        if keys[number - 1] in keys[: number - 1]:
            first = 1 + keys.index(keys[number - 1])
            raise ConfigError(f"soup: {number}: it is network {first} once more: give it another start")


def _settled(config: RunConfig, count: int | None) -> RunConfig:
    """Return checked settings as the run has them.

    Networks that would be trained alike, and have no ``start`` of their own, start by their places. Of all views the
    first ``count`` are taken, or those that ``passes`` affords, and networks that have none of them are left out. A
    network that is alone then is the run's own.
    """
    ones = config.each
    networks = _started(config, ones)
    views = [list(one.views) for one in ones]
    if count is not None:
        total = sum(map(len, views))
        if not 1 <= count <= total:
            raise ConfigError(f"views must be a number from 1 to {total}, the views of the settings, got {count}")
        ends = [sum(map(len, views[:k])) for k in range(len(views))]
        views = [names[: count - end] for names, end in zip(views, ends, strict=True) if end < count]
    if config.passes is not None:
        views = within(views, config.passes, ready=config.features is not None)
    if not networks:
        return replace(config, views=tuple(views[0]))
    pairs = [(network, names) for network, names in zip(networks, views, strict=False) if names]
    if len(pairs) == 1:
        return _alone(config, {**pairs[0][0], "views": pairs[0][1]})
    usual = list(config.views)
    own = [net if names == net.get("views", usual) else {**net, "views": names} for net, names in pairs]
    return replace(config, networks=tuple(own))


def _started(config: RunConfig, ones: tuple[RunConfig, ...]) -> list[dict[str, Any]]:
    keys = [one.base_key() for one in ones]
    free = [keys[k] for k, network in enumerate(config.networks) if "start" not in network]
    networks = []
    for k, network in enumerate(config.networks):
        alike = "start" not in network and free.count(keys[k]) > 1
        networks.append({**network, "start": config.start + k} if alike else network)
        keys[k] = {**keys[k], "start": networks[k].get("start", config.start)}
        if keys[k] in keys[:k]:
            first = keys.index(keys[k]) + 1
            raise ConfigError(f"networks: {k + 1}: it is network {first} once more: give it another start")
    return networks


def _alone(config: RunConfig, network: dict[str, Any]) -> RunConfig:
    """Return the settings of a run with this network alone."""
    views = network.get("views", config.views)
    return replace(config, **{**network, "views": tuple(views), "networks": ()})
