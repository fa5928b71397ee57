"""Ready features of several views: written by a run, read by another, and what cannot be."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.experiment import ConfigError, RunConfig, run_method
from faverage.experiment.fusers import learner_of
from faverage.experiment.recipes import BEST
from faverage.experiment.sweep import Plan, work
from faverage.experiment.sweep.work import mark
from faverage.features import FeatureSet, file_views
from faverage.fscil import CosineHead, FewShotLearner
from helpers_features import BASE, VIEWS, D, made, plain
from helpers_run import command, numbers, said

RUN = "epochs: 1\nmethods: [prototypes, no-fine-tuning, geometric, log-pool, logistic, afa]\njobs: 1\n"


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_cache")]


def built(text: str, folder: Path, **given: Any) -> RunConfig:
    (folder / "settings.yaml").write_text(text + "\n")
    return RunConfig.build("mini-imagenet", folder / "settings.yaml", given)


def done(out: Path, *arguments: object) -> Any:
    result = command("digits", "--out", out, *arguments)
    assert result.exit_code == 0, said(result)
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a turned network with three views, and the file that it wrote."""
    folder = tmp_path_factory.mktemp("turned")
    (folder / "run.yaml").write_text(RUN + f"rotations: true\nviews: [{', '.join(VIEWS)}]\n")
    done(folder / "out", "--config", folder / "run.yaml", "--save-features", folder / "new" / "features.npz")
    return folder


def assert_same_table(one: dict[str, Any], other: dict[str, Any], within: float = 1e-9) -> None:
    assert one.keys() == other.keys()
    for method in one:
        pairs = zip(one[method]["sessions"], other[method]["sessions"], strict=True)
        for k, (a, b) in enumerate(pairs):
            assert abs(a["f1"] - b["f1"]) <= within, (method, k, a["f1"], b["f1"])


