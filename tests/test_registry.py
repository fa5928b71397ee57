"""One registry for means, fusers, rivals, benchmarks and backbones: what is added from outside works like our own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from torch import Tensor, nn

import helpers_fuse
from faverage import AFA, AFAClassifier, Mean, fit, mean_names, register_mean
from faverage.afa.means import MEANS
from faverage.data import Benchmark, DataError, benchmark_names, load_benchmark, register_benchmark
from faverage.data.assemble import assemble
from faverage.data.registry import BENCHMARKS, Protocol, Request
from faverage.errors import UserError
from faverage.fscil import FewShotLearner
from faverage.fusion import FUSERS, Fuser, fuser_names, get_fuser, register_fuser
from faverage.registry import Registry, adopt, outside
from faverage.rivals import RIVALS, Rival, get_rival, register_rival
from faverage.vision import backbone_names, get_backbone, register_backbone
from faverage.vision.backbones import BACKBONES
from helpers_run import command, said

pytestmark = pytest.mark.usefixtures("own_cache")
ALL: tuple[Registry[Any], ...] = (MEANS, FUSERS, RIVALS, BENCHMARKS, BACKBONES)


class Cubic(Mean):
    """f(x) = x³."""

    def __call__(self, x: Tensor) -> Tensor:
        return x**3

    def inverse(self, y: Tensor) -> Tensor:
        return y.relu() ** (1 / 3)


class Middle(Fuser):
    """The median of what the models say."""

    trains = False

    def _predict(self, scores: np.ndarray) -> np.ndarray:
        return np.nan_to_num(np.nanmedian(scores, axis=1))


class Pixels(nn.Module):
    """Means of 16 patches of each channel, and a linear layer."""

    def __init__(self, *, dimension: int = 24) -> None:
        super().__init__()
        self.dimension, self.last = dimension, nn.Linear(48, dimension)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))

    def config(self) -> dict[str, Any]:
        return {"name": "pixels", "dimension": self.dimension}


class Nearest(Rival):
    """The nearest mean of features that nobody trained."""

    recipes: ClassVar[dict[str, Any]] = {"shared": {"base": {}, "scale": 10.0}}

    def build(self, sizes: list[int]) -> nn.Module:
        holder = nn.Module()
        holder.backbone = self._backbone()
        return holder

    def _fit(self, images: np.ndarray, numbers: np.ndarray) -> None:
        found = self.features(images)
        self.arrays = {"means": np.stack([found[numbers == c].mean(0) for c in np.unique(numbers)])}

    def _learn(self, images: np.ndarray, numbers: np.ndarray, n_new: int) -> None:
        old = self.arrays["means"]
        self._fit(images, numbers)
        self.arrays = {"means": np.concatenate([old, self.arrays["means"]])}

    def _probabilities(self, features: Tensor) -> Tensor:
        return (-self.recipe["scale"] * torch.cdist(features, torch.from_numpy(self.arrays["means"]))).softmax(1)


def stripes(request: Request) -> Benchmark:
    """Six classes of noisy patterns, four of them base classes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 30)
    patterns = rng.integers(0, 200, (6, 16, 16, 3))
    images = (patterns[labels] + rng.integers(0, 55, (180, 16, 16, 3))).astype(np.uint8)
    protocol = request.protocol(Protocol(base=4, way=2, sessions=1))
    return assemble(request, "stripes", 16, [f"pattern {c}" for c in range(6)], images, labels, None, protocol)


@pytest.fixture(autouse=True)
def from_outside() -> Iterator[None]:
    """Register one of each, and take them away again."""
    register_mean("cubic")(Cubic)
    register_fuser("middle")(Middle)
    register_backbone("pixels")(Pixels)
    register_rival("nearest")(Nearest)
    register_benchmark("stripes")(stripes)
    yield
    for registry, name in zip(ALL, ("cubic", "middle", "nearest", "stripes", "pixels"), strict=True):
        registry.unregister(name)


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def test_the_mean_in_a_network() -> None:
    network = AFA(2, 3, means=["cubic", "arithmetic"])
    history = fit(network, torch.rand(20, 2, 3).softmax(-1), torch.arange(20) % 3, epochs=2)
    assert len(history.train) == 2 and network.config()["means"][0] == {"name": "cubic"}


MEMBERS = [("lr", LogisticRegression()), ("nb", GaussianNB())]


def blobs() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(90) % 3
    return np.random.default_rng(0).normal(size=(90, 4)) + 2 * y[:, None], y


def test_the_fuser_in_an_estimator() -> None:
    X, y = blobs()
    assert AFAClassifier(MEMBERS, fuser="middle").fit(X, y).score(X, y) > 0.8


def test_the_mean_among_those_of_afa() -> None:
    X, y = blobs()
    options = {"means": ["arithmetic", "geometric", "cubic"]}
    model = AFAClassifier(MEMBERS, fuser_options=options).fit(X, y)
    assert {"cubic, T", "all, T"} <= set(model.fuser_.losses) and model.score(X, y) > 0.8
    alone = AFAClassifier(MEMBERS, fuser_options={"means": ["cubic"]}).fit(X, y)
    assert list(alone.fuser_.weights) == ["cubic, T"] and alone.score(X, y) > 0.8
    assert [tuple(row) for row in alone.explain().means.rows] == [("cubic", 1.0)]


