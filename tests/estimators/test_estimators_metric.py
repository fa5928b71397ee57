"""Labels that serve a metric."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, f1_score, fbeta_score, make_scorer, recall_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

from faverage import AFAClassifier


def members() -> list:
    return [("nb", GaussianNB()), ("logistic", LogisticRegression())]


@pytest.fixture(scope="module")
def rare():
    X, y = make_classification(
        3000, 8, n_informative=5, n_classes=3, weights=[0.85, 0.1], class_sep=0.7, flip_y=0.05, random_state=0
    )
    y = np.array(["often", "rare", "rarest"])[y]
    return X[:1000], X[1000:], y[:1000], y[1000:]


@pytest.fixture(scope="module")
def untuned(rare) -> AFAClassifier:
    return AFAClassifier(members()).fit(rare[0], rare[2])


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("balanced_accuracy", balanced_accuracy_score),
        pytest.param("f1_macro", lambda y, said: f1_score(y, said, average="macro"), marks=pytest.mark.slow),
        pytest.param(
            lambda y, said: recall_score(y, said, labels=["rarest"], average=None)[0], None, marks=pytest.mark.slow
        ),
        (
            make_scorer(fbeta_score, beta=2, average="macro"),
            lambda y, said: fbeta_score(y, said, beta=2, average="macro"),
        ),
    ],
    ids=["balanced", "f1", "function", "scorer"],
)
def test_the_metric_gains_and_probabilities_stay(metric, value, rare, untuned) -> None:
    X, X_test, y, y_test = rare
    value = value or metric
    plain, tuned = untuned, AFAClassifier(members(), metric=metric).fit(X, y)
    np.testing.assert_array_equal(plain.predict_proba(X_test), tuned.predict_proba(X_test))
    assert value(y_test, tuned.predict(X_test)) > value(y_test, plain.predict(X_test)) + 0.005
    assert tuned.offsets_.shape == (3,) and plain.offsets_ is None
    best = (np.log(tuned.predict_proba(X_test)) + tuned.offsets_).argmax(1)
    np.testing.assert_array_equal(tuned.classes_[best], tuned.predict(X_test))


def test_offsets_that_are_luck_are_not_kept() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 2)), rng.integers(0, 2, 120)
    assert not AFAClassifier(members(), fuser="arithmetic", metric="accuracy").fit(X, y).offsets_.any()


def test_several_labels_are_tuned_together(rare) -> None:
    X, X_test, y, y_test = rare
    Y, Y_test = ((np.c_[y == "rare", y == "rarest"]).astype(int) for y in (y, y_test))
    both = [(name, MultiOutputClassifier(model)) for name, model in members()]
    plain, tuned = (AFAClassifier(both, metric=m).fit(X, Y).predict(X_test) for m in (None, "f1_macro"))
    assert f1_score(Y_test, tuned, average="macro") > f1_score(Y_test, plain, average="macro") + 0.05


def test_weights_count_for_a_scorer(rare) -> None:
    X, X_test, y, _ = rare
    weight = np.where(y == "rarest", 1.0, 1e-9)
    tree = [("tree", DecisionTreeClassifier(max_depth=2, random_state=0))]
    model = AFAClassifier(tree, fuser="arithmetic", metric="accuracy").fit(X, y, sample_weight=weight)
    assert (model.predict(X_test) == "rarest").mean() > 0.9


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("neg_log_loss", r"neg_log_loss is of probabilities.*minimises the log-loss already.*'balanced_accuracy'"),
        ("roc_auc_ovr", "is of probabilities"),
        ("f1", "metric f1: .*multiclass.*average"),
        ("best", "metric: 'best' is not a valid scoring value"),
        (7, "name of a scorer, or a function of labels and predicted labels, got 7"),
        (lambda y, said: None, "must return a finite number, got None"),
    ],
)
def test_what_is_no_metric(metric, message, rare) -> None:
    with pytest.raises(ValueError, match=message):
        AFAClassifier(members(), fuser="arithmetic", metric=metric).fit(rare[0], rare[2])
