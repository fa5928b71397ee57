"""``faverage fuse``: what it writes, and that it writes nothing when something is wrong."""

import csv
import json
import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from faverage.cli import app
from faverage.fuse import UserError, apply_files, compare, fuse_files
from faverage.fusion import FUSERS, Fuser, register_fuser

CLASSES = ["cat", "cow", "dog", "emu"]
KNOWN = {"a": [0, 1, 2, 3], "b": [2, 0, 1], "c": [3, 1, 2]}
QUICK = ["arithmetic", "log-pool"]


def make(folder: Path, n: int = 60, labelled: int = 45) -> Path:
    """Write a.csv, b.csv, c.csv (other classes, other orders) and labels.csv; ids 0 … n-1."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % len(CLASSES)
    for k, (name, known) in enumerate(KNOWN.items()):
        logits = rng.normal(size=(n, 4)) + 2 * np.eye(4)[y]
        p = np.exp(logits[:, known])
        p /= p.sum(1, keepdims=True)
        order = rng.permutation(n) if k else np.arange(n)
        rows = [[str(i), *(f"{v:.7f}" for v in p[i])] for i in order]
        write(folder / f"{name}.csv", [["id", *(CLASSES[c] for c in known)], *rows])
    write(folder / "labels.csv", [["id", "label"], *([str(i), CLASSES[y[i]]] for i in range(labelled))])
    return folder


def write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def table(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def change(path: Path, line: int, new: str) -> None:
    lines = path.read_text().split("\n")
    lines[line - 1] = new
    path.write_text("\n".join(lines))


def fuse(folder: Path, *options: str, files: tuple[str, ...] = ("a.csv", "b.csv", "c.csv")) -> Result:
    paths = [str(folder / file) for file in files]
    words = ["fuse", *paths, "--labels", str(folder / "labels.csv"), "--out", str(folder / "fused.csv"), *options]
    return CliRunner().invoke(app, words)


def said(result: Result) -> str:
    return result.stderr


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "fuser_names", lambda: QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = make(tmp_path_factory.mktemp("fused"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "fuser_names", lambda: QUICK)
        return folder, fuse(folder)


def refused(folder: Path, result: Result, *words: str) -> None:
    """Check for exit code 2, one line on stderr with the words, and no new file."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    errors = [line for line in said(result).splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, said(result)
    for word in words:
        assert word in errors[0], errors[0]
    inputs = {"a", "b", "c", "labels", "in"}
    assert [file.name for file in folder.rglob("*") if file.is_file() and file.name.split(".")[0] not in inputs] == []


# What it writes -------------------------------------------------------------------------------------------------------


def test_predictions_of_every_row_in_the_order_of_the_first_file(fused: tuple[Path, Result]) -> None:
    folder, result = fused
    assert result.exit_code == 0, result.output
    rows = table(folder / "fused.csv")
    assert rows[0] == ["id", "prediction", *CLASSES]
    assert [row[0] for row in rows[1:]] == [row[0] for row in table(folder / "a.csv")[1:]]
    p = np.array([row[2:] for row in rows[1:]], float)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-4)
    assert [row[1] for row in rows[1:]] == [CLASSES[i] for i in p.argmax(1)]
    truth = [CLASSES[i % 4] for i in range(60)]
    assert np.mean([row[1] == t for row, t in zip(rows[1:], truth, strict=True)]) > 0.8
    assert sorted(f.name for f in folder.iterdir()) == sorted(
        ["a.csv", "b.csv", "c.csv", "labels.csv", "fused.csv", "report.html", "fuser.safetensors"]
    )


def test_it_prints_fusers_models_and_the_explanation(fused: tuple[Path, Result]) -> None:
    out = fused[1].stdout
    for word in ("log-loss", "accuracy", "macro F1", "arithmetic", "log-pool", "model a", "model c", "5 folds"):
        assert word in out
    assert "Most trusted model by class" in out and "Share of each model in AFA" in out
    assert said(fused[1]) == ""