def test_the_mean_in_a_learner() -> None:
    X, y = blobs()
    options = {"structure": "scalar", "means": ["arithmetic", "cubic"], "combine": "best"}
    learner = FewShotLearner(fuser_options=options).learn_session(X[:15], y[:15])
    assert set(learner.chosen()) <= {"cubic, T", "all, T"} and (learner.predict(X) == y).mean() > 0.6


def test_the_fuser_in_the_comparison_of_files(tmp_path: Path) -> None:
    result = helpers_fuse.fuse(helpers_fuse.make(tmp_path), "--compare", "arithmetic,middle", "--fuser", "middle")
    assert result.exit_code == 0, result.output
    assert "Fitted middle on 45 labelled rows" in result.stdout and "│ middle " in result.stdout


@pytest.mark.slow
def test_rival_fuser_benchmark_and_backbone_in_a_run(tmp_path: Path) -> None:
    options = ("--config", tmp_path / "run.yaml", "--methods", "nearest,middle,prototypes")
    (tmp_path / "run.yaml").write_text("backbone: pixels\nepochs: 1\nbatch_size: 16\nlr: 0.01\n")
    result = command("stripes", *options, "--jobs", 1, "--out", tmp_path / "one")
    assert result.exit_code == 0, result.output
    found = results(tmp_path / "one")
    assert list(found["methods"]) == ["nearest", "middle", "prototypes"] and found["dataset"] == "stripes"
    assert found["base"]["backbone"] == "pixels"
    assert found["methods"]["nearest"]["sessions"][-1]["f1"] > 0.9
    assert "| nearest |" in (tmp_path / "one" / "table.md").read_text()
    # processes that methods share know nothing of what was registered here until they are told
    assert command("stripes", *options, "--jobs", 2, "--out", tmp_path / "two").exit_code == 0
    for name, method in results(tmp_path / "two")["methods"].items():
        assert [s["f1"] for s in method["sessions"]] == [s["f1"] for s in found["methods"][name]["sessions"]]


def test_all_methods_are_those_from_outside_too(tmp_path: Path) -> None:
    result = command("digits", "--methods", "nearst", "--out", tmp_path)
    assert result.exit_code == 2 and "unknown method 'nearst'; known are: lucir, eeil" in said(result)
    assert "c-fscil, savc, nearest, no-fine-tuning" in said(result)


def test_names_come_in_order() -> None:
    assert mean_names() == ["arithmetic", "geometric", "harmonic", "power", "cubic"]
    assert fuser_names()[-1] == "middle" and RIVALS.names()[:5] == ["lucir", "eeil", "sppr", "cec", "fact"]
    assert RIVALS.names()[5:] == ["topic", "idlvq-c", "c-fscil", "savc", "nearest"]
    lite = [f"efficientnet_lite{k}" for k in range(3)]
    assert backbone_names() == [*lite, "pixels", "resnet18_large", "resnet18_small", "tiny"]
    assert "stripes" in benchmark_names()
    assert (Cubic.name, Middle.name, Nearest.name) == ("cubic", "middle", "nearest")


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda: get_fuser("midle"), "unknown fuser 'midle'; known are: .*; did you mean 'middle'?"),
        (lambda: get_rival("sprr"), "unknown rival 'sprr'; known are: lucir, .*; did you mean 'sppr'?"),
        (lambda: get_backbone("zzz"), "unknown backbone 'zzz'; known are: resnet18_large, .* pixels$"),
        (lambda: load_benchmark("digit"), "unknown benchmark 'digit'; known are: .*; did you mean 'digits'?"),
        (lambda: AFA(2, 3, means=["cube"]), "unknown mean 'cube'; known are: arithmetic, .*"),
        (lambda: MEANS.get(3), "unknown mean 3; known are: "),
    ],
)
def test_an_unknown_name_is_told_the_known_ones(look: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        look()


def test_the_error_of_an_unknown_benchmark_is_one_of_data() -> None:
    with pytest.raises(DataError):
        load_benchmark("digit")


@pytest.mark.parametrize("registry", ALL)
def test_a_name_is_given_once(registry: Registry[Any]) -> None:
    name = registry.names()[-1]
    registry.register(name)(registry[name])  # the same again, as when a cell of a notebook is run twice
    with pytest.raises(ValueError, match=f"a {registry.kind} named '{name}' exists already"):
        registry.register(name)(lambda: None)


def test_another_process_adopts_what_came_from_outside() -> None:
    entries = outside()
    assert sorted(name for _, name, _ in entries) == ["cubic", "middle", "nearest", "pixels", "stripes"]
    RIVALS.unregister("nearest")
    RIVALS.unregister("nearest")
    adopt(entries)
    assert get_rival("nearest") is Nearest and get_rival("lucir").__module__ == "faverage.rivals.lucir"
    edited = type("Nearest", (Nearest,), {})
    adopt([("rival", "nearest", edited), ("rival", "lucir", edited)])  # a worker that outlives an edit
    assert get_rival("nearest") is edited and get_rival("lucir").__module__ == "faverage.rivals.lucir"
