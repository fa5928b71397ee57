"""A small model with the interface of ``faverage.app.model.Model``, and pictures; no torch, so that it is fast."""

import contextlib
import io
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from faverage.afa.explain import Explanation, Table
from faverage.app.model import Answer, ClassInfo, ModelError, Taught
from faverage.app.server.limits import Limits
from faverage.fscil.why import Said

DEFAULT = Limits()
BREAKING = (1, 2, 3)  # the colour of pictures that the model cannot bear


class SlowOpening:
    """Opens an upload slowly, and remembers how many were being opened at once."""

    def __init__(self) -> None:
        self.now, self.most = 0, 0

    def __call__(self, *_) -> Image.Image:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.1)
        self.now -= 1
        return Image.new("RGB", (32, 32))


def png(colour="red", size=(32, 32), kind="PNG", **options) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, kind, **options)
    return stream.getvalue()


def drawing(shape: str, shift: int = 0) -> bytes:
    image = Image.new("RGB", (64, 64), "black")
    pen = ImageDraw.Draw(image)
    box = (14 + shift, 14, 50 + shift, 50)
    {
        "ring": lambda: pen.ellipse(box, outline="white", width=7),
        "bar": lambda: pen.line((32 + shift, 8, 32 + shift, 56), fill="white", width=8),
        "cross": lambda: (
            pen.line((12 + shift, 12, 52 + shift, 52), fill="white", width=7),
            pen.line((12 + shift, 52, 52 + shift, 12), fill="white", width=7),
        ),
    }[shape]()
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def features(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((8, 8), Image.Resampling.BOX), dtype=np.float64).ravel() / 255


class FakeModel:
    """Keeps the mean of 8 x 8 px pictures of each class; the nearest one answers."""

    def __init__(self, base: dict[str, list[bytes]], delay: float = 0.0) -> None:
        self.folder = Path("fake-model")
        self.side = 32
        self.delay = delay
        self.seen: list[list[Image.Image]] = []
        self.teaching = 0
        self.most_teaching = 0
        self._lock = threading.Lock()
        infos = [ClassInfo(name, len(pictures), 0, tuple(pictures)) for name, pictures in base.items()]
        known = {
            name: np.mean([features(Image.open(io.BytesIO(p))) for p in pictures], 0) for name, pictures in base.items()
        }
        self._states = [(infos, known)]
        self._history: list[dict] = [
            {"when": "2026-01-01T00:00:00Z", "what": "create", "class": None, "pictures": 0, "words": "made"}
        ]
        self.version = 1

    def classes(self):
        return list(self._states[-1][0])

    def predict(self, images):
        self.seen.append(list(images))
        infos, known = self._states[-1]
        time.sleep(self.delay)
        answers = []
        for image in images:
            if image.getpixel((0, 0)) == BREAKING:
                raise RuntimeError("secret of the inside: /home/someone/model")
            far = np.array([((features(image) - known[c.name]) ** 2).sum() for c in infos])
            p = np.exp(-far + far.min())
            p /= p.sum()
            order = np.argsort(-p)
            top = tuple((infos[i].name, float(p[i])) for i in order)
            heads = (Said("base head", infos[0].name, None, -0.25), Said("prototypes", *top[0], 2.5))
            answers.append(Answer(top, heads, float(np.exp(-far.min()))))
        return answers

    def _put(self, infos, known, what, name, pictures, words):
        self._states.append((infos, known))
        self.version += 1
        self._history.append({"when": "now", "what": what, "class": name, "pictures": pictures, "words": words})

    def teach(self, name, images):
        with self._lock:
            self.teaching += 1
            self.most_teaching = max(self.teaching, self.most_teaching)
            time.sleep(self.delay)
            infos, known = self._states[-1]
            old = next((c for c in infos if c.name == name), None)
            if old is not None and old.session == 0:
                self.teaching -= 1
                raise ModelError(f"{name} is a base class")
            small = []
            for image in images:
                stream = io.BytesIO()
                image.resize((64, 64)).save(stream, "PNG")
                small.append(stream.getvalue())
            count = len(images) + (old.count if old else 0)
            new = ClassInfo(name, count, 1 + max(c.session for c in infos), tuple(small[:5]))
            rest = [c for c in infos if c.name != name]
            mean = np.mean([features(image) for image in images], 0)
            self._put([*rest, new], known | {name: mean}, "teach", name, len(images), f"taught {name}")
            self.teaching -= 1
            return Taught(name, count, 1.0, ((infos[0].name, name, 2),), 0.9, 0.5, worse=name == "noise", kept=count)

    def forget(self, name):
        infos, known = self._states[-1]
        if next(c for c in infos if c.name == name).session == 0:
            raise ModelError(f"{name} is a base class")
        self._put([replace(c) for c in infos if c.name != name], known, "forget", name, 0, f"forgot {name}")

    def undo(self):
        if len(self._states) == 1:
            raise ModelError("there is nothing to undo")
        self._states.pop()
        self.version += 1
        last = self._history[-1]["words"]
        self._history.append({"when": "now", "what": "undo", "class": None, "pictures": 0, "words": f"undid: {last}"})
        return last

    def explain(self):
        names = [c.name for c in self.classes()]
        if len(self._states) == 1:
            raise ModelError("nothing was taught yet")
        models = Table(("class", "model", "share"), [(n, "base", 1.0) for n in names])
        trusted = Table(("class", "model", "share", "mean"), [(n, "base", 1.0, "arithmetic") for n in names])
        return Explanation(Table(("mean", "share"), [("arithmetic", 1.0)]), models, trusted, None, (("base",), ()))

    def history(self):
        return list(self._history)


