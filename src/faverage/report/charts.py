"""Charts as SVG inside a page: no scripts, no dependency, colours that follow the page's light or dark."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from faverage.report.page import text

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
    ("#0b0f19", "#ffffff"),
)  # as many as have no divisor in common with the marks: colour and mark repeat together after 105 series

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
.chart .strong text { font-weight: 700; }
.chart .label { fill: currentColor; }
.chart .leader { stroke: currentColor; opacity: .5; }
.chart > svg:has(.series:hover) .series:not(:hover) { opacity: .2; }
.chart ul { display: flex; flex-wrap: wrap; gap: .15rem 1rem; margin: .5rem 0 0; padding: 0; list-style: none;
  font-size: .86rem; }
.chart li { display: flex; align-items: center; gap: .4rem; overflow-wrap: anywhere; }
.chart li svg { flex: none; width: 34px; height: 14px; }
.chart li.strong { font-weight: 600; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 .8rem; }
.pair .chart:not(:only-child) text { font-size: 18px; }
.chart.named ul { display: none; }
@media (max-width: 34rem) { .chart { padding: .6rem; } .chart .label, .chart .leader { display: none; }
  .chart.named ul { display: flex; } .chart text, .pair .chart:not(:only-child) text { font-size: 21px; } }
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
_GAP, _LETTER = 13, 6.2  # from line to line of text, and of a letter
_PARTS = tuple(k / 8 for k in range(1, 8))


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str  # in the legend
    values: Sequence[float | None]  # one a step; None (or a number that is not finite) leaves a gap
    look: int = 0  # number of its colour, mark and dash; the same number looks the same in every chart
    band: Sequence[float | None] | None = None  # half the height of a band around each, such as a standard deviation


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


def where_most_are(series: Sequence[Series], keep: Collection[str] = ()) -> tuple[float, float]:
    """Return the range of values to draw, bands included, where a few lines far below all others would flatten them.

    At most a quarter of the lines is left out below, and only where the others then have more than twice the room.

    Args:
        series: each with a value.
        keep: names of series that are never left out.

    >>> where_most_are([Series(f"m{v}", [99, v]) for v in (47, 88, 90, 95)]), where_most_are([Series("a", [1, 9])])
    ((88.0, 99.0), (1.0, 9.0))
    """
    ends = {s.name: [value + half for run in _runs(s) for _, value, b in run for half in (-b, b)] for s in series}
    lows = sorted(min(found) for found in ends.values())
    high = max(max(found) for found in ends.values())
    most = len(lows) // 4
    low = next((v for v in lows[1 : most + 1] if high - v < 0.5 * (high - lows[0])), lows[0])
    return float(min([low, *(min(ends[name]) for name in keep if name in ends)])), float(high)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    first: int = 0,
    digits: int = 2,
    highlight: Collection[str] = ("afa",),
    cut: bool = False,
    named: bool = False,
) -> str:
    """Return a figure with one line a series over whole numbers, and a legend.

    Args:
        series: at most 15 have colours of their own.
        title: of the figure; also what a screen reader says.
        x_label: what the steps are.
        y_label: what the values are.
        first: number of the first step.
        digits: decimals of the values shown when pointed at.
        highlight: names of the series drawn thicker and above the others.
        cut: let the few lines that are far below all others leave the chart, and say so: see ``where_most_are``.
        named: write the names beside the ends of the lines; the legend is then for narrow screens alone.
    """
    drawn = [s for s in series if _runs(s)]
    if not drawn:
        return ""
    longest = max(len(s.values) for s in drawn)
    ends = [where_most_are([s]) for s in drawn]
    low, high = where_most_are(drawn, highlight) if cut else (min(a for a, _ in ends), max(b for _, b in ends))
    named = named and len(drawn) * _GAP <= _HEIGHT - _TOP - _BOTTOM
    words = {s.name: _end_of(s, padded(low, high)[0]) for s in drawn}
    right = _WIDTH - (26 + _LETTER * max(map(len, words.values())) if named else _RIGHT)
    scale = _Scale(first, first + longest - 1, *padded(low, high), right)
    names = _names(drawn, words, scale) if named else {}
    parts = [_axes(scale, x_label, y_label)]
    for s in sorted(drawn, key=lambda s: s.name in highlight):
        parts.append(_line(s, scale, x_label, digits, s.name in highlight, names.get(s.name, "")))
    gone = [s for s, (least, _) in zip(drawn, ends, strict=True) if least < scale.low and not named]
    parts += [_gone(s, scale, k) for k, s in enumerate(gone)]
    legend = [_key(s, s.name in highlight) for s in drawn]
    told = f"{y_label} against {x_label} for {', '.join(s.name for s in drawn)}"
    return _figure(title, told, parts, legend, "chart named" if named else "chart")


def _figure(title: str, told: str, parts: Sequence[str], legend: Sequence[str], kind: str = "chart") -> str:
    """Return a figure of parts of SVG; ``told`` is what a screen reader says after the title."""
    label = text(f"{title}: {told}")
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    svg = "".join([head, *parts, "</svg>"])
    return f'<figure class="{kind}"><figcaption>{text(title)}</figcaption>{svg}<ul>{"".join(legend)}</ul></figure>'


def _end_of(series: Series, low: float) -> str:
    """Return the name at the end of a line; where it ends below the chart, an arrow and the number, too."""
    last = _runs(series)[-1][-1][1]
    name = series.name if len(series.name) <= 24 else f"{series.name[:23]}…"
    return f"↓ {name}: {last:.4g}" if last < low else name


def _names(drawn: Sequence[Series], words: dict[str, str], scale: _Scale) -> dict[str, str]:
    """Return the names beside the ends of the lines, apart from each other, with a thin line to each end."""
    bottom, found = _HEIGHT - _BOTTOM, {}
    lasts = [_runs(s)[-1][-1] for s in drawn]
    heights = [bottom - scale.y(max(value, scale.low)) for _, value, _ in lasts]
    for s, (i, value, _), height, place in zip(drawn, lasts, heights, apart(heights, _GAP, bottom - _TOP), strict=True):
        x, y = scale.right_end + 20, bottom - place
        leader = f'<line class="leader" x1="{scale.x(scale.left + i) + 6:.1f}" y1="{bottom - height:.1f}" x2="{x - 3}" '
        found[s.name] = (f'{leader}y2="{y:.1f}"/>' if value >= scale.low else "") + (
            f'<text class="label" x="{x}" y="{y:.1f}" dy=".35em">{text(words[s.name])}</text>'
        )
    return found


@dataclass(frozen=True)
class _Scale:
    """From numbers to places in the drawing."""

    left: float
    right: float
    low: float
    high: float
    right_end: float = _WIDTH - _RIGHT

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        return _LEFT + share * (self.right_end - _LEFT)

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


def padded(low: float, high: float, room: float = 0.06) -> tuple[float, float]:
    """Return a range with a share of it as room at both ends; what is not negative stays so."""
    pad = room * (high - low) or max(abs(high), 1.0) * 0.05
    return (0.0 if low >= 0 > low - pad else low - pad), high + pad


def _axes(scale: _Scale, x_label: str, y_label: str, grid: bool = True) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value in ticks(scale.low, scale.high):
        y = scale.y(value)
        ends = (_LEFT, scale.right_end) if grid else (_LEFT - 5, _LEFT)
        parts.append(f'<line class="grid" x1="{ends[0]}" x2="{ends[1]}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y:.1f}" dy=".35em" text-anchor="end">{value:g}</text>')
    for value in ticks(scale.left, scale.right, 12):
        if value == int(value) or not grid:
            x = scale.x(value)
            parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 9}" dy=".75em" text-anchor="middle">{value:g}</text>')
    middle = (_LEFT + scale.right_end) / 2
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{scale.right_end}" y1="{bottom}" y2="{bottom}"/>')
    if not grid:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{bottom}"/>')
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{text(x_label)}</text>')
    parts.append(f'<text x="0" y="16">{text(y_label)}</text>')
    return "".join(parts)


def _line(series: Series, scale: _Scale, x_label: str, digits: int, strong: bool, name: str = "") -> str:
    runs = _runs(series)
    line = "".join(_path(part, scale) for run in runs for part in _above([(i, v) for i, v, _ in run], scale.low))
    parts = [f'<g class="series{" strong" if strong else ""}" style="color: var(--s{series.look % len(COLOURS)})">']
    if series.band:
        outlines = ([(i, v + b) for i, v, b in run] + [(i, v - b) for i, v, b in reversed(run)] for run in runs)
        area = "".join(_path([(i, max(v, scale.low)) for i, v in outline], scale) + "Z" for outline in outlines)
        parts.append(f'<path class="band" d="{area}"/>')
    parts.append(f'<path class="line"{_dash(series)} d="{line}"/>')
    parts.append(f'<path class="touch" d="{line}"><title>{text(series.name)}</title></path>')
    marked = set(_thin(len(series.values), _MOST_MARKS, shift=series.look))
    for i, value, half in (point for run in runs for point in run):
        if value >= scale.low and (i in marked or len(series.values) <= 2 * _MOST_MARKS):
            spread = f" ± {half:.{digits}f}" if series.band else ""
            tip = f"{series.name}, {x_label} {scale.left + i}: {value:.{digits}f}{spread}"
            where = f"translate({scale.x(scale.left + i):.1f} {scale.y(value):.1f})" + (" scale(1.3)" if strong else "")
            shape = _MARKS[series.look % len(_MARKS)]
            parts.append(f'<path class="mark" transform="{where}" d="{shape}"><title>{text(tip)}</title></path>')
    return "".join(parts) + name + "</g>"


def _above(points: Sequence[tuple[float, float]], low: float) -> list[list[tuple[float, float]]]:
    """Return the parts of a line that are not below ``low``, cut where it crosses that.

    >>> _above([(0, 9), (1, 1), (2, 1), (3, 9)], 5)
    [[(0, 9), (0.5, 5)], [(2.5, 5), (3, 9)]]
    """
    parts: list[list[tuple[float, float]]] = [[]]
    for k, (i, v) in enumerate(points):
        j, u = points[max(k - 1, 0)]
        if (u < low) != (v < low):
            parts[-1].append((j + (i - j) * (u - low) / (u - v), low))
        if v >= low:
            parts[-1].append((i, v))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def _gone(series: Series, scale: _Scale, k: int) -> str:
    """Return the words for a line that leaves the chart at the bottom, the k-th of them: where it ends."""
    points = [(i, v) for run in _runs(series) for i, v, _ in run]
    inside = _above(points, scale.low)
    x = scale.x(scale.left + (inside[0][-1][0] if inside else 0))
    side = (x + 6, "start") if x < _WIDTH / 2 else (x - 6, "end")
    return (
        f'<text class="label" style="color: var(--s{series.look % len(COLOURS)})" x="{side[0]:.1f}" '
        f'y="{_HEIGHT - _BOTTOM - 6 - 13 * k}" text-anchor="{side[1]}">'
        f"↓ {text(series.name)}: {points[-1][1]:.4g}</text>"
    )


def apart(spots: Sequence[float], gap: float, high: float) -> list[float]:
    """Return places near the spots, in the same order from low to high, at least ``gap`` apart and inside 0 … high.

    >>> apart([50, 50, 10, 99], 10, 100), apart([0, 1], 10, 100)
    ([45.0, 55.0, 10.0, 95.0], [5.0, 15.0])
    """
    order = sorted(range(len(spots)), key=lambda i: spots[i])
    blocks: list[list[float]] = []  # the sum of wished places of the first label, and how many labels
    for i in order:
        blocks.append([spots[i], 1])
        while len(blocks) > 1 and _start(blocks[-2], gap, high) + gap * blocks[-2][1] > _start(blocks[-1], gap, high):
            total, n = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total - gap * blocks[-1][1] * n, blocks[-1][1] + n]
    found = [0.0] * len(spots)
    places = (_start(block, gap, high) + gap * k for block in blocks for k in range(int(block[1])))
    for i, place in zip(order, places, strict=True):
        found[i] = place
    return found


def _start(block: Sequence[float], gap: float, high: float) -> float:
    """Return where the first label of a block stands, so that all are near their spots and inside."""
    total, n = block
    return max(min(total / n, high - gap * (n - 0.5)), gap / 2)


def _thin(length: int, most: int, shift: int = 0) -> list[int]:
    """Return about ``most`` of the numbers 0 … length-1, evenly; without a shift, with the first and the last."""
    if length <= most:
        return list(range(length))
    if not shift:
        return sorted({round(i * (length - 1) / (most - 1)) for i in range(most)})
    stride = math.ceil(length / most)
    return list(range(shift % stride, length, stride))


def _path(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return "M" + "L".join(f"{scale.x(scale.left + i):.1f} {scale.y(v):.1f}" for i, v in points)


def _dash(series: Series) -> str:
    dash = _DASHES[series.look // len(_MARKS) % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _key(series: Series, strong: bool, line: bool = True) -> str:
    stroke = f'<path class="line"{_dash(series)} d="M0 7L34 7"/>' if line else ""
    kind = ' class="strong"' if strong else ""
    return (
        f'<li{kind}><svg viewBox="0 0 34 14" aria-hidden="true"{kind} '
        f'style="color: var(--s{series.look % len(COLOURS)})">{stroke}'
        f'<path class="mark" transform="translate(17 7)" d="{_MARKS[series.look % len(_MARKS)]}"/></svg>'
        f"{text(series.name)}</li>"
    )


# Scatter charts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One point of a scatter chart."""

    name: str  # in the legend and beside the point
    x: float  # to the right
    y: float  # upwards
    look: int = 0  # number of its colour and mark, as of a ``Series``


