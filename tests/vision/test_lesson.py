"""How base classes are taught: mixed images, softened labels, contrast, teachers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from faverage.vision import get_backbone
from faverage.vision.model import Head, Network
from faverage.vision.objectives import Lesson, attraction, cut_mix
from helpers_vision import drawn, quick


def test_a_mixed_image_holds_a_box_of_another() -> None:
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 16, 16).contiguous()
    noise = torch.tensor([[0.1, 0.25, 0.5, 0.5], [0.9, 0.25, 0.5, 0.5], [0.1, 0.25, 0.0, 0.5], [0.1, 1.0, 0.5, 0.5]])
    mixed, kept = cut_mix(images, noise, 0.5)
    assert torch.equal(mixed[1], images[1]) and kept[1] == 1
    assert torch.equal(mixed[0, 0, 4:12, 4:12], torch.full((8, 8), 3.0)) and kept[0] == 0.75
    assert (mixed[0] == 3).sum() == 3 * 64 and kept[2] == 0.875 and (mixed[2, 0, :, 4:] == 2).all()
    assert (mixed[3] == 0).all() and kept[3] == 0


def test_contrast_by_loops() -> None:
    z = F.normalize(torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    y = torch.tensor([0, 0, 1, 1, 1, 2, 0])
    total = 0.0
    for i in range(7):
        others = [j for j in range(7) if j != i]
        scale = sum(torch.exp(z[i] @ z[j] / 0.1) for j in others)
        like = [j for j in others if y[j] == y[i]]
        if like:
            total -= sum(torch.log(torch.exp(z[i] @ z[j] / 0.1) / scale) for j in like) / len(like)
    assert attraction(z, y).item() == pytest.approx(float(total) / 7)


def test_the_loss_of_mixed_and_turned_images() -> None:
    torch.manual_seed(0)
    network = Network(get_backbone("tiny"), Head(128, 12, "cosine")).eval()
    lesson = Lesson(network, rotations=True, mix=1.0, smoothing=0.1).eval()
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 0])
    noise = torch.rand(4, 4)
    loss, _ = lesson.loss(lesson.embed(images, labels, noise), labels, noise)
    mixed, kept = cut_mix(images, noise, 1.0)
    expected = 0.0
    for r in range(4):
        logits = network.head(network.backbone(torch.rot90(mixed, r, (2, 3))))
        for i in range(4):
            both = [F.cross_entropy(logits[i], 4 * labels[j] + r, label_smoothing=0.1) for j in (i, 3 - i)]
            expected += (kept[i] * both[0] + (1 - kept[i]) * both[1]).item() / 16
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_teachers_are_asked_about_every_rotation_of_every_rotation() -> None:
    torch.manual_seed(0)
    teachers = [get_backbone("tiny", dimension=8), get_backbone("tiny", dimension=4)]
    network = Network(get_backbone("tiny"), Head(128, 12, "cosine"))
    lesson = Lesson(network, rotations=True, teachers=teachers, distil=0.5).train()
    assert network.training and not any(teacher.training for teacher in teachers)
    images, labels, noise = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]), torch.zeros(4, 0)
    embedded = lesson.eval().embed(images, labels, noise)
    loss, _ = lesson.loss(embedded, labels, noise)
    distance = 0.0
    for r in range(4):
        told = lesson.imitation(F.normalize(network.backbone(torch.rot90(images, r, (2, 3)))))
        seen = [torch.rot90(images, r + q, (2, 3)) for q in range(4)]
        parts = [F.normalize(teacher(turned)) for turned in seen for teacher in teachers]
        distance += ((told - torch.cat(parts, 1)) ** 2).sum().item() / (16 * 8)
    plain, _ = Lesson(network, rotations=True).eval().loss(embedded, labels, noise)
    assert loss.item() == pytest.approx(0.5 * plain.item() + 5 * distance, rel=1e-5)
    loss.backward()
    assert all(p.grad is None for teacher in teachers for p in teacher.parameters())


@pytest.mark.slow
def test_a_network_learns_what_its_teachers_see() -> None:
    images, labels = drawn(96)
    teacher = quick(images, labels, rotations=True, head="cosine").backbone
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = quick(images, labels, teachers=[teacher], head="cosine")
    assert student.history["loss"][-1] < 0.5 * student.history["loss"][0]
    assert student.config["lesson"]["distil"] == 0.9
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    with pytest.raises(ValueError, match="distil in"):
        quick(images, labels, teachers=[teacher], distil=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lesson", [{"mix": 0.5}, {"smoothing": 0.1}, {"contrast": 0.5}, {"mix": 0.5, "rotations": True}]
)
def test_every_lesson_teaches(lesson: dict[str, Any]) -> None:
    found = quick(*drawn(160), head="cosine", epochs=4, **lesson)
    assert found.history["accuracy"][-1] > 1.8 / (16 if lesson.get("rotations") else 4)
    assert found.config["lesson"]["mix"] == lesson.get("mix", 0.0)


@pytest.mark.parametrize("lesson", [{"contrast": 0.5}, {"mix": 0.5, "smoothing": 0.1, "rotations": True}])
def test_every_lesson_can_be_repeated(lesson: dict[str, Any]) -> None:
    first, again = (quick(*drawn(80), head="cosine", epochs=2, **lesson) for _ in range(2))
    assert first.history == {**again.history, "seconds": first.history["seconds"]}
    assert torch.equal(first.head_weight, again.head_weight)


def test_a_lesson_that_cannot_be_is_refused() -> None:
    images, labels = drawn(40)
    for wrong in ({"mix": 1.5}, {"smoothing": 1.0}, {"contrast": -1.0}, {"mix": np.nan}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            quick(images, labels, **wrong)
