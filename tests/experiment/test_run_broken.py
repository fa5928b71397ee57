"""Files that a run reads, broken in hundreds of ways: refused in words, or made again with a warning, never worse."""

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from faverage.experiment import ConfigError, RunConfig, run
from faverage.experiment.resume import read_left, write_left
from faverage.experiment.run import finished_run
from faverage.experiment.sweep import Plan
from faverage.features import FeatureSet
from faverage.vision import get_backbone, load_weights
from helpers_run import command, mutated, npy, numbers, ready, said

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

SETTINGS = """\
epochs: 2
lr: 1e-3
methods: [prototypes, vote]
views: [plain]
seeds: [0, 1]
networks:
  - {start: 1, flip: true}
  - {start: 2, crop: 8}
"""


def survive(file: Path, read: Callable[[], Any], count: int, seed: int, error: type[Exception] = ConfigError) -> int:
    """Read a file in ``count`` broken states; return how often it was refused."""
    whole, rng, refused = file.read_bytes(), np.random.default_rng(seed), 0
    for i in range(count):
        file.write_bytes(mutated(whole, rng))
        try:
            read()
        except error as said:
            refused += 1
            str(said).encode()
        except BaseException as other:
            raise AssertionError(f"mutation {i} of {file.name}: {other!r}") from other
    file.write_bytes(whole)
    read()
    return refused


def test_ready_features(tmp_path: Path) -> None:
    plain, views = ready(tmp_path / "plain.npz"), tmp_path / "views.npz"
    with np.load(plain) as found:
        side = {name: array[:, None].repeat(2, 1) if array.ndim == 2 else array for name, array in found.items()}
    np.savez_compressed(views, **{**side, "base_head_bias": np.zeros((4, 2)), "views": np.array(["a", "b"])})
    for file in (plain, views):
        assert survive(file, lambda file=file: FeatureSet.load(file), 150, 1) > 20


ROWS = np.lib.format.header_data_from_array_1_0(np.zeros((1, 8)))


def _claims(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    header = repr({**ROWS, "shape": shape, "descr": descr}).encode()
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n" + bytes(64)


@pytest.mark.parametrize(
    "member",
    [
        _claims((10**12, 8)),
        _claims((2**62, 2**62)),
        _claims((-1, 8)),
        _claims((36, 8), "|O"),
        npy(np.zeros(36, [("a", "f4")])),
        npy(np.full((36, 8), 1e300)),
        npy(np.full((36, 8), np.inf)),
        npy(np.zeros((36, 8), complex)),
    ],
    ids=["rows", "overflow", "negative", "objects", "structured", "too large for float32", "infinite", "complex"],
)
def test_odd_arrays_among_ready_features(member: bytes, tmp_path: Path) -> None:
    file = ready(tmp_path / "f.npz", test=None)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("test.npy", member)
    result = command("mini-imagenet", "--features", file, "--methods", "vote", "--out", tmp_path / "out")
    assert result.exit_code == 2 and str(file) in said(result)


@pytest.mark.parametrize("labels", [np.arange(36) % 9 + 0.0, np.full(36, 2**64 - 1, np.uint64), np.full(36, "a")])
def test_odd_labels_among_ready_features(labels: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'test_labels' must"):
        FeatureSet.load(ready(tmp_path / "f.npz", test_labels=labels))


def test_an_encrypted_member_of_ready_features(tmp_path: Path) -> None:
    file = ready(tmp_path / "f.npz")
    data = bytearray(file.read_bytes())
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(sign)
        data[start + place] |= 1
    file.write_bytes(data)
    with pytest.raises(ConfigError, match="encrypted"):
        FeatureSet.load(file)


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SETTINGS)
    assert survive(file, lambda: RunConfig.build("digits", file, {}), 120, 2) > 30


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))


