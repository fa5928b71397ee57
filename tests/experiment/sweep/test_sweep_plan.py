"""Sweeps before and after they run: what is planned once, the held-out loss, the best setting, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.experiment import ConfigError, RunConfig
from faverage.experiment.pictures import Pictures, load_pictures
from faverage.experiment.sweep import Plan, held_out, work
from faverage.experiment.sweep.results import best_of
from faverage.experiment.sweep.work import mark, read_shared, write_shared
from faverage.features import FeatureSet
from faverage.fscil import CosineHead, FewShotLearner, Whitening
from faverage.rivals import RIVALS
from helpers_run import ready
from helpers_sweep import SMALL, command, said, times, written


def test_what_runs_share_is_planned_once(tmp_path: Path) -> None:
    text = SMALL + "over:\n  weight_decay: [0.1, 0]\n  stand_ins: [20, 50]\n"
    plan = Plan.read(written(tmp_path, text.replace("arithmetic", "lucir")))
    assert len(plan.cells) == 2 * 2 * 3 and all(len(cell.runs) == 4 for cell in plan.cells)
    bases = [task for task in plan.tasks.values() if task.kind == "base"]
    rivals = [task for task in plan.tasks.values() if task.kind == "rival"]
    assert len(bases) == len(rivals) == 2 * 2  # by seed and weight_decay: stand_ins come after the base session
    keys = {cell.method: set() for cell in plan.cells}
    for cell in plan.cells:
        keys[cell.method] |= set(cell.runs.values())
    assert len(keys["log-pool"]) == 16 and len(keys["lucir"]) == 8  # a rival does not read stand_ins
    again = Plan.read(written(tmp_path, text.replace("arithmetic", "lucir")))
    assert list(again.tasks) == list(plan.tasks)


@pytest.mark.slow
def test_draws_of_a_rival_share_its_base_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RIVALS["lucir"].recipes["shared/digits"]
    monkeypatch.setitem(recipe, "increment", {**recipe["increment"], "epochs": 2})
    plan, token = Plan.read(written(tmp_path, "epochs: 1\nmethods: [lucir]\ndraws: 2\n")), mark(tmp_path)
    base, *runs = plan.tasks.values()
    assert base.kind == "rival" and not work.carry_out(base, tmp_path, token).error
    trained = times(tmp_path / "work")
    found = [work.carry_out(run, tmp_path, token) for run in runs]
    after = times(tmp_path / "work")
    assert len(found) == 2 and {file: after[file] for file in trained} == trained
    assert all(outcome.record and outcome.record["held_out_loss"] is None for outcome in found)
    assert found[0].record["sessions"][1]["f1"] != found[1].record["sessions"][1]["f1"]


@pytest.mark.slow
def test_the_test_images_have_no_part_in_the_held_out_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pixels and shuffled labels of all tests: F1 changes, the loss does not by a bit."""

    def noisy(*of: Any) -> Pictures:
        pictures, rng = load_pictures(*of), np.random.default_rng(5)
        images, labels, test = pictures.images.copy(), pictures.labels.copy(), pictures.test
        images[test] = rng.integers(0, 256, images[test].shape, dtype=np.uint8)
        labels[test] = rng.permutation(labels[test])
        return replace(pictures, images=images, labels=labels)

    plan = Plan.read(written(tmp_path, "epochs: 1\nmethods: [prototypes, weighted-average]\ndraws: 2\n"))
    found = []
    for name in ("real", "noise"):
        out = tmp_path / name
        out.mkdir()
        token = mark(out)
        if name == "noise":
            monkeypatch.setattr("faverage.experiment.base.load_pictures", noisy)
        outcomes = [work.carry_out(task, out, token) for task in plan.tasks.values()]
        assert not any(outcome.error for outcome in outcomes)
        found.append([outcome.record for outcome in outcomes if outcome.record])
    for real, noise in zip(*found, strict=True):
        assert real["held_out_loss"] == noise["held_out_loss"] > 0
        assert real["sessions"][-1]["f1"] > noise["sessions"][-1]["f1"] + 0.3


@pytest.fixture(scope="module")
def based(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureSet, RunConfig]:
    out = tmp_path_factory.mktemp("based")
    base = next(iter(Plan.read(written(out)).tasks.values()))
    assert not work.carry_out(base, out, mark(out)).error
    features = read_shared(out / "work" / base.folder, True)
    assert features is not None
    return features, base.config


