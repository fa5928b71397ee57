"""Features of picture files are looked at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from faverage.app.photos import squares
from faverage.app.seen import FeatureCache, look_at
from faverage.vision import Evaluate, Extractor, get_backbone
from helpers_model import pictures

pytestmark = pytest.mark.usefixtures("own_cache")


class Counting(Extractor):
    """An extractor that counts what it sees."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(options.pop("seed", 0))
        super().__init__(get_backbone("tiny", dimension=8), Evaluate(16), device="cpu", **options)
        self.count = 0

    def __call__(self, images: Any) -> Any:
        self.count += len(images)
        return super().__call__(images)


def saved(folder: Path, n: int = 5) -> list[Path]:
    files = [folder / f"{i}.png" for i in range(n)]
    for file, image in zip(files, pictures("cross", n), strict=True):
        image.save(file)
    return files


def test_files_are_looked_at_once_whatever_their_names(tmp_path: Path) -> None:
    files, sees = saved(tmp_path, 40), Counting(views=["plain", "flip"])
    told: list[tuple[str, int, int]] = []
    first = look_at(files, sees, 16, progress=lambda *said: told.append(said))
    assert sees.count == 40 and told[0][1:] == (0, 40) and told[-1][1:] == (40, 40)
    expected = sees(squares([Image.open(file) for file in files], 16))
    np.testing.assert_allclose(np.hstack(list(first.views.values())), expected, atol=1e-6)
    sees.count = 0
    moved = files[3].rename(tmp_path / "another name.png")
    again = look_at([moved, *files[4:]], sees, 16)
    assert sees.count == 0 and list(again.views) == ["plain", "flip"]
    np.testing.assert_array_equal(again.views["flip"], first.views["flip"][3:])


def test_other_weights_sides_and_pictures_are_other_features(tmp_path: Path) -> None:
    files, sees = saved(tmp_path), Counting()
    look_at(files, sees, 16)
    for other, side in ((Counting(seed=1), 16), (Counting(), 32), (Counting(views=["flip"]), 16)):
        look_at(files, other, side)
        assert other.count == 5
    files[0].write_bytes(files[1].read_bytes())
    look_at(files, sees, 16)
    assert sees.count == 5  # it holds what another one held
    pictures("square", 1)[0].save(files[0])
    look_at(files, sees, 16)
    assert sees.count == 6


def test_broken_files_are_named_and_the_rest_is_seen(tmp_path: Path) -> None:
    files = saved(tmp_path, 4)
    files[1].write_text("no picture")
    files[2].unlink()
    for _ in range(2):
        seen = look_at(files, Counting(), 16)
        assert seen.kept.tolist() == [0, 3] and len(seen.views["plain"]) == 2
        assert [place for place, _ in seen.broken] == [1, 2]
        assert "not an image" in seen.broken[0][1] and "No such file" in seen.broken[1][1]
    assert look_at([], Counting(), 16).kept.shape == (0,)


def test_a_broken_cache_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, sees = saved(tmp_path), Counting()
    first = look_at(files, sees, 16).views["plain"]
    file = FeatureCache.of(sees, 16).file
    for harm in ("row", "text", "folder"):
        if harm == "row":
            with sqlite3.connect(file) as opened:
                opened.execute("UPDATE seen SET row = zeroblob(32)")
        elif harm == "text":
            file.write_text("this is no database" * 100)
        else:
            (tmp_path / "file").write_text("")
            monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path / "file"))
        sees.count = 0
        np.testing.assert_array_equal(look_at(files, sees, 16).views["plain"], first)
        assert sees.count == 5, harm
    monkeypatch.setenv("FAVERAGE_CACHE", str(tmp_path / "cache"))
    look_at(files, sees, 16)
    assert sees.count == 5  # what was repaired counts again
