"""Members that are fitted already: models of different classes, modules and functions."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import GaussianNB

from faverage import AFAClassifier, AFARegressor
from helpers_estimators import Net
from helpers_paths import ROOT


@pytest.fixture(scope="module")
def digits() -> tuple:
    """Digits: a quarter to train members, a quarter to train fusers, and half for tests."""
    X, y = load_digits(return_X_y=True)
    X_models, X, y_models, y = train_test_split(X / 16, y, test_size=0.75, stratify=y, random_state=0)
    return X_models, y_models, *train_test_split(X, y, test_size=2 / 3, stratify=y, random_state=0)


class TestDifferentClasses:
    """Five models that each know some of the digits: by position they make no sense, by label they do."""

    @pytest.mark.parametrize(("n_known", "enough"), [(2, 0.78), (5, 0.93)])
    def test_by_label(self, n_known, enough, digits) -> None:
        X_models, y_models, X, X_test, y, y_test = digits
        models = []
        for k in range(5):
            rows = np.isin(y_models, [(2 * k + i) % 10 for i in range(n_known)])
            fitted = LogisticRegression(max_iter=1000).fit(X_models[rows], y_models[rows])
            models.append((f"model {k}", FrozenEstimator(fitted)))
        voting = VotingClassifier(models, voting="soft").fit(X, y).score(X_test, y_test)
        assert voting < 0.5
        ours = AFAClassifier(models, cv="prefit").fit(X, y)
        assert ours.score(X_test, y_test) >= enough
        scores = ours.member_scores(X_test)
        assert (np.isnan(scores).sum(2) == 10 - n_known).all()
        np.testing.assert_allclose(np.nansum(scores, 2), 1)

    def test_no_label_in_common(self, iris, names) -> None:
        members = [("one", GaussianNB().fit(names[0], names[2])), ("two", GaussianNB().fit(names[0], names[2]))]
        message = r"no member shares a label with y, which has 0, 1, 2; member 'one' knows 'setosa', 'versicolor'"
        with pytest.raises(ValueError, match=message):
            AFAClassifier(members, cv="prefit").fit(iris[0], iris[2])

    def test_a_member_with_no_label_in_common(self, iris, names) -> None:
        members = [("words", GaussianNB().fit(names[0], names[2])), ("numbers", GaussianNB().fit(iris[0], iris[2]))]
        with pytest.warns(
            UserWarning, match=r"'words' shares no label with y: it knows 'setosa'.*y has 0, 1, 2"
        ) as found:
            model = AFAClassifier(members, fuser="arithmetic", cv="prefit").fit(iris[0], iris[2])
        assert len(found) == 1 and found[0].filename == __file__
        assert len(model.classes_) == 6

    @pytest.mark.slow
    def test_example(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        script = ROOT / "examples" / "different_classes.py"
        assert len(script.read_text().splitlines()) < 70
        monkeypatch.chdir(tmp_path)
        for options in ([], ["--plot", "bars.png", "--weights", "weights.png"]):
            monkeypatch.setattr(sys, "argv", [str(script), *options])
            runpy.run_path(str(script), run_name="__main__")
            out = capsys.readouterr().out
            assert re.search(r"faverage, afa +9\d\.\d%", out) and len(out.splitlines()) == 5
            assert sorted(file.name for file in tmp_path.rglob("*")) == sorted(options[1::2])

    def test_classes_that_y_has_not(self, names) -> None:
        X, X_test, y, _ = names
        some = y != "virginica"
        members = [("all", GaussianNB().fit(X, y)), ("some", GaussianNB().fit(X[some], y[some]))]
        model = AFAClassifier(members, fuser="arithmetic", cv="prefit").fit(X[some], y[some])
        assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
        assert model.estimators_[0] is members[0][1]
        assert np.isnan(model.member_scores(X_test)[:, 1, 2]).all()


class TestPrefit:
    def test_modules_and_functions(self, names) -> None:
        X, X_test, y, y_test = names
        module = Net()
        function = lambda X: np.asarray(Net().eval()(torch.tensor(X, dtype=torch.float32)).softmax(1))  # noqa: E731
        members = [("logits", module), ("probabilities", Net(probabilities=True)), ("function", function)]
        model = AFAClassifier(members, cv="prefit").fit(X, y)
        scores = model.member_scores(X_test)
        np.testing.assert_allclose(scores[:, 0], scores[:, 1], atol=1e-6)
        np.testing.assert_allclose(scores[:, 0], scores[:, 2], atol=1e-6)
        assert model.score(X_test, y_test) > 0.85
        assert module.training and module.drop.training

    def test_a_module_with_its_own_classes(self, names) -> None:
        X, X_test, y, _ = names
        module = Net(2)
        module.classes_ = ["setosa", "versicolor"]
        members = [("net", module), ("nb", GaussianNB().fit(X, y))]
        model = AFAClassifier(members, fuser="arithmetic", cv="prefit").fit(X, y)
        assert np.isnan(model.member_scores(X_test)[:, 0, 2]).all()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
    def test_modules_of_other_types(self, dtype, iris) -> None:
        X, _, y, _ = iris
        module = torch.nn.Linear(4, 3, dtype=dtype)
        model = AFAClassifier([("net", module)], fuser="arithmetic", cv="prefit").fit(X, y)
        with torch.no_grad():
            expected = module(torch.tensor(X, dtype=dtype)).double().softmax(1)
        np.testing.assert_allclose(
            model.member_scores(X)[:, 0], expected, atol=1e-9 if dtype == torch.float64 else 0.02
        )

    def test_a_module_with_buffers_only(self, iris) -> None:
        module = torch.nn.BatchNorm1d(4, affine=False, dtype=torch.float64)
        module.classes_ = [0, 1, 2, 3]
        scores = AFAClassifier([("net", module)], fuser="arithmetic", cv="prefit").fit(iris[0], iris[2])
        assert scores.classes_.tolist() == [0, 1, 2, 3]

    def test_functions_that_return_tensors(self, iris) -> None:
        X, X_test, y, _ = iris
        net = torch.nn.Linear(4, 3)
        with_gradient = lambda X: net(torch.tensor(X, dtype=torch.float32))  # noqa: E731
        half = lambda X: with_gradient(X).detach().bfloat16()  # noqa: E731
        members = [("net", net), ("function", with_gradient), ("half", half)]
        scores = AFAClassifier(members, fuser="arithmetic", cv="prefit").fit(X, y).member_scores(X_test)
        np.testing.assert_allclose(scores[:, 0], scores[:, 1], atol=1e-6)
        np.testing.assert_allclose(scores[:, 0], scores[:, 2], atol=0.05)
        value = lambda X: with_gradient(X)[:, :1]  # noqa: E731
        assert AFARegressor([("f", value)], cv="prefit").fit(X, y).predict(X_test).shape == (75,)

    def test_mixed_with_estimators_and_frozen_in_a_search(self, iris) -> None:
        X, X_test, y, y_test = iris
        members = [("net", Net()), ("nb", FrozenEstimator(GaussianNB().fit(X, y)))]
        search = GridSearchCV(AFAClassifier(members, cv="prefit"), {"fuser": ["geometric", "logistic"]}, cv=3)
        assert search.fit(X, y).score(X_test, y_test) > 0.85

    def test_regression(self) -> None:
        X, y = load_diabetes(return_X_y=True)
        members = [
            ("linear", LinearRegression().fit(X[:200], y[:200])),
            ("net", torch.nn.Linear(10, 1)),
            ("constant", lambda X: np.full(len(X), 150)),
        ]
        model = AFARegressor(members, cv="prefit").fit(X[200:], y[200:])
        assert model.member_scores(X).shape == (442, 3, 1)
        assert model.score(X[200:], y[200:]) > 0.4
