"""Figures of a run for a paper, as SVG and PDF: F1 by session, losses of fusers, base against new classes.

The same results give the same bytes. They need matplotlib (extra ``plot``).
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from faverage.errors import install_line
from faverage.report.charts import Point, Series, apart, harmonic_lines, padded, placed, scatter_range, where_most_are
from faverage.rivals import RIVALS
from faverage.storage import replacing

__all__ = ["FIGURES", "STYLE", "balance_curve", "base_and_new", "draw_figures", "write_figures"]

Results = dict[str, Any]

_WIDE = 3.4  # inches, a column
_SIZE = 8  # points, of text
_GAP = 9.5  # points from line to line of text
STYLE = {
    "font.size": _SIZE,
    **dict.fromkeys(
        ("axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), _SIZE
    ),
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    "lines.markersize": 3.5,
    "text.parse_math": False,  # names are text
    "pdf.fonttype": 42,
    "svg.fonttype": "path",  # looks the same wherever it is shown
    "svg.hashsalt": "faverage",
}
_OWN = "#0072b2"  # afa; with the others, colours that people with any colour vision tell apart
_COLOURS = "#cc6677 #117733 #d55e00 #44aa99 #882255 #999933 #000000 #aa4499 #777777 #332288".split()
_MARKS = ("s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "*")
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def write_figures(results: Results, folder: Path) -> list[Path]:
    """Write the figures of a run, each whole or not at all, and return where they are; none without matplotlib.

    Args:
        results: plain JSON data of a run, as in its ``results.json``.
        folder: for the files; it is made where there is something to write.
    """
    drawn = draw_figures(results)
    if drawn:
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in drawn.items():
        with replacing(folder / name) as partial:
            partial.write_bytes(data)
    return [folder / name for name in drawn]


def draw_figures(results: Results) -> dict[str, bytes]:
    """Return the figures for which there is data, by the names of their files; a warning, and none, without matplotlib.

    Args:
        results: plain JSON data of a run, as in its ``results.json``.
    """
    try:
        from matplotlib import style
    except ImportError:
        warnings.warn(f"no figures as SVG and PDF: they need matplotlib: {install_line('plot')}", stacklevel=2)
        return {}
    drawn = {}
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # names of methods may be in any script
        for name, draw in _DRAWN.items():
            figure = draw(results)
            for kind, dates in (("svg", "Date"), ("pdf", "CreationDate")) if figure is not None else ():
                file = io.BytesIO()
                figure.savefig(file, format=kind, metadata={dates: None, "Creator": "faverage"})
                drawn[f"{name}.{kind}"] = file.getvalue()
    return drawn


# What is drawn --------------------------------------------------------------------------------------------------------


def base_and_new(session: Results) -> tuple[float, float] | None:
    """Return the accuracies (%) on base and on new classes after a session; None where there are none."""
    found = [session.get(key) for key in ("base", "new")]
    base, new = (100 * v if v is not None and math.isfinite(v) else None for v in found)
    return None if base is None or new is None else (base, new)


def balance_curve(methods: Results) -> list[tuple[float, float, str]]:
    """Return base and new accuracy (%) of ``afa`` by balance, with the balance in words; equal points are one.

    >>> rows = [{"balance": b, "base": 0.5, "new": n} for b, n in ((0.5, 0.25), (1.0, 0.25), (2.0, 0.5))]
    >>> balance_curve({"afa": {"trade": rows}})
    [(50.0, 25.0, 'balance 0.5–1'), (50.0, 50.0, '2')]
    """
    spans: list[tuple[tuple[float, float], list[float]]] = []
    for row in (methods.get("afa") or {}).get("trade") or []:
        place = base_and_new(row)
        if place is not None and spans and spans[-1][0] == place:
            spans[-1][1].append(row["balance"])
        elif place is not None:
            spans.append((place, [row["balance"]]))
    words = [f"{b[0]:g}" if len(b) == 1 else f"{b[0]:g}–{b[-1]:g}" for _, b in spans]
    return [(*place, w if k else f"balance {w}") for k, ((place, _), w) in enumerate(zip(spans, words, strict=True))]


def _state_of_the_art(results: Results) -> Any:
    rivals = [name for name in results["methods"] if name in RIVALS]
    ours = [name for name in ("afa-paper", "afa") if name in results["methods"]]
    return _by_session(results, [*rivals, *ours], results.get("paper") or {}) if rivals else None


def _fusers(results: Results) -> Any:
    return _by_session(results, [name for name in results["methods"] if name not in RIVALS], {})


def _by_session(results: Results, names: Sequence[str], published: dict[str, Sequence[float | None]]) -> Any:
    """Return F1 against session, bands over repeats, and dotted what others published; names stand at the ends."""
    from matplotlib.figure import Figure

    series = []
    for name in names:
        method = results["methods"][name]
        values = [_number(session.get("f1"), 100) for session in method["sessions"]]
        band = [_number(session.get("f1"), 100) for session in method.get("spread") or []]
        if len(values) > 1 and any(map(math.isfinite, values)):
            series.append(Series(name, values, list(results["methods"]).index(name), band or None))
    if not series:
        return None
    low, high = padded(*where_most_are(series, ["afa"]))
    ends = [next((v for v in reversed(s.values) if v is not None and math.isfinite(v)), low) for s in series]
    words = [("↓ " if end < low else "") + _short(s.name) for s, end in zip(series, ends, strict=True)]
    left, right, bottom, top = 36, 16 + max(map(_width, words)), 27, 6
    height = max(2.5 * 72, _GAP * len(series) + bottom + top)
    figure = Figure(figsize=(_WIDE, height / 72))
    wide, tall = _WIDE * 72 - left - right, height - bottom - top
    axes = figure.add_axes((left / _WIDE / 72, bottom / height, wide / _WIDE / 72, tall / height))
    longest = max(len(s.values) for s in series)
    for one in series:
        look, f1 = _look(one.name, one.look), np.array(one.values, float)
        axes.plot(f1, **look, zorder=4 if one.name == "afa" else 3)
        if one.band:
            half = np.array(one.band, float)
            steps = range(len(f1))
            axes.fill_between(steps, f1 - half, f1 + half, color=look["color"], alpha=0.15, linewidth=0)
        if one.name in published:
            told = np.array(published[one.name][:longest], float)
            axes.plot(told, color=look["color"], linewidth=0.7, linestyle=":")
    axes.set(xlim=(-0.02 * longest, 1.02 * longest - 1), ylim=(low, high), xlabel="session", ylabel="F1 (%)")
    axes.set_xticks(range(0, longest, 1 + longest // 13))
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    if any(s.name in published for s in series):
        figure.text(1, 3 / height, "dotted: published", ha="right", va="bottom", color="#666666")
    spots = [(min(max(v, low), high) - low) / (high - low) * tall for v in ends]
    for one, word, end, place in zip(series, words, ends, apart(spots, _GAP, tall), strict=True):
        colour = _look(one.name, one.look)["color"]
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
        axes.annotate(
            word,
            xy=(len(one.values) - 1, end),
            xytext=(1 + 12 / wide, place / tall),
            textcoords="axes fraction",
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops=None if end < low else leader,
        )
    return figure


def _losses(results: Results) -> Any:
    """Return the losses of the fusers in the last session by epoch, on rehearsed and on held-out examples."""
    from matplotlib.figure import Figure

    kinds = {"train": "loss, rehearsed examples", "validation": "loss, held-out examples"}
    shown: dict[str, dict[str, list[float]]] = {}
    for key in kinds:
        for name, method in results["methods"].items():
            values = (method.get("history") or {}).get(key) or []
            if len(values) > 1:
                shown.setdefault(key, {})[name] = [_number(v) for v in values]
    if not shown:
        return None
    lines: dict[str, Any] = {}
    wide = _WIDE if len(shown) == 1 else 7.0
    figure = Figure(figsize=(wide, 2.2), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (key, one) in zip(panels, shown.items(), strict=True):
        for name, values in one.items():
            look = _look(name, list(results["methods"]).index(name))
            every = max(len(values) // 8, 1)
            start = list(results["methods"]).index(name) % every
            (lines[name],) = axes.plot(range(1, len(values) + 1), values, **look, markevery=(start, every))
        axes.set(xlabel="epoch", ylabel=kinds[key])
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    figure.legend(lines.values(), map(_short, lines), loc="outside right center", frameon=False, handlelength=2.4)
    return figure


def _trade(results: Results) -> Any:
    """Return new against base accuracy after the last session: every method, and ``afa`` by its balance."""
    from matplotlib.figure import Figure

    methods = results["methods"]
    found = {name: base_and_new(m["sessions"][-1]) for name, m in methods.items() if m["sessions"]}
    points = {name: place for name, place in found.items() if place is not None}
    curve = balance_curve(methods)
    if len(points) < 2 and len(curve) < 2:
        return None
    left, right, bottom, top, height = 36, 32, 27, 6, 72 * max(3.1, 0.23 * len(points))
    wide, high = _WIDE * 72 - left - right, height - bottom - top
    figure = Figure(figsize=(_WIDE, height / 72))
    axes = figure.add_axes((left / _WIDE / 72, bottom / height, wide / _WIDE / 72, high / height))
    across, up = scatter_range([Point(name, *place) for name, place in points.items()], curve)
    low = {name: place[1] for name, place in points.items() if place[1] < up[0]}
    spots = [*((x, y) for x, y, _ in curve), *((x, max(y, up[0])) for x, y in points.values())]
    axes.set(xlim=across, ylim=up, xlabel="base classes, accuracy (%)", ylabel="new classes, accuracy (%)")
    for level, line in harmonic_lines(across, up):
        axes.plot(*zip(*line, strict=True), color="#cccccc", linewidth=0.5, zorder=1)
        if line[-1][0] == across[1]:  # else it ends at the axis below, among other numbers
            small: dict[str, Any] = {"va": "center", "color": "#888888", "fontsize": _SIZE - 1}
            axes.annotate(f"{level:g}", line[-1], (2, 0), textcoords="offset points", **small)
    figure.text(1, 0.5, "HM of base and new (%)", rotation=90, ha="right", va="center", color="#888888")
    if curve:
        axes.plot([x for x, _, _ in curve], [y for _, y, _ in curve], color=_OWN, linewidth=1.2, marker=".", zorder=2)
    names = [*(word for _, _, word in curve), *points]
    words = [f"↓ {_short(name)}: {low[name]:.1f}" if name in low else _short(name) for name in names]
    places = [
        ((x - across[0]) / (across[1] - across[0]) * wide, (y - up[0]) / (up[1] - up[0]) * high) for x, y in spots
    ]
    sizes = [(_width(word), _SIZE + 1.0) for word in words]
    for i, (u, v) in enumerate(placed(places, sizes, (2, 2, wide, high), places[: len(curve)])):
        name, (x, y), method = names[i], places[i], i >= len(curve)
        look = _look(name, list(methods).index(name)) if method else {"color": _OWN}
        if method:
            axes.plot(*spots[i], color=look["color"], marker=look["marker"], zorder=4, clip_on=False)
        far = abs(u - x) > sizes[i][0] / 2 + 10 or abs(v - y) > 14
        axes.annotate(
            words[i],
            xy=(x / wide, y / high),
            xytext=(u / wide, v / high),
            xycoords="axes fraction",
            textcoords="axes fraction",
            ha="center",
            va="center",
            color=look["color"],
            arrowprops={"arrowstyle": "-", "color": look["color"], "linewidth": 0.4, "shrinkB": 2} if far else None,
        )
    return figure


def _confusion(results: Results) -> Any:
    """Return where the test examples of base and of new classes go, a bar a method."""
    from matplotlib.figure import Figure

    found = {name: m["confusion"] for name, m in results["methods"].items() if m.get("confusion")}
    if not found:
        return None
    keys = {"base": ("right", "other base", "new"), "new": ("right", "other new", "base")}
    kinds = ("right class", "wrong, of the same kind", "wrong, of the other kind")
    figure = Figure(figsize=(_WIDE, (_GAP * 1.3 * len(found) + 80) / 72), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (which, parts) in zip(panels, keys.items(), strict=True):
        start = np.zeros(len(found))
        for kind, key, colour in zip(kinds, parts, (_OWN, "#ddcc77", "#cc6677"), strict=True):
            wide = np.array([100 * ((one.get(which) or {}).get(key) or 0.0) for one in found.values()])
            axes.barh([_short(name) for name in found], wide, left=start, color=colour, label=kind, height=0.75)
            start += wide
        axes.set(xlim=(0, 100), xlabel=f"{which} classes (%)")
        axes.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", frameon=False, handlelength=1)
    return figure


def _base_training(results: Results) -> Any:
    """Return loss and accuracy of the base session by epoch, a line a network."""
    from matplotlib.figure import Figure

    told = [one.get("history") or {} for one in results.get("networks") or [results.get("base")] if one]
    kinds = {"loss": ("training loss", 1), "accuracy": ("training accuracy (%)", 100)}
    shown = {key: [[_number(v, kinds[key][1]) for v in one.get(key) or []] for one in told] for key in kinds}
    if not any(len(values) > 1 for values in shown["loss"]):
        return None
    figure = Figure(figsize=(_WIDE, 1.7), layout="constrained")
    for axes, (key, lines) in zip(figure.subplots(1, 2), shown.items(), strict=True):
        for k, values in enumerate(lines):
            look = _look("afa" if k == 0 else "", k) | {"marker": "", "linewidth": 1.2}
            axes.plot(range(1, len(values) + 1), values, **look, label=f"network {k + 1}")
        axes.set(xlabel="epoch", ylabel=kinds[key][0])
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    if len(told) > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def _weights(results: Results) -> Any:
    """Return the share of each head for each class, a map a method that explains itself, with one colour scale."""
    from matplotlib.figure import Figure

    said = {name: m["explanation"] for name, m in results["methods"].items() if m.get("explanation")}
    if not said:
        return None
    rows = [len(one["heads"]) for one in said.values()]
    wide = _WIDE if max(len(one["classes"]) for one in said.values()) <= 30 else 7.0
    high = sum(0.16 * n + 0.55 for n in rows) + 0.2
    figure = Figure(figsize=(wide, high), layout="constrained")
    panels = figure.subplots(len(said), 1, squeeze=False, height_ratios=rows)[:, 0]
    sizes = [session.get("classes") or 0 for session in results["protocol"]["sessions"]]
    for axes, (name, one) in zip(panels, said.items(), strict=True):
        shares = np.array(one["shares"], float).T
        drawn = axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, linewidth=0)
        axes.set(title=_short(name), yticks=np.arange(len(one["heads"])) + 0.5, yticklabels=map(_short, one["heads"]))
        axes.invert_yaxis()
        few = len(one["classes"]) <= 15 and all(len(str(c)) <= 3 for c in one["classes"])
        if few:
            axes.set_xticks(np.arange(len(one["classes"])) + 0.5, [str(c) for c in one["classes"]])
        axes.tick_params(length=0 if few else 2.5)
        if sum(sizes) == len(one["classes"]):  # a line before the classes of each session
            for place in np.cumsum(sizes)[:-1]:
                axes.axvline(place, color="#444444", linewidth=0.6)
    axes.set_xlabel("class")
    figure.colorbar(drawn, ax=list(panels), label="share of the output", pad=0.02).outline.set_linewidth(0.6)
    return figure


_DRAWN: dict[str, Callable[[Results], Any]] = {
    "state-of-the-art": _state_of_the_art,
    "fusers": _fusers,
    "losses": _losses,
    "trade": _trade,
    "confusion": _confusion,
    "base-training": _base_training,
    "weights": _weights,
}
FIGURES = tuple(f"{name}.{kind}" for name in _DRAWN for kind in ("svg", "pdf"))
"""The names of all files that a run may have in its folder ``figures``."""


# How it is drawn ------------------------------------------------------------------------------------------------------


def _look(name: str, number: int) -> dict[str, Any]:
    """Return colour, mark and line of a method, the same in every figure of a run."""
    if name == "afa":
        return {"color": _OWN, "marker": "o", "linestyle": "-", "linewidth": 1.8}
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKS[number % len(_MARKS)],
        "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
        "linewidth": 0.9,
    }


def _short(name: str) -> str:
    """Return the name of a method as it fits beside a figure."""
    plain = "".join(c if c.isprintable() else "\ufffd" for c in name)
    return plain if len(plain) <= 24 else f"{plain[:23]}…"


def _number(value: float | None, scale: float = 1.0) -> float:
    return math.nan if value is None else scale * value


def _width(words: str) -> float:
    """Return how wide words are, in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), words, size=_SIZE).get_extents().width) + 2 if words.strip() else 2.0