def test_order_of_rows_and_columns_does_not_matter(folder: Path, fused: tuple[Path, Result]) -> None:
    head, *rows = table(folder / "b.csv")
    write(folder / "b.csv", [[head[0], *head[:0:-1]], *([row[0], *row[:0:-1]] for row in reversed(rows))])
    assert fuse(folder).exit_code == 0
    assert table(folder / "fused.csv") == table(fused[0] / "fused.csv")


def test_same_seed_same_numbers(folder: Path, fused: tuple[Path, Result]) -> None:
    assert fuse(folder, "--seed", "0").exit_code == 0
    assert (folder / "fused.csv").read_bytes() == (fused[0] / "fused.csv").read_bytes()


def test_npz_and_parquet_give_what_csv_gives(folder: Path, fused: tuple[Path, Result]) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    head, *rows = table(folder / "b.csv")
    ids, scores = [int(row[0]) for row in rows], np.array([row[1:] for row in rows], float)
    np.savez(folder / "b.npz", ids=ids, classes=head[1:], scores=scores)
    pandas.read_csv(folder / "c.csv").to_parquet(folder / "c.parquet")
    head, *rows = table(folder / "labels.csv")
    np.savez(folder / "labels.npz", ids=[row[0] for row in rows], labels=[row[1] for row in rows])
    result = fuse(folder, "--labels", str(folder / "labels.npz"), files=("a.csv", "b.npz", "c.parquet"))
    assert result.exit_code == 0, result.output
    assert table(folder / "fused.csv") == table(fused[0] / "fused.csv")
    pandas.DataFrame(rows, columns=head).to_parquet(folder / "labels.parquet")
    result = fuse(folder, "--force", "--labels", str(folder / "labels.parquet"))
    assert result.exit_code == 0, result.output
    assert table(folder / "fused.csv") == table(fused[0] / "fused.csv")


def test_parquet_with_an_index_and_nullable_columns(folder: Path, fused: tuple[Path, Result]) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(folder / "c.csv").convert_dtypes().set_index("id")
    frame.to_parquet(folder / "c.parquet")
    assert fuse(folder, files=("a.csv", "b.csv", "c.parquet")).exit_code == 0
    assert table(folder / "fused.csv") == table(fused[0] / "fused.csv")
    for name in ("fused.csv", "report.html", "fuser.safetensors"):
        (folder / name).unlink()
    frame.iloc[3, 1] = pandas.NA
    frame.to_parquet(folder / "c.parquet")
    refused(folder, fuse(folder, files=("a.csv", "c.parquet")), "c.parquet row 4: class 'cow' has nan")
    frame.assign(emu="often").to_parquet(folder / "c.parquet")
    refused(folder, fuse(folder, files=("a.csv", "c.parquet")), "c.parquet: column 'emu' must be numbers")
    pandas.DataFrame({"id": ["0", "1"], "label": ["cat", None]}).to_parquet(folder / "labels.parquet")
    refused(folder, fuse(folder, "--labels", str(folder / "labels.parquet")), "labels.parquet row 2: id 1 has no label")


def test_parquet_without_pandas_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    (folder / "b.parquet").write_bytes(b"PAR1")
    refused(folder, fuse(folder, files=("a.csv", "b.parquet")), "b.parquet", "pip install pandas")
    assert fuse(folder).exit_code == 0


