"""Learners on disk: every kind comes back the same; what is broken, of another version or no learner is refused."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.fscil import CosineHead, FewShotLearner
from faverage.fscil.files import pack, unpack
from faverage.fusion import get_fuser
from faverage.storage import read_tensors, write_tensors
from helpers_model import mutated

OLD = Path(__file__).parent / "data" / "learner_0.1"  # written by version 0.1: three base classes, then two and one
D = 8
CENTRES = np.abs(np.random.default_rng(1).normal(size=(6, D))) * 3


def examples(classes: list[int], n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat(classes, n)
    return np.abs(CENTRES[y] + np.random.default_rng(seed).normal(size=(len(y), D))).astype(np.float32), y


def views(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"first, plain": x, "second": x[:, ::-1][:, :5].copy()}


def learner_of(kind: str) -> FewShotLearner:
    x, y = examples([0, 1, 2], 30)
    if kind == "nothing":
        return FewShotLearner().learn_session(*examples([0, 1], 4)).learn_session(*examples([2], 1, 3))
    if kind == "one class":
        return FewShotLearner().learn_session(*examples([4], 3))
    if kind == "base alone":
        return FewShotLearner().fit_base(x, y)
    if kind == "views":
        shots, labels = examples([3, 4], 5, 1)
        return FewShotLearner(ridge=0.5).fit_base(views(x), y).learn_session(views(shots), labels)
    if kind == "cosine":
        learner = FewShotLearner(seed=3).fit_base(x, y, head=CosineHead(CENTRES[:3].astype(np.float32), 9.0))
        return learner.learn_session(*examples([3, 1], 4, 1)).forget(0).rename(2, 7)
    fuser = FewShotLearner(fuser=kind, fuser_options={"epochs": 2} if kind == "afa-paper" else None)
    return fuser.fit_base(x, y).learn_session(*examples([3], 5, 1)).learn_session(*examples([4, 5, 2], 2, 2))


KINDS = ("nothing", "one class", "base alone", "views", "cosine", "afa", "afa-paper", "prototypes", "vote", "log-pool")


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_comes_back_the_same(tmp_path: Path, kind: str) -> None:
    learner = learner_of(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = FewShotLearner.load(learner.save(tmp_path / "learner"))
    x = examples([0, 1, 2, 3, 4, 5], 4, 9)[0]
    given: Any = views(x) if kind == "views" else x
    assert np.array_equal(again.predict_proba(given), learner.predict_proba(given))
    assert np.array_equal(again.familiarity(given), learner.familiarity(given))
    assert again.sessions == learner.sessions and again.members.names == learner.members.names
    more: Any = examples([0, 5], 2, 11)[0]
    more = views(more) if kind == "views" else more
    labels = ["new", "new", "newer", "newer"]
    for one in (learner, again):
        one.learn_session(more, labels)
    assert np.allclose(again.predict_proba(given), learner.predict_proba(given), atol=1e-6)
    assert {file.suffix for file in (tmp_path / "learner").iterdir()} == {".safetensors"}


def test_saving_replaces_the_folder_whole(tmp_path: Path) -> None:
    folder = learner_of("afa").save(tmp_path / "learner")
    (folder / "notes").write_text("of the one before")
    learner_of("prototypes").save(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["learner.safetensors"]
    assert [place.name for place in tmp_path.iterdir()] == ["learner"]


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="knows a class"):
        FewShotLearner().save(tmp_path / "x")
    with pytest.raises(ValueError, match="text or numbers"):
        FewShotLearner().learn_session(np.eye(2, 3), np.array([1j, 2j])).save(tmp_path / "x")
    with pytest.raises(ValueError, match="a fuser object cannot be saved"):
        FewShotLearner(fuser=get_fuser("vote")).learn_session(*examples([0, 1], 2)).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


# The version before ---------------------------------------------------------------------------------------------------


def test_a_learner_of_the_version_before_is_read(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"written by version 0\.1\.0: its fuser was fitted again") as seen:
        learner = FewShotLearner.load(OLD)
    assert len(seen) == 1
    assert learner.sessions == [["a", "b", "c"], ["d", "e"], ["f"]]
    assert learner.members.names == ["base head", "prototypes", "ridge"] and learner.fitted is not None
    shots = learner.known.labels[learner.known.shot]
    assert np.bincount(shots).tolist() == [0, 0, 0, 3, 3, 2] and (~learner.known.shot).sum() == 12
    x, y = learner.known.views["plain"], np.array(learner.classes)[learner.known.labels]
    assert (learner.predict(x) == y).mean() > 0.9
    config, tensors = read_tensors(OLD / "learner.safetensors", "learner")
    assert np.allclose(learner.members.prototypes["plain"], tensors["prototypes"].numpy(), atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = FewShotLearner.load(learner.save(tmp_path / "new"))
    assert np.array_equal(again.predict_proba(x), learner.predict_proba(x))
    assert config["options"]["fuser_options"] == {"epochs": 5}  # the other fuser of that name took it


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config, arrays: config.update(sessions=[3, 2]), "do not bring the 6 classes"),
        (lambda config, arrays: config.update(sessions="3"), "do not bring the 6 classes"),
        (lambda config, arrays: config.update(classes=["a"] * 6), "must differ"),
        (lambda config, arrays: arrays.pop("shots.4"), "shots.4"),
        (lambda config, arrays: arrays.pop("bias"), "bias"),
        (lambda config, arrays: arrays["prototypes"].fill_(float("nan")), "prototypes has numbers that are not finite"),
        (lambda config, arrays: arrays["base_labels"].fill_(3), "labels of the memory must be 12 whole numbers in 0"),
        (lambda config, arrays: config["options"].update(fuser="magic"), "magic"),
        (lambda config, arrays: config.update(scale=-1), "scale of the base head"),
    ],
)
def test_a_broken_learner_of_the_version_before_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    config, tensors = read_tensors(OLD / "learner.safetensors", "learner")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(config, tensors)
    write_tensors(tmp_path / "old" / "learner.safetensors", "learner", config, tensors)
    with pytest.raises(ValueError, match=words):
        FewShotLearner.load(tmp_path / "old")


def test_a_learner_of_a_later_version_is_refused(tmp_path: Path) -> None:
    folder = learner_of("afa").save(tmp_path / "learner")
    config, tensors = read_tensors(folder / "learner.safetensors", "learner")
    for later in (4, "3", None, True):
        write_tensors(folder / "learner.safetensors", "learner", {**config, "format": later}, tensors)
        with pytest.raises(ValueError, match="this version reads formats up to 3: upgrade faverage"):
            FewShotLearner.load(folder)


# Broken files ---------------------------------------------------------------------------------------------------------


def changed(kind: str, change: Any) -> str:
    """Return why a knowledge is refused once something in it was changed."""
    config, arrays = pack(learner_of(kind).known)
    config, arrays = json.loads(json.dumps(config)), {name: array.copy() for name, array in arrays.items()}
    change(config, arrays)
    with pytest.raises((ValueError, LookupError, TypeError)) as caught:
        unpack(config, arrays)
    return str(caught.value)


def put(name: str, value: Any) -> Any:
    return lambda config, arrays: arrays.update({name: value(arrays[name])})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config, arrays: config.update(classes=[0, 1, 2, 3, 3]), "must differ"),
        (lambda config, arrays: config.update(classes="abcde"), "list of text or numbers"),
        (lambda config, arrays: config.update(classes=[[]] * 5), "list of text or numbers"),
        (lambda config, arrays: config.update(session=[0, 0, 0, 2, 2]), "do not bring the 5 classes"),
        (lambda config, arrays: config.update(session=[0, 0, 1, 0, 1]), "do not bring the 5 classes"),
        (lambda config, arrays: config.update(session=[0, 0, 0, 1]), "do not bring the 5 classes"),
        (lambda config, arrays: config.update(views=["a", "a"]), "views must differ"),
        (lambda config, arrays: config.update(views=[]), "list of names"),
        (lambda config, arrays: config["heads"][0].update(view="third"), "unknown view"),
        (lambda config, arrays: config["heads"][1].update(scale=float("inf")), "scale of the base head 1"),
        (lambda config, arrays: arrays.pop("features.1"), "features.1"),
        (lambda config, arrays: arrays.pop("heads.0.bias"), "heads.0.bias"),
        (put("features.0", lambda a: a[:-1]), "features of the view 'first, plain' must be numbers of shape"),
        (put("features.1", lambda a: a * np.nan), "not finite"),
        (put("features.1", lambda a: a.astype(np.int64)), "must be numbers"),
        (put("anchors.1", lambda a: a[:, 1:]), "anchors of the view 'second'"),
        (put("anchors.0", lambda a: a + 1e20), "far too large"),
        (put("labels", lambda a: a + 1), "the labels must be"),
        (put("labels", lambda a: a.astype(np.float64)), "the labels must be"),
        (put("counts", lambda a: a - 1000), "behind the anchors must be"),
        (put("shot", lambda a: a.astype(np.int64)), "truth values"),
        (put("shot", lambda a: a[1:]), "truth values"),
        (put("heads.1.classes", lambda a: a * 0), "each once"),
        (put("heads.1.classes", lambda a: a + 5), "classes of the base head 1 must be"),
        (put("heads.0.weight", lambda a: a.T), "weights of the base head 0"),
    ],
)
def test_every_part_is_checked(change: Any, words: str) -> None:
    assert words in changed("views", change)


def test_any_mutation_is_refused_or_answers_with_numbers(tmp_path: Path) -> None:
    folder, rng = learner_of("views").save(tmp_path / "learner"), random.Random(0)
    x, accepted = views(examples([0, 1, 2, 3, 4], 2, 5)[0]), 0
    for _ in range(150):
        file = rng.choice(sorted(folder.iterdir()))
        content = file.read_bytes()
        file.write_bytes(mutated(content, rng))
        try:
            learner = FewShotLearner.load(folder)
            said = learner.predict_proba(x if learner.known.widths.keys() == x.keys() else learner.known.views)
            assert np.isfinite(said).all()
            accepted += 1
        except ValueError:
            pass
        file.write_bytes(content)
    assert accepted < 90


def test_a_fuser_of_another_learner_is_refused(tmp_path: Path) -> None:
    folder, other = learner_of("afa").save(tmp_path / "a"), learner_of("views").save(tmp_path / "b")
    shutil.copy(other / "fuser.safetensors", folder / "fuser.safetensors")
    with pytest.raises(ValueError, match="fuser"):
        FewShotLearner.load(folder)
    (folder / "fuser.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"fuser\.safetensors"):
        FewShotLearner.load(folder)
