"""The skeleton of a page in one HTML file: no scripts, nothing loaded from elsewhere, in light or dark colours."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

MISSING = "–"

STYLE = """
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
.scores th, .scores td { padding-left: .5rem; padding-right: .5rem; }
.scores .name { min-width: 6.6rem; overflow-wrap: break-word; }
.scores small { display: block; color: var(--soft); font-size: .76rem; line-height: 1.2; }
.scores :is(th, td):first-child { position: sticky; left: 0; background: var(--card); z-index: 2; }
.scores tr.own td { background: var(--mark); }
.map td { text-align: center; font-variant-numeric: tabular-nums; min-width: 3.6rem; border-color: transparent;
  background: rgba(var(--hue), var(--v)); }
.map th { min-width: 6.5rem; max-width: 9rem; overflow-wrap: break-word; }
.map thead th.c { text-align: center; min-width: 4.5rem; }
.map thead th:first-child { left: 0; z-index: 2; }
.map.dense { width: auto; border-collapse: separate; border-spacing: 0; }
.map.dense td { min-width: 1rem; height: 1.5rem; padding: 0; border: 1px solid var(--card); }
.map.dense th { min-width: 4rem; padding: .15rem .6rem; border: 0; vertical-align: middle; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
.map.dense th:first-child { box-shadow: inset -1px 0 var(--line); }
.map.dense thead th { vertical-align: bottom; }
.map.dense thead th.c { min-width: 0; padding: .3rem 0; font-weight: 400; font-size: .72rem; line-height: 1rem; }
.map.dense thead th.c span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 9rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.map.dense .first { border-left: 3px solid var(--line); }
.scale { display: flex; gap: .5rem; align-items: center; margin: .4rem 0; font-size: .86rem; color: var(--soft);
  font-variant-numeric: tabular-nums; }
.scale i { width: 11rem; height: .8rem; border: 1px solid var(--line);
  background: linear-gradient(to right, rgba(var(--hue), 0), rgba(var(--hue), var(--full))), var(--card); }
.bar { display: grid; grid-template-columns: minmax(5rem, 25%) 1fr 3.6rem; gap: .7rem; align-items: center;
  margin: .3rem 0; font-size: .92rem; }
.bar span:first-child { overflow-wrap: anywhere; }
.bar i { display: block; height: .8rem; border-radius: .2rem; background: rgb(var(--hue)); min-width: 1px; }
.stacks { font-size: .9rem; }
.stacks .key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0 0 .6rem; }
.stacks .key i { display: inline-block; width: 1rem; height: .8rem; margin-right: .4rem; border-radius: .15rem; }
.stacks .row { display: grid; grid-template-columns: minmax(7rem, 16%) 1fr 1fr; gap: .2rem .8rem; align-items: center;
  margin: .3rem 0; overflow-wrap: anywhere; }
.stacks .first { color: var(--soft); }
.stack { display: flex; height: 1.35rem; border-radius: .2rem; overflow: hidden; }
.stack i { font: normal .78rem/1.35rem system-ui, sans-serif; font-variant-numeric: tabular-nums; text-align: center;
  overflow: hidden; }
.part0 { background: rgba(var(--hue), .5); }
.part1 { background: rgba(217, 165, 58, .45); }
.part2 { background: rgba(200, 70, 70, .5); }
.warnings { margin: .5rem 0; padding: .7rem 1rem .7rem 2rem; background: var(--warn); border-radius: .5rem;
  border-left: .25rem solid var(--warnline); overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font: .88rem/1.5 ui-monospace, monospace; }
@media (max-width: 34rem) { main { padding: 1.25rem .8rem 3rem; } th, td { padding: .3rem .4rem; }
  table { font-size: .84rem; } .name { min-width: 5.5rem; }
  .stacks .row { grid-template-columns: 1fr 1fr; margin: .6rem 0; }
  .stacks .row > :first-child { grid-column: 1 / -1; } .stacks .first > :first-child { display: none; } }
"""


def text(value: object) -> str:
    """Return a value as text for HTML and XML: escaped, with characters that XML forbids replaced by U+FFFD.

    >>> text("<b> & co")
    '&lt;b&gt; &amp; co'
    """
    plain = str(value).encode("utf-8", "replace").decode()
    return escape("".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in plain))


def number(value: float | None, digits: int = 2, scale: float = 1.0) -> str:
    """Return ``scale * value`` with so many decimals; an en dash where there is no (finite) number.

    >>> number(0.75371, scale=100), number(None), number(float("nan"))
    ('75.37', '–', '–')
    """
    return MISSING if value is None or not math.isfinite(value) else f"{scale * value:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it.

    >>> duration(12.3), duration(754.2), duration(8000), duration(None)
    ('12.3 s', '12.6 min', '2.2 h', '–')
    """
    size, unit = (1, "s") if seconds is None or seconds < 60 else (60, "min") if seconds < 3600 else (3600, "h")
    return MISSING if seconds is None else f"{seconds / size:.1f} {unit}"


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a whole page: a title in plain text, pieces of HTML, and CSS beside ``STYLE``."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(part for part in body if part) + "\n</main>\n</body>\n</html>\n"
    )


def facts(items: Iterable[tuple[str, str]]) -> str:
    """Return cards: a value, and below it what it is."""
    return '<ul class="facts">' + "".join(f"<li><b>{text(a)}</b>{text(b)}</li>" for a, b in items) + "</ul>"


def warnings(items: Iterable[str], title: str = "Warnings") -> str:
    """Return a marked list below its title; nothing where there are no items."""
    rows = "".join(f"<li>{text(item)}</li>" for item in items)
    return f'<h2>{text(title)}</h2><ul class="warnings">{rows}</ul>' if rows else ""


