"""Benchmarks: every loader on a small drawing of its real layout, seeded draws, and what a benchmark checks."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from faverage.data import Benchmark, DataError, Session, benchmark_names, draw_shots, load_benchmark, store
from faverage.data.decode import decode
from helpers_data import SMALL, aircraft, cifar, cub, mini_folders, mini_zips, photos, picture, same, tiered
from helpers_paths import DATA

LAYOUTS = {
    "mini zips": (mini_zips, "mini-imagenet", 84, "official lists"),
    "mini folders": (mini_folders, "mini-imagenet", 84, "official lists"),
    "cub": (cub, "cub200", 256, "official lists"),
    "cub drawn": (lambda root: cub(root, lists=False), "cub200", 256, "seeded draw (seed 0)"),
    "tiered": (tiered, "tiered-imagenet", 84, "seeded draw (seed 0)"),
    "aircraft": (aircraft, "fgvc-aircraft", 256, "seeded draw (seed 0)"),
    "cifar": (cifar, "cifar100", 32, "official lists"),
    "folder": (photos, "folder", 84, "seeded draw (seed 0)"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_loader_reads_its_layout(layout: str, tmp_path: Path, cache: Path) -> None:
    draw, name, side, source = LAYOUTS[layout]
    root = draw(tmp_path / "data")
    benchmark = load_benchmark(name, root, cache=cache, **SMALL)
    assert benchmark.source == source and not benchmark.skipped
    assert benchmark.images.shape == (len(benchmark.labels), side, side, 3)
    assert [s.classes for s in benchmark.sessions] == [(0, 1, 2), (3, 4), (5, 6)]
    assert benchmark.seen(1) == (0, 1, 2, 3, 4)
    for session in benchmark.sessions[1:]:
        assert np.bincount(benchmark.labels[session.train])[list(session.classes)].tolist() == [5, 5]
    assert set(benchmark.labels[benchmark.test_until(2)].tolist()) == set(range(7))
    assert len(benchmark.test_until(2)) == sum(len(s.test) for s in benchmark.sessions) == 14
    again = load_benchmark(name, root, cache=cache, workers=1, **SMALL)
    assert same(benchmark, again) and np.array_equal(benchmark.images, again.images)


def test_photos_are_stored_with_the_detail_that_is_asked_for(tmp_path: Path, cache: Path) -> None:
    root = cub(tmp_path / "data")
    plain, less, more = (load_benchmark("cub200", root, cache=cache, detail=d, **SMALL) for d in (None, 100, 288))
    assert [one.images.shape[1] for one in (plain, less, more)] == [256, 256, 329]
    assert plain.image_size == more.image_size == 224 and same(plain, more)
    small = load_benchmark("mini-imagenet", mini_zips(tmp_path / "mini"), cache=cache, detail=288, **SMALL)
    assert small.images.shape[1] == 84  # its files have no more


def test_the_pixels_belong_to_the_label(tmp_path: Path, cache: Path) -> None:
    benchmark = load_benchmark("mini-imagenet", mini_zips(tmp_path), cache=cache, size=6, **SMALL)
    for c in range(7):
        expected = decode(picture(10 * c), 6)
        first = next(s for s in benchmark.sessions if c in s.classes).train
        assert np.array_equal(benchmark.images[first[benchmark.labels[first] == c][0]], expected)


def test_digits_need_nothing() -> None:
    digits = load_benchmark("digits")
    assert digits.images.shape == (1797, 16, 16, 3)
    assert [len(s.classes) for s in digits.sessions] == [6, 2, 2] and len(digits.sessions[1].train) == 10
    assert 0.28 < len(digits.test_until(2)) / 1797 < 0.32
    assert abs(digits.images.mean() / 255 - digits.normalise[0][0]) < 0.01
    assert load_benchmark("digits", size=8).images.shape[1] == 8


def test_seeded_draws_repeat_and_differ(tmp_path: Path, cache: Path) -> None:
    assert same(load_benchmark("digits", seed=3), load_benchmark("digits", seed=3))
    assert not same(load_benchmark("digits", seed=3), load_benchmark("digits", seed=4))
    listed = load_benchmark("mini-imagenet", mini_folders(tmp_path), cache=cache, **SMALL)
    one, other = draw_shots(listed, seed=1), draw_shots(listed, seed=2)
    assert same(one, draw_shots(listed, seed=1)) and not same(one, other)
    assert np.array_equal(one.sessions[0].train, listed.sessions[0].train)
    assert np.array_equal(one.test_until(2), listed.test_until(2)) and one.source == "seeded draw (seed 1)"
    assert len(draw_shots(listed, seed=1, shots=7).sessions[1].train) == 14
    fewer = load_benchmark("mini-imagenet", tmp_path, cache=cache, shots=2, seed=5, **SMALL)
    assert len(fewer.sessions[1].train) == 4 and fewer.source == "seeded draw (seed 5)"


def test_zips_hold_the_official_shots_only(tmp_path: Path, cache: Path) -> None:
    listed = load_benchmark("mini-imagenet", mini_zips(tmp_path), cache=cache, **SMALL)
    with pytest.raises(DataError, match="exactly its 5 listed shots"):
        draw_shots(listed, seed=1)
    with pytest.raises(DataError, match="has 5 training images, too few for 6 shots"):
        draw_shots(listed, seed=1, shots=6)


def test_folder_options(tmp_path: Path, cache: Path) -> None:
    root = photos(tmp_path / "photos", classes=10)
    usual = load_benchmark("folder", root, cache=cache)
    assert [len(s.classes) for s in usual.sessions] == [6, 2, 2] and usual.class_names[3] == "class 3 é'&"
    uneven = load_benchmark("folder", root, cache=cache, base=3, way=3, size=20)
    assert [len(s.classes) for s in uneven.sessions] == [3, 3, 3, 1] and uneven.images.shape[1] == 20
    for part in ("train", "test"):
        shutil.copytree(root, tmp_path / "split" / part)
    split = load_benchmark("folder", tmp_path / "split", cache=cache)
    assert len(split.test_until(2)) == 80 and len(split.sessions[0].train) == 48


@pytest.mark.parametrize("name", sorted(set(benchmark_names()) - {"digits"}))
def test_absent_data_says_what_to_fetch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAVERAGE_DATA", raising=False)
    for root in (None, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=rf"{name} needs .*\n"):
            load_benchmark(name, root)


def test_environment_names_the_root(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAVERAGE_DATA", str(cifar(tmp_path)))
    monkeypatch.setenv("FAVERAGE_CACHE", str(cache))
    assert len(load_benchmark("cifar100", **SMALL).class_names) == 7


def test_a_benchmark_checks_itself() -> None:
    def build(train: tuple[list[int], list[int]], classes: tuple[tuple[int, ...], ...] = ((0,), (1,))) -> Benchmark:
        tests = ([1], [3])
        sessions = [Session(c, np.array(t), np.array(s)) for c, t, s in zip(classes, train, tests, strict=True)]
        images = np.zeros((6, 2, 2, 3), np.uint8)
        return Benchmark("x", 2, ["a", "b"], np.array([0, 0, 1, 1, 0, 1]), images, sessions, "drawn")

    assert build(([0], [2])).pool(0).tolist() == [0, 4]
    for bad, message in (
        (([0, 1], [2]), "both a training and a test image"),
        (([0, 2], [5]), "train images of class 'b'"),
        (([0, 0], [2]), "twice"),
        (([0], [99]), "outside"),
    ):
        with pytest.raises(DataError, match=message):
            build(bad)
    with pytest.raises(DataError, match="repeats class 'a'"):
        build(([0], [2]), ((0,), (0,)))
    with pytest.raises(DataError, match="class 'b' has no training image"):
        build(([0], []), ((0,), (1,)))
    with pytest.raises(DataError, match="sessions 0 to 1, got 2"):
        build(([0], [2])).test_until(2)


@pytest.mark.data
@pytest.mark.skipif(
    not (DATA / "mini_imagenet" / "images-0.zip").is_file(), reason="FAVERAGE_DATA has no mini-ImageNet"
)
def test_the_real_mini_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faverage.data import assemble

    taken: list[object] = []

    def few(name: str, items: list, side: int, **options: object) -> tuple:
        taken.extend(items)
        images, kept, skipped = store.open_store(name, items[::400], side, cache=tmp_path)
        assert len(kept) == len(items[::400]) and not skipped and 90 < images.mean() < 140
        return np.lib.stride_tricks.as_strided(images, (len(items), 84, 84, 3), (0, 0, 0, 0)), np.arange(len(items)), []

    monkeypatch.setattr(assemble, "open_store", few)
    benchmark = load_benchmark("mini-imagenet", DATA)
    assert len(taken) == 40_200 and len(benchmark.class_names) == 100
    assert [len(s.classes) for s in benchmark.sessions] == [60] + [5] * 8
    assert [len(s.train) for s in benchmark.sessions] == [30_000] + [25] * 8
    assert np.bincount(benchmark.labels[benchmark.test_until(8)]).tolist() == [100] * 100
    assert benchmark.seen(8) == tuple(range(100))
