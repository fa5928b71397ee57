"""``faverage run`` against mistakes: each message names the thing, what was found and what to do."""

import errno
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.data import benchmark_names
from helpers_data import mini_zips, photos
from helpers_run import FAST, ODD, QUICK, command, npy, numbers, odd_photos, ready, said

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

PIECES = {
    "cifar100": ("cifar-100-python.tar.gz", "cifar-100-python/train"),
    "cub200": ("CUB_200_2011.tgz", "train_test_split.txt"),
    "fgvc-aircraft": ("fgvc-aircraft-2013b.tar.gz", "data/images_variant_test.txt"),
    "folder": ("one sub-folder a class", "photos/"),
    "mini-imagenet": ("TOPIC and CEC", "images-0.zip"),
    "tiered-imagenet": ("few-shot-ssl-public", "tiered_imagenet/"),
}


@pytest.mark.parametrize("name", sorted(set(benchmark_names()) - {"digits"}))
@pytest.mark.parametrize("data", ["", "nowhere", "empty"])
def test_missing_data_says_what_to_fetch_and_where_to_put_it(name: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = command(name, *(("--data", tmp_path / data) if data else ()), "--out", tmp_path / "out")
    assert result.exit_code == 2 and all(piece in said(result) for piece in PIECES[name])
    assert (str(tmp_path / data) if data else "--data on the command line) or set FAVERAGE_DATA") in said(result)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]  # what is refused leaves no folders behind


def test_half_a_zip(tmp_path: Path) -> None:
    part = mini_zips(tmp_path) / "mini_imagenet" / "images-1.zip"
    part.write_bytes(part.read_bytes()[:300])
    result = command("mini-imagenet", "--data", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "images-1.zip is not a whole zip archive" in said(result)
    assert "300 bytes" in said(result) and "fetch this part again" in said(result)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: ten", "epochs must be a whole number of at least 0, got 'ten'"),
        ("epochs: true", "epochs must be a whole number of at least 0, got True"),
        ("methods: 3", "methods must be names, as 'afa, vote' or [afa, vote], got 3"),
        ("methods:", "methods must be names, as 'afa, vote' or [afa, vote], got None"),
        ("methods: [3]", "unknown method '3'; known are: "),
        ("crop: -1", "crop must be a whole number of at least 8 and at most 1024 pixels, got -1"),
        ("crop: 9999", "at most 1024 pixels, got 9999"),
        ("device: gpu", "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'gpu'"),
        ("device: 3", "device must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 3"),
        ("device: cuda:99", "device 'cuda:99' was asked for, but torch sees"),
        ("seed: -1", "seed must be a whole number of at least 0 and at most 4294967295, got -1"),
        ("seed: 99999999999999999999", "at most 4294967295, got 99999999999999999999"),
        ("weights: none.pth", "weights: no such file: none.pth; expected a checkpoint of tiny: correct the path"),
        ("weights: run.yaml", "run.yaml is no checkpoint: expected a state dict"),
        (
            "backbone: vgg",
            "unknown backbone 'vgg'; known are: efficientnet_lite0, efficientnet_lite1, efficientnet_lite2, "
            "resnet18_large, resnet18_small, tiny",
        ),
        ("backbone: [tiny]", "unknown backbone ['tiny']; known are: "),
        ("weight_decay: lots", "weight_decay must be a number >= 0, got 'lots'"),
        ("weight_decay: -1", "weight_decay must be a number >= 0, got -1"),
        ("temperature: hot", "temperature must be a number > 0, got 'hot'"),
        ("threshold: .inf", "threshold must be a number > 0, got inf"),
        ("flip: maybe", "flip must be true or false, got 'maybe'"),
        ("features: 3", "features must be a path, got 3"),
        ("data: 3", "data must be a path, got 3"),
        ("batch_size: 1", "batch_size must be a whole number of at least 2, got 1"),
        ("", "must hold settings as 'name: value' lines, found nothing"),
        (
            "lr: 1e9\nbatch_size: 16",
            "training the base session: the training loss is nan in epoch 1 of 1: try a learning rate below 1e+09",
        ),
    ],
)
def test_wrong_settings(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(text)
    more = () if text.startswith("epochs") else ("--epochs", 1)
    result = command("digits", "--config", "run.yaml", *more, "--out", "out")
    assert result.exit_code == 2 and words in said(result)
    assert not Path("out", "results.json").exists()


def test_numbers_as_yaml_reads_them(tmp_path: Path) -> None:
    """YAML takes 1e-3 for text."""
    from faverage.experiment import RunConfig

    (tmp_path / "run.yaml").write_text("lr: 1e-3\nweight_decay: 0\n")
    assert RunConfig.build("digits", tmp_path / "run.yaml", {}).lr == 0.001


def test_out_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "below"):
        result = command(*FAST, "--out", out)
        assert result.exit_code == 2 and f"--out {out} must be a folder, but {file} is a file" in said(result)
    assert file.read_text() == "mine"

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        assert "the folder cannot be made (Permission denied): name one that you may write" in said(
            command(*FAST, "--out", out)
        )
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("faverage.storage.tempfile.mkstemp", lambda dir, **_: refuse(dir))
        result = command(*FAST, "--out", out)
    assert result.exit_code == 2 and f"permission denied: {out}" in said(result)
    assert "name a folder that you may write with --out" in said(result)


