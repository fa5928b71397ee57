"""What the learner does beyond a run: cost, classes from nothing, none of these, merging; on ready features.

    python benchmarks/learner.py cost
    python benchmarks/learner.py nothing FEATURES.npz
    python benchmarks/learner.py unknown FEATURES.npz --plot unknown.png
    python benchmarks/learner.py merge FEATURES.npz

Features are a file of ``faverage run --save-features``, of one view or several; ``merge`` with two backbones needs one
of several views, whose first half is one backbone and whose second half the other, as the recipe ``best`` has them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from faverage.fscil import FewShotLearner, join

Array = np.ndarray[Any, Any]
Views = dict[str, Array]

RATES = (0.01, 0.05, 0.1)
SHOTS = 5


class Data:
    """Features by view of new classes (shots and tests), of base classes, and their heads."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            arrays = {name: np.asarray(file[name]) for name in file.files}
        many = "views" in arrays
        self.names = [str(name) for name in arrays["views"]] if many else ["plain"]
        self.arrays = arrays
        self.n_base = len(arrays["base_prototypes"])
        self.novel, self.novel_labels = self.of("novel"), arrays["novel_labels"]
        self.test, self.test_labels = self.of("test"), arrays["test_labels"]

    def of(self, name: str) -> Views:
        """Return an array of the file, by view."""
        array = self.arrays[name].astype(np.float32)
        return {view: array[:, v] if array.ndim == 3 else array for v, view in enumerate(self.names)}

    def base(self, **options: Any) -> FewShotLearner:
        """Return a learner of the base classes."""
        from faverage.fscil import CosineHead, LinearHead

        heads: dict[str, Any] = {}
        for v, (view, weight) in enumerate(self.of("base_head_weight").items()):
            scale = np.atleast_1d(self.arrays.get("base_head_scale", np.zeros(1)))
            bias = self.arrays.get("base_head_bias")
            if scale[v % len(scale)] > 0:
                heads[view] = CosineHead(weight, float(scale[v % len(scale)]))
            else:
                assert bias is not None
                heads[view] = LinearHead(weight, (bias[:, v] if bias.ndim == 2 else bias).astype(np.float32))
        learner = FewShotLearner(**options)
        labels = self.arrays["base_memory_labels"]
        return learner.fit_base(self.of("base_memory"), labels, head=heads, prototypes=self.of("base_prototypes"))

    def drawn(self, seed: int, classes: Array, shots: int = SHOTS) -> tuple[Array, Array]:
        """Return rows of ``everything()``: the shots of a draw, and all others; draw 0 has the file's shots."""
        labels = self.everything()[1]
        rng = np.random.default_rng(seed)
        n_shots = len(self.novel_labels)
        rows, rest = [], []
        for c in classes:
            own = np.flatnonzero(labels == c)
            chosen = own[own < n_shots][:shots] if seed == 0 and shots <= SHOTS else rng.permutation(own)[:shots]
            rows.append(chosen)
            rest.append(np.setdiff1d(own, chosen))
        return np.concatenate(rows), np.concatenate(rest)

    def everything(self) -> tuple[Views, Array]:
        """Return shots and tests, with their labels."""
        views = {view: np.concatenate([self.novel[view], self.test[view]]) for view in self.names}
        return views, np.concatenate([self.novel_labels, self.test_labels])

    @property
    def new(self) -> Array:
        """Numbers of the new classes."""
        return np.unique(self.novel_labels)


def pick(views: Views, rows: Array, names: list[str] | None = None) -> Views:
    """Return some rows, of some views."""
    return {view: x[rows] for view, x in views.items() if names is None or view in names}


