"""``faverage fuse``: what it writes, its report, and the functions behind it."""

import re
import shlex
import subprocess
import sys
import warnings
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss
from typer.testing import CliRunner, Result

from faverage.cli.commands import app
from faverage.fusion import FUSERS, Fuser, register_fuser
from faverage.prediction_files import UserError, apply_files, compare, fuse_files
from helpers_fuse import CLASSES, assert_refused, change, fuse, said, table, write

# What it writes -------------------------------------------------------------------------------------------------------


def test_predictions_of_every_row_in_the_order_of_the_first_file(fused: tuple[Path, Result]) -> None:
    folder, result = fused
    assert result.exit_code == 0, result.output
    rows = table(folder / "fused.csv")
    assert rows[0] == ["id", "prediction", *CLASSES]
    assert [row[0] for row in rows[1:]] == [row[0] for row in table(folder / "a.csv")[1:]]
    p = np.array([row[2:] for row in rows[1:]], float)
    np.testing.assert_allclose(p.sum(1), 1, rtol=0, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns of rows that do not sum to one
        log_loss([CLASSES[i % 4] for i in range(60)], p, labels=CLASSES)
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
    assert re.findall(r"(\w\.csv) lacks (.*)", out) == [
        ("b.csv", "1 of 4 classes: 'emu'"),
        ("c.csv", "1 of 4 classes: 'cat'"),
    ]
    assert said(fused[1]) == ""


def test_what_fuse_wrote_can_be_fused_again(folder: Path, fused: tuple[Path, Result]) -> None:
    rows = table(fused[0] / "fused.csv")
    write(folder / "in.csv", rows)
    again = fuse(folder, "--strict", files=("a.csv", "in.csv"))
    assert again.exit_code == 0, again.output
    assert re.search(r"in\.csv: the column 'prediction' holds labels and is no class: it is left out", said(again))
    rows[3][1] = "yak"
    write(folder / "in.csv", rows)
    wrong = fuse(folder, "--force", files=("a.csv", "in.csv"))
    assert wrong.exit_code == 2 and "in.csv line 4: the prediction 'yak' is no column" in said(wrong)


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
    assert_refused(folder, fuse(folder, files=("a.csv", "c.parquet")), "c.parquet row 4: class 'cow' has nan")
    frame.assign(emu="often").to_parquet(folder / "c.parquet")
    assert_refused(folder, fuse(folder, files=("a.csv", "c.parquet")), "c.parquet: column 'emu' must be numbers")
    pandas.DataFrame({"id": ["0", "1"], "label": ["cat", None]}).to_parquet(folder / "labels.parquet")
    assert_refused(
        folder, fuse(folder, "--labels", str(folder / "labels.parquet")), "labels.parquet row 2: id 1 has no label"
    )


def test_parquet_without_pandas_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    (folder / "b.parquet").write_bytes(b"PAR1")
    assert_refused(folder, fuse(folder, files=("a.csv", "b.parquet")), "b.parquet", "pip install pandas")
    assert fuse(folder).exit_code == 0


def test_id_and_label_columns_byte_order_mark_quotes_and_blank_lines(folder: Path, fused: tuple[Path, Result]) -> None:
    for name in ("a", "b", "c"):
        head, *rows = table(folder / f"{name}.csv")
        lines = [",".join(f'"{cell}"' for cell in [*row[1:], row[0]]) for row in [[*["key"], *head[1:]], *rows]]
        (folder / f"{name}.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    rows = table(folder / "labels.csv")[1:]
    write(folder / "labels.csv", [["note", "truth", "key"], *(["x", row[1], row[0]] for row in rows)])
    assert_refused(folder, fuse(folder, "--id", "key"), "labels.csv", "--label", "'note', 'truth'")
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


def test_a_misspelt_class_is_noticed(folder: Path) -> None:
    head, *rows = table(folder / "b.csv")
    write(folder / "b.csv", [[*head[:-1], head[-1].upper()], *rows])
    result = fuse(folder)
    assert result.exit_code == 0, result.output
    assert f"b.csv alone has the class '{head[-1].upper()}', which is no label either: is it misspelt?" in said(result)


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


def test_files_of_one_name_are_told_apart_by_their_folders(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / f"{name}.csv").rename(folder / name / "in.csv")
    result = fuse(folder, files=("a/in.csv", "b/in.csv"))
    assert "model a/in" in result.stdout and "model b/in" in result.stdout


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


# Python, memory, imports ----------------------------------------------------------------------------------------------


def test_functions_do_the_same_without_a_terminal(folder: Path, fused: tuple[Path, Result]) -> None:
    files = [folder / f"{name}.csv" for name in "abc"]
    result = fuse_files(files, folder / "labels.csv", folder / "fused.csv")
    assert [m.name for m in result.members] == ["a", "b", "c"] and result.labelled == 45
    assert (folder / "fused.csv").read_bytes() == (fused[0] / "fused.csv").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        apply_files(result.outputs[2], files, folder / "fused.csv")


@pytest.mark.slow
def test_reading_needs_little_more_than_the_numbers(tmp_path: Path) -> None:
    n, width = 20_000, 100
    row = ",".join(["0.01"] * width)
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("id," + ",".join(f"c{i}" for i in range(width)) + "\n")
        file.writelines(f"{i},{row}\n" for i in range(n))
    code = (
        "import resource, sys; from pathlib import Path; from faverage.prediction_files import Listener, read\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "t = read.read_predictions(Path(sys.argv[1]), id_column=None, allow_missing=False, listener=Listener())\n"
        "print(t.scores.nbytes / 1024, peak() - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    size, grown = (float(word) for word in out.split())
    assert size == n * width * 4 / 1024
    assert grown < 3 * size + 20_000  # KiB; the ids, their lines, and the sums of rows


# What is compared, and what is said on the way ------------------------------------------------------------------------


def test_compare_names_the_fusers_of_the_table(folder: Path) -> None:
    some = fuse(folder, "--compare", "arithmetic, log-pool,arithmetic")
    assert some.exit_code == 0 and some.stdout.count("arithmetic ") >= 1 and "log-pool" in some.stdout
    assert "--compare" in unescape((folder / "report.html").read_text())
    none = fuse(folder, "--compare", "none", "--force", "--folds", "99")
    assert none.exit_code == 0 and "log-loss" not in none.stdout and "Most trusted model" in none.stdout
    assert "Nothing was compared" in (folder / "report.html").read_text()
    for name in ("fused.csv", "report.html", "fuser.safetensors"):
        (folder / name).unlink()
    assert_refused(folder, fuse(folder, "--compare", "log-pool,magic"), "unknown fuser 'magic'", "arithmetic, log-pool")
    assert_refused(folder, fuse(folder, "--by-position"), "--by-position goes with --apply")


def test_without_a_terminal_progress_comes_in_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from faverage import progress
    from faverage.prediction_files import Screen

    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    with Screen(Console(stderr=True, force_terminal=False)) as screen:
        files = [folder / f"{name}.csv" for name in "abc"]
        fuse_files(files, folder / "labels.csv", folder / "fused.csv", listener=screen)
    said = capsys.readouterr().err.splitlines()
    assert "comparing fusers: 50 %, 1 of 2" in "\n".join(said) and len(said) < 20


@pytest.mark.slow
def test_a_table_of_all_fusers_loads_no_compiler_no_scikit_learn_and_no_terminal_library(folder: Path) -> None:
    files = [str(folder / f"{name}.csv") for name in "abc"]
    code = (
        "import sys; from faverage.prediction_files import fuse_files\n"
        "fuse_files(sys.argv[1:4], sys.argv[4], sys.argv[5]); print(*sys.modules)"
    )
    words = [sys.executable, "-c", code, *files, str(folder / "labels.csv"), str(folder / "fused.csv")]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch._dynamo", "sklearn", "sympy"} & set(loaded)  # each takes longer than a fuser
    assert not {"rich", "typer", "pandas", "matplotlib"} & set(loaded)
