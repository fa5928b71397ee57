"""What a run is: every setting in one place, from defaults, a YAML file and the command line."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from faverage.data import benchmark_names
from faverage.experiment.settings import FLOATS, ConfigError, as_float, check_settings
from faverage.fscil.fusers import METHODS as FEW_SHOT
from faverage.fusion import fuser_names

__all__ = ["AFTER_BASE", "ALL_METHODS", "DEFAULT_METHODS", "RECIPES", "ConfigError", "RunConfig", "read_yaml"]

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
RIVAL_METHODS = ("lucir", "eeil", "sppr", "cec", "fact")
ALL_METHODS = tuple(dict.fromkeys([*RIVAL_METHODS, *DEFAULT_METHODS, *fuser_names(), *FEW_SHOT]))

AFTER_BASE = ("views", "stand_ins", "temperature", "threshold", "spread", "calibration", "balance")

# settings of the base session, where a data set wants others than the defaults
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"backbone": "tiny", "epochs": 20, "batch_size": 64, "lr": 0.05, "flip": False},
    "mini-imagenet": {"crop": 64, "epochs": 100},
    "tiered-imagenet": {"crop": 64, "epochs": 100},
    "cifar100": {"backbone": "resnet18_small"},
    "cub200": {"backbone": "resnet18_large", "lr": 0.01},
    "fgvc-aircraft": {"backbone": "resnet18_large", "lr": 0.01},
}


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    Attributes:
        dataset: a benchmark's name.
        data: folder of the data; by default the variable FAVERAGE_DATA.
        features: a ``.npz`` of ready features; the base session is then not trained.
        methods: what to compare.
        recipe: how rivals are trained: ``shared`` gives all methods the same backbone, crops and epochs of the base
            session; ``paper`` gives each rival those of its own paper.
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
        turned: train on classes and quarter turns together, with a cosine head.
        views: ways to look at each image, see ``faverage.vision.View``; each gives members to fuse. A number on the
            command line takes that many of them, from the first.
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
    recipe: Literal["shared", "paper"] = "shared"
    seed: int = 0
    seeds: tuple[int, ...] | None = field(default=None, metadata={"neutral": True})
    draws: int = field(default=1, metadata={"neutral": True})
    device: str = "auto"
    shots: int = 5
    backbone: str = "resnet18_small"
    weights: str | None = None
    epochs: int = 57
    rival_epochs: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    schedule: Literal["cosine", "paper"] = "cosine"
    weight_decay: float = 5e-4
    flip: bool = True
    crop: int | None = None
    turned: bool = False
    views: tuple[str, ...] = ("plain",)
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
        merged = {**RECIPES.get(name, {}), **settings, **given, "dataset": name}
        known = {f.name for f in fields(cls)}
        for key in merged:
            if key not in known:
                raise ConfigError(f"unknown setting '{key}' in {file}; known are: {', '.join(sorted(known))}")
        if "batch_size" in {**settings, **given} and "lr" not in {**settings, **given}:
            usual = RECIPES.get(name, {}).get("batch_size", cls.batch_size)
            merged["lr"] = _scaled(merged.get("lr", cls.lr), usual, merged)
        merged["methods"] = _methods(merged.get("methods", DEFAULT_METHODS))
        merged["views"] = _views(merged.get("views", cls.views), {**RECIPES.get(name, {}), **settings}.get("views"))
        merged["seeds"] = _seeds(merged.get("seeds"))
        if merged["seeds"]:
            merged["seed"] = merged["seeds"][0]
        if merged.get("recipe") == "paper":
            merged.setdefault("rival_epochs", {**settings, **given}.get("epochs"))
        for name in FLOATS & merged.keys():
            merged[name] = as_float(merged[name])
        config = replace(cls(), **merged)
        config.check()
        return config

    def check(self) -> None:
        """Raise ConfigError where a setting cannot be."""
        for method in self.methods:
            if method not in ALL_METHODS:
                raise ConfigError(f"unknown method '{method}'; known are: {', '.join(ALL_METHODS)}")
        if not self.methods:
            raise ConfigError("methods must name at least one method")
        rivals = [method for method in self.methods if method in RIVAL_METHODS]
        if rivals and self.features is not None:
            raise ConfigError(f"'{rivals[0]}' trains its own network on images, and --features has none: leave one out")
        if self.recipe not in ("shared", "paper"):
            raise ConfigError(f"recipe must be 'shared' or 'paper', got {self.recipe!r}")
        check_settings(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        lists = {"methods": list(self.methods), "views": list(self.views)}
        return {**asdict(self), **lists, "seeds": list(self.seeds) if self.seeds else None}

    @property
    def many(self) -> bool:
        """Whether the learner is one of views: there are several, or one whose head is a cosine."""
        return self.turned or self.views != ("plain",)

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


def _scaled(lr: float, usual: int, settings: dict[str, Any]) -> float:
    """Return the learning rate for a batch of another size than the usual one, in proportion."""
    size = settings["batch_size"]
    return lr * size / usual if isinstance(size, int) and size > 0 else lr


def _methods(given: Any) -> tuple[str, ...]:
    """Return names from a list or from text with commas between; ``all`` stands for all usual ones."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        raise ConfigError(f"methods must be names, as 'afa, vote' or [afa, vote], got {given!r}")
    flat: list[str] = []
    for name in (str(name).strip() for name in names):
        flat += [m for m in ((*RIVAL_METHODS, *DEFAULT_METHODS) if name == "all" else (name,)) if m and m not in flat]
    return tuple(flat)


def _views(given: Any, named: Any) -> tuple[str, ...]:
    """Return names of views from a list; a number takes that many of the ``named`` ones."""
    named = named if isinstance(named, list | tuple) else RunConfig.views
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= len(named):
            raise ConfigError(f"views must be a number from 1 to {len(named)}, the views of the settings, got {given}")
        given = list(named)[:given]
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"views must be a list of names, as [plain, turn-1], got {given!r}")
    return tuple(given)


def _seeds(given: Any) -> tuple[int, ...] | None:
    """Return several seeds from a list or from text with commas between."""
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    try:
        seeds = tuple(dict.fromkeys(int(str(part)) for part in parts))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"seeds must be whole numbers of at least 0, as '0,1,2' or [0, 1, 2], got {given!r}")
    return seeds


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the settings in a YAML file; ConfigError where there are none."""
    import yaml

    if not file.is_file():
        raise ConfigError(f"no such file: {file}")
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else f"a {type(settings).__name__}"
        raise ConfigError(f"{file} must hold settings as 'name: value' lines, found {found}")
    return settings
