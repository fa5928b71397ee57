"""AFAClassifier, and scikit-learn's checks of both estimators."""

import pickle
import re
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

from faverage import AFAClassifier, AFARegressor, Explanation
from helpers_estimators import classifiers
from helpers_paths import ROOT


def regressors() -> list:
    return [("tree", DecisionTreeRegressor(max_depth=3, random_state=0)), ("ridge", Ridge())]


@pytest.mark.slow
@parametrize_with_checks(
    [
        AFAClassifier(classifiers()),
        AFAClassifier([classifiers()[0], ("stump", DecisionTreeClassifier(max_depth=1))]),  # of several outputs
        AFARegressor(regressors()),
    ]
)
def test_scikit_learn_check(estimator, check) -> None:
    check(estimator)


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

    @pytest.mark.parametrize("fuser", ["afa", "logistic", "log-pool", "greedy", "performance", "mixture-of-experts"])
    def test_weights_count_as_repetitions_despite_rounding(self, fuser) -> None:
        members = [("logistic", LogisticRegression()), *classifiers()]
        check_sample_weight_equivalence_on_dense_data("AFAClassifier", AFAClassifier(members, fuser=fuser))

    def test_class_weight_is_the_fuser_s(self, names) -> None:
        X, X_test, y, _ = names
        plain, heavy = (AFAClassifier(classifiers(), class_weight=w).fit(X, y) for w in (None, {"virginica": 20}))
        for one, other in zip(plain.member_scores(X_test), heavy.member_scores(X_test), strict=True):
            np.testing.assert_array_equal(one, other)
        assert (heavy.predict_proba(X_test)[:, 2] > plain.predict_proba(X_test)[:, 2]).mean() > 0.9

    def test_balanced_is_the_weights_that_it_stands_for(self, names) -> None:
        rows = np.flatnonzero((names[2] != "virginica") | (np.arange(75) % 3 == 0))
        X, y = names[0][rows], names[2][rows]
        balanced = {label: len(y) / (3 * n) for label, n in zip(*np.unique(y, return_counts=True), strict=True)}
        one, other = (AFAClassifier(classifiers(), class_weight=w).fit(X, y) for w in ("balanced", balanced))
        np.testing.assert_allclose(one.predict_proba(names[1]), other.predict_proba(names[1]))

    @pytest.mark.parametrize("weights", ["even", {"setosa": -1}, {"setosa": "1"}, dict.fromkeys(np.arange(3), 0), 3])
    def test_class_weights_that_are_none(self, weights, names) -> None:
        codes = np.unique(names[2], return_inverse=True)[1]
        with pytest.raises(ValueError, match="class_weight"):
            AFAClassifier(classifiers(), class_weight=weights).fit(names[0], codes)
        with pytest.warns(UserWarning, match="'cat', which is not among the labels"):
            AFAClassifier(classifiers(), class_weight={"cat": 2}).fit(names[0], codes)

    def test_explain(self, names) -> None:
        model = AFAClassifier(classifiers()).fit(names[0], names[2])
        explanation = model.explain()
        assert isinstance(explanation, Explanation)
        text = explanation.to_markdown()
        assert "tree" in text and "virginica" in text
        with pytest.raises(ValueError, match=r"'vote' cannot be explained; these can: .*'afa'"):
            model.set_params(fuser="vote").fit(names[0], names[2]).explain()


def test_private_names_of_scikit_learn_are_imported_in_one_place() -> None:
    private = re.compile(
        r"^\s*from sklearn[\w.]*(\._\w+)?[\w.]* import .*\b_\w+|^\s*(from|import) sklearn[\w.]*\._", re.M
    )
    files = [path.name for path in (ROOT / "src").rglob("*.py") if private.search(path.read_text())]
    assert files == ["members.py"]
