"""Pools beyond the mean: the root of the covariance of channels, kinds of places, and views of them."""

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
    fit_pools,
    get_backbone,
    load_weights,
)
from faverage.vision.backbones import backbone_config
from faverage.vision.pools import centres_of, covariance_root, part_means, pool
from faverage.vision.together import by_view
from helpers_vision import drawn, quick

EVALUATE: dict[str, Any] = {"transform": Evaluate(32), "device": "cpu"}


def knowing(name: str = "tiny", k: int = 8, **options: Any) -> torch.nn.Module:
    """A network with fresh weights that knows the directions of drawn images."""
    return fit_pools(get_backbone(name, **options).eval(), drawn(20, 32)[0], directions=k, parts=3, **EVALUATE)


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
    for kind in ("covariance", "texture", "parts"):
        usual = pool(kind, maps, torch.eye(16), torch.eye(16)[:4])
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(pool(kind, maps, torch.eye(16), torch.eye(16)[:4]), usual)


@pytest.mark.parametrize("maps", [torch.full((2, 3, 4, 4), 5.0), torch.rand(2, 3, 1, 1), torch.zeros(2, 3, 2, 2)])
def test_images_whose_positions_are_alike_have_none(maps: torch.Tensor) -> None:
    assert torch.equal(covariance_root(maps, torch.eye(3)), torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("name", "c", "d"), [("tiny", 64, 128), ("resnet18_small", 256, 512), ("efficientnet_lite0", 112, 1280)]
)
def test_directions_are_those_of_most_variance(name: str, c: int, d: int) -> None:
    images = drawn(12, 32)[0]
    backbone = get_backbone(name).eval()
    network = fit_pools(backbone, images, directions=5, **EVALUATE)
    assert backbone.directions is None
    weights = network.state_dict()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in backbone.state_dict().items())
    with torch.inference_mode():
        earlier = backbone.third_quarter(backbone.first_half(Evaluate(32)(torch.from_numpy(images))))
    for u, maps, channels in (
        (network.textures.numpy(), earlier, c),
        (network.directions.numpy(), maps_of(backbone, images), d),
    ):
        assert u.shape == (channels, 5) and np.allclose(u.T @ u, np.eye(5), atol=1e-5)
        x = maps.flatten(2).double().numpy()
        x -= x.mean(2, keepdims=True)
        variances = np.linalg.eigvalsh(np.einsum("ndp,nep->de", x, x))[::-1]
        held = np.einsum("dk,ndp->nkp", u, x)
        assert np.allclose((held**2).sum((0, 2)), variances[:5], rtol=1e-3)
    again = fit_pools(backbone, images, directions=5, **EVALUATE)
    for name in ("directions", "textures", "centres"):
        assert torch.equal(getattr(again, name), getattr(network, name))


def test_parts_are_means_of_one_kind_of_place_each() -> None:
    rng = np.random.default_rng(3)
    kinds = np.linalg.qr(rng.normal(size=(12, 3)))[0].T  # of three, far apart
    which = rng.integers(0, 3, (40, 49))
    places = kinds[which] * rng.uniform(4, 6, (40, 49, 1)) + 0.05 * rng.normal(size=(40, 49, 12))
    places[:, ::7] = 0.1 * rng.normal(size=(40, 7, 12))  # background, where a network sees little
    found = centres_of(places.reshape(-1, 12).astype(np.float32), 3)
    nearest = np.abs(found.numpy() @ kinds.T)
    assert sorted(nearest.argmax(1)) == [0, 1, 2] and nearest.max(1).min() > 0.99
    maps = torch.from_numpy(places.transpose(0, 2, 1)).float().unflatten(2, (7, 7))
    means = part_means(maps, found).reshape(40, 3, 12).numpy()
    which[:, ::7] = -1
    for j, kind in enumerate(nearest.argmax(1)):
        exact = np.stack([image[own == kind].mean(0) for image, own in zip(places, which, strict=True)])
        assert np.abs(means[:, j] - exact).max() < 0.3  # of lengths of about 5
    order = torch.from_numpy(rng.permutation(49))
    assert torch.allclose(
        part_means(maps.flatten(2)[:, :, order].unflatten(2, (7, 7)), found), part_means(maps, found), atol=1e-5
    )
    blind = centres_of(np.zeros((9, 12), np.float32), 4)  # of images in which a network sees nothing
    assert blind.shape == (4, 12) and bool(part_means(torch.zeros(2, 12, 3, 3), blind).isfinite().all())


