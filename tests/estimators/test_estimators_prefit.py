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
from sklearn.tree import DecisionTreeClassifier

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


class TestPartialFit:
    """Streams: the fuser learns batch by batch, the members stay."""

    def members(self, iris) -> list:
        good, poor = GaussianNB().fit(iris[0], iris[2]), GaussianNB().fit(iris[0][:, :1], iris[2])
        return [("good", good), ("poor", lambda X: poor.predict_proba(X[:, :1]))]

    def test_batches_with_names_of_classes(self, iris) -> None:
        X, X_test, y, y_test = iris
        words = np.array(["setosa", "versicolor", "virginica"])
        model = AFAClassifier([("nb", GaussianNB().fit(X, words[y]))], fuser="log-pool", cv="prefit", half_life=50)
        order = np.argsort(y)  # the first batches lack classes
        for rows in np.array_split(order, 5):
            assert model.partial_fit(X[rows], words[y[rows]].tolist(), classes=["virginica", *words[:2]]) is model
        assert model.classes_.tolist() == words.tolist() and model.score(X_test, words[y_test]) > 0.9
        assert model.history_.examples.tolist() == [15, 30, 45, 60, 75]
        again = AFAClassifier(model.estimators, fuser="log-pool", cv="prefit").fit(X, words[y])
        again.partial_fit(X, words[y])  # after fit no classes are needed
        assert again.fuser_.weight_history.examples.tolist() == [75] and not hasattr(again.fit(X, words[y]), "history_")

    def test_the_history_has_the_names_of_members(self, iris) -> None:
        model = AFAClassifier(self.members(iris), fuser="log-pool", cv="prefit", half_life=50)
        model.partial_fit(iris[0], iris[2], classes=[0, 1, 2])
        assert list(model.history_.models) == ["good", "poor"] and model.history_.shares[-1, 0] > 0.5
        assert model.explain is not None and model.predict_proba(iris[1]).shape == (75, 3)

    def test_several_outputs(self, iris) -> None:
        X, X_test, y, y_test = iris
        Y = np.stack([y == 0, y > 1], 1).astype(int)
        tree = DecisionTreeClassifier(max_depth=3).fit(X, Y)
        model = AFAClassifier([("tree", tree)], fuser="log-pool", cv="prefit")
        for part in (slice(0, 40), slice(40, 75)):
            model.partial_fit(X[part], Y[part], classes=[[0, 1], [0, 1]])
        assert model.predict_proba(X_test).shape == (75, 2) and len(model.history_) == 2
        assert model.score(X_test, np.stack([y_test == 0, y_test > 1], 1)) > 0.8
        with pytest.raises(ValueError, match="y has the label 2, which is not among the classes"):
            model.partial_fit(X, Y + 1)
        with pytest.raises(ValueError, match="y has 1 columns, before it had 2"):
            model.partial_fit(X, y)

    @pytest.mark.parametrize(
        ("options", "arguments", "message"),
        [
            ({}, {}, "the first call of partial_fit needs classes: all labels that y may ever have"),
            ({}, {"classes": 3}, "classes must be labels, got 3"),
            ({}, {"classes": [0, 1]}, r"y has the label 2, which is not among the classes \[0, 1\]: give classes"),
            ({"metric": "f1_macro"}, {"classes": [0, 1, 2]}, "metric chooses on held-out rows, which a stream has not"),
            ({"class_weight": "balanced"}, {"classes": [0, 1, 2]}, "needs all rows at once: give a dict"),
            ({"half_life": 0}, {"classes": [0, 1, 2]}, "half_life must be a number of examples above 0, got 0"),
        ],
        ids=str,
    )
    def test_refusals(self, options, arguments, message, iris) -> None:
        some = iris[2] < 2
        members = [("nb", GaussianNB().fit(iris[0][some], iris[2][some]))]
        model = AFAClassifier(members, fuser="log-pool", cv="prefit", **options)
        with pytest.raises(ValueError, match=message):
            model.partial_fit(iris[0], iris[2], **arguments)

    def test_what_a_stream_cannot_do(self, iris) -> None:
        with pytest.raises(AttributeError) as found:
            AFAClassifier([("nb", GaussianNB())]).partial_fit(iris[0], iris[2])
        assert "needs cv='prefit'" in str(found.value.__cause__)
        model = AFAClassifier(self.members(iris), fuser="log-pool", cv="prefit")
        model.partial_fit(iris[0], iris[2], classes=[0, 1, 2])
        with pytest.raises(ValueError, match=r"sets of labels need held-out rows.*use fit"):
            model.predict_set(iris[1])
        with pytest.raises(ValueError, match="3 features, but AFAClassifier is expecting 4"):
            model.partial_fit(iris[0][:, 1:], iris[2])
