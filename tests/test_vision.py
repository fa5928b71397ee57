"""Left of the feature seam: backbones, augmentation, base training with kill and resume, cached features."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from faverage import vision
from faverage.vision import (
    Augment,
    BaseModel,
    Evaluate,
    backbone_names,
    extract_features,
    get_backbone,
    hold_out,
    learning_rate,
    load_weights,
    train_base,
    transforms_for,
)
from faverage.vision._device import Store
from faverage.vision._loop import Loop
from faverage.vision._step import Objective, Step
from faverage.vision.model import Head, Network


def drawn(n: int, side: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw coloured shapes on noise: a red square, a green bar, a blue frame, a yellow cross."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 60, (n, side, side, 3)).astype(np.uint8)
    labels = np.arange(n) % 4
    for image, label in zip(images, labels, strict=True):
        y, x = generator.integers(2, side - 9, 2)
        patch = image[y : y + 7, x : x + 7]
        if label == 0:
            patch[..., 0] = 220
        elif label == 1:
            patch[2:5, :, 1] = 220
        elif label == 2:
            patch[[0, -1], :, 2] = patch[:, [0, -1], 2] = 220
        else:
            patch[3, :, :2] = patch[:, 3, :2] = 220
    return images, labels


def quick(images: np.ndarray, labels: np.ndarray, **options: Any) -> BaseModel:
    settings: dict[str, Any] = {"backbone": "tiny", "epochs": 4, "batch_size": 32, "lr": 0.05, "device": "cpu"}
    return train_base(images, labels, **(settings | options))


def same(a: BaseModel, b: BaseModel) -> bool:
    left, right = a.backbone.state_dict(), b.backbone.state_dict()
    return torch.equal(a.head_weight, b.head_weight) and all(torch.equal(left[k], right[k]) for k in left)


# --- backbones


def torchvision_shapes() -> dict[str, tuple[int, ...]]:
    """Write down the names and shapes of torchvision's ResNet-18."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 512), "fc.bias": (1000,)}

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    for stage, channels in enumerate((64, 128, 256, 512), 1):
        before = 64 if stage == 1 else channels // 2
        for block in range(2):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (channels, before if block == 0 else channels, 3, 3)
            shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            norm(f"{name}.bn1", channels)
            norm(f"{name}.bn2", channels)
            if block == 0 and stage > 1:
                shapes[f"{name}.downsample.0.weight"] = (channels, before, 1, 1)
                norm(f"{name}.downsample.1", channels)
    return shapes


def torchvision_state() -> dict[str, torch.Tensor]:
    return {name: torch.tensor(3) if shape == () else torch.rand(shape) for name, shape in torchvision_shapes().items()}


def test_resnet18_has_torchvisions_names_and_count() -> None:
    module = get_backbone("resnet18_large")
    expected = {k: v for k, v in torchvision_shapes().items() if not k.startswith("fc.")}
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == expected
    assert sum(p.numel() for p in module.parameters()) == 11_176_512


@pytest.mark.parametrize("name", backbone_names())
def test_backbones_give_their_dimension_and_never_negative(name: str) -> None:
    for side in (8, 33) if name == "tiny" else (32, 84):
        options = {} if name == "tiny" else {"width": 16}
        module = get_backbone(name, **options)
        features = module(torch.rand(2, 3, side, side))
        assert features.shape == (2, module.dimension)
        assert features.min() >= 0
        assert get_backbone(**module.config()).state_dict().keys() == module.state_dict().keys()


def test_small_stem_keeps_the_resolution() -> None:
    seen = {}
    for stem in ("small", "large"):
        module = get_backbone(f"resnet18_{stem}", width=8)
        module.layer1.register_forward_hook(lambda _m, _x, y, stem=stem: seen.update({stem: y.shape[-1]}))
        module(torch.rand(2, 3, 32, 32))
    assert seen == {"small": 32, "large": 8}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_torchvision_checkpoint_loads(tmp_path: Path, suffix: str) -> None:
    from safetensors.torch import save_file

    path, state = tmp_path / f"resnet18{suffix}", torchvision_state()
    torch.save(state, path) if suffix == ".pth" else save_file(state, path)
    module = load_weights(get_backbone("resnet18_large"), path)
    assert torch.equal(module.state_dict()["layer3.0.downsample.0.weight"], state["layer3.0.downsample.0.weight"])
    with pytest.raises(ValueError, match=r"conv1.weight has shape \(64, 3, 7, 7\), expected \(64, 3, 3, 3\).*_large"):
        load_weights(get_backbone("resnet18_small"), path)
    with pytest.raises(ValueError, match=r"does not fit this TinyNet: no tensor .* more"):
        load_weights(get_backbone("tiny"), path)


