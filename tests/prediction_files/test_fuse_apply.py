"""``faverage fuse --apply``: the fuser of an earlier run on new files."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from faverage.cli.commands import app
from helpers_fuse import assert_refused, change, said, table, write


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


def rename(folder: Path, **names: str) -> list[str]:
    for old, new in names.items():
        (folder / f"{old}.csv").rename(folder / f"{new}.csv")
    return [f"{new}.csv" for new in names.values()]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("names", [("a_new", "b_new", "c_new"), ("a", "b-in", "C in 2"), ("in.a", "in.b", "in.c")])
def test_apply_finds_the_model_of_a_file_by_its_name(
    folder: Path, fused: tuple[Path, Result], names: tuple[str, ...], order: list[int]
) -> None:
    files = rename(folder, **dict(zip("abc", names, strict=True)))
    result = apply(folder, fused[0] / "fuser.safetensors", *(files[i] for i in order))
    assert result.exit_code == 0 and said(result) == "", result.output
    assert sorted(table(folder / "in.fused.csv")) == sorted(table(fused[0] / "fused.csv"))


@pytest.mark.parametrize("names", [("in", "b", "c"), ("in.x", "in.y", "in.z"), ("a", "a_in", "c")])
def test_apply_takes_files_by_position_only_when_told_to(
    folder: Path, fused: tuple[Path, Result], names: tuple[str, ...]
) -> None:
    (folder / "keep").mkdir()
    files = rename(folder, **dict(zip("abc", (f"keep/{name}" for name in names), strict=True)))
    fuser = fused[0] / "fuser.safetensors"
    refused = apply(folder, fuser, *files)
    assert refused.exit_code == 2 and "--by-position" in said(refused) and "'a', 'b', 'c'" in said(refused)
    assert not (folder / "in.fused.csv").exists()
    result = apply(folder, fuser, *files, options=("--by-position",))
    assert result.exit_code == 0 and said(result) == "", result.output
    assert (folder / "in.fused.csv").read_bytes() == (fused[0] / "fused.csv").read_bytes()


def test_apply_allows_missing_rows_where_strict(folder: Path, fused: tuple[Path, Result]) -> None:
    fuser = fused[0] / "fuser.safetensors"
    write(folder / "b.csv", table(folder / "b.csv")[:-1])
    asked_for = apply(folder, fuser, "c.csv", "b.csv", "a.csv", options=("--strict", "--allow-missing"))
    assert asked_for.exit_code == 0 and "counted as no answer" in said(asked_for)


@pytest.mark.parametrize(
    "option",
    [
        ("--folds", "5"),
        ("--seed", "0"),
        ("--labels", "x.csv"),
        ("--label", "y"),
        ("--fuser", "afa"),
        ("--compare", "all"),
    ],
)
def test_apply_refuses_options_of_fitting(folder: Path, fused: tuple[Path, Result], option: tuple[str, str]) -> None:
    result = apply(folder, fused[0] / "fuser.safetensors", "a.csv", "b.csv", "c.csv", options=option)
    assert_refused(folder, result, f"leave out {option[0]}")
    assert not (folder / "in.fused.csv").exists()


def test_apply_refuses_ids_that_are_called_like_a_class(folder: Path, fused: tuple[Path, Result]) -> None:
    path = folder / "b.csv"
    path.write_text(path.read_text().replace("id,", "emu,", 1))
    wrong = apply(folder, fused[0] / "fuser.safetensors", "b.csv", "a.csv", "c.csv")
    assert_refused(folder, wrong, "the class 'emu'", "rename the column of ids of", "b.csv")
    assert not (folder / "in.fused.csv").exists()


def test_apply_names_classes_that_do_not_fit(folder: Path, fused: tuple[Path, Result]) -> None:
    fuser = fused[0] / "fuser.safetensors"
    change(folder / "b.csv", 1, "id,dog,cat,yak")
    assert_refused(folder, apply(folder, fuser, "a.csv", "b.csv", "c.csv"), "b.csv", "lacks the class 'cow'", "'yak'")
    assert_refused(folder, apply(folder, fuser, "a.csv", "b.csv"), "3 models ('a', 'b', 'c')", "2 files")
    wrong = apply(folder, fuser, "a.csv", "b.csv", options=("--labels", "x.csv"))
    assert_refused(folder, wrong, "--labels")
    assert_refused(folder, apply(folder, folder / "in.none", "a.csv", "b.csv"), "no such file")
    assert_refused(folder, apply(folder, folder / "a.csv", "a.csv", "b.csv"), "a.csv is not a file saved by faverage")


def test_apply_refuses_a_newer_fuser(folder: Path, fused: tuple[Path, Result]) -> None:
    with safe_open(fused[0] / "fuser.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["faverage"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    header["format"] = 99
    save_file(tensors, folder / "in.safetensors", metadata={"faverage": json.dumps(header)})
    assert_refused(
        folder, apply(folder, folder / "in.safetensors", "a.csv", "b.csv", "c.csv"), "format 99", "upgrade faverage"
    )
