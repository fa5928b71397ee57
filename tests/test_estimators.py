import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, Ridge
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_score, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

from faverage import AFA, AFAClassifier, AFARegressor, Explanation, get_mean
from faverage._regression import _Problem, fit_regression

MEANS = ("arithmetic", "geometric", "harmonic")
ROOT = Path(__file__).parents[1]


def classifiers() -> list:
    return [("tree", DecisionTreeClassifier(max_depth=3, random_state=0)), ("nb", GaussianNB())]


def regressors() -> list:
    return [("tree", DecisionTreeRegressor(max_depth=3, random_state=0)), ("ridge", Ridge())]


@parametrize_with_checks([AFAClassifier(classifiers()), AFARegressor(regressors())])
def test_scikit_learn_check(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def iris() -> tuple:
    X, y = load_iris(return_X_y=True)
    return train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)


@pytest.fixture(scope="module")
def names(iris) -> tuple:
    """Iris with labels as strings."""
    X, X_test, y, y_test = iris
    labels = np.array(["setosa", "versicolor", "virginica"])
    return X, X_test, labels[y], labels[y_test]


@pytest.fixture(scope="module")
def digits() -> tuple:
    """Digits: a quarter to train members, a quarter to train fusers, and half for tests."""
    X, y = load_digits(return_X_y=True)
    X_models, X, y_models, y = train_test_split(X / 16, y, test_size=0.75, stratify=y, random_state=0)
    return X_models, y_models, *train_test_split(X, y, test_size=2 / 3, stratify=y, random_state=0)


@pytest.fixture
def members() -> list:
    """Three regressors."""
    knn = make_pipeline(StandardScaler(), KNeighborsRegressor(15))
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    return [("linear", LinearRegression()), ("knn", knn), ("tree", tree)]