def test_checkpoints_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_weights(get_backbone("tiny"), tmp_path / "none.pth")
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(ValueError, match=r"text.pth cannot be read"):
        load_weights(get_backbone("tiny"), tmp_path / "text.pth")
    torch.save({"epoch": 3}, tmp_path / "odd.pth")
    with pytest.raises(ValueError, match="does not hold a state dict"):
        load_weights(get_backbone("tiny"), tmp_path / "odd.pth")


def test_unknown_names_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown backbone 'vgg': choose from resnet18_large"):
        get_backbone("vgg")
    with pytest.raises(ValueError, match="does not take these options"):
        get_backbone("tiny", depth=3)


# --- augmentation


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


# --- protocol


def test_hold_out_keeps_up_to_twenty_and_at_most_a_sixth() -> None:
    labels = np.repeat([0, 1, 2, 3], [500, 60, 30, 5])
    rows = hold_out(labels)
    assert np.bincount(labels[rows], minlength=4).tolist() == [20, 10, 5, 0]
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, hold_out(labels)) and not np.array_equal(rows, hold_out(labels, seed=1))
    assert hold_out([]).shape == (0,)
    with pytest.raises(ValueError, match="at_most"):
        hold_out(labels, at_most=1.0)


def test_schedules() -> None:
    paper = [learning_rate("paper", 0.1, epoch, 50) for epoch in (0, 29.9, 30, 39, 40, 49)]
    assert paper == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = [learning_rate("cosine", 0.1, epoch, 50) for epoch in (0, 25, 50)]
    assert cosine == pytest.approx([0.1, 0.05, 0.0])
    with pytest.raises(ValueError, match="unknown schedule"):
        learning_rate("linear", 0.1, 0, 50)  # type: ignore[arg-type]


# --- training


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_training_learns_drawn_shapes(head: Any, tmp_path: Path) -> None:
    images, labels = drawn(256)
    model = quick(images, labels, head=head, epochs=12)
    assert list(model.history) == ["loss", "accuracy", "lr", "seconds"]
    assert model.history["loss"][-1] < model.history["loss"][0]
    assert model.images_per_second > 0
    others, truth = drawn(100, seed=1)
    features = extract_features(model.backbone, others, transform=model.transform, device="cpu")
    logits = model.logits(torch.from_numpy(features))
    assert (logits.argmax(1).numpy() == truth).mean() > 0.9
    assert (model.head_bias is None) == (head == "cosine") == (model.scale == 16.0)
    again = BaseModel.load(model.save(tmp_path / "base.safetensors"))
    assert same(model, again) and again.history == model.history and again.config == model.config
    assert torch.equal(again.logits(torch.from_numpy(features)), logits)
    assert load_weights(get_backbone("tiny"), tmp_path / "base.safetensors")


def test_bfloat16_on_the_cpu_learns_too() -> None:
    images, labels = drawn(64)
    model = quick(images, labels, precision="bfloat16", epochs=6, augment=Augment(16, crop="none"))
    assert model.history["accuracy"][-1] > 0.8
    assert model.config["ran"] == {"device": "cpu", "precision": "bfloat16", "step": "plain"}
    assert all(p.dtype == torch.float32 and p.grad is None for p in model.backbone.parameters())


class Killed(Exception):
    pass


def kill_after(epoch: int) -> Any:
    def callback(number: int, row: dict[str, float]) -> None:
        if number + 1 == epoch:
            raise Killed

    return callback


def test_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    images, labels = drawn(100)
    straight = quick(images, labels)
    path = tmp_path / "training.safetensors"
    options: dict[str, Any] = {"checkpoint": path, "checkpoint_seconds": 0}
    with pytest.raises(Killed):
        quick(images, labels, on_epoch=kill_after(2), **options)
    torch.rand(7)  # the state of the global generator must not matter
    seen: list[int] = []
    resumed = quick(images, labels, on_epoch=lambda number, row: seen.append(number), **options)
    assert seen == [2, 3]
    assert same(straight, resumed)
    assert resumed.history["loss"] == straight.history["loss"]
    finished = quick(images, labels, on_epoch=kill_after(4), **options)
    assert same(straight, finished)
    assert list(tmp_path.iterdir()) == [path]
    assert load_weights(get_backbone("tiny"), path)


