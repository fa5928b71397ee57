"""One HTML page about a few-shot class-incremental run: how well every method did, and what AFA learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from faverage.experiment.charts import STYLE, Series, line_chart
from faverage.experiment.report_scores import (
    comparison_section,
    earlier_in_words,
    f1_section,
    last_section,
    repeats_in_words,
    scores_of,
)
from faverage.report.page import (
    MISSING,
    bars,
    duration,
    facts,
    head,
    heat_map,
    number,
    page,
    stacks,
    table,
    text,
    warnings,
)

__all__ = ["write_report"]

_OWN = ("afa",)

Results = dict[str, Any]


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
        f1_section(methods, looks, results.get("paper") or {}),
        "<h2>After the last session</h2>",
        last_section(methods),
        _confusion(methods),
        comparison_section(results.get("comparisons") or []),
        _losses(methods, looks),
        _base(results.get("networks") or [results.get("base")]),
        _weights(methods, results["protocol"]),
        "<h2>Protocol</h2>",
        _protocol(results["protocol"]),
        warnings(results.get("notes") or [], "Notes on the paper"),
        "<h2>How to repeat it</h2>",
        f"<pre>{text(results.get('command') or MISSING)}</pre>",
        _settings(results),
    ]
    path.write_text(page(f"faverage: {name}", parts, STYLE), encoding="utf-8")


def _cards(results: Results) -> str:
    sessions = results["protocol"]["sessions"]
    last = {name: f1[-1] for name, f1 in scores_of(results["methods"]).items() if f1 and f1[-1] is not None}
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
        highest = max((v for row in shares for v in row if v is not None), default=None)
        by_head = [list(row) for row in zip(*shares, strict=True)]
        parts += [
            f"<h2>What {text(name)} learned</h2>",
            '<p class="soft">Shares of the fused output after the last session, read off the weights.</p>',
            "<h3>Means</h3>" + bars((str(mean), share or 0.0) for mean, share in said["means"]),
            "<h3>Heads, over all classes</h3>",
            bars((str(h), sum(v or 0.0 for v in row) / len(row)) for h, row in zip(heads, by_head, strict=True)),
            "<h3>Heads, class by class</h3>",
            f'<p class="soft">From blank, 0, to full, {number(highest)}; point at a cell for its number.{line}</p>',
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
    first = head([], ["session", "new classes", "training images", "test images of these classes"])
    return f"<p>{text(said)}</p>" + table(first, rows)


def _settings(results: Results) -> str:
    config = results.get("config") or {}
    lines = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in config.items())
    versions = ", ".join(f"{name} {version}" for name, version in (results.get("versions") or {}).items())
    settings = f"<h3>Settings</h3><pre>{text(lines)}</pre>" if lines else ""
    return settings + f'<p class="soft">{text(versions)}</p>'
