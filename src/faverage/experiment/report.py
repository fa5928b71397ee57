"""The files of a run, and among them its page: how well every method did, and what AFA learned."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from faverage.experiment.figures import FIGURES, balance_curve, base_and_new, draw_figures
from faverage.experiment.tables import (
    HEADINGS,
    METRICS,
    OVERALL,
    OVERALL_NOTE,
    TABLES,
    UNMARKED,
    best_of,
    best_shown,
    compared,
    earlier_in_words,
    in_bold,
    repeats_in_words,
    scaled_by,
    with_choice,
)
from faverage.report.charts import STYLE, Point, Series, line_chart, scatter_chart
from faverage.report.page import (
    MISSING,
    bars,
    duration,
    facts,
    head,
    heat_map,
    how_to_repeat,
    number,
    page,
    row,
    stacks,
    table,
    text,
    warnings,
)
from faverage.storage import replacing

__all__ = ["replacing_all", "write", "write_report"]

_OWN = ("afa",)

Results = dict[str, Any]


def write(out: Path, results: Results) -> None:
    """Write all files of a run: results.json, table.md, table.tex, table.csv, report.html, and its figures.

    Args:
        out: folder of the results.
        results: plain JSON data of a run.
    """
    figures = {f"figures/{name}": data for name, data in draw_figures(results).items()}
    with replacing_all(out, ("results.json", "report.html", *TABLES, *figures)) as places:
        places["results.json"].write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_report(places["report.html"], results)
        for name, made in TABLES.items():
            places[name].write_text(made(results), encoding="utf-8")
        for name, data in figures.items():
            places[name].write_bytes(data)
        for name in FIGURES:
            if f"figures/{name}" not in figures:  # of an earlier run
                (out / "figures" / name).unlink(missing_ok=True)


@contextmanager
def replacing_all(out: Path, names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Yield a temporary file for each name; at the end all are put in place, the first one last.

    Where the first one is, all are whole and of one run.
    """
    with ExitStack() as stack:
        for folder in {(out / name).parent for name in names} - {out}:
            folder.mkdir(exist_ok=True)
            stack.callback(_remove_if_empty, folder)  # where nothing was written
        places = {name: stack.enter_context(replacing(out / name)) for name in names}  # moved in the opposite order
        yield places
        (out / names[0]).unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def write_report(path: Path, results: Results) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        results: plain JSON data of a run, as in its ``results.json``; numbers may be None.
    """
    name = results["dataset"]
    methods: Results = results["methods"]
    looks = {method: i for i, method in enumerate(sorted(methods, key=lambda m: m not in _OWN))}
    parts = [
        f"<h1>Learning new classes from a few images: {text(name)}</h1>",
        f'<p class="soft">{text(results.get("date") or "")}</p>',
        *([f"<p>{text(earlier_in_words(results['earlier']).capitalize())}.</p>"] if results.get("earlier") else []),
        _cards(results),
        "<h2>F1 by session</h2>",
        _f1_section(methods, looks, results.get("paper") or {}),
        "<h2>After the last session</h2>",
        _last_section(methods),
        _confusion(methods),
        _trade(methods, looks),
        _stopping(methods),
        _overall_section(methods),
        _comparison_section(results.get("comparisons") or []),
        _losses(methods, looks),
        _base(results.get("networks") or [results.get("base")]),
        _weights(methods, results["protocol"]),
        "<h2>Protocol</h2>",
        _protocol(results["protocol"]),
        warnings(results.get("notes") or [], "Notes on the paper"),
        how_to_repeat(results.get("command"), results.get("config") or {}, results.get("versions") or {}),
    ]
    path.write_text(page(f"faverage: {name}", parts, STYLE), encoding="utf-8")


def _cards(results: Results) -> str:
    sessions = results["protocol"]["sessions"]
    last = {name: f1[-1] for name, f1 in _scores_of(results["methods"]).items() if f1 and f1[-1] is not None}
    best = max(last, key=lambda name: last[name], default=None)
    cards = [
        (str(results["dataset"]), f"dataset, {repeats_in_words(results)}"),
        (str(len(sessions)), "session" if len(sessions) == 1 else "sessions"),
        (str(sum(s.get("classes") or 0 for s in sessions)), "classes"),
        (MISSING if best is None else best, f"best at the last session, F1 {number(last.get(best or ''), scale=100)}"),
        (str(results.get("device") or MISSING), "device"),
        (duration(results.get("seconds")), "time"),
    ]
    return facts(cards)


def _confusion(methods: Results) -> str:
    rows = []
    for name, method in methods.items():
        if method.get("confusion"):
            found = [method["confusion"].get(kind) or {} for kind in ("base", "new")]
            keys = [("right", "other base", "new"), ("right", "other new", "base")]
            rows.append((name, [[part.get(k) or 0.0 for k in ks] for part, ks in zip(found, keys, strict=True)]))
    if not rows:
        return ""
    kinds = ["right class", "wrong, of the same kind", "wrong, of the other kind"]
    return (
        "<h3>Where base and new examples go</h3>"
        '<p class="soft">Percent of the test examples of base classes (left) and of new classes (right).</p>'
        + stacks(["base classes", "new classes"], kinds, rows)
    )


def _trade(methods: Results, looks: dict[str, int]) -> str:
    last = {name: base_and_new(method["sessions"][-1]) for name, method in methods.items() if method["sessions"]}
    points = [Point(name, *found, looks[name]) for name, found in last.items() if found is not None]
    curve = balance_curve(methods)
    if len(points) < 2:
        return ""
    said = "After the last session, in percent; grey lines: equal harmonic mean of the two (HM)."
    if curve:
        said += " The curve is afa with other values of the setting balance: how much an example of a new class counts."
        said += " It is of the first repeat." if methods["afa"].get("spread") else ""
    chart = scatter_chart(
        points, title="Accuracy on base and on new classes", x_label="base (%)", y_label="new (%)", curve=curve
    )
    return f'<h3>Base classes against new ones</h3><p class="soft">{said}</p>{chart}'


def _stopping(methods: Results) -> str:
    """Return what ``afa`` has where all views look only at what the first one is not sure of."""
    steps = (methods.get("afa") or {}).get("stopping") or []
    if not steps:
        return ""
    said = "afa after the last session, where all views look only at images of which the first view is not sure: "
    said += "passes of a network an image, on average, and percent."
    said += " Of the first repeat." if methods["afa"].get("spread") else ""
    columns = ("accuracy", "f1", "base", "new")
    rows = []
    for step in steps:
        cells = [number(step.get("again"), scale=100), *(number(step.get(key), scale=100) for key in columns)]
        rows.append(_row(number(step.get("passes"), digits=1), numbers=cells))
    first = head(["passes"], ["looked at again", "accuracy", "F1", "base", "new"])
    return f'<h3>Stopping where the answer is sure</h3><p class="soft">{said}</p>{table(first, rows, "scores")}'


def _losses(methods: Results, looks: dict[str, int]) -> str:
    found = {name: method["history"] for name, method in methods.items() if method.get("history")}
    charts = [
        line_chart(
            [Series(name, history.get(key) or [], looks[name]) for name, history in found.items()],
            title=title,
            x_label="epoch",
            first=1,
            y_label="loss",
            digits=4,
        )
        for key, title in (("train", "Loss on rehearsed examples"), ("validation", "Loss on held-out examples"))
    ]
    if not any(charts):
        return ""
    return f'<h2>Training of the fusers in the last session</h2><div class="pair">{"".join(charts)}</div>'


def _base(networks: list[Results | None]) -> str:
    told = [network for network in networks if network is not None]
    if not told:
        return ""
    several = len(told) > 1
    names = [f"network {k}" for k in range(1, len(told) + 1)] if several else ["base session"]
    charts = [
        line_chart(
            [
                Series(name, _scaled((network.get("history") or {}).get(key), scale), look + k)
                for k, (name, network) in enumerate(zip(names, told, strict=True))
            ],
            title=title,
            x_label="epoch",
            first=1,
            y_label=label,
            digits=4 if scale == 1 else 2,
        )
        for key, title, label, look, scale in (
            ("loss", "Loss", "loss", 0, 1),
            ("accuracy", "Accuracy on the training images", "accuracy (%)", 0 if several else 2, 100),
        )
    ]
    lines = []
    for name, network in zip(names, told, strict=True):
        said = f"{number(network.get('epochs'), 0)} epochs in {duration(network.get('seconds'))}, "
        said += f"{number(network.get('images_per_second'), 0)} images a second."
        views = " + ".join(network.get("views") or [])
        lines.append(text(f"{name.capitalize()} ({network.get('backbone')}; {views}): {said}" if several else said))
    said = "<br>".join(lines)
    return f'<h2>Training of the base session</h2><p class="soft">{said}</p><div class="pair">{"".join(charts)}</div>'


def _scaled(values: list[float | None] | None, scale: int) -> list[float | None]:
    return [None if value is None else scale * value for value in values or []]


def _weights(methods: Results, protocol: Results) -> str:
    sizes = [session.get("classes") or 0 for session in protocol["sessions"]]
    starts = {sum(sizes[:k]) for k in range(1, len(sizes))}
    parts = []
    for name in sorted(methods, key=lambda m: m not in _OWN):
        said = methods[name].get("explanation")
        if not said:
            continue
        heads, classes, shares = said["heads"], said["classes"], said["shares"]
        breaks = starts if sum(sizes) == len(classes) else set()
        line = " A line stands before the classes of each session." if breaks else ""
        by_head = [list(row) for row in zip(*shares, strict=True)]
        parts += [
            f"<h2>What {text(name)} learned</h2>",
            '<p class="soft">Shares of the fused output after the last session, read off the weights.</p>',
            "<h3>Means</h3>" + bars((str(mean), share or 0.0) for mean, share in said["means"]),
            "<h3>Heads, over all classes</h3>",
            bars((str(h), sum(v or 0.0 for v in row) / len(row)) for h, row in zip(heads, by_head, strict=True)),
            "<h3>Heads, class by class</h3>",
            f'<p class="soft">Point at a cell for its number.{line}</p>',
            heat_map("head", classes, heads, by_head, dense=True, breaks=breaks),
        ]
    return "\n".join(parts)


def _protocol(protocol: Results) -> str:
    rows = []
    for k, session in enumerate(protocol["sessions"]):
        cells = "".join(f'<td class="n">{number(session.get(key), 0)}</td>' for key in ("classes", "train", "test"))
        rows.append(f'<tr><td class="n">{k}</td>{cells}</tr>')
    skipped = protocol.get("skipped") or 0
    said = f"Shots and classes: {protocol.get('source') or MISSING}. "
    said += f"{skipped:,} images could not be read and were left out." if skipped else "No image was left out."
    if protocol.get("draws"):
        said += f" Fresh draws of the shots are {protocol['draws']}."
    if protocol.get("orders"):
        said += f" Other orders of the classes permute those {protocol['orders']}."
    first = head([], ["session", "new classes", "training images", "test images of these classes"])
    return f"<p>{text(said)}</p>" + table(first, rows)


def _scores_of(methods: Results) -> dict[str, list[float | None]]:
    """Return the F1 of each method by session; None where a method has fewer sessions than another, or no number."""
    length = max((len(method["sessions"]) for method in methods.values()), default=0)
    scores = {}
    for name, method in methods.items():
        f1 = [session.get("f1") for session in method["sessions"]]
        f1 = [None if v is None or not math.isfinite(v) else v for v in f1]
        scores[name] = f1 + [None] * (length - len(f1))
    return scores


def _f1_section(methods: Results, looks: dict[str, int], paper: dict[str, Sequence[float | None]]) -> str:
    """Return the chart of F1 against session, with bands over repeats, and its table."""
    scores = _scores_of(methods)
    length = max((len(f1) for f1 in scores.values()), default=0)
    bands = {name: [_percent(s.get("f1")) for s in methods[name].get("spread") or []] for name in scores}
    series = [Series(name, [_percent(v) for v in f1], looks[name], bands[name] or None) for name, f1 in scores.items()]
    title = "Macro F1 of all classes seen so far"
    chart = line_chart(series, title=title, x_label="session", y_label="F1 (%)", cut=True, named=True)
    ours, theirs = {}, {}
    for name, f1 in scores.items():
        ours[name] = [*f1, _mean(f1[1:] or f1)]
        published = list(paper.get(name) or [])[:length]
        published += [None] * (length - len(published))
        theirs[name] = [*published, _mean(published[1:] or published)]
    best = [best_shown([row[j] for row in ours.values()], scale=100) for j in range(length + 1)]
    rows = []
    for name, values in ours.items():
        cells = []
        more = [*bands[name], None] if bands[name] else [None] * len(values)
        for value, other, top, band in zip(values, theirs[name], best, more, strict=True):
            small = f"<small>{number(other)}</small>" if name in paper else ""
            cells.append(f"{_bold(value, top)}{_spread(band)}{small}")
        rows.append(_row(name, numbers=cells, chosen=methods[name].get("chosen")))
    note = "Percent, by session (0 is the base session); the best of each column is bold, unless all are alike."
    if any(name in paper for name in methods):
        note += " Small below ours: the paper's number, where it has that method."
    if any(bands.values()):
        note += " Bands and ±: one standard deviation over repeats."
    first = head(["method"], [*(str(k) for k in range(length)), "mean 1…"])
    return (chart if length > 1 else "") + f'<p class="soft">{note}</p>' + table(first, rows, "scores")


def _last_section(methods: Results) -> str:
    """Return the table of all metrics after the last session."""
    length = max((len(method["sessions"]) for method in methods.values()), default=0)
    last = {name: m["sessions"][-1] if len(m["sessions"]) == length > 0 else {} for name, m in methods.items()}
    values = {name: [session.get(metric) for metric in METRICS] for name, session in last.items()}
    best = []
    for j, metric in enumerate(METRICS):
        best.append("" if metric in UNMARKED else best_shown([row[j] for row in values.values()], scale=100))
    rows = []
    for name, found in values.items():
        spread = (methods[name].get("spread") or [{}])[-1]
        more = [_spread(_percent(spread.get(metric))) for metric in METRICS]
        cells = [f"{_bold(v, top)}{m}" for v, top, m in zip(found, best, more, strict=True)]
        seconds = [session.get("seconds") for session in methods[name]["sessions"]]
        total = sum(s for s in seconds if s is not None) if any(s is not None for s in seconds) else None
        rows.append(_row(name, numbers=[*cells, number(total)]))
    note = (
        "Percent. Base and new are the accuracies on base and on new classes, HM is their harmonic mean; "
        "forgetting is what earlier classes lost since their best session: who never found them has none to lose. "
        "The time is that of all sessions."
    )
    first = head(["method"], [*(HEADINGS.get(d, d) for d in METRICS), "time (s)"])
    return f'<p class="soft">{note}</p>' + table(first, rows, "scores")


def _overall_section(methods: Results) -> str:
    """Return the table over all sessions; nothing for results of an earlier version, which have no summaries."""
    if not any(method.get("summary") for method in methods.values()):
        return ""
    best = {column: best_of(methods, column) for column in OVERALL}
    rows = []
    for name, method in methods.items():
        cells = [in_bold(c.cell(method), "<b>{}</b>") if name in best[c] else c.cell(method) for c in OVERALL]
        rows.append(_row(name, numbers=cells))
    first = head(["method"], [column.heading for column in OVERALL])
    return f'<h2>Over all sessions</h2><p class="soft">{OVERALL_NOTE}</p>' + table(first, rows, "scores")


def _comparison_section(comparisons: Sequence[Results]) -> str:
    """Return the differences of F1 between the reference and every other method, with their intervals."""
    if not comparisons:
        return ""
    rows = []
    for one in comparisons:
        what, *numbers = compared(one)
        rows.append(_row(one["method"], [what], numbers))
    reference = text(comparisons[0]["reference"])
    note = (
        f"F1 of {reference} minus that of each method, in points, over repeats with the same seed and the same shots "
        "for both; the interval is the 95 % confidence interval of a paired t-test."
    )
    first = head(["method", "F1 of the"], ["difference", "interval", f"{reference} wins"])
    return f'<h2>{reference} against the others</h2><p class="soft">{note}</p>' + table(first, rows, "scores")


def _row(name: str, words: Sequence[str] = (), numbers: Sequence[str] = (), chosen: Results | None = None) -> str:
    """Return a row of a table; our own method's is marked, and what a method chose stands beside its name."""
    return row(with_choice(name, chosen), words, numbers, kind="own" if name in _OWN else "")


def _percent(value: float | None) -> float | None:
    return scaled_by(value, 100)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _bold(value: float | None, best: str) -> str:
    shown = number(value, scale=100)
    return f"<b>{shown}</b>" if shown == best else shown


def _spread(band: float | None) -> str:
    return "" if band is None else f" ± {band:.2f}"
