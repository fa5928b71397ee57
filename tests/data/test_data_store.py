"""Benchmarks: decoding, and the store of decoded images."""

import errno
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faverage.data import DataError, load_benchmark, store
from faverage.data.decode import decode
from helpers_data import photos, picture, put


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
        patch.setattr("faverage.progress.Progress.advance", fail)
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
