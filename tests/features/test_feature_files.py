"""Files of features: written, read again, and what is in them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faverage.errors import ConfigError
from faverage.features import LEARNED, FeatureSet, file_views
from faverage.fscil import CosineHead, LinearHead, Whitening
from helpers_features import BASE, D, made, plain


def assert_same(one: FeatureSet, other: FeatureSet) -> None:
    """Both have the same examples, prototypes and heads."""
    assert list(one.views) == list(other.views) and one.sessions == other.sessions
    for a, b in zip((one.memory, *one.shots, one.test), (other.memory, *other.shots, other.test), strict=True):
        assert np.array_equal(one.labels[a], other.labels[b])
        assert all(np.array_equal(x, other.of(b)[view]) for view, x in one.of(a).items())
    for view, head in one.heads.items():
        assert np.array_equal(one.prototypes[view], other.prototypes[view]) and type(head) is type(other.heads[view])
        assert all(np.array_equal(x, vars(other.heads[view])[name]) for name, x in vars(head).items())
    assert one.whitening.keys() == other.whitening.keys()
    assert all(whitening.same(other.whitening[view]) for view, whitening in one.whitening.items())


def test_linear_heads_of_two_views_and_numbers_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faverage.features._MANY", 0)  # half precision, as of a large file
    rng = np.random.default_rng(1)
    biases = rng.normal(size=(BASE, 3))
    file = made(tmp_path / "f.npz", base_head_scale=None, base_head_bias=biases)
    features = FeatureSet.load(file, ["rotate-180", "plain"])
    heads = list(features.heads.values())
    assert [head.bias.tolist() for head in heads] == biases.T[[2, 0]].astype(np.float32).tolist()
    with np.load(file) as data:
        assert np.array_equal(heads[0].weight, data["base_head_weight"][:, 2].astype(np.float32))
        assert np.array_equal(features.of(features.test)["plain"], data["test"][:, 0].astype(np.float32))
    features.views["rotate-180"][features.memory[0], 0] = 70000
    features.save(tmp_path / "g.npz")
    with np.load(tmp_path / "g.npz") as data:
        assert data["base_memory"].dtype == np.float32 and data["base_memory"][0, 0, 0] == 70000
        assert data["test"].dtype == np.float16 and data["base_head_bias"].shape == (BASE, 2)
    back = FeatureSet.load(tmp_path / "g.npz")
    for view, x in features.of(features.memory).items():
        assert np.array_equal(back.of(back.memory)[view], x)
        assert np.allclose(back.of(back.test)[view], features.of(features.test)[view], rtol=1e-3)
    assert back.sessions == features.sessions == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]


def test_sessions_of_the_file_are_those_of_the_set(tmp_path: Path) -> None:
    features = FeatureSet.load(made(tmp_path / "f.npz", sessions=np.array([0, 0, 0, 0, 1, 1, 1, 2, 3])))
    assert features.sessions == [[0, 1, 2, 3], [4, 5, 6], [7], [8]]
    assert [sorted(set(features.labels[rows])) for rows in features.shots] == features.sessions[1:]


@pytest.mark.parametrize("write", [made, plain], ids=["views", "plain"])
def test_what_is_saved_comes_back(write: Any, tmp_path: Path) -> None:
    features = FeatureSet.load(write(tmp_path / "f.npz"))
    features.save(tmp_path / "g.npz")
    assert_same(features, FeatureSet.load(tmp_path / "g.npz"))
    assert file_views(tmp_path / "g.npz") == file_views(tmp_path / "f.npz")


def test_parts_do_not_overlap_and_rows_are_read_by_view(tmp_path: Path) -> None:
    features = FeatureSet.load(made(tmp_path / "f.npz"))
    rows = np.concatenate([features.memory, *features.shots, features.test])
    assert np.array_equal(np.sort(rows), np.arange(len(features.labels))) and not len(features.spare)
    seen, labels = features.examples(features.shots[0][:2])
    assert {view: x.shape for view, x in seen.items()} == {view: (2, D) for view in features.views}
    assert np.array_equal(labels, features.labels[features.shots[0][:2]])


def different_widths(path: Path) -> FeatureSet:
    """Two views, whitened: a wide one with a cosine head of whitened features, a narrow one with a linear head."""
    features = FeatureSet.load(made(path), ["plain", "rotate-180"])
    view, narrow = "rotate-180", D - 2
    head = LinearHead(features.heads[view].weight[:, :narrow], np.arange(BASE, dtype=np.float32))
    return replace(
        features,
        views={**features.views, view: features.views[view][:, :narrow]},
        prototypes={**features.prototypes, view: features.prototypes[view][:, :narrow]},
        heads={"plain": replace(features.heads["plain"], whitened=True), view: head},
        whitening={"plain": Whitening(np.ones(D), 2 * np.eye(D)), view: Whitening(np.zeros(narrow), np.eye(narrow))},
    )


def test_views_of_different_widths(tmp_path: Path) -> None:
    features = different_widths(tmp_path / "f.npz")
    features.save(tmp_path / "g.npz")
    assert file_views(tmp_path / "g.npz") == ("plain", "rotate-180")
    assert_same(features, FeatureSet.load(tmp_path / "g.npz"))
    twice = replace(features, learned_from={view: 2 * x for view, x in features.views.items()})
    twice.save(tmp_path / "twice.npz")
    again = FeatureSet.load(tmp_path / "twice.npz")
    assert_same(twice, again)
    for view, x in again.lesson(again.test)[0].items():
        assert np.array_equal(x, 2 * again.of(again.test)[view])
    alone = FeatureSet.load(tmp_path / "g.npz", ["rotate-180"])
    assert alone.of(alone.test)["rotate-180"].shape == (36, D - 2) and isinstance(alone.heads["rotate-180"], LinearHead)
    assert isinstance(FeatureSet.load(tmp_path / "g.npz", ["plain"]).heads["plain"], CosineHead)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"test.1": np.zeros((36, D))}, "'test.1' must be numbers of shape (n, 4), got float64 (36, 6)"),
        ({"test.1": np.zeros((35, D - 2))}, "'test.1' has 35 rows, but 'test.0' has 36"),
        ({"base_prototypes.1": np.zeros((3, D - 2))}, "'base_prototypes.1' has 3 rows, but there are 4 base_proto"),
        ({"test_learned_from.0": np.zeros((36, D))}, "lacks the array 'novel_learned_from.0'"),
        (
            {f"{name}.{v}": np.zeros((7, d)) for name in LEARNED for v, d in enumerate((D, D - 2))},
            "'novel_learned_from.0' has 7 rows, but 'novel.0' has 25",
        ),
        ({"novel.1": None}, "lacks the array 'novel.1'; needed are: test.0, test.1"),
        ({"base_head_bias.1": None}, "is 0 for a linear head, but there is no 'base_head_bias.1'"),
        ({"base_head_bias.0": np.zeros(BASE)}, "has 'base_head_bias.0' and 'base_head_scale'"),
        (
            {"whitening_matrix.0": np.eye(D - 1)},
            "'whitening_matrix.0' must be finite numbers of shape (6, 6), got float64 (5, 5)",
        ),
        ({"whitening_centre.1": None}, "has 'base_head_whitened', but lacks 'whitening_centre.1'"),
        ({"base_head_whitened": np.ones(3)}, "'base_head_whitened' must be 2 truth values, got float64 (3,)"),
        ({"base_head_scale": np.ones(3)}, "'base_head_scale' must be a number > 0, or one a view"),
    ],
)
def test_wrong_files_of_different_widths(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    different_widths(tmp_path / "f.npz").save(tmp_path / "g.npz")
    with np.load(tmp_path / "g.npz") as file:
        data = {name: file[name] for name in file.files}
    np.savez(tmp_path / "g.npz", **{name: value for name, value in (data | changes).items() if value is not None})
    with pytest.raises(ConfigError) as error:
        FeatureSet.load(tmp_path / "g.npz")
    assert words in str(error.value)
