"""From what the model says to what the server answers."""

from __future__ import annotations

import hashlib
import io
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from faverage.app.server import schemas

if TYPE_CHECKING:
    from faverage.app.model import Answer, ClassInfo, Model

__all__ = ["class_id", "classes_answer", "prediction_answer"]


def class_id(name: str) -> str:
    """Return the part of an address that stands for a class: the same as long as it has this name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def classes_answer(model: Model) -> schemas.Classes:
    """Return what the model knows."""
    version, found = model.version, model.classes()
    known = [
        schemas.Known(id=class_id(c.name), name=c.name, count=c.count, session=c.session, thumbnails=_addresses(c))
        for c in found
    ]
    pictures = tuple(c.thumbnails[0] for c in found if c.thumbnails)[:12]
    return schemas.Classes(
        version=version,
        model=model.folder.name,
        classes=known,
        drawing=_drawing(pictures),
        last=_last(model.history()),
    )


def prediction_answer(answer: Answer) -> dict[str, Any]:
    """Return the answer to one picture, as ``schemas.Prediction`` has it."""
    return {
        "answer": answer.top[0][0],
        "top": [{"name": name, "probability": _rounded(p)} for name, p in answer.top],
        "heads": [{"head": head, "best": best, "probability": _rounded(p)} for head, best, p in answer.heads],
        "means": [{"mean": mean, "share": _rounded(share)} for mean, share in answer.means],
    }


def _rounded(value: float) -> float:
    return round(value, 6) if value == value else 0.0


def _addresses(known: ClassInfo) -> list[str]:
    pieces = [hashlib.sha256(data).hexdigest()[:8] for data in known.thumbnails]
    return [f"/api/classes/{class_id(known.name)}/thumbnails/{k}.png?v={piece}" for k, piece in enumerate(pieces)]


def _last(history: list[Any]) -> schemas.Change | None:
    """Return the last change that was not taken back.

    >>> taught = {"what": "teach", "class": "star", "pictures": 5, "words": "taught 'star'", "state": "000002"}
    >>> _last([{"what": "create"}, taught]).name, _last([{"what": "create"}, taught, {"what": "undo"}])
    ('star', None)
    """
    stack: list[list[dict[str, Any]]] = []
    for entry in history:
        if not isinstance(entry, dict):  # the file may have been written by anybody
            continue
        if entry.get("what") == "undo":
            stack = stack[:-1]
        elif stack and entry.get("state") and stack[-1][0].get("state") == entry["state"]:
            stack[-1].append(entry)  # several classes in one change
        elif entry.get("what") != "create":
            stack.append([entry])
    if not stack:
        return None
    last = stack[-1]
    return schemas.Change(
        when=str(last[0].get("when") or ""),
        what=str(last[0].get("what") or ""),
        name=", ".join(str(entry.get("class") or "") for entry in last),
        count=sum(n for entry in last if isinstance(n := entry.get("pictures"), int)),
        words=" and ".join(str(entry.get("words") or "") for entry in last),
    )


@lru_cache(4)
def _drawing(pictures: tuple[bytes, ...]) -> schemas.Drawing:
    """Judge by thumbnails whether the model knows drawings, and on which ground."""
    if not pictures:
        return schemas.Drawing(likely=False, ground="white")
    spread, edges = [], []
    for data in pictures:
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float64)
        spread.append(float(np.ptp(pixels, axis=2).mean()))
        rim = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        edges.append(float(np.median(rim)))
    plain = float(np.mean([edge < 40 or edge > 215 for edge in edges])) > 0.8
    ground = "black" if float(np.median(edges)) < 128 else "white"
    return schemas.Drawing(likely=plain and max(spread) < 12, ground=ground)
