"""Feature extraction and its cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from faverage import vision
from faverage.vision import (
    BaseModel,
    Evaluate,
    Extractor,
    Eyes,
    Shards,
    extract_features,
    get_backbone,
    open_features,
    store_features,
)
from helpers_vision import Killed, drawn


class Counting(nn.Module):
    """Features are the mean of each channel; counts its images and can fail after some."""

    seen = 0
    limit = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counting.seen += len(x)
        if Counting.seen > Counting.limit:
            raise Killed
        return x.mean((2, 3)) * self.weight


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(Counting, "seen", 0)
    monkeypatch.setattr(Counting, "limit", 10**9)
    return Counting()


def test_features_follow_the_indices_and_the_dtype(counting: Counting) -> None:
    images, _ = drawn(40)
    transform = Evaluate(16)
    everything = extract_features(counting, images, transform=transform, device="cpu", batch_size=7)
    some = extract_features(counting, images, [5, 3, 5], transform=transform, device="cpu", dtype="float16")
    assert everything.shape == (40, 3) and everything.dtype == np.float32
    assert some.dtype == np.float16 and np.allclose(some, everything[[5, 3, 5]], atol=2e-3)
    expected = (images / 255 - vision.IMAGENET_MEAN) / vision.IMAGENET_STD
    assert np.allclose(everything, expected.mean((1, 2)), atol=1e-5)


def test_an_extractor_is_asked_again_and_again(counting: Counting) -> None:
    images, _ = drawn(40)
    everything = extract_features(counting, images, transform=Evaluate(16), device="cpu", batch_size=7)
    extractor = Extractor(counting, Evaluate(16), device="cpu", batch_size=7)
    with torch.no_grad():
        counting.weight.zero_()  # what was copied does not change
    assert np.array_equal(extractor(images), everything) and np.array_equal(extractor(images[:3]), everything[:3])
    assert extractor(images[:0]).shape == (0, 3)
    model = BaseModel(counting, "linear", torch.zeros(2, 3), torch.zeros(2), None, Evaluate(16))
    with pytest.warns(DeprecationWarning, match="Extractor"):
        assert np.array_equal(Eyes(model, "cpu")(list(images)), 0 * everything)


OPTIONS: dict[str, Any] = {"transform": Evaluate(16), "device": "cpu"}


def test_a_cpu_sees_large_images_a_few_at_a_time_and_channels_last() -> None:
    backbone = get_backbone("tiny", dimension=8)
    large, small = (Extractor(backbone, Evaluate(side), device="cpu") for side in (64, 63))
    assert (large.batch_size, small.batch_size) == (32, 256)
    assert Extractor(backbone, Evaluate(64), device="cpu", batch_size=5).batch_size == 5
    own = Extractor(torch.nn.Flatten(), Evaluate(64), device="cpu")  # any module may count on the usual layout
    assert [one.layout for one in (large, small, own)] == [torch.channels_last] + 2 * [torch.contiguous_format]
    images = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    with torch.no_grad():
        whole = backbone.eval()(Evaluate(64)(torch.from_numpy(images)))
    assert np.allclose(large(images), whole.numpy(), atol=1e-5)


@pytest.mark.parametrize("has", [True, False])
def test_a_cpu_that_has_bfloat16_stores_features_of_large_images_with_it(
    has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: has, raising=False)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: has, raising=False)
    backbone = get_backbone("tiny", dimension=8)
    images = np.random.default_rng(0).integers(0, 256, (600, 64, 64, 3), dtype=np.uint8)
    exact = extract_features(backbone, images, transform=Evaluate(64), device="cpu")
    for side, kind in ((64, "bfloat16" if has else "float32"), (63, "float32")):
        stored = store_features(backbone, images, folder=tmp_path / str(side), transform=Evaluate(side), device="cpu")
        assert json.loads((tmp_path / str(side) / "manifest.json").read_text())["key"]["precision"] == kind
        if side == 64:
            assert np.allclose(stored, exact, atol=0.05) and np.array_equal(stored, exact) != has
    assert [len(part) for part in stored.parts] == [512, 88]  # a kill loses no more than these


def test_killed_extraction_goes_on_at_the_last_part(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(100)
    options = OPTIONS | {"batch_size": 2, "part_rows": 32, "folder": tmp_path}
    expected = extract_features(counting, images, **OPTIONS)
    Counting.seen, Counting.limit = 0, 80
    with pytest.raises(Killed):
        store_features(counting, images, **options)
    with pytest.raises(ValueError, match="holds no whole features"):
        open_features(tmp_path)
    Counting.seen, Counting.limit = 0, 10**9
    resumed = store_features(counting, images, **options)
    assert Counting.seen == 1 + 36  # one image for the dimension, and what two whole parts leave
    assert isinstance(resumed.parts[0], np.memmap) and np.array_equal(resumed, expected)
    Counting.seen = 0
    again = store_features(counting, images, **options)
    assert Counting.seen == 1 and np.array_equal(again, expected)
    names = {f"part-0000{k}.{kind}" for k in range(4) for kind in ("npy", "json")}
    assert {file.name for file in tmp_path.iterdir()} == names | {"manifest.json"}
    assert np.array_equal(open_features(tmp_path, check=True), expected)


def test_a_broken_part_is_made_again_alone(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(100)
    options = OPTIONS | {"part_rows": 32, "folder": tmp_path}
    expected = np.array(store_features(counting, images, **options))
    file = tmp_path / "part-00002.npy"
    bytes_ = bytearray(file.read_bytes())
    bytes_[-5] ^= 1
    file.write_bytes(bytes_)
    open_features(tmp_path)
    with pytest.raises(ValueError, match=r"part-00002.npy is broken: run store_features again"):
        open_features(tmp_path, check=True)
    Counting.seen = 0
    with pytest.warns(UserWarning, match=r"part-00002.npy is broken"):
        again = store_features(counting, images, **options)
    assert Counting.seen == 1 + 32 and np.array_equal(again, expected)


def test_parts_are_made_again_when_weights_or_images_change(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(40)
    options = OPTIONS | {"folder": tmp_path, "part_rows": 10}
    first = np.array(store_features(counting, images, **options))
    changed = images.copy()
    changed[25] = 0
    Counting.seen = 0
    store_features(counting, changed, **options)
    assert Counting.seen == 1 + 10  # one part alone
    with torch.no_grad():
        counting.weight.mul_(2)
    assert np.allclose(store_features(counting, images, **options), 2 * first)
    shorter = store_features(counting, images, np.arange(15), **options)
    assert np.allclose(shorter, 2 * first[:15]) and not (tmp_path / "part-00003.npy").exists()


def test_images_in_shards_give_the_same_features(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(50)
    for k, part in enumerate(np.split(images, [7, 30])):
        np.save(tmp_path / f"{k}.npy", part)
    shards = Shards([np.load(tmp_path / f"{k}.npy", mmap_mode="r") for k in range(3)])
    rows = np.random.default_rng(0).permutation(50)
    stored = store_features(counting, shards, rows, folder=tmp_path / "out", part_rows=16, **OPTIONS)
    assert np.array_equal(stored, extract_features(counting, images, rows, **OPTIONS))


def test_shards_pick_rows_as_an_array_does() -> None:
    whole = np.arange(40).reshape(20, 2)
    shards = Shards([whole[:1], whole[1:12], whole[12:12], whole[12:]])
    assert shards.shape == whole.shape and len(shards) == 20 and np.array_equal(shards, whole)
    for rows in (3, -1, slice(2, 17, 3), slice(None, None, -1), [19, 0, 0, 5, -2], whole[:, 0] % 3 == 0, []):
        assert np.array_equal(shards[rows], whole[rows]), rows
    for rows in (20, [0, -21], np.ones(3, bool), [0.5], [[1]]):
        with pytest.raises(IndexError):
            shards[rows]
    with pytest.raises(ValueError, match="the arrays differ"):
        Shards([whole, whole[:, :1]])
    with pytest.raises(ValueError, match="at least one"):
        Shards([])


def test_features_that_are_no_numbers_are_refused(counting: Counting) -> None:
    images, _ = drawn(10)
    with torch.no_grad():
        counting.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="not numbers"):
        extract_features(counting, images, **OPTIONS)
