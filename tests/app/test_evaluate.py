"""evaluate and predict --csv: numbers, what is taken for what, the page, broken pictures."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from faverage.app.evaluate import NONE, Evaluation, Row, evaluate, evaluation_page
from faverage.app.model import Model, ModelError
from helpers_commands import call, save

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Two base classes, one that can be taught, and strangers."""
    root = tmp_path / "test"
    for kind in ("square", "bar", "cross"):
        save(root / kind, kind)
    save(root / "what <is> this", "stripes 1")
    return root


def row(label: str, answer: str, familiarity: float = 0.5, known: bool = True) -> Row:
    return Row(Path(f"{label}.png"), label, answer, 0.9, familiarity, known)


def test_numbers_follow_their_definitions() -> None:
    rows = [row("a", "a"), row("a", "b", 0.01), row("b", "b"), row("c", "c"), row("c", "c"), row("c", "a")]
    rows += [row("x", "a", 0.02, False), row("x", "a", 0.4, False), row("y", "b", 0.05, False)]
    found = Evaluation(tuple(rows), (), (("a", "b"), ("c", "d")), 0.05)
    assert found.accuracy() == pytest.approx(4 / 6)
    assert (found.accuracy("base"), found.accuracy("new")) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found.macro_f1 == pytest.approx((1 / 2 + 2 / 3 + 4 / 5) / 3)
    assert found.none(found.of("all")) == pytest.approx(1 / 6)
    assert found.none(found.strangers) == pytest.approx(2 / 3)
    assert sorted(found.confused()) == [("a", "b", 1), ("c", "a", 1), ("x", "a", 1)]
    assert found.cells["x", NONE][0].familiarity == 0.02
    empty = Evaluation((row("x", "a", 0.4, False),), (), ((), ("a",)), 0.05)
    assert empty.accuracy() is None and empty.macro_f1 is None and empty.none([]) is None
    assert "–" in evaluation_page(empty, "nothing known")


def test_evaluate_says_and_writes_it_all(folder: Path, labelled: Path, tmp_path: Path) -> None:
    call("teach", folder, "cross", save(tmp_path / "cross", "cross", 5, seed=11))
    page, table = tmp_path / "e.html", tmp_path / "e.csv"
    said = call("evaluate", folder, labelled, "--html", page, "--csv", table).stdout
    for words in (
        "all known classes",
        "base classes",
        "taught classes",
        "Macro F1",
        "Of 6 pictures of classes that it",
    ):
        assert words in said, words
    lines = list(csv.DictReader(table.open()))
    assert list(lines[0]) == ["file", "label", "answer", "probability", "familiarity"] and len(lines) == 24
    known = [line for line in lines if line["label"] != "what <is> this"]
    right = sum(line["label"] == line["answer"] for line in known) / len(known)
    assert f"{100 * right:.1f} %" in said and right > 0.8
    html = page.read_text()
    assert "data:image/jpeg;base64," in html and "what &lt;is&gt; this" in html and "<is>" not in html
    assert not re.search(r"(src|href)=\"(?!data:)", html) and "<script" not in html
    assert evaluate(Model.load(folder, device="cpu"), labelled).accuracy() == pytest.approx(right)


def test_broken_pictures_are_listed_and_the_rest_is_answered(folder: Path, labelled: Path, tmp_path: Path) -> None:
    for i in range(3):
        (labelled / "square" / f"broken {i}.png").write_text("no picture")
    result = call("evaluate", folder, labelled, code=1)
    assert "3 of 27 pictures cannot be read" in result.stderr and "broken 2.png" in result.stderr
    assert "base classes" in result.stdout and "With --html FILE" in result.stdout
    table = tmp_path / "answers.csv"
    result = call("predict", folder, labelled / "square", "--csv", table, "--unknown", "0.05", code=1)
    assert "3 of 9 pictures cannot be read" in result.stderr
    lines = list(csv.DictReader(table.open()))
    assert list(lines[0]) == ["file", "answer", "probability", "familiarity", "none of these"] and len(lines) == 6
    assert {line["none of these"] for line in lines} <= {"yes", "no"}
    only = call("predict", folder, *sorted(labelled.glob("*/broken*")), code=2).stderr
    assert "broken 0.png: this is not an image" in " ".join(only.split()) and "2 others" in only


def test_evaluate_refuses_in_words(folder: Path, labelled: Path, tmp_path: Path) -> None:
    model = Model.load(folder, device="cpu")
    with pytest.raises(ModelError, match="does not exist"):
        evaluate(model, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no images in sub-folders"):
        evaluate(model, tmp_path / "empty")
    with pytest.raises(ModelError, match="a rate between 0 and 1"):
        evaluate(model, labelled, unknown=1.5)
    (tmp_path / "empty" / "a").mkdir()
    (tmp_path / "empty" / "a" / "1.png").write_text("no picture")
    with pytest.raises(ModelError, match="none of the 1 picture in"):
        evaluate(model, tmp_path / "empty")
    assert "the folder" in call("evaluate", folder, labelled, "--csv", tmp_path / "no" / "x.csv", code=2).stderr