def test_a_folder_of_odd_photos_from_start_to_end(tmp_path: Path) -> None:
    root, out = odd_photos(tmp_path / "photos"), tmp_path / "out"
    (tmp_path / "run.yaml").write_text(QUICK)
    arguments = ("folder", "--data", root, "--config", tmp_path / "run.yaml", "--out", out)
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    assert r"Warning: folder: skipped 1 of 50 images: photos/c\nd/cut.jpg (" in said(result)
    results = json.loads((out / "results.json").read_text())
    assert sorted(results["methods"]["afa"]["explanation"]["classes"]) == sorted(ODD)
    assert results["protocol"]["skipped"] == 1
    page = (out / "report.html").read_text()
    assert "é&lt;b&gt;&amp;|" in page and "é<b>" not in page and "\x1b" not in page
    assert (out / "table.md").read_text().count("| afa (tied ") == 3 and r"\textbf" in (out / "table.tex").read_text()

    (root / "empty\n").mkdir()
    result = command(*arguments)
    assert result.exit_code == 2 and r"class 'empty\n' has 0 usable images; 5 shots and a test image need 6" in said(
        result
    )
    (root / "empty\n").rmdir()
    (root / "zz" / "7.jpg").unlink()
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    assert "base training starts anew" not in said(result)  # zz is a new class: the base images are the same
    (root / ODD[4] / "7.jpg").unlink()
    result = command(*arguments)
    assert result.exit_code == 0 and "base training starts anew" in said(result) and "other images" in said(result)
    assert list(out.glob("work/*/base-checkpoint.safetensors.old"))


