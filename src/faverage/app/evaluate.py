"""How well a model does on a folder of labelled pictures: numbers, what is taken for what, and a page that shows it."""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from PIL import Image, ImageOps
from sklearn.metrics import f1_score

from faverage.app.model import Model
from faverage.app.names import ModelError, clean_name, pictures_of
from faverage.app.photos import MAX_BYTES, open_picture
from faverage.app.why import Answer
from faverage.data.benchmark import shown
from faverage.data.sources import class_items
from faverage.report.page import facts, head, number, page, row, table, text, warnings
from faverage.report.tables import csv_table, exact
from faverage.storage import read_regular

NONE = "none of these"
COLUMNS = ("file", "label", "answer", "probability", "familiarity")
_SIDE = 56  # pixels of a picture in a cell
_IN_CELL = 3
_FIRST = 10  # mistakes that are listed
_IN_ALL = 400
_LARGE = 40  # classes from which on only what is confused is shown


@dataclass(frozen=True)
class Row:
    """One picture."""

    file: Path  # where it is
    label: str  # what it shows: a class of the model, or another one
    answer: str  # the most probable class
    probability: float  # of that class
    familiarity: float  # how usual the picture would be for a known class, see ``faverage.fscil.unknown``
    known: bool  # whether the label is a class of the model


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of labelled pictures."""

    rows: tuple[Row, ...]  # one for each picture that could be read
    broken: tuple[tuple[Path, str], ...]  # the other files, and what is wrong with them
    sessions: tuple[tuple[str, ...], ...]  # classes of the model; first the base classes, of which there may be none
    rate: float  # share of pictures of known classes that may be answered "none of these"

    def of(self, which: Literal["all", "base", "new"]) -> list[Row]:
        """Return the pictures of all known classes, of base classes, or of those that were taught."""
        base = set(self.sessions[0]) if self.sessions else set()
        return [one for one in self.rows if one.known and (which == "all" or (one.label in base) == (which == "base"))]

    def accuracy(self, which: Literal["all", "base", "new"] = "all") -> float | None:
        """Return the share of right answers, where a class has to be named; None where there are no pictures."""
        rows = self.of(which)
        return sum(one.answer == one.label for one in rows) / len(rows) if rows else None

    @cached_property
    def strangers(self) -> list[Row]:
        """The pictures of classes that the model does not know."""
        return [one for one in self.rows if not one.known]

    def none(self, rows: Sequence[Row]) -> float | None:
        """Return the share that is answered "none of these"; None where there are no pictures."""
        return sum(one.familiarity <= self.rate for one in rows) / len(rows) if rows else None

    @property
    def macro_f1(self) -> float | None:
        """The mean of F1 over the known classes that have pictures here."""
        rows = self.of("all")
        if not rows:
            return None
        labels, said = [one.label for one in rows], [one.answer for one in rows]
        return float(f1_score(labels, said, labels=sorted(set(labels)), average="macro", zero_division=0))

    def said(self, one: Row) -> str:
        """Return the column of the matrix: the answer; for a stranger, whether it is none of these."""
        return NONE if not one.known and one.familiarity <= self.rate else one.answer

    @cached_property
    def cells(self) -> dict[tuple[str, str], list[Row]]:
        """The pictures of each cell of the matrix, by label and answer; the least familiar first."""
        found: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for one in sorted(self.rows, key=lambda one: one.familiarity):
            found[one.label, self.said(one)].append(one)
        return dict(found)

    def confused(self) -> list[tuple[str, str, int]]:
        """Return (label, answer, how often) for wrong answers, the most frequent first; strangers are among them."""
        wrong = Counter(
            {cell: len(rows) for cell, rows in self.cells.items() if cell[0] != cell[1] and cell[1] != NONE}
        )
        return [(label, answer, n) for (label, answer), n in wrong.most_common()]


def evaluate(
    model: Model,
    folder: Path,
    *,
    unknown: float = 0.05,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Evaluation:
    """Ask a model about every picture of a folder with one sub-folder a class.

    Args:
        model: that knows a class.
        folder: sub-folders that the model has no class for hold strangers.
        unknown: rate of "none of these", as in ``FewShotLearner.predict``.
        progress: hears how far it is.
    """
    if not 0 < unknown < 1:
        raise ModelError(f"unknown must be a rate between 0 and 1, such as 0.05, got {unknown:g}")
    if not folder.is_dir():
        raise ModelError(f"the folder {folder} does not exist: expected one sub-folder a class")
    names, items = class_items(folder)
    if not items:
        raise ModelError(
            f"{folder} has no images in sub-folders: expected one sub-folder a class, as {folder}/cat/1.jpg"
        )
    labels = [_clean(name) for name in names]
    learner = model.learner
    spelled = {clean_name(c): c for c in learner.classes}
    labels = [spelled.get(label, label) for label in labels]
    rows, broken = [], []
    for item, found in zip(items, model.predict_files([item.file for item in items], progress=progress), strict=True):
        if isinstance(found, Answer):
            label, (answer, p) = labels[item.label], found.top[0]
            rows.append(Row(item.file, label, answer, p, found.familiarity, label in learner.classes))
        else:
            broken.append((item.file, str(found)))
    if not rows:
        raise ModelError(
            f"none of the {pictures_of(len(items))} in {folder} can be read, the first is "
            f"{broken[0][0]}: {broken[0][1]}"
        )
    return Evaluation(tuple(rows), tuple(broken), tuple(map(tuple, learner.sessions)), unknown)


def _clean(name: str) -> str:
    try:
        return clean_name(name)
    except ModelError as error:
        raise ModelError(f"the sub-folder '{shown(name)}': {error}") from None


def rows_csv(found: Evaluation) -> str:
    """Return one line for each picture, by file: label, best class, its probability, familiarity."""
    lines = ((str(r.file), r.label, r.answer, exact(r.probability), exact(r.familiarity)) for r in found.rows)
    return csv_table(COLUMNS, lines)


# The page -------------------------------------------------------------------------------------------------------------

_STYLE = """
.wide:has(.matrix) { max-height: none; }
.matrix { width: auto; }
.matrix td { text-align: center; vertical-align: middle; min-width: 2.9rem; padding: .15rem; font-size: .85rem; }
.matrix td.right { background: rgba(var(--hue), .14); }
.matrix td.wrong { background: var(--warn); }
.matrix b { display: block; font-variant-numeric: tabular-nums; }
.matrix thead th { vertical-align: bottom; }
.matrix thead th.c { min-width: 0; padding: .4rem .2rem; }
.matrix thead th.c span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 11rem; }
.matrix tbody th { max-width: 11rem; padding: .15rem .75rem; overflow-wrap: anywhere; vertical-align: middle; }
.matrix img { width: 2.4rem; height: 2.4rem; }
.small img { width: 3.5rem; height: 3.5rem; }
:is(.matrix, .small) img { border-radius: .2rem; margin: 1px; vertical-align: middle; }
"""


def evaluation_page(found: Evaluation, title: str) -> str:
    """Return the evaluation as one HTML file, with small pictures in the cells of the matrix."""
    pictures = _Pictures()
    base, new = found.accuracy("base"), found.accuracy("new")
    cards = [(_percent(found.accuracy()), f"right of {pictures_of(len(found.of('all')))} of known classes")]
    cards += [(_percent(base), f"of {len(found.of('base')):,} of base classes")] if base is not None else []
    cards += [(_percent(new), f"of {len(found.of('new')):,} of taught classes")] if new is not None else []
    cards += [(number(found.macro_f1, scale=100, digits=1), "macro F1, in percent")]
    cards += [(_percent(found.none(found.of("all"))), f"of these are answered '{NONE}'")]
    if found.strangers:
        words = f"of {pictures_of(len(found.strangers))} of other classes are answered '{NONE}'"
        cards.append((_percent(found.none(found.strangers)), words))
    body = [
        f"<h1>{text(title)}</h1>",
        facts(cards),
        warnings(
            [f"{file}: {wrong}" for file, wrong in found.broken[:50]], f"{len(found.broken):,} files cannot be read"
        )
        if found.broken
        else "",
        _mistakes(found, pictures),
        "<h2>What is taken for what</h2>",
        '<p class="soft">Rows are what the pictures show, columns what the model says. Pictures of known classes stand '
        f"under the class that fits best; others under '{NONE}' where their familiarity is at most {found.rate:g}.</p>",
        _matrix(found, pictures),
        "<h2>Classes</h2>",
        _classes(found),
    ]
    return page(title, body, _STYLE)


def _mistakes(found: Evaluation, pictures: _Pictures) -> str:
    rows = []
    for label, answer, count in found.confused()[:_FIRST]:
        small = "".join(pictures.tag(one) for one in found.cells[label, answer][: 2 * _IN_CELL])
        rows.append(row(label, [answer], [f"{count:,}"], rest=f"<td>{small}</td>"))
    if not rows:
        return ""
    first = head(["shows", "taken for"], ["pictures"]).replace("</tr>", "<th></th></tr>")
    return "<h2>Most frequent mistakes</h2>" + table(first, rows, "small")


def _matrix(found: Evaluation, pictures: _Pictures) -> str:
    order = [c for session in found.sessions for c in session]
    labels = [c for c in order if any(one.label == c for one in found.rows)]
    labels += sorted({one.label for one in found.strangers})
    if len(labels) > _LARGE:
        wrong = {cell[0] for cell in found.cells if cell[0] != cell[1] and cell[1] != NONE}
        labels = [label for label in labels if label in wrong]
    answers = {cell[1] for cell in found.cells if cell[0] in labels}
    columns = [c for c in order if c in answers] + ([NONE] if NONE in answers else [])
    if not labels:
        return "<p>No answer is wrong.</p>"
    body = []
    for label in labels:
        cells = "".join(_cell(label, column, found, pictures) for column in columns)
        body.append(f"<tr><th>{text(label)}</th>{cells}</tr>")
    upright = "".join(f'<th class="c"><span>{text(column)}</span></th>' for column in columns)
    return table(f"<tr><th>shows</th>{upright}</tr>", body, "map matrix")


def _cell(label: str, column: str, found: Evaluation, pictures: _Pictures) -> str:
    rows = found.cells.get((label, column), [])
    if not rows:
        return '<td style="--v: 0"></td>'
    right = label == column or column == NONE
    small = "".join(pictures.tag(one) for one in rows[: 1 if right else _IN_CELL])
    return f'<td class="{"right" if right else "wrong"}"><b>{len(rows):,}</b>{small}</td>'


def _classes(found: Evaluation) -> str:
    rows = []
    known = found.of("all")
    for k, session in enumerate(found.sessions):
        for label in session:
            own = [one for one in known if one.label == label]
            said = [one for one in known if one.answer == label]
            right = sum(one.answer == label for one in own)
            numbers = [f"{len(own):,}", _percent(right / len(own) if own else None)]
            numbers += [_percent(right / len(said) if said else None), _percent(found.none(own))]
            rows.append(row(label, ["base" if k == 0 else f"taught, {k}"], numbers))
    for label in sorted({one.label for one in found.strangers}):
        own = [one for one in found.strangers if one.label == label]
        rows.append(row(label, ["not known"], [f"{len(own):,}", "–", "–", _percent(found.none(own))]))
    return table(head(["class", "learned"], ["pictures", "found (recall)", "right (precision)", NONE]), rows)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


class _Pictures:
    """Small pictures as HTML, up to a number of them."""

    def __init__(self) -> None:
        self.left = _IN_ALL

    def tag(self, one: Row) -> str:
        """Return an element ``img`` of a picture; nothing where there are enough, or it is gone."""
        if self.left == 0:
            return ""
        try:
            picture = open_picture(read_regular(one.file, MAX_BYTES + 1))
        except (OSError, ValueError):
            return ""
        self.left -= 1
        buffer = io.BytesIO()
        small: Any = ImageOps.fit(picture, (_SIDE, _SIDE), Image.Resampling.BILINEAR)
        small.save(buffer, "JPEG", quality=75)
        code = base64.b64encode(buffer.getvalue()).decode()
        words = text(f"{one.file.name}: {one.label}, answered {one.answer} with {100 * one.probability:.0f} %")
        return f'<img src="data:image/jpeg;base64,{code}" alt="{words}" title="{words}">'
