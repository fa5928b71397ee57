"""Teach a model what the webcam shows, and see its answers live.

    python examples/teach_webcam.py MODEL                    # the first camera; --source 1 is the second
    python examples/teach_webcam.py MODEL --source frames/   # the pictures of a folder, one after the other

A model that is not there is made: it then knows nothing (from a checkout: pip install -c constraints.txt '.[photos]').
Keys in the window, or words after the prompt where there is no window: t teaches a class from this frame and the next
four, u undoes that, q quits; anything else goes on. A camera needs OpenCV: pip install opencv-python (or
opencv-python-headless, without a window).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from faverage.app.model import Model, ModelError, open_picture
from faverage.app.train import empty_model

SHOTS = 5
TITLE = "t: teach   u: undo   q: quit"


def opencv() -> Any:
    """Return OpenCV, which only a camera needs."""
    try:
        import cv2
    except ImportError:
        sys.exit("A camera needs OpenCV: pip install opencv-python, or give --source a folder of pictures.")
    return cv2


def frames(source: str) -> Iterator[Image.Image]:
    """Yield what a camera sees, or the pictures of a folder."""
    if not source.isdigit():
        for file in sorted(Path(source).iterdir()):
            yield open_picture(file.read_bytes())
        return
    cv2 = opencv()
    camera = cv2.VideoCapture(int(source))
    if not camera.isOpened():
        sys.exit(f"There is no camera {source}: try --source 1, or give --source a folder of pictures.")
    while True:
        there, pixels = camera.read()
        if not there:
            return
        yield Image.fromarray(pixels[:, :, ::-1].copy())


def answer(model: Model, frame: Image.Image) -> str:
    """Return what a frame shows, in words."""
    if not model.classes():
        return "nothing taught yet"
    (found,) = model.predict([frame])
    name, probability = found.top[0]
    return "none of these" if found.unknown(0.05) else f"{name} {probability:.0%}"


def prompt(_: Image.Image, said: str) -> str:
    """Print the answer; return what is typed."""
    return input(f"{said}  [{TITLE}] ").strip()[:1]


def screen(source: str) -> Callable[[Image.Image, str], str]:
    """Return what shows a frame with its answer, and waits for a key: a window for a camera, where there can be one."""
    if not source.isdigit():
        return prompt
    import numpy as np

    cv2 = opencv()
    try:
        cv2.namedWindow(TITLE)
    except cv2.error:  # OpenCV without windows
        return prompt

    def window(frame: Image.Image, said: str) -> str:
        pixels = np.ascontiguousarray(np.asarray(frame)[:, :, ::-1])
        plain = said.encode("ascii", "replace").decode()  # OpenCV draws no other letters
        cv2.putText(pixels, plain, (12, 36), cv2.FONT_HERSHEY_SIMPLEX, 1.0, (0, 0, 255), 2)
        cv2.imshow(TITLE, pixels)
        return chr(cv2.waitKey(1) & 0xFF)

    return window


def main(arguments: list[str] | None = None) -> None:
    """Show, answer, teach."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="its folder")
    parser.add_argument("--source", default="0", help="the number of a camera, or a folder of pictures")
    given = parser.parse_args(arguments)
    if not given.source.isdigit() and not Path(given.source).is_dir():
        sys.exit(f"--source {given.source} is neither the number of a camera nor a folder.")
    show, seen = screen(given.source), frames(given.source)
    model = Model.load(given.model) if given.model.exists() else empty_model(given.model)
    for frame in seen:
        key = show(frame, answer(model, frame))
        try:
            if key == "q":
                break
            if key == "u":
                print(f"undone: {model.undo()}")
            if key == "t":
                name = input("name of the class: ")
                taught = model.teach(name, [frame, *islice(seen, SHOTS - 1)])
                print(f"{taught.name}: {taught.count} pictures, {taught.right:.0%} recognised when left out")
        except ModelError as error:
            print(error)


if __name__ == "__main__":
    main()
