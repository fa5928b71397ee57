"""The page in a real browser: chromium, driven by playwright. ``make test-browser`` sets it up."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("playwright", reason="no playwright: the tests in a browser are left out (make test-browser)")
pytest.importorskip("uvicorn", reason="no uvicorn: the tests in a browser are left out (make test-browser)")

from playwright.sync_api import Page, expect

from faverage.app.train import digits_model
from helpers_app import png
from helpers_browser import FOUR, HEART, STAR, ZIGZAG, Served, chromium, draw, page_of, picture_file, teach_drawings

CHROMIUM = os.environ.get("FAVERAGE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the tests in a browser are left out (make test-browser)"),
]
SCREENSHOTS = os.environ.get("FAVERAGE_SCREENSHOTS")


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "digits"
    digits_model(folder)
    return folder


@pytest.fixture
def served(digits, tmp_path):
    shutil.copytree(digits, tmp_path / "digits")
    server = Served(tmp_path / "digits")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser():
    with chromium(CHROMIUM) as browser:
        yield browser


@pytest.fixture
def page(browser, served):
    with page_of(browser, served.address, seconds=20) as page:
        expect(page.locator(".card").first).to_be_visible()
        yield page


def test_draw_a_symbol_five_times_teach_it_and_see_it_recognised(page, served) -> None:
    before = page.locator(".card").count()
    teach_drawings(page, "star", STAR)
    expect(page.locator(".card")).to_have_count(before + 1)
    card = page.locator(".card[data-name=star]")
    expect(card).to_contain_text("5 pictures")
    assert card.locator("img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    draw(page, "#try", STAR, wobble=1.5)
    expect(page.locator("#best")).to_have_text("star")
    expect(page.locator("#because")).to_contain_text("For “star” and against")
    expect(page.locator("#heard")).to_contain_text("star")
    draw(page, "#try", FOUR, clear=True)
    expect(page.locator("#best")).to_have_text("4")
    assert [c.name for c in served.model.classes()][-1] == "star"


def test_teach_by_files_then_forget_and_undo(page, served, tmp_path) -> None:
    page.click("#teach-file")
    page.set_input_files("#teach input[type=file]", [picture_file(tmp_path, k) for k in range(4)])
    expect(page.locator("#slots .full")).to_have_count(4)
    page.click("[aria-label='Remove picture 4']")
    expect(page.locator("#slots .full")).to_have_count(3)
    page.click("#go")
    expect(page.locator("#teach .error")).to_have_text("Give it a name first.")
    page.fill("#name", "three bars")
    page.keyboard.press("Enter")
    expect(page.locator(".card[data-name='three bars']")).to_contain_text("3 pictures")
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", picture_file(tmp_path, 5))
    expect(page.locator("#best")).to_have_text("three bars")
    page.click("[aria-label='Forget three bars']")
    page.click("#ask button[value=no]")
    expect(page.locator(".card[data-name='three bars']")).to_have_count(1)
    page.click("[aria-label='Forget three bars']")
    page.click("#ask-yes")
    expect(page.locator(".card[data-name='three bars']")).to_have_count(0)
    page.click("#undo")
    expect(page.locator("#ask")).to_contain_text("three bars")
    page.click("#ask-yes")
    expect(page.locator(".card[data-name='three bars']")).to_have_count(1)
    page.click("#undo")
    page.click("#ask-yes")
    expect(page.locator(".card[data-name='three bars']")).to_have_count(0)
    expect(page.locator("#notice")).to_contain_text("Undone")
    expect(page.locator("#undo")).to_be_disabled()
    assert all(c.session == 0 for c in served.model.classes())


def test_text_that_is_called_a_picture_is_an_error_and_changes_nothing(page, served, tmp_path) -> None:
    version = served.model.version
    bad = tmp_path / "notes.jpg"
    bad.write_text("just words")
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", bad)
    expect(page.locator("#try .error")).to_contain_text("notes.jpg")
    page.click("#teach-file")
    page.set_input_files("#teach input[type=file]", [picture_file(tmp_path, 0), bad])
    expect(page.locator("#teach .error")).to_contain_text("notes.jpg")
    expect(page.locator("#slots .full")).to_have_count(0)
    assert served.model.version == version
    page.set_input_files("#teach input[type=file]", picture_file(tmp_path, 0))  # goes on afterwards
    expect(page.locator("#teach .error")).to_be_hidden()
    expect(page.locator("#slots .full")).to_have_count(1)
    known = served.model.classes()[0]
    page.fill("#name", known.name)
    page.click("#go")
    expect(page.locator("#learned")).to_contain_text("that it keeps")  # a base class gets more pictures
    assert served.model.classes()[0].count == known.count + 1
    served.model.undo()


def test_the_camera(page, served) -> None:
    page.click("#try-camera")
    page.click("#try .start")
    expect(page.locator("#best")).not_to_be_empty()
    first = served_predictions(page)
    page.wait_for_timeout(1500)
    assert served_predictions(page) - first >= 3  # live: a few times a second
    page.click("#teach-camera")
    page.click("#teach .start")
    expect(page.locator("#try .start")).to_have_text("Start the camera")  # one at a time
    for k in range(2):
        page.click("#teach .shoot")
        expect(page.locator("#slots .full")).to_have_count(k + 1)
    page.locator("#teach .shoot").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#slots .full")).to_have_count(3)
    page.fill("#name", "camera")
    page.click("#go")
    expect(page.locator(".card[data-name=camera]")).to_contain_text("3 pictures")


def served_predictions(page: Page) -> int:
    return page.evaluate("fetch('/api/metrics').then(a => a.json()).then(m => m.pictures)")


def test_paste_drop_and_a_wrong_answer_that_becomes_a_lesson(page) -> None:
    data = list(png("white"))
    page.evaluate(
        """data => {
            const carrier = new DataTransfer();
            carrier.items.add(new File([new Uint8Array(data)], "pasted.png", { type: "image/png" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: carrier }));
        }""",
        data,
    )
    expect(page.locator("#best")).not_to_be_empty()
    page.click("#wrong")
    expect(page.locator("#slots .full")).to_have_count(1)
    expect(page.locator("#name")).to_be_focused()
    page.evaluate(
        """data => {
            const carrier = new DataTransfer();
            for (const name of ["a.png", "b.png"])
                carrier.items.add(new File([new Uint8Array(data)], name, { type: "image/png" }));
            document.querySelector("#teach").dispatchEvent(new DragEvent("drop", { dataTransfer: carrier }));
        }""",
        data,
    )
    expect(page.locator("#slots .full")).to_have_count(3)


def test_keyboard_and_names_for_screen_readers(page) -> None:
    page.focus("#try-draw")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#try-camera")).to_be_focused()
    expect(page.locator("#try-camera")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#try-file-pane")).to_be_visible()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input")].filter((e) => !e.closest("template") &&
            !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert not nameless
    assert page.evaluate("[...document.images].every((i) => i.hasAttribute('alt'))")


def test_the_token_is_asked_for(browser, digits) -> None:
    server = Served(digits, token="correct-horse-battery")
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.address)
    expect(page.locator("#sign")).to_be_visible()
    page.fill("#sign input", "correct-horse-battery")
    page.click("#sign button")
    expect(page.locator(".card").first).to_be_visible()
    assert "token" not in page.url
    context.close()
    server.stop()


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_is_wider_than_the_screen(page, width) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    teach_drawings(page, "a rather long name of a class, which has to be cut somewhere", ZIGZAG, count=1)
    draw(page, "#try", ZIGZAG)
    expect(page.locator("#answer")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not SCREENSHOTS, reason="set FAVERAGE_SCREENSHOTS to a folder to get pictures of the page")
def test_screenshots(page, served) -> None:
    folder = Path(SCREENSHOTS or ".")
    folder.mkdir(parents=True, exist_ok=True)

    def shoot(what: str) -> None:
        for size, box in {"desktop": (1280, 900), "phone": (390, 844)}.items():
            page.set_viewport_size({"width": box[0], "height": box[1]})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                page.evaluate("scrollTo(0, 0)")
                page.wait_for_timeout(150)
                file = folder / f"{what}-{size}-{scheme}.png"
                page.screenshot(path=file, full_page=size == "phone")
                with Image.open(file) as image:
                    assert image.format == "PNG" and image.width == box[0] and image.height >= box[1]
                    assert len(image.convert("RGB").getcolors(image.width * image.height)) > 16  # not an empty page
        page.set_viewport_size({"width": 1280, "height": 900})

    shoot("start")
    teach_drawings(page, "zigzag", ZIGZAG)
    teach_drawings(page, "star", STAR)
    shoot("taught")
    for k in range(3):
        draw(page, "#teach", HEART, wobble=2 * k)
        page.click("#teach .add")
    page.fill("#name", "heart")
    draw(page, "#try", STAR, wobble=1.5)
    expect(page.locator("#best")).to_have_text("star")
    page.mouse.move(5, 5)
    shoot("answer")
    page.click("#explain summary")
    expect(page.locator("#explained")).to_contain_text("mean")
    page.click("#undo")
    shoot("asked")
    page.click("#ask button[value=no]")
    page.click("#try-file")
    page.set_input_files("#try input[type=file]", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"words"})
    expect(page.locator("#try .error")).to_be_visible()
    page.click("#teach-camera")
    page.click("#teach .start")
    expect(page.locator("#teach .shoot")).to_be_visible()
    shoot("error")
