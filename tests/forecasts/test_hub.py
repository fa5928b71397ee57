"""The command that reads a forecast hub."""

import csv
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from faverage.cli.commands import app
from faverage.errors import UserError
from faverage.forecasts.hub import fuse_hub

LEVELS = [0.025, 0.25, 0.5, 0.75, 0.975]
Z = norm.ppf(LEVELS)
WEEKS = [date(2024, 1, 6) + timedelta(7 * i) for i in range(8)]
HEAD = ["reference_date", "target", "horizon", "target_end_date", "location", "output_type", "output_type_id", "value"]
NOISE = {"Team-good": 3.0, "Team-bad": 30.0, "Other-fair": 10.0, "Hub-baseline": 30.0, "Hub-ensemble": 10.0}


def write(path: Path, rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub of three members, a baseline and an ensemble over eight weeks; one member lacks a horizon."""
    rng = np.random.default_rng(0)
    places = ["US", "01", "02", "04"]
    ends = [WEEKS[0] + timedelta(7 * i) for i in range(-1, 10)]
    truth = {(end, place): float(rng.integers(50, 200)) for end in ends for place in places}
    rows = [["date", "location", "value"], *([e, p, v] for (e, p), v in truth.items() if e <= WEEKS[-1])]
    write(tmp_path / "hub/target-data/time-series.csv", rows)
    for model, noise in NOISE.items():
        for week in WEEKS:
            rows = [HEAD, [week, "peak", 0, week, "US", "pmf", "2024-01-06", 1.0]]
            for horizon in (0, 1) if model != "Other-fair" else (0,):
                for place in places:
                    end = week + timedelta(7 * horizon)
                    middle = truth[end, place] + noise * rng.normal()
                    task = [week, "admissions", horizon, end, place, "quantile"]
                    rows += [
                        [*task, tau, round(max(middle + noise * z, 0), 3)] for tau, z in zip(LEVELS, Z, strict=True)
                    ]
            write(tmp_path / f"hub/model-output/{model}/{week}-{model}.csv", rows)
    return tmp_path / "hub"


def test_fuses_date_by_date_and_scores(hub: Path) -> None:
    out = hub.parent / "out"
    said = CliRunner().invoke(app, ["forecasts", str(hub), "--out", str(out), "--season", "2023-2024"])
    assert said.exit_code == 0, said.output
    assert "**faverage-fused**" in said.output and "Hub-ensemble" in said.output and "Team-good" not in said.output
    with (out / "scores.csv").open() as file:
        scores = {row["name"]: row for row in csv.DictReader(file)}
    assert {row["kind"] for row in scores.values()} == {"fused", "plain", "hub", "member"}
    assert float(scores["faverage-fused"]["wis"]) < float(scores["median"]["wis"]) < float(scores["Team-bad"]["wis"])
    assert float(scores["Hub-baseline"]["relative"]) == 1 and float(scores["Other-fair"]["rows"]) == 32
    with (out / "weights.csv").open() as file:
        last = {row["member"]: float(row["weight"]) for row in csv.DictReader(file) if row["date"] == str(WEEKS[-1])}
    assert max(last, key=lambda name: last[name]) == "Team-good" and not any(name.startswith("Hub") for name in last)
    assert abs(sum(last.values()) - 1) < 1e-5
    with (out / f"model-output/faverage-fused/{WEEKS[0]}-faverage-fused.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == HEAD and len(rows) == 1 + 2 * 4 * 5
    again = CliRunner().invoke(app, ["forecasts", str(hub), "--out", str(out)])
    assert again.exit_code == 2 and "exists already" in again.output
    lost = CliRunner().invoke(app, ["forecasts", "nothere", "--out", str(out)])
    assert lost.exit_code == 2 and "the folder nothere does not exist" in lost.output


def test_weights_know_nothing_of_the_date_or_later(hub: Path) -> None:
    """Neither what came true from a date on, nor what became known of earlier dates, changes what is fused for it."""
    ours = f"model-output/faverage-fused/{WEEKS[4]}-faverage-fused.csv"
    fuse_hub(hub, hub.parent / "a", horizons=[0, 1])
    truth = (hub / "target-data/time-series.csv").read_text().splitlines()
    known = [line for line in truth[1:] if line[:10] < str(WEEKS[4])]
    versions = [f"{line.split(',')[0]},{line.split(',')[1]},9999" for line in truth[1:]]  # revised, too late
    for day, lines in ((WEEKS[4] - timedelta(1), known), (WEEKS[4], versions)):
        (hub / f"target-data/known_{day}.csv").write_text("\n".join([truth[0], *lines]))
    fuse_hub(hub, hub.parent / "b", truth="target-data/known_*.csv")
    dated = [f"{line},{day}" for day, lines in ((WEEKS[3], known), (WEEKS[4], versions)) for line in lines]
    (hub / "target-data/time-series.csv").write_text("\n".join([truth[0] + ",as_of", *dated]))
    fuse_hub(hub, hub.parent / "c")
    assert len({(hub.parent / name / ours).read_text() for name in "abc"}) == 1


def test_parquet_files_are_read_as_csv_files_are(hub: Path) -> None:
    pandas = pytest.importorskip("pandas")
    fuse_hub(hub, hub.parent / "a")
    for path in (hub / "model-output/Team-good").iterdir():
        frame = pandas.read_csv(path, dtype={"location": str}, parse_dates=["reference_date", "target_end_date"])
        frame.to_parquet(path.with_suffix(".parquet"))
        path.unlink()
    fuse_hub(hub, hub.parent / "b")
    assert (hub.parent / "a/scores.csv").read_text() == (hub.parent / "b/scores.csv").read_text()


def change(hub: Path, old: str, new: str, file: str = f"Team-bad/{WEEKS[2]}-Team-bad.csv") -> None:
    path = hub / "model-output" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def only(hub: Path, model: str, week: date) -> None:
    for path in (hub / "model-output" / model).iterdir():
        if not path.name.startswith(str(week)):
            path.unlink()


TRUTH = "target-data/time-series.csv"
OTHER = [["date", "location", "value"], ["1999-01-02", "US", 1]]
WRONG = [  # what is done to the hub, options, what is said
    (lambda hub: None, {"season": "2019-2020"}, "no forecasts in the season 2019-2020: its dates go from 2024-01-06"),
    (lambda hub: None, {"season": "2023"}, "two years such as 2023-2024"),
    (lambda hub: None, {"horizons": [7]}, "no quantiles"),
    (lambda hub: None, {"target": "deaths"}, "no quantiles of the target 'deaths'; it has 'admissions'"),
    (lambda hub: None, {"baseline": "Hub-base"}, "--baseline Hub-base has no forecasts"),
    (lambda hub: None, {"rivals": ["*"]}, "has 0 models to fuse, at least two are needed"),
    (lambda hub: None, {"truth": "nothing*.csv"}, "no such file"),
    (lambda hub: change(hub, "quantile,0.975,", "quantile,0.975,-"), {}, "Team-bad cross .* --without Team-bad"),
    (lambda hub: change(hub, "quantile,0.5,", "quantile,half,"), {}, r"line \d+: level and value must be numbers"),
    (lambda hub: change(hub, "quantile,0.5,", "quantile,0.25,"), {}, "the level 0.25 occurs twice"),
    (lambda hub: change(hub, str(WEEKS[2]), str(WEEKS[3])), {}, "but the file's name says 2024-01-20"),
    (lambda hub: change(hub, "target_end_date", "when"), {}, "has no column 'target_end_date'"),
    (
        lambda hub: (hub / "model-output").rename(hub / "models"),
        {},
        "is no forecast hub: it has no folder model-output",
    ),
    (lambda hub: (hub / TRUTH).unlink(), {}, "say with --truth"),
    (lambda hub: write(hub / TRUTH, OTHER), {}, "no forecast has a truth"),
    (
        lambda hub: only(hub, "Hub-baseline", WEEKS[-1]),
        {"horizons": [1]},
        "baseline Hub-baseline has no forecast with a",
    ),
]


@pytest.mark.parametrize(("breaking", "options", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_is_wrong_is_said_and_nothing_written(hub: Path, breaking, options, said) -> None:
    breaking(hub)
    with pytest.raises(UserError, match=said):
        fuse_hub(hub, hub.parent / "out", **options)
    assert [path.name for path in hub.parent.iterdir()] == ["hub"]
