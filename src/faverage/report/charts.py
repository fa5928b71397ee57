"""Line charts as SVG inside a page: no scripts, no dependency, colours that follow the page's light or dark."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from faverage.report.page import text

__all__ = ["COLOURS", "STYLE", "Series", "line_chart", "ticks"]

# one pair a series: on a light page, on a dark page
COLOURS = (
    ("#1f63b5", "#6aa7f0"),
    ("#c2410c", "#fb923c"),
    ("#15803d", "#4ade80"),
    ("#a21caf", "#e879f9"),
    ("#0e7490", "#22d3ee"),
    ("#b91c1c", "#f87171"),
    ("#6d28d9", "#a78bfa"),
    ("#8a6100", "#facc15"),
    ("#be185d", "#f9a8d4"),
    ("#4d7c0f", "#bef264"),
    ("#475569", "#cbd5e1"),
    ("#7c4a21", "#d6a77a"),
    ("#0f766e", "#5eead4"),
    ("#3730a3", "#a5b4fc"),
)

STYLE = (
    ":root { "
    + " ".join(f"--s{i}: {light};" for i, (light, _) in enumerate(COLOURS))
    + " }\n@media (prefers-color-scheme: dark) { :root { "
    + " ".join(f"--s{i}: {dark};" for i, (_, dark) in enumerate(COLOURS))
    + """ } }
