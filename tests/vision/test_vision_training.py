"""Base training: the protocol, kill and resume, the seed, bad input."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from faverage.storage import read_tensors, write_tensors
from faverage.vision import (
    Augment,
    BaseModel,
    CheckpointError,
    TinyNet,
    extract_features,
    get_backbone,
    hold_out,
    learning_rate,
    load_weights,
)
from faverage.vision.engine.device import pick_precision
from helpers_vision import Killed, drawn, quick, same


def test_hold_out_keeps_up_to_twenty_and_at_most_a_sixth() -> None:
    labels = np.repeat([0, 1, 2, 3], [500, 60, 30, 5])
    rows = hold_out(labels)
    assert np.bincount(labels[rows], minlength=4).tolist() == [20, 10, 5, 0]
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, hold_out(labels)) and not np.array_equal(rows, hold_out(labels, seed=1))
    assert hold_out([]).shape == (0,)
    for small in ("drawn", "last"):
        more = np.setdiff1d(hold_out(labels, small=small), rows)
        assert labels[more].tolist() == [3] and (small == "drawn" or more == len(labels) - 1)
    with pytest.raises(ValueError, match="at_most"):
        hold_out(labels, at_most=1.0)


def test_schedules() -> None:
    paper = [learning_rate("paper", 0.1, epoch, 50) for epoch in (0, 29.9, 30, 39, 40, 49)]
    assert paper == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = [learning_rate("cosine", 0.1, epoch, 50) for epoch in (0, 25, 50)]
    assert cosine == pytest.approx([0.1, 0.05, 0.0])
    with pytest.raises(ValueError, match="unknown schedule"):
        learning_rate("linear", 0.1, 0, 50)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_training_learns_drawn_shapes(head: Any, tmp_path: Path) -> None:
    images, labels = drawn(256)
    model = quick(images, labels, head=head, epochs=8)
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


def kill_after(epoch: int) -> Any:
    def callback(number: int, row: dict[str, float]) -> None:
        if number + 1 == epoch:
            raise Killed

    return callback


def test_a_cpu_that_has_bfloat16_trains_in_it_where_crops_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def kinds() -> list[torch.dtype]:
        return [pick_precision("auto", torch.device("cpu"), side) for side in (63, 64)]

    for amx, avx in ((False, False), (True, False), (False, True)):
        monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda avx=avx: avx, raising=False)
        assert kinds() == [torch.float32, torch.bfloat16 if amx or avx else torch.float32]
    images, labels = drawn(16)
    ran = [quick(images, labels, epochs=1, augment=Augment(side)).config["ran"]["precision"] for side in (16, 64)]
    assert ran == ["float32", "bfloat16"]
    assert (
        quick(images, labels, epochs=1, augment=Augment(64), precision="float32").config["ran"]["precision"]
        == "float32"
    )


def test_crops_grow_in_equal_shares_of_the_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = drawn(64)
    sides: list[int] = []
    first_half = TinyNet.first_half

    def recorded(self: TinyNet, x: torch.Tensor) -> torch.Tensor:
        sides.append(x.shape[-1])
        return first_half(self, x)

    monkeypatch.setattr(TinyNet, "first_half", recorded)
    grown: dict[str, Any] = {"augment": Augment(16), "progressive": [8, 12], "epochs": 6, "batch_size": 64}
    straight = quick(images, labels, **grown)
    assert sides == [8, 8, 12, 12, 16, 16]
    assert straight.config["training"]["progressive"] == [8, 12] and straight.config["augment"]["size"] == 16
    path = tmp_path / "training.safetensors"
    options: dict[str, Any] = {**grown, "checkpoint": path, "checkpoint_seconds": 0}
    with pytest.raises(Killed):
        quick(images, labels, on_epoch=kill_after(3), **options)
    assert same(straight, quick(images, labels, **options)) and sides[6:] == [8, 8, 12, 12, 16, 16]
    with pytest.raises(CheckpointError, match="progressive"):
        quick(images, labels, **options | {"progressive": [8]})
    assert "progressive" not in quick(images, labels, epochs=1).config["training"]


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


@pytest.mark.slow
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


def test_training_whose_folder_is_taken_away_goes_on(tmp_path: Path) -> None:
    images, labels = drawn(64)
    file = tmp_path / "work" / "checkpoint.safetensors"
    file.parent.mkdir()
    options = {"epochs": 2, "checkpoint": file, "checkpoint_seconds": 0}
    model = quick(images, labels, on_epoch=lambda number, _: number or shutil.rmtree(file.parent), **options)
    assert file.exists() and len(model.history["loss"]) == 2
    assert same(model, quick(images, labels, **options))  # it is whole


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


def test_checkpoint_with_other_tensors_is_refused(tmp_path: Path) -> None:
    images, labels = drawn(64)
    path = tmp_path / "training.safetensors"
    quick(images, labels, epochs=1, checkpoint=path)
    about, tensors = read_tensors(path, "BaseCheckpoint")
    write_tensors(path, "BaseCheckpoint", about, {f"old.{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(CheckpointError, match=r"the state does not fit: .*delete the file to start anew"):
        quick(images, labels, epochs=1, checkpoint=path)


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
        ({"progressive": [4, 8, 12, 16]}, r"progressive must be sides of crops from 1, fewer than the 4 epochs"),
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
    with pytest.raises(ImportError, match=r"TensorBoard is not installed: .*pip install .*[[]tensorboard[]]"):
        quick(images, labels, tensorboard=tmp_path)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, in lines on standard error; a terminal gets a bar (tests/experiment/test_run_progress.py)."""
    monkeypatch.setattr("faverage.progress.PATIENCE_SECONDS", 0)
    images, labels = drawn(64)
    model = quick(images, labels, epochs=10, progress=True)
    said = capsys.readouterr()
    assert "training: " in said.err and "left" in said.err and "loss" in said.err and not said.out
    options = {"transform": model.transform, "device": "cpu", "batch_size": 8}
    extract_features(model.backbone, images, progress=True, **options)
    assert "features: " in capsys.readouterr().err