def test_training_survives_a_real_kill(tmp_path: Path) -> None:
    images, labels = drawn(64)
    np.save(tmp_path / "images.npy", images)
    path = tmp_path / "training.safetensors"
    code = f"""
import os, signal, numpy as np, torch
from faverage.vision import train_base
torch.set_num_threads(1)
def kill(epoch, row):
    if epoch == 1:
        os.kill(os.getpid(), signal.SIGKILL)
images = np.load({str(tmp_path / "images.npy")!r}, mmap_mode="r")
train_base(images, np.arange(64) % 4, backbone="tiny", epochs=4, batch_size=32, lr=0.05, device="cpu",
           checkpoint={str(path)!r}, checkpoint_seconds=0, on_epoch=kill)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert same(quick(images, labels, checkpoint=path), quick(images, labels))


def test_dropout_resumes_alike(tmp_path: Path) -> None:
    images, labels = drawn(64)
    module = nn.Sequential(get_backbone("tiny", dimension=16), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    straight = quick(images, labels, backbone=module)
    options: dict[str, Any] = {"checkpoint": tmp_path / "c.safetensors", "checkpoint_seconds": 0, "backbone": module}
    with pytest.raises(Killed):
        quick(images, labels, on_epoch=kill_after(1), **options)
    assert same(straight, quick(images, labels, **options))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    with pytest.raises(ValueError, match=r"Sequential has no config\(\)"):
        straight.save(tmp_path / "model.safetensors")


def test_seed_determines_the_result_and_leaves_the_global_generator_alone() -> None:
    images, labels = drawn(64)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = quick(images, labels, epochs=1, seed=np.int64(0))
    assert torch.equal(torch.rand(1), expected)
    assert same(first, quick(images, labels, epochs=1))
    assert not same(first, quick(images, labels, epochs=1, seed=1))


def test_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    images, labels = drawn(64)
    path = tmp_path / "training.safetensors"
    quick(images, labels, epochs=1, checkpoint=path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"another training: training.lr is 0.05 there and 0.1 here.*delete"):
        quick(images, labels, epochs=1, checkpoint=path, lr=0.1)
    with pytest.raises(ValueError, match=r"fingerprint.images"):
        quick(255 - images, labels, epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match=r"backbone.dimension is 128 there and 32 here"):
        quick(images, labels, epochs=1, checkpoint=path, backbone=get_backbone("tiny", dimension=32))
    assert path.read_bytes() == content
    other = tmp_path / "other.safetensors"
    other.write_text("not a checkpoint")
    with pytest.raises(ValueError, match="not a file saved by faverage"):
        quick(images, labels, epochs=1, checkpoint=other)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        quick(images, labels, epochs=1, checkpoint=tmp_path / "none" / "c.safetensors")


class Fuse(nn.Module):
    """A backbone that gives NaN after a number of training steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.inner, self.steps, self.dimension = get_backbone("tiny", dimension=8), steps, 8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps -= 1
        return self.inner(x) * (float("nan") if self.steps < 0 else 1.0)


