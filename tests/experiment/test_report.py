"""The report of a run: what it shows, that it escapes names, and that it needs nothing from elsewhere."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from faverage.experiment import DEFAULT_METHODS
from faverage.experiment.report import write_report
from faverage.experiment.tables import csv_of, latex, markdown
from faverage.report.charts import COLOURS, Point, Series, line_chart, placed, scatter_chart, ticks
from faverage.report.page import heat_map

METHODS = list(DEFAULT_METHODS)
TRAINED = {"shallow-net", "deep-net", "weighted-average", "mixture-of-experts", "afa-paper", "afa"}
SECTIONS = [
    "F1 by session",
    "After the last session",
    "Where base and new examples go",
    "Base classes against new ones",
    "Training of the fusers",
    "Training of the base session",
    "What afa learned",
    "What afa-paper learned",
    "Protocol",
    "Notes on the paper",
    "How to repeat it",
    "Settings",
]


def session(rng: np.random.Generator, k: int, level: float) -> dict[str, Any]:
    base, new = level - 0.012 * k, max(level - 0.45 + 0.01 * k, 0.0)
    return {
        "f1": level - (0.37 - 4 * (level - 0.72)) * k / 9 + 0.004 * rng.normal(),
        "accuracy": level - 0.03 * k,
        "base": base,
        "new": new if k else None,
        "harmonic": 2 * base * new / (base + new) if k else None,
        "forgetting": 0.01 * k * rng.random(),
        "by_session": [base, *[new] * k],
        "seconds": 0.1 + rng.random(),
    }


def method(rng: np.random.Generator, name: str, n_sessions: int, classes: list[str]) -> dict[str, Any]:
    k, n = n_sessions, len(classes)
    level = 0.72 + 0.04 * rng.random()
    epochs = int(rng.integers(30, 400))
    loss = 1.1 + 2.4 * np.exp(-np.arange(epochs) / (5 + 20 * rng.random()))
    return {
        "sessions": [session(rng, j, level) for j in range(k)],
        "confusion": {
            "base": {"right": 0.65, "other base": 0.27, "new": 0.08},
            "new": {"right": 0.3 * rng.random(), "other new": 0.2, "base": 0.5},
        }
        if k > 1
        else None,
        "history": {"train": loss.tolist(), "validation": (loss + 0.1).tolist(), "best_epoch": epochs - 1}
        if name in TRAINED
        else None,
        "explanation": {
            "heads": ["base", *(f"session {j}" for j in range(1, k))],
            "classes": classes,
            "means": [["arithmetic", 0.31], ["geometric", 0.6], ["harmonic", 0.09]],
            "shares": rng.dirichlet(np.full(k, 0.6), n).round(5).tolist(),
        }
        if name.startswith("afa")
        else None,
    }


def draw(n_sessions: int = 9, base: int = 60, new: int = 5, names: list[str] | None = None) -> dict[str, Any]:
    """Return the results of a run that never was."""
    rng = np.random.default_rng(0)
    sizes = [base, *[new] * (n_sessions - 1)]
    classes = [f"class number {c}" for c in range(sum(sizes))]
    sessions = [{"classes": c, "train": 25 if k else None, "test": 100 * c} for k, c in enumerate(sizes)]
    decay = np.exp(-np.arange(57) / 15)
    return {
        "dataset": "mini-imagenet",
        "protocol": {"source": "official lists", "sessions": sessions, "skipped": 0},
        "seed": 0,
        "config": {"dataset": "mini-imagenet", "lr": 0.1, "weights": None, "methods": METHODS},
        "command": "faverage run mini-imagenet --seed 0",
        "versions": {"faverage": "0.1.0", "torch": "2.13.0"},
        "device": "cpu",
        "date": "2026-01-01T00:00:00+00:00",
        "seconds": 754.2,
        "base": {
            "epochs": 57,
            "images_per_second": 9000.0,
            "seconds": 230.0,
            "history": {"loss": (4 * decay).tolist(), "accuracy": (1 - decay).tolist(), "lr": (0.1 * decay).tolist()},
        },
        "methods": {name: method(rng, name, n_sessions, classes) for name in names or METHODS},
        "paper": {"afa-paper": [75.37, 68.83, 66.54, 63.09, 57.86, 56.40, 53.50, 50.36, 48.80], "lucir": [75.93]},
        "notes": ["60 base and 40 new classes make 51.30, not 48.11."],
    }


def page_of(tmp_path: Path, results: dict[str, Any]) -> str:
    write_report(tmp_path / "report.html", results)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|@import|url\(|<link|<img|<iframe| src=| href=", page)
    charts(page)
    for tag in ("table", "div", "figure", "svg", "ul", "span", "pre", "section"):
        assert len(re.findall(f"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag
    return page


def charts(page: str) -> list[ElementTree.Element]:
    """Return the charts of a page; each is well-formed XML and every number in it is finite."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]
    for svg in found:
        for element in svg.iter():
            for key in ("d", "x", "y", "x1", "y1", "transform"):
                assert not re.search(r"nan|inf", element.get(key, "")), element.attrib
    return [svg for svg in found if svg.get("role") == "img"]


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table below a heading, by method."""
    part = page.split(f"<h2>{heading}</h2>")[1].split("</table>")[0].split("<tbody>")[1]
    rows = [re.findall(r"<td.*?>(.*?)</td>", row) for row in part.strip().split("\n")]
    return {row[0]: row[1:] for row in rows if row}


# The page -------------------------------------------------------------------------------------------------------------


def test_all_sections_are_there(tmp_path: Path) -> None:
    page = page_of(tmp_path, draw())
    positions = [page.index(f">{title}") for title in SECTIONS[:6]]
    assert positions == sorted(positions)
    for words in (
        *SECTIONS,
        "12.6 min",
        "not 48.11.",
        "faverage run mini",
        "lr: 0.1",
        "weights: null",
        "torch 2.13",
    ):
        assert words in page
    assert len(charts(page)) == 1 + 1 + 2 + 2
    assert page.count('class="stack"') == 2 * len(METHODS)
    assert len(page) < 1_000_000


def test_the_table_has_our_numbers_and_the_papers(tmp_path: Path) -> None:
    results = draw()
    rows = rows_of(page_of(tmp_path, results), "F1 by session")
    assert list(rows) == METHODS
    for name, cells in rows.items():
        f1 = [s["f1"] for s in results["methods"][name]["sessions"]]
        plain = [re.sub(r"</?b>|<small>.*", "", cell) for cell in cells]
        assert plain == [f"{100 * v:.2f}" for v in [*f1, np.mean(f1[1:])]]
        assert all("<small>" in cell for cell in cells) == (name == "afa-paper")
    assert "<small>48.80</small>" in rows["afa-paper"][8] and "<small>58.17</small>" in rows["afa-paper"][9]


def test_the_best_of_each_column_is_bold(tmp_path: Path) -> None:
    results = draw()
    page = page_of(tmp_path, results)
    table = rows_of(page, "F1 by session")
    for j in range(9):
        best = max(results["methods"], key=lambda name: results["methods"][name]["sessions"][j]["f1"])
        assert [name for name, cells in table.items() if "<b>" in cells[j]] == [best]
    last = rows_of(page, "After the last session")
    keys = ("accuracy", "base", "new", "harmonic", "f1", "forgetting")
    for j, key in enumerate(keys):
        values = {name: round(100 * m["sessions"][-1][key], 2) for name, m in results["methods"].items()}
        tops = {name for name, value in values.items() if value == max(values.values()) and key != "forgetting"}
        assert {name for name, cells in last.items() if "<b>" in cells[j]} == tops
    best = max(results["methods"], key=lambda name: results["methods"][name]["sessions"][-1]["f1"])
    assert f"<li><b>{best}</b>best at the last session" in page


def test_where_all_are_alike_none_is_bold(tmp_path: Path) -> None:
    results = draw(2, names=["vote", "afa"])
    for method in results["methods"].values():
        method["sessions"][0]["f1"] = 0.75
    assert not any("<b>" in cells[0] for cells in rows_of(page_of(tmp_path, results), "F1 by session").values())
    assert r"vote & 75.00 & \textbf{" in latex(results) or r"afa & 75.00 & \textbf{" in latex(results)


def test_tables_in_latex_stand_by_themselves() -> None:
    results = draw(9, names=["a_b", "afa"]) | {"dataset": "mini_ImageNet 50%"}
    results["methods"]["afa"]["sessions"][-1]["forgetting"] = -0.3
    said = latex(results)
    assert " & $-$30.00 " in said
    assert said.startswith("% \\usepackage{booktabs}\n") and said.count(r"\toprule") == said.count(r"\bottomrule") == 2
    assert re.findall(r"\\label\{(.*?)\}", said) == ["tab:mini_imagenet-50-f1", "tab:mini_imagenet-50-last"]
    assert r"HM is the harmonic mean of base and new accuracy" in said and r"mini\_ImageNet 50\%, seed 0" in said
    assert re.findall(r"\\begin\{(.*?)\}", said) == ["table*", "tabular", "table", "tabular"]
    assert sorted(re.findall(r"\\begin\{(.*?)\}", said)) == sorted(re.findall(r"\\end\{(.*?)\}", said))


def test_the_table_over_all_sessions(tmp_path: Path) -> None:
    results = draw(names=["harmonic", "vote", "afa"])
    assert "Over all sessions" not in page_of(tmp_path, results)  # of an earlier version, without summaries
    assert "Over all sessions" not in markdown(results) and "Over all" not in latex(results)
    metrics = ("average_accuracy", "average_f1", "average_harmonic", "gacc_auc", "performance_drop")
    costs = {"passes": 8, "flops": 1_820_000_000, "base_seconds": 61.25, "session_seconds": 0.5}
    for i, method in enumerate(results["methods"].values()):
        method["summary"] = {key: 0.1 * (i + 1) + 0.01 * j for j, key in enumerate(metrics)}
        method["summary_spread"] = {key: 0.01 for key in metrics}
        method |= {"costs": costs, "costs_spread": dict.fromkeys(costs, 0.0) | {"base_seconds": 2.0}}
    results["methods"]["vote"]["summary"]["gacc_auc"] = None
    page = page_of(tmp_path, results)
    rows = rows_of(page, "Over all sessions")
    times = ["61.2 ± 2.0", "0.50", "8", "1.820"]
    assert rows["harmonic"] == [f"{v}.00 ± 1.00" for v in (10, 11, 12, 13, 14)] + times
    assert rows["afa"][:5] == [*(f"<b>{v}.00</b> ± 1.00" for v in (30, 31, 32, 33)), "34.00 ± 1.00"]
    assert rows["vote"][3] == "–"
    last = "| afa | 30.00 ± 1.00 | 31.00 ± 1.00 | 32.00 ± 1.00 | 33.00 ± 1.00 | 34.00 ± 1.00 | 61.2 ± 2.0 | 0.50 | 8 |"
    assert last in markdown(results) and last not in markdown(results, short=True)
    assert "| HM |" in markdown(results) and "<th" in page and ">HM<" in page
    assert r"\textbf{33.00} $\pm$ 1.00 & 34.00 $\pm$ 1.00 & 61.2" in latex(results)
    first, row, *_ = (line.split(",") for line in csv_of(results).splitlines())
    found = dict(zip(first, row, strict=True))
    assert (found["hm"], found["average_hm"], found["flops"]) == ("", "0.120000", "1820000000")


def test_heat_map_has_a_cell_for_every_head_and_class(tmp_path: Path) -> None:
    page = page_of(tmp_path, draw(11, 100, 10, ["afa"]))
    dense = page.split('<table class="map dense">')[1].split("</table>")[0]
    assert dense.count("<td") == 11 * 200 and dense.count('<td class="first"') == 11 * 10
    assert "class number 199" in dense and dense.index(">base<") < dense.index(">session 10<")


def test_a_small_run_has_no_empty_sections(tmp_path: Path) -> None:
    results = draw(1, 6, names=["vote"]) | {"paper": None, "base": None, "notes": []}
    page = page_of(tmp_path, results)
    for words in ("Training of", "learned", "Notes on the paper", "Where base", "<small>", "<figure"):
        assert words not in page
    assert rows_of(page, "After the last session")["vote"][2] == "–"
    assert "<li><b>1</b>session</li>" in page and "<li><b>6</b>classes</li>" in page


def test_missing_numbers_are_dashes(tmp_path: Path) -> None:
    results = draw(3, 6, names=["vote", "afa"])
    results["methods"]["vote"]["sessions"][1]["f1"] = None
    results["methods"]["vote"]["history"] = {"train": [], "validation": []}
    results["methods"]["afa"]["sessions"].pop()
    results["methods"]["afa"]["history"] = {"train": [2.0, math.nan, 1.0], "validation": []}
    results["methods"]["afa"]["explanation"]["shares"][0] = [None, 0.5, 0.5]
    results |= {"seconds": None, "device": None, "command": "", "config": {}}
    results["base"]["history"] = {"loss": [None, 1.0, 0.5]}
    page = page_of(tmp_path, results)
    rows = rows_of(page, "F1 by session")
    assert rows["vote"][1] == "–" and rows["vote"][3] == "–" and rows["afa"][2:] == ["–", "–"]
    assert "<b>vote</b>best at the last" in page
    assert "None" not in page and "nan" not in page.split("<body>")[1]


def test_odd_names_are_escaped(tmp_path: Path) -> None:
    odd = "<script>\"a\" & 'b'</svg>\x00\udcff–é"
    results = draw(3, 4, 2, ["afa", odd])
    results["dataset"] = results["protocol"]["source"] = results["device"] = results["command"] = odd
    results["config"], results["versions"], results["notes"] = {odd: odd}, {odd: odd}, [odd]
    results["methods"][odd] = method(np.random.default_rng(1), "afa", 3, [odd] * 8)
    results["methods"][odd]["explanation"] |= {"heads": [odd, "b", "c"], "means": [[odd, 1.0]]}
    results["paper"] = {odd: [1.0, 2.0, 3.0]}
    page = page_of(tmp_path, results)
    assert "&lt;script&gt;&quot;a&quot; &amp; &#x27;b&#x27;&lt;/svg&gt;\ufffd?–é" in page
    assert "<script>" not in page and "\x00" not in page


# Its charts -----------------------------------------------------------------------------------------------------------


def test_a_chart_is_told_to_those_who_do_not_see_it() -> None:
    html = line_chart(
        [Series("afa", [1.0, 2.0], 0), Series("vote", [2.0, 1.0], 1)], title="T", x_label="session", y_label="F1"
    )
    (svg,) = charts(html)
    assert svg.get("aria-label") == "T: F1 against session for afa, vote"
    titles = [element.text for element in svg.iter("title")]
    assert "afa, session 1: 2.00" in titles and "vote, session 0: 2.00" in titles
    groups = svg.findall("g")
    assert [g.get("class") for g in groups] == ["series", "series strong"]


def test_fifteen_series_differ_and_more_do_by_colour_with_mark() -> None:
    html = line_chart([Series(f"m{i}", [i, i + 1], i) for i in range(15)], title="", x_label="", y_label="")
    looks = re.findall(r'<li>.*?(var\(--s\d+\)).*?<path class="line"(.*?) d=.*?<path class="mark".*?d="(.*?)"', html)
    assert len(set(looks)) == len(looks) == len(COLOURS) == 15
    assert len({look[1:] for look in looks}) == 15
    html = scatter_chart([Point(f"m{i}", 50 + i, i, i) for i in range(30)], title="", x_label="", y_label="")
    assert len(set(re.findall(r"<li>.*?(--s\d+).*?<path class=.mark.*? (d=.*?)/>", html))) == 30


def test_gaps_bands_and_single_points_are_drawn() -> None:
    series = [
        Series("gap", [1.0, None, 3.0, 4.0], 0, band=[0.1, None, 0.2, 0.0]),
        Series("none", [None, math.inf], 1),
        Series("long", list(np.linspace(0, 1, 5000)), 2),
    ]
    (svg,) = charts(line_chart(series[:2], title="", x_label="", y_label=""))
    (group,) = svg.findall("g")
    assert [path.get("d", "").count("M") for path in group if path.get("class") in ("band", "line")] == [2, 2]
    assert "gap,  2: 3.00 ± 0.20" in [element.text for element in svg.iter("title")]
    assert len(line_chart(series[2:], title="", x_label="", y_label="")) < 10_000
    assert charts(line_chart([Series("one", [0.0])], title="", x_label="", y_label=""))
    assert line_chart(series[1:2], title="", x_label="", y_label="") == ""


def test_a_line_far_below_leaves_the_chart_and_the_chart_says_so() -> None:
    series = [Series(f"m{v}", [99.0, v, v], i) for i, v in enumerate((47.0, 88.0, 90.0, 95.0))]
    words = {"title": "", "x_label": "session", "y_label": "F1"}
    (svg,) = charts(line_chart(series, **words, cut=True))
    bottom = max(float(line.get("y1", 0)) for line in svg.findall("line[@class='grid']"))
    lines = [path.get("d", "") for path in svg.findall("g/path[@class='line']")]
    heights = [float(y) for line in lines for y in re.findall(r"[\d.]+ ([\d.]+)", line)]
    assert len(lines) == 4 and max(heights) <= bottom + 0.1
    assert "↓ m47.0: 47" in "".join(svg.itertext())
    for other in (line_chart(series, **words), line_chart(series, **words, cut=True, highlight=["m47.0"])):
        assert "↓" not in other


def test_a_scatter_chart_has_every_point_and_the_curve() -> None:
    points = [Point("a<b", 70.0, 10.0, 0), Point("afa", 66.0, 30.0, 1), Point("c", 70.0, 10.0, 2)]
    html = scatter_chart(points, title="T", x_label="base", y_label="new", curve=[(75, 10, "b 0.5"), (66, 30, "2")])
    (svg,) = charts(html)
    titles = [element.text for element in svg.iter("title")]
    assert {"a<b: base 70.00, new 10.00", "c: base 70.00, new 10.00", "b 0.5: base 75.00, new 10.00"} < set(titles)
    assert "harmonic mean of base and new 20" in titles
    assert scatter_chart([], title="", x_label="", y_label="") == ""


def test_a_point_far_below_is_named_at_the_edge() -> None:
    points = [Point(f"m{y}", 99.0 + y / 200, float(y), y) for y in (0, 62, 68, 80, 86, 90)]
    (svg,) = charts(scatter_chart(points, title="", x_label="base", y_label="new"))
    labels = {"".join(e.itertext()): float(e.get("y", 0)) for e in svg.iter("text") if e.get("class") == "label"}
    assert "↓ m0: 0" in labels and labels["m62"] - labels["m90"] > 150  # of the 312 that the chart is high


def test_names_stand_beside_the_ends_of_lines() -> None:
    series = [Series(f"m{v}", [99.0, v], i) for i, v in enumerate((47, 88, 90, 90.1, 90.2, 95))]
    words: dict[str, Any] = {"title": "", "x_label": "session", "y_label": "F1", "cut": True}
    (svg,) = charts(html := line_chart(series, **words, named=True))
    labels = {"".join(e.itertext()): float(e.get("y", 0)) for e in svg.iter("text") if e.get("class") == "label"}
    assert list(labels) == ["↓ m47: 47", "m88", "m90", "m90.1", "m90.2", "m95"]
    assert (np.diff(list(labels.values())) <= -12.9).all() and 'class="chart named"' in html
    many = [Series(f"m{i}", [99.0, i], i) for i in range(30)]  # no room for that many
    assert 'class="label"' not in line_chart(many, **words | {"cut": False}, named=True)


def test_labels_keep_apart_and_inside() -> None:
    spots = [(50.0, 50.0)] * 4 + [(0.0, 0.0), (100.0, 100.0)]
    places = placed(spots, [(30.0, 8.0)] * 6, (0, 0, 100, 100))
    for k, (x, y) in enumerate(places):
        assert 15 <= x <= 85 and 4 <= y <= 96
        assert all(abs(x - u) >= 30 or abs(y - v) >= 8 for u, v in places[:k])


@pytest.mark.parametrize("low,high", [(0, 1), (0.02, 0.021), (-3, 8), (41.2, 76.9), (0, 5000), (1e-6, 2e-6)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    steps = np.diff(found)
    assert 2 <= len(found) <= 8 and low <= found[0] and found[-1] <= high
    assert np.allclose(steps, steps[0]) and f"{steps[0]:e}"[0] in "125"


def test_a_heat_map_shades_by_value() -> None:
    html = heat_map("", ["a", "b"], ["r"], [[0.25, 0.5]])
    assert re.findall(r"--v: ([\d.]+)", html) == ["0.300", "0.600"]
    assert re.search(r'<div class="scale">0<i style="--full: 0.6"></i>0.50</div>', html)
