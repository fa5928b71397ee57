"""Many rows: scores in a memory map give the same answers as in memory, and are never copied whole."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from faverage import AFA, fit, groups_by_confusion
from faverage.fusion import arrays, fuser_names, get_fuser
from helpers_fusers import make_data, quick_fuser
from helpers_paths import TESTS

pytestmark = pytest.mark.slow

LARGE = 100_000, 10, 20


def on_disk(folder: Path, scores: np.ndarray) -> np.ndarray:
    np.save(folder / "scores.npy", scores)
    return np.load(folder / "scores.npy", mmap_mode="r")


@pytest.fixture
def large_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take small data the way of data that is too large to be merged."""
    monkeypatch.setattr(arrays, "_MERGE_SCORES", 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", fuser_names())
def test_memory_map_in_chunks_equals_memory(name: str, dtype: type, tmp_path, monkeypatch, large_path) -> None:
    scores, y = make_data(60, gaps=True)
    scores = scores.astype(dtype)
    weight = np.arange(60) % 3
    expected = quick_fuser(name).fit(scores, y, weight).predict_proba(scores)
    monkeypatch.setattr(arrays, "_CHUNK", 50)  # four rows
    mapped = on_disk(tmp_path, scores)
    fuser = quick_fuser(name).fit(mapped, y, weight)
    np.testing.assert_allclose(fuser.predict_proba(mapped), expected, atol=1e-6)
    np.testing.assert_allclose(get_fuser(fuser).fit(scores, y, weight).predict_proba(scores), expected, atol=1e-6)


@pytest.mark.parametrize("name", fuser_names())
def test_rows_of_no_weight_do_not_count_in_large_data(name: str, large_path) -> None:
    scores, y = make_data(60, gaps=True)
    spoiled = np.concatenate([np.full((20, *scores.shape[1:]), 0.25), scores])
    weight = np.repeat([0.0, 1.0], [20, 60])
    given = quick_fuser(name).fit(spoiled, np.concatenate([np.zeros(20, dtype=int), y]), weight).predict_proba(scores)
    np.testing.assert_allclose(given, quick_fuser(name).fit(scores, y).predict_proba(scores), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, bool])
def test_whole_numbers_are_scores_too(dtype: type, large_path) -> None:
    hard = np.eye(4)[make_data(40)[0].argmax(2)]
    y = np.arange(40) % 4
    for name in ("afa", "vote", "greedy", "log-pool"):
        p = get_fuser(name).fit(hard.astype(dtype), y).predict_proba(hard.astype(dtype))
        np.testing.assert_allclose(p, get_fuser(name).fit(hard, y).predict_proba(hard), atol=1e-9)


@pytest.mark.parametrize("bad", [-1.0, np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_bad_number_is_found_in_any_chunk(bad: float, dtype: type, monkeypatch) -> None:
    monkeypatch.setattr(arrays, "_CHUNK", 24)
    scores, y = make_data(60)
    scores = scores.astype(dtype)
    scores[59, 2, 3] = bad
    with pytest.raises(ValueError, match="scores must be finite and >= 0"):
        get_fuser("arithmetic").predict_proba(scores)
    with pytest.raises(ValueError, match="scores must be finite and >= 0"):
        get_fuser("afa").fit(scores, y)


def test_large_scores_are_not_copied_whole(large_file: Path) -> None:
    """A process may grow by the pages of the file, by the result and by 24 MB: another copy is at least 40 MB."""
    names = ("afa", "arithmetic", "log-pool", "afa-paper")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "scale_child.py"), str(large_file), *names]
    lines = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    n, k, classes = LARGE
    for name, grown in zip(names, map(int, lines), strict=True):
        assert grown < 2 * n * k * classes + 8 * n * classes + (24 << 20), name


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    folder = tmp_path_factory.mktemp("large")
    n, _, classes = LARGE
    rng = np.random.default_rng(0)
    scores = rng.random(LARGE, dtype=np.float32)
    y = rng.integers(0, classes, n)
    scores[np.arange(n), :, y] += 1
    np.save(folder / "scores.npy", (scores / scores.sum(-1, keepdims=True)).astype(np.float16))
    np.save(folder / "y.npy", y)
    return folder


@pytest.mark.parametrize("structure", ["per_class", "block"])
def test_a_network_learns_from_a_memory_map_as_from_memory(structure: str, tmp_path, monkeypatch, recwarn) -> None:
    import faverage.afa.steps as steps

    scores, y = make_data(90)
    half = scores.astype(np.float16)
    weight = np.arange(90) % 4
    networks = [AFA(3, 4, structure=structure, groups=2 if structure == "block" else None) for _ in range(3)]
    options = {"sample_weight": weight, "validation": 0.2, "epochs": 4, "batch_size": 16}
    histories = [fit(networks[0], half.astype(np.float32), y, **options), fit(networks[1], half, y, **options)]
    monkeypatch.setattr(steps, "_CHUNK", 24)  # two rows
    histories.append(fit(networks[2], on_disk(tmp_path, half), y, **options))
    assert histories[0].train == histories[1].train == histories[2].train
    assert histories[0].validation == pytest.approx(histories[2].validation, rel=1e-5)
    for network in networks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), networks[0].parameters(), strict=True))
    assert not [w for w in recwarn if "not writable" in str(w.message)]
    spoiled = half.copy()
    spoiled[89, 2, 3] = np.nan
    with pytest.raises(ValueError, match="scores must not contain NaN"):
        fit(networks[0], spoiled, y)


def test_a_part_of_the_rows_shares_the_scores() -> None:
    from faverage.afa.steps import Data

    data = Data.check(AFA(2, 3), torch.rand(40, 2, 3), torch.arange(40) % 3, torch.arange(40) % 2)
    train, held = data.split(0.25, seed=0)
    assert train.scores.data_ptr() == held.scores.data_ptr() == data.scores.data_ptr()
    assert len(train.targets) + len(held.targets) == 20 and not set(train.index.tolist()) & set(held.index.tolist())
    assert set(train.index.tolist() + held.index.tolist()) == set(range(1, 40, 2))


def test_groups_from_a_memory_map(tmp_path, monkeypatch) -> None:
    import faverage.afa.groups as groups

    scores, y = make_data(60, n_classes=8)
    expected = groups_by_confusion(scores.astype(np.float16), y, 3)
    monkeypatch.setattr(groups, "_CHUNK", 100)
    assert groups_by_confusion(on_disk(tmp_path, scores.astype(np.float16)), y, 3) == expected