def test_nan_stops_with_words_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    images, labels = drawn(64)
    path = tmp_path / "training.safetensors"
    with pytest.raises(
        FloatingPointError, match=r"loss is nan in epoch 2 of 4: try a learning rate below 0.05; .*good"
    ):
        quick(images, labels, backbone=Fuse(3), checkpoint=path, checkpoint_seconds=0)
    from faverage.storage import read_tensors

    about, tensors = read_tensors(path, "BaseCheckpoint")
    assert len(about["history"]["loss"]) == 1
    assert all(tensor.isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize(("n", "batch_size", "steps"), [(65, 32, 2), (33, 32, 1), (20, 128, 1), (64, 32, 2)])
def test_incomplete_batch_is_dropped_unless_it_is_the_only_one(n: int, batch_size: int, steps: int) -> None:
    images, labels = drawn(n)
    model = quick(images, labels, batch_size=batch_size, epochs=1, augment=Augment(8))
    tracked = model.backbone.state_dict()["norms.0.num_batches_tracked"]
    assert tracked == steps


def test_indices_choose_what_is_trained_on(tmp_path: Path) -> None:
    images, labels = drawn(96)
    stored = np.lib.format.open_memmap(tmp_path / "images.npy", mode="w+", dtype=np.uint8, shape=images.shape)
    stored[:] = images
    rows = np.setdiff1d(np.arange(96), hold_out(labels))
    assert same(quick(stored, labels, epochs=1, indices=rows), quick(images[rows], labels[rows], epochs=1))


def test_bad_input_is_named() -> None:
    images, labels = drawn(16)
    for changes, words in [
        ({"labels": labels[:-1]}, r"labels must be 16 whole numbers"),
        ({"labels": labels * 2}, r"no image to train on has label 1, but labels go up to 6"),
        ({"labels": labels - 1}, r"must not be negative, found -1"),
        ({"images": images.astype(np.float32)}, r"uint8 of shape \(n, S, S, 3\), got float32"),
        ({"images": images[:, :8]}, r"got uint8 of shape \(16, 8, 16, 3\)"),
        ({"indices": [3, 16]}, r"indices must lie in 0 … 15"),
        ({"epochs": 0}, r"epochs from 1"),
        ({"head": "deep"}, r"unknown head 'deep'"),
        ({"schedule": "linear"}, r"unknown schedule"),
        ({"precision": "float8"}, r"unknown precision"),
        ({"device": "abacus"}, r"unknown device 'abacus'"),
    ]:
        with pytest.raises(ValueError, match=words):
            quick(**({"images": images, "labels": labels} | changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_missing_gpu_is_said() -> None:
    images, labels = drawn(16)
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        quick(images, labels, device="cuda")


def test_tensorboard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = drawn(16)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="TensorBoard is not installed: pip install"):
        quick(images, labels, tensorboard=tmp_path)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    images, labels = drawn(64)
    model = quick(images, labels, epochs=2, progress=True)
    assert "training" in capsys.readouterr().out
    extract_features(model.backbone, images, transform=model.transform, device="cpu", progress=True)
    assert "features" in capsys.readouterr().out


def test_trial_steps_leave_no_trace() -> None:
    images, labels = drawn(64)
    augment, _ = transforms_for(16)
    device = torch.device("cpu")
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, device, torch.float32, torch.contiguous_format)
    step = Step(objective, side=16, batch_size=32, momentum=0.9, weight_decay=5e-4)
    loop = Loop(
        step, Store(images, np.arange(64), device), torch.from_numpy(labels), augment, seed=0, rate=lambda epoch: 0.1
    )
    before = {name: tensor.clone() for name, tensor in step.state().items()}
    row = loop.epoch(0, lambda: None)
    assert not torch.equal(step.state()["head.weight"], before["head.weight"])
    step.restore(before)
    assert all(torch.equal(before[name], tensor) for name, tensor in step.state().items())
    assert loop.epoch(0, lambda: None)["loss"] == row["loss"]
    with pytest.raises(ValueError, match="does not fit"):
        step.restore({})


def test_what_cannot_be_sped_up_stays_plain_and_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", broken)
    augment, _ = transforms_for(16)
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, torch.device("cpu"), torch.float32, torch.contiguous_format)
    step = Step(objective, side=16, batch_size=8, momentum=0.9, weight_decay=5e-4)
    before = {name: tensor.clone() for name, tensor in step.state().items()}
    with pytest.warns(UserWarning) as caught:
        step.speed_up(compile_mode="default", capture=True)
    words = [str(warning.message) for warning in caught]
    assert any("torch.compile failed" in w and "no compiler here" in w for w in words)
    assert any("capture failed" in w for w in words)
    assert step.variant == "plain"
    assert all(torch.equal(before[name], tensor) for name, tensor in step.state().items())
    step()
    assert step.totals[0] > 0


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, faverage.vision; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "PIL", "tensorboard", "sklearn", "torchvision"} & {name.split(".")[0] for name in loaded}


def test_objective_traces_as_one_graph() -> None:
    augment, _ = transforms_for(16)
    device = torch.device("cpu")
    network = Network(get_backbone("tiny", dimension=8), Head(8, 4)).train()
    objective = Objective(network, augment, device, torch.bfloat16, torch.contiguous_format)
    batch, noise = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8), torch.rand(4, 8)
    labels = torch.arange(4)
    expected, _ = objective(batch, labels, noise)
    traced = torch.compile(objective, backend="eager", fullgraph=True, dynamic=False)
    assert torch.allclose(traced(batch, labels, noise)[0], expected, atol=1e-2)


# --- features


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