def test_small_classes(tmp_path: Path) -> None:
    """Six photos a class suffice for five shots; two classes, or five photos, do not."""
    (tmp_path / "run.yaml").write_text(QUICK)
    config = ("--config", tmp_path / "run.yaml")
    six = photos(tmp_path / "six", classes=5, each=6)
    assert command("folder", "--data", six, *config, "--out", tmp_path / "out").exit_code == 0
    two = photos(tmp_path / "two", classes=2, each=9)
    result = command("folder", "--data", two, *config, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "the base session has one class, 'class 0 é'&', but at least 2" in said(result)
    result = command("folder", "--data", six, *config, "--shots", 6, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "has 6 usable images; 6 shots and a test image need 7" in said(result)
    one = photos(tmp_path / "one", classes=5, each=2)
    result = command("folder", "--data", one, *config, "--shots", 1, "--out", tmp_path / "out")
    assert result.exit_code == 2 and "has 1 training image, but at least 2 are needed" in said(result)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test": None}, "lacks the array 'test'; needed are: "),
        ({"test": np.zeros((36, 7))}, "'test' must be numbers of shape (n, 8), got float64 (36, 7)"),
        ({"novel": np.full((25, 8), np.nan)}, "'novel' must hold finite numbers"),
        ({"base_head_bias": np.zeros(3)}, "'base_head_bias' has 3 rows, but there are 4 base_prototypes"),
        ({"test_labels": np.zeros(5, int)}, "'test_labels' must be 36 whole numbers, got int64 (5,)"),
        (
            {"novel_labels": np.arange(25) % 5},
            "'novel_labels' must have every class from 4 to 8 and no other, but 0 is",
        ),
        (
            {"test_labels": np.arange(36) % 8},
            "'test_labels' must have every class from 0 to 8 and no other, but 8 is not",
        ),
        ({"test": np.array([["a"]])}, "'test' must be numbers"),
    ],
)
def test_wrong_ready_features(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = ready(tmp_path / "f.npz", **changes)
    result = command("mini-imagenet", "--features", path, "--methods", "vote", "--out", tmp_path / "out")
    assert result.exit_code == 2 and str(path) in said(result) and words in said(result)


def test_a_file_that_holds_no_features(tmp_path: Path) -> None:
    path = ready(tmp_path / "f.npz")
    whole = path.read_bytes()
    for content in (whole[:500], b"", b"text", npy(np.zeros(3))):
        path.write_bytes(content)
        result = command("mini-imagenet", "--features", path, "--out", tmp_path / "out")
        assert result.exit_code == 2 and f"{path} is not a whole .npz file of arrays" in said(result)
        assert "pickle" not in said(result)  # advice of NumPy that is not safe to follow
    table = tmp_path / "rf.csv"
    table.write_text("id,cat,dog\n1,0.5,0.5\n")
    words = said(command("mini-imagenet", "--features", table, "--out", tmp_path / "out"))
    assert f"{table} is not an .npz file: give one that --save-features wrote" in words
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("test.npy", b"junk")
    assert "lacks the array" in said(command("mini-imagenet", "--features", path, "--out", tmp_path / "out"))


def test_other_labels_are_other_results(tmp_path: Path) -> None:
    """The same features under other labels, in the same folder: nothing old is taken for new."""
    arguments = ("mini-imagenet", "--methods", "vote", "--jobs", 1, "--out", tmp_path / "out", "--features")
    assert command(*arguments, ready(tmp_path / "f.npz")).exit_code == 0
    first = numbers(tmp_path / "out")
    assert command(*arguments, ready(tmp_path / "f.npz", test_labels=np.arange(36)[::-1] % 9)).exit_code == 0
    assert numbers(tmp_path / "out") != first


def test_names_in_tables_are_escaped() -> None:
    from faverage.experiment.tables import latex, markdown

    session = {name: 0.5 for name in ("accuracy", "base", "new", "harmonic", "f1", "forgetting")}
    results = {"dataset": "d", "seed": 0, "methods": {"a|b_c\n50%": {"sessions": [session, session]}}}
    assert r"| a\|b\_c 50% | 50.00 | 50.00 | 50.00 |" in markdown(results)
    assert r"a|b\_c 50\% & 50.00 & 50.00" in latex(results)


def test_the_learning_rate_follows_the_batch_size(tmp_path: Path) -> None:
    from faverage.experiment import RunConfig

    file = tmp_path / "run.yaml"
    file.write_text("batch_size: 256\n")
    assert RunConfig.build("mini-imagenet", file, {}).lr == pytest.approx(0.2)
    assert RunConfig.build("digits", file, {}).lr == pytest.approx(0.2)
    file.write_text("batch_size: 256\nlr: 0.03\n")
    assert RunConfig.build("mini-imagenet", file, {}).lr == 0.03
    assert RunConfig.build("mini-imagenet", None, {}).lr == 0.1
