"""Small work on one thread: inside a block, in fits and predictions, and as before afterwards."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from faverage import AFA, fit
from faverage.fusion import get_fuser
from faverage.fusion.base import Fuser
from faverage.threads import SMALL_WORK, few_threads
from helpers_fusers import make_data


def counts() -> tuple[int, int]:
    """Return torch's threads, and the most that a BLAS library may use."""
    return torch.get_num_threads(), max(p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas")


@pytest.fixture(name="three")
def three_fixture() -> Any:
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with threadpool_limits(3, user_api="blas"):
        yield counts()
    torch.set_num_threads(before)


def test_small_work_has_one_thread_and_large_work_all(three: tuple[int, int]) -> None:
    with few_threads(SMALL_WORK):
        assert counts() == (1, 1)
        with few_threads(10):
            assert counts() == (1, 1)
        assert counts() == (1, 1)
    assert counts() == three == (3, three[1])
    with few_threads(SMALL_WORK + 1):
        assert counts() == three
    with pytest.raises(KeyError), few_threads(1):
        raise KeyError
    assert counts() == three


def test_threads_that_overlap_leave_everything_as_it_was(three: tuple[int, int]) -> None:
    entered, leave, inside = threading.Event(), threading.Event(), []

    def other() -> None:
        with few_threads(1):
            inside.append(counts())
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with few_threads(1):
        thread.start()
        assert entered.wait(10)
    assert torch.get_num_threads() == 3
    leave.set()
    thread.join()
    assert inside == [(1, 1)] and counts() == three


def test_fusers_and_networks_work_on_one_thread(three: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Spy(Fuser):
        def _fit(self, *_: Any) -> None:
            seen.append(counts())

        def _predict(self, scores: Any) -> Any:
            seen.append(counts())
            return np.ones((len(scores), scores.shape[2]))

    scores, y = make_data(40)
    Spy().fit(scores, y).predict_proba(scores)
    network = AFA(3, 4, structure="scalar")
    monkeypatch.setattr(network, "project_", lambda: seen.append(counts()))
    fit(network, scores.astype(np.float32), y, epochs=1)
    assert set(seen) == {(1, 1)} and len(seen) == 3 and counts() == three
    wide = np.full((300, 2, 300), 1 / 300)
    Spy().fit(wide, np.arange(300) % 2)
    assert seen[-1] == three  # 300 x 600 x 300 are more than one core should do


@pytest.mark.parametrize(
    "name", ["shallow-net", "deep-net", "weighted-average", "mixture-of-experts", "afa-paper", "logistic", "afa"]
)
def test_held_out_is_what_fits_on_the_other_folds_give(name: str) -> None:
    scores, y = make_data(90, gaps=True)
    scores[11], y[11] = scores[10], y[10]  # equal rows: the folds differ in length once they are merged
    options = {"epochs": 5, "batch_size": 10, "seed": 3} if "-" in name else {}
    fuser, fold = get_fuser(name, **options), np.arange(90) % 7 % 3
    together = fuser.held_out(scores, y, fold)
    for part in range(3):
        alone = get_fuser(fuser).fit(scores[fold != part], y[fold != part]).predict_proba(scores[fold == part])
        np.testing.assert_allclose(together[fold == part], alone, atol=2e-6)


def test_held_out_of_a_network_that_diverges_is_that_of_its_last_good_weights() -> None:
    scores, y = make_data(60)
    fuser, fold = get_fuser("deep-net", epochs=4, lr=1e6), np.arange(60) % 2
    with pytest.warns(RuntimeWarning, match="diverged"):
        together = fuser.held_out(scores, y, fold)
    assert np.isfinite(together).all()


@pytest.mark.slow
def test_estimators_fuse_on_one_thread_and_keep_their_jobs(
    three: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.linear_model import LogisticRegression, Ridge

    from faverage import AFAClassifier, AFARegressor
    from faverage.estimators import regression as _regression
    from faverage.fusion.afa import AFAFuser

    seen = []
    inside = ((_regression, "fit_linear"), (_regression, "_fit_network"))
    for owner, name in ((AFAFuser, "_fit"), (AFAFuser, "_predict"), *inside):
        inner = getattr(owner, name)

        def spied(*args: Any, inner: Any = inner, **options: Any) -> Any:
            seen.append(counts())
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, spied)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = (x[:, 0] > 0).astype(int)
    model = AFAClassifier([("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))], n_jobs=2).fit(x, y)
    assert model.score(x, y) > 0.8
    AFARegressor([("a", Ridge()), ("b", Ridge(10.0))], means=["geometric"], n_jobs=2).fit(x, x[:, 0])
    assert len(seen) >= 4 and set(seen) == {(1, 1)} and counts() == three