def test_a_run_from_the_file_has_the_table_of_the_run_that_wrote_it(turned: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    file = turned / "new" / "features.npz"
    results = done(tmp_path / "out", "--config", tmp_path / "run.yaml", "--features", file)
    assert_same_table(numbers(turned / "out"), numbers(tmp_path / "out"))
    first = json.loads((turned / "out" / "results.json").read_text())
    assert results["config"]["views"] == VIEWS and results["base"] is None and not results["config"]["rotations"]
    assert results["protocol"]["sessions"] == first["protocol"]["sessions"]
    assert results["methods"]["afa"]["explanation"]["heads"] == first["methods"]["afa"]["explanation"]["heads"]
    assert "save_features" not in first["config"] and not list(file.parent.glob(".*"))


def test_what_is_in_the_file(turned: Path) -> None:
    with np.load(turned / "new" / "features.npz") as file:
        data = {name: file[name] for name in file.files}
    assert data["views"].tolist() == VIEWS and (data["base_head_scale"] == 16).all() and "base_head_bias" not in data
    d = data["test"].shape[2]
    assert data["base_head_weight"].shape == data["base_prototypes"].shape == (6, 3, d)
    assert data["novel"].shape == (20, 3, d) and data["base_memory"].shape[1:] == (3, d)
    assert all(data[name].dtype == np.float32 for name in ("test", "novel", "base_prototypes", "base_head_weight"))
    assert data["sessions"].tolist() == [0] * 6 + [1, 1, 2, 2]
    assert not np.array_equal(data["base_head_weight"][:, 0], data["base_head_weight"][:, 1])


def test_views_of_the_run_are_taken_in_its_order(turned: Path, tmp_path: Path) -> None:
    """Two of the three views, and the second alone: the runs on images with those say the same."""
    file, images = turned / "new" / "features.npz", tmp_path / "images"
    shutil.copytree(turned / "out" / "work", images / "work")  # trained already
    for views, more in (("rotate-180, plain", ()), ("rotate-90", ()), ("rotate-90, plain", ("--views", 1))):
        (tmp_path / "run.yaml").write_text(RUN.replace(", logistic, afa", "") + f"views: [{views}]\n")
        (tmp_path / "images.yaml").write_text((tmp_path / "run.yaml").read_text() + "rotations: true\n")
        if not more:
            done(images, "--config", tmp_path / "images.yaml")
        done(tmp_path / "out", "--config", tmp_path / "run.yaml", "--features", file, *more)
        assert_same_table(numbers(images), numbers(tmp_path / "out"))


def test_a_plain_run_writes_a_file_without_views(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    file, again = tmp_path / "features.npz", tmp_path / "again.npz"
    done(tmp_path / "out", "--config", tmp_path / "run.yaml", "--save-features", file)
    with np.load(file) as data:
        assert "views" not in data.files and data["test"].ndim == 2 and data["base_head_bias"].shape == (6,)
    options = ("--config", tmp_path / "run.yaml", "--features", file)
    results = done(tmp_path / "ready", *options, "--save-features", again)
    assert results["config"]["views"] == ["plain"] and len(results["protocol"]["sessions"]) == 3
    assert_same_table(numbers(tmp_path / "out"), numbers(tmp_path / "ready"))
    with np.load(file) as one, np.load(again) as other:
        assert set(one.files) == set(other.files)
        assert all(np.array_equal(one[name], other[name]) for name in one.files)


def test_which_views_a_run_has(tmp_path: Path) -> None:
    file = str(made(tmp_path / "f.npz"))
    assert built("seed: 0", tmp_path, features=file).views == tuple(VIEWS)
    assert built("seed: 0", tmp_path, features=file, views=2).views == ("plain", "rotate-90")
    assert built(f"features: {file}\nviews: [rotate-180]", tmp_path).views == ("rotate-180",)
    assert built("views: [rotate-180, plain]", tmp_path, features=file, views=1).views == ("rotate-180",)
    own = str(made(tmp_path / "g.npz", views=np.array(["left eye", "right eye", "nose"])))
    assert built("seed: 0", tmp_path, features=own).views == ("left eye", "right eye", "nose")
    with pytest.raises(ConfigError, match=r"views: .*f\.npz has no view 'flip'; it has: plain; rotate-90; rotate-180"):
        built("views: [plain, flip]", tmp_path, features=file)
    assert built("recipe: best", tmp_path, features=file).views == tuple(VIEWS)
    for views in ("[]", "[plain, plain]"):
        with pytest.raises(ConfigError, match="views must be names of different views"):
            built(f"views: {views}", tmp_path, features=file)
    with pytest.raises(ConfigError, match="views must be a number from 1 to 3"):
        built("seed: 0", tmp_path, features=file, views=4)
    with pytest.raises(ConfigError, match="networks need images"):
        built("networks: [{}, {start: 1}]", tmp_path, features=file)


def test_one_view_of_a_file_with_views_keeps_its_head(tmp_path: Path) -> None:
    file = made(tmp_path / "f.npz")
    config = built("seed: 0", tmp_path, features=str(file), views=1)
    features = FeatureSet.load(file, config.views)
    assert config.views == ("plain",) == tuple(features.views) and isinstance(features.heads["plain"], CosineHead)
    done(tmp_path / "out", "--features", file, "--views", 1, "--methods", "vote,afa", "--jobs", 1)


def test_the_recipe_best_and_another_scale(tmp_path: Path) -> None:
    """The same folder and features with another scale: nothing old is taken for new."""
    arguments = ("--recipe", "best", "--views", 3, "--methods", "prototypes,geometric", "--jobs", 1)
    found, wrong = [], np.random.default_rng(2).normal(size=(BASE, 3, D))  # the louder, the worse
    for scale in (10.0, 0.01):
        file = made(tmp_path / "f.npz", base_head_scale=scale, base_head_weight=wrong)
        config = done(tmp_path / "out", *arguments, "--features", file)["config"]
        assert config["recipe"] == "best" and config["balance"] == BEST["balance"] and config["views"] == VIEWS
        found.append(numbers(tmp_path / "out"))
    assert found[0]["prototypes"] == found[1]["prototypes"]
    assert found[0]["geometric"]["sessions"] != found[1]["geometric"]["sessions"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recipe: best", "recipe 'best' fuses views, and "),
        ("rotations: true", "views and rotations need images or a file of features with views, and "),
        ("views: [plain, rotate-90]", "has none: write one with --save-features, or leave them out"),
        ("views: [sideways]", "views: unknown view 'sideways'"),
        ("networks: [{}, {}]", "networks need images, and --features has none"),
    ],
)
def test_a_file_without_views_has_one(text: str, words: str, tmp_path: Path) -> None:
    file = str(plain(tmp_path / "f.npz"))
    assert file_views(Path(file)) is None and built("views: [plain]", tmp_path, features=file).views == ("plain",)
    with pytest.raises(ConfigError) as error:
        built(text, tmp_path, features=file)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test": np.zeros((36, 2, D))}, "'test' must be numbers of shape (n, 3, 6), got float64 (36, 2, 6)"),
        ({"novel": np.zeros((25, D))}, "'novel' must be numbers of shape (n, 3, 6), got float64 (25, 6)"),
        ({"novel": np.full((25, 3, D), np.inf)}, "'novel' must hold finite numbers"),
        ({"base_prototypes": np.zeros((BASE, D))}, "'test' must be numbers of shape (n, 3, d), got"),
        ({"base_head_weight": np.zeros((BASE, 3, 5))}, "'base_head_weight' must be numbers of shape (4, 3, 6), got"),
        ({"base_head_weight": np.zeros((3, 3, D))}, "'base_head_weight' has 3 rows, but there are 4 base_prototypes"),
        ({"base_head_scale": None}, "lacks the array 'base_head_bias' (or base_head_scale); needed are: test, "),
        ({"base_head_bias": np.zeros((BASE, 3))}, "has 'base_head_bias' and 'base_head_scale'"),
        (
            {"base_head_scale": None, "base_head_bias": np.zeros(BASE)},
            "'base_head_bias' must be numbers of shape (4, 3), got float64 (4,)",
        ),
        ({"base_head_scale": 0.0}, "'base_head_scale' is 0 for a linear head, but there is no 'base_head_bias'"),
        (
            {"base_head_scale": np.nan},
            "'base_head_scale' must be a number > 0, or one a view (0: a linear",
        ),
        ({"base_head_scale": np.ones(2)}, "(0: a linear head), got float64 (2,)"),
        ({"base_head_scale": "ten"}, "(0: a linear head), got 'ten'"),
        ({"views": np.arange(3)}, "'views' must be different names as text (V,), got int64 (3,)"),
        ({"views": np.array(["a", "a", "b"])}, "'views' must be different names"),
        ({"views": np.array(VIEWS[:2])}, "'test' must be numbers of shape (n, 2, 6), got float64 (36, 3, 6)"),
        ({"test_labels": np.arange(36) % 8}, "'test_labels' must have every class from 0 to 8 and no other, but 8"),
        ({"sessions": np.zeros(3, int)}, "'sessions' must be 9 whole numbers, got int64 (3,)"),
        ({"sessions": np.array([0, 0, 0, 0, 1, 3, 3, 3, 3])}, "'sessions' must be 0 for the 4 base classes, then 1"),
        ({"sessions": np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])}, "'sessions' must be 0 for the 4 base classes, then 1"),
    ],
)
def test_wrong_files(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = made(tmp_path / "f.npz", **changes)
    result = command("mini-imagenet", "--features", path, "--methods", "vote", "--out", tmp_path / "out")
    assert result.exit_code == 2 and str(path) in said(result) and words in said(result)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seeds", "0,1"), "--save-features is for one seed, and this run has 2"),
        (("--methods", "lucir"), "these methods train networks of their own: add another, such as afa"),
        (("--features", "DIR/f.npz"), "is what --features reads: name another file"),
        (("--save-features", "DIR"), "is a folder, expected a .npz file"),
        (("--save-features", "photo.jpg"), "--save-features photo.jpg must end in .npz"),
        (("--save-features", "DIR/f.npz/g.npz"), "its folder cannot be made"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    made(tmp_path / "f.npz")
    given = [argument.replace("DIR", str(tmp_path)) for argument in arguments]
    target = () if "--save-features" in given else ("--save-features", tmp_path / "f.npz")
    result = command("digits", *given, *target, "--out", tmp_path / "out")
    assert result.exit_code == 2 and words in said(result)
    assert not (tmp_path / "out" / "work").exists()


def test_two_networks_in_one_file(tmp_path: Path) -> None:
    """A turned network with cosine heads and a plain one with linear heads, side by side."""
    (tmp_path / "run.yaml").write_text(
        RUN + "rotations: true\nviews: [plain, rotate-90]\nnetworks: [{}, {rotations: false}]\n"
    )
    file = tmp_path / "features.npz"
    done(tmp_path / "out", "--config", tmp_path / "run.yaml", "--save-features", file)
    (tmp_path / "ready.yaml").write_text(RUN)
    done(tmp_path / "ready", "--config", tmp_path / "ready.yaml", "--features", file)
    assert_same_table(numbers(tmp_path / "out"), numbers(tmp_path / "ready"))
    with np.load(file) as data:
        assert data["base_head_scale"].tolist() == [16, 16, 0, 0] and not data["base_head_bias"][:, :2].any()
        assert data["views"].tolist()[0] == "network 1: plain" and data["base_head_bias"][:, 2:].any()


def test_a_sweep_over_views_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(f"dataset: mini-imagenet\nfeatures: {made(tmp_path / 'f.npz')}\nmethods: [geometric]\n")
    file.open("a").write("over:\n  views: [[plain], [rotate-180, plain]]\n")
    plan, token = Plan.read(file), mark(tmp_path)
    outcomes = [work.carry_out(task, tmp_path, token) for task in plan.tasks.values()]
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert outcomes[0].record["sessions"] != outcomes[1].record["sessions"]


def test_members_are_those_of_the_settings_and_of_the_method(tmp_path: Path) -> None:
    config = built("seed: 0", tmp_path, features=str(made(tmp_path / "f.npz")))
    features = FeatureSet.load(tmp_path / "f.npz")
    sessions = replace(config, members="sessions")
    heads = {
        (one.members, method): run_method(method, features, one)["explanation"]["heads"]
        for one in (config, sessions)
        for method in ("afa", "afa-paper")
    }
    by_view = [f"{view}, {head}" for view in VIEWS for head in ("base head", "prototypes")]
    by_session = [f"{view}, {head}" for view in VIEWS for head in ("base head", "session 1")]
    assert heads["views", "afa"] == [*by_view, "ridge"] and heads["sessions", "afa"] == by_session
    assert heads["views", "afa-paper"] == heads["sessions", "afa-paper"] == by_session
    for method in ("prototypes", "no-fine-tuning"):  # one member alone, whatever the others are
        one, other = (run_method(method, features, c)["sessions"] for c in (config, sessions))
        assert [s["f1"] for s in one] == [s["f1"] for s in other]
    paper = replace(config, members="paper")
    assert run_method("afa", features, paper)["explanation"]["heads"] == heads["views", "afa"]
    of_rule = [learner_of("geometric", one).members_kind for one in (config, sessions, paper)]
    assert of_rule == [None, "sessions", "sessions"]  # None: its own, views
    with pytest.raises(ConfigError, match="members must be 'views', 'sessions' or 'paper', got 'heads'"):
        built("members: heads", tmp_path)


def test_rehearsal_in_a_run_is_that_of_the_learner() -> None:
    usual, learner = RunConfig(), FewShotLearner()
    for name in ("stand_ins", "spread", "balance", "calibration", "temperature", "threshold"):
        assert getattr(usual, name) == getattr(learner, name), name
    assert usual.balance == 1.5
