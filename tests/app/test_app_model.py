"""The model in a folder: teaching, forgetting, undoing; what readers see meanwhile; names."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faverage.app.folder import Folder, State
from faverage.app.model import Model, ModelError, clean_name
from faverage.app.photos import open_picture, squares
from faverage.fscil import FewShotLearner
from faverage.fscil.why import Said
from helpers_model import NAMES, learner_of_shapes, pictures

pytestmark = pytest.mark.slow


def best(model: Model, kind: str) -> list[str]:
    return [answer.top[0][0] for answer in model.predict(pictures(kind, 10, seed=99))]


def all_of(model: Model) -> np.ndarray:
    answers = model.predict([p for kind in (*NAMES, "stripes 1", "stripes 2") for p in pictures(kind, 4, seed=5)])
    names = [c.name for c in model.classes()]
    return np.array([[dict(a.top)[name] for name in names] for a in answers])


def names_of(model: Model) -> list[str]:
    return [c.name for c in model.classes()]


# Teaching -------------------------------------------------------------------------------------------------------------


def test_a_new_model_knows_its_base_classes_with_counts_and_thumbnails(model: Model) -> None:
    assert [(c.name, c.count, c.session) for c in model.classes()] == [(n, 60, 0) for n in sorted(NAMES[:3])]
    assert model.version == 1 and [len(c.thumbnails) for c in model.classes()] == [5, 5, 5]
    assert open_picture(model.classes()[0].thumbnails[0]).size == (64, 64)
    (answer,) = model.predict(pictures("square", 1))
    assert answer.top[0][0] == "square" and sum(p for _, p in answer.top) == pytest.approx(1)
    assert answer.members == (Said("base head", "square", pytest.approx(answer.top[0][1]), None),)
    assert not answer.unknown(0.05) and all(a.unknown(0.05) for a in model.predict(pictures("stripes 1", 3)))
    assert model.predict([]) == []
    with pytest.raises(ModelError, match="teach another class first"):
        model.explain()


def test_teach_recognises_the_new_class_and_says_why(model: Model) -> None:
    taught = model.teach(" the\tcross ", pictures("cross"))
    assert (taught.name, taught.count) == ("the cross", 5) and taught.right >= 0.8
    assert all(n >= 1 and a != b for a, b, n in taught.confused)
    counts = [n for *_, n in taught.confused]
    assert counts == sorted(counts, reverse=True)
    assert np.mean([name == "the cross" for name in best(model, "cross")]) > 0.6
    assert np.mean([name == "square" for name in best(model, "square")]) > 0.6
    (answer,) = model.predict(pictures("cross", 1, seed=99))
    assert [said.member for said in answer.members] == ["base head", "prototypes", "ridge"] and len(answer.top) == 4
    assert answer.members[0].probability is None  # the base head does not know it
    odds = np.log(answer.top[0][1] / answer.top[1][1])
    assert sum(said.push or 0 for said in answer.members) == pytest.approx(odds, abs=2)  # but for constants
    assert "ridge" in model.explain().to_markdown()
    info = model.classes()[-1]
    assert (info.name, info.count, info.session, len(info.thumbnails)) == ("the cross", 5, 1, 5)


def test_one_picture_is_enough_and_every_size_and_mode_will_do(model: Model) -> None:
    assert model.teach("one", [Image.new("L", (1, 1))]).count == 1
    assert (
        model.teach("odd", [Image.new("CMYK", (300, 7)), Image.new("I;16", (9, 9)), Image.new("P", (5, 5))]).count == 3
    )
    assert names_of(model)[-2:] == ["one", "odd"] and model.version == 3


def test_teach_equals_the_learner_itself(model: Model) -> None:
    model.teach("cross", pictures("cross"))
    model.teach("stripes", pictures("stripes 1"))
    base = FewShotLearner.load(model.folder / "base", device="cpu")
    base.learn_session(squares(pictures("cross"), 16), ["cross"] * 5)
    base.learn_session(squares(pictures("stripes 1"), 16), ["stripes"] * 5)
    images = pictures("cross", 6, seed=3)
    expected = base.predict_proba(squares(images, 16))
    found = [[dict(a.top)[name] for name in base.classes] for a in model.predict(images)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_folder_read_again_is_the_same_model(model: Model) -> None:
    model.teach("cross", pictures("cross"))
    again = Model.load(model.folder, device="cpu")
    np.testing.assert_allclose(all_of(again), all_of(model), atol=1e-6)
    assert again.classes() == model.classes() and again.version == model.version and again.history() == model.history()


def test_more_pictures_of_a_taught_class_are_added(model: Model) -> None:
    model.teach("cross", pictures("cross", 2))
    model.teach("stripes", pictures("stripes 1", 2))
    taught = model.teach("cross", pictures("cross", 4, seed=8))
    assert taught.count == 6 and names_of(model)[3:] == ["cross", "stripes"]
    assert [c.session for c in model.classes()[3:]] == [1, 2]
    assert [(h["what"], h["pictures"]) for h in model.history()] == [
        ("create", 0), ("teach", 2), ("teach", 2), ("add", 4)
    ]  # fmt: skip
    assert model.history()[-1]["words"] == "added 4 pictures to 'cross'"


def test_several_classes_are_one_change(model: Model) -> None:
    before = all_of(model)
    taught = model.teach_many({"cross": pictures("cross"), "stripes": pictures("stripes 1", 1)})
    assert [(t.name, t.count) for t in taught] == [("cross", 5), ("stripes", 1)] and model.version == 2
    assert {c.session for c in model.classes()} == {0, 1}
    assert model.undo() == "taught 'cross' from 5 pictures and taught 'stripes' from 1 picture"
    np.testing.assert_array_equal(all_of(model), before)


def test_many_sessions_share_members(model: Model) -> None:
    for i in range(4):
        model.teach(f"s{i}", pictures(f"stripes {i}", 3))
    assert [(c.name, c.session) for c in model.classes()[3:]] == [("s0", 1), ("s1", 2), ("s2", 3), ("s3", 4)]
    assert model.learner.members.names == ["base head", "prototypes", "ridge"]
    again = Model.load(model.folder, device="cpu")
    np.testing.assert_allclose(all_of(again), all_of(model), atol=1e-6)


def test_teaching_says_what_it_costs_the_other_classes(model: Model) -> None:
    good = model.teach("cross", pictures("cross"))
    assert good.before > 0.9 and good.after > 0.9 and not good.worse
    bad = model.teach("twin", pictures("square", 40))  # the pictures of a class that it knows, by another name
    assert bad.before == good.after and bad.after < bad.before - 0.1 and bad.worse
    model.undo()
    assert model.teach("a", pictures("stripes 1", 1)).before == bad.before


def test_pictures_are_opened_one_by_one(model: Model) -> None:
    alive: list[weakref.ref[Image.Image]] = []
    most = 0

    def opened() -> Iterator[Image.Image]:
        nonlocal most
        for picture in pictures("cross", 8):
            image = picture.resize((500, 400))
            alive.append(weakref.ref(image))
            most = max(most, sum(ref() is not None for ref in alive))
            yield image

    assert model.teach("cross", opened()).count == 8 and len(model.predict(opened())) == 8
    assert most <= 2
    with pytest.raises(ModelError, match="no picture of 'none'"):
        model.teach("none", iter([]))
    assert model.predict(iter([])) == []


# Forgetting and undoing -----------------------------------------------------------------------------------------------


def test_forget_leaves_a_model_that_never_learned_the_class(model: Model, made: Path, tmp_path: Path) -> None:
    other = Model.create(tmp_path / "other", _as_learner(made), side=16, device="cpu")
    for name, kind in (("cross", "cross"), ("a", "stripes 1"), ("b", "stripes 2")):
        model.teach(name, pictures(kind))
        if name != "a":
            other.teach(name, pictures(kind))
    model.forget(" a ")
    np.testing.assert_allclose(all_of(model), all_of(other), atol=1e-6)
    assert names_of(model) == names_of(other) and model.history()[-1]["words"] == "forgot 'a'"
    model.forget("cross")
    model.forget("b")
    assert len(model.predict(pictures("cross", 1))[0].members) == 1


def test_the_learner_forgets(made: Path) -> None:
    for fuser in ("afa", "vote", "logistic", "prototypes"):
        learner, other = (_as_learner(made, fuser) for _ in range(2))
        for i in range(3):
            learner.learn_session(squares(pictures(f"stripes {i}"), 16), [f"s{i}"] * 5)
            if i != 1:
                other.learn_session(squares(pictures(f"stripes {i}"), 16), [f"s{i}"] * 5)
        X = squares(pictures("cross", 5), 16)
        np.testing.assert_array_equal(learner.forget("s1").predict_proba(X), other.predict_proba(X))
        assert learner.classes == other.classes and learner.sessions == other.sessions
    with pytest.raises(ValueError, match="'dog' is not known"):
        learner.forget("dog")


def test_undo_goes_back_step_by_step(model: Model) -> None:
    seen = [all_of(model)]
    model.teach("cross", pictures("cross"))
    seen.append(all_of(model))
    model.teach("a", pictures("stripes 1", 1))
    seen.append(all_of(model))
    model.forget("cross")
    expected = ["forgot 'cross'", "taught 'a' from 1 picture", "taught 'cross' from 5 pictures"]
    for words in expected:
        assert model.undo() == words
        np.testing.assert_allclose(all_of(Model.load(model.folder, device="cpu")), seen[-1], atol=1e-6)
        np.testing.assert_allclose(all_of(model), seen.pop(), atol=1e-6)
    with pytest.raises(ModelError, match="nothing to undo"):
        model.undo()
    assert [h["what"] for h in model.history()[-3:]] == ["undo"] * 3 and model.version == 7


def test_the_last_twenty_changes_are_kept_and_no_more(model: Model) -> None:
    for i in range(22):
        model.teach("grows", pictures("stripes 1", 1, seed=i))
    assert len(list((model.folder / "states").iterdir())) == 21
    for _ in range(20):
        model.undo()
    with pytest.raises(ModelError, match="as far back as is kept"):
        model.undo()
    assert model.classes()[-1].count == 2 and len(list((model.folder / "states").iterdir())) == 1


# Every class, whatever it came from -----------------------------------------------------------------------------------


def test_base_classes_get_more_pictures(model: Model) -> None:
    taught = model.teach("square", pictures("square", 3, seed=5))
    assert (taught.count, taught.kept, taught.name) == (63, 13, "square") and taught.right > 0.8
    assert [(c.name, c.session) for c in model.classes()] == [(n, 0) for n in ("bar", "frame", "square")]
    assert model.history()[-1]["words"] == "added 3 pictures to 'square'" and model.classes()[2].count == 63
    both = model.teach_many({"cross": pictures("cross"), "bar": pictures("bar", 2, seed=5)})
    assert [t.count for t in both] == [5, 62] and len(model.classes()[2].thumbnails) == 5
    np.testing.assert_array_equal(all_of(Model.load(model.folder, device="cpu")), all_of(model))


def test_base_classes_are_forgotten_down_to_the_last(model: Model) -> None:
    model.teach("cross", pictures("cross"))
    seen = {}
    for name in ("square", "cross", "bar"):
        seen[name] = all_of(model)
        model.forget(name)
    assert names_of(model) == ["frame"] and best(model, "frame") == ["frame"] * 10
    assert not model.learner.known.heads  # a head of one class says nothing
    model.forget("frame")
    assert model.classes() == [] and Model.load(model.folder, device="cpu").classes() == []
    with pytest.raises(ModelError, match="knows no class yet"):
        model.predict(pictures("bar", 1))
    assert model.undo() == "forgot 'frame'" and model.history()[-1]["pictures"] == 60
    for name in ("bar", "cross", "square"):
        model.undo()
        np.testing.assert_allclose(all_of(model), seen[name], atol=1e-6)


def test_a_model_begins_with_nothing(tmp_path: Path) -> None:
    trained = learner_of_shapes()
    model = Model.create(tmp_path / "m", FewShotLearner(trained.backbone.model), side=16, device="cpu")  # type: ignore[union-attr]
    assert model.classes() == [] and model.history()[0]["words"] == "made with 0 classes"
    for refused in (model.undo, lambda: model.forget("x"), lambda: model.rename("x", "y"), model.explain):
        with pytest.raises(ModelError):
            refused()
    first = model.teach("cross", pictures("cross"))
    assert (first.before, first.after, first.worse, first.count) == (None, None, False, 5)
    assert best(model, "cross") == ["cross"] * 10 and model.classes()[0].session == 1
    assert any(a.unknown(0.05) for a in model.predict(pictures("stripes 1", 5)))
    second = model.teach("stripes", pictures("stripes 1"))
    assert second.before == 1.0 and np.mean([name == "cross" for name in best(model, "cross")]) > 0.8
    again = Model.load(model.folder, device="cpu")
    assert again.predict(pictures("bar", 2)) == model.predict(pictures("bar", 2))
    assert model.learner.members.names == ["prototypes", "ridge"] and "ridge" in model.explain().to_markdown()


def test_create_takes_classes_that_were_only_taught(tmp_path: Path) -> None:
    learner = FewShotLearner(learner_of_shapes().backbone.model, device="cpu")  # type: ignore[union-attr]
    learner.learn_session(squares(pictures("cross") + pictures("bar", 3), 16), ["cross"] * 5 + ["bar"] * 3)
    model = Model.create(tmp_path / "m", learner, side=16, device="cpu")
    assert [(c.name, c.count, c.session) for c in model.classes()] == [("cross", 5, 1), ("bar", 3, 1)]
    expected = learner.predict_proba(squares(pictures("frame", 4), 16))
    found = [[dict(a.top)[c] for c in learner.classes] for a in model.predict(pictures("frame", 4))]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_several_views_and_other_fusers_are_taught_and_read_again(tmp_path: Path) -> None:
    trained = learner_of_shapes().backbone.model  # type: ignore[union-attr]
    for fuser, views in (("afa", ["plain", "rotate-90, flip"]), ("prototypes", ["plain"]), ("vote", ["both"])):
        learner = FewShotLearner(trained, fuser, views=views, device="cpu")
        model = Model.create(tmp_path / fuser, learner, side=16, device="cpu")
        model.teach_many({"cross": pictures("cross"), "bar": pictures("bar")})
        model.teach("frame", pictures("frame"))
        again = Model.load(model.folder, device="cpu")
        assert again.predict(pictures("bar", 3)) == model.predict(pictures("bar", 3))
        asked = [said.member for said in again.predict(pictures("bar", 1))[0].members]
        assert len(asked) == {"afa": 3, "prototypes": 1, "vote": 2}[fuser]


def test_rename(model: Model) -> None:
    model.teach("cross", pictures("cross"))
    before, infos = all_of(model), model.classes()
    model.rename(" square ", "box")
    model.rename("cross", "x")
    assert names_of(model) == ["bar", "frame", "box", "x"] and model.history()[-1]["words"] == "renamed 'cross' to 'x'"
    assert [(c.count, c.thumbnails) for c in model.classes()] == [(c.count, c.thumbnails) for c in infos]
    np.testing.assert_allclose(all_of(Model.load(model.folder, device="cpu")), before, atol=1e-6)
    version = model.version
    for old, new, words in (
        ("box", "x", "knows 'x' already"),
        ("box", " box", "is called 'box' already"),
        ("dog", "cat", "does not know 'dog'"),
        ("box", "", "is empty"),
    ):
        with pytest.raises(ModelError, match=words):
            model.rename(old, new)
    assert model.version == version and model.undo() == "renamed 'cross' to 'x'" and names_of(model)[-1] == "cross"


def test_merge_brings_the_classes_of_both(model: Model, made: Path, tmp_path: Path) -> None:
    other = Model.create(tmp_path / "other", _as_learner(made), side=16, device="cpu")
    model.teach("cross", pictures("cross"))
    other.teach("stripes", pictures("stripes 1"))
    other.teach("cross", pictures("cross", 3, seed=9))
    other.rename("bar", "pole")
    theirs = other.version
    assert model.merge(other) == ["pole", "stripes"] and other.version == theirs
    counts = {c.name: c.count for c in model.classes()}
    assert counts == {"bar": 60, "frame": 60, "square": 60, "pole": 0, "cross": 8, "stripes": 5}
    assert [c.session for c in model.classes()] == [0, 0, 0, 0, 1, 2]
    assert np.mean([name == "stripes" for name in best(model, "stripes 1")]) > 0.8
    assert model.history()[-1]["words"] == "merged another model, which brought 'pole', 'stripes'"
    np.testing.assert_array_equal(all_of(Model.load(model.folder, device="cpu")), all_of(model))
    once = all_of(model)
    assert model.merge(tmp_path / "other") == []  # nothing is learned twice
    np.testing.assert_allclose(all_of(model), once, atol=1e-4)
    assert {c.name: c.count for c in model.classes()} == counts
    model.undo()
    assert model.undo().startswith("merged") and names_of(model) == ["bar", "frame", "square", "cross"]


def test_what_cannot_be_merged_changes_nothing(model: Model, tmp_path: Path) -> None:
    images = np.stack([np.asarray(p) for kind in ("cross", "stripes 1") for p in pictures(kind, 12)])
    learner = FewShotLearner("tiny", training={"epochs": 1, "device": "cpu"}, device="cpu")
    learner.fit_base(images, ["x"] * 12 + ["y"] * 12)
    Model.create(tmp_path / "other", learner, side=16, device="cpu")
    own = model.learner.backbone.model  # type: ignore[union-attr]
    Model.create(tmp_path / "empty", FewShotLearner(own, device="cpu"), side=16, device="cpu")
    taught = FewShotLearner(own, views=["plain", "flip"], device="cpu").learn_session(images, ["x"] * 12 + ["y"] * 12)
    Model.create(tmp_path / "views", taught, side=16, device="cpu")
    (tmp_path / "file").write_text("no model")
    for name, words in (
        ("other", "have different backbones"),
        ("views", "have different backbones"),
        ("empty", "knows no class yet"),
        ("none", "does not exist"),
        ("file", "is a file"),
    ):
        with pytest.raises(ModelError, match=words):
            model.merge(tmp_path / name)
    with pytest.raises(ModelError, match="no file model"):
        model.merge(tmp_path)
    assert model.version == 1


def test_a_picture_of_two_classes_is_refused(model: Model) -> None:
    model.teach("cross", pictures("cross", 2))
    with pytest.raises(ModelError, match=r"is the same as one of 'cross': an example has one label"):
        model.teach("x", pictures("cross", 2))
    assert model.version == 2


# Refusals -------------------------------------------------------------------------------------------------------------


def test_names_are_cleaned() -> None:
    assert clean_name("  a \n\t b ") == "a b" and clean_name("e\u0301") == "é"
    assert clean_name("../../etc/passwd") == "../../etc/passwd"  # a label, never a path
    assert clean_name("x" * 80) == "x" * 80 and clean_name("👩‍👧") == "👩‍👧"
    for bad in ("", "  \n", "a\x00b", "\x1b[31mred", "x" * 81, "\ud800", "\u202egnp", "\u200d"):
        with pytest.raises(ModelError, match="name"):
            clean_name(bad)
    with pytest.raises(ModelError, match="must be text, got int"):
        clean_name(3)  # type: ignore[arg-type]


def test_a_name_has_one_spelling(model: Model) -> None:
    model.teach("caf\u00e9", pictures("cross", 1))
    assert model.teach("cafe\u0301", pictures("cross", 2)).count == 3 and names_of(model)[3:] == ["caf\u00e9"]


def rewritten(model: Model, name: str) -> None:
    """Give the class that was taught first a name that no command would give."""
    files, now = Folder(model.folder), model._now
    assert now.state.known is not None
    known = now.state.known.renamed("cross", name)
    counts, shown = {**now.state.counts, name: 2}, {**now.state.thumbnails, name: now.state.thumbnails["cross"]}
    files.write_state("000002", State(known, counts, shown, now.learner.fitted), now.base.files)


def test_a_model_with_a_decomposed_name_still_loads(model: Model) -> None:
    old = "cafe\u0301"
    model.teach("cross", pictures("cross", 2))
    rewritten(model, old)
    again = Model.load(model.folder, device="cpu")
    assert names_of(again)[3:] == [old] and again.teach("caf\u00e9", pictures("cross", 1)).count == 3
    again.forget("caf\u00e9")
    assert len(names_of(again)) == 3


def test_a_name_that_steers_the_terminal_is_not_read(model: Model) -> None:
    model.teach("cross", pictures("cross", 2))
    rewritten(model, "\x1b[2J")
    with pytest.raises(ModelError, match=r"the name of a class is '\\x1b\[2J'"):
        Model.load(model.folder, device="cpu")


def test_a_name_never_becomes_a_path(model: Model, tmp_path: Path) -> None:
    model.teach("../../../evil/x", pictures("cross", 1))
    assert names_of(Model.load(model.folder, device="cpu"))[-1] == "../../../evil/x"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert {p.suffix for p in model.folder.rglob("*") if p.is_file()} == {".safetensors", ".json", ".png", ""}


@pytest.mark.parametrize(
    ("name", "images", "words"),
    [
        ("", 1, "empty"),
        ("new", 0, "no picture of 'new'"),
        ("a\x00", 1, "cannot be shown"),
        (" sq\u200buare", 0, "no picture"),
    ],
)
def test_what_cannot_be_taught_changes_nothing(model: Model, name: str, images: int, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model.teach(name, pictures("cross", images) if images else [])
    with pytest.raises(ModelError, match="Pillow images"):
        model.teach("new", [b"bytes"])  # type: ignore[list-item]
    with pytest.raises(ModelError, match="named twice"):
        model.teach_many({"a": pictures("cross", 1), " a": pictures("cross", 1)})
    with pytest.raises(ModelError, match="nothing to teach"):
        model.teach_many({})
    assert model.version == 1 and Model.load(model.folder).version == 1


def test_what_cannot_be_forgotten(model: Model) -> None:
    model.teach("cross", pictures("cross", 1))
    with pytest.raises(ModelError, match="does not know 'dog'; it knows: 'bar', 'frame', 'square', 'cross'"):
        model.forget("dog")
    assert model.version == 2


# Readers and writers --------------------------------------------------------------------------------------------------


def test_readers_see_the_model_before_or_after_never_between(model: Model) -> None:
    stop, wrong, asked = threading.Event(), [], []
    images = pictures("cross", 2)

    def ask() -> None:
        while not stop.is_set():
            for answer in model.predict(images):
                asked.append(len(answer.top))
                if abs(sum(p for _, p in answer.top) - 1) > 1e-4 or len(answer.members) not in (1, 3):
                    wrong.append(answer)
            time.sleep(0.005)
            infos = model.classes()
            if [c.session for c in infos] != [0, 0, 0, *range(1, len(infos) - 2)]:
                wrong.append(infos)

    def teach(name: str) -> None:
        for i in range(3):
            model.teach(f"{name}{i}", pictures(f"stripes {i}", 2, seed=ord(name)))

    readers = [threading.Thread(target=ask) for _ in range(3)]
    writers = [threading.Thread(target=teach, args=(name,)) for name in "ab"]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not wrong and len(set(asked)) > 1
    assert model.version == 7 and sorted(names_of(model)[3:]) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_a_change_by_another_process_is_seen(model: Model) -> None:
    other = Model.load(model.folder, device="cpu")
    other.teach("cross", pictures("cross"))
    assert names_of(model)[-1] == "cross" and model.version == 2
    np.testing.assert_allclose(all_of(model), all_of(other), atol=1e-6)
    model.teach("a", pictures("stripes 1"))
    assert names_of(other) == names_of(model) and other.undo() == "taught 'a' from 5 pictures"


def test_unknown_keys_survive(model: Model) -> None:
    file = model.folder / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": {"x": 1}}))
    again = Model.load(model.folder, device="cpu")
    again.teach("cross", pictures("cross", 1))
    assert json.loads(file.read_text())["later"] == {"x": 1}


def _as_learner(folder: Path, fuser: str = "afa") -> FewShotLearner:
    """The learner that a model was made with."""
    learner = FewShotLearner.load(folder / "base", device="cpu")
    learner.fuser = fuser
    return learner
