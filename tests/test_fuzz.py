"""A slice of the campaign of ``make fuzz``, and that the campaign sees what is broken."""

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from faverage.prediction_files import read
from fuzz import campaigns, formats, mutate
from fuzz.__main__ import all_targets, campaign, main, show
from fuzz.common import check_probabilities
from fuzz.target import Broken, Target, snapshot

SEED = 52  # the inputs of these numbers are of all kinds, and one of them alone takes long


class Planted(Target):
    """A reader of one byte that goes wrong in the way that the byte asks for."""

    name, share, seconds, megabytes = "planted", 1, 1.5, 200

    def make(self, rng, examples, work):
        (work / "input").write_bytes(bytes([ord(rng.choice("abcdefghij"))]))

    def read(self, rng, work):
        what = (work / "input").read_text()
        if what == "b":
            raise ValueError("refused, as it should be")
        if what == "c":
            raise KeyError("of a wrong kind")
        if what == "d":
            time.sleep(60)
        if what == "e":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "f":
            return bytearray(400 * 2**20)
        if what == "g":
            (work / "more").write_text("x")
            raise ValueError("refused, but changed")
        if what == "h":
            os.write(2, b"Traceback (most recent call last)\nOddError: x\n")
        if what == "i":
            check_probabilities([[0.5, float("nan")]])
        if what == "j":
            raise ValueError("cannot be printed: \ud800")


@pytest.mark.slow
def test_a_slice_of_the_campaign_breaks_nothing(tmp_path):
    found = campaign(all_targets(), count=200, seconds=120, keep=tmp_path / "kept")
    assert show(found, tmp_path / "kept") == 0
    assert all(one.tried == one.wanted > 0 for one in found)
    assert sum(one.refused for one in found) > 50 and sum(one.accepted for one in found) > 20


def test_everything_that_a_reader_can_do_wrong_is_seen_and_can_be_made_again(tmp_path, capsys):
    (found,) = campaign([Planted()], count=16, seed=SEED, keep=tmp_path)
    kinds = {
        (tmp_path / f"planted-{SEED}-{finding.number}" / "input" / "input").read_text(): finding.kind
        for finding in found.findings
    }
    beginnings = {
        "c": "KeyError at test_fuzz.py:",
        "d": "no answer within 1.5 s at test_fuzz.py:",
        "e": f"the process died (exit code {-signal.SIGKILL})",
        "f": "more than 200 MB for one input",
        "g": "a file changed although the input was refused: more",
        "h": "a traceback on stderr: OddError",
        "i": "answers are not finite",
        "j": "a message that cannot be printed at test_fuzz.py:",
    }
    assert {what: kinds[what][: len(words)] for what, words in beginnings.items()} == beginnings
    assert kinds.keys() == beginnings.keys()
    assert found.tried == 16 == found.refused + found.accepted + found.broken
    assert show([found], tmp_path) == 1
    first = found.findings[0]
    assert first.line == f"python -m fuzz --target planted --seed {SEED} --only {first.number}"
    assert first.line in capsys.readouterr().out
    (again,) = campaign([Planted()], count=1, seed=SEED, only=first.number, keep=tmp_path / "again")
    assert [one.kind for one in again.findings] == [first.kind]


def test_a_broken_reader_of_csv_files_is_found(tmp_path, monkeypatch, capsys):
    given = ["--target", "csv", "--count", "80", "--keep", str(tmp_path)]
    text = read._text

    def broken(path, line, cell):
        return text(path, line, cell) if cell.isascii() else cell.no_such_thing

    monkeypatch.setattr(read, "_text", broken)
    assert main(given) == 1
    assert "AttributeError" in capsys.readouterr().out and any(tmp_path.iterdir())


def test_mutators_do_the_same_with_the_same_seed_and_something_else_with_another():
    data = b"id,cat,dog\n1,0.25,0.75\n2,0.5,0.5\n"
    for change in (mutate.change_bytes, mutate.change_text):
        made = [change(Random(seed), data) for seed in range(30)]
        assert made == [change(Random(seed), data) for seed in range(30)]
        assert len(set(made)) > 20
    assert formats.change_zip(Random(0), b"no archive") == formats.change_zip(Random(0), b"no archive")


def test_campaigns_with_processes_are_counted_with_the_others(tmp_path, monkeypatch, capsys):
    def killed(count, seed):
        return {"tried": count, "accepted": count - 1, "broken": 1, "kinds": [f"half-written with seed {seed}"]}

    monkeypatch.setitem(campaigns.CAMPAIGNS, "kill", campaigns.Process(5, killed))
    assert main(["--target", "kill", "--count", "7", "--seed", "4", "--keep", str(tmp_path)]) == 1
    assert "half-written with seed 4" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["--target", "nothing"])


def test_answers_are_checked():
    check_probabilities([[0.25, 0.75]])
    for wrong in ([[0.2, 0.2]], [[-0.5, 1.5]], [[float("inf"), 0.0]]):
        with pytest.raises(Broken):
            check_probabilities(wrong)


def test_folders_are_compared_without_following_what_is_in_them(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / ".lock").touch()
    before = snapshot(tmp_path)
    assert sorted(before) == ["loop", "pipe"]
    Path(tmp_path / "new").touch()
    assert snapshot(tmp_path) != before
