"""Views: several ways to look at one image, each giving features of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["View", "get_views"]

_WORDS = re.compile(r"turn-(?P<turn>[123])|(?P<mirror>mirror)|(?P<both>both)|zoom-(?P<zoom>0\.\d+)")


@dataclass(frozen=True)
class View:
    """A way to look at images: turned by quarters, mirrored left and right, or at their centre alone.

    Attributes:
        turn: quarters, counter-clockwise.
        mirror: whether left and right change places, before turning.
        zoom: share of the side that is seen, scaled back to the full side; 1 sees all.
        both: whether the image is seen as it is and mirrored, and the features of the two are averaged.

    >>> View.parse("turn-1"), View.parse("mirror, zoom-0.8").name
    (View(turn=1, mirror=False, zoom=1.0, both=False), 'mirror, zoom-0.8')
    """

    turn: int = 0
    mirror: bool = False
    zoom: float = 1.0
    both: bool = False

    def __post_init__(self) -> None:
        if self.turn not in (0, 1, 2, 3) or not 0.2 <= self.zoom <= 1:
            raise ValueError(f"a view turns by 0 to 3 quarters and sees a share from 0.2 to 1, got {self}")
        if self.both and self.mirror:
            raise ValueError("a view is 'mirror' or 'both', not the two of them")

    @classmethod
    def parse(cls, text: str) -> View:
        """Read a name: ``plain``, or several of ``mirror``, ``both``, ``turn-1``, ``zoom-0.8`` with commas between."""
        view = cls()
        for word in (part.strip() for part in text.split(",")):
            if word == "plain":
                continue
            found = _WORDS.fullmatch(word)
            if found is None:
                known = "plain, mirror, both, turn-1, turn-2, turn-3, zoom-0.8"
                raise ValueError(f"unknown view {text!r}: expected {known}, or several with commas between")
            turn, mirror, zoom, both = (found[name] for name in ("turn", "mirror", "zoom", "both"))
            turn, zoom = int(turn or view.turn), float(zoom or view.zoom)
            view = cls(turn, bool(mirror) or view.mirror, zoom, bool(both) or view.both)
        return view

    @property
    def name(self) -> str:
        """What ``parse`` reads."""
        words = [word for word in ("mirror", "both") if getattr(self, word)]
        words += [f"turn-{self.turn}"] if self.turn else []
        words += [f"zoom-{self.zoom:g}"] if self.zoom < 1 else []
        return ", ".join(words) or "plain"

    @property
    def looks(self) -> tuple[View, ...]:
        """The views that this one averages: itself, or the image as it is and mirrored."""
        return (replace(self, both=False), replace(self, both=False, mirror=True)) if self.both else (self,)

    def __call__(self, images: Tensor) -> Tensor:
        """Return images ``(n, 3, s, s)`` as this view has them; the first look of ``both``."""
        if self.mirror:
            images = images.flip(3)
        if self.turn:
            images = torch.rot90(images, self.turn, (2, 3))
        if self.zoom < 1:
            side = images.shape[-1]
            inner = max(round(self.zoom * side), 1)
            first = (side - inner) // 2
            centre = images[:, :, first : first + inner, first : first + inner]
            images = F.interpolate(centre, size=(side, side), mode="bilinear", align_corners=False)
        return images


def get_views(views: Sequence[str | View]) -> tuple[View, ...]:
    """Return views by name; the same one twice is refused.

    >>> [view.name for view in get_views(["plain", "turn-2"])]
    ['plain', 'turn-2']
    """
    if isinstance(views, str) or not views:
        raise ValueError(f"views must be a list of at least one name, got {views!r}")
    found = tuple(view if isinstance(view, View) else View.parse(view) for view in views)
    if len(set(found)) < len(found):
        raise ValueError(f"each view counts once, got {', '.join(view.name for view in found)}")
    return found
