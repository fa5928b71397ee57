"""What the tests in a browser share: shapes, a server in a thread, drawing and teaching on the page."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from faverage.app.model import Model

STAR = [(50, 8), (61, 38), (93, 38), (67, 57), (77, 90), (50, 70), (23, 90), (33, 57), (7, 38), (39, 38), (50, 8)]
ZIGZAG = [(10, 20), (90, 20), (10, 50), (90, 50), (10, 80), (90, 80)]
HEART = [(50, 90), (12, 50), (14, 22), (32, 12), (50, 30), (68, 12), (86, 22), (88, 50), (50, 90)]
FOUR = [(62, 90), (62, 10), (18, 62), (84, 62)]


@contextmanager
def chromium(program: str | None) -> Iterator[Any]:
    """Give a browser with a camera that shows a moving picture."""
    from playwright.sync_api import sync_playwright

    fake_camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", *fake_camera])
        yield browser
        browser.close()


@contextmanager
def page_of(browser: Any, address: str, seconds: int) -> Iterator[Any]:
    """Give the page of a server; at its end nothing went wrong on it, and it asked nobody else."""
    from playwright.sync_api import expect

    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["camera"])
    page = context.new_page()
    page.set_default_timeout(1000 * seconds)
    expect.set_options(timeout=1000 * seconds)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
    page.on("request", lambda asked: None if asked.url.startswith((address, "blob:")) else wrong.append(asked.url))
    page.goto(address)
    yield page
    context.close()
    assert not wrong, wrong


class Served:
    """A server in a thread, with a model in a folder of its own, and others beside it."""

    def __init__(self, folder: Path, *others: Path, token: str | None = None) -> None:
        self.model, *rest = map(Model.load, (folder, *others))
        import uvicorn

        from faverage.app.server.app import create_app

        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://localhost:{listener.getsockname()[1]}"
        app = create_app(self.model, *rest, token=token)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)


def draw(page: Any, panel: str, points, wobble: float = 0.0, clear: bool = False) -> None:
    if clear:
        page.click(f"{panel} .clear")
    paper = page.locator(f"{panel} .paper")
    paper.scroll_into_view_if_needed()
    box = paper.bounding_box()
    places = [
        (box["x"] + box["width"] * (12 + 0.76 * (x + wobble * (k % 3 - 1))) / 100,
         box["y"] + box["height"] * (12 + 0.76 * (y - wobble * (k % 2))) / 100)
        for k, (x, y) in enumerate(points)
    ]  # fmt: skip
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=6)
    page.mouse.up()


def teach_drawings(page: Any, name: str, points, count: int = 5) -> None:
    from playwright.sync_api import expect

    for k in range(count):
        draw(page, "#teach", points, wobble=2.5 * (k - 2))
        page.click("#teach .add")
        expect(page.locator("#slots .full")).to_have_count(k + 1)
    page.fill("#name", name)
    page.click("#go")
    expect(page.locator("#learned")).to_contain_text(f"“{name}”")


def picture_file(tmp_path: Path, k: int) -> Path:
    image = Image.new("RGB", (300, 200), "black")
    pen = ImageDraw.Draw(image)
    for x in (60, 140, 220):
        pen.line((x + 3 * k, 30, x - 2 * k, 170), fill="white", width=22)
    path = tmp_path / f"bars{k}.png"
    image.save(path)
    return path
