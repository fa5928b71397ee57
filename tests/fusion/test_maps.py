"""Maps (n, C, H, W): fused pixel by pixel as rows are, from memory maps, in constant memory."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.fusion import MapFuser, get_fuser
from faverage.fusion import maps as module

Array = np.ndarray[Any, Any]
N = 4


def as_map(rows: Array, shape: tuple[int, ...]) -> Array:
    """Return rows (n·H·W, C) as maps (n, C, H, W)."""
    return rows.reshape(*shape, -1).transpose(0, 3, 1, 2)


def make(n: int = 4, h: int = 10, w: int = 12, seed: int = 0) -> tuple[list[Array], Array]:
    """Probabilities of a good member and logits of one that knows the classes 0, 2 and 3 only; class 3 is rare."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(N, (n, h, w), p=[0.4, 0.3, 0.28, 0.02]).astype(np.uint8)
    good = 0.5 * np.eye(N)[labels] + 0.5 * rng.dirichlet(np.ones(N), labels.shape)
    logits = rng.normal(size=(*labels.shape, 3)) + 2 * (labels[..., None] == [0, 2, 3])
    labels[:, 0] = 255
    return [good.transpose(0, 3, 1, 2), logits.transpose(0, 3, 1, 2)], labels


CLASSES = [[0, 1, 2, 3], [0, 2, 3]]


def test_maps_are_fused_as_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, labels = make()
    logits = maps[1].transpose(0, 2, 3, 1).reshape(-1, 3)
    rows = np.full((labels.size, 2, N), np.nan)
    rows[:, 0] = maps[0].transpose(0, 2, 3, 1).reshape(-1, N)
    rows[:, 1, [0, 2, 3]] = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    counting = labels.ravel() != 255
    expected = get_fuser("log-pool").fit(rows[counting], labels.ravel()[counting].astype(int)).predict_proba(rows)
    for chunk in (1 << 18, 5 * 12 * 8, 1):  # all images at once, bands of five rows, single rows
        monkeypatch.setattr(module, "_CHUNK", chunk)
        fuser = MapFuser("log-pool").fit(maps, labels, CLASSES)
        np.testing.assert_allclose(fuser.predict_proba(maps), as_map(expected, labels.shape), atol=1e-6)
        assert (fuser.predict(maps).ravel() == expected.argmax(1)).all() and fuser.predict(maps).dtype == np.uint8
        assert fuser.logits_ == [False, True] and fuser.pixels_.sum() == counting.sum()
        score = fuser.evaluate(maps, labels)
        right = (expected.argmax(1) == labels.ravel())[counting]
        both = ((expected.argmax(1) == 2) & (labels.ravel() == 2))[counting].sum()
        either = ((expected.argmax(1) == 2) | (labels.ravel() == 2))[counting].sum()
        assert score.accuracy == right.mean() and score.iou[2] == both / either
        assert score.mean_iou == pytest.approx(np.nanmean(score.iou))


def test_the_sample_is_seeded_has_rare_classes_and_keeps_the_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, labels = make(6, 40, 50)
    fusers = [MapFuser("log-pool", pixels=800, seed=seed).fit(maps, labels, CLASSES) for seed in (0, 0, 1)]
    p, same, other = (fuser.predict_proba(maps) for fuser in fusers)
    assert (p == same).all() and not (p == other).all()
    assert 800 <= fusers[0].pixels_.sum() <= 800 + N and fusers[0].pixels_[3] > 100  # of 800, as they occur: 16
    whole = MapFuser("log-pool").fit(maps, labels, CLASSES).predict_proba(maps)
    assert abs(p[:, 3].mean() / whole[:, 3].mean() - 1) < 0.2
    monkeypatch.setattr(module, "_CHUNK", 1000)
    in_bands = MapFuser("log-pool", pixels=800).fit(maps, labels, CLASSES)
    assert (in_bands.pixels_ == fusers[0].pixels_).all()


def test_memory_does_not_grow_with_the_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1 << 14)
    peaks = []
    for n in (2, 16):
        maps, labels = make(n, 64, 64)
        for name, array in (("0", maps[0].astype(np.float16)), ("1", maps[1]), ("y", labels)):
            np.save(tmp_path / f"{name}.npy", array)
        *maps, labels = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "01y")
        out = np.lib.format.open_memmap(tmp_path / "out.npy", mode="w+", dtype=np.float16, shape=(n, N, 64, 64))
        tracemalloc.start()
        fuser = MapFuser("arithmetic", pixels=500).fit(maps, labels, CLASSES)
        assert fuser.predict_proba(maps, out=out) is out
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert fuser.logits_ == [False, True]  # halves do not sum to one exactly
        np.testing.assert_allclose(np.asarray(out, float).sum(1), 1, atol=5e-3)
    assert peaks[1] < 1.5 * peaks[0]


