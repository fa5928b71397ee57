"""A forecast hub (hubverse): read its folders, fuse its models date by date, write files in its own format, and score.

``model-output/TEAM-MODEL/DATE-TEAM-MODEL.csv`` (or ``.parquet``) has the quantiles of a model, ``target-data/`` what
came true. Weights for a date are learned from earlier dates alone, with the truth as it was known before that date
where the hub keeps versions of it.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.errors import UserError
from faverage.forecasts.quantiles import QuantileFuser
from faverage.forecasts.scores import coverage, weighted_interval_score
from faverage.prediction_files.base import Listener, count, some
from faverage.prediction_files.read import csv_rows, read_parquet
from faverage.report.tables import csv_table, exact, in_markdown, markdown_table

Array = NDArray[Any]
NAME = "faverage-fused"  # of the model that is written
_DATES = ("reference_date", "origin_date")
_ENDS = ("target_end_date", "target_date", "date")
_VALUES = ("observation", "value")
_OUTPUT = ("output_type", "output_type_id", "value")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Score:
    """How good the quantiles of one method or model are, over the rows that it has."""

    name: str  # of the method or model
    kind: str  # ``fused``, ``plain``, ``hub`` (its own models) or ``member``
    rows: int  # how many there are
    wis: float  # mean weighted interval score
    relative: float | None  # the same as a part of the baseline's, on the same rows; None without a baseline
    log_relative: float | None  # the same of log(1 + x), negative quantiles as 0; None where a truth is negative
    fused: float  # the mean score of what was fused, on the same rows, as a part of ``wis``
    won: int  # dates on which what was fused has the smaller mean score
    dates: int  # how many dates there are
    half: float | None  # part of the truth in the interval of 50 %, or None where there are no such levels
    most: float | None  # the same for 95 %


@dataclass(frozen=True)
class Forecasts:
    """All forecasts of a target.

    Attributes:
        columns: names of the task columns, such as the date, the location and the horizon.
        keys: one tuple of their values a row.
        date: when each row was made, ``(n,)``.
        models: M names.
        levels: ``(Q,)``.
        values: quantiles ``(n, M, Q)``, NaN where a model has none.
    """

    columns: list[str]
    keys: list[tuple[str, ...]]
    date: Array
    models: list[str]
    levels: Array
    values: Array


def fuse_hub(
    hub: str | Path,
    out: str | Path,
    *,
    season: str | None = None,
    target: str | None = None,
    truth: str | None = None,
    horizons: Sequence[int] = (),
    baseline: str | None = None,
    rivals: Sequence[str] = (),
    without: Sequence[str] = (),
    calibrate: bool = False,
    listener: Listener | None = None,
) -> list[Score]:
    """Fuse the models of a hub date by date, write quantiles and scores to the folder ``out``, and return the scores.

    Args:
        hub: the folder with ``model-output`` and ``target-data``.
        out: a folder that does not exist yet; it gets ``model-output/`` in the hub's format, ``scores.csv`` and
            ``weights.csv``.
        season: such as ``2023-2024``: dates from August to July; None means all.
        target: where the hub has several with quantiles.
        truth: file or pattern under the hub; of several files, each dated in its name, a date learns from the last that
            is older. By default ``target-data/time-series.csv``, or the only CSV file there.
        horizons: those to use; none means all.
        baseline: model that scores are relative to; by default the one whose name ends in ``-baseline``.
        rivals: patterns of names of models that are compared and never fused; by default all of the baseline's team.
        without: patterns of names of models that are not read at all.
        calibrate: see ``QuantileFuser``.
        listener: receives progress.

    Raises:
        UserError: for anything wrong with the hub or the options; nothing is written then.
    """
    hub, out, listener = Path(hub), Path(out), listener or Listener()
    if not hub.exists():
        raise UserError(f"the folder {hub} does not exist", what=hub)
    if out.exists():
        raise UserError(f"{out} exists already: choose another --out")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: the folder {out.parent} does not exist")
    files = _files(hub, season, without)
    versions = _truth_files(hub, truth)
    found = _read(files, target, {str(h) for h in horizons}, listener)
    models = found.models
    if baseline is None:
        baseline = next((name for name in models if name.endswith("-baseline")), None)
    elif baseline not in models:
        raise UserError(f"--baseline {baseline} has no forecasts; models are {some(models, 10)}")
    patterns = list(rivals) or ([f"{baseline.split('-')[0]}-*"] if baseline else [])
    own = np.array([any(fnmatchcase(name, p) for p in [*patterns, baseline or ""]) for name in models])
    if (~own).sum() < 2:
        raise UserError(f"{hub} has {count(int((~own).sum()), 'model')} to fuse, at least two are needed")
    y, fused, plain, weights = _walk(found, ~own, versions, calibrate, listener)
    scores = _scores(found, own, baseline, y, fused, plain)
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as fresh:
            _write(Path(fresh) / "hub", found, fused, scores, weights)
            (Path(fresh) / "hub").rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    return scores


def score_table(scores: Sequence[Score]) -> str:
    """Return all but the members as a table in Markdown."""
    names = {"fused": "**{}**", "plain": "plain {} of the members"}
    right = ["rows", "WIS", "relative", "relative, log", "fused / this", "dates won", "50 %", "95 %"]
    rows = []
    for s in scores:
        if s.kind != "member":
            parts = (s.relative, s.log_relative, s.fused)
            cells = [f"{s.rows:,}", f"{s.wis:.4g}", *("–" if v is None else f"{v:.3f}" for v in parts)]
            cells += ["–" if s.kind == "fused" else f"{s.won} of {s.dates}"]
            cells += ["–" if v is None else f"{100 * v:.1f}" for v in (s.half, s.most)]
            rows.append([names.get(s.kind, "{}").format(in_markdown(s.name)), *cells])
    return "\n".join(markdown_table(["forecast"], right, rows))


def _files(hub: Path, season: str | None, without: Sequence[str]) -> list[tuple[str, str, Path]]:
    """Return model, date and path of each file of forecasts up to the end of the season."""
    folder = hub / "model-output"
    if not folder.is_dir():
        raise UserError(f"{hub} is no forecast hub: it has no folder model-output", what=hub)
    first, last = "", "9999"
    if season is not None:
        years = re.fullmatch(r"(\d{4})-(\d{4})", season)
        if years is None or int(years[2]) != int(years[1]) + 1:
            raise UserError(f"--season must be two years such as 2023-2024, got '{season}'")
        first, last = f"{years[1]}-08-01", f"{years[2]}-08-01"
    files = [p for p in sorted(folder.glob("*/*")) if p.suffix in (".csv", ".parquet") and _DAY.match(p.name)]
    files = [p for p in files if not any(fnmatchcase(p.parent.name, pattern) for pattern in without)]
    if not files:
        raise UserError(f"{folder} has no files MODEL/DATE-MODEL.csv or .parquet", what=hub)
    dated = [(p.parent.name, p.name[:10], p) for p in files if first <= p.name[:10] < last]
    if not dated:
        dates = sorted(p.name[:10] for p in files)
        raise UserError(f"{hub} has no forecasts in the season {season}: its dates go from {dates[0]} to {dates[-1]}")
    return dated


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each row of a CSV or parquet file, the header first."""
    if path.suffix == ".csv":
        yield from csv_rows(path)
    else:
        frame = read_parquet(path)
        yield 0, [str(c) for c in frame.columns]
        for line, row in enumerate(frame.itertuples(index=False), start=1):
            yield line, [str(cell).removesuffix(" 00:00:00") for cell in row]  # of dates that are stored as times


