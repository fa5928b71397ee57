"""Tables as text: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from faverage.report.page import MISSING


def markdown_table(left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown.

    Args:
        left: headings of columns of words.
        right: headings of columns of numbers.
        rows: the cells of each row, escaped.
    """
    first = [f"| {' | '.join([*left, *right])} |", "|" + "---|" * len(left) + "---:|" * len(right)]
    return first + [f"| {' | '.join(row)} |" for row in rows]


def latex_table(first: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, label: str) -> str:
    """Return a table in LaTeX, which needs the package booktabs; a wide one spans both columns of a paper.

    Args:
        first: heading of the names of the rows.
        columns: headings of the other columns, whose cells are centred.
        rows: the cells of each row, escaped.
        caption: of the table, escaped.
        label: for references to it.
    """
    kind = "table*" if len(columns) > 6 else "table"
    lines = [rf"\begin{{{kind}}}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{{label}}}"]
    lines += [r"\begin{tabular}{l" + "c" * len(columns) + "}", r"\toprule"]
    lines += [" & ".join([first, *columns]) + r" \\", r"\midrule"]
    lines += [" & ".join(re.sub(r"^-(?=\d)", "$-$", cell) for cell in row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", rf"\end{{{kind}}}"]) + "\n"


def csv_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def exact(value: float | None) -> str:
    """Return a number for CSV, with six decimals; nothing for None."""
    return "" if value is None else f"{value:.6f}"


def plus_minus(
    mean: float | None, std: float | None = None, *, scale: float = 1.0, digits: int = 2, sign: str = " ± "
) -> str:
    """Return ``scale`` times a mean ± a standard deviation, which may be None; an en dash where there is no mean.

    >>> plus_minus(0.5, 0.01, scale=100), plus_minus(0.5), plus_minus(None)
    ('50.00 ± 1.00', '0.50', '–')
    """
    if mean is None:
        return MISSING
    return f"{scale * mean:.{digits}f}" + ("" if std is None else f"{sign}{scale * std:.{digits}f}")


def in_markdown(name: str) -> str:
    r"""Escape what Markdown would take for more than text.

    >>> print(in_markdown("a|b_c\nd"))
    a\|b\_c d
    """
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(name.split()))


def in_latex(name: str) -> str:
    r"""Escape what LaTeX would take for more than text.

    >>> print(in_latex("50%_a&b"))
    50\%\_a\&b
    """
    odd = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(odd.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in " ".join(name.split()))