def head(left: Iterable[str], right: Iterable[str] = (), kind: str = "n") -> str:
    """Return the first row of a table: headings of columns of words on the left, of numbers on the right.

    ``kind`` is the class of the cells on the right: ``n`` sets them to the right, ``c`` in the centre.
    """
    cells = "".join(f"<th>{text(name)}</th>" for name in left)
    return f"<tr>{cells}" + "".join(f'<th class="{kind}">{text(name)}</th>' for name in right) + "</tr>"


def table(first: str, rows: Iterable[str], kind: str = "") -> str:
    """Return a table that scrolls by itself where it is too wide; ``first`` and ``rows`` are ``<tr>`` elements."""
    kind = f' class="{kind}"' if kind else ""
    return (
        f'<div class="wide"><table{kind}><thead>{first}</thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def row(name: str, words: Iterable[str] = (), numbers: Iterable[str] = (), *, rest: str = "", kind: str = "") -> str:
    """Return a row of a table.

    Args:
        name: what it is about, plain text.
        words: plain text of the cells after it.
        numbers: HTML of the cells after those, set to the right.
        rest: HTML of further cells, with their tags.
        kind: class of the row, such as ``chosen`` or ``own``, which mark it.
    """
    kind = f' class="{kind}"' if kind else ""
    cells = "".join(f"<td>{text(word)}</td>" for word in words)
    cells += "".join(f'<td class="n">{cell}</td>' for cell in numbers)
    return f'<tr{kind}><td class="name">{text(name)}</td>{cells}{rest}</tr>'


def how_to_repeat(command: str | None, settings: Mapping[str, object], versions: Mapping[str, str]) -> str:
    """Return the last section of a page: the command, all settings, and the versions that computed."""
    lines = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in settings.items())
    said = f"<h3>Settings</h3><pre>{text(lines)}</pre>" if lines else ""
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f'<h2>How to repeat it</h2>\n<pre>{text(command or MISSING)}</pre>\n{said}<p class="soft">{text(found)}</p>'


def heat_map(
    corner: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    dense: bool = False,
    breaks: Collection[int] = (),
) -> str:
    """Return a table whose cells are the darker the larger their value, and its colour scale.

    Args:
        corner: heading of the names of the rows.
        columns: their names.
        rows: their names.
        values: one sequence a row, non-negative.
        dense: small cells without numbers (they show when pointed at) and upright names, for hundreds of columns.
        breaks: columns that begin a group; with ``dense``, a line is drawn before them.
    """
    known = [v for row in values for v in row if v is not None and math.isfinite(v)]
    highest, darkest = max([*known, 1e-9]), 0.9 if dense else 0.6
    shown = number(highest) if known else MISSING
    scale = f'<div class="scale">0<i style="--full: {darkest}"></i>{shown}</div>'
    body = []
    for name, row in zip(rows, values, strict=True):
        cells = []
        for j, (column, value) in enumerate(zip(columns, row, strict=True)):
            shown = number(value)
            shade = 0.0 if value is None or shown == MISSING else darkest * value / highest
            mark = ' class="first"' if j in breaks else ""
            tip = f' title="{text(name)}, {text(column)}: {number(value, 3)}"' if dense else ""
            cells.append(f'<td{mark}{tip} style="--v: {shade:.3f}">{"" if dense else shown}</td>')
        body.append(f"<tr><th>{text(name)}</th>{''.join(cells)}</tr>")
    if not dense:
        return table(head([corner], columns, "c"), body, "map") + scale
    first = f"<tr><th>{text(corner)}</th>"
    for j, name in enumerate(columns):
        mark = " first" if j in breaks else ""
        first += f'<th class="c{mark}" title="{text(name)}"><span>{text(name)}</span></th>'
    return table(first + "</tr>", body, "map dense") + scale


def bars(items: Iterable[tuple[str, float]]) -> str:
    """Return one horizontal bar for each name and its share in [0, 1]."""
    return "".join(
        f'<div class="bar"><span>{text(name)}</span><i style="width: {100 * min(share, 1):.1f}%"></i>'
        f'<span class="n">{share:.1%}</span></div>'
        for name, share in items
    )


def stacks(columns: Sequence[str], kinds: Sequence[str], rows: Iterable[tuple[str, Sequence[Sequence[float]]]]) -> str:
    """Return bars of up to three parts, that show percentages of their sum.

    Args:
        columns: what the bars of a row are.
        kinds: what the parts of a bar are.
        rows: names, and for each column the sizes of the parts.
    """
    key = "".join(f'<span><i class="part{i}"></i>{text(kind)}</span>' for i, kind in enumerate(kinds))
    first = "".join(f"<span>{text(column)}</span>" for column in ("", *columns))
    body = []
    for name, sizes in rows:
        cells = f"<span>{text(name)}</span>"
        for column, parts in zip(columns, sizes, strict=True):
            cells += '<span class="stack">'
            for i, (kind, size) in enumerate(zip(kinds, parts, strict=True)):
                percent = 100 * size / (sum(parts) or 1.0)
                tip = text(f"{name}, {column}, {kind}: {percent:.1f} %")
                shown = f"{percent:.0f}" if percent >= 9 else ""
                cells += f'<i class="part{i}" style="width: {percent:.2f}%" title="{tip}">{shown}</i>'
            cells += "</span>"
        body.append(f'<div class="row">{cells}</div>')
    rest = "\n".join(body)
    return f'<div class="stacks"><div class="key">{key}</div><div class="row first">{first}</div>\n{rest}</div>'