.chart { margin: .8rem 0 0; padding: .8rem .8rem .7rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; }
.chart figcaption { font-weight: 600; font-size: .95rem; margin: 0 0 .4rem; }
.chart > svg { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { fill: var(--soft); font: 10.5px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.chart .grid { stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.chart .line { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round;
  vector-effect: non-scaling-stroke; }
.chart .band { fill: currentColor; opacity: .14; }
.chart .touch { fill: none; stroke: transparent; stroke-width: 12; }
.chart .mark { fill: currentColor; stroke: var(--card); stroke-width: 1; }
.chart .strong .line { stroke-width: 3.4; }
.chart > svg:has(.series:hover) .series:not(:hover) { opacity: .2; }
.chart ul { display: flex; flex-wrap: wrap; gap: .15rem 1rem; margin: .5rem 0 0; padding: 0; list-style: none;
  font-size: .86rem; }
.chart li { display: flex; align-items: center; gap: .4rem; overflow-wrap: anywhere; }
.chart li svg { flex: none; width: 34px; height: 14px; }
.chart li.strong { font-weight: 600; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 .8rem; }
.pair .chart:not(:only-child) text { font-size: 18px; }
@media (max-width: 34rem) { .chart { padding: .6rem; }
  .chart text, .pair .chart:not(:only-child) text { font-size: 21px; } }
"""
)

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 30, 58
_MARKS = (
    "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z",
    "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "M0 -5.2L5.2 0L0 5.2L-5.2 0Z",
    "M0 -5L4.8 3.8H-4.8Z",
    "M0 5L4.8 -3.8H-4.8Z",
    "M-1.6 -5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
    "M0 -5.2L5 -1.4L3 4.6H-3L-5 -1.4Z",
)
_DASHES = ("", "7 4", "2 3")
_MOST_POINTS, _MOST_MARKS = 300, 12


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: in the legend.
        values: one a step; None (or a number that is not finite) leaves a gap.
        look: number of its colour, mark and dash; the same number looks the same in every chart.
        band: half the height of a band around each value, such as a standard deviation.
    """

    name: str
    values: Sequence[float | None]
    look: int = 0
    band: Sequence[float | None] | None = None


def ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Return round numbers, at most ``most`` of them, that lie in [low, high] at equal distances.

    >>> ticks(0, 8, 9), ticks(41.2, 76.9), ticks(0.5, 0.5)
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [45.0, 50.0, 55.0, 60.0, 65.0, 70.0, 75.0], [0.5])
    """
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (size, 2 * size, 5 * size, 10 * size, 20 * size):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [round(i * step, 12) for i in range(first, last + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    first: int = 0,
    digits: int = 2,
    highlight: Collection[str] = ("afa",),
) -> str:
    """Return a figure with one line a series over whole numbers, and a legend.

    Args:
        series: at most 14 have colours of their own.
        title: of the figure; also what a screen reader says.
        x_label: what the steps are.
        y_label: what the values are.
        first: number of the first step.
        digits: decimals of the values shown when pointed at.
        highlight: names of the series drawn thicker and above the others.
    """
    drawn = [s for s in series if _runs(s)]
    if not drawn:
        return ""
    longest = max(len(s.values) for s in drawn)
    scale = _Scale(first, first + longest - 1, *_range(drawn))
    label = f"{title}: {y_label} against {x_label} for {', '.join(s.name for s in drawn)}"
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(label)}">',
        _axes(scale, x_label, y_label),
        *(
            _line(s, scale, x_label, digits, s.name in highlight)
            for s in sorted(drawn, key=lambda s: s.name in highlight)
        ),
        "</svg>",
    ]
    legend = "".join(_key(s, s.name in highlight) for s in drawn)
    return f'<figure class="chart"><figcaption>{text(title)}</figcaption>{"".join(parts)}<ul>{legend}</ul></figure>'


@dataclass(frozen=True)
class _Scale:
    """From numbers to places in the drawing."""

    left: int
    right: int
    low: float
    high: float

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + (self.high - value) / (self.high - self.low) * (_HEIGHT - _TOP - _BOTTOM)


def _runs(series: Series) -> list[list[tuple[int, float, float]]]:
    """Return the stretches without a gap: step, value and half the height of the band of each point."""
    band = series.band or [None] * len(series.values)
    runs: list[list[tuple[int, float, float]]] = [[]]
    for i in _thin(len(series.values), _MOST_POINTS):
        value, half = series.values[i], band[i]
        if value is None or not math.isfinite(value):
            runs.append([])
        else:
            runs[-1].append((i, value, half if half is not None and math.isfinite(half) else 0.0))
    return [run for run in runs if run]


def _range(series: Sequence[Series]) -> tuple[float, float]:
    ends = [value + half for s in series for run in _runs(s) for _, value, b in run for half in (-b, b)]
    low, high = min(ends), max(ends)
    pad = 0.06 * (high - low) or max(abs(high), 1.0) * 0.05
    return (0.0 if low >= 0 > low - pad else low - pad), high + pad


def _axes(scale: _Scale, x_label: str, y_label: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value in ticks(scale.low, scale.high):
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y:.1f}" dy=".35em" text-anchor="end">{value:g}</text>')
    for value in ticks(scale.left, scale.right, 12):
        if value == int(value):
            x = scale.x(value)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 9}" dy=".75em" text-anchor="middle">{int(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{text(x_label)}</text>')
    parts.append(f'<text x="0" y="16">{text(y_label)}</text>')
    return "".join(parts)


def _line(series: Series, scale: _Scale, x_label: str, digits: int, strong: bool) -> str:
    runs = _runs(series)
    line = "".join(_path([(i, v) for i, v, _ in run], scale) for run in runs)
    parts = [f'<g class="series{" strong" if strong else ""}" style="color: var(--s{series.look % len(COLOURS)})">']
    if series.band:
        outlines = ([(i, v + b) for i, v, b in run] + [(i, v - b) for i, v, b in reversed(run)] for run in runs)
        area = "".join(_path(outline, scale) + "Z" for outline in outlines)
        parts.append(f'<path class="band" d="{area}"/>')
    parts.append(f'<path class="line"{_dash(series)} d="{line}"/>')
    parts.append(f'<path class="touch" d="{line}"><title>{text(series.name)}</title></path>')
    marked = set(_thin(len(series.values), _MOST_MARKS, shift=series.look))
    for i, value, half in (point for run in runs for point in run):
        if i in marked or len(series.values) <= 2 * _MOST_MARKS:
            spread = f" ± {half:.{digits}f}" if series.band else ""
            tip = f"{series.name}, {x_label} {scale.left + i}: {value:.{digits}f}{spread}"
            where = f"translate({scale.x(scale.left + i):.1f} {scale.y(value):.1f})" + (" scale(1.3)" if strong else "")
            shape = _MARKS[series.look % len(_MARKS)]
            parts.append(f'<path class="mark" transform="{where}" d="{shape}"><title>{text(tip)}</title></path>')
    return "".join(parts) + "</g>"


def _thin(length: int, most: int, shift: int = 0) -> list[int]:
    """Return about ``most`` of the numbers 0 … length-1, evenly; without a shift, with the first and the last."""
    if length <= most:
        return list(range(length))
    if not shift:
        return sorted({round(i * (length - 1) / (most - 1)) for i in range(most)})
    stride = math.ceil(length / most)
    return list(range(shift % stride, length, stride))


def _path(points: Sequence[tuple[int, float]], scale: _Scale) -> str:
    return "M" + "L".join(f"{scale.x(scale.left + i):.1f} {scale.y(v):.1f}" for i, v in points)


def _dash(series: Series) -> str:
    dash = _DASHES[series.look // len(_MARKS) % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _key(series: Series, strong: bool) -> str:
    kind = ' class="strong"' if strong else ""
    return (
        f'<li{kind}><svg viewBox="0 0 34 14" aria-hidden="true"{kind} '
        f'style="color: var(--s{series.look % len(COLOURS)})"><path class="line"{_dash(series)} d="M0 7L34 7"/>'
        f'<path class="mark" transform="translate(17 7)" d="{_MARKS[series.look % len(_MARKS)]}"/></svg>'
        f"{text(series.name)}</li>"
    )
