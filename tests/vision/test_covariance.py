"""Second-order pooling: the root of the covariance of channels, its directions, and views of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

from faverage.vision import (
    BaseModel,
    Evaluate,
    ResNet18,
    TinyNet,
    View,
    average_weights,
    extract_features,
    fit_directions,
    get_backbone,
    load_weights,
)
from faverage.vision.backbones import backbone_config
from faverage.vision.covariance import covariance_root, width_of
from faverage.vision.together import by_view
from helpers_vision import drawn, quick

EVALUATE: dict[str, Any] = {"transform": Evaluate(32), "device": "cpu"}


def knowing(name: str = "tiny", k: int = 8, **options: Any) -> torch.nn.Module:
    """A network with fresh weights that knows the directions of drawn images."""
    return fit_directions(get_backbone(name, **options).eval(), drawn(20, 32)[0], directions=k, **EVALUATE)


def maps_of(network: Any, images: Any) -> torch.Tensor:
    with torch.inference_mode():
        maps: torch.Tensor = network.maps(network.first_half(Evaluate(32)(torch.from_numpy(images))))
    return maps


def test_the_root_is_that_of_the_covariance() -> None:
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(5, 6, 4, 9)) * np.array([3, 2, 1, 1, 0.7, 0.5])[:, None, None] + 7
    directions = np.linalg.qr(rng.normal(size=(6, 4)))[0]
    found = covariance_root(torch.from_numpy(maps).float(), torch.from_numpy(directions).float()).numpy()
    for image, row in zip(maps, found, strict=True):
        root = scipy.linalg.sqrtm(directions.T @ np.cov(image.reshape(6, -1), bias=True) @ directions).real
        assert np.allclose(row, root[np.triu_indices(4)], atol=0.01 * np.abs(root).max())


def test_it_depends_on_what_is_together_and_not_on_where() -> None:
    rng = np.random.default_rng(1)
    maps, directions = torch.from_numpy(rng.normal(size=(2, 5, 6, 6))).float(), torch.eye(5)
    usual = covariance_root(maps, directions)
    order = torch.from_numpy(rng.permutation(36))
    moved = maps.flatten(2)[:, :, order].unflatten(2, (6, 6))
    assert torch.allclose(covariance_root(moved, directions), usual, atol=1e-5)
    assert torch.allclose(covariance_root(maps + 3, directions), usual, atol=1e-4)
    assert torch.allclose(covariance_root(5 * maps, directions), 5 * usual, atol=1e-4)
    apart = maps.clone()  # the first channel alone is elsewhere: means and largest values stay
    apart[:, 0] = maps[:, 0].flip(1)
    assert torch.allclose(apart.mean((2, 3)), maps.mean((2, 3)), atol=1e-6)
    assert torch.equal(apart.amax((2, 3)), maps.amax((2, 3)))
    assert not torch.allclose(covariance_root(apart, directions), usual, atol=0.05)


def test_half_precision_outside_does_not_reach_inside() -> None:
    maps = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 16, 5, 5))).float()
    usual = covariance_root(maps, torch.eye(16))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(covariance_root(maps, torch.eye(16)), usual)


@pytest.mark.parametrize("maps", [torch.full((2, 3, 4, 4), 5.0), torch.rand(2, 3, 1, 1), torch.zeros(2, 3, 2, 2)])
def test_images_whose_positions_are_alike_have_none(maps: torch.Tensor) -> None:
    assert torch.equal(covariance_root(maps, torch.eye(3)), torch.zeros(2, 6))


@pytest.mark.parametrize(("name", "d"), [("tiny", 128), ("resnet18_small", 512), ("efficientnet_lite0", 1280)])
def test_directions_are_those_of_most_variance(name: str, d: int) -> None:
    images = drawn(12, 32)[0]
    backbone = get_backbone(name).eval()
    network = fit_directions(backbone, images, directions=5, **EVALUATE)
    assert backbone.directions is None
    weights = network.state_dict()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in backbone.state_dict().items())
    u = network.directions.numpy()
    assert u.shape == (d, 5) and np.allclose(u.T @ u, np.eye(5), atol=1e-5)
    x = maps_of(backbone, images).flatten(2).double().numpy()
    x -= x.mean(2, keepdims=True)
    variances = np.linalg.eigvalsh(np.einsum("ndp,nep->de", x, x))[::-1]
    held = np.einsum("dk,ndp->nkp", u, x)
    assert np.allclose((held**2).sum((0, 2)), variances[:5], rtol=1e-3)
    assert torch.equal(fit_directions(backbone, images, directions=5, **EVALUATE).directions, network.directions)


def test_directions_are_found_on_the_rows_that_are_given() -> None:
    images = drawn(30, 32)[0]
    backbone = get_backbone("tiny").eval()
    first = fit_directions(backbone, images, np.arange(10), **EVALUATE)
    changed = images.copy()
    changed[10:] = 0
    assert torch.equal(fit_directions(backbone, changed, np.arange(10), **EVALUATE).directions, first.directions)
    assert first.directions.shape == (128, 64)
    assert fit_directions(get_backbone("tiny", dimension=16), images, **EVALUATE).directions.shape == (16, 16)


def test_views_of_it_share_the_pass_and_have_a_width_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    images, network = drawn(5, 32)[0], knowing()
    passes: list[int] = []
    real = TinyNet.first_half
    monkeypatch.setattr(TinyNet, "first_half", lambda self, x: passes.append(1) or real(self, x))
    views = ["plain", "covariance", "largest", "both, covariance"]
    seen = by_view(extract_features(network, images, views=views, **EVALUATE), views, network)
    assert len(passes) == 2 * 2  # a batch of one first, to know the width
    assert {view: x.shape for view, x in seen.items()} == dict(zip(views, [(5, 128), (5, 36)] * 2, strict=True))
    assert np.array_equal(seen["plain"], extract_features(network, images, **EVALUATE))
    sides = [
        covariance_root(maps_of(network, x), network.directions).numpy() for x in (images, images[:, :, ::-1].copy())
    ]
    assert np.allclose(seen["covariance"], sides[0], atol=1e-4)
    assert np.allclose(seen["both, covariance"], np.mean(sides, 0), atol=1e-4)
    assert View.parse("both, covariance, rotate-90").name == "both, rotate-90, covariance" and width_of(8) == 36


def test_a_network_keeps_its_directions(tmp_path: Path) -> None:
    images, labels = drawn(40, 32)
    model = quick(images, labels, epochs=1, transform=Evaluate(32))
    model.backbone = fit_directions(model.backbone, images, directions=4, **EVALUATE)
    file = model.save(tmp_path / "model.safetensors")
    again = BaseModel.load(file)
    assert torch.equal(again.backbone.directions, model.backbone.directions)
    assert backbone_config(again.backbone)["directions"] == 4
    plain = load_weights(get_backbone("tiny"), file)  # which has no use for them
    assert plain.directions is None
    assert torch.equal(load_weights(get_backbone("tiny", directions=4), file).directions, model.backbone.directions)
    with pytest.raises(ValueError, match=r"directions has shape \(128, 4\), expected \(128, 5\)"):
        load_weights(get_backbone("tiny", directions=5), file)
    with pytest.raises(ValueError, match="directions=129"):
        get_backbone("tiny", directions=129)
    with pytest.raises(ValueError, match="names and shapes"):
        average_weights([model.backbone, plain])


def test_what_has_no_covariance_says_so() -> None:
    images = drawn(4, 32)[0]
    with pytest.raises(ValueError, match=r"fit_directions, or leave the view out"):
        extract_features(ResNet18("small"), images, views=["covariance"], **EVALUATE)
    with pytest.raises(ValueError, match="Together has none"):
        fit_directions(get_backbone("tiny+tiny"), images, **EVALUATE)
    with pytest.raises(ValueError, match="from 1 to 16, got 17"):
        fit_directions(get_backbone("tiny", dimension=16), images, directions=17, **EVALUATE)
    with pytest.raises(ValueError, match="at least one"):
        fit_directions(get_backbone("tiny"), images, np.zeros(0, dtype=int), **EVALUATE)
    with pytest.raises(ValueError, match="name two views"):
        View.parse("largest, covariance")