def scatter_chart(
    points: Sequence[Point],
    *,
    title: str,
    x_label: str,
    y_label: str,
    curve: Sequence[tuple[float, float, str]] = (),
    highlight: Collection[str] = ("afa",),
) -> str:
    """Return a figure with named points, a curve among them, and lines of equal harmonic mean of x and y.

    Args:
        points: at most 15 have colours of their own.
        title: of the figure; also what a screen reader says.
        x_label: what is drawn to the right.
        y_label: what is drawn upwards.
        curve: x, y and a name of each of its points, in the colour of the first highlighted point.
        highlight: names of points drawn larger, above the others.
    """
    if not points:
        return ""
    own = next((p.look for p in points if p.name in highlight), 0)
    every = [*(Point(name, x, y, own) for x, y, name in curve), *points]  # the curve's labels are placed first
    across, up = scatter_range(points, curve, highlight)
    scale = _Scale(*across, *up)
    words = [p.name if p.y >= up[0] else f"↓ {p.name}: {p.y:.4g}" for p in every]
    parts = [_axes(scale, x_label, y_label, grid=False)]
    for level, line in harmonic_lines(across, up):
        path = _path([(x - scale.left, y) for x, y in line], scale)
        tip, (x, y) = f"<title>harmonic mean of base and new {level:g}</title>", line[-1]
        parts.append(f'<path class="grid" fill="none" d="{path}"/><path class="touch" d="{path}">{tip}</path>')
        parts.append(f'<text x="{scale.x(x):.1f}" y="{scale.y(y) - 4:.1f}" text-anchor="end">{level:g}</text>')
    places = [(scale.x(p.x), scale.y(max(p.y, up[0]))) for p in every]
    box = (_LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM)
    boxes = placed(places, [(_LETTER * len(word), 12.0) for word in words], box, places[: len(curve)])
    if len(curve) > 1:
        path = _path([(x - scale.left, y) for x, y, _ in curve], scale)
        parts.append(f'<g style="color: var(--s{own % len(COLOURS)})"><path class="line" d="{path}"/></g>')
    for i, p in sorted(enumerate(every), key=lambda one: one[1].name in highlight):
        (x, y), (u, v), strong = places[i], boxes[i], p.name in highlight
        shape, size = (_MARKS[p.look % len(_MARKS)], 1.3 if strong else 1.0) if i >= len(curve) else (_MARKS[0], 0.7)
        tip = f"{p.name}: {x_label} {p.x:.2f}, {y_label} {p.y:.2f}"
        far = abs(u - x) > _LETTER / 2 * len(words[i]) + 12 or abs(v - y) > 18
        parts.append(
            f'<g class="series{" strong" if strong else ""}" style="color: var(--s{p.look % len(COLOURS)})">'
            + (f'<line class="leader" x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}"/>' if far else "")
            + f'<path class="mark" transform="translate({x:.1f} {y:.1f}) scale({size})" d="{shape}">'
            f"<title>{text(tip)}</title></path>"
            f'<text class="label" x="{u:.1f}" y="{v:.1f}" dy=".35em" text-anchor="middle">{text(words[i])}</text></g>'
        )
    legend = [_key(Series(p.name, (), p.look), p.name in highlight, line=False) for p in points]
    return _figure(title, f"{y_label} against {x_label} for {', '.join(p.name for p in points)}", parts, legend)


