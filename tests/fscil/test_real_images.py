"""Real photos: mini-ImageNet with its official lists, where FAVERAGE_DATA has it; five classes of it, in seconds."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from faverage.data import Benchmark, load_benchmark
from faverage.data.decode import decode
from faverage.fscil import FewShotLearner
from faverage.vision import BaseModel, extract_features, hold_out, store_features, train_base

FOLDER = Path(os.environ.get("FAVERAGE_DATA") or "nowhere") / "mini_imagenet"
BASE, NEW, SIDE = 3, 2, 24

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (FOLDER / "images-0.zip").is_file() or not (FOLDER / "split" / "session_1.txt").is_file(),
        reason="FAVERAGE_DATA names no folder with mini_imagenet/images-0.zip and mini_imagenet/split/",
    ),
]


def listed(name: str) -> list[str]:
    return (FOLDER / "split" / name).read_text().split()


def wnid(line: str) -> str:
    return line.split("/")[-2]


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """The first classes of the first two sessions: the official lists cut down to them, the real archives beside."""
    root = tmp_path_factory.mktemp("real")
    folder = root / "mini_imagenet"
    (folder / "split").mkdir(parents=True)
    for part in FOLDER.glob("images-*.zip"):
        (folder / part.name).symlink_to(part.resolve())
    base = sorted({wnid(line) for line in listed("session_1.txt")})[:BASE]
    new = sorted({wnid(line) for line in listed("session_2.txt")})[:NEW]
    for name, chosen in (("session_1.txt", base), ("session_2.txt", new), ("test.txt", base + new)):
        lines = [line for line in listed(name) if wnid(line) in chosen]
        (folder / "split" / name).write_text("\n".join(lines))
    return load_benchmark(
        "mini-imagenet", root, cache=root / "cache", size=SIDE, base=BASE, way=NEW, sessions=1, workers=1
    )


@pytest.fixture(scope="module")
def model(some: Benchmark) -> tuple[BaseModel, np.ndarray]:
    """A tiny network after a short base training, and the images kept out of it."""
    rows = some.sessions[0].train
    kept = rows[hold_out(some.labels[rows], per_class=20)]
    options = {"backbone": "tiny", "epochs": 10, "batch_size": 32, "lr": 0.05, "device": "cpu"}
    return train_base(some.images, some.labels, indices=np.setdiff1d(rows, kept), **options), kept


def test_the_lists_are_the_official_ones(some: Benchmark) -> None:
    assert some.source == "official lists" and not some.skipped
    assert some.class_names == sorted(some.class_names)  # a label is the rank of the WordNet id
    assert [session.classes for session in some.sessions] == [(0, 1, 2), (3, 4)]
    assert [len(session.train) for session in some.sessions] == [500 * BASE, 5 * NEW]
    assert [len(session.test) for session in some.sessions] == [100 * BASE, 100 * NEW]
    base, new = ([wnid(line) for line in listed(f"session_{k}.txt")] for k in (1, 2))
    assert set(some.class_names[:BASE]) <= set(base) and set(some.class_names[BASE:]) <= set(new)
    assert max(base) < min(new)


def test_every_image_lies_at_the_place_of_its_line(some: Benchmark) -> None:
    """The pixels of a few training and test images, read from the archives by hand."""
    members = {}
    for part in FOLDER.glob("images-*.zip"):
        with zipfile.ZipFile(part) as archive:
            members |= {name.rpartition("/")[2]: (part, name) for name in archive.namelist()}
    for name, indices in (("session_2.txt", some.sessions[1].train), ("test.txt", some.test_until(1))):
        lines = [line for line in listed(name) if wnid(line) in some.class_names]
        assert len(lines) == len(indices)
        by_class = sorted(lines, key=wnid)  # stable: the order of the list within each class
        for i in (0, len(lines) // 2, len(lines) - 1):
            part, member = members[by_class[i].rpartition("/")[2]]
            with zipfile.ZipFile(part) as archive:
                pixels = decode(archive.read(member), SIDE)
            own = indices[some.labels[indices] == some.class_names.index(wnid(by_class[i]))]
            assert any(np.array_equal(some.images[j], pixels) for j in own), by_class[i]
    assert 90 < some.images.mean() < 140 and some.images.std() > 50


def test_base_training_learns_the_base_classes(some: Benchmark, model: tuple[BaseModel, np.ndarray]) -> None:
    trained, kept = model
    assert trained.history["loss"][-1] < 0.85 * trained.history["loss"][0]
    for rows, least in ((some.sessions[0].test, 0.55), (kept, 0.55)):
        features = extract_features(trained.backbone, some.images, rows, transform=trained.transform, device="cpu")
        right = trained.logits(torch.from_numpy(features)).argmax(1).numpy() == some.labels[rows]
        assert right.mean() > least, right.mean()  # chance is 1/3


def test_five_shots_teach_two_new_classes(some: Benchmark, model: tuple[BaseModel, np.ndarray]) -> None:
    trained, _ = model
    options = {"transform": trained.transform, "device": "cpu"}
    base, shots = (
        extract_features(trained.backbone, some.images, session.train, **options) for session in some.sessions
    )
    test = some.test_until(1)
    examples, labels = extract_features(trained.backbone, some.images, test, **options), some.labels[test]
    for fuser in ("prototypes", "afa"):
        learner = FewShotLearner(fuser=fuser).fit_base(base, some.labels[some.sessions[0].train])
        learner.learn_session(shots, some.labels[some.sessions[1].train])
        right = np.asarray(learner.predict(examples)) == labels
        assert right.mean() > 0.33, (fuser, right.mean())  # chance is 1/5
        assert right[labels >= BASE].mean() > 0.22, (fuser, right[labels >= BASE].mean())
    assert learner.classes == [0, 1, 2, 3, 4]


def test_cached_features_are_the_computed_ones(
    some: Benchmark, model: tuple[BaseModel, np.ndarray], tmp_path: Path
) -> None:
    trained, kept = model
    options = {"transform": trained.transform, "device": "cpu"}
    computed = extract_features(trained.backbone, some.images, kept, **options)
    for _ in ("written", "read"):
        cached = store_features(trained.backbone, some.images, kept, folder=tmp_path / "features", **options)
        assert np.array_equal(cached, computed)
    assert len(np.unique(computed, axis=0)) == len(kept)


def test_decoded_images_are_decoded_once(some: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Path(some.images.filename).parents[1]
    monkeypatch.setattr("faverage.data.store.decode", lambda *_: pytest.fail("decoded again"))
    again = load_benchmark("mini-imagenet", cache.parent, cache=cache, size=SIDE, base=BASE, way=NEW, sessions=1)
    assert np.array_equal(again.images, some.images) and np.array_equal(again.labels, some.labels)
