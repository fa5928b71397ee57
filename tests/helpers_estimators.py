"""Members and data for the tests of the estimators."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier


def classifiers() -> list:
    return [("tree", DecisionTreeClassifier(max_depth=3, random_state=0)), ("nb", GaussianNB())]


@pytest.fixture(name="iris", scope="module")
def iris_fixture() -> tuple:
    X, y = load_iris(return_X_y=True)
    return train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)


@pytest.fixture(name="names", scope="module")
def names_fixture(iris) -> tuple:
    """Iris with labels as strings."""
    X, X_test, y, y_test = iris
    labels = np.array(["setosa", "versicolor", "virginica"])
    return X, X_test, labels[y], labels[y_test]


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