def test_id_and_label_columns_byte_order_mark_quotes_and_blank_lines(folder: Path, fused: tuple[Path, Result]) -> None:
    for name in ("a", "b", "c"):
        head, *rows = table(folder / f"{name}.csv")
        lines = [",".join(f'"{cell}"' for cell in [*row[1:], row[0]]) for row in [[*["key"], *head[1:]], *rows]]
        (folder / f"{name}.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    rows = table(folder / "labels.csv")[1:]
    write(folder / "labels.csv", [["note", "truth", "key"], *(["x", row[1], row[0]] for row in rows)])
    refused(folder, fuse(folder, "--id", "key"), "labels.csv", "--label", "'note', 'truth'")
    result = fuse(folder, "--id", "key", "--label", "truth")
    assert result.exit_code == 0, result.output
    assert table(folder / "fused.csv")[1:] == table(fused[0] / "fused.csv")[1:]


def test_missing_rows_count_as_no_answer_when_allowed(folder: Path) -> None:
    rows = table(folder / "a.csv")
    write(folder / "a.csv", rows[:5] + rows[6:])
    rows = table(folder / "labels.csv")
    write(folder / "labels.csv", [*rows, ["nowhere", "cat"]])
    result = fuse(folder, "--allow-missing")
    assert result.exit_code == 0, result.output
    assert "a.csv has no row for id 4" in said(result) and "labels.csv line 6" in said(result)
    ids = [row[0] for row in table(folder / "fused.csv")[1:]]
    assert len(ids) == 60 and ids[-1] == "4" and "nowhere" not in ids
    assert "59 of 60" in (folder / "report.html").read_text()


def test_percentages_are_scaled_with_a_warning(folder: Path, fused: tuple[Path, Result]) -> None:
    head, *rows = table(folder / "b.csv")
    write(folder / "b.csv", [head, *([row[0], *(str(100 * float(p)) for p in row[1:])] for row in rows)])
    result = fuse(folder)
    assert result.exit_code == 0
    assert re.search(r"Warning: .*b\.csv line 2: the probabilities sum to 100.*60 of 60 rows", said(result))
    mine, other = table(folder / "fused.csv"), table(fused[0] / "fused.csv")
    np.testing.assert_allclose(np.array([r[2:] for r in mine[1:]], float), np.array([r[2:] for r in other[1:]], float),
                               atol=1e-3)  # fmt: skip
    assert "the probabilities sum to 100" in (folder / "report.html").read_text()


def test_a_label_that_no_model_predicts_is_named_and_counts(folder: Path) -> None:
    change(folder / "labels.csv", 3, "1,yak")
    result = fuse(folder)
    assert result.exit_code == 0, result.output
    assert "labels.csv line 3: no model predicts the class 'yak', the label of 1 row\n" in said(result)
    assert table(folder / "fused.csv")[0][2:] == [*CLASSES, "yak"]


def test_classes_that_are_numbers_are_sorted_as_numbers(folder: Path) -> None:
    for name in ("a", "b", "c", "labels"):
        text = (folder / f"{name}.csv").read_text()
        for label, number in zip(CLASSES, ("2", "10", "1", "30"), strict=True):
            text = text.replace(label, number)
        (folder / f"{name}.csv").write_text(text)
    assert fuse(folder).exit_code == 0
    assert table(folder / "fused.csv")[0][2:] == ["1", "2", "10", "30"]


def test_a_fuser_that_fails_does_not_stop_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @register_fuser("broken")
    class Broken(Fuser):
        def _fit(self, scores: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
            raise RuntimeError("singular <matrix>")

    try:
        monkeypatch.setattr(compare, "fuser_names", lambda: ["broken", "arithmetic"])
        result = fuse(folder)
        assert result.exit_code == 0, result.output
        assert "broken failed: singular <matrix>" in result.stdout
        assert "failed: singular &lt;matrix&gt;" in (folder / "report.html").read_text()
    finally:
        FUSERS.pop("broken")


def test_all_registered_fusers_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "fuser_names", lambda: list(FUSERS))
    result = fuse(folder, "--folds", "2", "--fuser", "arithmetic")
    assert result.exit_code == 0, result.output
    for name in FUSERS:
        assert f" {name} " in result.stdout
    assert "failed" not in result.stdout


def test_large_data_is_compared_on_a_sample(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_MOST_ROWS", 20)
    result = fuse(folder)
    assert "a sample of 20 of 45 labelled rows" in " ".join(result.stdout.split())


def test_folds_and_samples_are_even_in_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.random.default_rng(0).integers(0, 3, 300)
    fold = compare._folds(y, 5, seed=1)
    for label in range(3):
        assert np.ptp(np.bincount(fold[y == label], minlength=5)) <= 1
    assert (fold != compare._folds(y, 5, seed=2)).any()
    monkeypatch.setattr(compare, "_MOST_ROWS", 30)
    rows = compare.sample(y, 4, seed=1)
    assert len(set(rows.tolist())) == 30 and (np.diff(rows) > 0).all()
    assert abs(np.bincount(y[rows]) - np.bincount(y) / 10).max() <= 1
    assert (rows != compare.sample(y, 4, seed=2)).any()


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(5), 200), rng.integers(0, 4, 200)
    loss, accuracy, f1 = compare.measure(p, y)
    assert loss == pytest.approx(metrics.log_loss(y, p, labels=range(5)))
    assert accuracy == metrics.accuracy_score(y, p.argmax(1))
    assert f1 == pytest.approx(metrics.f1_score(y, p.argmax(1), labels=range(4), average="macro"))


# The report -----------------------------------------------------------------------------------------------------------


def test_report_is_self_contained_and_escapes_names(folder: Path) -> None:
    (folder / "a.csv").rename(folder / "a.<script>alert(1)<&.csv")
    for name in ("b", "c", "labels"):
        path = folder / f"{name}.csv"
        path.write_text(path.read_text().replace("dog", "<b>dog & co"))
    result = fuse(folder, files=("a.<script>alert(1)<&.csv", "b.csv", "c.csv"))
    assert result.exit_code == 0, result.output
    page = (folder / "report.html").read_text()
    assert not re.search(r"https?:|//|<script|@import|url\(|<link|<img|<b>dog", page.split("<body>")[0])
    assert not re.search(r"https?:|<script|@import|url\(|<link|<img|<b>dog| src=| href=", page)
    for word in ("prefers-color-scheme: dark", "&lt;b&gt;dog &amp; co", "&lt;script&gt;", "faverage fuse", "torch "):
        assert word in page


def test_the_command_in_the_report_works_as_it_stands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "b.csv").rename(folder / "-b <&.csv")
    fuse_files(["a.csv", "-b <&.csv"], "labels.csv", "fused.csv", folds=3, fuser="log-pool")
    first = (folder / "fused.csv").read_bytes()
    found = re.search(r"<pre>(.*?)</pre>", (folder / "report.html").read_text(), re.DOTALL)
    assert found is not None
    words = shlex.split(unescape(found[1]))
    assert words[:2] == ["faverage", "fuse"] and "--force" in words
    (folder / "fused.csv").write_text("to be replaced")
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    assert (folder / "fused.csv").read_bytes() == first


