"""Sets of labels with a stated coverage."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import RepeatedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from faverage import AFAClassifier
from faverage.estimators.held_out import sets_of, threshold
from helpers_estimators import classifiers


def how_often_virginica(y, predicted) -> float:
    return float((predicted[:, 0] == "virginica").mean())


def rows(n: int, seed: int):
    return make_classification(
        n + 3000,
        6,
        n_informative=4,
        n_redundant=0,
        n_classes=4,
        n_clusters_per_class=1,
        class_sep=0.7,
        random_state=seed,
    )


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_the_stated_share_is_covered(coverage) -> None:
    found, sizes = [], []
    for seed in range(200, 208):  # the mean of eight draws has a standard error of 0.008 where 0.8 is asked for
        X, y = rows(400, seed)
        members = [("tree", DecisionTreeClassifier(max_depth=5, random_state=0)), ("nb", GaussianNB())]
        model = AFAClassifier(members, fuser="log-pool").fit(X[:400], y[:400])
        sets = model.predict_set(X[400:], coverage)
        assert sets.shape == (3000, 4) and sets.dtype == bool and sets.any(1).all()
        assert sets[np.arange(3000), model.predict_proba(X[400:]).argmax(1)].all()
        found.append(sets[np.arange(3000), y[400:]].mean())
        sizes.append(sets.sum(1).mean())
    assert coverage - 0.02 < np.mean(found) < coverage + 0.035
    assert np.mean(sizes) < 3


def test_the_rule_is_exact_for_exchangeable_rows() -> None:
    """Of many draws of nine rows and a new one, the stated share is covered."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        p = rng.dirichlet([1, 1, 1], 10)
        y = (p.cumsum(1) < rng.random((10, 1))).sum(1)
        limit = threshold(p[:9], y[:9], np.ones(9), 0.8)
        hits.append(1 - p[9, y[9]] <= limit)
    assert 0.78 < np.mean(hits) < 0.82  # the 8th of 9 scores; the 0.8-quantile without correction gives 0.75


def test_weights_are_repetitions_and_few_rows_give_all_labels() -> None:
    p, y = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.array([0, 0, 0])
    repeated = threshold(np.repeat(p, 20, 0), np.repeat(y, 20), np.ones(60), 0.6)
    assert threshold(p, y, np.full(3, 20.0), 0.6) >= repeated == pytest.approx(0.2)
    assert sets_of(p, p.argmax(1), threshold(p, y, np.ones(3), 0.9)).all()
    assert sets_of(p, p.argmax(1), -1.0).sum(1).tolist() == [1, 1, 1]


def test_rows_that_several_folds_test_count_once(iris) -> None:
    splits = list(RepeatedKFold(n_splits=3, n_repeats=4, random_state=0).split(iris[0]))
    model = AFAClassifier(classifiers(), fuser="arithmetic", cv=splits).fit(iris[0], iris[2])
    assert model.predict_set(iris[1], 0.995).all()  # 75 rows are too few to leave any label out; 300 would do


def test_several_columns_a_metric_and_a_file(names) -> None:
    X, X_test, y, _ = names
    forest = [("forest", RandomForestClassifier(20, random_state=0))]
    model = AFAClassifier(forest, metric=how_often_virginica)
    model.fit(X, np.c_[y, np.where(X[:, 3] > 1.5, "wide", "narrow")])
    assert (model.predict(X_test)[:, 0] == "virginica").all()
    sets = pickle.loads(pickle.dumps(model)).predict_set(X_test, 0.8)
    assert [s.shape for s in sets] == [(75, 3), (75, 2)] and sets[0][:, 2].all()  # what is predicted is in its set


@pytest.mark.parametrize("coverage", [0, 1, 90, "0.9", True, float("nan")])
def test_coverage_is_a_share(coverage, iris) -> None:
    model = AFAClassifier(classifiers(), fuser="arithmetic").fit(iris[0], iris[2])
    with pytest.raises(ValueError, match=r"coverage must be a number between 0 and 1, such as 0\.9"):
        model.predict_set(iris[1], coverage)
