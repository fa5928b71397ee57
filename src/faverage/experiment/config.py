"""What a run is: every setting in one place, from defaults, a YAML file and the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from faverage.data import benchmark_names
from faverage.fscil.learner import METHODS as FEW_SHOT
from faverage.fusion import fuser_names

__all__ = ["ALL_METHODS", "DEFAULT_METHODS", "RECIPES", "ConfigError", "RunConfig"]

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
ALL_METHODS = tuple(dict.fromkeys([*DEFAULT_METHODS, *fuser_names(), *FEW_SHOT]))

# settings of the base session, where a data set wants others than the defaults
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"backbone": "tiny", "epochs": 20, "batch_size": 64, "lr": 0.05, "flip": False},
    "cifar100": {"backbone": "resnet18_small"},
    "cub200": {"backbone": "resnet18_large", "lr": 0.01},
    "fgvc-aircraft": {"backbone": "resnet18_large", "lr": 0.01},
}


class ConfigError(ValueError):
    """A setting that cannot be: the message names it and says what was expected."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    Attributes:
        dataset: a benchmark's name.
        data: folder of the data; by default the variable FAVERAGE_DATA.
        features: a ``.npz`` of ready features; the base session is then not trained.
        methods: what to compare.
        seed: of everything that is drawn.
        device: ``auto``, ``cpu``, ``cuda``.
        shots: examples of each new class.
        backbone: a name of ``faverage.vision``.
        weights: a checkpoint to start the backbone from.
        epochs: of the base session.
        batch_size: images a step.
        lr: learning rate.
        schedule: ``cosine`` or ``paper``.
        weight_decay: of the base session.
        flip: whether training images are mirrored at random.
        hold_out: images of each base class kept for rehearsal.
        draws: stand-ins for each new class in rehearsal.
        temperature: of the prototype heads; None learns it.
        threshold: of the padding.
        jobs: methods at a time.
        tensorboard: folder for TensorBoard, or None.
    """

    dataset: str = "digits"
    data: str | None = None
    features: str | None = None
    methods: tuple[str, ...] = DEFAULT_METHODS
    seed: int = 0
    device: str = "auto"
    shots: int = 5
    backbone: str = "resnet18_small"
    weights: str | None = None
    epochs: int = 57
    batch_size: int = 128
    lr: float = 0.1
    schedule: Literal["cosine", "paper"] = "cosine"
    weight_decay: float = 5e-4
    flip: bool = True
    hold_out: int = 20
    draws: int = 50
    temperature: float | None = None
    threshold: float = 0.5
    jobs: int = field(default=2, metadata={"neutral": True})
    tensorboard: str | None = field(default=None, metadata={"neutral": True})

    @classmethod
    def build(cls, dataset: str | None, file: Path | None, given: dict[str, Any]) -> RunConfig:
        """Lay the data set's recipe, a YAML file and given settings (None: not given) over the defaults."""
        settings = _read(file) if file is not None else {}
        given = {name: value for name, value in given.items() if value is not None}
        name = dataset or settings.get("dataset", "digits")
        if name not in benchmark_names():
            raise ConfigError(f"unknown dataset '{name}'; known are: {', '.join(benchmark_names())}")
        merged = {**RECIPES.get(name, {}), **settings, **given, "dataset": name}
        known = {f.name for f in fields(cls)}
        for key in merged:
            if key not in known:
                raise ConfigError(f"unknown setting '{key}' in {file}; known are: {', '.join(sorted(known))}")
        if isinstance(merged.get("methods"), str):
            merged["methods"] = [m.strip() for m in merged["methods"].split(",") if m.strip()]
        if merged.get("methods") is not None:
            merged["methods"] = tuple(DEFAULT_METHODS if m == "all" else m for m in merged["methods"])
            merged["methods"] = tuple(_flat(merged["methods"]))
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
        for name in ("epochs", "batch_size", "shots", "hold_out", "draws", "jobs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("lr", "threshold"):
            if not isinstance(getattr(self, name), int | float) or not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be a number > 0, got {getattr(self, name)!r}")
        if self.schedule not in ("cosine", "paper"):
            raise ConfigError(f"schedule must be 'cosine' or 'paper', got {self.schedule!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {**asdict(self), "methods": list(self.methods)}

    def key(self) -> dict[str, Any]:
        """Return what the results depend on, apart from which methods are compared and how many at a time."""
        neutral = {f.name for f in fields(self) if f.metadata.get("neutral")}
        return {k: v for k, v in self.to_dict().items() if k not in neutral | {"methods"}}


def _flat(methods: tuple[Any, ...]) -> list[str]:
    flat: list[str] = []
    for method in methods:
        flat += [m for m in (method if isinstance(method, tuple) else (method,)) if m not in flat]
    return flat


def _read(file: Path) -> dict[str, Any]:
    import yaml

    if not file.is_file():
        raise ConfigError(f"no such file: {file}")
    try:
        settings = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{file} must hold settings as 'name: value' lines, found {type(settings).__name__}")
    return settings
