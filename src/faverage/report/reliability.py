"""Reliability diagrams as SVG inside a page, one a model: how sure it was, and how often it was right then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faverage.report.charts import COLOURS
from faverage.report.page import text

__all__ = ["STYLE", "Bin", "Diagram", "reliability_charts"]

STYLE = """
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: 0 .8rem; }
.small .chart text { font-size: 11px; }
.chart .even { stroke: var(--soft); stroke-dasharray: 4 4; opacity: .7; vector-effect: non-scaling-stroke; }
.chart .rows { fill: currentColor; opacity: .35; }
"""

_WIDTH, _LEFT, _RIGHT, _TOP, _SIDE, _BARS = 240, 34, 8, 18, 198, 36
_FOOT = _TOP + _SIDE + 8 + _BARS  # where the bars of the rows stand


@dataclass(frozen=True)
class Bin:
    """Rows whose predictions are about equally sure.

    Attributes:
        confidence: mean probability of the predicted class.
        accuracy: how many of the predictions are right, as a share.
        rows: how many.
    """

    confidence: float
    accuracy: float
    rows: int


@dataclass(frozen=True)
class Diagram:
    """One reliability diagram: its title, a line below it, and the bins that have rows, by confidence."""

    name: str
    note: str
    bins: Sequence[Bin]


def reliability_charts(diagrams: Sequence[Diagram], n_bins: int, highlight: str = "") -> str:
    """Return small diagrams side by side.

    Args:
        diagrams: one a model.
        n_bins: how many bins of equal width there are between 0 and 1.
        highlight: the name of the one that is drawn thicker.
    """
    charts = (_chart(d, i, n_bins, d.name == highlight) for i, d in enumerate(diagrams))
    return '<div class="small">' + "".join(charts) + "</div>"


def _chart(diagram: Diagram, look: int, n_bins: int, strong: bool) -> str:
    bottom, right = _TOP + _SIDE, _LEFT + _SIDE
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_FOOT + 32}" role="img" aria-label="{text(_told(diagram))}">',
        f'<text x="0" y="9">share that is right</text><line class="even" x1="{_LEFT}" y1="{bottom}" x2="{right}" '
        f'y2="{_TOP}"/>',
    ]
    for value in (0, 0.5, 1):
        x, y = _LEFT + value * _SIDE, bottom - value * _SIDE
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:g}" y2="{y:g}"/>')
        parts.append(f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{_TOP}" y2="{_FOOT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y:g}" dy=".35em" text-anchor="end">{value:g}</text>')
        parts.append(f'<text x="{x:g}" y="{_FOOT + 13}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{_LEFT + _SIDE / 2}" y="{_FOOT + 28}" text-anchor="middle">probability it gave</text>')
    kind = " strong" if strong else ""
    parts.append(f'<g class="series{kind}" style="color: var(--s{look % len(COLOURS)})">')
    spots = [(_LEFT + b.confidence * _SIDE, bottom - b.accuracy * _SIDE) for b in diagram.bins]
    parts.append(f'<path class="line" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in spots)}"/>' if spots else "")
    most, width = max((b.rows for b in diagram.bins), default=1), _SIDE / n_bins
    for b, (x, y) in zip(diagram.bins, spots, strict=True):
        tip = f"<title>{text(_tip(b))}</title>"
        left, height = _LEFT + min(int(b.confidence * n_bins), n_bins - 1) * width, max(_BARS * b.rows / most, 0.6)
        size = 2 + 3.5 * (b.rows / most) ** 0.5  # few rows, little to see
        parts.append(
            f'<rect class="rows" x="{left + 1:.1f}" y="{_FOOT - height:.1f}" width="{width - 2:.1f}" '
            f'height="{height:.1f}">{tip}</rect>'
            f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}">{tip}</circle>'
        )
    figure = "".join(parts) + "</g></svg>"
    return (
        f'<figure class="chart"><figcaption>{text(diagram.name)} <span class="soft">{text(diagram.note)}</span>'
        f"</figcaption>{figure}</figure>"
    )


def _tip(b: Bin) -> str:
    return f"gave {b.confidence:.3f}, right {b.accuracy:.3f}, {b.rows:,} row{'' if b.rows == 1 else 's'}"


def _told(diagram: Diagram) -> str:
    return f"Reliability of {diagram.name}, {diagram.note}: {'; '.join(_tip(b) for b in diagram.bins)}"