def _read(files: list[tuple[str, str, Path]], target: str | None, horizons: set[str], listener: Listener) -> Forecasts:
    """Read the quantiles of one target from all files."""
    columns: list[str] = []
    cells: dict[tuple[str, ...], dict[str, dict[float, float]]] = defaultdict(dict)
    targets: set[str] = set()
    for i, (model, date, path) in enumerate(files):
        listener.progress("reading", i, len(files))
        rows = _rows(path)
        header = next(rows)[1]
        columns = columns or [c for c in header if c not in _OUTPUT]
        needed = ["target", _one_of(columns, _DATES, path), _one_of(columns, _ENDS, path), *columns, *_OUTPUT]
        missing = [c for c in dict.fromkeys(needed) if c not in header]
        if missing:
            raise UserError(f"{path} has no column {some(missing)}; it has {some(header, 10)}", what=path)
        at, at_type, at_level, at_value = [header.index(c) for c in columns], *(header.index(c) for c in _OUTPUT)
        at_target, at_date = header.index("target"), header.index(needed[1])
        at_horizon = header.index("horizon") if "horizon" in header else None
        last: list[str] = []
        for line, row in rows:
            if row[at_type] != "quantile":
                continue
            targets.add(row[at_target])
            if target is not None and row[at_target] != target:
                continue
            given = [row[j] for j in at]
            if given != last:  # rows of one forecast mostly follow each other
                last, one = given, None
                if horizons and at_horizon is not None and row[at_horizon].removesuffix(".0") not in horizons:
                    continue
                if row[at_date][:10] != date:
                    raise UserError(
                        f"{path} line {line} is of {row[at_date]}, but the file's name says {date}", what=path
                    )
                pairs = zip(columns, given, strict=True)
                one = cells[tuple(c.removesuffix(".0") if name == "horizon" else c for name, c in pairs)]
                quantiles = one.setdefault(model, {})
            if one is None:
                continue
            try:
                level, value = round(float(row[at_level]), 6), float(row[at_value] or "nan")
            except ValueError:
                found = f"level '{row[at_level]}', value '{row[at_value]}'"
                raise UserError(
                    f"{path} line {line}: level and value must be numbers, found {found}", what=path
                ) from None
            if level in quantiles:
                raise UserError(
                    f"{path} line {line}: the level {level:g} occurs twice for {', '.join(given)}", what=path
                )
            quantiles[level] = value
    listener.progress("reading", len(files), len(files))
    if target is None and len(targets) > 1:
        raise UserError(
            f"the hub has quantiles of several targets: say with --target which of {some(sorted(targets), 10)}"
        )
    if not cells:
        of = f" of the target '{target}'; it has {some(sorted(targets), 10)}" if targets else ""
        raise UserError(f"the hub has no quantiles{of}{' at these horizons' if target in targets else ''}")
    return _arrays(columns, cells)


