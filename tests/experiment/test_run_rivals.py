"""Rivals and repeats by the command: one table, one report; stopped and started again; what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn import datasets

from faverage.errors import ConfigError
from faverage.experiment import RunConfig
from faverage.experiment.rivals import rival_recipe
from faverage.rivals import RIVALS, Rival, get_rival
from faverage.vision import get_backbone
from helpers_run import command, few_digits, ready, said

pytestmark = pytest.mark.usefixtures("own_cache")

BOTH = ("digits", "--epochs", 2, "--jobs", 1)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch for every stage after the base session."""
    for cls in RIVALS.values():
        recipe = {key: dict(value) if isinstance(value, dict) else value for key, value in digits_recipe(cls).items()}
        for section, settings in recipe.items():
            if isinstance(settings, dict) and "epochs" in settings:
                recipe[section] = {**settings, "epochs": 6 if section == "base" else 1}
        monkeypatch.setitem(cls.recipes, "shared/digits", recipe)


def digits_recipe(cls: type[Rival]) -> dict[str, Any]:
    shared = {key: value for key, value in cls.recipes["shared"].items() if isinstance(value, dict)}
    own = cls.recipes["shared/digits"]
    return {**{k: {**v, **own.get(k, {})} for k, v in shared.items()}, **{k: own[k] for k in own if k not in shared}}


def numbers(out: Path) -> dict[str, Any]:
    methods = json.loads((out / "results.json").read_text())["methods"]
    return {name: [[s["f1"], s["base"], s["new"]] for s in m["sessions"]] for name, m in methods.items()}


@pytest.mark.slow
def test_all_beside_a_fuser_in_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_digits", lambda: few_digits(2))  # all learn something
    names = [*RIVALS, "prototypes"]
    result = command(*BOTH, "--methods", ",".join(names), "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found["methods"]) == names and len(RIVALS) == 9
    for name in RIVALS:
        method = found["methods"][name]
        assert len(method["sessions"]) == 3 and method["sessions"][0]["base"] > 0.3
        assert method["base"]["trainings"][f"{name}-base"]["epochs"] == 6
        assert f"| {name} |" in (tmp_path / "table.md").read_text()
        assert f">{name}<" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "moment"), [("lucir", "learn_session"), ("lucir", "predict"), ("topic", "predict")])
