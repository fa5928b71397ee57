"""AFARegressor and the fit behind it."""

from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression, QuantileRegressor, Ridge
from sklearn.metrics import mean_pinball_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from faverage import AFA, AFARegressor, get_mean
from faverage.estimators.linear import fit_linear
from faverage.estimators.regression import _fit_mean, fit_quantile, fit_regression

MEANS = ("arithmetic", "geometric", "harmonic")


@pytest.fixture
def members() -> list:
    """Three regressors."""
    knn = make_pipeline(StandardScaler(), KNeighborsRegressor(15))
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    return [("linear", LinearRegression()), ("knn", knn), ("tree", tree)]


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
        model = AFARegressor(members, keep_range=True).fit(X, y)
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

    def test_outputs_are_fused_one_by_one(self, members, tmp_path: Path) -> None:
        X, y = load_linnerud(return_X_y=True)
        model = AFARegressor(members[:2]).fit(X, y)
        fused = model.predict(X)
        assert fused.shape == y.shape and model.member_scores(X).shape == (20, 2, 3)
        for i, column in enumerate(y.T):
            alone = AFARegressor(members[:2]).fit(X, column)
            np.testing.assert_allclose(fused[:, i], alone.predict(X))
            assert model.shares_[i] == pytest.approx(alone.shares_)
        table = model.explain().models.to_pandas()
        assert table["class"].unique().tolist() == ["output 0", "output 1", "output 2"]
        assert table.groupby("class")["share"].sum().tolist() == pytest.approx([1, 1, 1])
        joblib.dump(model, tmp_path / "model.joblib")
        np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").predict(X), fused)

    def test_outputs_of_a_member_for_one(self) -> None:
        X, y = load_linnerud(return_X_y=True)
        with pytest.raises(ValueError, match=r"member 'boost'.*a member for one target goes into MultiOutputRegressor"):
            AFARegressor([("boost", GradientBoostingRegressor())]).fit(X, y)
        with pytest.raises(ValueError, match="member 'm' must give 3 values a row"):
            AFARegressor([("m", lambda X: X[:, 0])], cv="prefit").fit(X, y)

    def test_a_wild_row_is_clipped(self) -> None:
        X, y = load_diabetes(return_X_y=True)
        wild = lambda X: np.where(X[:, 0] > 1, 1e6, 100 + 900 * X[:, 2])  # noqa: E731
        model = AFARegressor([("wild", wild), ("linear", LinearRegression().fit(X, y))], cv="prefit").fit(X, y)
        row = X[:1].copy()
        row[0, 0] = 2
        margin = np.ptp(y) / 10
        clipped = model.member_scores(row)[0, :, 0].clip(y.min() - margin, y.max() + margin)
        (fused,) = model._fused
        assert model.member_scores(row)[0, 0, 0] == 1e6
        np.testing.assert_allclose(model.predict(row), fused(clipped[None]))
        assert model.predict(row)[0] < y.max() + margin

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

    @pytest.mark.parametrize("name", MEANS)
    def test_a_general_solver_finds_nothing_better(self, name, data) -> None:
        """For each mean, with all rows and with half of them."""
        values, y = data
        mean, z, t = get_mean(name), (values + 9) / 18, (y + 9) / 18
        x, sets = mean(torch.from_numpy(z)).numpy(), np.stack([np.ones(250), np.arange(250) % 2.0])
        w, averages = _fit_mean(mean, x, t, sets, 0.01)
        assert (w >= 0).all() and np.allclose(w.sum(1), 1)
        for weight, ours, average in zip(sets, w, averages, strict=True):

            def objective(logs: np.ndarray, weight: np.ndarray = weight) -> float:
                w = softmax(logs)
                fused = mean.inverse(torch.from_numpy(x @ w)).numpy()
                return weight @ (fused - t) ** 2 + 0.01 * ((w - 0.25) ** 2).sum()

            found = minimize(objective, np.zeros(4))
            assert objective(np.log(ours + 1e-12)) <= found.fun * (1 + 1e-3)
            np.testing.assert_allclose(average, mean.inverse(torch.from_numpy(x @ ours)).numpy())

    def test_other_means_are_found_among_noise(self) -> None:
        """A weighted geometric mean, of which the arithmetic one explains a part."""
        rng = np.random.default_rng(0)
        values = rng.uniform(0, 1, (2000, 6))
        y = np.exp(np.log(values + 0.06) @ np.arange(6) / 15) + 0.02 * rng.normal(size=2000)
        fused, alone = (
            fit_regression(values[:500], y[:500], means=means)(values[500:]) for means in (MEANS, MEANS[:1])
        )
        ours, theirs = (np.sqrt(((p - y[500:]) ** 2).mean()) for p in (fused, alone))
        assert ours < 0.04 and ours < 0.8 * theirs

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

    def test_range(self, data) -> None:
        values, y = data
        off = np.concatenate([3 * values + 7, values[:, :1] * 50], 1)
        fused = fit_regression(off, y, keep_range=True)(off)
        assert (off.min(1) <= fused).all() and (fused <= off.max(1)).all()

    def test_scale_and_constant_are_put_right(self, data) -> None:
        _, y = data
        rng = np.random.default_rng(1)
        off = np.stack([1000 * y + 7000, rng.normal(size=250)], 1)
        fused = fit_regression(off, y)
        np.testing.assert_allclose(fused(off), y, atol=1e-3)
        assert set(fused.shares) <= {"affine", "signed"}
        assert fused.importance([get_mean("arithmetic")])[1][0] > 0.99
        kept = fit_regression(off, y, keep_range=True)
        assert kept.shares == {"simplex": pytest.approx(1)}

    def test_a_member_that_counts_against_another(self) -> None:
        rng = np.random.default_rng(0)
        y, shared = rng.normal(size=(2, 500))
        values = np.stack([y + shared, shared + 0.01 * rng.normal(size=500)], 1)
        fused = fit_regression(values, y, means=["arithmetic"])
        assert fused.shares["signed"] > 0.99
        np.testing.assert_allclose(fused.parts[0][0].weights, [1, -1], atol=0.01)

    def test_wild_predictions_do_not_change_the_fit(self, data) -> None:
        values, y = data
        values = values.copy()
        values[7] = y[7]
        wild = values.copy()
        wild[7, 0] = 1e9
        expected, found = (((fit_regression(v, y)(values) - y) ** 2).mean() for v in (values, wild))
        assert found < 1.1 * expected

    def test_few_rows_do_not_bound_the_target(self) -> None:
        """What lies one range beyond 25 targets is believed; beyond 1,000 it is not."""
        rng = np.random.default_rng(0)
        for n, believed in ((25, True), (1000, False)):
            y = np.sort(rng.uniform(size=n))
            fused = fit_regression(y[:, None] + 0.01 * rng.normal(size=(n, 3)), y)
            assert (fused(np.full((1, 3), 2.0))[0] > 1.9) == believed

    def test_other_means_with_scale_and_constant(self) -> None:
        values = np.random.default_rng(0).uniform(1, 100, (300, 2))
        values[:2] = [[1, 100], [100, 1]]
        z = (values - 1) / 99 + 0.05
        y = 3 * np.sqrt(z.prod(1)) + 40
        fused = fit_regression(values, y, means=MEANS)
        assert fused.shares["means"] > 0.9
        found, alone = (((f(values) - y) ** 2).mean() for f in (fused, fit_regression(values, y, means=MEANS[:1])))
        assert found < 0.5 * alone


