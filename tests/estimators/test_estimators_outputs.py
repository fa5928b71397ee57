"""AFAClassifier with several columns of labels: multi-label and multi-output."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from faverage import AFAClassifier


def members() -> list:
    return [("tree", DecisionTreeClassifier(max_depth=4, random_state=0)), ("knn", KNeighborsClassifier(15))]


@pytest.fixture(scope="module")
def labels():
    X, Y = make_multilabel_classification(400, 10, n_classes=4, random_state=0)
    return X[::2], X[1::2], Y[::2], Y[1::2]


@pytest.fixture(scope="module")
def columns():
    """Irises by kind and by whether their petals are wide, as strings and numbers."""
    X, y = load_iris(return_X_y=True)
    Y = np.empty((150, 2), dtype=object)
    Y[:, 0], Y[:, 1] = np.array(["setosa", "versicolor", "virginica"])[y], (X[:, 3] > 1.5).astype(int)
    return X[::2], X[1::2], Y[::2], Y[1::2]


class TestMultiLabel:
    def test_every_label_is_fused_by_itself(self, labels) -> None:
        X, X_test, Y, Y_test = labels
        model = AFAClassifier(members()).fit(X, Y)
        p = model.predict_proba(X_test)
        assert p.shape == Y_test.shape and model.predict(X_test).dtype == Y.dtype
        np.testing.assert_array_equal(model.predict(X_test), p > 0.5)
        scores = model.member_scores(X_test)
        assert [s.shape for s in scores] == [(200, 2, 2)] * 4
        everyone = [p, *np.stack(scores)[:, :, :, 1].transpose(2, 1, 0)]
        fused, *alone = (np.mean([log_loss(Y_test[:, j], q[:, j]) for j in range(4)]) for q in everyone)
        assert fused < min(alone)
        assert model.score(X_test, Y_test) == (model.predict(X_test) == Y_test).all(1).mean() > 0.3
        assert len(model.explain()) == len(model.fuser_) == 4 and model.classes_.tolist() == [0, 1, 2, 3]
        assert "knn" in model.explain()[3].to_markdown()

    @pytest.mark.parametrize(
        "member",
        [
            MLPClassifier((8,), max_iter=30, random_state=0),  # one array of probabilities
            OneVsRestClassifier(LogisticRegression()),
            OneVsRestClassifier(LinearSVC()),  # one array of decisions
            RidgeClassifier(),
            ClassifierChain(LogisticRegression()),
            MultiOutputClassifier(GaussianNB()),  # a list
            MultiOutputClassifier(LinearSVC()),  # labels
        ],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_members_of_every_form(self, member, labels) -> None:
        X, X_test, Y, _ = labels
        model = AFAClassifier([("one", member)], fuser="arithmetic", cv=2).fit(X, Y)
        said = model.estimators_[0].predict(X_test)
        assert (model.predict(X_test) == said).mean() > 0.99
        np.testing.assert_allclose([s.sum(2).max() for s in model.member_scores(X_test)], 1)

    def test_fitted_modules_and_functions(self, labels) -> None:
        X, X_test, Y, _ = labels
        net = torch.nn.Linear(10, 4)
        tree = DecisionTreeClassifier(max_depth=4).fit(X, Y)
        listed = [("net", net), ("odds", lambda X: X[:, :4] - 5.0), ("half", lambda X: np.full((len(X), 4), 0.5))]
        model = AFAClassifier([*listed, ("tree", tree)], cv="prefit").fit(X, Y)
        scores = np.stack(model.member_scores(X_test))
        logits = net(torch.tensor(X_test, dtype=torch.float32)).detach().numpy()
        np.testing.assert_allclose(scores[:, :, 0, 1].T, 1 / (1 + np.exp(-logits)), atol=1e-6)
        np.testing.assert_allclose(scores[:, :, 1, 1].T, 1 / (1 + np.exp(5.0 - X_test[:, :4])))
        assert (scores[:, :, 2] == 0.5).all()
        with pytest.raises(ValueError, match=r"'odds' must give a list of 4 arrays .*or an array \(n, 4\), got shape"):
            AFAClassifier([("odds", lambda X: X)], cv="prefit").fit(X, Y)

    def test_forms_of_y(self, labels) -> None:
        X, X_test, Y, _ = labels
        expected = AFAClassifier(members(), fuser="log-pool").fit(X, Y).predict_proba(X_test)
        for y in (Y.tolist(), csr_array(Y), pd.DataFrame(Y), Y.astype(bool), Y.astype(float)):
            np.testing.assert_array_equal(
                AFAClassifier(members(), fuser="log-pool").fit(X, y).predict_proba(X_test), expected
            )

    def test_cross_validation_and_an_ensemble_inside(self, labels) -> None:
        X, _, Y, _ = labels
        inner = AFAClassifier(members(), fuser="log-pool", cv=2)
        assert cross_val_predict(inner, X, Y, method="predict_proba", cv=2).shape == Y.shape
        outer = AFAClassifier([("inner", inner)], fuser="arithmetic", cv=2).fit(X, Y)
        np.testing.assert_allclose(outer.predict_proba(X), outer.estimators_[0].predict_proba(X))

    def test_a_label_that_no_row_has(self, labels) -> None:
        X, X_test, Y, _ = labels
        model = AFAClassifier(members()).fit(X, np.c_[Y, np.zeros(200, int)])
        assert not model.predict(X_test)[:, 4].any() and model.predict_proba(X_test)[:, 4].max() < 0.5

    def test_weights_reach_every_fuser(self, labels) -> None:
        X, X_test, Y, _ = labels
        weight = np.where(Y[:, 0] == 1, 20.0, 1.0)
        with pytest.warns(UserWarning, match="'knn'"):
            heavy = AFAClassifier(members()).fit(X, Y, sample_weight=weight).predict_proba(X_test)
        assert (heavy[:, 0] > AFAClassifier(members()).fit(X, Y).predict_proba(X_test)[:, 0]).mean() > 0.9


class TestMultiOutput:
    def test_columns_of_different_types(self, columns) -> None:
        X, X_test, Y, Y_test = columns
        model = AFAClassifier(members()).fit(X, Y)
        assert [p.shape for p in model.predict_proba(X_test)] == [(75, 3), (75, 2)]
        assert [c.tolist() for c in model.classes_] == [["setosa", "versicolor", "virginica"], [0, 1]]
        assert model.score(X_test, Y_test) > 0.85 and set(model.predict(X_test)[:, 1]) == {0, 1}

    def test_a_class_that_a_fold_misses(self, columns) -> None:
        X, Y = columns[0], columns[2].copy()
        Y[:1, 0] = "unique"
        model = AFAClassifier(members()).fit(X, Y)
        assert model.predict_proba(X)[0].shape == (75, 4)

    def test_mixed_types_in_a_column(self, columns) -> None:
        X, Y = columns[0], columns[2].copy()
        Y[Y[:, 0] == "setosa", 0] = 7
        model = AFAClassifier(members(), cv=2).fit(X, Y)
        assert set(model.predict(X)[:, 0]) == {7, "versicolor", "virginica"}

    def test_fitted_members_that_know_different_classes(self, columns) -> None:
        X, X_test, Y, Y_test = columns
        Y, Y_test = Y.astype(str), Y_test.astype(str)
        halves = [np.isin(Y[:, 0], pair) for pair in (["setosa", "versicolor"], ["versicolor", "virginica"])]
        fitted = [(f"m{i}", KNeighborsClassifier().fit(X[rows], Y[rows])) for i, rows in enumerate(halves)]
        model = AFAClassifier(fitted, cv="prefit").fit(X, Y)
        assert np.isnan(model.member_scores(X_test)[0]).any((0, 1)).tolist() == [True, False, True]
        assert model.score(X_test, Y_test) > 0.85


class Wrong(ClassifierMixin, BaseEstimator):
    """A model that forgets a column."""

    def fit(self, X, y):
        self.classes_ = [np.array([0, 1])] * 3
        return self

    def predict_proba(self, X):
        return [np.full((len(X), 2), 0.5)] * 3


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["a"], ["a", "b"]] * 10, "MultiLabelBinarizer"),
        ([{"a", "b"}, {"a", "c"}] * 10, "MultiLabelBinarizer"),
        (pd.Series([["a"], ["a", "b"]] * 10), "MultiLabelBinarizer"),
        ([[]] * 20, "y has no column"),
        (np.random.default_rng(0).random((20, 3)), "Unknown label type"),
        ([["a", None], ["b", "c"]] * 10, "NaN or None"),
        ([["a", "c"], ["b", "c"]] * 10, "column 1 of y has one class only"),
    ],
)
def test_what_is_no_label(y, message) -> None:
    with pytest.raises(ValueError, match=message):
        AFAClassifier(members()).fit(np.arange(20.0)[:, None], y)


def test_members_that_cannot_are_named(labels) -> None:
    X, _, Y, _ = labels
    with pytest.raises(ValueError, match="member 'nb'"):
        AFAClassifier([("nb", GaussianNB())]).fit(X, Y)
    with pytest.raises(ValueError, match="member 'w' must answer for 4 outputs, the columns of y, got 3"):
        AFAClassifier([("w", Wrong())]).fit(X, Y)


def test_ragged_lists_become_a_matrix_as_the_message_says() -> None:
    X = np.repeat(np.eye(3), 10, 0)
    Y = MultiLabelBinarizer().fit_transform([["a"], ["a", "b"], []] * 10)[np.argsort(np.arange(30) % 3, kind="stable")]
    assert AFAClassifier(members()[:1]).fit(X, Y).score(X, Y) == 1
