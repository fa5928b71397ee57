"""Whether probabilities mean what they say, on held-out rows: numbers, and reliability diagrams as SVG.

Expected calibration error: the predicted class's probability against how often it is right, in bins of equal width,

    ECE = Σ_b n_b/n · |accuracy_b − confidence_b|.

Brier score Σ_c (p(c) − [y = c])², and its parts (Dimitriadis, Gneiting and Jordan, 2021): with q(c) the monotone
function of p(c) that fits best, and f(c) the share of class c among the rows,

    Brier(p) = miscalibration − discrimination + uncertainty
             = (Brier(p) − Brier(q)) − (Brier(f) − Brier(q)) + Brier(f).

The parts need no bins, and none is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.report.charts import COLOURS
from faverage.report.page import text

__all__ = ["N_BINS", "STYLE", "Bin", "Calibration", "calibration", "reliability_charts"]

Array = NDArray[Any]
N_BINS = 10

STYLE = """
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: 0 .8rem; }
.small .chart text { font-size: 11px; }
.chart .even { stroke: var(--soft); stroke-dasharray: 4 4; opacity: .7; vector-effect: non-scaling-stroke; }
.chart .rows { fill: currentColor; opacity: .35; }
"""

_WIDTH, _LEFT, _TOP, _SIDE, _BARS = 240, 34, 18, 198, 36
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
class Calibration:
    """How far the probabilities of one fuser or model can be believed.

    Attributes:
        name: of the fuser or model.
        bins: those that have rows, by confidence.
        ece: expected calibration error.
        brier: Brier score, from 0 to 2.
        miscalibration: what a monotone correction of each class's probabilities would gain.
        discrimination: what these corrected probabilities gain over the shares of the classes.
        uncertainty: the Brier score of the shares of the classes.
    """

    name: str
    bins: tuple[Bin, ...]
    ece: float
    brier: float
    miscalibration: float
    discrimination: float
    uncertainty: float


def calibration(name: str, probabilities: Array, y: Array) -> Calibration:
    """Measure probabilities ``(n, N)`` of held-out rows against labels ``(n,)``.

    >>> found = calibration("sure", np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]]), np.array([0, 0, 1, 1]))
    >>> found.ece, found.brier, round(found.miscalibration - found.discrimination + found.uncertainty, 9)
    (0.25, 0.5, 0.5)
    """
    p = probabilities.astype(np.float64)
    best, right = p.max(1), p.argmax(1) == y
    place = np.minimum((best * N_BINS).astype(int), N_BINS - 1)
    parts = [place == b for b in np.unique(place)]
    bins = tuple(Bin(float(best[rows].mean()), float(right[rows].mean()), int(rows.sum())) for rows in parts)
    ece = sum(b.rows * abs(b.accuracy - b.confidence) for b in bins) / len(y)
    truth = np.eye(p.shape[1])[y]
    corrected = np.stack([_monotone(p[:, c], truth[:, c]) for c in range(p.shape[1])], 1)
    brier, least, plain = (float(((q - truth) ** 2).sum(1).mean()) for q in (p, corrected, truth.mean(0)))
    return Calibration(name, bins, ece, brier, brier - least, plain - least, plain)


def _monotone(p: Array, truth: Array) -> Array:
    """Return the values ``(n,)`` nearest to ``truth`` ``(n,)`` that rise with p ``(n,)`` and are equal where p is."""
    from scipy.optimize import isotonic_regression

    _, group, rows = np.unique(p, return_inverse=True, return_counts=True)
    means = np.bincount(group, truth) / rows
    found: Array = isotonic_regression(means, weights=rows).x[group]
    return found


def reliability_charts(found: Sequence[Calibration], highlight: str = "") -> str:
    """Return small diagrams side by side, how sure each was and how often it was right then; one is drawn thicker."""
    charts = (_chart(one, i, one.name == highlight) for i, one in enumerate(found))
    return '<div class="small">' + "".join(charts) + "</div>"


def _chart(found: Calibration, look: int, strong: bool) -> str:
    note = f"ECE {found.ece:.3f}"
    told = f"Reliability of {found.name}, {note}: {'; '.join(map(_tip, found.bins))}"
    bottom, right = _TOP + _SIDE, _LEFT + _SIDE
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_FOOT + 32}" role="img" aria-label="{text(told)}">',
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
    spots = [(_LEFT + b.confidence * _SIDE, bottom - b.accuracy * _SIDE) for b in found.bins]
    parts.append(f'<path class="line" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in spots)}"/>' if spots else "")
    most, width = max((b.rows for b in found.bins), default=1), _SIDE / N_BINS
    for b, (x, y) in zip(found.bins, spots, strict=True):
        tip = f"<title>{text(_tip(b))}</title>"
        left, height = _LEFT + min(int(b.confidence * N_BINS), N_BINS - 1) * width, max(_BARS * b.rows / most, 0.6)
        size = 2 + 3.5 * (b.rows / most) ** 0.5  # few rows, little to see
        parts.append(
            f'<rect class="rows" x="{left + 1:.1f}" y="{_FOOT - height:.1f}" width="{width - 2:.1f}" '
            f'height="{height:.1f}">{tip}</rect>'
            f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}">{tip}</circle>'
        )
    figure = "".join(parts) + "</g></svg>"
    return (
        f'<figure class="chart"><figcaption>{text(found.name)} <span class="soft">{text(note)}</span>'
        f"</figcaption>{figure}</figure>"
    )


def _tip(b: Bin) -> str:
    return f"gave {b.confidence:.3f}, right {b.accuracy:.3f}, {b.rows:,} row{'' if b.rows == 1 else 's'}"
