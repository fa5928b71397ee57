"""The projection against a float64 sort reference and against the KKT conditions."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import faverage
from faverage import project_simplex
from faverage.afa.simplex import _project_unwatched_, project_rows_


def reference(rows: torch.Tensor) -> torch.Tensor:
    """The textbook algorithm, in float64, with a sort."""
    v = rows.double()
    v = v - v.amax(-1, keepdim=True)
    ordered = v.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    rank = torch.arange(1, v.shape[-1] + 1, dtype=torch.float64)
    count = (ordered - excess / rank > 0).sum(-1, keepdim=True)
    return (v - excess.gather(-1, count - 1) / count).relu()


def sparse(n: int, m: int) -> torch.Tensor:
    return torch.where(torch.rand(n, m) < 0.05, torch.rand(n, m), 0.0)


ROWS = {
    "random": lambda: torch.randn(50, 40),
    "uniform, long": lambda: torch.rand(6, 5000),
    "sparse": lambda: sparse(50, 300),
    "huge": lambda: torch.randn(50, 30) * 1e6 + 1e7,
    "huge negative": lambda: torch.randn(50, 30) - 1e6,
    "tiny": lambda: torch.randn(50, 30) * 1e-6,
    "tied": lambda: torch.randint(0, 3, (50, 30)).float() / 4,
    "constant": lambda: torch.full((4, 17), 0.3),
    "zero": lambda: torch.zeros(3, 1000),
    "one entry": lambda: torch.randn(9, 1),
    "inside already": lambda: torch.rand(20, 30).softmax(-1),
    "large constant": lambda: torch.full((2, 1000), 1e5),
    "far and close": lambda: torch.rand(3, 1000) * 1e-3 + 1e3,
    "enormous": lambda: torch.rand(4, 5) * 1e30,
    "two scales": lambda: torch.cat([torch.randn(20, 5) * 1e4, torch.randn(20, 50)], 1),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ROWS)
def test_equals_the_sort_reference(kind: str, dtype: torch.dtype, grad: bool) -> None:
    rows = ROWS[kind]().to(dtype)
    projected, theta = project_simplex(rows.clone().requires_grad_(grad), return_threshold=True)
    projected = projected.detach()
    assert projected.dtype == dtype and projected.shape == rows.shape and theta.shape == rows.shape[:-1]
    assert (projected.double() - reference(rows)).abs().max() < 1e-6
    assert (projected.double().sum(-1) - 1).abs().max() < 2e-6
    assert projected.min() >= 0


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30))
def test_kkt_conditions(values: list[float]) -> None:
    rows = torch.tensor([values], dtype=torch.float64)
    w, theta = project_simplex(rows, return_threshold=True)
    active = w > 0
    assert abs(w.sum().item() - 1) < 1e-9 and w.min() >= 0
    assert torch.allclose((rows - w)[active], theta.expand_as(rows)[active], atol=1e-9)  # stationarity on the support
    assert bool((rows[~active] <= theta.expand_as(rows)[~active] + 1e-9).all())  # dual feasibility off it


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("offset", [-1e3, -0.1, 0.0, 0.1, 1e3])
def test_starting_threshold_changes_nothing(kind: str, offset: float) -> None:
    rows = ROWS[kind]()
    plain, theta = project_simplex(rows, return_threshold=True)
    assert torch.allclose(project_simplex(rows, theta + offset), plain, atol=1e-6)


@pytest.mark.parametrize("start", [0.0, -1.0, 5.0, 0.7])
@pytest.mark.parametrize("kind", ROWS)
def test_in_place_version_is_exact_from_any_start(kind: str, start: float) -> None:
    rows = ROWS[kind]()
    expected = reference(rows)
    threshold = torch.full((len(rows), 1), start)
    for _ in range(2):  # the second time from the threshold of the first
        work = rows.clone()
        project_rows_(work, threshold)
        assert (work.double() - expected).abs().max() < 1e-6


def test_any_leading_shape() -> None:
    rows = torch.randn(2, 3, 4, 7)
    assert torch.allclose(project_simplex(rows).reshape(-1, 7), project_simplex(rows.reshape(-1, 7)))
    assert project_simplex(rows[0, 0, 0]).shape == (7,)
    assert project_simplex(torch.empty(0, 3)).shape == (0, 3)


def test_gradient() -> None:
    rows = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(project_simplex, (rows,))


def test_minus_infinity_excludes_an_entry() -> None:
    rows = torch.tensor([[0.2, float("-inf"), 0.4]])
    assert torch.allclose(project_simplex(rows), torch.tensor([[0.4, 0.0, 0.6]]))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.tensor([[1, 2]]), "float32 or float64 tensor, got a torch.int64"),
        ([[1.0]], "got list"),
        (torch.empty(3, 0), "at least one entry"),
        (torch.tensor(1.0), "at least one entry"),
        (torch.tensor([[float("nan"), 1.0]]), "NaN"),
        (torch.tensor([[float("inf"), 1.0]]), "plus infinity"),
    ],
)
def test_bad_rows_are_named(rows, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        project_simplex(rows)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (torch.zeros(3, 1), r"tensor of shape \(3,\)"),
        ([0.0] * 3, "got list"),
        (torch.full((3,), float("nan")), "start must be finite"),
    ],
)
def test_bad_start_is_named(start, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        project_simplex(torch.rand(3, 4), start)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("kind", ["random", "uniform, long", "sparse", "tied", "zero", "one entry", "inside already"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captured_version_is_exact(kind: str, dtype: torch.dtype, kernel: bool, monkeypatch) -> None:
    if not kernel:
        monkeypatch.setitem(sys.modules, "faverage.afa._simplex_triton", None)
        monkeypatch.delattr(faverage, "_simplex_triton", raising=False)
    rows = ROWS[kind]().to("cuda", dtype)
    threshold = torch.zeros(len(rows), 1, device="cuda", dtype=dtype)
    for _ in range(2):  # the second time from the threshold of the first
        work = rows.clone()
        _project_unwatched_(work, threshold)
    assert (work.double().cpu() - reference(rows.cpu())).abs().max() < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ROWS)
def test_gpu_equals_the_sort_reference(kind: str) -> None:
    rows = ROWS[kind]()
    assert (project_simplex(rows.cuda()).double().cpu() - reference(rows)).abs().max() < 1e-6