def _arrays(columns: list[str], cells: dict[tuple[str, ...], dict[str, dict[float, float]]]) -> Forecasts:
    """Put quantiles into one array; levels that most forecasts lack are left out, and a model without the others."""
    at = columns.index(_one_of(columns, _DATES, None))
    keys = sorted(cells, key=lambda key: (key[at][:10], key))
    often = Counter(level for models in cells.values() for quantiles in models.values() for level in quantiles)
    levels = sorted(level for level, n in often.items() if 2 * n > sum(map(len, cells.values())))
    names = sorted({name for models in cells.values() for name in models})
    place = {name: m for m, name in enumerate(names)}
    values = np.full((len(keys), len(names), len(levels)), np.nan)
    for i, key in enumerate(keys):
        for name, quantiles in cells[key].items():
            row = np.array([quantiles.get(level, np.nan) for level in levels])
            if np.isinf(row).any() or (np.diff(row) < -1e-9 * np.abs(row[1:])).any():
                said = ", ".join(f"{c} {v}" for c, v in zip(columns, key, strict=True))
                problem = "are infinite" if np.isinf(row).any() else "cross"
                raise UserError(
                    f"quantiles of {name} {problem} ({said})", what=name, hint=f"leave it out with --without {name}"
                )
            values[i, place[name]] = np.nan if np.isnan(row).any() else row
    return Forecasts(columns, keys, np.array([key[at][:10] for key in keys]), names, np.array(levels), values)


def _truth_files(hub: Path, pattern: str | None) -> list[Path]:
    """Return the files of the truth, the last known one at the end."""
    folder = hub / "target-data"
    if pattern is None:
        found = [folder / "time-series.csv"]
        if not found[0].is_file():
            found = sorted(folder.glob("*.csv"))
            if len(found) != 1:
                listed = f"it has {some([p.name for p in found], 10)}" if found else "there is no CSV file in it"
                raise UserError(
                    f"say with --truth which file under {hub} has the truth: no target-data/time-series.csv; {listed}"
                )
        return found
    found = sorted(hub.glob(pattern), key=lambda p: (_DAY.search(p.name) or [""])[0])
    if not found:
        raise UserError(f"--truth {pattern}: no such file under {hub}")
    undated = [p.name for p in found if not _DAY.search(p.name)]
    if len(found) > 1 and undated:
        raise UserError(f"--truth {pattern}: of several files each needs a date in its name, found {some(undated)}")
    return found