# Applying a fuser -----------------------------------------------------------------------------------------------------


def apply(folder: Path, fuser: Path, *files: str, options: tuple[str, ...] = ()) -> Result:
    paths = [str(folder / file) for file in files]
    return CliRunner().invoke(
        app, ["fuse", "--apply", str(fuser), *paths, "--out", str(folder / "in.fused.csv"), *options]
    )


def test_apply_equals_fuse(folder: Path, fused: tuple[Path, Result]) -> None:
    result = apply(folder, fused[0] / "fuser.safetensors", "a.csv", "c.csv", "b.csv")
    assert result.exit_code == 0, result.output
    assert said(result) == ""
    assert (folder / "in.fused.csv").read_bytes() == (fused[0] / "fused.csv").read_bytes()


def test_apply_matches_by_position_where_names_differ(folder: Path, fused: tuple[Path, Result]) -> None:
    (folder / "a.csv").rename(folder / "in.new.csv")
    result = apply(folder, fused[0] / "fuser.safetensors", "c.csv", "in.new.csv", "b.csv")
    assert result.exit_code == 0, result.output
    assert "in.new.csv as 'a'" in said(result)
    mine, other = (sorted(table(f)) for f in (folder / "in.fused.csv", fused[0] / "fused.csv"))
    assert mine == other


