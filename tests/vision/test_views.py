"""Views of images, and base training on rotated images."""

from typing import Any

import numpy as np
import pytest
import torch

from faverage.vision import (
    BaseModel,
    Evaluate,
    View,
    extract_features,
    get_backbone,
    get_views,
    hold_out,
    rotation_heads,
)
from helpers_vision import drawn, quick


class Corner(torch.nn.Module):
    """The pixel in the upper left corner."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, 0, 0]


def test_views_are_what_their_names_say() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4).repeat(1, 3, 1, 1)
    corners = {
        name: View.parse(name)(image)[0, 0, 0, 0].item() for name in ("plain", "flip", "rotate-90", "rotate-180")
    }
    assert corners == {"plain": 0, "flip": 3, "rotate-90": 3, "rotate-180": 15}
    assert View.parse("rotate-270")(image)[0, 0, 0, 0] == 12
    assert torch.equal(View.parse("flip, rotate-90")(image), torch.rot90(image.flip(3), 1, (2, 3)))
    zoomed = View(zoom=0.5)(image)
    assert zoomed.shape == image.shape and zoomed[0, 0].mean() == pytest.approx(7.5) and zoomed.min() == 5
    names = ["plain", "flip", "rotate-270", "both", "both, rotate-90", "flip, rotate-180, zoom-0.75", "both, largest"]
    assert [view.name for view in get_views(names)] == names


def test_features_of_views_are_side_by_side() -> None:
    images, _ = drawn(6)
    options: dict[str, Any] = {"transform": Evaluate(16), "device": "cpu"}
    both = extract_features(Corner(), images, views=["plain", "rotate-180"], **options)
    assert both.shape == (6, 6)
    assert np.array_equal(both[:, :3], extract_features(Corner(), images, **options))
    assert np.allclose(both[:, 3:], extract_features(Corner(), images[:, ::-1, ::-1].copy(), **options), atol=1e-6)


def test_both_sides_of_an_image_are_averaged() -> None:
    images, _ = drawn(6)
    options: dict[str, Any] = {"transform": Evaluate(16), "device": "cpu"}
    sides = extract_features(Corner(), images, views=["rotate-90", "flip, rotate-90"], **options).reshape(6, 2, 3)
    both = extract_features(Corner(), images, views=["both, rotate-90"], **options)
    assert np.allclose(both, sides.mean(1), atol=1e-6) and not np.allclose(both, sides[:, 0])


@pytest.mark.parametrize("name", ["tiny", "resnet18_small", "efficientnet_lite0", "tiny+resnet18_small"])
def test_the_largest_values_come_with_the_means(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = drawn(5, 32)
    network = get_backbone(name).eval()
    parts = list(getattr(network, "parts", [network]))
    passes: list[int] = []
    for kind in {type(part) for part in parts}:

        def counted(self: Any, x: torch.Tensor, real: Any = kind.first_half) -> torch.Tensor:
            passes.append(1)
            return real(self, x)

        monkeypatch.setattr(kind, "first_half", counted)
    options: dict[str, Any] = {"transform": Evaluate(32), "device": "cpu"}
    views = ["plain", "largest", "both, largest"]
    seen = extract_features(network, images, views=views, **options).reshape(5, 3, -1)
    # a batch of one first, to know the width; two passes of each network, where every view alone would take four
    assert len(passes) == 2 * 2 * len(parts)
    assert np.array_equal(seen[:, 0], extract_features(network, images, **options))
    with torch.inference_mode():
        x = Evaluate(32)(torch.from_numpy(images))
        largest = [torch.cat([part.maps(part.first_half(y)).amax((2, 3)) for part in parts], 1) for y in (x, x.flip(3))]
    assert np.allclose(seen[:, 1], largest[0], atol=1e-5)
    assert np.allclose(seen[:, 2], torch.stack(largest).mean(0), atol=1e-5)


def test_largest_values_of_a_network_that_does_not_have_them() -> None:
    images, _ = drawn(2)
    with pytest.raises(ValueError, match=r"'pools'.*Corner has none: leave the view out"):
        extract_features(Corner(), images, views=["largest"], transform=Evaluate(16), device="cpu")


@pytest.mark.parametrize(
    "views",
    [[], "plain", ["rotate-45"], ["zoom-1.5"], ["plain", "plain"], ["upside down"], ["zoom-0.1"], ["both, flip"]],
)
def test_views_that_cannot_be_are_refused(views: Any) -> None:
    with pytest.raises(ValueError, match="view"):
        get_views(views)


@pytest.mark.slow
def test_training_on_turned_images(tmp_path: Any) -> None:
    images, labels = drawn(320)
    kept = hold_out(labels, per_class=15)
    rows = np.setdiff1d(np.arange(320), kept)
    model = quick(images, labels, indices=rows, rotations=True, head="cosine", epochs=8)
    heads = rotation_heads(model)
    assert heads.shape == (4, 4, 128) and torch.equal(heads[3, 2], model.head_weight[2 * 4 + 3])
    again = BaseModel.load(model.save(tmp_path / "model.safetensors"))
    assert torch.equal(rotation_heads(again), heads)
    views = ["plain", "rotate-90", "rotate-180", "rotate-270"]
    seen = extract_features(model.backbone, images, kept, views=views, transform=model.transform, device="cpu")
    for r, head in enumerate(heads):
        features = torch.from_numpy(seen[:, 128 * r : 128 * (r + 1)])
        said = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(head).T
        assert (said.argmax(1).numpy() == labels[kept]).mean() > 0.9, r
    with pytest.raises(ValueError, match="rotations=True"):
        rotation_heads(quick(images[:40], labels[:40], epochs=1))
