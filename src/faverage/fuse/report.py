"""One HTML page about a run: no scripts, nothing loaded from elsewhere, light or dark as the reader prefers."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

import numpy as np
import torch

from faverage.explain import Explanation
from faverage.fuse.compare import Comparison
from faverage.fuse.result import Member, Result

__all__ = ["model_shares", "write_report"]

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1d2026; --soft: #5c6370; --line: #dfe1e6; --card: #ffffff;
  --hue: 37, 99, 175; --mark: #e9f1fb; --warn: #fff5df; --warnline: #d9a53a; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --ink: #e6e8ec; --soft: #9aa2af; --line: #31353d;
  --card: #1b1e24; --hue: 106, 167, 240; --mark: #1e2c40; --warn: #2e2614; --warnline: #a07a26; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .5rem; }
p { margin: .4rem 0 .8rem; max-width: 46rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.3rem 0 0; padding: 0; list-style: none; }
.facts li { flex: 1 1 8.6rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; color: var(--soft); font-size: .9rem; }
.facts b { display: block; color: var(--ink); font-size: 1.2rem; line-height: 1.35; overflow-wrap: anywhere; }
.wide { overflow: auto; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); }
.wide:has(.map) { max-height: 46rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: .38rem .75rem; text-align: left; border-top: 1px solid var(--line); vertical-align: top; }
th { position: sticky; top: 0; background: var(--card); border-top: 0; box-shadow: inset 0 -1px var(--line);
  font-weight: 600; z-index: 1; }
tbody th { position: sticky; left: 0; box-shadow: none; border-top: 1px solid var(--line); }
tbody tr:first-child > * { border-top: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.name { max-width: 22rem; min-width: 7rem; overflow-wrap: anywhere; }
tr.chosen td { background: var(--mark); font-weight: 600; }
.map td { text-align: center; font-variant-numeric: tabular-nums; min-width: 3.6rem; border-color: transparent; }
.map th { min-width: 6.5rem; max-width: 9rem; overflow-wrap: break-word; }
.map thead th.c { text-align: center; min-width: 4.5rem; }
.map thead th:first-child { left: 0; z-index: 2; }
.bar { display: grid; grid-template-columns: minmax(5rem, 25%) 1fr 3.2rem; gap: .7rem; align-items: center;
  margin: .3rem 0; font-size: .92rem; }
.bar span:first-child { overflow-wrap: anywhere; }
.bar i { display: block; height: .8rem; border-radius: .2rem; background: rgb(var(--hue)); min-width: 1px; }
.warnings { margin: .5rem 0; padding: .7rem 1rem .7rem 2rem; background: var(--warn); border-radius: .5rem;
  border-left: .25rem solid var(--warnline); overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font: .88rem/1.5 ui-monospace, monospace; }
@media (max-width: 34rem) { main { padding: 1.25rem .8rem 3rem; } th, td { padding: .3rem .4rem; }
  table { font-size: .84rem; } .name { min-width: 5.5rem; } }
"""


def write_report(path: Path, result: Result) -> None:
    """Write the page."""
    best = next((s for s in result.comparison.scores if not s.failed), None)
    facts = [
        (f"{len(result.members)}", "models"),
        (f"{len(result.classes)}", "classes"),
        (f"{result.labelled:,}", "labelled rows"),
        (f"{result.rows:,}", "rows predicted"),
        (result.fuser, "fuser fitted"),
    ]
    facts += [(best.name, f"lowest held-out log-loss, {best.log_loss:.4f}")] if best else []
    parts = [
        "<h1>How the models were fused</h1>",
        f'<p class="soft">{_date()}</p>',
        '<ul class="facts">' + "".join(f"<li><b>{escape(a)}</b>{escape(b)}</li>" for a, b in facts) + "</ul>",
        _warnings(result.warnings),
        "<h2>On held-out rows</h2>",
        _comparison(result.comparison, result.fuser),
        "<h2>What AFA learned</h2>",
        _explanation(result.explanation, result.unexplained),
        "<h2>What was fused</h2>",
        f"<p>Labels come from {escape(str(result.labels))}.</p>",
        _members(result.members, result.classes, result.rows),
        "<h2>How to repeat it</h2>",
        f"<pre>{escape(result.command)}</pre>",
        f'<p class="soft">{escape(_versions())}</p>',
    ]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Fused: {escape(', '.join(m.name for m in result.members))}</title>\n<style>{_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(part for part in parts if part) + "\n</main>\n</body>\n</html>\n"
    )
    path.write_text(page, encoding="utf-8")


