"""Benchmarks: every loader on a small drawing of its real layout, bad data, the decoded store, seeded draws."""

import errno
import io
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faverage.data import Benchmark, DataError, Session, benchmark_names, draw_shots, load_benchmark, store
from faverage.data.decode import decode

SHARED = Path(__file__).parents[2] / "shared" / "data"
REAL = Path(os.environ.get("FAVERAGE_DATA") or SHARED)
SMALL = {"base": 3, "way": 2, "sessions": 2}  # 7 classes


def picture(seed: int = 0, side: int = 6, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def photos(root: Path, classes: int = 7, each: int = 8) -> Path:
    for c in range(classes):
        for i in range(each):
            put(root / f"class {c} é'&" / f"{i}.jpg", picture(100 * c + i))
    return root


def mini_names() -> dict[str, list[str]]:
    return {f"n{c:08d}": [f"n{c:08d}{i:08d}.jpg" for i in range(9)] for c in range(7)}


def mini_lists(folder: Path) -> None:
    """5 training images of each class, 2 test images; images 7 and 8 are on no list."""
    classes = sorted(mini_names())
    for number, group in enumerate((classes[:3], classes[3:5], classes[5:]), 1):
        lines = [f"MINI-ImageNet/train/{c}/{name}" for c in group for name in mini_names()[c][:5]]
        put(folder / f"session_{number}.txt", "\n".join(lines) + "\n")
    put(folder / "test.txt", "\n".join(f"MINI-ImageNet/test/{c}/{n}" for c in classes for n in mini_names()[c][5:7]))


def mini_zips(root: Path) -> Path:
    """Two parts with the listed images only."""
    mini_lists(root / "mini_imagenet" / "split")
    for part in (0, 1):
        with zipfile.ZipFile(root / "mini_imagenet" / f"images-{part}.zip", "w") as archive:
            for c, names in mini_names().items():
                for i, name in enumerate(names[:7]):
                    if i % 2 == part:
                        archive.writestr(f"images/{name}", picture(int(c[1:]) * 10 + i))
    return root


def mini_folders(root: Path) -> Path:
    """All nine images of a class, of which two are on no list."""
    mini_lists(root / "index_list" / "mini_imagenet")
    for c, names in mini_names().items():
        for i, name in enumerate(names):
            put(root / "MINI-ImageNet" / ("test" if i in (5, 6) else "train") / c / name, picture(int(c[1:]) * 10 + i))
    return root


def cub(root: Path, lists: bool = True) -> Path:
    folder = root / "CUB_200_2011"
    tables: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for c in range(7):
        for i in range(8):
            path = f"{c + 1:03d}.Bird_{c}/Bird_{c}_{i:04d}.jpg"
            put(folder / "images" / path, picture(100 * c + i))
            number = 8 * c + i + 1
            values = (path, str(c + 1), str(int(i < 6)))
            for lines, value in zip(tables.values(), values, strict=True):
                lines.append(f"{number} {value}")
    for name, lines in tables.items():
        put(folder / f"{name}.txt", "\n".join(lines))
    for k, group in enumerate(((0, 1, 2), (3, 4), (5, 6)) if lists else (), 1):
        chosen = [f"CUB_200_2011/images/{c + 1:03d}.Bird_{c}/Bird_{c}_{i:04d}.jpg" for c in group for i in range(1, 6)]
        put(root / "index_list" / "cub200" / f"session_{k}.txt", "\n".join(chosen))
    return root


def tiered(root: Path) -> Path:
    for c in range(9):
        for i in range(8):
            put(root / "tiered_imagenet" / "train" / f"n{c:08d}" / f"{i}.jpg", picture(100 * c + i))
    return root


def aircraft(root: Path) -> Path:
    folder = root / "fgvc-aircraft-2013b" / "data"
    lines: dict[bool, list[str]] = {False: [], True: []}
    for c in range(7):
        for i in range(8):
            lines[i > 5].append(f"{100 * c + i:07d} Jet 7{c}7/b")
            put(folder / "images" / f"{100 * c + i:07d}.jpg", picture(100 * c + i))
    put(folder / "images_variant_trainval.txt", "\n".join(lines[False]))
    put(folder / "images_variant_test.txt", "\n".join(lines[True]))
    return root


def cifar(root: Path) -> Path:
    folder = root / "cifar-100-python"
    names = [f"thing {c}".encode() for c in range(7)]
    put(folder / "meta", pickle.dumps({b"fine_label_names": names}, protocol=2))
    for part, each in (("train", 8), ("test", 2)):
        data = np.random.default_rng(each).integers(0, 256, (7 * each, 3072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": [i % 7 for i in range(7 * each)]}
        put(folder / part, pickle.dumps(content, protocol=2 if part == "train" else 5))
    for k, group in enumerate(((0, 1, 2), (3, 4), (5, 6)), 1):
        lines = "\n".join(str(7 * i + c) for c in group for i in range(5))
        put(root / "index_list" / "cifar100" / f"session_{k}.txt", lines)
    return root


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


def same(a: Benchmark, b: Benchmark) -> bool:
    pairs = zip(a.sessions, b.sessions, strict=True)
    return all(np.array_equal(x.train, y.train) and np.array_equal(x.test, y.test) for x, y in pairs)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


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


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA", "LA", "1", "I;16", "I", "F", "RGB"])
@pytest.mark.parametrize("side", [84, 256])
def test_every_mode_becomes_rgb(mode: str, side: int) -> None:
    image = Image.new("L", (9, 5), 200).convert("RGB" if mode in ("I;16", "I", "F") else mode)
    if mode in ("I;16", "I", "F"):
        image = (
            Image.fromarray(np.full((5, 9), 200 * 257, np.uint16)) if mode == "I;16" else Image.new(mode, (9, 5), 200)
        )
    buffer = io.BytesIO()
    image.save(buffer, "PNG" if mode in ("L", "P", "RGBA", "LA", "1", "I;16") else "TIFF")
    square = decode(buffer.getvalue(), side)
    assert square.shape == (side, side, 3) and square.dtype == np.uint8
    assert abs(int(square.mean()) - (255 if mode == "1" else 200)) <= (55 if mode == "1" else 2)


def test_odd_shapes_and_orientation() -> None:
    assert decode(picture(side=1, kind="PNG"), 256).shape == (256, 256, 3)
    buffer = io.BytesIO()
    Image.new("RGB", (1, 5000), "red").save(buffer, "PNG")
    assert decode(buffer.getvalue(), 256)[0, 0].tolist() == [255, 0, 0]
    wide, turned = np.zeros((4, 8, 3), np.uint8), io.BytesIO()
    wide[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(wide).save(turned, "PNG", exif=exif)
    assert decode(turned.getvalue(), 8)[0].mean() > 200 > decode(turned.getvalue(), 8)[-1].mean()
    clear = io.BytesIO()
    Image.new("RGBA", (2, 2), (0, 0, 0, 0)).save(clear, "PNG")
    assert decode(clear.getvalue(), 2).min() == 255


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
    with pytest.raises(DataError, match=r"'cub20'; did you mean 'cub200'\?"):
        load_benchmark("cub20")
    for option in ({"shots": 0}, {"seed": -1}, {"size": 0}, {"workers": 0}, {"base": 0}, {"way": 1.5}):
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


def test_the_store_is_built_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photos(tmp_path / "photos")
    calls: list[int] = []
    monkeypatch.setattr(store, "decode", lambda data, side: calls.append(1) or decode(data, side))
    first = load_benchmark("folder", root, cache=cache, workers=3)
    assert len(calls) == 56 and isinstance(first.images, np.memmap)
    load_benchmark("folder", root, cache=cache, seed=9, shots=2, base=2)
    assert len(calls) == 56
    (folder,) = cache.iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["images.npy", "manifest.json"]
    manifest = folder / "manifest.json"
    images = folder / "images.npy"
    damages = (
        lambda: manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"key": "other"})),
        lambda: manifest.write_text("{"),
        lambda: images.write_bytes(images.read_bytes()[:-100]),
    )
    for n, damage in enumerate(damages, 2):
        damage()
        again = load_benchmark("folder", root, cache=cache)
        assert len(calls) == 56 * n and again.images.shape == first.images.shape
    put(root / "class 0 é'&" / "new.jpg", picture(5))
    assert len(load_benchmark("folder", root, cache=cache).images) == 57


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_build_leaves_nothing(
    workers: int, error: BaseException, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = photos(tmp_path / "photos", each=20)

    def fail(self: object, steps: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("faverage.data.progress.Progress.advance", fail)
        with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else DataError) as caught:
            load_benchmark("folder", root, cache=cache, workers=workers)
    if isinstance(error, OSError):
        assert "the disk is full" in str(caught.value) and "FAVERAGE_CACHE" in str(caught.value)
    assert [p for p in cache.rglob("*") if p.is_file()] == []
    assert len(load_benchmark("folder", root, cache=cache, workers=workers).images) == 140


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path, cache: Path) -> None:
    root = photos(tmp_path / "photos")
    load_benchmark("folder", root, cache=cache)
    (folder,) = cache.iterdir()
    (folder / "manifest.json").unlink()
    old, young = folder / ".images.npy.a.partial", folder / ".images.npy.b.partial"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    load_benchmark("folder", root, cache=cache)
    assert not old.exists() and young.exists()


def test_too_small_a_disk_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photos(tmp_path / "photos")
    put(tmp_path / "file", "")
    with pytest.raises(DataError, match="cannot write the decoded images"):
        load_benchmark("folder", root, cache=tmp_path / "file")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DataError, match="too little room"):
        load_benchmark("folder", root, cache=tmp_path / "cache")


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


@pytest.mark.skipif(
    not (REAL / "mini_imagenet" / "images-0.zip").is_file(), reason="FAVERAGE_DATA has no mini-ImageNet"
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
    benchmark = load_benchmark("mini-imagenet", REAL)
    assert len(taken) == 40_200 and len(benchmark.class_names) == 100
    assert [len(s.classes) for s in benchmark.sessions] == [60] + [5] * 8
    assert [len(s.train) for s in benchmark.sessions] == [30_000] + [25] * 8
    assert np.bincount(benchmark.labels[benchmark.test_until(8)]).tolist() == [100] * 100
    assert benchmark.seen(8) == tuple(range(100))
