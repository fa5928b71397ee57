"""Saving, loading and exporting networks, and refusing everything else."""

import errno
import json
import os

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from faverage import AFA, export_onnx, load, save
from faverage.storage import read_json


def trained(structure: str = "full", **options) -> AFA:
    network = AFA(
        3, 4, means=["arithmetic", "geometric", "harmonic", {"name": "power", "q": 3}], structure=structure, **options
    )
    with torch.no_grad():
        for rows in network.rows():
            rows.raw.add_(0.1 * torch.rand_like(rows.raw))
    network.project_()
    return network


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("output", ["softmax", "normalise", "power", "identity"])
@pytest.mark.parametrize("constraint", ["projection", "softmax"])
@pytest.mark.parametrize("structure", ["full", "per_class", "scalar"])
def test_round_trip(tmp_path, structure: str, constraint: str, output: str, dtype: torch.dtype) -> None:
    network = trained(structure, constraint=constraint, output=output).to(dtype)
    again = load(save(network, tmp_path / "afa.safetensors"))
    scores = torch.rand(5, 3, 4, dtype=dtype)
    assert torch.equal(again(scores), network(scores)) and again.config() == network.config() and not again.training
    assert [p.name for p in tmp_path.iterdir()] == ["afa.safetensors"]


def write_ours(path, **header) -> None:
    save_file({"x": torch.zeros(1)}, path, metadata={"faverage": json.dumps(header)})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.write_text("hello"), "is not a file saved by faverage"),
        (lambda p: p.write_bytes(b""), "is not a file saved by faverage"),
        (lambda p: save_file({"x": torch.zeros(1)}, p), "was not saved by faverage"),
        (lambda p: write_ours(p, kind="learner", format=1, config={}), "holds 'learner', expected 'AFA'"),
        (lambda p: write_ours(p, kind="AFA", format=99, version="9.0", config={}), "faverage 9.0.*upgrade"),
        (lambda p: write_ours(p, kind="AFA", format=1, config={"colour": 1}), "does not describe an AFA"),
        (lambda p: write_ours(p, kind="AFA", format=1, config={"n_models": 2, "n_outputs": 2}), "does not describe"),
    ],
)
def test_file_that_is_not_ours_is_refused(tmp_path, make, words: str) -> None:
    path = tmp_path / "file.safetensors"
    make(path)
    with pytest.raises(ValueError, match=words):
        load(path)


def test_missing_file_and_missing_folder(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        save(trained(), tmp_path / "no" / "afa.safetensors")


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    import faverage.storage

    path = save(trained(), tmp_path / "afa.safetensors")
    before = path.read_bytes()

    def full_disk(tensors, target, metadata) -> None:
        target.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(faverage.storage, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(trained(), path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("output", ["softmax", "normalise", "power", "identity"])
@pytest.mark.parametrize("structure", ["full", "per_class", "scalar"])
def test_onnx_agrees(tmp_path, structure: str, output: str) -> None:
    import onnxruntime

    network = trained(structure, output=output).eval()
    path = tmp_path / "afa.onnx"
    assert export_onnx(network, path) <= 1e-5
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    scores = torch.rand(33, 3, 4)
    (fused,) = session.run(["fused"], {"scores": scores.numpy()})
    assert torch.allclose(torch.from_numpy(fused), network(scores), atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["afa.onnx"]


def test_onnx_that_disagrees_is_not_written(tmp_path) -> None:
    with pytest.raises(ValueError, match="differs from the network"):
        export_onnx(trained(), tmp_path / "afa.onnx", tolerance=-1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call", [lambda p: save(torch.nn.Linear(2, 2), p), lambda p: export_onnx(torch.nn.Linear(2, 2), p)]
)
def test_only_afa_is_written(tmp_path, call) -> None:
    with pytest.raises(ValueError, match="network must be an AFA, got Linear"):
        call(tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "too deeply nested"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "digits"),
        (b'"\\ud800"', "surrogates"),
        (b"\xff\xfe", "JSON"),
        (b"", "Expecting value"),
    ],
)
def test_json_that_cannot_be_used(tmp_path, content: bytes, words: str) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_json(file)


def test_json_from_what_is_no_file(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_json(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_json("/dev/zero")
    with pytest.raises(OSError):
        read_json(tmp_path)


def test_header_that_is_too_deep(tmp_path) -> None:
    path = tmp_path / "file.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"faverage": "[" * 100_000})
    with pytest.raises(ValueError, match="too deeply nested"):
        load(path)


def test_full_disk_is_an_error_of_the_system(tmp_path, monkeypatch) -> None:
    def full(*_, **__) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("faverage.storage.save_file", full)
    with pytest.raises(OSError) as caught:
        save(trained(), tmp_path / "afa.safetensors")
    assert caught.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == []
