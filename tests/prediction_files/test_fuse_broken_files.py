"""Broken files: each is refused in one sentence, or gives finite probabilities. Never anything else."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import Result

from faverage.fusion import fuser_names, get_fuser, load_fuser
from faverage.fusion.base import unpack_fuser
from faverage.prediction_files import UserError, apply_files, fuse_files
from helpers_fuse import assert_refused, fuse, said, table, write
from helpers_fusers import make_data

Rng = np.random.Generator
ODD = [None, True, -1, 0, 3, 10**30, 1e300, float("nan"), "", "x", [], {}, [1, "x"], "full", {"a": 1}]


def outcome(work: Callable[[], Path]) -> bool:
    """Return whether the work was done; it may be refused with a UserError of one line, and with nothing else."""
    try:
        written = work()
    except UserError as error:
        assert str(error) and "\n" not in str(error)
        return False
    rows = [list(map(float, row[2:])) for row in table(written)[1:]]
    np.testing.assert_allclose(np.sum(rows, 1), 1, atol=1e-3)
    return True


def spoil(data: bytes, rng: Rng) -> bytes:
    """Flip bytes, cut the end off, or repeat a part."""
    broken, kind = bytearray(data), rng.integers(3)
    if kind == 0:
        for at in rng.integers(0, len(data), rng.integers(1, 6)):
            broken[at] = rng.integers(256)
    elif kind == 1:
        del broken[rng.integers(len(data)) :]
    else:
        at, to = np.sort(rng.integers(0, len(data), 2))
        broken[at:to] = broken[at : at + 3] * 2
    return bytes(broken)


def as_npz(source: Path) -> Path:
    head, *rows = table(source)
    arrays = {"ids": [r[0] for r in rows], "classes": head[1:], "scores": np.array([r[1:] for r in rows], np.float32)}
    np.savez(source.with_suffix(".npz"), **arrays)
    return source.with_suffix(".npz")


def as_parquet(source: Path) -> Path:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(source).to_parquet(source.with_suffix(".parquet"))
    return source.with_suffix(".parquet")


@pytest.mark.parametrize("make", [lambda path: path, as_npz, as_parquet], ids=["csv", "npz", "parquet"])
def test_spoiled_predictions(folder: Path, fused: tuple[Path, Result], make: Callable[[Path], Path]) -> None:
    rng, path, out = np.random.default_rng(0), make(folder / "b.csv"), folder / "in.fused.csv"
    data = path.read_bytes()
    files = [folder / "a.csv", path, folder / "c.csv"]
    out.write_text("before")
    done = 0
    for _ in range(100):
        path.write_bytes(spoil(data, rng))
        ok = outcome(lambda: apply_files(fused[0] / "fuser.safetensors", files, out, force=True, allow_missing=True))
        assert ok or out.read_text() == "before"
        out.write_text("before")
        done += ok
    assert done < 100


def test_spoiled_fuser_files(folder: Path, fused: tuple[Path, Result]) -> None:
    rng, path, out = np.random.default_rng(1), folder / "in.safetensors", folder / "in.fused.csv"
    data = (fused[0] / "fuser.safetensors").read_bytes()
    files = [folder / f"{name}.csv" for name in "abc"]
    refused = 0
    for _ in range(150):
        path.write_bytes(spoil(data, rng))
        out.write_text("before")
        ok = outcome(lambda: apply_files(path, files, out, force=True))
        assert ok or out.read_text() == "before"
        refused += not ok
    assert refused > 50


def edits(value: Any, rng: Rng) -> Iterator[Any]:
    """Yield copies of JSON data, each with one thing replaced, doubled or left out."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: new} for new in edits(value[key], rng))
    elif isinstance(value, list) and value:
        yield value[1:]
        yield [*value, value[0]]
        at = int(rng.integers(len(value)))
        yield from ([*value[:at], new, *value[at + 1 :]] for new in edits(value[at], rng))
    yield from (ODD[i] for i in rng.choice(len(ODD), 4, replace=False))


def test_edited_headers_of_fused_models(folder: Path, fused: tuple[Path, Result]) -> None:
    with safe_open(fused[0] / "fuser.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["faverage"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    files = [folder / f"{name}.csv" for name in "abc"]
    path, out = folder / "in.safetensors", folder / "in.fused.csv"
    refused = 0
    for config in edits(header["config"], np.random.default_rng(2)):
        save_file(tensors, path, metadata={"faverage": json.dumps({**header, "config": config})})
        out.write_text("before")
        ok = outcome(lambda: apply_files(path, files, out, force=True))
        assert ok or out.read_text() == "before"
        refused += not ok
    assert refused > 50


@pytest.mark.parametrize("name", fuser_names())
def test_edited_fusers_are_refused_or_work(name: str) -> None:
    scores, y = make_data(40)
    options = {"epochs": 1} if "epochs" in get_fuser(name).options() else {}
    config, tensors = get_fuser(name, **options).fit(scores, y).pack()
    rng = np.random.default_rng(3)
    changed = [(json.loads(json.dumps(c)), tensors) for c in edits(config, rng)]
    for key, tensor in tensors.items():
        numbers = tensor.double()
        bad = [numbers * np.nan, numbers * 1e40, -numbers, numbers[:1], numbers[None], tensor.to(int), tensor.half()]
        changed += [(config, {**tensors, key: value}) for value in bad]
        changed.append((config, {k: v for k, v in tensors.items() if k != key}))
    for edited, arrays in changed:
        try:
            fuser = unpack_fuser(edited, arrays)
        except ValueError:
            continue
        if fuser._fitted is None or (fuser.n_models, fuser.n_classes) == scores.shape[1:]:
            p = fuser.predict_proba(scores)
            np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="it lacks 'name'"):
        unpack_fuser({}, {})


def test_load_fuser_names_the_file(tmp_path: Path) -> None:
    scores, y = make_data(20)
    fuser = get_fuser("log-pool").fit(scores, y)
    fuser.weights = fuser.weights * np.nan
    with pytest.raises(ValueError, match=r"x.safetensors does not describe .* 'weights' must be finite"):
        load_fuser(fuser.save(tmp_path / "x.safetensors"))


def header_of(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": kind, "fortran_order": False, "shape": shape})
    return text.getvalue()


@pytest.mark.parametrize(
    "member",
    [
        header_of((10**12, 3)),
        header_of((10**30, 3)),
        header_of((2, 3)),
        b"no array",
        header_of((2,), "|O") + b"\x80\x04.",
    ],
    ids=["huge", "overflow", "short", "bytes", "objects"],
)
def test_npz_members_that_cannot_be_read(folder: Path, member: bytes) -> None:
    path = as_npz(folder / "b.csv")
    with zipfile.ZipFile(path) as file:
        others = {name: file.read(name) for name in ("ids.npy", "classes.npy")}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in {**others, "scores.npy": member}.items():
            file.writestr(name, data)
    assert_refused(folder, fuse(folder, files=("a.csv", "b.npz", "c.csv")), "b.npz")


def test_npz_with_an_encrypted_member_structs_or_odd_text(folder: Path) -> None:
    path = as_npz(folder / "b.csv")
    data = bytearray(path.read_bytes())
    for sign, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(sign) + at] |= 1  # "this member is encrypted"
    good = dict(np.load(path))
    path.write_bytes(bytes(data))
    assert_refused(folder, fuse(folder, files=("a.csv", "b.npz")), "b.npz", "encrypted")
    n = len(good["ids"])
    for name, value in {
        "ids": np.zeros(n, [("x", "i4")]),
        "classes": np.array(["cat", "cow", "\ud800"]),
        "scores": np.zeros((n, 3), complex),
    }.items():
        np.savez(path, **{**good, name: value})
        assert_refused(folder, fuse(folder, files=("a.csv", "b.npz")), "b.npz")
    beyond = np.frombuffer(b"\xff" * 36, "<U3")  # no such characters
    for name, value, words in (
        ("classes", np.array(["cat", "c\0w", "dog"]), "zero bytes"),
        ("ids", np.array([f"{i}\0x" for i in range(n)]), "zero bytes"),
        ("classes", beyond, "invalid characters"),
        ("classes", np.frombuffer(b"s\x01B\x01" + bytes(8) + b"\x08\x67\x20\x40" * 6, "<U3"), "invalid characters"),
    ):
        np.savez(path, **{**good, name: value})
        assert_refused(folder, fuse(folder, files=("a.csv", "b.npz")), words)
    np.savez(path, **{**good, "ids": good["ids"].astype(float) * 1e300})
    assert_refused(folder, fuse(folder, files=("a.csv", "b.npz")), "has no row for id")


def test_parquet_with_lists_for_ids(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(folder / "b.csv")
    frame.assign(id=[[i] for i in frame["id"]]).to_parquet(folder / "b.parquet")
    assert_refused(folder, fuse(folder, files=("a.csv", "b.parquet")), "b.parquet", "must be text or numbers")


def test_labels_of_five_thousand_digits(folder: Path) -> None:
    names = {"cat": "9" * 5000, "cow": "08", "dog": "1" + "0" * 5000, "emu": "7"}
    for name in ("a", "b", "c", "labels"):
        rows = [[names.get(cell, cell) for cell in row] for row in table(folder / f"{name}.csv")]
        write(folder / f"{name}.csv", rows)
    assert fuse(folder).exit_code == 0
    assert table(folder / "fused.csv")[0][2:] == ["7", "08", "9" * 5000, "1" + "0" * 5000]


def test_a_full_disk_is_said_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faverage.prediction_files import bundle

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "write_tensors", full)
    assert_refused(folder, fuse(folder), "No space left on device")


def test_names_cannot_steer_the_terminal(folder: Path) -> None:
    for name in ("a", "b", "c", "labels"):
        path = folder / f"{name}.csv"
        path.write_text(path.read_text().replace("cow", "\x1b[2Jcow\x07"))
    result = fuse(folder, "--compare", "none")
    assert result.exit_code == 0 and r"\x1b[2Jcow\x07" in result.stdout
    assert "\x1b[2J" not in result.stdout + said(result) and "\x07" not in result.stdout
    shutil.copy(folder / "a.csv", folder / "in.csv")
    (folder / "in.csv").write_text((folder / "in.csv").read_text().replace("0.", "x.", 1))
    refused = fuse(folder, "--force", files=("in.csv", "b.csv"))
    assert refused.exit_code == 2 and "\x1b" not in said(refused)


def test_ten_thousand_columns_are_checked_at_once(tmp_path: Path) -> None:
    import time

    from faverage.prediction_files.tables import Predictions, check_table

    classes = [f"c{i}" for i in range(50_000)]
    start = time.process_time()
    check_table(Predictions(tmp_path, ["0"], classes, np.ones((1, 50_000)), [1], "row", "id"))
    assert time.process_time() - start < 2
    with pytest.raises(UserError, match="two columns for class 'c7'"):
        check_table(Predictions(tmp_path, ["0"], [*classes, "c7"], np.ones((1, 50_001)), [1], "row", "id"))


def test_fuse_files_is_the_function_behind(folder: Path) -> None:
    (folder / "b.csv").write_bytes(b"\x00\xff")
    with pytest.raises(UserError):
        fuse_files([folder / "a.csv", folder / "b.csv"], folder / "labels.csv", folder / "fused.csv")
