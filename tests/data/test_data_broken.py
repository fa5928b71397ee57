"""Benchmarks: broken images, archives, lists and requests."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faverage.data import DataError, load_benchmark
from helpers_data import SMALL, cifar, cub, mini_folders, mini_zips, photos, picture, put, same


def test_broken_images_are_named_and_skipped(tmp_path: Path, cache: Path) -> None:
    root = photos(tmp_path / "photos", each=9)
    good = load_benchmark("folder", root, cache=cache)
    victims = sorted(root.rglob("1.jpg"))[:3]
    for victim, data in zip(victims, (picture(1, side=64)[:700], b"", b"not an image"), strict=True):
        victim.write_bytes(data)
    for _ in ("decoded", "from the cache"):
        with pytest.warns(UserWarning, match=r"skipped 3 of 63 images: .*1\.jpg \(.*truncated"):
            benchmark = load_benchmark("folder", root, cache=cache)
        assert [Path(name).parent.name for name, _ in benchmark.skipped] == [v.parent.name for v in victims]
        assert len(benchmark.images) == len(benchmark.labels) == len(good.images) - 3
        assert np.array_equal(benchmark.images[-1], good.images[-1])
    with pytest.warns(UserWarning, match="skipped 3"):
        serial = load_benchmark("folder", root, cache=tmp_path / "serial", workers=1)
        parallel = load_benchmark("folder", root, cache=tmp_path / "parallel", workers=4)
    assert serial.skipped == parallel.skipped == benchmark.skipped
    assert np.array_equal(serial.images, parallel.images) and same(serial, parallel)


def test_what_is_no_file_or_runs_a_program_is_skipped(tmp_path: Path, cache: Path) -> None:
    root = photos(tmp_path / "photos", each=9)
    device, pipe, script = sorted(root.rglob("1.jpg"))[:3]
    for victim in (device, pipe, script):
        victim.unlink()
    device.symlink_to("/dev/zero")
    os.mkfifo(pipe)
    Image.new("RGB", (64, 64)).save(script, "EPS")
    with pytest.warns(UserWarning, match="skipped 3 of 63"):
        found = load_benchmark("folder", root, cache=cache)
    reasons = [reason for _, reason in found.skipped]
    assert "regular file" in reasons[0] and "regular file" in reasons[1] and "not an image" in reasons[2]


def test_an_absent_listed_image_is_skipped(tmp_path: Path, cache: Path) -> None:
    root = mini_folders(tmp_path)
    lost = root / "MINI-ImageNet" / "test" / "n00000004" / "n0000000400000005.jpg"
    lost.unlink()
    with pytest.warns(UserWarning, match="skipped 1 of 63"):
        benchmark = load_benchmark("mini-imagenet", root, cache=cache, **SMALL)
    assert benchmark.skipped == [("n00000004/n0000000400000005.jpg", "listed, but absent")]
    shot = root / "MINI-ImageNet" / "train" / "n00000004" / "n0000000400000002.jpg"
    shot.unlink()
    with pytest.warns(UserWarning), pytest.raises(DataError, match="'n00000004' has 4 usable training images, fewer"):
        load_benchmark("mini-imagenet", root, cache=cache, **SMALL)


def test_bad_archives(tmp_path: Path, cache: Path) -> None:
    root = mini_zips(tmp_path)
    part = root / "mini_imagenet" / "images-1.zip"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"images-1\.zip is not a whole zip"):
        load_benchmark("mini-imagenet", root, cache=cache, **SMALL)
    part.unlink()
    with pytest.raises(DataError, match="of 49 listed images are absent"):
        load_benchmark("mini-imagenet", root, cache=cache, **SMALL)
    (root / "mini_imagenet" / "images-0.zip").rename(part)
    with pytest.raises(DataError, match=r"not images-0\.zip"):
        load_benchmark("mini-imagenet", root, cache=cache, **SMALL)


def test_bad_lists(tmp_path: Path, cache: Path) -> None:
    root = mini_folders(tmp_path)
    lists = root / "index_list" / "mini_imagenet"
    with pytest.raises(DataError, match=r"session_4\.txt is absent"):
        load_benchmark("mini-imagenet", root, cache=cache, base=3, way=2)
    with pytest.raises(DataError, match=r"session_1\.txt has images of 3 classes, the protocol says 60"):
        load_benchmark("mini-imagenet", root, cache=cache, way=2, sessions=2)
    third = (lists / "session_3.txt").read_text()
    put(lists / "session_3.txt", third + "MINI-ImageNet/train/n00000000/n0000000000000008.jpg\n")
    with pytest.raises(DataError, match=r"session_3\.txt repeats class 'n00000000'"):
        load_benchmark("mini-imagenet", root, cache=cache, **SMALL)
    put(lists / "session_3.txt", third + "MINI-ImageNet/train/n00000006/n0000000600000005.jpg\n")
    with pytest.raises(DataError, match=r"name n0000000600000005\.jpg more than once"):
        load_benchmark("mini-imagenet", root, cache=cache, **SMALL)
    birds = cub(tmp_path / "birds")
    put(birds / "index_list" / "cub200" / "session_2.txt", "x/images/004.Bird_3/Bird_3_0007.jpg")
    with pytest.raises(DataError, match="is a test image"):
        load_benchmark("cub200", birds, cache=cache, **SMALL)


def test_bad_requests_and_folders(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=r"unknown benchmark 'cub20'; .*; did you mean 'cub200'\?"):
        load_benchmark("cub20")
    for option in ({"shots": 0}, {"seed": -1}, {"size": 0}, {"workers": 0}, {"detail": 0}, {"base": 0}, {"way": 1.5}):
        with pytest.raises(DataError, match=f"{next(iter(option))} must be a whole number"):
            load_benchmark("digits", **option)
    with pytest.raises(DataError, match="found 10 classes, but 6 base classes and 3 sessions of 2"):
        load_benchmark("digits", sessions=3)
    root = photos(tmp_path / "photos", each=5)
    with pytest.raises(DataError, match="class 'class 0 é'&' has 5 usable images; 5 shots and a test image need 6"):
        load_benchmark("folder", root, cache=cache)
    (tmp_path / "empty" / "a").mkdir(parents=True)
    (tmp_path / "empty" / "b").mkdir()
    with pytest.raises(DataError, match="no images"):
        load_benchmark("folder", tmp_path / "empty", cache=cache)
    for junk in root.rglob("*.jpg"):
        junk.write_bytes(b"junk")
    with pytest.raises(DataError, match="none of 35 images can be decoded"):
        load_benchmark("folder", root, cache=cache)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("owned",)


def test_pickles_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = cifar(tmp_path)
    train = root / "cifar-100-python" / "train"
    half = train.read_bytes()[:500]
    for content, message in ((pickle.dumps(Evil()), "do not trust it"), (half, "fetch it again"), (b"", "fetch it")):
        train.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load_benchmark("cifar100", root, **SMALL)
    assert not (tmp_path / "owned").exists()
