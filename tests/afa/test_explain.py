"""Shares that sum to one and say what was put in; tables and the plot."""

import pandas
import pytest
import torch

from faverage import AFA, explain
from faverage.afa.explain import shares


def network(structure: str) -> AFA:
    """Two means, three models, four classes; the geometric mean has three quarters, model 2 everything in it."""
    afa = AFA(3, 4, means=["arithmetic", "geometric"], structure=structure)
    mix = torch.tensor([[1.0, 3.0]])
    afa.aggregation.set_(
        torch.cat([torch.eye(4), 3 * torch.eye(4)], 1) if structure == "full" else mix.expand_as(afa.mix).clone()
    )
    one = torch.zeros_like(afa.averages[1].weight)
    if structure == "full":
        one[:, 8:] = torch.eye(4).flip(0)  # class m of model 2, another class for each row
    else:
        one[:, 2] = 1
    afa.averages[1].weights.set_(one)
    return afa


@pytest.mark.parametrize("structure", ["full", "per_class", "scalar"])
def test_shares_are_read_off_the_weights(structure: str) -> None:
    by_mean, by_model = shares(network(structure))
    assert torch.allclose(by_mean, torch.tensor([0.25, 0.75]).double().expand(4, 2))
    assert torch.allclose(by_model, torch.tensor([1 / 12, 1 / 12, 10 / 12]).double().expand(4, 3), atol=1e-6)


def test_shares_differ_by_class_where_the_weights_do() -> None:
    afa = AFA(2, 3, means=["arithmetic"], structure="per_class")
    afa.averages[0].weights.set_(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]))
    result = explain(afa, models=["a", "b"], classes=["x", "y", "z"])
    assert [row[1] for row in result.trusted.rows] == ["a", "a", "b"]
    assert result.models.rows[0] == ("x", "a", pytest.approx(0.9))


def test_class_that_rests_on_nothing_is_uniform() -> None:
    afa = AFA(2, 3, structure="per_class")
    mix = afa.mix.detach().clone()
    mix[1] = 0
    afa.aggregation.set_(mix)
    by_mean, by_model = shares(afa)
    assert torch.allclose(by_mean[1], torch.full((3,), 1 / 3).double())
    assert torch.allclose(by_model.sum(1), torch.ones(3).double())


def test_tables_as_pandas_and_markdown() -> None:
    result = explain(network("per_class"), models=["svm", "forest", "net"], classes=list("abcd"))
    frames = result.to_pandas()
    assert isinstance(frames["models"], pandas.DataFrame) and len(frames["models"]) == 12
    assert frames["models"].groupby("class")["share"].sum().tolist() == pytest.approx([1] * 4)
    assert list(frames["trusted"].columns) == ["class", "model", "share", "mean"]
    text = result.to_markdown()
    assert "| geometric  | 0.750 |" in text and "| a     | net   | 0.833 | geometric |" in text


def test_names_cannot_break_a_markdown_table() -> None:
    text = explain(AFA(2, 2), models=["a|b", "c\nd"]).to_markdown()
    assert r"a\|b" in text and "c d" in text


def test_two_power_means_are_told_apart() -> None:
    afa = AFA(2, 3, means=[{"name": "power", "q": 2}, {"name": "power", "q": 3}])
    assert [row[0] for row in explain(afa).means.rows] == ["power(q=2)", "power(q=3)"]


@pytest.mark.parametrize("classes", [3, 40])
def test_plot_is_written(tmp_path, classes: int) -> None:
    path = tmp_path / "weights.png"
    figure = explain(AFA(4, classes)).plot(path)
    assert path.stat().st_size > 5000 and len(figure.axes) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"models": ["a"]}, "models must have 3 names, got 1"), ({"classes": ["a"]}, "classes must have 4 names")],
)
def test_wrong_number_of_names(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        explain(AFA(3, 4), **arguments)


def test_only_afa_is_explained() -> None:
    with pytest.raises(ValueError, match="network must be an AFA, got Linear"):
        explain(torch.nn.Linear(2, 2))