def test_what_is_held_out_is_not_learned_from(
    based: tuple[FeatureSet, RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    features, config = based
    x = features.views["plain"]
    features = replace(features, learned_from={"plain": 2 * x})
    seen: dict[str, Any] = {}

    class Seen(FewShotLearner):
        def predict_proba(self, X: Any) -> Any:
            seen["held"], seen["known"] = X["plain"], self.known
            return super().predict_proba(X)

    monkeypatch.setattr(held_out, "learner_of", lambda method, *_: Seen(fuser=method))
    loss = held_out.held_out_loss("prototypes", features, config, 0)
    assert loss is not None and loss > 0
    known = seen["known"]
    learned = known.views["plain"] / 2
    assert np.unique(known.labels[known.shot], return_counts=True)[1].tolist() == [4, 4, 4, 4]
    together = np.concatenate([learned, seen["held"]])
    every = features.of(np.concatenate([features.memory, *features.shots]))["plain"]
    assert len(together) == len(every)  # nothing is lost, nothing is twice
    assert np.array_equal(together[np.lexsort(together.T)], every[np.lexsort(every.T)])
    _, counts = np.unique(features.labels[features.memory], return_counts=True)
    assert len(seen["held"]) == sum(count // 3 for count in counts) + 4


def test_base_heads_of_every_kind_come_back_from_disk(based: tuple[FeatureSet, RunConfig], tmp_path: Path) -> None:
    features, _ = based
    (linear,), x, means = features.heads.values(), features.views["plain"], features.prototypes["plain"]
    cosine = CosineHead(linear.weight + 1, 7.5)
    whitened, d = replace(cosine, whitened=True), x.shape[1]
    some = {"plain": linear, "flip": cosine, "rotate-90": whitened}
    for heads in ({"plain": linear}, some):
        views, prototypes = dict.fromkeys(heads, x), dict.fromkeys(heads, means)
        maps = {view: Whitening(np.full(d, v), (v + 1) * np.eye(d)) for v, view in enumerate(heads) if heads is some}
        own = {"views": views, "prototypes": prototypes, "heads": heads, "whitening": maps}
        write_shared(replace(features, **own), tmp_path, False)
        found = read_shared(tmp_path, False)
        assert found is not None and {v: type(h) for v, h in found.heads.items()} == {
            v: type(h) for v, h in heads.items()
        }
        assert found.whitening.keys() == maps.keys() and all(found.whitening[v].same(maps[v]) for v in maps)
        assert found.sessions == features.sessions and not found.learned_from
        for a, b in zip((found.test, *found.shots), (features.test, *features.shots), strict=True):
            assert np.array_equal(found.labels[a], features.labels[b])
            assert all(np.array_equal(seen, features.of(b)["plain"]) for seen in found.of(a).values())
        write_shared(replace(features, **own, learned_from={view: x + 1 for view in heads}), tmp_path, False)
        apart = read_shared(tmp_path, False)
        assert apart is not None
        for asked, learned in zip(apart.of(apart.test).values(), apart.lesson(apart.test)[0].values(), strict=True):
            assert np.array_equal(learned, asked + 1) and np.array_equal(asked, features.of(features.test)["plain"])
    assert np.array_equal(found.heads["plain"].bias, linear.bias)
    assert np.array_equal(found.heads["flip"].weight, cosine.weight) and found.heads["flip"].scale == 7.5
    assert not found.heads["flip"].whitened and found.heads["rotate-90"].whitened
    for file in tmp_path.glob("shared*"):
        whole = file.read_bytes()
        for broken in (whole[:-500], whole[:-500] + b"edited" + whole[-494:]):
            file.write_bytes(broken)
            with pytest.warns(UserWarning, match="is broken; the features are made again"):
                assert read_shared(tmp_path, False) is None
        file.write_bytes(whole)
    assert read_shared(tmp_path, False) is not None


def test_keys_follow_code_and_the_files_that_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faverage.experiment import code

    real, edited = code.code_fingerprint, set[str]()
    monkeypatch.setattr(code, "code_fingerprint", lambda *names: real(*names) + str(sorted(edited & set(names))))

    def keys(text: str = "dataset: digits\nmethods: [vote, log-pool]\n") -> dict[str, str]:
        tasks = Plan.read(written(tmp_path, text)).tasks.values()
        return {task.method if task.kind == "run" else "base": task.key for task in tasks}

    before = keys()
    for module, changed in (
        ("faverage.fusion.rules", {"vote"}),
        ("faverage.experiment.sweep.held_out", {"vote", "log-pool"}),
        ("faverage.vision.training", {"vote", "log-pool", "base"}),
    ):
        edited.clear()
        edited.add(module)
        assert {name for name, key in keys().items() if key != before[name]} == changed
    text = f"dataset: mini-imagenet\nmethods: [vote]\nfeatures: {ready(tmp_path / 'f.npz')}\n"
    first = keys(text)
    ready(tmp_path / "f.npz", base_head_bias=np.ones(4))
    assert keys(text) != first


def test_no_held_out_loss_from_one_shot(based: tuple[FeatureSet, RunConfig]) -> None:
    features, config = based
    first = tuple(
        np.array([rows[features.labels[rows] == c][0] for c in np.unique(features.labels[rows])])
        for rows in features.shots
    )
    one = replace(features, shots=first)
    assert held_out.held_out_loss("prototypes", one, config, 0) is None


def test_the_best_is_chosen_by_loss_among_whole_cells() -> None:
    def cell(method: str, loss: float | None, f1: float, done: int = 2) -> dict[str, Any]:
        mean = None if loss is None else {"mean": loss, "std": 0.1}
        return {"options": {}, "method": method, "runs": 2, "done": done, "held_out_loss": mean, "f1": f1}

    cells = [cell("a", 0.5, 0.9), cell("b", 0.4, 0.1), cell("c", 0.1, 0.9, done=1), cell("lucir", None, 1.0)]
    best = best_of(cells)
    assert best is not None and best["method"] == "b" and "f1" not in best
    assert best_of(cells[2:]) is None


WRONG = {
    "a: [": "not a YAML file",
    "- a list": "settings as 'name: value'",
    "colour: red": "unknown setting 'colour'",
    "methods: [magic]": "unknown method 'magic'",
    "epochs:": "epochs has no value",
    "devices: 2": "leave out devices and nodes",
    "over: 3": "over must hold lists by option",
    "over: {colour: [red]}": "unknown option 'colour' under over; it can vary: area, backbone, ",
    "over: {epochs: []}": "over: epochs must be a list of values, and not an empty one",
    "over: {epochs: 3}": "over: epochs must be a list of values",
    "over: {epochs: [1, 1]}": "over: epochs has 1 more than once",
    "over: {epochs: [1, none]}": "epochs must be a whole number of at least 0, got 'none'",
    "over: {seed: [1]}": "over cannot vary 'seed'",
    "over: {dataset: [digits]}": "a sweep is of one data set",
    "epochs: 1\nover: {epochs: [1]}": "'epochs' stands under over and beside it",
}


@pytest.mark.parametrize("text", WRONG)
def test_bad_files_are_refused(text: str, tmp_path: Path) -> None:
    result = command(written(tmp_path, text), "--out", tmp_path / "out")
    assert result.exit_code == 2 and WRONG[text] in said(result), said(result)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "slurm"], "unknown engine 'slurm'; known are: loky, dask"),
        (["--engine", "dask"], "--engine dask needs --scheduler ADDRESS"),
        (["--scheduler", "tcp://localhost:1"], "add --engine dask"),
        (["--engine", "dask", "--scheduler", "tcp://localhost:1", "--jobs", "2"], "leave it out"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--retries", "-1"], "--retries must be at least 0"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = command(written(tmp_path), "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2 and words in said(result)


def test_missing_files_and_data_are_refused_before_any_run(tmp_path: Path) -> None:
    result = command(tmp_path / "none.yaml")
    assert result.exit_code == 2 and "no such file" in said(result)
    result = command(written(tmp_path, f"dataset: cub200\ndata: {tmp_path}\n"), "--out", tmp_path / "out")
    assert result.exit_code == 2 and "CUB_200_2011" in said(result)


def test_null_in_a_list_is_a_value(tmp_path: Path) -> None:
    plan = Plan.read(written(tmp_path, "methods: [prototypes]\nover: {temperature: [null, 8]}\n"))
    assert [task.config.temperature for task in plan.runs] == [None, 8]
    with pytest.raises(ConfigError, match="epochs has no value"):
        Plan.read(written(tmp_path, "over: {epochs: [null, 8]}\n"))
