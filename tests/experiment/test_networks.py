"""Several networks in one run, each trained once and for all runs that ask for it; the recipe ``best``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.data import Benchmark, load_benchmark
from faverage.data.decode import resize_stack
from faverage.experiment import ConfigError, RunConfig, recipes
from faverage.experiment.base import features_of_benchmark, train_on
from faverage.experiment.config import OF_NETWORKS
from faverage.experiment.given import within
from faverage.experiment.pictures import load_pictures, seen_by
from faverage.experiment.rivals import rival_recipe
from faverage.experiment.run import finished_run
from faverage.experiment.sweep import Plan, work
from faverage.experiment.sweep.work import mark, read_shared
from faverage.features import FeatureSet
from faverage.fscil import Whitening
from faverage.fscil.heads import CosineHead, unit
from faverage.vision import BaseModel, extract_features, get_backbone, rotation_heads, train_base
from faverage.vision.engine.loop import Loop
from helpers_run import command, numbers, said

RUN = "epochs: 1\nmethods: [prototypes, geometric, logistic]\njobs: 1\n"
TWO = RUN + "networks:\n  - {}\n  - {start: 1, views: [plain, rotate-90]}\n"
EPOCH = "faverage.vision.engine.loop.Loop.epoch"


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_cache")]


def built(text: str, folder: Path, **given: Any) -> RunConfig:
    file = folder / "settings.yaml"
    file.write_text(text)
    return RunConfig.build("digits", file, given)


def done(text: str, out: Path, *more: object) -> Any:
    """Run it; return the results."""
    file = out.parent / f"{out.name}.yaml"
    file.write_text(text)
    result = command("digits", "--config", file, "--out", out, *more)
    assert result.exit_code == 0, said(result)
    return json.loads((out / "results.json").read_text()) | {"said": said(result)}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    done(RUN, out)
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two") / "out"
    done(TWO, out)
    return out


def trainings(out: Path) -> dict[str, int]:
    """When each network was written last, by its folder."""
    return {file.parent.name: file.stat().st_mtime_ns for file in out.glob("work/*/base-checkpoint.safetensors")}


def test_two_networks_are_members_side_by_side(one: Path, two: Path) -> None:
    results = json.loads((two / "results.json").read_text())
    fused = numbers(two)["logistic"]["sessions"]
    assert fused != numbers(one)["logistic"]["sessions"]
    assert results["config"]["networks"] == [{}, {"start": 1, "views": ["plain", "rotate-90"]}]
    told = results["networks"]
    assert results["base"].items() <= told[0].items() and [n["settings"] for n in told] == results["config"]["networks"]
    assert [n["views"] for n in told] == [["plain"], ["plain", "rotate-90"]]
    assert all(n["seconds"] > 0 and n["images_per_second"] > 0 and n["epochs"] == 1 for n in told)
    assert told[0]["history"]["loss"] != told[1]["history"]["loss"]
    page = (two / "report.html").read_text()
    assert "Network 1 (tiny; plain): 1 epochs in" in page and "Network 2 (tiny; plain + rotate-90): 1 epochs in" in page
    names = built(TWO, two.parent).view_names
    assert names == ["network 1: plain", "network 2: plain", "network 2: rotate-90"]
    assert "networks" not in json.loads((one / "results.json").read_text())


def test_networks_are_trained_once_and_shared(one: Path, two: Path, tmp_path: Path) -> None:
    """A run with one network, then one with two, then the second alone, all in one folder."""
    out = tmp_path / "out"
    assert done(RUN, out)["base"]["epochs"] == 1
    first = trainings(out)
    assert first.keys() == trainings(one).keys() and len(first) == 1
    results = done(TWO, out)
    assert "training the base session, network 1 of 2" in results["said"]
    both = trainings(out)
    assert len(both) == 2 and both.items() >= first.items() and both.keys() == trainings(two).keys()
    assert numbers(out) == numbers(two)
    second = done(RUN + "start: 1\nviews: [plain, rotate-90]\n", out)
    assert trainings(out) == both
    assert second["base"]["history"]["loss"] == results["networks"][1]["history"]["loss"]


def test_members_of_the_explanation_are_named_and_rivals_keep_to_the_run(tmp_path: Path) -> None:
    text = RUN.replace("prototypes, geometric, logistic", "afa, lucir") + "networks: [{epochs: 2}, {epochs: 2}]\n"
    results = done(text, tmp_path / "out")
    assert results["methods"]["lucir"]["base"]["recipe"]["base"]["epochs"] == 1
    assert results["methods"]["afa"]["explanation"]["heads"] == [
        *("network 1: plain, base head", "network 1: plain, prototypes"),
        *("network 2: plain, base head", "network 2: plain, prototypes", "ridge"),
    ]


def test_stopped_in_the_second_network(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faverage.vision.engine.loop import Loop

    out, file, epoch, seen = tmp_path / "out", tmp_path / "run.yaml", Loop.epoch, []

    def second_stops(self: Any, *arguments: Any) -> Any:
        seen.append(self)
        if len(seen) > 1:
            raise KeyboardInterrupt
        return epoch(self, *arguments)

    file.write_text(TWO)
    with monkeypatch.context() as patch:
        patch.setattr(EPOCH, second_stops)
        result = command("digits", "--config", file, "--out", out)
    assert result.exit_code == 130 and "Stopped while training the base session, network 2 of 2" in said(result)
    first = trainings(out)
    assert len(first) == 1
    assert command("digits", "--config", file, "--out", out).exit_code == 0
    assert trainings(out).items() >= first.items() and numbers(out) == numbers(two)


def test_a_number_of_views_counts_over_networks(one: Path, two: Path, tmp_path: Path) -> None:
    starts = built(TWO, tmp_path, views=2)
    assert starts.networks == ({}, {"start": 1, "views": ["plain"]})
    assert built(TWO, tmp_path, views=3) == built(TWO, tmp_path)
    assert built(TWO + "views: 2\n", tmp_path) == starts
    assert built(TWO, tmp_path, views=1) == built(RUN, tmp_path)
    listed = built(RUN + "views: [flip, plain]\nnetworks: [{}, {}]\n", tmp_path, views=3)
    assert [config.views for config in listed.each] == [("flip", "plain"), ("flip",)]
    for count in (0, 4):
        with pytest.raises(ConfigError, match=f"views must be a number from 1 to 3, .* got {count}"):
            built(TWO, tmp_path, views=count)
    done(TWO, tmp_path / "out", "--views", 1)
    assert len(trainings(tmp_path / "out")) == 1 and numbers(tmp_path / "out") == numbers(one)
    done(TWO, tmp_path / "out", "--views", 2)
    alone = "prototypes"  # those of the first view of the first network
    assert len(trainings(tmp_path / "out")) == 2 and numbers(tmp_path / "out")[alone] == numbers(two)[alone]


def test_networks_with_seeds_draws_and_a_turned_one(tmp_path: Path) -> None:
    text = RUN.replace(", logistic", "") + "seeds: [0, 1]\ndraws: 2\n"
    text += "networks: [{rotations: true, views: [rotate-90]}, {}]\n"
    results = done(text, tmp_path / "out")
    assert len(trainings(tmp_path / "out")) == 4
    assert [(r["seed"], r["draw"]) for r in results["repeats"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    config, file = finished_run(tmp_path / "out")
    assert config.rotations and config.views == ("rotate-90",) and not config.networks and file.is_file()


def test_networks_of_different_widths_and_in_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faverage.vision import TinyNet, backbones

    monkeypatch.setitem(backbones.BACKBONES, "slim", lambda **options: TinyNet(**{"dimension": 24, **options}))
    file = tmp_path / "sweep.yaml"
    file.write_text(RUN.replace("[prototypes, geometric, logistic]", "[logistic]").replace("jobs: 1\n", ""))
    file.open("a").write("over:\n  networks: [[{}, {backbone: slim, views: [plain, flip]}]]\n")
    plan, token = Plan.read(file), mark(tmp_path)
    outcomes = [work.carry_out(task, tmp_path, token) for task in plan.tasks.values()]
    assert [outcome.error for outcome in outcomes] == ["", ""]
    base, run = plan.tasks.values()
    features = read_shared(tmp_path / "work" / base.folder, False)
    assert features is not None and list(features.views) == run.config.view_names
    assert [x.shape[1] for x in features.of(features.test[:1]).values()][1:] == [24, 24]
    assert all(features.heads[view].weight.shape == means.shape for view, means in features.prototypes.items())
    assert outcomes[1].record["held_out_loss"] > 0 and run.config.many


def test_starts(tmp_path: Path) -> None:
    def starts(networks: str, more: str = "") -> list[int]:
        return [config.start for config in built(f"{more}networks: {networks}\n", tmp_path).each]

    assert starts("[{}, {}, {}]") == [0, 1, 2]
    assert starts("[{}, {views: [flip]}]") == [0, 1]  # views are not of the training
    assert starts("[{}, {epochs: 3}, {}]") == [0, 0, 2]
    assert starts("[{}, {start: 5}]") == [0, 5]
    assert starts("[{}, {}]", "start: 4\n") == [4, 5]
    for twice in ("[{}, {start: 0}]", "[{start: 2}, {start: 2}]", "[{}, {}, {start: 1}]"):
        with pytest.raises(ConfigError, match=r"networks: \d: it is network \d once more: give it another start"):
            starts(twice)


def test_the_default_is_trained_as_ever_and_a_start_changes_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("faverage.vision.train_base", lambda *_, **options: calls.append(options))
    config = RunConfig.build("digits", None, {"seed": 3})
    pictures = load_pictures(config)
    for start in (0, 1, 2):
        train_on(replace(config, start=start), pictures, pictures.base)
    usual, *others = calls
    assert usual["seed"] == 3 and usual["mix"] == usual["smoothing"] == 0.0
    assert pictures.augment.config() == seen_by(config, pictures).augment.config()
    assert pictures.augment.jitter == 0.2 and pictures.augment.flip == 0.0
    assert len({call["seed"] for call in calls}) == 3
    assert all({**other, "seed": 3} == usual for other in others)
    for start, other in enumerate(others, 1):
        assert other["seed"] == np.random.SeedSequence([3, start]).generate_state(1)[0]
    again = load_pictures(replace(config, start=1))
    assert np.array_equal(again.kept, pictures.kept)


def test_features_are_extracted_from_the_detail_that_a_test_size_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, detail: int | None = None, **options: Any) -> Benchmark:
        usual = load_benchmark("digits", **options)
        return usual if detail is None else replace(usual, images=resize_stack(usual.images, detail + 8))

    monkeypatch.setattr("faverage.data.load_benchmark", load)
    config = built("epochs: 1\nnetworks: [{}, {test_size: 24}, {test_size: 12}]\n", tmp_path)
    pictures = load_pictures(config)
    assert (pictures.images.shape[1], pictures.detailed.shape[1]) == (16, 32)
    seen = [seen_by(one, pictures).transform.config() for one in config.each]
    assert [(one["size"], one["resize"]) for one in seen] == [(16, 16), (24, 24), (12, 12)]
    assert load_pictures(config.each[2]).detailed.shape[1] == 16
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "faverage.vision.train_base", lambda images, *_, **o: taken.append(images.shape) or train_base(images, *_, **o)
    )
    features, _ = features_of_benchmark(config, [tmp_path / str(k) for k in range(3)], lambda *_: None)
    assert [shape[1] for shape in taken] == [16] * 3
    model = BaseModel.load(tmp_path / "1" / "base.safetensors")
    expected = extract_features(model.backbone, pictures.detailed, pictures.test[:5], transform=model.transform)
    found = features.views["network 2: plain"][features.test[:5]]
    assert np.allclose(found, expected, atol=1e-2) and model.transform.size == 24


def test_whitened_runs_keep_features_and_base_heads_that_are_trained(tmp_path: Path) -> None:
    text = "epochs: 1\nhead: cosine\nnetworks: [{}, {views: [flip, largest]}, {head: linear}]\n"
    folders = [tmp_path / "1", tmp_path / "2", tmp_path / "3"]
    plain, pictures = features_of_benchmark(built(text, tmp_path), folders, lambda *_: None)
    whitened, _ = features_of_benchmark(built(f"whiten: 0.5\n{text}", tmp_path), folders, lambda *_: None)
    rows = np.searchsorted(pictures.wanted, np.setdiff1d(pictures.base, pictures.kept))
    for view, x in whitened.views.items():
        raw = np.asarray(plain.views[view][:])
        assert np.array_equal(np.asarray(x[:]), raw)
        z = Whitening.fit(raw[rows], plain.labels[rows], 0.5)(raw)
        np.testing.assert_allclose(whitened.whitening[view](raw), z, atol=1e-5)
        means = np.stack([unit(z[rows][plain.labels[rows] == c]).mean(0) for c in range(6)])
        np.testing.assert_allclose(whitened.prototypes[view], means, atol=1e-5)
        own, before = whitened.heads[view], plain.heads[view]
        if view == "network 2: largest":  # none was trained
            assert isinstance(own, CosineHead) and own.whitened and (own.weight == whitened.prototypes[view]).all()
        else:
            assert type(own) is type(before) and not getattr(own, "whitened", False)
            assert (own.weight == before.weight).all()
    whitened.save(tmp_path / "features.npz")
    again = FeatureSet.load(tmp_path / "features.npz")
    tests, read = (one.of(one.test) for one in (whitened, again))
    for view in whitened.views:
        np.testing.assert_allclose(read[view], tests[view], atol=1e-3)
        there, here = again.heads[view].scores(read[view]), whitened.heads[view].scores(tests[view])
        np.testing.assert_allclose(there, here, atol=1e-2)
        assert again.whitening[view].same(whitened.whitening[view])


def test_examples_are_learned_from_more_looks_than_an_answer_takes(tmp_path: Path) -> None:
    text = RUN + "views: [plain, 'rotate-90, largest']\nwhiten: 0.5\n"
    folders = [tmp_path / "work"]
    folders[0].mkdir()
    one, _ = features_of_benchmark(built(text, tmp_path), folders, lambda *_: None)
    both, _ = features_of_benchmark(built(text.replace("[plain, '", "[both, 'both, "), tmp_path), folders, print)
    config = built(text + "learn_from: [flip, plain]\n", tmp_path)  # the mean of both sides
    found, _ = features_of_benchmark(config, folders, lambda *_: None)
    rows = np.arange(len(found.labels))
    names = dict(zip(one.views, both.views, strict=True))
    assert names == {"plain": "both", "rotate-90, largest": "both, rotate-90, largest"}
    seen, _ = found.lesson(rows)
    for view, sides in names.items():
        np.testing.assert_allclose(found.of(rows)[view], one.of(rows)[view], atol=1e-5)
        np.testing.assert_allclose(seen[view], both.of(rows)[sides], atol=1e-5)
        np.testing.assert_allclose(found.prototypes[view], both.prototypes[sides], atol=1e-4)
        assert not np.allclose(seen[view], found.of(rows)[view], atol=1e-3)
    assert not one.learned_from and np.array_equal(one.lesson(rows)[0]["plain"], one.of(rows)["plain"])
    found.save(tmp_path / "features.npz")
    again = FeatureSet.load(tmp_path / "features.npz").redrawn(0, 1)  # with shots that were tests
    (learned, y), (asked, z) = again.lesson(again.shots[0]), again.examples(again.test)
    for view in names:
        for given, labels, every in ((learned, y, seen), (asked, z, found.of(rows))):
            place = [np.abs(every[view] - x).max(1).argmin() for x in given[view]]
            np.testing.assert_allclose(given[view], every[view][place], atol=1e-3)
            assert np.array_equal(found.labels[place], labels)
    result = done(text + "learn_from: [both]\n", tmp_path / "out", "--save-features", tmp_path / "out.npz")
    passes = {name: method["costs"]["passes"] for name, method in result["methods"].items()}
    assert passes == {"prototypes": 1, "geometric": 2, "logistic": 2}  # of an answer
    ready = done(f"methods: [prototypes]\nfeatures: {tmp_path}/out.npz\n", tmp_path / "ready")
    accuracies = [r["methods"]["prototypes"]["sessions"][-1]["accuracy"] for r in (result, ready)]
    assert abs(accuracies[0] - accuracies[1]) < 0.01


def test_settings_of_base_training_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("faverage.vision.train_base", lambda *_, **options: calls.append(options))
    text = "mix: 0.5\nsmoothing: 1e-1\njitter: 0.4\n"
    text += "networks: [{}, {jitter: 0, flip: true, crop: 8, progressive: [8], test_size: 12}]\n"
    config = built(text, tmp_path)
    pictures = load_pictures(config)
    for one in config.each:
        train_on(one, seen_by(one, pictures), pictures.base)
    assert [(call["mix"], call["smoothing"]) for call in calls] == [(0.5, 0.1)] * 2
    assert [call["augment"].jitter for call in calls] == [0.4, 0] and calls[1]["augment"].flip == 0.5
    assert [(list(call["progressive"]), call["transform"].config()["size"]) for call in calls] == [([], 16), ([8], 12)]
    assert pictures.augment.jitter == 0.4
    assert replace(config, test_size=9).base_key() == config.base_key() != replace(config, progressive=(8,)).base_key()
    monkeypatch.chdir(tmp_path)
    places = ("x", str(tmp_path / "x"), f"../{tmp_path.name}/x", str(tmp_path / "y" / ".." / "x"))
    named = [replace(config, data=data, weights=f"{data}/w.pth").base_key() for data in places]
    assert all(key == named[0] for key in named) and named[0] != replace(config, data="y", weights="x/w.pth").base_key()
    keys = {json.dumps(replace(config, **{name: 0.3}).base_key()) for name in ("mix", "smoothing", "jitter")}
    assert len(keys | {json.dumps(config.base_key()), json.dumps(replace(config, start=9).base_key())}) == 5
    fresh = load_pictures(config.each[1])  # as a run with this network alone has them
    assert all(
        bool((getattr(fresh, kind).mean == getattr(seen_by(config.each[1], pictures), kind).mean).all())
        for kind in ("augment", "transform")
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("networks: 2", "networks must be a list of settings, as [{}, {start: 1}], got 2"),
        ("networks: [tiny]", "networks must be a list of settings"),
        ("networks: [{}, {seed: 3}]", "networks: 2: 'seed' is not for one network; these are: backbone, weights"),
        ("networks: [{}, {views: [plain, sideways]}]", "networks: 2: views: unknown view 'sideways'"),
        ("networks: [{}, {views: 2}]", "networks: 2: views must be a list of names, as [plain, rotate-90], got 2"),
        ("networks: [{epochs: ten}, {}]", "networks: 1: epochs must be a whole number of at least 0, got 'ten'"),
        ("networks: [{}, {epochs: 0}]", "networks: 2: epochs: 0 takes a network as its weights are: name some with"),
        ("epochs: 0\nmethods: [cec]", "epochs: 'cec' needs at least 1, it trains its own network"),
        ("head: square", "head must be 'linear' or 'cosine', got 'square'"),
        ("teachers: [{seed: 3}]", "teachers: 1: 'seed' is not for one teacher; these are: backbone, weights"),
        ("networks: [{}, {teachers: [{}, {lr: much}]}]", "networks: 2: teachers: 2: lr must be a number > 0, got"),
        ("soup: [{}, {views: [flip]}]", "soup: 2: 'views' is not for one network of a soup; these are: backbone"),
        ("soup: [{}, {start: 1}]", "soup averages weights that started alike: name those with --weights"),
        ("networks: [{}, {retain: 0.5}]", "networks: 2: retain averages weights that started alike: name those"),
        ("retain: 1", "retain must be a number from 0 to below 1, got 1"),
        ("networks: [{}, {lr: much}]", "networks: 2: lr must be a number > 0, got 'much'"),
        ("networks: [{}, {weights: none.pth}]", "networks: 2: weights: no such file: none.pth"),
        ("networks: [{}, {start: -1}]", "networks: 2: start must be a whole number of at least 0"),
        ("networks: [{}, {start: 0}]", "networks: 2: it is network 1 once more: give it another start"),
        ("networks: [{}, {start: 1}]\nfeatures: f.npz", "networks need images, and --features has none: leave one"),
        ("recipe: best\nfeatures: f.npz", "no such file of features: f.npz"),
        ("recipe: finest", "recipe must be 'shared', 'paper', 'best' or 'balanced', got 'finest'"),
        ("passes: 0", "passes must be a whole number of at least 1, got 0"),
        ("progressive: 48", "progressive must be a list, each a whole number of at least 8 and at most 1024 pixels"),
        (
            "networks: [{}, {progressive: [48, 4]}]",
            "networks: 2: progressive must be a list, each a whole number of at",
        ),
        ("whiten: 0", "whiten must be a number > 0, got 0"),
        ("whiten: 1.5", "whiten must be a number above 0, up to 1, got 1.5"),
        ("whiten: 0.5\nfeatures: f.npz", "whiten needs images, and --features has none: leave one out"),
        ("learn_from: [both]\nfeatures: f.npz", "learn_from needs images, and --features has none: leave one out"),
        ("learn_from: both", "learn_from must be a list of names, as [both], got 'both'"),
        ("learn_from: [1]", "learn_from must be a list of names, as [both], got (1,)"),
        ("learn_from: [both, both]", "learn_from: each view counts once, got both, both"),
        ("learn_from: [sideways]", "learn_from: unknown view 'sideways'"),
        (
            "learn_from: [rotate-90]",
            "learn_from: a view is learned from as it is rotated and pooled itself: name sides",
        ),
        ("test_size: 4", "test_size must be a whole number of at least 8 and at most 1024 pixels, got 4"),
        ("mix: 1.5", "mix must be a number from 0 to 1, got 1.5"),
        ("smoothing: 1", "smoothing must be a number from 0 to below 1, got 1"),
        ("jitter: -0.1", "jitter must be a number >= 0, got -0.1"),
        ("start: one", "start must be a whole number of at least 0"),
    ],
)
def test_refusals(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        built(text + "\n", tmp_path)
    assert words in str(error.value)


def test_a_signed_network_and_one_that_stays_as_it_starts(tmp_path: Path) -> None:
    torch.save(get_backbone("tiny").state_dict(), tmp_path / "tiny.pt")
    text = f"{RUN}weights: {tmp_path}/tiny.pt\nhead: cosine\nsigned: true\n"
    results = done(f"{text}networks: [{{}}, {{signed: false, epochs: 0, views: [flip]}}]\n", tmp_path / "out")
    assert [network["epochs"] for network in results["networks"]] == [1, 0]
    trained, start = (BaseModel.load(file) for file in sorted((tmp_path / "out").glob("work/*/base.safetensors")))
    trained, start = (trained, start) if trained.history["loss"] else (start, trained)
    assert trained.head == start.head == "cosine" and start.history["loss"] == []
    assert (trained.backbone.last_relu, start.backbone.last_relu) == (False, True)
    first = torch.load(tmp_path / "tiny.pt")
    assert all(torch.equal(first[name], tensor) for name, tensor in start.backbone.state_dict().items())
    pictures = load_pictures(built(text, tmp_path))
    rows = np.setdiff1d(pictures.base, pictures.kept)
    seen = unit(extract_features(start.backbone, pictures.images, rows, transform=start.transform, device="cpu"))
    assert np.allclose(start.head_weight[2], seen[pictures.labels[rows] == 2].mean(0), atol=1e-5)
    alone = [recipes.recipe_of("cub200", "best", weights=given)["networks"] for given in (True, False)]
    assert [len(networks) for networks in alone] == [3, 2]


def test_a_network_with_teachers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teachers are trained once, for the run and for whom they teach, and stay where passes are few."""
    epochs: list[int] = []
    real = Loop.epoch
    monkeypatch.setattr(EPOCH, lambda self, *given, **more: (epochs.append(1), real(self, *given, **more))[1])
    text = RUN + "networks:\n  - {teachers: [{rotations: true}, {start: 1}]}\n  - {rotations: true, views: [both]}\n"
    found = done(text, tmp_path / "all")
    assert len(epochs) == 3 and len(found["networks"]) == 2
    files = sorted((tmp_path / "all" / "work").glob("*/base-checkpoint.safetensors"))
    assert len(files) == 3
    few = done(text, tmp_path / "all", "--passes", "1")
    assert len(epochs) == 3 and "networks" not in few
    first = built(text, tmp_path).each[0]
    assert [one.rotations for one in first.taught] == [True, False] and first.taught[1].start == 1
    assert first.base_key() != replace(first, teachers=()).base_key()