def scatter_range(
    points: Sequence[Point], curve: Sequence[tuple[float, float, str]] = (), keep: Collection[str] = ("afa",)
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of x and of y, both in percent, to draw; for points far below see ``where_most_are``.

    x has at least a tenth of the range of y, so that a few examples more or less do not look like a difference.

    >>> across, up = scatter_range([Point(f"m{y}", 99 + y / 100, y) for y in (0, 60, 70, 75, 80)])
    >>> print("{:.1f} to {:.1f}, {:.1f} to {:.1f}".format(*across, *up))
    97.7 to 100.3, 58.4 to 81.6
    """
    series = [Series(p.name, [p.y]) for p in points] + [Series(f"{keep}{k}", [y]) for k, (_, y, _) in enumerate(curve)]
    low, high = where_most_are(series, [*keep, *(s.name for s in series[len(points) :])])
    xs = [*(p.x for p in points), *(x for x, _, _ in curve)]
    left, right = min(xs), max(xs)
    more = max(0.1 * (high - low) - (right - left), 0) / 2
    right = max(min(right + more, 100), right)
    left = min(left, right - 0.1 * (high - low))
    return padded(left, right, 0.15), padded(low, high, 0.08)


def harmonic_lines(
    across: tuple[float, float], up: tuple[float, float], steps: int = 60
) -> list[tuple[float, list[tuple[float, float]]]]:
    """Return the lines 2xy / (x + y) = h inside a box, for round h: h, and points from left to right.

    >>> [(level, line[0]) for level, line in harmonic_lines((40, 60), (20, 30))][:2]
    [(28.0, (40.0, 21.53846153846154)), (30.0, (40.0, 24.0))]
    """
    found = []
    mean = [2 * x * y / (x + y) if x + y > 0 else 0.0 for x, y in zip(across, up, strict=True)]
    for level in ticks(mean[0], mean[1], 7):
        line = []
        for k in range(steps + 1):
            x = across[0] + k / steps * (across[1] - across[0])
            if 2 * x > level > 0 and up[0] <= level * x / (2 * x - level) <= up[1]:
                line.append((x, level * x / (2 * x - level)))
        if len(line) > 1:
            found.append((level, line))
    return found


def placed(
    spots: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    box: tuple[float, float, float, float],
    curve: Sequence[tuple[float, float]] = (),
) -> list[tuple[float, float]]:
    """Return the middles of labels near their points that cover each other, the points and a curve least.

    Args:
        spots: the points, in the units of the drawing; their labels are placed one after another.
        sizes: widths and heights of the labels.
        box: left, low, right and high end of where labels may lie.
        curve: points of a curve.
    """
    between = [((1 - t) * a + t * c, (1 - t) * b + t * d) for (a, b), (c, d) in pairwise(curve) for t in _PARTS]
    around = [(dx / 2, dy / 2) for dy in range(-2, 3) for dx in range(2, -3, -1) if 2 in (abs(dx), abs(dy))]
    options: list[list[tuple[float, tuple[float, float, float, float]]]] = []
    for k, ((x, y), (w, h)) in enumerate(zip(spots, sizes, strict=True)):
        options.append([])
        for ring, (dx, dy) in product(range(9), around):
            u, v = x + dx * (w / 2 + h * (0.5 + 0.7 * ring)), y + dy * h * (0.9 + 0.7 * ring)
            u = min(max(u, box[0] + w / 2), box[2] - w / 2)
            v = min(max(v, box[1] + h / 2), box[3] - h / 2)
            gaps = [math.hypot(max(abs(u - a) - w / 2, 0), max(abs(v - b) - h / 2, 0)) for a, b in spots]
            cost = 0.3 * gaps[k] / h + 0.1 * (abs(dx) < 1) + 0.05 * abs(dy)  # a little rather beside than above
            cost += sum(1.5 for gap in gaps if gap < 0.9 * gaps[k])  # it would seem to be of another point
            cost += sum(1.2 for a, b in spots if abs(a - u) < w / 2 + 0.3 * h and abs(b - v) < 0.8 * h)
            cost += sum(0.3 for a, b in between if abs(a - u) < w / 2 + 0.1 * h and abs(b - v) < 0.55 * h)
            options[-1].append((cost, (u, v, w, h)))
    found: dict[int, tuple[float, float, float, float]] = {}
    for k in [*range(len(spots))] * 3:  # what was placed first is placed again, now that the others are known
        others = [one for j, one in found.items() if j != k]
        costs = []
        for cost, one in options[k]:
            shares = (_shared(one, other) / (one[2] * one[3]) for other in others)
            costs.append(cost + sum(4 + 5 * share for share in shares if share > 0))
        found[k] = options[k][costs.index(min(costs))][1]
    return [found[k][:2] for k in range(len(spots))]


def _shared(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the area that two boxes share, each given by its middle, width and height."""
    sides = [(one[2 + k] + other[2 + k]) / 2 - abs(one[k] - other[k]) for k in (0, 1)]
    return max(sides[0], 0.0) * max(sides[1], 0.0)
