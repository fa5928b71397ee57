"""One HTML page about a run: no scripts, nothing loaded from elsewhere, light or dark as the reader prefers."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import torch

from faverage.afa.explain import Explanation
from faverage.prediction_files.compare import Comparison
from faverage.prediction_files.result import Member, Result
from faverage.report.page import MISSING, bars, facts, head, heat_map, page, table, text, warnings

__all__ = ["model_shares", "write_report"]


def write_report(path: Path, result: Result) -> None:
    """Write the page."""
    best = next((s for s in result.comparison.scores if not s.failed), None)
    cards = [
        (f"{len(result.members)}", "models"),
        (f"{len(result.classes)}", "classes"),
        (f"{result.labelled:,}", "labelled rows"),
        (f"{result.rows:,}", "rows predicted"),
        (result.fuser, "fuser fitted"),
    ]
    cards += [(best.name, f"lowest held-out log-loss, {best.log_loss:.4f}")] if best else []
    parts = [
        "<h1>How the models were fused</h1>",
        f'<p class="soft">{_date()}</p>',
        facts(cards),
        warnings(result.warnings),
        "<h2>On held-out rows</h2>",
        _comparison(result.comparison, result.fuser),
        "<h2>What AFA learned</h2>",
        _explanation(result.explanation, result.unexplained),
        "<h2>What was fused</h2>",
        f"<p>Labels come from {text(str(result.labels))}.</p>",
        _members(result.members, result.classes, result.rows),
        "<h2>How to repeat it</h2>",
        f"<pre>{text(result.command)}</pre>",
        f'<p class="soft">{text(_versions())}</p>',
    ]
    title = f"Fused: {', '.join(m.name for m in result.members)}"
    path.write_text(page(title, parts), encoding="utf-8")


def model_shares(
    explanation: Explanation,
) -> tuple[list[str], list[str], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Return the models, the classes and the share ``(N, K)`` of each model for each class."""
    models = list(dict.fromkeys(str(row[1]) for row in explanation.models.rows))
    shares = np.array([float(row[2]) for row in explanation.models.rows]).reshape(-1, len(models))
    return models, [str(row[0]) for row in explanation.trusted.rows], shares


def _comparison(comparison: Comparison, chosen: str) -> str:
    if not comparison.scores:
        return '<p class="soft">Nothing was compared (--compare none).</p>'
    rows = []
    for score in comparison.scores:
        mark = ' class="chosen"' if score.name == chosen else ""
        name = f'<td class="name">{text(score.name)}</td>'
        if score.failed:
            rows.append(f'<tr{mark}>{name}<td colspan="4" class="soft">failed: {text(score.failed)}</td></tr>')
            continue
        cells = [f"{score.log_loss:.4f}", f"{score.accuracy:.4f}", f"{score.macro_f1:.4f}"]
        cells.append(MISSING if score.seconds is None else f"{score.seconds:.2f}")
        rows.append(f"<tr{mark}>{name}" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>")
    note = f"{comparison.describe()} A model that does not know every class is completed with equal probabilities."
    first = head(["fuser or model"], ["log-loss", "accuracy", "macro F1", "fit (s)"])
    return f'<p class="soft">{text(note)}</p>' + table(first, rows)


def _explanation(explanation: Explanation | None, why: str) -> str:
    if explanation is None:
        return f"<p>There is no explanation: {text(why)}.</p>"
    models, classes, shares = model_shares(explanation)
    return (
        '<p class="soft">Shares of the fused output, read off the weights; they sum to one.</p>'
        "<h3>Means</h3>"
        + bars((str(name), float(share)) for name, share in explanation.means.rows)
        + "<h3>Models, over all classes</h3>"
        + bars(zip(models, shares.mean(0).tolist(), strict=True))
        + "<h3>Models, class by class</h3>"
        + heat_map("class", models, classes, shares.tolist())
    )


def _members(members: Sequence[Member], classes: list[str], rows: int) -> str:
    body = []
    for member in members:
        known = set(member.classes)
        lacks = [name for name in classes if name not in known]
        body.append(
            f'<tr><td class="name">{text(member.name)}</td><td class="name">{text(str(member.path))}</td>'
            f'<td class="n">{member.rows:,} of {rows:,}</td><td class="n">{len(known)} of {len(classes)}</td>'
            f'<td class="name">{text(", ".join(lacks)) if lacks else MISSING}</td></tr>'
        )
    first = (
        '<tr><th>model</th><th>file</th><th class="n">rows</th><th class="n">classes known</th>'
        "<th>classes not known</th></tr>"
    )
    return table(first, body)


def _date() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _versions() -> str:
    from faverage import __version__

    return (
        f"faverage {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, {platform.system()} {platform.machine()}"
    )
