"""Ensembles for scikit-learn users: members of any kind, fused by a fuser of ``faverage.fusion``.

They are used as scikit-learn's ``StackingClassifier`` and ``StackingRegressor`` are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d

from faverage.afa.explain import Explanation, from_shares, names_of
from faverage.afa.network import DEFAULT_MEANS, MeanSpec
from faverage.errors import UserError
from faverage.estimators.held_out import HeldOut, Metric, log_scores, metric_of, rows_to_keep, sets_of, threshold, tune
from faverage.estimators.members import (
    Ensemble,
    check_labels,
    check_shared,
    encode,
    fold_values,
    plain_folds,
    predict_values,
    steady,
    stratified_folds,
    take,
    union,
)
from faverage.estimators.outputs import Answer, Targets, as_table, fold_outputs, read_joint, read_targets, weigh_classes
from faverage.estimators.regression import build_means, fit_quantile, fit_regression, level_of
from faverage.fusion import FUSERS, Fuser, get_fuser
from faverage.fusion.align import align

Array = NDArray[Any]


def _is_prefit(ensemble: Ensemble) -> bool:
    if not ensemble._prefit:
        raise AttributeError("partial_fit fits the fuser alone, to members that are fitted: it needs cv='prefit'")
    return True


def _given_classes(classes: Any, targets: Targets) -> list[Array]:
    """Return the labels ``(N_j,)`` of each output that the first ``partial_fit`` was given, or raise UserError."""
    if classes is None:
        raise UserError("the first call of partial_fit needs classes: all labels that y may ever have", what="classes")
    given = list(classes) if targets.several else [classes]
    if len(given) != len(targets.labels) or any(np.ndim(one) != 1 for one in given):
        wanted = f"a list of {len(targets.labels)} lists of labels, one a column of y" if targets.several else "labels"
        raise UserError(f"classes must be {wanted}, got {classes!r}", what="classes")
    return [encode(check_labels(one))[0] for one in given]


class AFAClassifier(ClassifierMixin, Ensemble):  # type: ignore[misc]
    """Several classifiers, fused by a learned average of their probabilities.

    The fuser learns from out-of-fold probabilities; then the members are fitted again on everything. Members that know
    different classes (``cv="prefit"``, or a class that a fold misses) are put side by side by label. Where y has
    several columns, the same fitted members learn them all, and each column has its own fuser.

    Args:
        estimators: a list of (name, estimator). A member without ``predict_proba`` is read by ``decision_function``, or
            else by the labels that it predicts. ``"drop"`` leaves a member out.
        fuser: name of a fuser (``faverage.fusion.fuser_names()``), or a fuser.
        fuser_options: options of the fuser.
        class_weight: how much the rows of each class count when the fuser is fitted: ``"balanced"`` (all classes weigh
            the same together), or a dict from labels to weights, 1 where it has none. It is not passed to members, and
            has no effect on fusers that do not learn. Probabilities are then those of classes in these proportions.
        metric: what ``predict`` is to serve: the name of a scorer of predicted labels, such as ``"f1_macro"`` or
            ``"balanced_accuracy"``, or a function of labels and predicted labels to a number, the larger the better.
            Offsets of the classes' log-probabilities are chosen by it on held-out rows; ``predict_proba`` stays as it
            is. Sample weights count for scorers. A metric of probabilities is refused: the fuser minimises the log-loss
            already.
        cv: number of stratified folds, a splitter, or an iterable of (training rows, test rows); None means 5 folds.
            Rows in no test part are not used by the fuser. ``"prefit"``: members are fitted already and used as they
            are. They may then also be torch modules, which get a tensor of their parameters' type, or functions from X
            to an array or tensor ``(n, N_k)``; outputs that are not probabilities are taken as logits. Their columns
            are the attribute ``classes_`` if they have one, else the sorted labels of y. To clone such an ensemble (a
            grid search does), wrap estimators in ``sklearn.frozen.FrozenEstimator``.
        half_life: for ``partial_fit``: a row counts half after so many newer ones. None forgets nothing.
        n_jobs: fits at a time.
        verbose: how much joblib tells.

    Attributes:
        classes_: the N labels: those of y and those that prefit members know. A list, one array a column, where y has
            several; the numbers 0 … m-1 of the columns where y is a matrix of zeros and ones.
        estimators_: the K fitted members.
        named_estimators_: the same by name.
        fuser_: the fitted fuser; a list, one a column, where y has several.
        offsets_: ``(N,)``, what ``predict`` adds to log-probabilities for the sake of ``metric``, or None; a list, one
            array a column, where y has several.
        history_: after ``partial_fit``: the members' shares and the losses over time; ``history_.plot("file.png")``. A
            list, one a column, where y has several.
        n_features_in_: number of features.
        feature_names_in_: their names, where X has them.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_wine(return_X_y=True)
    >>> members = [("nb", GaussianNB()), ("logistic", LogisticRegression(solver="newton-cholesky"))]
    >>> model = AFAClassifier(members).fit(X[::2], y[::2])
    >>> model.predict_proba(X[1:4]).shape, bool(model.score(X[1::2], y[1::2]) > 0.9)
    ((3, 3), True)
    """

    def __init__(
        self,
        estimators: Sequence[tuple[str, Any]],
        *,
        fuser: str | Fuser = "afa",
        fuser_options: dict[str, Any] | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        metric: Metric | None = None,
        cv: Any = None,
        half_life: float | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimators = estimators
        self.fuser = fuser
        self.fuser_options = fuser_options
        self.class_weight = class_weight
        self.metric = metric
        self.cv = cv
        self.half_life = half_life
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the members, and the fuser on their out-of-fold probabilities.

        Args:
            X: examples ``(n, features)`` of any kind that the members take.
            y: labels ``(n,)``: numbers, strings, booleans. Or several outputs ``(n, m)``, for members that take them: a
                matrix of zeros and ones (multi-label), or m columns of classes (multi-output).
            sample_weight: ``(n,)``, for the members that take weights and for the fuser.
        """
        live = self._live_members()
        fuser = get_fuser(self.fuser, **(self.fuser_options or {}))
        metric = None if self.metric is None else metric_of(self.metric)
        X, weight = self._check_input(X, y, sample_weight)
        targets = read_targets(y)
        self._several, self._indicator = targets.several, targets.indicator
        self._labels, codes = list(targets.labels), targets.codes
        if self._prefit:
            folds = [self._read_fitted(live, X, targets.labels)]
            codes = self._codes(targets)
            rows = np.arange(len(codes))
            models = [model for _, model in live]
        else:
            targets.check_classes(weight)
            splits = self._splits(X, targets.strata, stratified_folds)
            folds = self._out_of_fold(fold_outputs, live, splits, X, targets, weight)
            rows = np.concatenate([test for _, test in splits])
            models = self._refit(live, X, targets.given, weight)
            one = take(X, rows[:1])
            how = partial(read_joint, labels=targets.known(), several=targets.several, names=targets.names)
            self._members = [how(name, model, one)[0] for (name, _), model in zip(live, models, strict=True)]
        self._keep(live, models)
        codes, weight = codes[rows], None if weight is None else weight[rows]
        weights = weigh_classes(self.class_weight, self._labels, codes, weight)
        keep = rows_to_keep(rows, weight, len(live) * sum(map(len, self._labels)))
        self._fusers, sample = [], []
        for j in range(len(self._labels)):
            scores = steady(np.concatenate([self._aligned(fold, j) for fold in folds]))
            self._fusers.append(get_fuser(fuser).fit(scores, codes[:, j], weights[j]))
            sample.append(scores[keep].astype(np.float32))
        kept = [None if w is None else w[keep] for w in weights]
        self._held_out = HeldOut(self._fusers, sample, codes[keep], kept, None if weight is None else weight[keep])
        self._offsets = None if metric is None else self._tune(metric)
        self.__dict__.pop("history_", None)
        self._publish()
        return self

    @available_if(_is_prefit)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the fuser to more rows of a stream; the members stay as they are, which needs ``cv="prefit"``.

        Memory does not grow with the stream. It goes on where an earlier call, or ``fit``, has ended. With a
        ``half_life`` the weights follow members whose quality changes.

        Args:
            X: examples ``(n, features)``, in the order of time where there is a half-life.
            y: labels ``(n,)``, or several outputs ``(n, m)``.
            classes: all labels that y may ever have, ``(N,)``, or a list of them for each column of y; the first call
                needs it.
            sample_weight: ``(n,)``.
        """
        live, fuser = self._live_members(), get_fuser(self.fuser, **(self.fuser_options or {}))
        if self.metric is not None:
            raise UserError("metric chooses on held-out rows, which a stream has not: use fit", what="metric")
        if isinstance(self.class_weight, str):
            raise UserError(
                f"class_weight={self.class_weight!r} needs all rows at once",
                what="class_weight",
                hint="give a dict from labels to weights, or use fit",
            )
        targets = read_targets(y)
        first = not hasattr(self, "_fusers")
        labels = _given_classes(classes, targets) if first else self._labels
        X, weight = self._check_input(X, y, sample_weight, reset=first)
        if first:
            self._several = targets.several
            self._indicator = targets.several and all(names.tolist() == [0, 1] for names in labels)
            said = self._read_fitted(live, X, labels)
            scores = [self._aligned(said, j) for j in range(len(self._labels))]
        else:
            scores = self._member_scores(X)
        codes = self._codes(targets)
        weights = weigh_classes(self.class_weight, self._labels, codes, weight)
        if first:
            self._keep(live, [model for _, model in live])
            self._fusers = [get_fuser(fuser) for _ in self._labels]
        for one, values, column, w in zip(self._fusers, scores, codes.T, weights, strict=True):
            one.partial_fit(steady(values), column, w, half_life=self.half_life)
            one.weight_history.models = self._names  # type: ignore[union-attr]
        self.__dict__.pop("_held_out", None)
        self._offsets = None
        histories = [one.weight_history for one in self._fusers]
        self.history_ = histories if self._several else histories[0]
        self._publish()
        return self

    def member_scores(self, X: Any) -> Array | list[Array]:
        """Return the members' probabilities ``(n, K, N)``, with NaN where a member does not know a class.

        Where y has several columns, return one such array for each.
        """
        scores = self._member_scores(X)
        return scores if self._several else scores[0]

    def predict_proba(self, X: Any) -> Array | list[Array]:
        """Return the probability of each class ``(n, N)``.

        Where y is a matrix of zeros and ones, return the probability ``(n, m)`` of each label; where it has several
        columns of classes, a list of m arrays ``(n, N_j)``.
        """
        fused = self._fused(X)
        if self._indicator:
            return np.stack([p[:, 1] for p in fused], 1)
        return fused if self._several else fused[0]

    def predict(self, X: Any) -> Array:
        """Return the most probable label ``(n,)`` of each row, or of each row and column of y ``(n, m)``.

        With a ``metric``, the label that serves it: that of the largest log-probability with its offset.
        """
        return self._name(self._choose(self._fused(X)))

    def predict_set(self, X: Any, coverage: float = 0.9) -> Array | list[Array]:
        """Return which labels may be the true one, ``(n, N)`` booleans; one array for each column where y has several.

        The sets hold the true label of about this share of new rows (of each column), if those are exchangeable with
        the rows that the fuser learned from: drawn alike, in any order, without drift. It is a share over all rows, not
        of each class or kind of row. Sets come from held-out fused probabilities (split conformal prediction, with the
        correction for few rows); since the members and the fuser that answer have seen all rows, and those that were
        held out four fifths or so, the share is not exact. The predicted label is in its set, which is never empty.
        Sets are larger where the models are in doubt.

        Args:
            X: examples ``(n, features)``.
            coverage: the share of rows whose set is to hold the true label, between 0 and 1.
        """
        if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise UserError(
                f"coverage must be a number between 0 and 1, such as 0.9, got {coverage!r}", what="coverage"
            )
        if hasattr(self, "_fusers") and not hasattr(self, "_held_out"):
            raise UserError("sets of labels need held-out rows, which partial_fit does not keep", hint="use fit")
        fused, held = self._fused(X), self._held_out
        pairs = zip(fused, self._choose(fused), held.fused, held.codes.T, strict=True)
        sets = [sets_of(p, best, threshold(h, y, held.weight, float(coverage))) for p, best, h, y in pairs]
        return sets if self._several else sets[0]

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy for ``y`` ``(n,)``; of several columns ``(n, m)`` all must be right in a row."""
        if not getattr(self, "_several", False):
            return float(super().score(X, y, sample_weight))
        right = (self.predict(X) == as_table(y)).all(1)
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))

    def explain(self) -> Explanation | list[Explanation]:
        """Return which mean the fuser uses, and which member it trusts for which class; a list, one a column of y."""
        check_is_fitted(self)
        if not hasattr(self._fusers[0], "explain"):
            able = ", ".join(f"'{name}'" for name, kind in FUSERS.items() if hasattr(kind, "explain"))
            raise ValueError(f"the fuser '{self._fusers[0].name}' cannot be explained; these can: {able}")
        pairs = zip(self._fusers, self._labels, strict=True)
        said = [fuser.explain(models=self._names, classes=labels.tolist()) for fuser, labels in pairs]  # type: ignore[attr-defined]
        return said if self._several else said[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        models = [model for _, model in self.estimators if not isinstance(model, str)]
        able = [get_tags(model) for model in models if hasattr(model, "__sklearn_tags__")]
        if len(able) == len(models):  # several columns can be learned where every member can
            tags.target_tags.multi_output = all(tag.target_tags.multi_output for tag in able)
            tags.classifier_tags.multi_label = all(tag.classifier_tags.multi_label for tag in able)
        return tags

    def _tune(self, metric: Callable[[Array, Array, Array | None], float]) -> list[Array]:
        """Return the offsets ``(N_j,)`` of each output that serve the metric on held-out rows."""
        held = self._held_out
        truth = self._name(list(held.codes.T))

        def measure(found: list[Array], rows: Array) -> float:
            return metric(truth[rows], self._name(found), None if held.weight is None else held.weight[rows])

        return tune(held.fused, measure)

    def _publish(self) -> None:
        """Set the attributes that a user sees."""
        self.offsets_ = self._offsets[0] if self._offsets and not self._several else self._offsets
        many = np.arange(len(self._labels)) if self._indicator else self._labels  # as scikit-learn's own classifiers do
        self.classes_ = many if self._several else self._labels[0]
        self.fuser_ = self._fusers if self._several else self._fusers[0]

    def _read_fitted(self, live: list[tuple[str, Any]], X: Any, labels: list[Array]) -> list[list[Answer]]:
        """Find out how to read fitted members, and all labels; return what they answer ``(n, C)``, by member, output.

        ``labels`` are those ``(N_j,)`` of each output that y has.
        """
        read = [read_joint(name, model, X, labels, several=self._several) for name, model in live]
        self._members, self._labels = [joint for joint, _ in read], []
        for j, names in enumerate(labels):
            parts = [joint.parts[j] for joint in self._members]
            check_shared(names, parts)
            self._labels.append(union([names, *(part.classes for part in parts)]))
        return [answers for _, answers in read]

    def _codes(self, targets: Targets) -> Array:
        """Return the positions ``(n, m)`` of y's labels among those that are known, or raise UserError."""
        if targets.several != self._several or len(targets.labels) != len(self._labels):
            raise UserError(f"y has {len(targets.labels)} columns, before it had {len(self._labels)}", what="y")
        codes = np.empty_like(targets.codes)
        for j, (names, known) in enumerate(zip(targets.labels, self._labels, strict=True)):
            place = {label: i for i, label in enumerate(known.tolist())}
            codes[:, j] = np.array([place.get(name, -1) for name in names.tolist()])[targets.codes[:, j]]
            new = targets.codes[codes[:, j] < 0, j]
            if len(new):
                raise UserError(
                    f"y has the label {names.tolist()[new[0]]!r}, which is not among the classes {known.tolist()}",
                    what="y",
                    hint="give classes that hold it to the first partial_fit of a new ensemble, or use fit",
                )
        return codes

    def _member_scores(self, X: Any) -> list[Array]:
        self._check_predict(X)
        answers = [joint.answers(X) for joint in self._members]
        return [self._aligned(answers, j) for j in range(len(self._labels))]

    def _aligned(self, answers: list[list[Answer]], j: int) -> Array:
        """Return the scores ``(n, K, N_j)`` of one output, from what the members answer ``(n, C)``."""
        scores, classes = zip(*(member[j] for member in answers), strict=True)
        return align(scores, classes, all_classes=self._labels[j]).scores

    def _fused(self, X: Any) -> list[Array]:
        """Return the probabilities ``(n, N_j)`` of each output."""
        scores = self._member_scores(X)
        return [fuser.predict_proba(s) for fuser, s in zip(self._fusers, scores, strict=True)]

    def _choose(self, fused: list[Array]) -> list[Array]:
        """Return the positions ``(n,)`` of the labels to predict, from probabilities ``(n, N_j)`` of each output."""
        if self._offsets is None:
            return [p.argmax(1) for p in fused]
        return [(log_scores(p) + b).argmax(1) for p, b in zip(fused, self._offsets, strict=True)]

    def _name(self, codes: list[Array]) -> Array:
        """Return the labels ``(n,)`` or ``(n, m)`` at positions ``(n,)`` for each output."""
        named = [labels[c] for labels, c in zip(self._labels, codes, strict=True)]
        if not self._several:
            return named[0]
        alike = len({column.dtype.kind for column in named}) == 1
        return np.stack(named if alike else [column.astype(object) for column in named], 1)


class AFARegressor(RegressorMixin, Ensemble):  # type: ignore[misc]
    """Several regressors, fused by a learned average of their predictions.

    Candidates are averages on the simplex, the same with a scale and a constant, and weights of any sign, all shrunk to
    the plain mean; and the network of all means, where these promise less error. Each has a share of the prediction by
    its squared loss on held-out parts of the out-of-fold predictions. What a member says outside the range of the
    target by more than a tenth of it, and far from the bulk of its own predictions, is clipped. Fitting is
    deterministic.

    Args:
        estimators: a list of (name, estimator); ``"drop"`` leaves a member out.
        means: the means to choose from; without the arithmetic one, the network of the others is the only candidate.
        keep_range: choose among averages on the simplex only. A prediction then always lies between the least and the
            largest prediction of the members for that row.
        loss: what the average minimises: ``"squared"``, ``"absolute"``, which outliers hardly move, or
            ``("quantile", q)`` for the quantile at level q. Members have losses of their own.
        cv: number of folds, a splitter, an iterable of splits, or ``"prefit"``, as for ``AFAClassifier``; None means 5
            folds. Prefit modules and functions give ``(n,)`` or ``(n, m)``.
        n_jobs: fits at a time.
        verbose: how much joblib tells.

    Attributes:
        estimators_: the K fitted members.
        named_estimators_: the same by name.
        shares_: share of each kind of candidate that is in use: ``simplex``, ``affine`` (with a scale and a constant),
            ``signed``, ``means`` (the network of all means).
        network_: the ``faverage.AFA`` on the simplex: that of all means where these are in use, else of the arithmetic
            one. It works on predictions scaled to the range of the out-of-fold ones.
        shrinkage_: the strength of the pull to the plain mean in the candidate with the largest share.
        n_features_in_: number of features.
        feature_names_in_: their names, where X has them.

    Where y is ``(n, m)``, each output has weights of its own, and ``shares_``, ``network_`` and ``shrinkage_`` are
    lists with one entry an output.

    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.random.default_rng(0).random((200, 1))
    >>> y = 3 * X[:, 0] + np.sin(20 * X[:, 0])
    >>> members = [("line", LinearRegression()), ("tree", DecisionTreeRegressor(max_depth=4, random_state=0))]
    >>> model = AFARegressor(members).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9), round(sum(model.shares_.values()), 6)
    (True, 1.0)
    """

    def __init__(
        self,
        estimators: Sequence[tuple[str, Any]],
        *,
        means: Sequence[MeanSpec] = DEFAULT_MEANS,
        keep_range: bool = False,
        loss: str | tuple[str, float] = "squared",
        cv: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimators = estimators
        self.means = means
        self.keep_range = keep_range
        self.loss = loss
        self.cv = cv
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the members, and the weights of their average on out-of-fold predictions.

        Args:
            X: examples ``(n, features)`` of any kind that the members take.
            y: targets ``(n,)``, or ``(n, m)`` for members that take several.
            sample_weight: ``(n,)``, for the members that take weights and for the average.
        """
        live = self._live_members()
        means, level = build_means(self.means), level_of(self.loss)
        X, weight = self._check_input(X, y, sample_weight)
        y = check_array(y, ensure_2d=False, dtype="numeric", input_name="y")
        if y.ndim == 1 or y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        target = y.reshape(len(y), -1).astype(np.float64)  # (n, m)
        if self._prefit:
            rows, models = np.arange(len(y)), [model for _, model in live]
            values = np.stack([predict_values(name, model, X, target.shape[1]) for name, model in live], 1)
        else:
            splits = self._splits(X, y, plain_folds)
            folds = self._out_of_fold(fold_values, live, splits, X, y, weight)
            values = np.concatenate([np.stack(fold, 1) for fold in folds])
            rows = np.concatenate([test for _, test in splits])
            models = self._refit(live, X, y, weight)
        self._keep(live, models)
        self._one = y.ndim == 1
        own = None if weight is None else weight[rows]
        self._fused = [
            fit_regression(values[:, :, i], column, own, means, keep_range=self.keep_range)
            if level is None
            else fit_quantile(values[:, :, i], column, own, means, level, keep_range=self.keep_range)
            for i, column in enumerate(target[rows].T)
        ]
        self.shares_, self.network_, self.shrinkage_ = (
            found[0] if self._one else found
            for found in ([getattr(f, name) for f in self._fused] for name in ("shares", "network", "shrinkage"))
        )
        return self

    def member_scores(self, X: Any) -> Array:
        """Return the members' predictions ``(n, K, m)``, as they are: before clipping."""
        self._check_predict(X)
        pairs = zip(self._names, self.estimators_, strict=True)
        return np.stack([predict_values(name, model, X, len(self._fused)) for name, model in pairs], 1)

    def predict(self, X: Any) -> Array:
        """Return the fused predictions, ``(n,)`` or ``(n, m)`` as y was."""
        values = self.member_scores(X)
        fused = np.stack([f(values[:, :, i]) for i, f in enumerate(self._fused)], 1)
        return fused[:, 0] if self._one else fused

    def explain(self) -> Explanation:
        """Return which mean is used and which member is trusted, for each output.

        They are averages over the candidates by their shares. In one with a scale or with signs, a member's share is
        that of its weight, without sign, times the spread of its predictions.
        """
        check_is_fitted(self)
        means = build_means(self.means)
        by_mean, by_member = zip(*(f.importance(means) for f in self._fused), strict=True)
        outputs = ["value"] if self._one else [f"output {i}" for i in range(len(self._fused))]
        tables = torch.from_numpy(np.stack(by_mean)), torch.from_numpy(np.stack(by_member))
        return from_shares(*tables, names_of(means), self._names, outputs)
