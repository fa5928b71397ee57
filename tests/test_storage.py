"""Saving, loading and exporting networks, and refusing everything else."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from faverage import AFA, code, export_onnx, load, save
from faverage.storage import read_checked, read_json, write_checked


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("structure", "output"),
    [("full", "softmax"), ("per_class", "normalise"), ("scalar", "power"), ("full", "identity")],
)
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("output", ["normalise", "power"])
def test_onnx_has_probabilities_for_scores_near_0(tmp_path, output: str) -> None:
    import onnxruntime

    network = AFA(2, 3, means=["arithmetic"], output=output, floor=1e-9)
    export_onnx(network, tmp_path / "afa.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "afa.onnx", providers=["CPUExecutionProvider"])
    scores = torch.tensor([0.0, 1e-13, 1e-12, 1e-9, 0.3]).view(-1, 1, 1) * torch.tensor([1.0, 0.5, 0.5])
    scores = scores.expand(-1, 2, -1).contiguous()
    (fused,) = session.run(None, {"scores": scores.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(fused), network(scores), atol=1e-6, rtol=0)
    assert fused[0].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.slow
def test_onnx_with_nan_is_not_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faverage.afa.network._plus", lambda x, small: x + small)  # an exporter drops it
    with pytest.raises(ValueError, match="no probabilities for scores near 0"):
        export_onnx(AFA(2, 3, means=["arithmetic"], output="normalise"), tmp_path / "afa.onnx")
    assert not list(tmp_path.iterdir())


def test_checked_json_is_that_of_its_key_and_unedited(tmp_path) -> None:
    file = tmp_path / "a.json"
    write_checked(file, {"n": 0.1, "pair": (1, 2), 3: None}, "key")
    assert read_checked(file, "key") == {"n": 0.1, "pair": [1, 2], "3": None}
    for text, key in ((file.read_text(), "other"), (file.read_text().replace("0.1", "0.2"), "key"), ("[1]", "key")):
        file.write_text(text)
        with pytest.raises(ValueError, match="its checksum does not fit"):
            read_checked(file, key)


def test_which_code_results_depend_on() -> None:
    """Hours of base training outlive an edit of a fuser or of a report; a fuser's numbers no edit of that fuser."""
    sources = code.Sources(Path(code.__file__).parent)
    base = sources.behind(["faverage.vision.training", "faverage.vision.feature_store"])
    assert {"faverage.vision.engine.step", "faverage.vision.backbones", "faverage.vision.transforms"} <= base
    assert all(name.startswith("faverage.vision.") for name in base)
    afa = sources.behind(["faverage.experiment.fusers", "faverage.fusion.nets"])
    more = {"afa.train", "afa.steps", "afa.simplex", "fscil.heads", "fscil.metrics", "fscil.files"}
    assert {f"faverage.{name}" for name in more} <= afa  # files is imported inside a function
    lucir = sources.behind(["faverage.experiment.rivals", "faverage.rivals.lucir"])
    assert {"faverage.rivals.rival", "faverage.rivals.parts", "faverage.vision.engine.optimise"} <= lucir
    assert not lucir & {"faverage.rivals.cec", "faverage.afa.network", "faverage.fusion.base"}
    assert not afa & {"faverage.fusion.pools", "faverage.experiment.config"}
    assert not (base | afa | lucir) & {"faverage.experiment.report", "faverage.report.page", "faverage.storage"}


def test_a_fingerprint_of_code_changes_with_code_alone(tmp_path) -> None:
    files = {
        "__init__.py": "from faverage.d import D\n__version__ = '1'\n",
        "a.py": "from faverage.box import B, find\nfrom faverage import D\ndef f():\n  from . import c\n  return c\n",
        "box/__init__.py": "from faverage.box.b import B\nfrom faverage.box.e import E\ndef find(): ...\n",
        "box/b.py": "if TYPE_CHECKING:\n    from faverage.far import F\nclass B:\n    'Words.'\n    n = 1\n",
    } | {f"{name}.py": "N = 1  # one\n" for name in ("c", "d", "far", "box/e")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = code.Sources(tmp_path).fingerprint(["faverage.a"])
    for name, old, new, counts in (
        ("a.py", "return c", "return 1", True),
        ("c.py", "1", "2", True),
        ("d.py", "1", "2", True),
        ("box/b.py", "n = 1", "n = 2", True),
        ("box/__init__.py", "find(): ...", "find(): pass", True),
        ("box/b.py", "'Words.'", "'Other words.'", False),
        ("c.py", "# one", "# a comment", False),
        ("far.py", "1", "2", False),
        ("box/e.py", "1", "2", False),
        ("__init__.py", "'1'", "'2'", False),
    ):
        (tmp_path / name).write_text(files[name].replace(old, new))
        assert (code.Sources(tmp_path).fingerprint(["faverage.a"]) != before) == counts, (name, new)
        (tmp_path / name).write_text(files[name])


def test_a_fingerprint_of_code_from_elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's own fuser counts by the source of its module; what has no source, by its name."""
    from importlib import import_module

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_own_fuser.py").write_text("def f():\n    return 1\n")
    import_module("my_own_fuser")
    sources = [code.Sources(tmp_path / "nothing") for _ in range(2)]
    before = sources[0].fingerprint(["my_own_fuser"])
    (tmp_path / "my_own_fuser.py").write_text("def f():\n    return 2\n")
    assert sources[1].fingerprint(["my_own_fuser"]) != before
    assert sources[0].fingerprint(["faverage.afa.train"]) != sources[0].fingerprint(["faverage.afa.means"])


def test_weights_that_are_not_finite_are_refused(tmp_path) -> None:
    network = trained()
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        load(save(network, tmp_path / "afa.safetensors"))