def test_a_soup_is_the_mean_of_networks_that_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []
    real = Loop.epoch
    monkeypatch.setattr(EPOCH, lambda self, *given, **more: (epochs.append(1), real(self, *given, **more))[1])
    first = get_backbone("tiny").state_dict()
    torch.save(first, tmp_path / "tiny.pt")
    text = f"{RUN}head: cosine\nweights: {tmp_path}/tiny.pt\n"
    soup = "{soup: [{}, {start: 1}], retain: 0.5, views: [plain, rotate-90]}"
    found = done(f"{text}networks: [{soup}, {{}}, {{start: 1}}]\n", tmp_path / "out")
    assert len(epochs) == 2 and [network["epochs"] for network in found["networks"]] == [1, 1, 1]
    models = [BaseModel.load(file) for file in (tmp_path / "out").glob("work/*/base.safetensors")]
    (mean,) = (model for model in models if model.config["head"].get("means"))
    parts = [model.backbone.state_dict() for model in models if model is not mean]
    assert len(parts) == 2 and len(mean.history["loss"]) == 2
    for name, tensor in mean.backbone.state_dict().items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, 0.5 * first[name] + 0.25 * (parts[0][name] + parts[1][name]), atol=1e-6)
    done(f"{text}retain: 0.3\n", tmp_path / "out")  # of a network that is there
    assert len(epochs) == 2
    done(f"{text}epochs: 2\nretain: 0.3\n", tmp_path / "out")
    assert len(epochs) == 4