def test_apply_is_strict_about_positions_and_missing_rows(folder: Path, fused: tuple[Path, Result]) -> None:
    fuser = fused[0] / "fuser.safetensors"
    assert apply(folder, fuser, "c.csv", "a.csv", "b.csv", options=("--strict",)).exit_code == 0
    (folder / "in.fused.csv").unlink()
    (folder / "a.csv").rename(folder / "in.new.csv")
    files = ("in.new.csv", "b.csv", "c.csv")
    refused(folder, apply(folder, fuser, *files, options=("--strict",)), "in.new.csv as 'a'", "by position only")
    assert not (folder / "in.fused.csv").exists()
    (folder / "in.new.csv").rename(folder / "a.csv")
    write(folder / "b.csv", table(folder / "b.csv")[:-1])
    asked_for = apply(folder, fuser, "a.csv", "b.csv", "c.csv", options=("--strict", "--allow-missing"))
    assert asked_for.exit_code == 0 and "counted as no answer" in said(asked_for)


@pytest.mark.parametrize(
    "option", [("--folds", "5"), ("--seed", "0"), ("--labels", "x.csv"), ("--label", "y"), ("--fuser", "afa")]
)
def test_apply_refuses_options_of_fitting(folder: Path, fused: tuple[Path, Result], option: tuple[str, str]) -> None:
    result = apply(folder, fused[0] / "fuser.safetensors", "a.csv", "b.csv", "c.csv", options=option)
    refused(folder, result, f"leave out {option[0]}")
    assert not (folder / "in.fused.csv").exists()


def test_apply_refuses_ids_that_are_called_like_a_class(folder: Path, fused: tuple[Path, Result]) -> None:
    path = folder / "b.csv"
    path.write_text(path.read_text().replace("id,", "emu,", 1))
    wrong = apply(folder, fused[0] / "fuser.safetensors", "b.csv", "a.csv", "c.csv")
    refused(folder, wrong, "the class 'emu'", "rename the column of ids of", "b.csv")
    assert not (folder / "in.fused.csv").exists()


def test_apply_names_classes_that_do_not_fit(folder: Path, fused: tuple[Path, Result]) -> None:
    fuser = fused[0] / "fuser.safetensors"
    change(folder / "b.csv", 1, "id,dog,cat,yak")
    refused(folder, apply(folder, fuser, "a.csv", "b.csv", "c.csv"), "b.csv", "lacks the class 'cow'", "'yak'")
    refused(folder, apply(folder, fuser, "a.csv", "b.csv"), "3 models ('a', 'b', 'c')", "2 files")
    wrong = apply(folder, fuser, "a.csv", "b.csv", options=("--labels", "x.csv"))
    refused(folder, wrong, "--labels")
    refused(folder, apply(folder, folder / "in.none", "a.csv", "b.csv"), "no such file")
    refused(folder, apply(folder, folder / "a.csv", "a.csv", "b.csv"), "a.csv is not a file saved by faverage")


