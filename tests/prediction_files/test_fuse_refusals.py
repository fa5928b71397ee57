"""``faverage fuse`` writes nothing when something is wrong."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from faverage.cli.commands import app
from helpers_fuse import assert_refused, change, fuse, said, table, write

BROKEN = {
    "empty": (b"", "b.csv is empty"),
    "header only": (b"id,cat,dog\n", "b.csv has no rows"),
    "ragged": (b"id,cat,dog\n1,0.5,0.5\n2,0.5\n", "b.csv line 3 has 2 cells, but the header has 3"),
    "quotes": (b'id,cat,dog\n1,0.5,0.5\n2,"0.5"x,0.5\n', "b.csv line 3 is broken CSV"),
    "open quote": (b'id,cat,dog\n1,0.5,0.5\n"2,0.5,0.5\n', "is broken CSV"),
    "binary": (bytes(range(256)) * 4, "b.csv line 1 is not"),
    "zeros": (b"i\0d,cat,dog\n1,1,0\n", "b.csv line 1 is not text"),
    "latin-1 id": ("id,cat,dog\nä,0.5,0.5\n".encode("latin-1"), "b.csv line 2 is not UTF-8 text"),
    "latin-1 number": ("id,cat,dog\n1,0.5,½\n".encode("latin-1"), "b.csv line 2: column 'dog' must be a number"),
    "utf-16": ("id,cat,dog\n1,0.5,0.5\n".encode("utf-16"), "b.csv line 1 is not UTF-8 text"),
    "semicolons": (b"id;cat;dog\n1;0.5;0.5\n", "';'"),
    "word": (b"id,cat,dog\n1,0.5,high\n", "b.csv line 2: column 'dog' must be a number, found 'high'"),
    "nothing": (b"id,cat,dog\n1,0.5,\n", "b.csv line 2: column 'dog' must be a number, found nothing"),
    "nan": (b"id,cat,dog\n1,0.5,0.5\n2,nan,0.5\n", "b.csv line 3: class 'cat' has nan"),
    "inf": (b"id,cat,dog\n1,0.5,inf\n", "b.csv line 2: class 'dog' has inf"),
    "huge": (b"id,cat,dog\n1,0.5,1e300\n", "b.csv line 2: class 'dog' has inf"),
    "negative": (b"id,cat,dog\n1,1.5,-0.5\n2,2,-1\n", "b.csv line 2: class 'dog' has -0.5 (2 such rows)"),
    "all zero": (b"id,cat,dog\n1,0,0\n", "b.csv line 2: all probabilities are 0"),
    "one id twice": (b"id,cat,dog\n1,0.5,0.5\n2,0.5,0.5\n1,1,0\n", "b.csv line 4: id 1 occurs twice, first on line 2"),
    "no id": (b"id,cat,dog\n,0.5,0.5\n", "b.csv line 2 has no id"),
    "class twice": (b"id,cat,cat\n1,0.5,0.5\n", "two columns for class 'cat'"),
    "class without name": (b"id,cat,\n1,0.5,0.5\n", "has no name"),
    "one class": (b"id,cat\n1,1\n", "one class only"),
}


@pytest.mark.parametrize("content,words", BROKEN.values(), ids=BROKEN)
def test_broken_predictions_are_refused_with_file_and_line(folder: Path, content: bytes, words: str) -> None:
    (folder / "b.csv").write_bytes(content)
    assert_refused(folder, fuse(folder), words)


LABELS = {
    "empty": ("", "labels.csv is empty"),
    "header only": ("id,label\n", "labels.csv has no rows"),
    "one class": ("id,label\n1,cat\n2,cat\n", "one class only ('cat')"),
    "nothing in common": ("id,label\n1,x\n2,y\n", "no class of"),
    "one id twice": ("id,label\n1,cat\n1,dog\n", "labels.csv line 3: id 1 occurs twice"),
    "no label": ("id,label\n1,cat\n2,\n", "labels.csv line 3: id 2 has no label"),
    "ragged": ("id,label\n1,cat\n2,dog,x\n", "labels.csv line 3 has 3 cells"),
    "too few": ("id,label\n1,cat\n2,dog\n", "--folds 5 needs at least 5 labelled rows"),
    "unknown id": ("id,label\n1,cat\n2,dog\n999,cow\n", "a.csv has no row for id 999 ("),
}


@pytest.mark.parametrize("content,words", LABELS.values(), ids=LABELS)
def test_broken_labels_are_refused(folder: Path, content: str, words: str) -> None:
    (folder / "labels.csv").write_text(content)
    assert_refused(folder, fuse(folder), words)


def test_a_missing_row_is_refused_by_name(folder: Path) -> None:
    rows = table(folder / "b.csv")
    write(folder / "b.csv", [row for row in rows if row[0] != "17"])
    assert_refused(folder, fuse(folder), "b.csv has no row for id 17 (", "labels.csv line 19", "--allow-missing")
    write(folder / "b.csv", [row for row in rows if row[0] != "50"])
    assert_refused(folder, fuse(folder), "b.csv has no row for id 50 (", "a.csv line 52")


@pytest.mark.parametrize("options", [(), ("--allow-missing", "--compare", "none")], ids=["", "allowed"])
def test_labels_of_other_rows_are_refused(folder: Path, options: tuple[str, ...]) -> None:
    (folder / "labels.csv").write_text("id,label\nx,cat\ny,dog\n")
    a, b, c, labels = (folder / f"{name}.csv" for name in ("a", "b", "c", "labels"))
    words = f"no id of {labels} is in {a}, {b} or {c}: are they of the same rows?"
    assert_refused(folder, fuse(folder, *options), words)


def test_labelled_rows_without_any_answer_are_refused(folder: Path) -> None:
    (folder / "labels.csv").write_text("id,label\n1,cat\n2,dog\n")
    for file in (folder / f"{name}.csv" for name in "abc"):
        rows = table(file)
        write(file, [[row[0], *("0" for _ in row[1:])] if row[0] in "12" else row for row in rows])
    assert_refused(folder, fuse(folder, "--allow-missing", "--compare", "none"), "has an answer of any model")


def test_strict_refuses_what_is_odd(folder: Path) -> None:
    change(folder / "a.csv", 4, "2,0.5,0.5,0.5,0.5")
    assert_refused(folder, fuse(folder, "--strict"), "a.csv line 4", "sum to 2", "--strict")
    change(folder / "a.csv", 4, "2,0.25,0.25,0.25,0.25")
    change(folder / "labels.csv", 3, "1,yak")
    assert_refused(folder, fuse(folder, "--strict"), "labels.csv line 3", "'yak'", "--strict")


def test_strict_does_not_say_what_it_did_not_do(folder: Path) -> None:
    change(folder / "a.csv", 4, "2,0.5,0.5,0.5,0.5")
    result = fuse(folder, "--strict")
    assert_refused(folder, result, "the probabilities sum to 2, not 1 (1 of 60 rows) (refused by --strict)")
    assert "scaled" not in said(result)


def test_one_row_is_no_rows(folder: Path) -> None:
    change(folder / "a.csv", 4, "2,0,0,0,0")
    assert_refused(folder, fuse(folder), "all probabilities are 0 (1 such row);")
    change(folder / "a.csv", 4, "2")
    assert_refused(folder, fuse(folder), "a.csv line 4 has 1 cell, but the header has 5")


@pytest.mark.parametrize("name", ["id", "prediction"])
def test_classes_called_like_other_columns_are_refused(folder: Path, name: str) -> None:
    text = (folder / "labels.csv").read_text()
    (folder / "labels.csv").write_text(text.replace("emu", name))
    assert_refused(folder, fuse(folder), f"labels.csv: the class '{name}'", "rename the class")
    for file in ("a", "c"):
        path = folder / f"{file}.csv"
        path.write_text(path.read_text().replace("emu", name))
    assert_refused(folder, fuse(folder), f"a.csv: the class '{name}'", "rename the class, as a column and as a label")


def test_ids_called_prediction_are_refused(folder: Path) -> None:
    path = folder / "a.csv"
    path.write_text(path.read_text().replace("id,", "prediction,", 1))
    assert_refused(folder, fuse(folder), "a.csv: the output has a column 'prediction'", "rename the column of ids")


def test_a_class_called_id_is_fine_where_ids_are_not(folder: Path) -> None:
    for name in ("a", "b", "c", "labels"):
        path = folder / f"{name}.csv"
        path.write_text(path.read_text().replace("id,", "key,", 1).replace("emu", "id"))
    assert fuse(folder).exit_code == 0
    assert table(folder / "fused.csv")[0] == ["key", "prediction", "cat", "cow", "dog", "id"]


def test_wrong_files_are_refused(folder: Path) -> None:
    assert_refused(folder, fuse(folder, files=("a.csv", "none.csv")), "no such file", "none.csv")
    assert_refused(folder, fuse(folder, files=("a.csv", ".")), "is a folder")
    (folder / "in.xlsx").write_bytes(b"PK")
    assert_refused(folder, fuse(folder, files=("a.csv", "in.xlsx")), "in.xlsx", "unknown extension '.xlsx'")
    assert_refused(folder, fuse(folder, files=("a.csv",)), "at least two files")
    assert_refused(folder, fuse(folder, files=("a.csv", "a.csv")), "given twice")
    assert_refused(folder, fuse(folder, files=("a.csv", "b\udcff.csv")), "rename it")
    assert_refused(folder, fuse(folder, "--labels", str(folder / "in.none.csv")), "no such file")
    assert_refused(folder, CliRunner().invoke(app, ["fuse", "a.csv", "b.csv", "--out", "x.csv"]), "--labels")


def test_wrong_npz_and_parquet_are_refused(folder: Path) -> None:
    path = folder / "in.npz"
    path.write_bytes(b"not a zip file")
    assert_refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz is no readable npz file")
    np.savez(path, ids=["1"], scores=[[0.5, 0.5]])
    assert_refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz has no array 'classes'")
    np.savez(path, ids=["1"], classes=["cat", "dog"], scores=[[0.5, 0.5, 0.0]])
    assert_refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz", "(1, 2)", "(1, 3)")
    np.savez(path, ids=["1"], classes=["cat", "dog"], scores=[["x", "y"]])
    assert_refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz: scores must be numbers")
    np.savez(path, ids=np.array([{}], dtype=object), classes=["cat", "dog"], scores=[[0.5, 0.5]])
    assert_refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz is no readable npz file")
    np.savez(path, ids=["1", "2"], classes=["cat", "dog"], scores=[[0.5, 0.5], [1.5, -0.5]])
    assert_refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz row 2: class 'dog' has -0.5")
    pytest.importorskip("pandas")
    (folder / "in.parquet").write_bytes(b"PAR1 and nothing more")
    assert_refused(folder, fuse(folder, files=("a.csv", "in.parquet")), "in.parquet is no readable parquet file")


def test_wrong_options_are_refused(folder: Path) -> None:
    assert_refused(folder, fuse(folder, "--fuser", "magic"), "unknown fuser 'magic'", "arithmetic")
    assert_refused(folder, fuse(folder, "--folds", "1"), "--folds must be at least 2")
    assert_refused(folder, fuse(folder, "--id", "key"), "has no column 'key'")
    assert_refused(
        folder, fuse(folder, "--label", "truth"), "labels.csv has no column 'truth' (--label)", "it has 'label'"
    )
    assert CliRunner().invoke(app, ["fuse", "--folds", "many"]).exit_code == 2
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("faverage ")


def test_outputs_are_not_overwritten_without_force(folder: Path) -> None:
    report = folder / "report.html"
    report.write_text("mine")
    result = fuse(folder)
    words = f"{report}, which is written beside --out, exists already: give --force, or an --out in another folder"
    assert result.exit_code == 2 and words in said(result)
    assert "no such file" in said(fuse(folder, files=("a.csv", "none.csv")))  # inputs come first
    assert report.read_text() == "mine" and not (folder / "fused.csv").exists()
    assert fuse(folder, "--force").exit_code == 0
    assert report.read_text() != "mine"
    result = fuse(folder, "--force", "--out", str(folder / "a.csv"))
    assert result.exit_code == 2 and "is an input" in said(result)


def test_outputs_that_cannot_be_written_are_refused(folder: Path) -> None:
    assert_refused(folder, fuse(folder, "--out", str(folder / "none" / "x.csv")), "the folder", "does not exist")
    assert_refused(folder, fuse(folder, "--out", str(folder / "x.txt")), "must end in .csv")
    (folder / "x.csv").mkdir()
    assert_refused(folder, fuse(folder, "--out", str(folder / "x.csv")), "it is a folder")


def test_a_failure_while_writing_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faverage.prediction_files.run.save_bundle", full)
    assert_refused(folder, fuse(folder), "cannot write", "No space left on device")