def test_the_heads_of_a_soup_are_the_prototypes_of_its_views(tmp_path: Path) -> None:
    torch.save(get_backbone("tiny").state_dict(), tmp_path / "tiny.pt")
    config = built(f"{RUN}weights: {tmp_path}/tiny.pt\nretain: 0.5\nviews: [plain, rotate-90]\n", tmp_path)
    (tmp_path / "work" / "own").mkdir(parents=True)
    features, _ = features_of_benchmark(config, [tmp_path / "work" / "own"], lambda *_: None)
    assert all(np.array_equal(head.weight, features.prototypes[view]) for view, head in features.heads.items())


def test_soups_that_are_none(tmp_path: Path) -> None:
    torch.save(get_backbone("tiny").state_dict(), tmp_path / "tiny.pt")
    text = f"weights: {tmp_path}/tiny.pt\nsoup: "
    with pytest.raises(ConfigError, match="soup: 2: it is network 1 once more: give it another start"):
        built(f"{text}[{{}}, {{}}]\n", tmp_path)
    with pytest.raises(ConfigError, match="soup: 1: its networks have one backbone and start from the same weights"):
        built(f"{text}[{{backbone: resnet18_small}}]\n", tmp_path)


def test_few_passes_of_photos_are_those_of_a_soup(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").touch()
    given = {"recipe": "best", "data": str(tmp_path), "passes": 1, "weights": str(tmp_path / "weights.pth")}
    one = RunConfig.build("cub200", None, given)
    assert one.view_names == ["plain", "largest", "covariance", "texture", "parts"]
    assert [part.start for part in one.averaged] == [0, 1, 0, 0, 1]
    assert one.looks[5] == "both" and "both, zoom-0.85, largest" in one.looks
    two = RunConfig.build("cub200", None, {**given, "passes": 2})
    assert two.view_names == ["both", "both, largest", "both, covariance", "both, texture", "both, parts"]
    assert not RunConfig.build("cub200", None, {**given, "weights": None}).averaged


def test_a_budget_of_passes(tmp_path: Path) -> None:
    text = "views: [both, rotate-90]\nnetworks: [{}, {start: 1, views: [both]}, {start: 2, views: [plain]}]\n"
    names = {n: built(f"{text}passes: {n}\n", tmp_path).view_names for n in (1, 2, 4, 5, 6, 9)}
    assert names[1] == ["plain"] and names[2] == ["both"]  # one network alone is the run's own
    assert names[4] == ["network 1: both", "network 2: both"]
    assert names[5] == [*names[4], "network 3: plain"]
    assert names[6] == names[9] == built(text, tmp_path).view_names
    file = ["network 1: both", "network 1: rotate-90", "network 2: both"]
    assert within([file], 4, ready=True) == [[file[0], file[2]]] and within([file], 5, ready=True) == [file]
    with pytest.raises(ConfigError, match="passes: a view of these features takes at least 2, got 1"):
        within([file[:1]], 1, ready=True)


def test_the_largest_values_are_a_view_without_a_pass(tmp_path: Path) -> None:
    text = RUN + "views: [both, 'largest, both']\n"
    found = done(text, tmp_path / "out")
    assert [method["costs"]["passes"] for method in found["methods"].values()] == [2, 2, 2]
    assert built(text + "passes: 1\n", tmp_path).view_names == ["plain", "largest"]


def test_covariance_and_parts_are_views_without_a_pass(tmp_path: Path) -> None:
    text = RUN + "views: [both, 'both, covariance', plain, parts]\nwhiten: 0.5\nlearn_from: [both]\n"
    file = tmp_path / "features.npz"
    found = done(text, tmp_path / "out", "--save-features", file)
    assert [method["costs"]["passes"] for method in found["methods"].values()] == [2, 2, 2]
    features = FeatureSet.load(file)
    widths = {view: (x.shape[1], features.prototypes[view].shape[1]) for view, x in features.views.items()}
    assert widths == {"both": (128, 128), "both, covariance": (2080, 2080), "plain": (128, 128), "parts": (512, 512)}
    again = done(text + "calibration: 0.1\n", tmp_path / "out")
    assert again["base"]["images_per_second"] == found["base"]["images_per_second"]  # it was not trained again
    assert built(text + "passes: 1\n", tmp_path).view_names == ["plain", "covariance", "parts"]


@pytest.mark.parametrize("view", ["largest", "covariance", "texture", "parts"])
def test_the_head_of_other_values_are_the_prototypes(tmp_path: Path, view: str) -> None:
    config = built(RUN + f"rotations: true\nviews: ['rotate-90, both', '{view}, rotate-90']\n", tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    features, _ = features_of_benchmark(config, [folder], lambda *_: None)
    model = BaseModel.load(folder / "base.safetensors")
    own, other = features.heads.values()
    assert isinstance(own, CosineHead) and isinstance(other, CosineHead)
    assert np.array_equal(own.weight, rotation_heads(model)[1])
    assert np.array_equal(other.weight, features.prototypes[f"{view}, rotate-90"])


def test_few_passes_of_the_recipe_best_are_those_of_a_student(tmp_path: Path) -> None:
    given = {"recipe": "best", "data": str(tmp_path), "passes": 1}
    one = RunConfig.build("mini-imagenet", None, given)
    assert one.view_names == ["plain", "largest"] and [t.mix for t in one.taught] == [0.0, 0.5]
    assert all(t.epochs < one.epochs for t in one.taught)
    assert RunConfig.build("mini-imagenet", None, {**given, "passes": 2}).view_names == ["both", "largest"]
    assert not RunConfig.build("mini-imagenet", None, {**given, "passes": 4}).each[0].taught


def test_weights_that_are_none_say_whose_they_are(tmp_path: Path) -> None:
    weights, file = tmp_path / "weights.pth", tmp_path / "run.yaml"
    weights.write_text("none")
    file.write_text(f"{RUN}networks: [{{}}, {{weights: {weights}}}]\n")
    result = command("digits", "--config", file, "--out", tmp_path / "out")
    assert result.exit_code == 2 and f"networks: 2: weights: {weights} is no checkpoint" in said(result)


def test_settings_above_the_networks_count_for_all(tmp_path: Path) -> None:
    text = "lr: 0.1\nbatch_size: 50\nnetworks: [{epochs: 3}, {epochs: 4, batch_size: 25}, {batch_size: 25, lr: 1}]\n"
    config = built(text + "epochs: 2\n", tmp_path)
    assert [(one.epochs, one.lr) for one in config.each] == [(3, 0.1), (4, 0.05), (2, 1)]
    assert [one.epochs for one in built(text, tmp_path, epochs=9).each] == [9, 9, 9]
    only = built("networks: [{epochs: 3, views: [flip]}]\n", tmp_path)
    assert (only.epochs, only.views, only.networks) == (3, ("flip",), ())
    assert built("networks: []\n", tmp_path) == built("seed: 0\n", tmp_path)
    boards = [one.tensorboard for one in replace(config, tensorboard="board").each]
    assert boards == [str(Path("board") / f"network-{k}") for k in (1, 2, 3)] and only.each[0].tensorboard is None


def test_the_recipe_best_lies_under_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, best = built("seed: 0\n", tmp_path), built("recipe: best\n", tmp_path)
    assert best == built("seed: 0\n", tmp_path, recipe="best") and best != replace(plain, recipe="best")
    assert best.epochs == recipes.BEST.get("epochs", plain.epochs) and best.dataset == "digits"
    assert built("recipe: balanced\n", tmp_path) == replace(best, recipe="balanced", **recipes.BALANCED)
    assert set(recipes.BEST) <= set(best.to_dict()) and all(
        set(n) <= set(OF_NETWORKS) for n in recipes.BEST.get("networks", [])
    )
    monkeypatch.setattr(
        recipes, "BEST", {"epochs": 5, "rotations": True, "networks": [{}, {"rotations": False, "epochs": 6}]}
    )
    best = built("recipe: best\nrotations: false\n", tmp_path)
    assert [(one.epochs, one.rotations, one.start) for one in best.each] == [(5, False, 0), (6, False, 0)]
    assert [one.epochs for one in built("recipe: best\nrotations: false\n", tmp_path, epochs=2).each] == [2, 2]
    assert built("recipe: best\nnetworks: []\n", tmp_path).many
    monkeypatch.setattr(recipes, "BEST_OF", {"digits": {"epochs": 8}, "cub200": {"epochs": 9}})
    assert built("recipe: best\n", tmp_path).epochs == 8 and built("seed: 0\n", tmp_path) == plain
    for name in ("lucir", "cec"):
        assert rival_recipe(name, replace(plain, recipe="best")) == rival_recipe(name, plain)