def test_apply_refuses_a_newer_fuser(folder: Path, fused: tuple[Path, Result]) -> None:
    with safe_open(fused[0] / "fuser.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["faverage"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    header["format"] = 99
    save_file(tensors, folder / "in.safetensors", metadata={"faverage": json.dumps(header)})
    refused(
        folder, apply(folder, folder / "in.safetensors", "a.csv", "b.csv", "c.csv"), "format 99", "upgrade faverage"
    )


def test_files_of_one_name_are_told_apart_by_their_folders(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / f"{name}.csv").rename(folder / name / "in.csv")
    result = fuse(folder, files=("a/in.csv", "b/in.csv"))
    assert "model a/in" in result.stdout and "model b/in" in result.stdout


# What it refuses ------------------------------------------------------------------------------------------------------

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
    refused(folder, fuse(folder), words)


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
    refused(folder, fuse(folder), words)


def test_a_missing_row_is_refused_by_name(folder: Path) -> None:
    rows = table(folder / "b.csv")
    write(folder / "b.csv", [row for row in rows if row[0] != "17"])
    refused(folder, fuse(folder), "b.csv has no row for id 17 (", "labels.csv line 19", "--allow-missing")
    write(folder / "b.csv", [row for row in rows if row[0] != "50"])
    refused(folder, fuse(folder), "b.csv has no row for id 50 (", "a.csv line 52")


def test_strict_refuses_what_is_odd(folder: Path) -> None:
    change(folder / "a.csv", 4, "2,0.5,0.5,0.5,0.5")
    refused(folder, fuse(folder, "--strict"), "a.csv line 4", "sum to 2", "--strict")
    change(folder / "a.csv", 4, "2,0.25,0.25,0.25,0.25")
    change(folder / "labels.csv", 3, "1,yak")
    refused(folder, fuse(folder, "--strict"), "labels.csv line 3", "'yak'", "--strict")


def test_strict_does_not_say_what_it_did_not_do(folder: Path) -> None:
    change(folder / "a.csv", 4, "2,0.5,0.5,0.5,0.5")
    result = fuse(folder, "--strict")
    refused(folder, result, "the probabilities sum to 2, not 1 (1 of 60 rows) (refused by --strict)")
    assert "scaled" not in said(result)


def test_one_row_is_no_rows(folder: Path) -> None:
    change(folder / "a.csv", 4, "2,0,0,0,0")
    refused(folder, fuse(folder), "all probabilities are 0 (1 such row);")
    change(folder / "a.csv", 4, "2")
    refused(folder, fuse(folder), "a.csv line 4 has 1 cell, but the header has 5")


@pytest.mark.parametrize("name", ["id", "prediction"])
def test_classes_called_like_other_columns_are_refused(folder: Path, name: str) -> None:
    text = (folder / "labels.csv").read_text()
    (folder / "labels.csv").write_text(text.replace("emu", name))
    refused(folder, fuse(folder), f"labels.csv: the class '{name}'", "rename the class")
    for file in ("a", "c"):
        path = folder / f"{file}.csv"
        path.write_text(path.read_text().replace("emu", name))
    refused(folder, fuse(folder), f"a.csv: the class '{name}'", "rename the class, as a column and as a label")


def test_ids_called_prediction_are_refused(folder: Path) -> None:
    path = folder / "a.csv"
    path.write_text(path.read_text().replace("id,", "prediction,", 1))
    refused(folder, fuse(folder), "a.csv: the output has a column 'prediction'", "rename the column of ids")


def test_a_class_called_id_is_fine_where_ids_are_not(folder: Path) -> None:
    for name in ("a", "b", "c", "labels"):
        path = folder / f"{name}.csv"
        path.write_text(path.read_text().replace("id,", "key,", 1).replace("emu", "id"))
    assert fuse(folder).exit_code == 0
    assert table(folder / "fused.csv")[0] == ["key", "prediction", "cat", "cow", "dog", "id"]


def test_wrong_files_are_refused(folder: Path) -> None:
    refused(folder, fuse(folder, files=("a.csv", "none.csv")), "no such file", "none.csv")
    refused(folder, fuse(folder, files=("a.csv", ".")), "is a folder")
    (folder / "in.xlsx").write_bytes(b"PK")
    refused(folder, fuse(folder, files=("a.csv", "in.xlsx")), "in.xlsx", "unknown extension '.xlsx'")
    refused(folder, fuse(folder, files=("a.csv",)), "at least two files")
    refused(folder, fuse(folder, files=("a.csv", "a.csv")), "given twice")
    refused(folder, fuse(folder, files=("a.csv", "b\udcff.csv")), "rename it")
    refused(folder, fuse(folder, "--labels", str(folder / "in.none.csv")), "no such file")
    refused(folder, CliRunner().invoke(app, ["fuse", "a.csv", "b.csv", "--out", "x.csv"]), "--labels")


def test_wrong_npz_and_parquet_are_refused(folder: Path) -> None:
    path = folder / "in.npz"
    path.write_bytes(b"not a zip file")
    refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz is no readable npz file")
    np.savez(path, ids=["1"], scores=[[0.5, 0.5]])
    refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz has no array 'classes'")
    np.savez(path, ids=["1"], classes=["cat", "dog"], scores=[[0.5, 0.5, 0.0]])
    refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz", "(1, 2)", "(1, 3)")
    np.savez(path, ids=["1"], classes=["cat", "dog"], scores=[["x", "y"]])
    refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz: scores must be numbers")
    np.savez(path, ids=np.array([{}], dtype=object), classes=["cat", "dog"], scores=[[0.5, 0.5]])
    refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz is no readable npz file")
    np.savez(path, ids=["1", "2"], classes=["cat", "dog"], scores=[[0.5, 0.5], [1.5, -0.5]])
    refused(folder, fuse(folder, files=("a.csv", "in.npz")), "in.npz row 2: class 'dog' has -0.5")
    pytest.importorskip("pandas")
    (folder / "in.parquet").write_bytes(b"PAR1 and nothing more")
    refused(folder, fuse(folder, files=("a.csv", "in.parquet")), "in.parquet is no readable parquet file")


def test_wrong_options_are_refused(folder: Path) -> None:
    refused(folder, fuse(folder, "--fuser", "magic"), "unknown fuser 'magic'", "arithmetic")
    refused(folder, fuse(folder, "--folds", "1"), "--folds must be at least 2")
    refused(folder, fuse(folder, "--id", "key"), "has no column 'key'")
    refused(folder, fuse(folder, "--label", "truth"), "labels.csv has no column 'truth'")
    assert CliRunner().invoke(app, ["fuse", "--folds", "many"]).exit_code == 2
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("faverage ")


def test_outputs_are_not_overwritten_without_force(folder: Path) -> None:
    report = folder / "report.html"
    report.write_text("mine")
    result = fuse(folder)
    assert result.exit_code == 2 and "report.html exists already" in said(result)
    assert report.read_text() == "mine" and not (folder / "fused.csv").exists()
    assert fuse(folder, "--force").exit_code == 0
    assert report.read_text() != "mine"
    result = fuse(folder, "--force", "--out", str(folder / "a.csv"))
    assert result.exit_code == 2 and "is an input" in said(result)


def test_outputs_that_cannot_be_written_are_refused(folder: Path) -> None:
    refused(folder, fuse(folder, "--out", str(folder / "none" / "x.csv")), "the folder", "does not exist")
    refused(folder, fuse(folder, "--out", str(folder / "x.txt")), "must end in .csv")
    (folder / "x.csv").mkdir()
    refused(folder, fuse(folder, "--out", str(folder / "x.csv")), "it is a folder")


def test_a_failure_while_writing_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("faverage.fuse.run.save_bundle", full)
    refused(folder, fuse(folder), "cannot write", "No space left on device")


# Python, memory, imports ----------------------------------------------------------------------------------------------


def test_functions_do_the_same_without_a_terminal(folder: Path, fused: tuple[Path, Result]) -> None:
    files = [folder / f"{name}.csv" for name in "abc"]
    result = fuse_files(files, folder / "labels.csv", folder / "fused.csv")
    assert [m.name for m in result.members] == ["a", "b", "c"] and result.labelled == 45
    assert (folder / "fused.csv").read_bytes() == (fused[0] / "fused.csv").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        apply_files(result.outputs[2], files, folder / "fused.csv")


def test_reading_needs_little_more_than_the_numbers(tmp_path: Path) -> None:
    n, width = 20_000, 100
    row = ",".join(["0.01"] * width)
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("id," + ",".join(f"c{i}" for i in range(width)) + "\n")
        file.writelines(f"{i},{row}\n" for i in range(n))
    code = (
        "import resource, sys; from pathlib import Path; from faverage.fuse import Listener, read\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "t = read.read_predictions(Path(sys.argv[1]), id_column=None, allow_missing=False, listener=Listener())\n"
        "print(t.scores.nbytes / 1024, peak() - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    size, grown = (float(word) for word in out.split())
    assert size == n * width * 4 / 1024
    assert grown < 3 * size + 20_000  # KiB; the ids, their lines, and the sums of rows


def test_import_of_the_engine_loads_no_terminal_library() -> None:
    code = "import sys, faverage.fuse; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "typer", "pandas", "matplotlib"} & set(loaded)
