"""Every registered mean against the theory of quasi-arithmetic means."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faverage import Mean, get_mean, mean_names, register_mean
from faverage.afa.means import MEANS

OPTIONS = {
    "geometric": [{"eps": 1e-3}, {"eps": 1e-6}, {"eps": 0.5}],
    "harmonic": [{"eps": 1e-2}, {"eps": 1e-4}, {"eps": 0.5}],
    "power": [{"q": 2.0}, {"q": 3}, {"q": 0.5}, {"q": 1.0}],
}
CASES = [(name, options) for name in mean_names() for options in OPTIONS.get(name, [{}])]
EVERY_MEAN = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: str(v))
SCORES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6)


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_all_four_means_are_registered() -> None:
    assert set(mean_names()) >= {"arithmetic", "geometric", "harmonic", "power"}


@EVERY_MEAN
@given(values=SCORES)
def test_inverse_undoes_the_function(name: str, options: dict, values: list[float]) -> None:
    mean, x = get_mean(name, **options), tensor(values)
    assert torch.allclose(mean.inverse(mean(x)), x, rtol=1e-7, atol=1e-9)


@EVERY_MEAN
@given(values=SCORES, data=st.data())
def test_mean_lies_between_smallest_and_largest(name: str, options: dict, values: list[float], data) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 1), min_size=len(values), max_size=len(values)))
    x = tensor(values)
    average = get_mean(name, **options).average(x, tensor(weights))
    assert x.min() - 1e-9 <= average <= x.max() + 1e-9


@EVERY_MEAN
@given(values=SCORES)
def test_equal_weights_ignore_the_order(name: str, options: dict, values: list[float]) -> None:
    mean, x = get_mean(name, **options), tensor(values)
    assert torch.allclose(mean.average(x), mean.average(x.flip(0)), atol=1e-9)


@EVERY_MEAN
def test_equal_numbers_average_to_themselves_and_weights_are_scaled(name: str, options: dict) -> None:
    mean = get_mean(name, **options)
    assert torch.allclose(mean.average(tensor([0.3, 0.3, 0.3])), tensor([0.3]))
    x = tensor([0.1, 0.9])
    assert torch.allclose(mean.average(x, tensor([1.0, 3.0])), mean.average(x, tensor([0.25, 0.75])))
    assert torch.allclose(mean.average(x, tensor([0.0, 2.0])), x[1])


@EVERY_MEAN
def test_gradients(name: str, options: dict) -> None:
    mean = get_mean(name, **options)
    x = torch.rand(4, 5, dtype=torch.float64).add_(0.05).requires_grad_()
    weights = torch.rand(5, dtype=torch.float64).add_(0.1)
    assert torch.autograd.gradcheck(lambda v: mean.average(v, weights), (x,))
    assert torch.autograd.gradcheck(lambda v: mean.inverse(mean(v)), (x,))


@EVERY_MEAN
def test_average_runs_along_any_dimension(name: str, options: dict) -> None:
    mean = get_mean(name, **options)
    x = torch.rand(3, 4, 5, dtype=torch.float64)
    weights = torch.rand(4, dtype=torch.float64)
    assert torch.allclose(mean.average(x, weights, dim=1), mean.average(x.transpose(1, 2), weights))


@EVERY_MEAN
def test_options_rebuild_the_mean(name: str, options: dict) -> None:
    mean = get_mean(name, **options)
    assert get_mean(mean.name, **mean.options()) == mean
    assert get_mean({"name": mean.name, **mean.options()}) == mean
    assert get_mean(mean) is mean


@given(values=st.lists(st.floats(0.01, 1), min_size=2, max_size=5))
def test_limits_are_the_weighted_means_of_table_1(values: list[float]) -> None:
    x = tensor(values)
    weights = torch.linspace(1, 2, len(values), dtype=torch.float64)
    w = weights / weights.sum()
    exact = {
        ("geometric", "eps"): (w * x.log()).sum().exp(),
        ("harmonic", "eps"): 1 / (w / x).sum(),
    }
    for (name, option), limit in exact.items():
        errors = [float((get_mean(name, **{option: e}).average(x, weights) - limit).abs()) for e in (1e-2, 1e-5, 1e-8)]
        assert errors[2] < 1e-5
        assert errors[2] <= errors[1] + 1e-9 <= errors[0] + 2e-9
    assert torch.allclose(get_mean("arithmetic").average(x, weights), (w * x).sum())
    assert torch.allclose(get_mean("power", q=3).average(x, weights), (w * x**3).sum() ** (1 / 3))


@given(values=st.lists(st.floats(0.01, 1), min_size=2, max_size=5))
def test_means_are_ordered(values: list[float]) -> None:
    x = tensor(values)
    harmonic, geometric = (get_mean(n, eps=1e-9).average(x) for n in ("harmonic", "geometric"))
    arithmetic, quadratic = get_mean("arithmetic").average(x), get_mean("power", q=2).average(x)
    assert harmonic <= geometric + 1e-6 and geometric <= arithmetic + 1e-6 and arithmetic <= quadratic + 1e-9


@pytest.mark.parametrize("eps", [1e-3, 1e-2, 0.1, 0.5])
@given(x=st.floats(-1e3, 1e3))
def test_leaky_hyperbola_is_its_own_inverse_on_the_whole_line(eps: float, x: float) -> None:
    h = get_mean("harmonic", eps=eps)
    value = tensor([x])
    assert torch.allclose(h(h(value)), value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("eps", [1e-2, 0.1, 0.5])
def test_leaky_hyperbola_is_the_papers_formula(eps: float) -> None:
    top = 1 / eps - eps
    h = get_mean("harmonic", eps=eps)
    inside = torch.linspace(0, top, 50, dtype=torch.float64)
    assert torch.allclose(h(inside), 1 / (inside + eps) - eps)
    assert torch.allclose(h(tensor([-1.0, -7.0])), -tensor([-1.0, -7.0]) / eps**2 + 1 / eps - eps)
    assert torch.allclose(h(tensor([top + 1, top + 7])), -(eps**2) * tensor([1.0, 7.0]), atol=1e-12)


def test_power_mean_has_finite_gradients_at_zero() -> None:
    x = torch.zeros(3, requires_grad=True)
    get_mean("power", q=3).average(x).backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: get_mean("median"), "unknown mean 'median'; known are: arithmetic"),
        (lambda: get_mean("geometric", eps=0), "eps of the geometric mean must be a finite number > 0"),
        (lambda: get_mean("harmonic", eps=-1.0), "eps of the harmonic"),
        (lambda: get_mean("harmonic", eps=1.0), "below 1"),
        (lambda: get_mean("power", q=0), "q of the power mean"),
        (lambda: get_mean("power", q=math.inf), "q of the power mean"),
        (lambda: get_mean("power", q="two"), "q of the power mean"),
        (lambda: get_mean("power", eps=1), r"does not take the options \['eps'\]"),
        (lambda: get_mean(get_mean("power"), q=2), "built already"),
        (lambda: get_mean("geometric").average(tensor([-0.1, 1])), "values must be >= 0"),
        (lambda: get_mean("geometric").average(tensor([math.nan, 1])), "NaN"),
        (lambda: get_mean("arithmetic").average(tensor([math.inf, 1])), "infinite"),
        (lambda: get_mean("arithmetic").average(tensor([])), "at least one entry"),
        (lambda: get_mean("arithmetic").average(tensor([1, 2]), tensor([1])), r"weights must have shape \(2,\)"),
        (lambda: get_mean("arithmetic").average(tensor([1, 2]), tensor([-1, 2])), "non-negative"),
        (lambda: get_mean("arithmetic").average(tensor([1, 2]), tensor([0, 0])), "not all zero"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_arithmetic_takes_negative_numbers() -> None:
    assert get_mean("arithmetic").average(tensor([-1.0, 2.0])) == 0.5


def test_users_mean_works_everywhere() -> None:
    from faverage import AFA, fit

    @register_mean("cubic")
    class Cubic(Mean):
        def __call__(self, x):
            return x**3

        def inverse(self, y):
            return y.relu() ** (1 / 3)

    try:
        assert torch.allclose(get_mean("cubic").average(tensor([1.0, 2.0])), tensor([4.5]) ** (1 / 3))
        network = AFA(2, 3, means=["cubic", "arithmetic"])
        history = fit(network, torch.rand(20, 2, 3).softmax(-1), torch.arange(20) % 3, epochs=2)
        assert len(history.train) == 2 and network.config()["means"][0] == {"name": "cubic"}
        with pytest.raises(ValueError, match="exists already"):
            register_mean("cubic")(type("Other", (Mean,), {}))
    finally:
        MEANS.unregister("cubic")
    assert "cubic" not in mean_names()