def test_pools_are_fitted_to_the_rows_that_are_given() -> None:
    images = drawn(30, 32)[0]
    backbone = get_backbone("tiny").eval()
    first = fit_pools(backbone, images, np.arange(10), **EVALUATE)
    changed = images.copy()
    changed[10:] = 0
    again = fit_pools(backbone, changed, np.arange(10), **EVALUATE)
    assert torch.equal(again.directions, first.directions) and torch.equal(again.centres, first.centres)
    assert first.directions.shape == (128, 64) and first.centres.shape == (4, 128)
    small = fit_pools(get_backbone("tiny", dimension=16), images, **EVALUATE)
    assert small.directions.shape == (16, 16) and small.textures.shape == (8, 8)


def test_views_of_it_share_the_pass_and_have_a_width_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    images, network = drawn(5, 32)[0], knowing()
    passes: list[int] = []
    real = TinyNet.first_half
    monkeypatch.setattr(TinyNet, "first_half", lambda self, x: passes.append(1) or real(self, x))
    views = ["plain", "covariance", "largest", "both, covariance", "texture", "parts"]
    seen = by_view(extract_features(network, images, views=views, **EVALUATE), views, network)
    assert len(passes) == 2 * 2  # a batch of one first, to know the width
    assert {view: x.shape for view, x in seen.items()} == {
        **{"plain": (5, 128), "covariance": (5, 36), "largest": (5, 128), "both, covariance": (5, 36)},
        **{"texture": (5, 36), "parts": (5, 3 * 128)},
    }
    assert np.array_equal(seen["plain"], extract_features(network, images, **EVALUATE))
    sides = [
        covariance_root(maps_of(network, x), network.directions).numpy() for x in (images, images[:, :, ::-1].copy())
    ]
    assert np.allclose(seen["covariance"], sides[0], atol=1e-4)
    assert np.allclose(seen["both, covariance"], np.mean(sides, 0), atol=1e-4)
    with torch.inference_mode():
        earlier = network.third_quarter(network.first_half(Evaluate(32)(torch.from_numpy(images))))
    assert np.allclose(seen["texture"], covariance_root(earlier, network.textures).numpy(), atol=1e-4)
    assert np.allclose(seen["parts"], part_means(maps_of(network, images), network.centres).numpy(), atol=1e-4)
    assert View.parse("both, covariance, rotate-90").name == "both, rotate-90, covariance"


def test_a_network_keeps_its_pools(tmp_path: Path) -> None:
    images, labels = drawn(40, 32)
    model = quick(images, labels, epochs=1, transform=Evaluate(32))
    model.backbone = fit_pools(model.backbone, images, directions=4, parts=2, **EVALUATE)
    file = model.save(tmp_path / "model.safetensors")
    again = BaseModel.load(file)
    for name in ("directions", "textures", "centres"):
        assert torch.equal(getattr(again.backbone, name), getattr(model.backbone, name))
    assert backbone_config(again.backbone)["pools"] == [4, 2]
    plain = load_weights(get_backbone("tiny"), file)  # which has no use for them
    assert plain.directions is None
    assert torch.equal(load_weights(get_backbone("tiny", pools=[4, 2]), file).directions, model.backbone.directions)
    with pytest.raises(ValueError, match=r"directions has shape \(128, 4\), expected \(128, 5\)"):
        load_weights(get_backbone("tiny", pools=[5, 2]), file)
    for pools in ([129, 1], [1, 65], [0, 1], [1, 0]):
        with pytest.raises(ValueError, match=r"does not take these options: pools=\["):
            get_backbone("tiny", pools=pools)
    with pytest.raises(ValueError, match="names and shapes"):
        average_weights([model.backbone, plain])


def test_what_has_no_such_pools_says_so() -> None:
    images = drawn(4, 32)[0]
    for view in ("covariance", "texture", "both, parts"):
        with pytest.raises(ValueError, match=r"fit_pools returns, or leave the view out"):
            extract_features(ResNet18("small"), images, views=[view], **EVALUATE)
    with pytest.raises(ValueError, match="Together has not"):
        fit_pools(get_backbone("tiny+tiny"), images, **EVALUATE)
    for wrong in ({"directions": 0}, {"parts": 0}, {"parts": 65}):
        with pytest.raises(ValueError, match="directions must be 1 or more, and parts 1 to 64"):
            fit_pools(get_backbone("tiny"), images, **wrong, **EVALUATE)
    with pytest.raises(ValueError, match="at least one"):
        fit_pools(get_backbone("tiny"), images, np.zeros(0, dtype=int), **EVALUATE)
    for view in ("largest, covariance", "parts, both, texture"):
        with pytest.raises(ValueError, match=f"got '{view}': name several views"):
            View.parse(view)
    with pytest.raises(ValueError, match="one of mean, largest, covariance, texture, parts, got 'least'"):
        View(pool="least")
