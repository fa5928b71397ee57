"""Whether probabilities can be believed: the numbers, and their part of the report."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from faverage.prediction_files.calibration import calibration
from helpers_fuse import fuse


@pytest.fixture(scope="module")
def honest() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and labels that were drawn by them."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.7, 0.7, 0.7], 4000)
    return p, (p.cumsum(1) < rng.random((4000, 1))).sum(1)


def test_honest_probabilities_are_calibrated_and_sharpened_ones_are_not(honest) -> None:
    p, y = honest
    fair, sure = calibration("fair", p, y), calibration("sure", p**3 / (p**3).sum(1, keepdims=True), y)
    assert fair.ece < 0.02 and fair.miscalibration < 0.02
    assert sure.ece > 0.1 and sure.miscalibration > 0.05
    assert all(b.accuracy < b.confidence for b in sure.bins if b.rows > 100)
    assert sum(b.rows for b in sure.bins) == 4000


def test_the_parts_sum_to_the_brier_score(honest) -> None:
    p, y = honest
    one = calibration("two classes", np.stack([p[:, 0], 1 - p[:, 0]], 1), (y > 0).astype(int))
    assert one.brier == pytest.approx(2 * brier_score_loss(y > 0, 1 - p[:, 0]))
    assert one.miscalibration - one.discrimination + one.uncertainty == pytest.approx(one.brier)
    share = (y > 0).mean()
    assert one.uncertainty == pytest.approx(2 * share * (1 - share))
    flat = calibration("shares", np.tile(np.bincount(y) / len(y), (len(y), 1)), y)
    assert abs(flat.miscalibration) < 1e-12 and abs(flat.discrimination) < 1e-12


def test_the_report_shows_the_fuser_and_the_models(folder: Path) -> None:
    assert fuse(folder, "--fuser", "log-pool", "--compare", "log-pool,arithmetic").exit_code == 0
    html = (folder / "report.html").read_text()
    part = html[html.index("Can the probabilities be believed?") : html.index("What AFA learned")]
    drawn = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", part, re.DOTALL)]
    names = [svg.attrib["aria-label"].split(",")[0] for svg in drawn]
    assert names == [f"Reliability of {name}" for name in ("log-pool", "model a", "model b", "model c")]
    assert [svg.find("g").attrib["class"] for svg in drawn] == ["series strong", *["series"] * 3]
    for svg in drawn:
        rows = [int(said.split()[-2]) for said in svg.attrib["aria-label"].split(": ", 1)[1].split("; ")]
        assert sum(rows) == 45 and len(svg.findall("g/circle")) == len(rows) == len(svg.findall("g/rect"))
    assert re.search(r'<tr class="chosen"><td class="name">log-pool</td>(<td class="n">\d\.\d{4}</td>){5}</tr>', part)


def test_a_fuser_that_was_not_compared_has_no_diagram(folder: Path) -> None:
    assert fuse(folder, "--fuser", "log-pool", "--compare", "arithmetic").exit_code == 0
    html = (folder / "report.html").read_text()
    assert "Reliability of model a" in html and "Reliability of log-pool" not in html
    assert fuse(folder, "--compare", "none", "--force").exit_code == 0
    assert "believed" not in (folder / "report.html").read_text()
