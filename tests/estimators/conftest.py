import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split


@pytest.fixture(scope="session")
def iris() -> tuple:
    X, y = load_iris(return_X_y=True)
    return train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)


@pytest.fixture(scope="session")
def names(iris: tuple) -> tuple:
    """Iris with labels as strings."""
    X, X_test, y, y_test = iris
    labels = np.array(["setosa", "versicolor", "virginica"])
    return X, X_test, labels[y], labels[y_test]