class TestClassifier:
    def test_strings(self, names) -> None:
        X, X_test, y, y_test = names
        model = AFAClassifier(classifiers()).fit(X, y)
        assert model.score(X_test, y_test) > 0.85
        assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
        assert model.predict(X_test).dtype == y.dtype
        assert model.member_scores(X_test).shape == (75, 2, 3)
        np.testing.assert_allclose(model.predict_proba(X_test).sum(1), 1)
        assert model.named_estimators_["nb"].classes_.tolist() == model.classes_.tolist()

    @pytest.mark.parametrize(
        "labels", [[False, True], [-7, 3], ["no", "yes"], ["no", 1], [True, "yes"], [1.0, 2.0]], ids=str
    )
    def test_labels_of_any_type(self, labels, iris) -> None:
        X, X_test, codes, codes_test = iris
        array = np.empty(2, dtype=object)
        array[:] = labels
        model = AFAClassifier(classifiers(), fuser="arithmetic").fit(X, array[(codes == 2).astype(int)].tolist())
        found = model.predict(X_test)
        assert set(found.tolist()) == set(labels)
        assert (found == array[(codes_test == 2).astype(int)]).mean() > 0.85

    @pytest.mark.parametrize("y", [[0.5, "a"], [None, 1], [float("nan"), "a"], [0.3, 0.7]], ids=str)
    def test_labels_that_are_none(self, y) -> None:
        with pytest.raises(ValueError, match=r"label|NaN"):
            AFAClassifier(classifiers()).fit(np.arange(20.0)[:, None], y * 10)

    def test_class_weights_use_the_labels(self, names) -> None:
        weights = {"setosa": 1, "versicolor": 1, "virginica": 5}
        member = DecisionTreeClassifier(class_weight=weights, max_depth=2, random_state=0)
        assert AFAClassifier([("tree", member)]).fit(names[0], names[2]).score(names[1], names[3]) > 0.8

    def test_grid_search(self, iris) -> None:
        X, X_test, y, y_test = iris
        grid = {"fuser": ["arithmetic", "log-pool"], "tree__max_depth": [1, 3], "nb": [GaussianNB(), "drop"]}
        search = GridSearchCV(AFAClassifier(classifiers(), cv=3), grid, cv=2).fit(X, y)
        assert search.score(X_test, y_test) > 0.85
        assert len(search.cv_results_["params"]) == 8

    def test_parameters(self) -> None:
        model = AFAClassifier(classifiers(), fuser_options={"seed": 1})
        model.set_params(tree__max_depth=7, nb="drop", cv=3)
        assert model.get_params()["tree__max_depth"] == 7 and model.cv == 3
        copy = clone(model)
        assert copy.get_params()["nb"] == "drop" and copy.fuser_options == {"seed": 1}
        assert copy.estimators[0][1] is not model.estimators[0][1]

    def test_drop(self, iris) -> None:
        X, X_test, y, _ = iris
        model = AFAClassifier(classifiers()).set_params(nb="drop").fit(X, y)
        assert len(model.estimators_) == 1 and model.named_estimators_["nb"] == "drop"
        assert model.member_scores(X_test).shape == (75, 1, 3)

    def test_pipeline_and_cross_validation(self, iris) -> None:
        pipeline = make_pipeline(StandardScaler(), AFAClassifier(classifiers(), fuser="logistic", cv=3))
        assert cross_val_score(pipeline, iris[0], iris[2], cv=3).mean() > 0.85

    @pytest.mark.parametrize("fuser", ["afa", "logistic", "vote"])
    def test_round_trip(self, fuser, iris, tmp_path: Path) -> None:
        model = AFAClassifier(classifiers(), fuser=fuser).fit(iris[0], iris[2])
        expected = model.predict_proba(iris[1])
        joblib.dump(model, tmp_path / "model.joblib")
        for copy in (joblib.load(tmp_path / "model.joblib"), pickle.loads(pickle.dumps(model))):
            np.testing.assert_array_equal(copy.predict_proba(iris[1]), expected)

    def test_pandas_and_columns_by_name(self) -> None:
        X, y = load_iris(return_X_y=True, as_frame=True)
        X["place"] = np.where(y == 0, "meadow", "wood")
        names = [name for name in X if name != "place"]
        one = make_pipeline(make_column_transformer((StandardScaler(), names[:2])), GaussianNB())
        two = make_pipeline(make_column_transformer((StandardScaler(), names[2:])), GaussianNB())
        model = AFAClassifier([("one", one), ("two", two)], fuser="log-pool").fit(X[::2], y[::2])
        assert model.feature_names_in_.tolist() == list(X)
        assert model.n_features_in_ == 5
        assert model.score(X[1::2], y[1::2]) > 0.9
        with pytest.raises(ValueError, match="feature names"):
            model.predict(X[names])

    def test_sparse(self, iris) -> None:
        X, X_test, y, _ = iris
        members = [("tree", DecisionTreeClassifier(random_state=0)), ("svm", LinearSVC())]
        dense, sparse = AFAClassifier(members).fit(X, y), AFAClassifier(members).fit(csr_array(X), y)
        assert (dense.predict(X_test) == sparse.predict(csr_array(X_test))).mean() > 0.95

    def test_text(self) -> None:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.naive_bayes import MultinomialNB

        texts = pd.Series(["good film", "bad film", "a good one", "so bad", "good", "bad"] * 5)
        member = make_pipeline(CountVectorizer(), MultinomialNB())
        model = AFAClassifier([("nb", member)], fuser="arithmetic").fit(texts, ["+", "-"] * 15)
        assert model.predict(["good", "bad"]).tolist() == ["+", "-"]

    def test_members_without_probabilities(self, names) -> None:
        X, X_test, y, y_test = names
        members = [
            ("decision", make_pipeline(StandardScaler(), LinearSVC())),
            ("one against one", SVC(decision_function_shape="ovo")),
            ("labels", make_pipeline(StandardScaler(), VotingClassifier([("p", Perceptron())]))),
        ]
        model = AFAClassifier(members, fuser="log-pool").fit(X, y)
        scores = model.member_scores(X_test)
        np.testing.assert_allclose(scores.sum(2), 1)
        assert set(scores[:, 1:].ravel()) == {0, 1} and 0 < scores[:, 0].min() and scores[:, 0].max() < 1
        assert (model.classes_[scores[:, 0].argmax(1)] == model.estimators_[0].predict(X_test)).all()
        assert model.score(X_test, y_test) > 0.85

    @pytest.mark.parametrize("wrap", ["pipeline", "pipelines", "search"])
    def test_one_against_one_inside(self, wrap, iris) -> None:
        X, X_test, y, _ = iris
        member = make_pipeline(StandardScaler(), SVC(decision_function_shape="ovo"))
        if wrap == "pipelines":
            member = make_pipeline(StandardScaler(), member)
        if wrap == "search":
            member = GridSearchCV(member, {"svc__C": [1.0, 2.0]}, cv=2)
        model = AFAClassifier([("svm", member)], fuser="arithmetic", cv=2).fit(X, y)
        scores = model.member_scores(X_test)[:, 0]
        assert set(scores.ravel()) == {0, 1}
        assert (scores.argmax(1) == model.estimators_[0].predict(X_test)).all()
        frozen = AFAClassifier([("svm", FrozenEstimator(model.estimators_[0]))], fuser="arithmetic", cv="prefit")
        np.testing.assert_array_equal(frozen.fit(X, y).member_scores(X_test)[:, 0], scores)

    def test_two_classes_by_decision_function(self) -> None:
        X, y = load_breast_cancer(return_X_y=True)
        member = make_pipeline(StandardScaler(), LinearSVC())
        model = AFAClassifier([("svm", member)]).fit(X[::2], y[::2])
        scores = model.member_scores(X)[:, 0]
        np.testing.assert_allclose(scores.sum(1), 1)
        assert ((scores[:, 1] > 0.5) == (model.estimators_[0].decision_function(X) > 0)).all()

    def test_a_class_that_a_fold_misses(self, iris) -> None:
        X, y = np.concatenate([iris[0], [[9.0, 9, 9, 9]]]), np.append(iris[2], 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AFAClassifier(classifiers(), fuser="logistic").fit(X, y)
        assert model.classes_.tolist() == [0, 1, 2, 3]
        assert not np.isnan(model.member_scores(X)).any()
        assert model.predict_proba(X).shape == (76, 4)

    def test_few_rows_a_class(self) -> None:
        X = np.array([[0.0], [0.1], [1.0], [1.1]])
        assert AFAClassifier(classifiers()).fit(X, [0, 0, 1, 1]).predict(X).shape == (4,)

    @pytest.mark.parametrize("cv", [3, ShuffleSplit(1, test_size=0.4, random_state=0)])
    def test_folds(self, cv, iris) -> None:
        assert AFAClassifier(classifiers(), cv=cv).fit(iris[0], iris[2]).score(iris[1], iris[3]) > 0.85

    def test_jobs_do_not_matter(self, iris) -> None:
        with joblib.parallel_config("threading"):
            one, two = (AFAClassifier(classifiers(), n_jobs=n).fit(iris[0], iris[2]) for n in (None, 2))
        np.testing.assert_array_equal(one.predict_proba(iris[1]), two.predict_proba(iris[1]))

    def test_weights(self, iris) -> None:
        X, X_test, y, _ = iris
        weight = np.where(y == 2, 50.0, 1.0)
        members = [("pipe", make_pipeline(StandardScaler(), GaussianNB())), ("knn", KNeighborsClassifier())]
        with pytest.warns(UserWarning, match="'knn'"):
            heavy = AFAClassifier(members).fit(X, y, sample_weight=weight)
        light = AFAClassifier(members).fit(X, y)
        assert heavy.predict_proba(X_test)[:, 2].sum() > light.predict_proba(X_test)[:, 2].sum()
        assert heavy.named_estimators_["pipe"][-1].class_prior_[2] > 0.9

    @pytest.mark.parametrize("fuser", ["afa", "logistic", "log-pool", "greedy"])
    def test_weights_count_as_repetitions_despite_rounding(self, fuser) -> None:
        members = [("logistic", LogisticRegression()), *classifiers()]
        check_sample_weight_equivalence_on_dense_data("AFAClassifier", AFAClassifier(members, fuser=fuser))

    def test_explain(self, names) -> None:
        model = AFAClassifier(classifiers()).fit(names[0], names[2])
        explanation = model.explain()
        assert isinstance(explanation, Explanation)
        text = explanation.to_markdown()
        assert "tree" in text and "virginica" in text
        with pytest.raises(ValueError, match=r"'vote' cannot be explained; these can: .*'afa'"):
            model.set_params(fuser="vote").fit(names[0], names[2]).explain()


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

    def test_example(self, tmp_path: Path) -> None:
        script = ROOT / "examples" / "different_classes.py"
        assert len(script.read_text().splitlines()) < 70
        for options in ([], ["--plot", "bars.png", "--weights", "weights.png"]):
            command = [sys.executable, script, *options]
            out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
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


class Net(torch.nn.Module):
    """Logits by the petals' length."""

    def __init__(self, n_outputs: int = 3, probabilities: bool = False) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.9)
        self.n_outputs, self.probabilities = n_outputs, probabilities

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        centres = torch.tensor([1.5, 4.2, 5.5])[: self.n_outputs]
        logits = self.drop(-3 * (X[:, 2:3] - centres).abs())
        return logits.softmax(1) if self.probabilities else logits


