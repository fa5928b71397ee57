"""Backbones, their weights, and what the import loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from faverage.vision import backbone_names, get_backbone, load_weights


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
        options = {"width": 16} if name.startswith("resnet") else {}
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
    with pytest.raises(ValueError, match=r"unknown backbone 'vgg'; known are: resnet18_large"):
        get_backbone("vgg")
    with pytest.raises(ValueError, match="does not take these options"):
        get_backbone("tiny", depth=3)


@pytest.mark.slow
def test_import_loads_nothing_heavy() -> None:
    code = "import sys, faverage.vision; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "PIL", "tensorboard", "sklearn", "torchvision"} & {name.split(".")[0] for name in loaded}