def test_a_rival_stopped_between_sessions_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    arguments = (*BOTH, "--methods", name)
    assert command(*arguments, "--out", tmp_path / "whole").exit_code == 0
    real, calls = getattr(Rival, moment), []

    def stop(self: Rival, *args: Any) -> Any:
        calls.append(moment)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Rival, moment, stop)
        assert command(*arguments, "--out", tmp_path / "cut").exit_code == 130
    assert not (tmp_path / "cut" / "results.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Rival, "fit_base", lambda *_: pytest.fail("the base session was learned again"))
        assert command(*arguments, "--out", tmp_path / "cut").exit_code == 0
    assert numbers(tmp_path / "cut") == numbers(tmp_path / "whole")


@pytest.mark.slow
def test_broken_states_of_a_rival_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (*BOTH, "--methods", "lucir", "--out", tmp_path)
    assert command(*arguments).exit_code == 0
    before = numbers(tmp_path)
    (folder,) = (path for path in (tmp_path / "work").glob("*/lucir-*") if path.is_dir())
    (result,) = (tmp_path / "work").glob("*/lucir-*.json")
    damages = [("base.json", None), ("base.safetensors", b"no"), ("draw-0.json", b"[" * 100_000)]
    for name, content in damages:
        file = folder / name
        data = file.read_bytes()
        file.write_bytes(data.replace(b"0.", b"0.9") if content is None else content)
        result.unlink()
        if name == "base.safetensors":
            (folder / "draw-0.json").unlink()
        again = command(*arguments)
        words = "is broken" if name.endswith("json") else "cannot be used"
        assert again.exit_code == 0 and name in said(again) and words in said(again), name
        assert numbers(tmp_path) == before, name


@pytest.mark.slow
def test_seeds_and_draws_give_means_spreads_and_comparisons(tmp_path: Path) -> None:
    arguments = (*BOTH, "--methods", "prototypes,arithmetic", "--seeds", "0,1", "--draws", 2)
    result = command(*arguments, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results.json").read_text())
    assert [(r["seed"], r["draw"]) for r in found["repeats"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    each = [r["methods"]["prototypes"]["sessions"][-1]["f1"] for r in found["repeats"]]
    assert len(set(each)) == 4
    method = found["methods"]["prototypes"]
    assert method["sessions"][-1]["f1"] == pytest.approx(np.mean(each))
    assert method["spread"][-1]["f1"] == pytest.approx(np.std(each, ddof=1))
    assert [c["method"] for c in found["comparisons"]] == ["prototypes", "prototypes"]
    table, page = (tmp_path / "table.md").read_text(), (tmp_path / "report.html").read_text()
    assert "seeds 0, 1, 2 draws each" in table and " ± " in table and "paired over repeats" in table
    assert "arithmetic against the others" in page and "Fresh draws of the shots are from training examples" in page
    assert (tmp_path / "table.csv").read_text().startswith("seed,order,draw,method,session,")
    one = command(*BOTH, "--methods", "prototypes,arithmetic", "--seed", 1, "--out", tmp_path / "one")
    assert one.exit_code == 0
    alone = numbers(tmp_path / "one")["prototypes"][-1][0]
    assert alone == found["repeats"][2]["methods"]["prototypes"]["sessions"][-1]["f1"]


def test_recipes_shared_and_paper() -> None:
    shared = RunConfig.build("mini-imagenet", None, {})
    recipe, own = rival_recipe("fact", shared)
    assert recipe["base"]["epochs"] == 100 and own == {}
    paper = RunConfig.build("mini-imagenet", None, {"recipe": "paper"})
    recipe, own = rival_recipe("fact", paper)
    assert recipe["base"]["epochs"] == 1000 and own["backbone"] == "resnet18_large"
    fewer = RunConfig.build("mini-imagenet", None, {"recipe": "paper", "epochs": 200})
    assert rival_recipe("fact", fewer)[0]["base"]["epochs"] == 200
    assert rival_recipe("sppr", shared)[0]["base"].get("momentum") == 0  # its own, with the shared epochs


def test_base_settings_of_the_run_reach_every_rival() -> None:
    config = RunConfig.build("cifar100", None, {"epochs": 7})
    for name in RIVALS:
        assert rival_recipe(name, config)[0]["base"]["epochs"] == 7, name
        assert set(rival_recipe(name, config)[0]) == set(get_rival(name).recipes["shared"])


def test_every_experiment_of_the_paper_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file: table9") as unknown:
        RunConfig.build(None, Path("table9"), {})
    names = str(unknown.value).partition("with faverage come: ")[2].split(", ")
    names.remove("cub200-cpu")
    with pytest.raises(ConfigError, match="name those with --weights"):
        RunConfig.build(None, Path("cub200-cpu"), {})
    (tmp_path / "weights.pth").touch()
    assert RunConfig.build(None, Path("cub200-cpu"), {"weights": str(tmp_path / "weights.pth")}).each[0].averaged
    found = {name: RunConfig.build(None, Path(name), {}) for name in names}
    assert {"table3", "table4", "table5"} <= found.keys()
    assert RunConfig.build(None, Path("experiments/table4.yaml"), {}) == found["table4"]
    assert found["table3"].methods == ("no-fine-tuning", "fact", "afa-paper", "afa")
    assert set(RIVALS) < set(found["table4"].methods) and found["table4"].dataset == "mini-imagenet"


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    features = ready(tmp_path / "f.npz")
    for arguments, words in [
        (("--seeds", "0,x"), "seeds must be whole numbers"),
        (("--seeds", "-1"), "seeds must be whole numbers"),
        (("--draws", 0), "draws must be a whole number of at least 1"),
        (("--class-orders", 0), "class_orders must be a whole number of at least 1"),
        (("--recipe", "mine"), "recipe must be 'shared', 'paper', 'best' or 'balanced', got 'mine'"),
        (("--methods", "icarl"), "unknown method 'icarl'"),
        (("--methods", "fact", "--features", "none.npz"), "no such file of features: none.npz"),
        (("--methods", "fact", "--features", features), "'fact' trains its own network and needs images"),
    ]:
        result = command("digits", *arguments, "--out", tmp_path)
        assert result.exit_code == 2 and words in said(result), result.output


def test_every_rival_starts_from_given_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = get_backbone("tiny")
    save_file(start.state_dict(), tmp_path / "start.safetensors")
    images, labels = np.zeros((4, 16, 16, 3), np.uint8), [0, 0, 1, 1]
    for name, cls in RIVALS.items():
        monkeypatch.setattr(cls, "_fit", lambda *_: None)
        rival = cls("tiny", weights=tmp_path / "start.safetensors").fit_base(images, labels)
        found = rival.net.backbone.state_dict()
        assert all(torch.equal(found[key], value) for key, value in start.state_dict().items()), name


@pytest.mark.slow
def test_a_run_gives_its_weights_to_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    fit = RIVALS["fact"].fit_base
    monkeypatch.setattr(RIVALS["fact"], "fit_base", lambda self, *of: (seen.append(self.weights), fit(self, *of))[1])
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_file(get_backbone("tiny").state_dict(), tmp_path / f"{seed}.safetensors")
        chosen = ("--weights", tmp_path / f"{seed}.safetensors")
        result = command(*BOTH, "--methods", "fact", *chosen, "--out", tmp_path / "run")
        assert result.exit_code == 0, result.output
    assert seen == [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]  # the second run did not take the first's
    save_file(get_backbone("resnet18_small").state_dict(), tmp_path / "other.safetensors")
    result = command(*BOTH, "--methods", "fact", "--weights", tmp_path / "other.safetensors", "--out", tmp_path / "no")
    assert result.exit_code == 2 and "does not fit this TinyNet" in said(result)