class Pair(torch.nn.Module):
    """Logits and something else."""

    def forward(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return X[:, :3], X


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


class TestRegressor:
    def test_better_than_the_plain_mean(self, members) -> None:
        X, y = load_diabetes(return_X_y=True)
        ours, plain = [], []
        for seed in range(4):
            X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=seed)
            model = AFARegressor(members).fit(X_train, y_train)
            mean = model.member_scores(X_test)[:, :, 0].mean(1)
            ours.append(((model.predict(X_test) - y_test) ** 2).mean())
            plain.append(((mean - y_test) ** 2).mean())
        assert np.mean(ours) <= np.mean(plain)

    @pytest.mark.parametrize(("scale", "shift"), [(1e9, 0.0), (1e-9, 0.0), (1.0, -1e4), (1e9, -1e12)])
    def test_scale_and_sign(self, scale, shift, members) -> None:
        X, y = load_diabetes(return_X_y=True)
        members = members[:2]
        expected = AFARegressor(members).fit(X, y).predict(X)
        found = AFARegressor(members).fit(X, scale * y + shift).predict(X)
        np.testing.assert_allclose((found - shift) / scale, expected, rtol=1e-4)

    def test_negative_targets(self, members) -> None:
        X, y = load_diabetes(return_X_y=True)
        assert AFARegressor(members).fit(X, -y).score(X, -y) > 0.45

    @pytest.mark.parametrize("value", [0.0, -3.0, 1e12])
    def test_constant_target(self, value, members) -> None:
        X = np.random.default_rng(0).normal(size=(30, 2))
        model = AFARegressor(members).fit(X, np.full(30, value))
        np.testing.assert_allclose(model.predict(X), value, rtol=1e-12, atol=1e-12)

    def test_range(self, members) -> None:
        X, y = load_diabetes(return_X_y=True)
        model = AFARegressor(members).fit(X, y)
        far = np.concatenate([X, 20 * X, -500 * X])
        values, fused = model.member_scores(far)[:, :, 0], model.predict(far)
        assert (values.min(1) <= fused).all() and (fused <= values.max(1)).all()
        assert values.min() < -1000

    def test_explain(self, members) -> None:
        X, y = load_diabetes(return_X_y=True)
        model = AFARegressor(members).fit(X, y)
        assert isinstance(model.network_, AFA) and model.network_.output == "identity"
        table = model.explain().models.to_pandas()
        assert table["model"].tolist() == ["linear", "knn", "tree"]
        assert table["share"].sum() == pytest.approx(1)

    def test_search_and_round_trip(self, members, tmp_path: Path) -> None:
        X, y = load_diabetes(return_X_y=True)
        grid = {"means": [("arithmetic",), MEANS], "tree": ["drop"], "knn__kneighborsregressor__n_neighbors": [5, 20]}
        search = GridSearchCV(AFARegressor(members, cv=3), grid, cv=2).fit(X, y)
        joblib.dump(search, tmp_path / "search.joblib")
        np.testing.assert_array_equal(joblib.load(tmp_path / "search.joblib").predict(X), search.predict(X))


