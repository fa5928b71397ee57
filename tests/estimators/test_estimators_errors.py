"""What the estimators refuse, and in which words."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

from faverage import AFAClassifier, AFARegressor, get_mean
from faverage.estimators.regression import fit_regression
from helpers_estimators import Net, classifiers


class Pair(torch.nn.Module):
    """Logits and something else."""

    def forward(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return X[:, :3], X


class TestErrors:
    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ([], "non-empty list"),
            ([GaussianNB()], "entry GaussianNB"),
            ([("nb", "drop")], "all estimators are dropped"),
            ([("nb", GaussianNB()), ("nb", GaussianNB())], "not unique.*'nb'"),
            ([("cv", GaussianNB())], "conflict with constructor arguments.*'cv'"),
            ([("nb", GaussianNB)], "'nb' is the class GaussianNB"),
            ([("net", Net())], "'net' of type Net has no method fit.*prefit"),
            ([("fast", lambda X: X)], "'fast' of type function"),
        ],
    )
    def test_members(self, members, message, iris) -> None:
        for ensemble in (AFAClassifier, AFARegressor):
            with pytest.raises(ValueError, match=message):
                ensemble(members).fit(iris[0], iris[2])

    @pytest.mark.parametrize(
        ("member", "message"),
        [
            (Net(2), r"'m' must give \(n, 3\) scores.*got shape \(75, 2\)"),
            (lambda X: np.full((len(X), 3), np.nan), "'m' gives scores that are not finite"),
            (lambda X: np.zeros(len(X)), r"'m' must give \(n, 3\) scores"),
            (torch.nn.Linear(3, 3), "member 'm': mat1 and mat2"),
            (7, "'m' is of type int: expected an estimator"),
            (Pair(), "member 'm': expected one tensor of outputs, got a tuple"),
            (lambda X: (np.zeros((len(X), 3)), X), "member 'm': expected one array or tensor of outputs, got a tuple"),
            (lambda X: {"logits": X}, "member 'm': expected an array or tensor of numbers, got a dict"),
            (lambda X: [["a"] * 3] * len(X), "member 'm': could not convert string to float"),
        ],
    )
    def test_prefit_members(self, member, message, iris) -> None:
        with pytest.raises(ValueError, match=message):
            AFAClassifier([("m", member)], cv="prefit").fit(iris[0], iris[2])

    def test_not_fitted(self, iris) -> None:
        with pytest.raises(NotFittedError, match="member 'nb' is not fitted"):
            AFAClassifier([("nb", GaussianNB())], cv="prefit").fit(iris[0], iris[2])

    def test_wrong_columns(self, iris) -> None:
        member = GaussianNB().fit(iris[0][:, :3], iris[2])
        with pytest.raises(ValueError, match="member 'nb': X has 4 features, but GaussianNB is expecting 3"):
            AFAClassifier([("nb", member)], cv="prefit").fit(iris[0], iris[2])

    def test_one_class(self) -> None:
        with pytest.raises(ValueError, match="one class only"):
            AFAClassifier(classifiers()).fit(np.arange(10.0)[:, None], ["a"] * 10)

    def test_unknown_fuser(self, iris) -> None:
        with pytest.raises(ValueError, match="unknown fuser 'best'"):
            AFAClassifier(classifiers(), fuser="best").fit(iris[0], iris[2])

    @pytest.mark.parametrize("weight", [-1.0, 0.0])
    def test_weights(self, weight, iris) -> None:
        with pytest.raises(ValueError, match=r"non-negative|non-zero"):
            AFAClassifier(classifiers()).fit(iris[0], iris[2], np.full(75, weight))

    @pytest.mark.parametrize(
        ("means", "message"),
        [
            ([], r"means must hold at least one mean, got \[\]"),
            ("arithmetic", r"means must be a list of means, got 'arithmetic' alone; write means=\['arithmetic'\]"),
            (get_mean("geometric"), "means must be a list of means, got Geometric"),
            ({"name": "power", "q": 2}, "means must be a list of means, got {'name'"),
            (["median"], "unknown mean 'median'"),
        ],
        ids=str,
    )
    def test_means(self, means, message) -> None:
        fits = []
        member = type("Member", (LinearRegression,), {"fit": lambda self, X, y: fits.append(1)})()
        with pytest.raises(ValueError, match=message):
            AFARegressor([("m", member)], means=means).fit(np.ones((5, 2)), np.arange(5.0))
        assert not fits
        with pytest.raises(ValueError, match=message):
            fit_regression(np.ones((5, 2)), np.arange(5.0), means=means)

    def test_values_of_a_regressor(self) -> None:
        with pytest.raises(ValueError, match="member 'm' must give one value a row"):
            AFARegressor([("m", lambda X: X)], cv="prefit").fit(np.ones((5, 2)), np.arange(5.0))