def fake(delay: float = 0.0) -> FakeModel:
    return FakeModel({"red": [png("red")], "green": [png("green")], "blue": [png("blue")]}, delay)


class Served:
    """A server that runs: its address and its log."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.log = io.StringIO()

    def connect(self, data: bytes = b"", client: str = "127.0.0.1") -> socket.socket:
        """Connect as a client of this machine, which may have any address 127.x.x.x, and send bytes."""
        connection = socket.create_connection(self.address, timeout=10, source_address=(client, 0))
        connection.sendall(data)
        return connection

    def say(self, data: bytes, client: str = "127.0.0.1") -> bytes:
        """Send bytes and return everything that comes back until the server closes."""
        with self.connect(data, client) as connection:
            return heard(connection)

    def get(self, path: str = "/api/health", client: str = "127.0.0.1", more: str = "") -> int:
        """Return the status of a page."""
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n"
        return int(self.say(head.encode(), client).split(b" ", 2)[1])


@contextmanager
def serving(model: FakeModel | None = None, limits: Limits = DEFAULT, **options) -> Iterator[Served]:
    """Run the server as the command does, in a thread."""
    from faverage.app.server.app import create_app
    from faverage.app.server.serve import _listen, http_server

    listener = _listen("127.0.0.1", 0)
    loggers = [logging.getLogger(name) for name in ("asyncio", "uvicorn.error", "faverage.app", "python_multipart")]
    for logger in loggers:
        logger.filters.clear()  # what an earlier server held back
    server = http_server(create_app(model or fake(), limits=limits, **options), limits)
    served = Served(listener.getsockname())
    handler = logging.StreamHandler(served.log)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    for logger in loggers:
        logger.addHandler(handler)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield served
    finally:
        server.should_exit = True
        thread.join(20)
        for logger in loggers:
            logger.removeHandler(handler)
    assert not thread.is_alive()


def heard(connection: socket.socket) -> bytes:
    """Return all that comes until the other side closes, in whatever way."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(65536):
            said += more
    return said


def small_model(folder: Path) -> Path:
    """Write a real model that knows three colours, hastily trained."""
    from faverage.app.model import Model
    from faverage.fscil import FewShotLearner

    random = np.random.default_rng(0)
    colours = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
    images = np.concatenate([random.normal(c, 30, (24, 16, 16, 3)) for c in colours.values()]).clip(0, 255)
    learner = FewShotLearner("tiny", training={"epochs": 2, "device": "cpu", "batch_size": 16})
    learner.fit_base(images.astype(np.uint8), np.repeat(list(colours), 24))
    Model.create(folder, learner, side=16, counts=dict.fromkeys(colours, 24), device="cpu")
    return folder