class _Truth:
    """What was known when: versions by file, or by the column ``as_of``."""

    def __init__(self, files: list[Path], columns: list[str], target: str) -> None:
        self.versions: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for path in files:
            rows = _rows(path)
            header = next(rows)[1]
            at_end = header.index(_one_of(header, _ENDS, path))
            at_value = header.index(_one_of(header, _VALUES, path))
            self.shared = [c for c in header if c in columns and c not in (*_DATES, *_ENDS, *_VALUES, "target")]
            at = [header.index(c) for c in self.shared]
            at_target = header.index("target") if "target" in header else None
            at_known = header.index("as_of") if "as_of" in header else None
            named = _DAY.search(path.name) if len(files) > 1 else None
            for line, row in rows:
                if at_target is not None and row[at_target] != target:
                    continue
                try:
                    value = float(row[at_value] or "nan")
                except ValueError:
                    value = float("nan")
                    if row[at_value] != "NA":
                        raise UserError(f"{path} line {line}: '{row[at_value]}' is no number", what=path) from None
                known = row[at_known][:10] if at_known is not None else named[0] if named else ""
                self.versions[known][(row[at_end][:10], *(row[i] for i in at))] = value
        self.days = sorted(self.versions)
        self.columns = columns
        self.end = columns.index(_one_of(columns, _ENDS, None))

    def at(self, day: str | None, keys: Sequence[tuple[str, ...]]) -> Array:
        """Return the truth of each row as it was known before a day, or at last; NaN where it was not."""
        days = self.days if day is None else [d for d in self.days if d < day]
        if not days:
            return np.full(len(keys), np.nan)
        known, at = self.versions[days[-1]], [self.columns.index(c) for c in self.shared]
        values = [known.get((key[self.end][:10], *(key[i] for i in at)), np.nan) for key in keys]
        ends = np.array([key[self.end][:10] for key in keys])
        return np.where((ends < day) if day is not None else True, values, np.nan)


def _walk(
    found: Forecasts, member: Array, versions: list[Path], calibrate: bool, listener: Listener
) -> tuple[Array, Array, dict[str, Array], list[tuple[str, str, float]]]:
    """Fuse date by date; return y ``(n,)``, the fused and the plain quantiles ``(n, Q)``, and the weights."""
    target = found.keys[0][found.columns.index("target")]
    truth = _Truth(versions, found.columns, target)
    y = truth.at(None, found.keys)
    if np.isnan(y).all():
        end = found.columns[truth.end]
        raise UserError(
            f"no forecast has a truth: no row of {versions[-1]} has the {some([end, *truth.shared])} of a forecast",
            what=versions[-1],
        )
    z = found.values[:, member]
    names = [name for name, m in zip(found.models, member, strict=True) if m]
    present = ~np.isnan(z[:, :, 0])
    fused = np.full((len(z), z.shape[2]), np.nan)
    some_member = present.any(1)
    plain = {name: fused.copy() for name in ("mean", "median")}
    plain["mean"][some_member] = np.nanmean(z[some_member], 1)
    plain["median"][some_member] = np.nanmedian(z[some_member], 1)
    weights: list[tuple[str, str, float]] = []
    dates = np.unique(found.date)
    for i, date in enumerate(dates):
        listener.progress("fusing", i, len(dates))
        now = some_member & (found.date == date)
        if not now.any():
            continue
        here = present[now].any(0)
        known = truth.at(str(date), found.keys)
        past = np.flatnonzero((found.date < date) & ~np.isnan(known) & present[:, here].any(1))
        if len(past) == 0:  # nothing to learn from yet
            fused[now] = plain["mean"][now]
            continue
        fuser = QuantileFuser(found.levels, calibrate=calibrate)
        fuser.fit(z[past][:, here], known[past], dates=found.date[past])
        fused[now] = fuser.predict(z[now][:, here])
        shares = dict(zip(np.array(names)[here].tolist(), fuser.weights_.tolist(), strict=True))
        weights += [(str(date), name, w) for name, w in {**shares, **fuser.pooled_weights_}.items()]
    if not (z < 0).any():
        fused = np.maximum(fused, 0.0)  # margins of calibration may lead below
    listener.progress("fusing", len(dates), len(dates))
    return y, fused, plain, weights


