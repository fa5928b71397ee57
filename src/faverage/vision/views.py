"""Views: several ways to look at one image, each giving features of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from faverage.deprecation import renamed

__all__ = ["View", "get_views", "passes", "seen_as", "view_of_today"]

_WORDS = re.compile(
    r"rotate-(?P<rotation>90|180|270)|(?P<flip>flip)|(?P<both>both)|zoom-(?P<zoom>0\.\d+)"
    r"|(?P<pool>largest|covariance|texture|parts)"
)
_FITTED = ("covariance", "texture", "parts")
_POOLS = ("mean", "largest", *_FITTED)
_OLD_WORDS = re.compile(r"(?:^|(?<=,)|(?<=, )|(?<=: ))(?:turn-([123])|mirror)(?=,|$)")


@dataclass(frozen=True, init=False)
class View:
    """A way to look at images: rotated, flipped left and right, at their centre alone, with channels pooled otherwise.

    Attributes:
        rotation: 0, 90, 180 or 270 degrees, counter-clockwise.
        flip: whether left and right change places, before rotating.
        zoom: share of the side that is seen, scaled back to the full side; 1 sees all.
        both: whether the image is seen as it is and flipped, and the features of the two are averaged.
        pool: what features are of the channels: ``mean``, their mean over the image; ``largest``, the largest value of
            each anywhere in it; ``covariance``, how they vary together; ``texture``, the same of channels before the
            last quarter of the network; or ``parts``, means at several kinds of places. Beside the same view with
            another pool, none takes a further pass. For all but the first two the network must have seen images, see
            ``fit_pools``; ``faverage.vision.pools`` has the formulas.

    >>> View.parse("rotate-90").rotation, View.parse("flip, zoom-0.8").name
    (90, 'flip, zoom-0.8')
    """

    rotation: int = 0
    flip: bool = False
    zoom: float = 1.0
    both: bool = False
    pool: str = "mean"

    def __init__(
        self,
        rotation: int = 0,
        flip: bool = False,
        zoom: float = 1.0,
        both: bool = False,
        *,
        pool: str = "mean",
        **old: Any,
    ) -> None:
        if unknown := old.keys() - {"turn", "mirror"}:
            raise TypeError(f"a view has no {sorted(unknown)[0]!r}")
        if "turn" in old:
            renamed("turn", "rotation")
            rotation = 90 * old["turn"]
        if "mirror" in old:
            renamed("mirror", "flip")
            flip = old["mirror"]
        given = {"rotation": rotation, "flip": flip, "zoom": zoom, "both": both, "pool": pool}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if rotation not in (0, 90, 180, 270) or not 0.2 <= zoom <= 1:
            raise ValueError(f"a view is rotated by 0, 90, 180 or 270 and sees a share from 0.2 to 1, got {self}")
        if both and flip:
            raise ValueError("a view is 'flip' or 'both', not the two of them")
        if pool not in _POOLS:
            raise ValueError(f"the pool of a view is one of {', '.join(_POOLS)}, got {pool!r}")

    @property
    def turn(self) -> int:
        """The rotation in units of 90°, under its old name."""
        renamed("turn", "rotation")
        return self.rotation // 90

    @property
    def mirror(self) -> bool:
        """Whether the image is flipped, under its old name."""
        renamed("mirror", "flip")
        return self.flip

    @classmethod
    def parse(cls, text: str) -> View:
        """Read a name: ``plain``, or one or more of the words that ``name`` writes, with commas between."""
        view = cls()
        for word in (part.strip() for part in view_of_today(text).split(",")):
            if word == "plain":
                continue
            found = _WORDS.fullmatch(word)
            if found is None:
                known = "plain, flip, both, rotate-90, rotate-180, rotate-270, zoom-0.8"
                pools = ", ".join(_POOLS[1:])
                raise ValueError(f"unknown view {text!r}: expected {known}, {pools}, or several, separated by commas")
            if found["pool"] and view.pooled:
                raise ValueError(f"a view has one of {', '.join(_POOLS[1:])}, got {text!r}: name several views")
            rotation, zoom = int(found["rotation"] or view.rotation), float(found["zoom"] or view.zoom)
            flip, both = bool(found["flip"]) or view.flip, bool(found["both"]) or view.both
            view = cls(rotation, flip, zoom, both, pool=found["pool"] or view.pool)
        return view

    @property
    def name(self) -> str:
        """What ``parse`` reads."""
        words = [word for word in ("flip", "both") if getattr(self, word)]
        words += [f"rotate-{self.rotation}"] if self.rotation else []
        words += [f"zoom-{self.zoom:g}"] if self.zoom < 1 else []
        words += [self.pool] if self.pooled else []
        return ", ".join(words) or "plain"

    @property
    def pooled(self) -> bool:
        """Whether features are others than the means of channels; base training has no head for those."""
        return self.pool != "mean"

    @property
    def fitted(self) -> bool:
        """Whether its network must have seen images for it, see ``fit_pools``."""
        return self.pool in _FITTED

    @property
    def looks(self) -> tuple[View, ...]:
        """The passes that this view takes: one, or one of the image as it is and one of it flipped."""
        one = replace(self, both=False, pool="mean")
        return (one, replace(one, flip=True)) if self.both else (one,)

    def __call__(self, images: Tensor) -> Tensor:
        """Return images ``(n, 3, s, s)`` as this view has them; the first look of ``both``."""
        if self.flip:
            images = images.flip(3)
        if self.rotation:
            images = torch.rot90(images, self.rotation // 90, (2, 3))
        if self.zoom < 1:
            side = images.shape[-1]
            inner = max(round(self.zoom * side), 1)
            first = (side - inner) // 2
            centre = images[:, :, first : first + inner, first : first + inner]
            images = F.interpolate(centre, size=(side, side), mode="bilinear", align_corners=False)
        return images


def passes(names: Iterable[str]) -> int:
    """Return how many passes of a network views take; what several of them share counts once.

    A view that has a name of its own in a file of features takes one.

    >>> passes(["network 1: both", "network 2: both, rotate-90"]), passes(["plain", "largest"]), passes(["infrared"])
    (4, 1, 1)
    """
    found: set[tuple[str, View | str]] = set()
    for name in names:
        network, _, view = name.rpartition(": ")
        try:
            found |= {(network, look) for look in View.parse(view).looks}
        except ValueError:
            found.add((network, view))
    return len(found)


def seen_as(name: str, other: str) -> str:
    """Return the name of the view that sees of the image what another one does, and that as this one does.

    >>> seen_as("plain", "both"), seen_as("flip, rotate-90, largest", "both, zoom-0.8")
    ('both', 'both, rotate-90, zoom-0.8, largest')
    """
    view, sees = View.parse(name), View.parse(other)
    return replace(view, flip=sees.flip, both=sees.both, zoom=sees.zoom).name


def get_views(views: Sequence[str | View]) -> tuple[View, ...]:
    """Return views by name; the same one twice is refused.

    >>> [view.name for view in get_views(["plain", "rotate-180"])]
    ['plain', 'rotate-180']
    """
    if isinstance(views, str) or not views:
        raise ValueError(f"views must be a list of at least one name, got {views!r}")
    found = tuple(view if isinstance(view, View) else View.parse(view) for view in views)
    if len(set(found)) < len(found):
        raise ValueError(f"each view counts once, got {', '.join(view.name for view in found)}")
    return found


def view_of_today(name: str) -> str:
    """Return the name of a view, of a network's too, in today's words, with a warning for old ones.

    >>> view_of_today("network 1: both, rotate-90")
    'network 1: both, rotate-90'
    """
    found = _OLD_WORDS.sub(lambda old: f"rotate-{90 * int(old[1])}" if old[1] else "flip", name)
    if found != name:
        renamed(name, found)
    return found