class TestFitRegression:
    @pytest.fixture
    def data(self) -> tuple:
        rng = np.random.default_rng(0)
        y = rng.normal(size=250)
        return y[:, None] + rng.normal(size=(250, 4)) * [0.3, 0.5, 1, 2], y

    def test_derivatives(self) -> None:
        rng = np.random.default_rng(0)
        means = [*(get_mean(m) for m in MEANS), get_mean("power", q=3)]
        problem = _Problem(rng.uniform(0.05, 0.95, (20, 3)), rng.random(20), np.ones(20), means)
        logs, weight = rng.normal(size=(1, 4, 4)), rng.dirichlet(np.ones(20))[None]
        _, gradient, hessian = problem.expand(logs, weight, 0.1)
        for i, direction in enumerate(np.eye(16).reshape(16, 1, 4, 4) * 1e-5):
            high, low = (problem.expand(logs + sign * direction, weight, 0.1) for sign in (1, -1))
            np.testing.assert_allclose((high[0] - low[0]) / 2e-5, gradient[:, i], atol=1e-8)
            np.testing.assert_allclose((high[1] - low[1])[0] / 2e-5, hessian[0, i], atol=1e-8)

    def test_a_general_solver_finds_nothing_better(self, data) -> None:
        values, y = data
        z, t = (values + 9) / 18, (y + 9) / 18
        problem = _Problem(z, t, np.ones(250), [get_mean(m) for m in MEANS])
        w, a = problem.path(np.ones((1, 250)), 0.01)[-1]
        logs = np.log(np.concatenate([w, a[:, :, None]], 2))

        def objective(flat: np.ndarray) -> tuple:
            value, gradient, _ = problem.expand(flat.reshape(logs.shape), np.full((1, 250), 1 / 250), 0.01)
            return value[0], gradient[0]

        found = minimize(objective, np.zeros(logs.size), jac=True, method="L-BFGS-B", options={"ftol": 1e-14})
        assert objective(logs.ravel())[0] <= found.fun + 1e-8

    @pytest.mark.parametrize("means", [("arithmetic",), MEANS, ("geometric",)], ids=str)
    def test_order_and_weights(self, means, data) -> None:
        values, y = data
        rng = np.random.default_rng(1)
        weight = rng.integers(0, 4, size=250).astype(float)
        order = rng.permutation(250)
        repeated = np.repeat(np.arange(250), weight.astype(int))
        expected = fit_regression(values, y, weight, means)(values)
        np.testing.assert_allclose(fit_regression(values[order], y[order], weight[order], means)(values), expected)
        np.testing.assert_allclose(fit_regression(values[repeated], y[repeated], None, means)(values), expected)

    def test_other_means_are_used_where_they_are_right(self) -> None:
        values = np.random.default_rng(0).uniform(1, 100, (300, 2))
        values[:2] = [[1, 100], [100, 1]]
        z = (values - 1) / 99 + 0.05
        fused = fit_regression(values, np.sqrt(z.prod(1)) * 99 - 3.95, means=MEANS)
        assert "geometric" in [mean.name for mean in fused.network.means]

    def test_default_means(self, data) -> None:
        expected = fit_regression(*data, means=MEANS)
        np.testing.assert_array_equal(fit_regression(*data)(data[0]), expected(data[0]))

    def test_one_row(self) -> None:
        fused = fit_regression(np.array([[1.0, 3.0]]), np.array([1.0]), means=MEANS)
        assert 1 < fused(np.array([[1.0, 3.0]])).item() < 2


def test_private_names_of_scikit_learn_are_imported_in_one_place() -> None:
    private = re.compile(
        r"^\s*from sklearn[\w.]*(\._\w+)?[\w.]* import .*\b_\w+|^\s*(from|import) sklearn[\w.]*\._", re.M
    )
    files = [path.name for path in (ROOT / "src").rglob("*.py") if private.search(path.read_text())]
    assert files == ["_ensemble.py"]
