"""Augmentation and evaluation transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from faverage import vision
from faverage.vision import Augment, Evaluate, transforms_for


def ramp(n: int, side: int) -> torch.Tensor:
    """Images whose red channel is 2x and green channel is 2y."""
    image = torch.zeros(side, side, 3, dtype=torch.uint8)
    image[..., 0] = 2 * torch.arange(side)
    image[..., 1] = 2 * torch.arange(side)[:, None]
    return image.expand(n, -1, -1, -1)


PLAIN: dict[str, Any] = {"jitter": 0.0, "mean": (0, 0, 0), "std": (1, 1, 1)}


@pytest.mark.parametrize(("side", "size"), [(84, 84), (256, 224), (32, 32), (16, 16)])
def test_transforms_give_shape_layout_and_range(side: int, size: int) -> None:
    images = torch.randint(0, 256, (6, side, side, 3), dtype=torch.uint8)
    augment, evaluate = transforms_for(side, mean=(0, 0, 0), std=(1, 1, 1))
    for result in (augment(images, augment.draw(6, torch.Generator())), evaluate(images)):
        assert result.shape == (6, 3, size, size)
        assert result.dtype == torch.float32
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert 0 <= result.min() and result.max() <= 1.0001
    assert type(augment)(**augment.config()).config() == augment.config()


def test_augmentation_is_determined_by_the_seed() -> None:
    images = torch.randint(0, 256, (6, 20, 20, 3), dtype=torch.uint8)
    augment = Augment(20)
    first, again, other = (augment(images, augment.draw(6, torch.Generator().manual_seed(s))) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_resized_crops_follow_area_and_ratio_and_cover_the_image() -> None:
    augment = Augment(84)
    size, centre = augment.boxes(augment.draw(20_000, torch.Generator().manual_seed(0)), 84)
    area, ratio = size.prod(1), size[:, 0] / size[:, 1]
    assert 0.0799 <= area.min() and area.max() <= 1.0001
    assert abs(area.mean() - 0.54) < 0.01
    assert 0.7499 <= ratio.min() and ratio.max() <= 1.3334
    assert abs(ratio.log().mean()) < 0.01
    low, high = centre - size / 2, centre + size / 2
    assert -1e-6 <= low.min() < 0.01 and 0.99 < high.max() <= 1 + 1e-6


def test_crop_shows_the_part_that_its_box_names() -> None:
    augment = Augment(64, flip=0.0, **PLAIN)
    noise = augment.draw(50, torch.Generator().manual_seed(0))
    result = augment(ramp(50, 64), noise) * 255 / 2
    size, centre = augment.boxes(noise, 64)
    # the mean of a ramp over a box is its value at the centre
    assert torch.allclose(result[:, :2].mean((2, 3)), centre * 64 - 0.5, atol=0.2)
    slope = (result[:, 0, 0, 40] - result[:, 0, 0, 20]) / 20
    assert torch.allclose(slope, size[:, 0], atol=0.02)


def test_flip_happens_half_the_time() -> None:
    augment = Augment(16, crop="none", **PLAIN)
    result = augment(ramp(1000, 16), augment.draw(1000, torch.Generator().manual_seed(0)))
    mirrored = result[:, 0, 0, 0] > result[:, 0, 0, -1]
    assert 0.45 < mirrored.float().mean() < 0.55
    straight = ramp(1, 16).permute(0, 3, 1, 2).float() / 255
    assert torch.allclose(result[~mirrored], straight.expand_as(result[~mirrored]), atol=1e-5)
    assert torch.allclose(result[mirrored], straight.flip(3).expand_as(result[mirrored]), atol=1e-5)


def test_padded_crop_shifts_by_whole_pixels_over_black() -> None:
    augment = Augment(32, crop="padded", flip=0.0, **PLAIN)
    noise = augment.draw(500, torch.Generator().manual_seed(0))
    result = augment(torch.full((500, 32, 32, 3), 255, dtype=torch.uint8), noise)
    black = 32 - result[:, 0, 16].sum(1)
    assert set(black.round().int().tolist()) == {0, 1, 2, 3, 4}
    assert torch.allclose(black, black.round(), atol=1e-3)


def test_jitter_stays_in_range_and_can_be_off() -> None:
    images = torch.randint(0, 256, (40, 8, 8, 3), dtype=torch.uint8)
    options: dict[str, Any] = {"crop": "none", "flip": 0.0, "mean": (0, 0, 0), "std": (1, 1, 1)}
    augment = Augment(8, jitter=0.2, **options)
    noise = augment.draw(40, torch.Generator().manual_seed(0))
    plain = images.permute(0, 3, 1, 2) / 255
    assert torch.allclose(Augment(8, jitter=0.0, **options)(images, noise), plain, atol=1e-6)
    jittered = augment(images, noise)
    assert 0 <= jittered.min() and jittered.max() <= 1
    assert 0.01 < (jittered - plain).abs().mean() < 0.15
    noise[:, 5:] = 0.5  # factors of exactly 1
    assert torch.allclose(augment(images, noise), plain, atol=1e-6)


@pytest.mark.parametrize(("side", "resize", "size"), [(84, 92, 84), (100, 92, 84), (256, None, 224), (16, None, 16)])
def test_evaluation_transform_is_what_pil_does(side: int, resize: int | None, size: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, side, side, 3)).astype(np.uint8)
    ours = Evaluate(size, resize=resize)(torch.from_numpy(array))
    for image, result in zip(array, ours, strict=True):
        picture = Image.fromarray(image)
        if resize:
            picture = picture.resize((resize, resize), Image.Resampling.BILINEAR)
        start = round((picture.width - size) / 2)
        cut = np.asarray(picture.crop((start, start, start + size, start + size))) / 255
        expected = (cut - vision.IMAGENET_MEAN) / vision.IMAGENET_STD
        assert np.abs(result.permute(1, 2, 0).numpy() - expected).max() < 1.1 / 255 / 0.22


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crop": "five"}, "unknown crop"),
        ({"area": (0.5, 0.2)}, "area"),
        ({"ratio": (1.2, 1.5)}, "ratio"),
        ({"jitter": 1.5}, "jitter"),
        ({"std": (1, 1, 0)}, "std above 0"),
    ],
)
def test_bad_augmentation_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Augment(84, **options)


def test_evaluation_refuses_to_cut_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="cannot cut 84 px out of images of 32 px"):
        Evaluate(84)(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
