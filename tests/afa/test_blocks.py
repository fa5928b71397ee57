"""The structure ``block``: full AFA with zeros outside the groups, stored without the zeros; and proposed groups."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from faverage import AFA, FAverage, explain, export_onnx, fit, groups_by_confusion, load, save
from faverage.afa.explain import shares
from faverage.afa.weights import Blocks, Groups
from faverage.fusion import get_fuser, load_fuser

K, N = 3, 7
GROUPS = [4, 9, 4, 4, 0, 9, 0]  # of three, two and two classes
MEANS = ["arithmetic", "geometric", "harmonic", {"name": "power", "q": 3}]


def probabilities(n: int = 6, k: int = K, classes: int = N) -> torch.Tensor:
    return torch.rand(n, k, classes).softmax(-1)


def stirred(**options) -> AFA:
    """A network somewhere in its set."""
    network = AFA(K, N, means=MEANS, **options)
    with torch.no_grad():
        for rows in network.rows():
            rows.raw.add_(0.3 * torch.rand_like(rows.raw))
    network.project_()
    return network


def as_full(network: AFA) -> AFA:
    full = AFA(**{k: v for k, v in network.config().items() if k != "groups"} | {"structure": "full"})
    for to, of in zip(full.branches, network.branches, strict=True):
        to.weights.set_(of.weight.detach())
    full.aggregation.set_(network.mix.detach())
    return full


@pytest.mark.parametrize("output", ["softmax", "normalise", "power", "identity"])
@pytest.mark.parametrize("groups", [GROUPS, 3, 1, N])
def test_block_is_full_with_zeros_outside_the_groups(groups, output: str) -> None:
    network, scores = stirred(structure="block", groups=groups, output=output), probabilities()
    full = as_full(network)
    assert torch.allclose(network(scores), full(scores), atol=1e-6)
    inside = torch.tensor(network.groups.numbers)[:, None] == torch.tensor(network.groups.numbers)
    for average in network.branches:
        assert torch.equal(average.weight != 0, (average.weight != 0) & inside.repeat(1, K))
        assert (average.weight != 0).sum() > 0.5 * inside.sum()
    assert all(torch.allclose(a, b) for a, b in zip(shares(network), shares(full), strict=True))
    one, other = network.branches[1], full.branches[1]
    assert torch.allclose(one(scores), other(scores), atol=1e-6)


def test_training_keeps_to_the_groups_as_a_masked_full_network_would() -> None:
    scores, y = probabilities(80), torch.arange(80) % N
    network = AFA(K, N, structure="block", groups=GROUPS)
    full = as_full(network)
    inside = torch.tensor(GROUPS)[:, None] == torch.tensor(GROUPS)
    gradients = []
    for net in (network, full):
        net.zero_grad()
        (-net.log_prob(scores).gather(1, y[:, None])).mean().backward()
    for mine, whole in zip([*network.branches, network], [*full.branches, full], strict=True):
        blocks, rows = (m.aggregation if isinstance(m, AFA) else m.weights for m in (mine, whole))
        expected = rows.raw.grad * inside.repeat(1, blocks.copies)
        whole_gradient = Blocks(blocks.groups, blocks.copies, 0.0, simplex=False)
        for to, of in zip(whole_gradient.stacks, blocks.stacks, strict=True):
            to.raw.data.copy_(of.raw.grad)
        gradients.append((whole_gradient() - expected).abs().max().item())
    assert max(gradients) < 1e-6


@pytest.mark.parametrize("constraint", ["projection", "softmax"])
def test_groups_of_one_train_as_per_class_and_one_group_as_full(constraint: str) -> None:
    scores, y = probabilities(60), torch.arange(60) % N
    for groups, structure in ((N, "per_class"), (1, "full")):
        one = AFA(K, N, structure="block", groups=groups, constraint=constraint)
        other = AFA(K, N, structure=structure, constraint=constraint)
        assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in other.parameters())
        histories = [fit(net, scores, y, epochs=5, batch_size=16, lr=0.02) for net in (one, other)]
        assert histories[0].train == pytest.approx(histories[1].train, rel=1e-4)
        assert torch.allclose(one(scores), other(scores), atol=1e-3)


@pytest.mark.parametrize(("structure", "groups"), [("scalar", None), ("per_class", None), ("block", GROUPS)])
def test_working_in_pieces_changes_nothing(structure: str, groups, monkeypatch) -> None:
    import faverage.afa.weights as weights

    network, scores = stirred(structure=structure, groups=groups), probabilities(50)
    results = []
    for piece in (1 << 19, 100):
        monkeypatch.setattr(weights, "_PIECE", piece)
        network.zero_grad()
        network(scores)[:, 0].sum().backward()
        results.append([network(scores).detach(), *(p.grad.clone() for p in network.parameters())])
    for whole, pieces in zip(*results, strict=True):
        assert torch.allclose(whole, pieces, rtol=1e-4, atol=1e-6)
    assert network(scores[:0]).shape == (0, N)


@pytest.mark.parametrize("constraint", ["projection", "softmax"])
def test_constraints_hold_after_training(constraint: str) -> None:
    scores, y = probabilities(60), torch.arange(60) % N
    network = AFA(K, N, structure="block", groups=GROUPS, constraint=constraint, output="power")
    history = fit(network, scores, y, epochs=10, lr=0.1, validation=0.2)
    assert history.train[-1] < history.train[0]
    for rows in network.rows():
        assert rows().min() >= 0 and (rows().sum(-1) - 1).abs().max() < 2e-6


def test_storage_is_compact() -> None:
    n, size = 3000, 30
    network = AFA(10, n, structure="block", groups=n // size)
    assert sum(p.numel() for p in network.parameters()) == 3 * n * size * (10 + 1)
    uneven = AFA(2, 100, structure="block", groups=[0] * 50 + list(range(1, 51)))
    assert sum(p.numel() for p in uneven.parameters()) == 3 * (50 * 50 + 50) * 3
    assert explain(network).models.rows[0][2] == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_and_loaded(tmp_path: Path, dtype: torch.dtype) -> None:
    network = stirred(structure="block", groups=np.array(GROUPS)).to(dtype)
    again = load(save(network, tmp_path / "afa.safetensors"))
    scores = probabilities().to(dtype)
    assert torch.equal(again(scores), network(scores)) and again.config() == network.config()
    assert again.config()["groups"] == GROUPS and "groups" not in AFA(2, 3).config()
    assert "1 of 3, 2 of 2" in repr(network)


@pytest.mark.slow
def test_onnx(tmp_path: Path) -> None:
    assert export_onnx(stirred(structure="block", groups=GROUPS, output="power"), tmp_path / "afa.onnx") <= 1e-5


def test_a_swap_inside_a_group_is_learned() -> None:
    y = torch.arange(120) % 6
    swapped = torch.tensor([1, 0, 3, 2, 5, 4])
    scores = (0.7 * torch.nn.functional.one_hot(swapped[y], 6) + 0.05)[:, None]
    right, wrong = ([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 2])
    hits = []
    for groups in (right, wrong):
        network = AFA(1, 6, structure="block", groups=groups)
        fit(network, scores, y, epochs=200, lr=0.05)
        hits.append((network(scores).argmax(1) == y).float().mean().item())
    assert hits[0] == 1 and hits[1] < 0.7


def test_in_the_fuser_of_the_paper(tmp_path: Path) -> None:
    scores, y = probabilities(60).numpy(), np.arange(60) % N
    fuser = get_fuser("afa-paper", structure="block", groups=np.array(GROUPS), epochs=5).fit(scores, y)
    loaded = load_fuser(fuser.save(tmp_path / "fuser.safetensors"))
    np.testing.assert_array_equal(loaded.predict_proba(scores), fuser.predict_proba(scores))
    assert len(fuser.explain().trusted.rows) == N
    wider = np.concatenate([scores, scores[:, :, :1]], 2)
    with pytest.raises(ValueError, match="a group number for each of the 8 classes, got 7"):
        fuser.add_class().partial_fit(wider, y)
    assert get_fuser("afa-paper", structure="block", groups=2, epochs=1).fit(scores, y).network.groups.shapes[0][0] == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: AFA(2, 3, structure="block"), "structure 'block' needs groups"),
        (lambda: AFA(2, 3, groups=2), "groups go with structure='block' or 'tied', got structure 'full'"),
        (lambda: AFA(2, 3, structure="block", groups=[0, 1]), "for each of the 3 classes, got 2"),
        (lambda: AFA(2, 3, structure="block", groups=4), "between 1 and the 3 classes, got 4"),
        (lambda: AFA(2, 3, structure="block", groups=0), "between 1 and the 3 classes, got 0"),
        (lambda: AFA(2, 3, structure="block", groups=[0.5, 1, 1]), "groups must be a whole number"),
        (lambda: FAverage(2, 3, structure="block", groups="abc"), "groups must be a whole number"),
        (lambda: FAverage(2, 3, structure="block"), "needs groups"),
        (lambda: get_fuser("afa-paper", structure="block"), "needs groups"),
        (lambda: get_fuser("afa-paper", groups=[0, 1]), "groups go with"),
        (lambda: Blocks(Groups(2, 4), 1, 1.0, simplex=True).set_(torch.full((4, 4), 0.25)), "of another group"),
        (lambda: Blocks(Groups(2, 4), 1, 1.0, simplex=True).set_(torch.eye(3)), r"shape \(4, 4\), got \(3, 3\)"),
    ],
)
def test_bad_groups_are_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def confused(classes: int, size: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two models that confuse the classes of planted groups, and a little of everything."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(classes) // size
    y = np.arange(n) % classes
    noise = rng.random((n, 2, classes)) ** 8 * 6 / classes
    alike = (group[y][:, None] == group) * rng.random((n, 2, classes)).transpose(1, 0, 2) ** 3
    scores = noise + 0.8 * alike.transpose(1, 0, 2) + np.eye(classes)[y][:, None]
    return scores / scores.sum(-1, keepdims=True), y, group


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("size", [2, 5, 6])
def test_planted_groups_are_found(size: int, single: bool) -> None:
    scores, y, group = confused(60, size, 1200)
    found = groups_by_confusion(scores.mean(1) if single else scores.astype(np.float16), y, size)
    pairs = {(a, b) for a, b in zip(found, group.tolist(), strict=True)}
    assert len(pairs) == len(set(found)) == 60 // size


def test_smaller_groups_stay_whole_and_are_packed() -> None:
    scores, y, group = confused(60, 4, 1200)
    scores[:, :, :3] = np.nan  # unknown to all models: no reason to be anywhere
    found = np.array(groups_by_confusion(scores, y, 13))
    assert all(len(set(found[(group == g) & (np.arange(60) >= 3)])) == 1 for g in range(15))
    assert np.bincount(found).max() <= 13 and len(set(found)) <= 6


def test_ten_thousand_classes_take_seconds() -> None:
    from scipy.sparse import coo_matrix

    from faverage.afa.groups import _agglomerated, _packed

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 10_000, (2, 100_000))
    graph = coo_matrix((rng.random(100_000), (a, b)), shape=(10_000, 10_000))
    start = time.perf_counter()
    found = _packed(_agglomerated((graph + graph.T).tocsr(), 32), 32)
    assert time.perf_counter() - start < 10
    assert len(found) == 10_000 and np.bincount(found).max() <= 32


def test_classes_that_nobody_confuses() -> None:
    assert groups_by_confusion(np.eye(5), np.arange(5), 2) == [0, 0, 1, 1, 2]
    assert groups_by_confusion(np.ones((3, 1)), np.zeros(3, dtype=int), 1) == [0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": np.ones(4)}, r"scores must be numbers of shape \(n, K, N\) or \(n, N\)"),
        ({"y": [0, 1, 2]}, "y must be whole-number labels"),
        ({"y": [0, 1, 2, 4]}, r"labels in 0 … 3, found 4"),
        ({"size": 5}, "size must be a whole number from 1 to the 4 classes, got 5"),
        ({"size": 0}, "got 0"),
    ],
)
def test_bad_confusion_is_named(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        groups_by_confusion(**{"scores": np.eye(4), "y": [0, 1, 2, 3], "size": 2, **change})