def model_shares(
    explanation: Explanation,
) -> tuple[list[str], list[str], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Return the models, the classes and the share ``(N, K)`` of each model for each class."""
    models = list(dict.fromkeys(str(row[1]) for row in explanation.models.rows))
    shares = np.array([float(row[2]) for row in explanation.models.rows]).reshape(-1, len(models))
    return models, [str(row[0]) for row in explanation.trusted.rows], shares


def _comparison(comparison: Comparison, chosen: str) -> str:
    rows = []
    for score in comparison.scores:
        mark = ' class="chosen"' if score.name == chosen else ""
        name = f'<td class="name">{escape(score.name)}</td>'
        if score.failed:
            rows.append(f'<tr{mark}>{name}<td colspan="4" class="soft">failed: {escape(score.failed)}</td></tr>')
            continue
        cells = [f"{score.log_loss:.4f}", f"{score.accuracy:.4f}", f"{score.macro_f1:.4f}"]
        cells.append("–" if score.seconds is None else f"{score.seconds:.2f}")
        rows.append(f"<tr{mark}>{name}" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>")
    note = f"{comparison.describe()} A model that does not know every class is completed with equal probabilities."
    head = _head(["fuser or model"], ["log-loss", "accuracy", "macro F1", "fit (s)"])
    return f'<p class="soft">{escape(note)}</p>' + _table(head, rows)


def _explanation(explanation: Explanation | None, why: str) -> str:
    if explanation is None:
        return f"<p>There is no explanation: {escape(why)}.</p>"
    models, classes, shares = model_shares(explanation)
    highest = max(float(shares.max()), 1e-9)
    head = _head(["class"], models, "c")
    rows = []
    for name, row in zip(classes, shares, strict=True):
        cells = "".join(_cell(float(share), highest) for share in row)
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return (
        '<p class="soft">Shares of the fused output, read off the weights; they sum to one.</p>'
        "<h3>Means</h3>"
        + _bars((str(name), float(share)) for name, share in explanation.means.rows)
        + "<h3>Models, over all classes</h3>"
        + _bars(zip(models, shares.mean(0).tolist(), strict=True))
        + "<h3>Models, class by class</h3>"
        + _table(head, rows, "map")
    )


def _members(members: Sequence[Member], classes: list[str], rows: int) -> str:
    body = []
    for member in members:
        known = set(member.classes)
        lacks = [name for name in classes if name not in known]
        body.append(
            f'<tr><td class="name">{escape(member.name)}</td><td class="name">{escape(str(member.path))}</td>'
            f'<td class="n">{member.rows:,} of {rows:,}</td><td class="n">{len(known)} of {len(classes)}</td>'
            f'<td class="name">{escape(", ".join(lacks)) if lacks else "–"}</td></tr>'
        )
    head = (
        "<tr><th>model</th><th>file</th><th class='n'>rows</th><th class='n'>classes known</th>"
        "<th>classes not known</th></tr>"
    )
    return _table(head, body)


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    return f'<h2>Warnings</h2><ul class="warnings">{items}</ul>'


def _head(left: Sequence[str], right: Sequence[str], kind: str = "n") -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in left)
    return f"<tr>{cells}" + "".join(f'<th class="{kind}">{escape(name)}</th>' for name in right) + "</tr>"


def _table(head: str, rows: Iterable[str], kind: str = "") -> str:
    return (
        f'<div class="wide"><table class="{kind}"><thead>{head}</thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def _cell(share: float, highest: float) -> str:
    return f'<td style="background: rgba(var(--hue), {0.6 * share / highest:.3f})">{share:.2f}</td>'


def _bars(items: Iterable[tuple[str, float]]) -> str:
    return "".join(
        f'<div class="bar"><span>{escape(name)}</span><i style="width: {100 * min(share, 1):.1f}%"></i>'
        f'<span class="n">{share:.1%}</span></div>'
        for name, share in items
    )


def _date() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _versions() -> str:
    from faverage import __version__

    return (
        f"faverage {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, {platform.system()} {platform.machine()}"
    )