@pytest.mark.parametrize(
    "text",
    [
        f"epochs: {'9' * 5000}",
        f"epochs: 0x{'f' * 5000}",
        f"lr: {'9' * 400}",
        f"seeds: [{'9' * 200}]",
        "epochs: 99999999999999999999",
        'data: "\\ud800"',
        'data: "\\0"',
        'methods: ["\\udcff"]',
        "epochs: 2020-99-99",
        "epochs: !!bool perhaps",
        "epochs: !!timestamp x",
        "networks: " + "[" * 2000,
        "networks: &a [*a]",
        BOMB,
        MERGED,
        "a: " + "x" * (1 << 21),
    ],
    ids=lambda text: text[:24],
)
@pytest.mark.parametrize("read", [lambda file: RunConfig.build("digits", file, {}), Plan.read], ids=["run", "sweep"])
def test_odd_settings(text: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read(file)
    assert len(str(error.value).encode()) < 1500


def test_numbers_of_thousands_of_digits_on_the_command_line(tmp_path: Path) -> None:
    for name in ("--seed", "--epochs", "--seeds", "--shots", "--views"):
        for digits in (50, 4000, 5000):
            result = command("digits", name, "9" * digits, "--out", tmp_path / "out")
            assert result.exit_code == 2 and not (tmp_path / "out").exists()


def finished(out: Path) -> Path:
    """What ``finished_run`` needs of a run."""
    config = RunConfig.build("digits", None, {"epochs": 1, "jobs": 1})
    said = {"config": config.to_dict(), "versions": {"torch": "2"}, "work": "0123456789ab"}
    (out / "work" / said["work"]).mkdir(parents=True)
    (out / "work" / said["work"] / "base.safetensors").touch()
    (out / "results.json").write_text(json.dumps(said))
    return out


def test_results_of_a_finished_run(tmp_path: Path) -> None:
    out = finished(tmp_path)
    assert finished_run(out)[1] == out / "work" / "0123456789ab" / "base.safetensors"
    assert survive(out / "results.json", lambda: finished_run(out), 200, 3) > 50
    found = json.loads((out / "results.json").read_text())
    for work in ("../../elsewhere", "/", 3, "0123456789ab/../0123456789ab"):
        (out / "results.json").write_text(json.dumps({**found, "work": work}))
        with pytest.raises(ConfigError, match="expected the name of a folder"):
            finished_run(out)


def test_a_run_that_does_not_tell_where_its_base_is(tmp_path: Path) -> None:
    """The folder had its name from settings and versions alone."""
    from faverage.experiment.code import digest

    out = finished(tmp_path)
    found = json.loads((out / "results.json").read_text())
    name = digest({**RunConfig.build("digits", None, {"epochs": 1}).base_key(), "versions": found["versions"]})
    (out / "work" / found.pop("work")).rename(out / "work" / name)
    (out / "results.json").write_text(json.dumps(found))
    assert finished_run(out)[1].parent.name == name


def test_what_earlier_runs_left_is_as_it_was_or_said_to_be_broken(tmp_path: Path) -> None:
    file, data = tmp_path / "left.json", {"sessions": [{"f1": 0.25, "base": None}], "words": "é"}
    write_left(file, data)
    whole, rng = file.read_bytes(), np.random.default_rng(4)
    for i in range(200):
        file.write_bytes(mutated(whole, rng))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = read_left(file, "it is made again")
        assert found == data or (found is None and "it is made again" in str(caught[0].message)), i


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights(suffix: str, tmp_path: Path) -> None:
    file, net = tmp_path / f"weights{suffix}", get_backbone("tiny", dimension=4)
    (torch.save if suffix == ".pth" else save_file)(net.state_dict(), file)
    assert survive(file, lambda: load_weights(get_backbone("tiny", dimension=4), file), 100, 5, ValueError) > 20


@pytest.mark.parametrize("odd", [torch.tensor(float("nan")), torch.zeros(1, dtype=torch.complex64), "text"])
def test_weights_that_are_no_numbers(odd: Any, tmp_path: Path) -> None:
    net = get_backbone("tiny", dimension=4)
    state = net.state_dict()
    first = next(iter(state))
    state[first] = state[first] * odd if isinstance(odd, torch.Tensor) else odd
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"w\.pth"):
        load_weights(net, tmp_path / "w.pth")


def test_work_folders(tmp_path: Path) -> None:
    """Every file of a finished run is broken in some way, twice; all that counts is made again."""
    settings = {"epochs": 1, "methods": "prototypes,vote", "jobs": 1, "device": "cpu"}
    config, rng = RunConfig.build("digits", None, settings), np.random.default_rng(6)
    run(config, tmp_path)
    before = numbers(tmp_path)
    for _ in range(2):
        (tmp_path / "results.json").unlink()
        for file in (tmp_path / "work").rglob("*"):
            if file.is_file() and file.stat().st_size:
                file.write_bytes(mutated(file.read_bytes(), rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(config, tmp_path)
        assert numbers(tmp_path) == before


def test_a_run_that_does_not_name_its_data_set_is_refused(tmp_path: Path) -> None:
    out = finished(tmp_path)
    found = json.loads((out / "results.json").read_text())
    del found["config"]["dataset"]
    (out / "results.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="is not of a finished run"):
        finished_run(out)
