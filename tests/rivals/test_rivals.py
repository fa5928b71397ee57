"""Every rival behind one harness: verbs, labels of any type, files, the same seed, bad input; and their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faverage.rivals import RIVALS, Rival, get_rival
from faverage.rivals.parts import Attention, cosine, distillation, episode, herding, turned
from faverage.rivals.rival import merged
from helpers_vision import drawn

pytestmark = pytest.mark.slow

NAMES = np.array(["square", "bar", "frame", "cross"])


def small(name: str, **options: Any) -> Rival:
    cls = get_rival(name)
    recipe = merged(cls.recipes["shared"], cls.recipes["shared/digits"], name)
    for section, settings in recipe.items():
        if isinstance(settings, dict) and "epochs" in settings:
            recipe[section] = {**settings, "epochs": 2}
        if isinstance(settings, dict) and "count" in settings:  # episodes of an epoch
            recipe[section] = {**settings, "count": 3}
    recipe["base"] |= {"batch_size": 32, "lr": 0.05}
    return cls("tiny", recipe=recipe, **{"total": 5, "device": "cpu", **options})


def taught(name: str, **options: Any) -> Rival:
    images, labels = drawn(48)
    rival = small(name, **options).fit_base(images[labels < 3], NAMES[labels[labels < 3]])
    return rival.learn_session(images[labels == 3][:5], ["cross"] * 5)


@pytest.fixture(scope="module", params=sorted(RIVALS))
def rival(request: pytest.FixtureRequest) -> Rival:
    return taught(request.param)


def test_verbs_and_labels(rival: Rival) -> None:
    assert rival.classes == ["bar", "frame", "square", "cross"] and rival.sessions[1] == ["cross"]
    images = drawn(12, seed=3)[0]
    shares = rival.predict_proba(images)
    assert shares.shape == (12, 4) and np.allclose(shares.sum(1), 1, atol=1e-4) and (shares >= 0).all()
    assert set(rival.predict(images)) <= set(NAMES)
    assert rival.predict_proba(images[:0]).shape == (0, 4)


def test_a_file_keeps_all(rival: Rival, tmp_path: Path) -> None:
    images = drawn(12, seed=3)[0]
    again = type(rival).load(rival.save(tmp_path / "rival.safetensors"), device="cpu")
    assert np.allclose(again.predict_proba(images), rival.predict_proba(images), atol=1e-6)
    assert again.sessions == rival.sessions
    more = drawn(20, seed=4)[0][:5]
    again.learn_session(more, ["fifth"] * 5)
    assert again.predict_proba(images).shape == (12, 5)


def test_the_same_seed_gives_the_same_answers(rival: Rival) -> None:
    images = drawn(12, seed=3)[0]
    assert np.array_equal(taught(rival.name).predict_proba(images), rival.predict_proba(images))
    assert not np.array_equal(taught(rival.name, seed=1).predict_proba(images), rival.predict_proba(images))


def test_bad_input_is_named(rival: Rival, tmp_path: Path) -> None:
    images = drawn(12)[0]
    for call, words in [
        (lambda: rival.learn_session(images[:5], ["bar"] * 5), "class 'bar' is known already"),
        (lambda: rival.learn_session(images[:5], ["new"] * 4), "5 images and labels of shape"),
        (lambda: rival.learn_session(images[:2], ["new", "newer"]), "5 classes in all, these would be 6"),
        (lambda: rival.predict(images.astype(np.float32)), "uint8"),
        (lambda: small(rival.name).predict(images), "call fit_base"),
        (lambda: small(rival.name).learn_session(images[:5], ["new"] * 5), "call fit_base"),
        (lambda: small(rival.name).fit_base(images, ["one"] * 12), "at least two classes"),
        (lambda: small(rival.name).save(tmp_path / "x"), "call fit_base"),
        (lambda: type(rival)("tiny", recipe={"speed": 3}), "has no setting 'speed'; known are"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    assert rival.classes == ["bar", "frame", "square", "cross"]  # nothing was lost


def test_base_training_goes_on_after_a_kill(rival: Rival, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import faverage.rivals.rival as base

    monkeypatch.setattr(base, "_FEW_STEPS", 0)
    images, labels = drawn(48)
    straight = small(rival.name).fit_base(images, labels)
    broken = small(rival.name, checkpoints=tmp_path)
    real = base.train_network

    class Killed(Exception):
        pass

    def killed(*args: Any, **options: Any) -> Any:
        def stop(epoch: int, row: dict[str, float]) -> None:
            if epoch == 0:
                raise Killed

        return real(*args, **options, checkpoint_seconds=0, on_epoch=stop)

    monkeypatch.setattr(base, "train_network", killed)
    with pytest.raises(Killed):
        broken.fit_base(images, labels)
    monkeypatch.setattr(base, "train_network", real)
    again = small(rival.name, checkpoints=tmp_path).fit_base(images, labels)
    assert np.array_equal(again.predict_proba(images), straight.predict_proba(images))


def test_every_recipe_fits_its_method() -> None:
    for name, cls in RIVALS.items():
        assert {"shared", "shared/digits", "paper"} <= cls.recipes.keys(), name
        for recipe in cls.recipes.values():
            merged(cls.recipes["shared"], {k: v for k, v in recipe.items() if k not in ("backbone", "crop")}, name)


def test_unknown_rival() -> None:
    with pytest.raises(ValueError, match="unknown rival 'icarl'; known are: lucir, "):
        get_rival("icarl")


def test_cosine_and_distillation_by_hand() -> None:
    assert torch.allclose(cosine(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.0, 3.0]])), torch.tensor(0.5).sqrt())
    p, q = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    a, b = 1 / (1 + np.e), np.e / (1 + np.e)  # softmax of (0, 2) / 2
    assert float(distillation(p, q)) == pytest.approx(-(a * np.log(b) + b * np.log(a)))


def test_herding_keeps_the_mean() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 8)) + 2
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    chosen = herding(features, 5)
    assert len(set(chosen.tolist())) == 5
    away = np.linalg.norm(unit[chosen].mean(0) - unit.mean(0))
    others = [np.linalg.norm(unit[rng.permutation(40)[:5]].mean(0) - unit.mean(0)) for _ in range(50)]
    assert away < np.min(others)
    assert len(herding(features[:3], 5)) == 3


def test_episode_has_its_classes_and_rows() -> None:
    labels = np.repeat(np.arange(6), [10, 10, 10, 10, 10, 2])
    rows = episode(labels, 6, 4, np.random.default_rng(0))
    assert rows.shape == (6, 4)
    for line in rows:
        assert len(set(labels[line])) == 1 and (len(set(line)) == 4 or labels[line[0]] == 5)
    with pytest.raises(ValueError, match="needs 7 classes"):
        episode(labels, 7, 1, np.random.default_rng(0))


def test_turned_by_quarters() -> None:
    images = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4).repeat(2, 1, 1, 1)
    found = turned(images, torch.tensor([0, 1, 2, 3]))
    for i in range(4):
        assert torch.equal(found[i], torch.rot90(images[i], i, (1, 2)))


def test_attention_against_plain_loops() -> None:
    torch.manual_seed(0)
    part = Attention(4, norm=True).eval()
    tokens = torch.randn(3, 4)
    with torch.no_grad():
        found = part(tokens)
        q, k, v = (layer.weight @ tokens.T for layer in (part.query, part.key, part.value))
        for i in range(3):
            scores = [float(q[:, i] @ k[:, j]) / 2 for j in range(3)]
            weights = np.exp(scores) / np.exp(scores).sum()
            mixed = sum(float(weights[j]) * v[:, j] for j in range(3))
            raw = tokens[i] + part.out.weight @ mixed + part.out.bias
            assert torch.allclose(found[i], (raw - raw.mean()) / (raw.var(unbiased=False) + 1e-5).sqrt(), atol=1e-5)