def best_error(values: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """Mean squared error of the best member with a scale and a constant."""
    lines = [(LinearRegression().fit(v[:, None], y, weight).predict(v[:, None])) for v in values.T]
    return min(np.average((line - y) ** 2, weights=weight) for line in lines)


class TestFitLinear:
    @pytest.fixture
    def data(self) -> tuple:
        rng = np.random.default_rng(0)
        y = np.sort(rng.normal(size=43))
        values = y[:, None] + rng.normal(size=(43, 3)) * [0.5, 1, 2] + [0, 1, 0]
        weight = rng.integers(1, 4, size=43).astype(float)
        return values, y, weight / weight.mean()

    def test_signed_weights_are_ridge_regression_to_the_plain_mean(self, data) -> None:
        values, y, weight = data
        variance = np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)
        unit = best_error(values, y, weight)
        for found in (c for c in fit_linear(values, y, weight) if c.kind == "signed"):

            def ridge(rows: np.ndarray, strength: float = found.strength) -> Ridge:
                rest = y[rows] - values[rows].mean(1)
                return Ridge(strength * unit).fit(values[rows], rest, sample_weight=weight[rows])

            everything = ridge(np.arange(43))
            np.testing.assert_allclose(found.weights, everything.coef_ + 1 / 3)
            assert found.constant == pytest.approx(everything.intercept_)
            squares = 0.0
            for fold in range(5):  # brute force: each fold predicted by the fit to the others
                out = np.arange(43) % 5 == fold
                predicted = ridge(np.flatnonzero(~out)).predict(values[out]) + values[out].mean(1)
                squares += weight[out] @ (predicted - y[out]) ** 2
            assert found.loss == pytest.approx(squares / 43 / variance)

    @pytest.mark.parametrize("kind", ["simplex", "affine"])
    def test_a_general_solver_finds_nothing_better(self, kind, data) -> None:
        values, y, weight = data
        unit = best_error(values, y, weight)

        def objective(wc: np.ndarray, strength: float) -> float:
            fused = values @ wc[:3] + wc[3]
            return weight @ (fused - y) ** 2 + strength * unit * ((wc[:3] - 1 / 3) ** 2).sum()

        bounds = [(0, None)] * 3 + [(0, 0) if kind == "simplex" else (None, None)]
        one = [{"type": "eq", "fun": lambda wc: wc[:3].sum() - 1}] if kind == "simplex" else []
        for found in (c for c in fit_linear(values, y, weight) if c.kind == kind):
            start = np.array([1 / 3, 1 / 3, 1 / 3, 0])
            best = minimize(objective, start, (found.strength,), "SLSQP", bounds=bounds, constraints=one)
            ours = np.append(found.weights, found.constant)
            assert objective(ours, found.strength) <= best.fun * (1 + 1e-6)
            assert (found.weights >= 0).all() and (kind == "affine" or found.weights.sum() == pytest.approx(1))


