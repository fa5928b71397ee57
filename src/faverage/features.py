"""The feature set: features by view, labels, splits and base heads, with one save and load.

In a file, features of all views are one array, ``(n, views, d)``, without the middle axis where there is one view
without a name. Views of different widths have an array each, with the number of the view in its name: ``test.0``,
``test.1``. Each message about a file names the array and what was expected.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from faverage.errors import ConfigError
from faverage.fscil import CosineHead, LinearHead, Whitening
from faverage.fscil.heads import Array
from faverage.fscil.knowledge import ONLY
from faverage.storage import replacing
from faverage.vision.views import view_of_today

if TYPE_CHECKING:
    from faverage.vision import Shards

__all__ = ["FeatureSet", "Splits", "check_chosen", "file_views", "permuted"]

VECTORS = ("test", "novel", "base_memory", "base_prototypes", "base_head_weight")
LABELLED = ("novel", "test", "base_memory")
BIAS, SCALE, WHITENED = "base_head_bias", "base_head_scale", "base_head_whitened"
CENTRE, MATRIX = "whitening_centre", "whitening_matrix"
LEARNED = tuple(f"{name}_learned_from" for name in LABELLED)
_MANY = 1 << 22  # numbers of a file that are written in half precision


@dataclass(kw_only=True)
class Splits:
    """Labelled examples, images or features, and what each is for.

    Attributes:
        labels: ``(n,)``, class of each example, as numbers in order of arrival; -1 for classes that no session has.
        sessions: classes of each session; the first is the base session.
        shots: rows ``(m_k,)`` of each session after the base session.
        test: rows ``(t,)`` of tests of all classes.
        spare: rows ``(s,)`` of further examples of new classes, neither shots nor test.
        class_names: by number.
        source: where the choice of shots comes from.
        skipped: number of images that could not be read.
        order: which order of arrival the classes have; 0 is the official one.

    >>> splits = Splits(
    ...     labels=np.repeat([0, 1, 2], 6),
    ...     sessions=[[0, 1], [2]],
    ...     shots=(np.array([12, 13]),),
    ...     test=np.array([4, 5, 10, 11, 16, 17]),
    ...     spare=np.array([14, 15]),
    ...     class_names=["cat", "dog", "fox"],
    ...     source="by hand",
    ... )
    >>> [splits.redrawn(seed=0, draw=draw).shots[0].tolist() for draw in range(3)]  # other examples of the fox
    [[12, 13], [13, 15], [12, 15]]
    >>> splits.drawn_from_test
    False
    """

    labels: Array
    sessions: list[list[int]]
    shots: tuple[Array, ...]
    test: Array
    spare: Array
    class_names: list[str]
    source: str
    skipped: int = 0
    order: int = 0

    def reordered(self, seed: int, order: int) -> Self:
        """Return the same examples with later classes in another order of arrival; base classes keep their session.

        The sessions have the sizes that they had, and each class its shots and tests. Order 0 is what is there.
        """
        if order == self.order:
            return self
        base, *later = self.sessions
        arrival = np.concatenate([base, *permuted(later, seed, order)])
        labels = np.where(self.labels < 0, -1, np.argsort(arrival)[self.labels])
        shots = np.concatenate(self.shots)
        return replace(
            self,
            labels=labels,
            shots=tuple(shots[np.isin(labels[shots], classes)] for classes in later),
            class_names=[self.class_names[c] for c in arrival],
            order=order,
        )

    def redrawn(self, seed: int, draw: int) -> Self:
        """Return the same sessions with other shots; draw 0 is what is there.

        The shots of a class are drawn from its shots and spare examples, if those are at least twice as many as the
        shots. Otherwise its test examples are drawn from as well, and what is not drawn is its test.
        """
        if draw == 0:
            return self
        shots, test, spare = [], [self.test], [self.spare]
        for rows in self.shots:
            chosen = []
            for label in np.unique(self.labels[rows]):
                rng = np.random.default_rng([seed, draw, int(label)])
                own, spares, tests = (part[self.labels[part] == label] for part in (rows, self.spare, self.test))
                pool = np.sort(np.concatenate([own, spares]))
                fresh = len(pool) >= 2 * len(own)
                if not fresh:
                    pool = np.sort(np.concatenate([pool, tests]))
                new = np.sort(rng.choice(pool, len(own), replace=False))
                chosen.append(new)
                (spare if fresh else test).append(np.setdiff1d(pool, new))
            shots.append(np.concatenate(chosen))
        left_test, left_spare = (np.setdiff1d(np.concatenate(part), np.concatenate(shots)) for part in (test, spare))
        return replace(self, shots=tuple(shots), test=left_test, spare=left_spare)

    @property
    def drawn_from_test(self) -> bool:
        """Whether fresh draws take test examples of any class."""
        shots, spare = (np.bincount(self.labels[part]) for part in (np.concatenate(self.shots), self.spare))
        return any(spare[c : c + 1].sum() < count for c, count in enumerate(shots))


def permuted(sessions: Sequence[Sequence[int]], seed: int, order: int) -> list[list[int]]:
    """Return the classes of all sessions in another order: sessions of the same sizes, classes ascending in each.

    The orders 0 (what is given), 1, 2, … of a seed differ in which classes a session has.

    Raises:
        ConfigError: there are not so many.

    >>> permuted([[0, 1], [2, 3]], seed=0, order=1)
    [[1, 2], [0, 3]]
    """
    found = [[sorted(classes) for classes in sessions]]
    every = [c for classes in sessions for c in classes]
    rng = np.random.default_rng([seed, len(every)])
    for _ in range(100 * order + 1):  # few classes have few orders
        if len(found) > order:
            return found[order]
        drawn = iter(rng.permutation(every).tolist())
        new = [sorted(islice(drawn, len(classes))) for classes in sessions]
        if new not in found:
            found.append(new)
    counts = f"{len(every)} classes in {len(sessions)} session{'' if len(sessions) == 1 else 's'}"
    raise ConfigError(f"{counts} have {len(found)} different orders, and {order + 1} are asked for")


@dataclass(kw_only=True)
class FeatureSet(Splits):
    """Features by view, with labels, splits, and prototypes and heads of the base session.

    Attributes:
        views: features ``(n, d_v)`` of all examples, by the name of the view; of ``Shards``, only rows that are asked
            for are read.
        memory: rows ``(m,)`` of examples of base classes that no network was trained on.
        prototypes: by view ``(C, d_v)``, means of normalised features of the base classes, whitened where these are.
        heads: base head of each view.
        whitening: of each view, or of none.
        learned_from: features ``(n, d_v)`` by view, as examples show themselves to be learned from, where that is more
            than an answer has passes for; by default those of ``views``.
        base: what base training of the first network said of itself; None for features from a file.
        networks: what that of each network said, where there are several.

    >>> import tempfile
    >>> from faverage.fscil import FewShotLearner
    >>> labels = np.arange(30) % 3  # cat and dog are base classes, the fox comes in a session
    >>> points = np.eye(3)[labels] + 0.1 * np.random.default_rng(0).normal(size=(30, 3))
    >>> features = FeatureSet(
    ...     views={"plain": points},
    ...     labels=labels,
    ...     sessions=[[0, 1], [2]],
    ...     memory=np.flatnonzero(labels[:15] < 2),
    ...     shots=(np.array([2, 5, 8, 11, 14]),),
    ...     test=np.arange(15, 30),
    ...     spare=np.array([], dtype=int),
    ...     prototypes={"plain": np.eye(3)[:2]},
    ...     heads={"plain": CosineHead(np.eye(3)[:2], scale=10.0)},
    ...     class_names=["cat", "dog", "fox"],
    ...     source="by hand",
    ... )
    >>> learner = FewShotLearner(fuser="geometric")
    >>> learner = learner.fit_base(*features.examples(features.memory), **features.base_parts)
    >>> learner = learner.learn_session(*features.examples(features.shots[0]))
    >>> test, truth = features.examples(features.test)
    >>> learner.predict(test).tolist() == truth.tolist()
    True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     features.save(f"{folder}/features.npz")
    ...     FeatureSet.load(f"{folder}/features.npz").sessions
    [[0, 1], [2]]
    """

    views: dict[str, Array | Shards]
    memory: Array
    prototypes: dict[str, Array]
    heads: dict[str, LinearHead | CosineHead]
    base: dict[str, Any] | None = None
    networks: list[dict[str, Any]] | None = None
    whitening: dict[str, Whitening] = field(default_factory=dict)
    learned_from: dict[str, Array | Shards] = field(default_factory=dict)

    @property
    def base_parts(self) -> dict[str, Any]:
        """What ``FewShotLearner.fit_base`` takes beside examples: heads, prototypes and whitening."""
        return {"head": self.heads, "prototypes": self.prototypes, "whitening": self.whitening}

    def of(self, rows: Array) -> dict[str, Array]:
        """Return the features ``(m, d_v)`` of some rows ``(m,)``, by view."""
        return {view: np.asarray(x[rows]) for view, x in self.views.items()}

    def examples(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """Return the features ``(m, d_v)`` of some rows ``(m,)``, by view, and their labels ``(m,)``."""
        return self.of(rows), self.labels[rows]

    def lesson(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """Return the same of rows ``(m,)`` to learn from: features ``(m, d_v)`` by view, and labels ``(m,)``."""
        seen = self.learned_from or self.views
        return {view: np.asarray(x[rows]) for view, x in seen.items()}, self.labels[rows]

    def save(self, path: str | Path) -> None:
        """Write what methods see to a ``.npz``: memory, shots, tests, prototypes and heads, but no spare examples.

        Where there are many, numbers are of half precision; arrays with one that is too large for that keep theirs.
        """
        rows = {"test": self.test, "novel": np.concatenate(self.shots), "base_memory": self.memory}
        words = {f"{name}_labels": self.labels[part] for name, part in rows.items()}
        words["sessions"] = np.repeat(np.arange(len(self.sessions)), [len(group) for group in self.sessions])
        heads = list(self.heads.values())
        scales = np.array([head.scale if isinstance(head, CosineHead) else 0.0 for head in heads])
        by_view = []
        for (view, x), head in zip(self.views.items(), heads, strict=True):
            seen = {name: np.asarray(x[part]) for name, part in rows.items()}
            if self.learned_from:
                seen |= {f"{name}_learned_from": self.learned_from[view][part] for name, part in rows.items()}
            seen |= {"base_prototypes": self.prototypes[view], "base_head_weight": head.weight}
            by_view.append(seen | ({BIAS: head.bias} if isinstance(head, LinearHead) else {}))
        if list(self.views) == [ONLY] and not scales.any() and not self.whitening:
            arrays = by_view[0]
        else:
            words["views"] = np.array(list(self.views))
            if scales.any():
                words[SCALE] = scales
            if self.whitening:
                words[WHITENED] = np.array([isinstance(head, CosineHead) and head.whitened for head in heads])
                for v, view in enumerate(self.views):
                    one = self.whitening[view]
                    words |= {f"{CENTRE}.{v}": one.centre, f"{MATRIX}.{v}": one.matrix}
            if len({x.shape[1] for x in self.views.values()}) > 1:
                arrays = {f"{name}.{v}": array for v, seen in enumerate(by_view) for name, array in seen.items()}
            else:
                names = [*VECTORS, *([] if scales.all() else [BIAS]), *(LEARNED if self.learned_from else ())]
                none = np.zeros(len(heads[0].weight), dtype=np.float32)  # a cosine head has no bias
                arrays = {name: np.stack([seen.get(name, none) for seen in by_view], 1) for name in names}
        many = sum(array.size for array in arrays.values()) > _MANY
        stored: dict[str, Any] = {**{name: _short(array, many) for name, array in arrays.items()}, **words}
        with replacing(Path(path)) as partial, partial.open("wb") as file:
            np.savez(file, **stored)

    @classmethod
    def load(cls, path: str | Path, views: Sequence[str] | None = None) -> Self:
        """Read what ``save`` wrote, or a file of one's own, as float32.

        Args:
            path: of the file.
            views: which of its views, in which order; by default all. A file without names of views has no choice.

        Raises:
            ConfigError: the file is not what it should be; the message names the array and what was expected.
        """
        path = Path(path)
        with _opened(path) as file:
            there = _names(path, file)
            apart = there is not None and "test" not in file.files and "test.0" in file.files
            ends = [f".{v}" for v in range(len(there or ()))] if apart else [""]
            needed = [f"{name}{end}" for name in VECTORS for end in ends]
            needed += [SCALE] if there is not None and SCALE in file.files else [f"{BIAS}{end}" for end in ends]
            needed += [f"{name}_labels" for name in VECTORS[:3]]
            otherwise = any(f"{name}{end}" in file.files for name in LEARNED for end in ends)
            learned = dict(zip(LABELLED, LEARNED, strict=True)) if otherwise else {}
            needed += [f"{name}{end}" for name in learned.values() for end in ends]
            missing = [name for name in needed if name not in file.files]
            if missing:
                more = f" (or {SCALE})" if there is not None and missing[0].startswith(BIAS) else ""
                raise ConfigError(f"{path} lacks the array '{missing[0]}'{more}; needed are: {', '.join(needed)}")
            optional = ["sessions", WHITENED, *(f"{BIAS}{end}" for end in ends)]
            optional += [f"{part}.{v}" for v in range(len(there or ())) for part in (CENTRE, MATRIX)]
            wanted = dict.fromkeys([*needed, *(name for name in optional if name in file.files)])
            data = {name: np.asarray(file[name]) for name in wanted}
        for end in ends:
            _check_shapes(path, data, end, (len(there),) if there is not None and not apart else ())
        scales = _scales(path, data, ends, len(there or ends))
        n_base = len(data[f"base_prototypes{ends[0]}"])
        alike = [*ends, *(f"_learned_from{end}" for end in ends if learned)]
        labels = {name: _labels(path, data, name, alike) for name in LABELLED}
        n_all = n_base + len(np.unique(labels["novel"]))
        _check_range(path, "base_memory_labels", labels["base_memory"], 0, n_base)
        _check_range(path, "novel_labels", labels["novel"], n_base, n_all)
        _check_range(path, "test_labels", labels["test"], 0, n_all)
        sessions = _sessions(path, data.get("sessions"), n_base, n_all)
        chosen = (ONLY,) if there is None else there if views is None else tuple(views)
        check_chosen(path, chosen, there or (ONLY,))
        places = {view: (there or (ONLY,)).index(view) for view in chosen}
        whitened = _whitened(path, data, len(there or ends))

        def of(name: str, place: int) -> Array:
            array = data[f"{name}.{place}"] if apart else data[name] if there is None else data[name][:, place]
            return array.astype(np.float32)

        def head(place: int) -> LinearHead | CosineHead:
            weight, scale = of("base_head_weight", place), float(scales[place])
            if not scale > 0:
                return LinearHead(weight, of(BIAS, place))
            return CosineHead(weight, scale, bool(whitened[place]))

        def whitening(place: int) -> Whitening:
            width = of("base_prototypes", place).shape[1]
            shapes = {CENTRE: (width,), MATRIX: (width, width)}
            return Whitening(*(_finite(path, f"{part}.{place}", data, shape) for part, shape in shapes.items()))

        def of_all(names: Mapping[str, str]) -> dict[str, Array | Shards]:
            parts = {view: [of(names.get(name, name), place) for name in LABELLED] for view, place in places.items()}
            return {view: np.concatenate(arrays) for view, arrays in parts.items()}

        ends_of = np.cumsum([len(labels[name]) for name in LABELLED])
        novel, test, memory = np.split(np.arange(ends_of[-1]), ends_of[:-1])
        return cls(
            views=of_all({}),
            learned_from=of_all(learned) if learned else {},
            labels=np.concatenate([labels[name] for name in LABELLED]),
            sessions=sessions,
            memory=memory,
            shots=tuple(novel[np.isin(labels["novel"], group)] for group in sessions[1:]),
            test=test,
            spare=novel[:0],
            prototypes={view: of("base_prototypes", place) for view, place in places.items()},
            heads={view: head(place) for view, place in places.items()},
            class_names=[str(c) for c in range(n_all)],
            source=f"ready features ({path.name})",
            whitening={view: whitening(place) for view, place in places.items()} if WHITENED in data else {},
        )


def file_views(path: Path) -> tuple[str, ...] | None:
    """Return the names of the views in a file; None where it has one view without a name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "features.npz")
    ...     np.savez(file, test=np.zeros((4, 2, 8)), views=["plain", "rotate-90"])  # 4 examples, 2 views, 8 features
    ...     file_views(file)
    ('plain', 'rotate-90')
    """
    with _opened(path) as file:
        return _names(path, file)


def check_chosen(path: Path, views: Sequence[str], there: Sequence[str]) -> None:
    """Raise ConfigError unless the views of a run, which count once each, are all in the file.

    >>> check_chosen(Path("features.npz"), ["flip"], ["plain"])
    Traceback (most recent call last):
    faverage.errors.ConfigError: views: features.npz has no view 'flip'; it has: plain
    """
    missing = [name for name in views if name not in there]
    if missing:
        raise ConfigError(f"views: {path} has no view '{missing[0]}'; it has: {'; '.join(there)}")
    if not views or len(set(views)) < len(views):
        raise ConfigError(f"views must be names of different views, at least one, got {list(views)}")


def _short(array: Array, half: bool) -> Array:
    fits = half and np.abs(array).max() <= np.finfo(np.float16).max
    return array.astype(np.float16 if fits else np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise ConfigError(f"no such file of features: {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except ConfigError:
        raise
    except Exception as error:  # zip, zlib and the headers of arrays have an error of their own for each thing wrong
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if not zipfile.is_zipfile(path):  # NumPy then advises to load it as a pickle
            if path.suffix.lower() != ".npz":
                raise ConfigError(f"{path} is not an .npz file: give one that --save-features wrote") from None
            reason = "it is no zip archive, or not all of one"
        raise ConfigError(f"{path} is not a whole .npz file of arrays ({reason}): make or fetch it again") from None


def _names(path: Path, file: Any) -> tuple[str, ...] | None:
    if "views" not in file.files:
        return None
    array = np.asarray(file["views"])
    names = array.tolist() if array.dtype.kind == "U" and array.ndim == 1 else []
    plain = all(name == name.encode(errors="replace").decode() for name in names)
    if not names or len(set(names)) < len(names) or not plain:
        raise ConfigError(f"{path}: 'views' must be different names as text (V,), got {array.dtype} {array.shape}")
    return tuple(map(view_of_today, names))


def _check_shapes(path: Path, data: dict[str, Array], end: str, inner: tuple[int, ...]) -> None:
    """Check the arrays of all views, which have the axes ``inner`` between rows and columns, or of the one view."""
    prototypes = data[f"base_prototypes{end}"]
    first = next(array for name, array in data.items() if name.startswith("base_prototypes"))
    n_base = len(first) if first.ndim else 0
    width = prototypes.shape[-1] if prototypes.ndim == len(inner) + 2 else 0
    for kind in (*VECTORS, *LEARNED, BIAS):
        name = f"{kind}{end}"
        if name not in data:
            continue
        array, tail = data[name], inner if kind == BIAS else (*inner, width)
        if array.dtype.kind not in "fiu" or array.ndim == 0 or array.shape[1:] != tail or 0 in tail:
            rows = str(n_base or "C") if kind.startswith("base_head") else "n"
            sides = ", ".join([rows, *(str(side or "d") for side in tail)]) + ("" if tail else ",")
            raise ConfigError(f"{path}: '{name}' must be numbers of shape ({sides}), got {array.dtype} {array.shape}")
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(np.float32)).all()
        if not len(array) or not finite:
            raise ConfigError(f"{path}: '{name}' must hold finite numbers, and some; got {array.shape}")
        if kind.startswith(("base_head", "base_prototypes")) and len(array) != n_base:
            raise ConfigError(f"{path}: '{name}' has {len(array)} rows, but there are {n_base} base_prototypes")


def _scales(path: Path, data: dict[str, Array], ends: Sequence[str], n_views: int) -> Array:
    """Return the scale of the base head of each view; 0 where it is linear."""
    scale = data.get(SCALE, np.zeros(()))
    shapes = ((), (n_views,))
    if scale.dtype.kind not in "fiu" or scale.shape not in shapes or not (np.isfinite(scale) & (scale >= 0)).all():
        found = f"{scale.dtype} {scale.shape}" if scale.shape not in shapes else repr(scale.tolist())
        raise ConfigError(f"{path}: '{SCALE}' must be a number > 0, or one a view (0: a linear head), got {found}")
    scales = np.broadcast_to(scale, (n_views,))
    for v, end in enumerate(ends):
        own, bias = scales[v : v + 1] if end else scales, f"{BIAS}{end}"
        if not own.all() and bias not in data:
            raise ConfigError(f"{path}: '{SCALE}' is 0 for a linear head, but there is no '{bias}'")
        if own.all() and bias in data:
            raise ConfigError(f"{path} has '{bias}' and '{SCALE}' for all views: heads are linear or cosine, leave one")
    return scales


def _whitened(path: Path, data: dict[str, Array], n_views: int) -> Array:
    """Return whether the base head of each view takes whitened features."""
    given = data.get(WHITENED, np.zeros(n_views, dtype=bool))
    if given.shape != (n_views,) or given.dtype != np.bool_:
        raise ConfigError(f"{path}: '{WHITENED}' must be {n_views} truth values, got {given.dtype} {given.shape}")
    return given


def _finite(path: Path, name: str, data: dict[str, Array], shape: tuple[int, ...]) -> Array:
    """Return an array of finite numbers of a shape."""
    array = data.get(name)
    if array is None:
        raise ConfigError(f"{path} has '{WHITENED}', but lacks '{name}'")
    if array.dtype.kind != "f" or array.shape != shape or not np.isfinite(array).all():
        raise ConfigError(f"{path}: '{name}' must be finite numbers of shape {shape}, got {array.dtype} {array.shape}")
    return array.astype(np.float32)


def _sessions(path: Path, given: Array | None, n_base: int, n_all: int) -> list[list[int]]:
    """Return the classes of each session; by default five to each after the base session."""
    if given is None:
        fives = [list(range(c, min(c + 5, n_all))) for c in range(n_base, n_all, 5)]
        return [list(range(n_base)), *fives]
    numbers = _whole(path, "sessions", given, n_all)
    steps = np.diff(numbers, prepend=0)
    if numbers[:n_base].any() or numbers[n_base] != 1 or not np.isin(steps, (0, 1)).all():
        raise ConfigError(f"{path}: 'sessions' must be 0 for the {n_base} base classes, then 1, 2, … in growing order")
    return [np.flatnonzero(numbers == k).tolist() for k in range(int(numbers[-1]) + 1)]


def _labels(path: Path, data: dict[str, Array], name: str, ends: Sequence[str]) -> Array:
    """Return the labels of an array; all that go by its name and one of the ends have as many rows."""
    lengths = [len(data[f"{name}{end}"]) for end in ends]
    for end, n in zip(ends, lengths, strict=True):
        if n != lengths[0]:
            raise ConfigError(f"{path}: '{name}{end}' has {n} rows, but '{name}{ends[0]}' has {lengths[0]}")
    return _whole(path, f"{name}_labels", data[f"{name}_labels"], lengths[0])


def _whole(path: Path, name: str, array: Array, n: int) -> Array:
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ConfigError(f"{path}: '{name}' must be {n} whole numbers, got {array.dtype} {array.shape}")
    return array.astype(np.int64)


def _check_range(path: Path, name: str, labels: Array, low: int, high: int) -> None:
    """Every class from ``low`` to ``high`` - 1 must occur, and no other."""
    absent, foreign = np.setdiff1d(np.arange(low, high), labels), np.setdiff1d(labels, np.arange(low, high))
    if len(absent) or len(foreign):
        found = f"{foreign[0]} is among them" if len(foreign) else f"{absent[0]} is not among them"
        raise ConfigError(f"{path}: '{name}' must have every class from {low} to {high - 1} and no other, but {found}")