def _scores(
    found: Forecasts, own: Array, baseline: str | None, y: Array, fused: Array, plain: dict[str, Array]
) -> list[Score]:
    """Score what was fused, the plain averages and every model, each on the rows that it has."""
    by_name = {name: found.values[:, m] for m, name in enumerate(found.models)}
    base = by_name.get(baseline or "")
    kinds = {name: ("hub" if o else "member") for name, o in zip(found.models, own, strict=True)}
    every = [(NAME, "fused", fused), *((name, "plain", q) for name, q in plain.items())]
    every += [(name, kind, by_name[name]) for name, kind in sorted(kinds.items(), key=lambda pair: (pair[1], pair[0]))]
    known = ~np.isnan(y) & ~np.isnan(fused[:, 0])
    if base is not None:
        known &= ~np.isnan(base[:, 0])
        if not known.any():
            raise UserError(f"the baseline {baseline} has no forecast with a truth: choose another with --baseline")
    logs = not (y[known] < 0).any()

    def wis(q: Array, rows: Array, *, log: bool = False) -> Array:
        if log:
            return weighted_interval_score(np.log1p(y[rows]), np.log1p(np.maximum(q[rows], 0)), found.levels)
        return weighted_interval_score(y[rows], q[rows], found.levels)

    scores = []
    for name, kind, q in every:
        rows = known & ~np.isnan(q[:, 0])
        if not rows.any():
            continue
        mine, ours = wis(q, rows), wis(fused, rows)
        relative = log_relative = None
        if base is not None:
            relative = float(mine.mean() / wis(base, rows).mean())
            if logs:
                log_relative = float(wis(q, rows, log=True).mean() / wis(base, rows, log=True).mean())
        _, when = np.unique(found.date[rows], return_inverse=True)
        won = int((np.bincount(when, ours - mine) < 0).sum())
        inside = [_coverage(y[rows], q[rows], found.levels, part) for part in (0.5, 0.95)]
        against = float(ours.mean() / mine.mean()) if mine.any() else 1.0
        of = int(when.max()) + 1
        scores.append(
            Score(name, kind, int(rows.sum()), float(mine.mean()), relative, log_relative, against, won, of, *inside)
        )
    return scores


def _coverage(y: Array, q: Array, levels: Array, part: float) -> float | None:
    ends = [np.flatnonzero(np.abs(levels - tau) < 1e-6) for tau in ((1 - part) / 2, (1 + part) / 2)]
    return coverage(y, q[:, ends[0][0]], q[:, ends[1][0]]) if all(map(len, ends)) else None


def _write(
    folder: Path, found: Forecasts, fused: Array, scores: list[Score], weights: list[tuple[str, str, float]]
) -> None:
    """Write the fused quantiles ``(n, Q)`` in the hub's format, the scores and the weights."""
    models = folder / "model-output" / NAME
    models.mkdir(parents=True)
    for date in np.unique(found.date[~np.isnan(fused[:, 0])]):
        with (models / f"{date}-{NAME}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*found.columns, *_OUTPUT])
            for i in np.flatnonzero((found.date == date) & ~np.isnan(fused[:, 0])):
                for level, value in zip(found.levels.tolist(), fused[i].tolist(), strict=True):
                    writer.writerow([*found.keys[i], "quantile", f"{level:g}", f"{value:.8g}"])
    columns = list(Score.__dataclass_fields__)
    rows = [[exact(v) if v is None or isinstance(v, float) else v for v in vars(s).values()] for s in scores]
    (folder / "scores.csv").write_text(csv_table(columns, rows), encoding="utf-8")
    table = csv_table(["date", "member", "weight"], [[date, name, exact(w)] for date, name, w in weights])
    (folder / "weights.csv").write_text(table, encoding="utf-8")


def _one_of(columns: Sequence[str], names: Sequence[str], path: Path | None) -> str:
    """Return the first name that is a column."""
    for name in names:
        if name in columns:
            return name
    raise UserError(f"{path} has no column {' or '.join(names)}; it has {some(list(columns), 10)}", what=path)