class TestLosses:
    @pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
    def test_as_good_as_quantile_regression(self, level) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=1300)
        z = np.stack([x + 0.3 * rng.normal(size=1300), 0.5 * x + 1], 1)
        y = x + 0.3 * rng.standard_t(2, size=1300)  # with outliers
        fused = fit_quantile(z[:300], y[:300], None, ["arithmetic"], level)(z[300:])
        exact = QuantileRegressor(quantile=level, alpha=0).fit(z[:300], y[:300]).predict(z[300:])
        squared = fit_regression(z[:300], y[:300], None, ["arithmetic"])(z[300:])
        ours, best, other = (mean_pinball_loss(y[300:], p, alpha=level) for p in (fused, exact, squared))
        assert ours < 1.02 * best and ours < other

    def test_the_estimator_takes_them(self, members) -> None:
        X, y = load_diabetes(return_X_y=True)
        low, middle, high = (
            AFARegressor(members[:2], loss=loss, cv=2).fit(X, y).predict(X)
            for loss in (("quantile", 0.1), "absolute", ("quantile", 0.9))
        )
        assert low.mean() < middle.mean() < high.mean() and 0.75 < np.mean((y > low) & (y < high)) < 0.85

    @pytest.mark.parametrize("loss", ["huge", ("quantile", 1.0), 0.5])
    def test_others_are_refused(self, loss, members) -> None:
        with pytest.raises(ValueError, match=r"loss must be 'squared', 'absolute' or \('quantile', q\)"):
            AFARegressor(members, loss=loss).fit(np.zeros((4, 1)), np.arange(4.0))