def interval(values: list[float]) -> str:
    """Return mean and 95 % interval (Student's t) of repeats."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.2f} ± {half:.2f}"


def cost(options: argparse.Namespace) -> None:
    """Print the seconds of a session and the milliseconds of an answer, by classes, views and shots."""
    rng = np.random.default_rng(0)
    print(
        "| classes N | base | views | members K | shots | last session, s | one answer, ms | with none of these, ms |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    cases = [(20, 0, 1, 5), (100, 0, 1, 5), (200, 0, 1, 5), (100, 60, 1, 5), (200, 100, 1, 5), (200, 100, 1, 10)]
    cases += [(100, 60, 2, 5), (100, 60, 4, 5), (100, 60, 8, 5), (200, 100, 8, 5), (500, 0, 1, 5)]
    for n, base, views, shots in cases:
        centres = rng.normal(size=(n, views, options.width)).astype(np.float32)

        def examples(classes: range, count: int, of: Array = centres) -> tuple[Views, Array]:
            y = np.repeat(np.arange(classes.start, classes.stop), count)
            x = np.abs(of[y] + 1.5 * rng.normal(size=(len(y), *of.shape[1:])).astype(np.float32))
            return {f"view {v}": x[:, v] for v in range(of.shape[1])}, y

        learner = FewShotLearner()
        last = max(n - (10 if n > 20 else 1), base)
        if base:
            held_out, y = examples(range(base), 20)
            means = {v: np.stack([_unit(x[y == c]).mean(0) for c in range(base)]) for v, x in held_out.items()}
            heads = {v: (4 * m, np.zeros(base, dtype=np.float32)) for v, m in means.items()}
            learner.fit_base(held_out, y, head=heads, prototypes=means)
        if last > base:
            learner.learn_session(*examples(range(base, last), shots))
        X, y = examples(range(last, n), shots)
        times = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            learner.learn_session(X, y)
            times.append(time.perf_counter() - start)
            learner.undo()
        learner.learn_session(X, y)
        one = {view: x[:1] for view, x in X.items()}
        learner.predict(one, unknown=0.05)
        rates = [_milliseconds(lambda: learner.predict(one)), _milliseconds(lambda: learner.predict(one, unknown=0.05))]  # noqa: B023
        members = len(learner.members.members)
        cells = f"{np.median(times):.2f} | {rates[0]:.2f} | {rates[1]:.2f}"
        print(f"| {n} | {base} | {views} | {members} | {shots} | {cells} |", flush=True)


def _unit(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _milliseconds(do: Any, repeats: int = 50) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        do()
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def nothing(options: argparse.Namespace) -> None:
    """Teach 20 new classes one by one, without a base session, in two orders; print the accuracy on their tests."""
    data = Data(options.features)
    views, labels = data.everything()
    print("| draw | in order | shuffled | all at once | prototypes |")
    print("|---:|---:|---:|---:|---:|")
    for seed in range(options.draws):
        classes = data.new[:20]
        shots, rest = data.drawn(seed, classes)
        cells = []
        orders = [list(classes), list(np.random.default_rng(seed).permutation(classes))]
        for order, fuser in ((orders[0], "afa"), (orders[1], "afa"), (None, "afa"), (orders[0], "prototypes")):
            learner = FewShotLearner(fuser=fuser)
            if order is None:
                learner.learn_session(pick(views, shots), labels[shots])
            for c in order or ():
                rows = shots[labels[shots] == c]
                learner.learn_session(pick(views, rows), labels[rows])
            cells.append(f"{100 * (learner.predict(pick(views, rest)) == labels[rest]).mean():.2f}")
        print(f"| {seed} | {' | '.join(cells)} |", flush=True)


def unknown(options: argparse.Namespace) -> None:
    """Print false alarms on known classes and strangers caught after each session; strangers: classes of later ones."""
    data = Data(options.features)
    views, labels = data.everything()
    sessions = data.arrays.get("sessions")
    new = data.new
    groups = (
        [new[i : i + 5] for i in range(0, len(new), 5)]
        if sessions is None
        else [np.flatnonzero(sessions == k) for k in range(1, int(sessions.max()) + 1)]
    )
    found = np.zeros((2, options.draws, len(groups), len(RATES), 2))
    for start, base in enumerate((True, False)):
        for seed in range(options.draws):
            learner = data.base() if base else FewShotLearner()
            shots, rest = data.drawn(seed, new)
            tests = np.concatenate([rest, len(data.novel_labels) + np.flatnonzero(data.test_labels < data.n_base)])
            for k, group in enumerate(groups[:-1]):
                rows = shots[np.isin(labels[shots], group)]
                learner.learn_session(pick(views, rows), labels[rows])
                known = np.isin(labels[tests], learner.classes)
                strangers = np.isin(labels[tests], np.concatenate(groups[k + 1 :]))
                familiar = learner.familiarity(pick(views, tests))
                of = labels[tests][known]
                weight = 1 / np.bincount(of)[of]  # every known class counts alike
                for r, rate in enumerate(RATES):
                    alarms = ((familiar[known] <= rate) * weight).sum() / weight.sum()
                    found[start, seed, k, r] = alarms, (familiar[strangers] <= rate).mean()
    for start, title in enumerate(("with a base session", "from nothing")):
        print(f"\n{title}: false alarms / strangers caught, %, mean of {options.draws} draws\n")
        print("| session | " + " | ".join(f"{100 * rate:g} %" for rate in RATES) + " |")
        print("|---:|" + "---:|" * len(RATES))
        for k in range(len(groups) - 1):
            cells = [f"{100 * a:.1f} / {100 * b:.1f}" for a, b in found[start, :, k].mean(0)]
            print(f"| {k + 1} | {' | '.join(cells)} |")
    if options.plot:
        _plot(found[:, :, :-1].mean(1), options.plot)


def _plot(found: Array, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    sessions = np.arange(1, found.shape[1] + 1)
    for axis, title, rates in zip(axes, ("with a base session", "from nothing"), found, strict=True):
        for r, rate in enumerate(RATES):
            colour = f"C{r}"
            axis.plot(sessions, 100 * rates[:, r, 1], "-o", color=colour, label=f"strangers caught at {100 * rate:g} %")
            axis.plot(sessions, 100 * rates[:, r, 0], "--", color=colour, label=f"false alarms at {100 * rate:g} %")
            axis.axhline(100 * rate, color=colour, lw=0.5, alpha=0.5)
        axis.set(title=title, xlabel="session", ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("answered “none of these”, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=130)


def merge(options: argparse.Namespace) -> None:
    """Print the accuracy of two learners of 20 classes, merged or joined, beside one that was taught all 40."""
    data = Data(options.features)
    views, labels = data.everything()
    half = len(data.names) // 2
    backbones = [data.names[:half], data.names[half:]] if half else [data.names]
    rows: dict[str, list[float]] = {}
    for seed in range(options.draws):
        shots, rest = data.drawn(seed, data.new[:40])
        parts = [shots[np.isin(labels[shots], group)] for group in (data.new[:20], data.new[20:40])]

        def taught(which: Array, names: list[str]) -> FewShotLearner:
            return FewShotLearner().learn_session(pick(views, which, names), labels[which])

        def right(said: Array, truth: Array = labels[rest]) -> float:
            return 100 * float((said == truth).mean())

        for b, names in enumerate(backbones, 1):
            X = pick(views, rest, names)
            first, second = (taught(part, names) for part in parts)
            rows.setdefault(f"backbone {b}, taught all 40", []).append(right(taught(shots, names).predict(X)))
            merged = FewShotLearner().merge(first).merge(second)
            rows.setdefault(f"backbone {b}, merged", []).append(right(merged.predict(X)))
            said = join(first, second).predict([X, X])
            rows.setdefault(f"backbone {b}, joined by label alone", []).append(right(said))
        if half:
            X1, X2 = (pick(views, rest, names) for names in backbones)
            one, other = taught(parts[0], backbones[0]), taught(parts[1], backbones[1])
            rows.setdefault("two backbones, joined by label", []).append(right(join(one, other).predict([X1, X2])))
            both = taught(shots, data.names).predict(pick(views, rest))
            rows.setdefault("both backbones see all 40", []).append(right(both))
    print("| | accuracy, %, 95 % interval |")
    print("|---|---:|")
    for name, values in rows.items():
        print(f"| {name} | {interval(values)} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for verb in (cost, nothing, unknown, merge):
        own = verbs.add_parser(verb.__name__, help=verb.__doc__)
        own.set_defaults(verb=verb)
        if verb is cost:
            own.add_argument("--width", type=int, default=512, help="features of a view")
            own.add_argument("--repeats", type=int, default=3)
            continue
        own.add_argument("features", type=Path)
        own.add_argument("--draws", type=int, default=5)
        if verb is unknown:
            own.add_argument("--plot", type=Path)
    options = parser.parse_args()
    options.verb(options)


if __name__ == "__main__":
    main()
