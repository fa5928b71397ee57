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
from faverage.vision import Evaluate, extract_features
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


def test_killed_extraction_goes_on_at_the_last_part(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(100)
    path = tmp_path / "features.npy"
    options: dict[str, Any] = {"transform": Evaluate(16), "device": "cpu", "batch_size": 2}
    expected = extract_features(counting, images, **options)
    Counting.seen, Counting.limit = 0, 80
    with pytest.raises(Killed):
        extract_features(counting, images, cache=path, **options)
    assert not path.exists() and json.loads((tmp_path / "features.npy.json").read_text())["rows"] == 64
    Counting.seen, Counting.limit = 0, 10**9
    resumed = extract_features(counting, images, cache=path, **options)
    assert Counting.seen == 1 + 36
    assert isinstance(resumed, np.memmap) and np.array_equal(resumed, expected)
    Counting.seen = 0
    again = extract_features(counting, images, cache=path, **options)
    assert Counting.seen == 1 and np.array_equal(again, expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["features.npy", "features.npy.json"]


def test_cache_is_written_anew_when_weights_or_images_change(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(10)
    options: dict[str, Any] = {"transform": Evaluate(16), "device": "cpu", "cache": tmp_path / "f.npy"}
    first = np.array(extract_features(counting, images, **options))
    with torch.no_grad():
        counting.weight.mul_(2)
    assert np.allclose(extract_features(counting, images, **options), 2 * first)
    assert not np.allclose(extract_features(counting, 255 - images, **options), 2 * first)


def test_cache_refuses_what_it_did_not_write(counting: Counting, tmp_path: Path) -> None:
    images, _ = drawn(10)
    options: dict[str, Any] = {"transform": Evaluate(16), "device": "cpu"}
    np.save(tmp_path / "mine.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"mine.npy exists, but no manifest"):
        extract_features(counting, images, cache=tmp_path / "mine.npy", **options)
    assert np.load(tmp_path / "mine.npy").shape == (3,)
    with pytest.raises(ValueError, match=r"a .npy file"):
        extract_features(counting, images, cache=tmp_path / "features.bin", **options)
    with torch.no_grad():
        counting.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="not numbers"):
        extract_features(counting, images, **options)