def test_a_member_may_give_labels_or_nothing() -> None:
    maps, labels = make()
    hard = np.where(maps[0].argmax(1) == 0, 255, maps[0].argmax(1))
    maps[1][:, :, :5] = np.nan
    fuser = MapFuser("arithmetic").fit([*maps, hard], labels, [*CLASSES, [0, 1, 2, 3]])
    assert fuser.evaluate([*maps, hard], labels).accuracy > 0.9
    p = fuser.predict_proba([*maps, hard]).transpose(0, 2, 3, 1)
    alone = (hard == 255) & (np.arange(10)[:, None] < 5)  # pixels that the first member alone speaks of
    np.testing.assert_allclose(p[alone], maps[0].transpose(0, 2, 3, 1)[alone], atol=1e-6)


def test_explain_names_the_classes() -> None:
    maps, labels = make()
    said = MapFuser("afa").fit(maps, labels, CLASSES).explain(models=["good", "other"])
    assert said.trusted.rows[1][:2] == ("1", "good")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ignore": 2}, "the label to ignore, 2, is a class of a member: give another label as ignore"),
        ({"ignore": None}, "labels have 255, which no member knows; members know 0, 1, 2, 3"),
        ({"ignore": "void"}, "ignore must be a whole-number label, or None, got 'void'"),
        ({"pixels": 0}, "pixels must be a whole number of at least 1, got 0"),
        ({"maps": lambda m: [m[0], m[1][:, :, 1:]]}, "n, H and W must agree"),
        ({"maps": lambda m: m[0]}, "maps must be a list with one array a member, got one array of shape"),
        ({"maps": lambda m: []}, "maps must be a list of at least one member, got 0"),
        ({"maps": lambda m: [m[0], (255 * m[0]).astype(np.uint8)]}, "divide scores that are stored as whole numbers"),
        ({"maps": lambda m: [m[0], m[1][0]]}, "member 1 must give floats (n, C, H, W), or labels as whole numbers"),
        ({"maps": lambda m: [m[0], m[1] + np.inf]}, "member 1 gives scores that are not finite"),
        ({"labels": lambda y: y.astype(float)}, "labels must be whole numbers of shape (4, 10, 12), as the maps, got"),
        ({"labels": lambda y: y[:, :, 1:].tolist()}, "got int64 of shape (4, 10, 11)"),
        ({"labels": lambda y: np.full_like(y, 255)}, "all labels are 255, the label to ignore"),
        ({"labels": lambda y: np.where(y == 3, 9, y)}, "labels have 9, which no member knows"),
        ({"classes": None}, "members have [3, 4] channels: give classes, for each member the labels of its channels"),
        ({"classes": [[0, 1, 2, 3]]}, "classes must be 2 lists, one a member, got 1"),
        ({"classes": [[0, 1, 2, 3], [0, 2]]}, "member 1 has 3 channels, but classes has 2 labels for it"),
        ({"classes": [[0, 1, 2, 2], [0, 2, 3]]}, "classes of member 0 must be different whole numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    maps, labels = make()
    given = change.get("maps", lambda m: m)(maps), change.get("labels", lambda y: y)(labels)
    options = {name: value for name, value in change.items() if name in ("ignore", "pixels")}
    with pytest.raises(ValueError, match=re.escape(message)):
        MapFuser("arithmetic", **options).fit(*given, change.get("classes", CLASSES))


def test_bad_input_to_predict_is_refused() -> None:
    maps, labels = make()
    fuser = MapFuser("arithmetic")
    with pytest.raises(ValueError, match=r"not fitted yet: call fit\(maps, labels\) first"):
        fuser.predict(maps)
    fuser.fit(maps, labels.tolist(), CLASSES)  # lists are fine
    with pytest.raises(ValueError, match="maps must be a list of 2 members, got 1"):
        fuser.predict(maps[:1])
    with pytest.raises(ValueError, match="member 1 has 4 channels, in fit it had 3"):
        fuser.predict([maps[0], maps[0]])
    with pytest.raises(ValueError, match="member 0 gave probabilities to learn from, but has a score below 0 here"):
        fuser.predict([np.log(maps[0]), maps[1]])
    with pytest.raises(ValueError, match=r"out must be an array of shape \(4, 4, 10, 12\), such as of float32, got"):
        fuser.predict_proba(maps, out=np.empty(labels.shape))
    with pytest.raises(ValueError, match="'arithmetic' cannot be explained"):
        fuser.explain()
