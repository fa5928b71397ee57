"""Pictures as they are opened: shrunk where they are large, upright, and to the model what they were before."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps

from faverage.app.model import Model
from faverage.app.names import ModelError
from faverage.app.photos import least, open_picture, squares, unpacking
from faverage.app.zips import read_pictures, write_pictures
from faverage.data.decode import to_rgb, to_square
from faverage.fscil import FewShotLearner
from faverage.vision import BaseModel, Evaluate, get_backbone
from helpers_model import pictures


def photo(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height)).filter(ImageFilter.GaussianBlur(3))


def saved(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_large_photo_is_shrunk_and_looks_the_same_to_a_model(kind) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    data = saved(photo(2400, 1700), kind, exif=exif, compress_level=1)
    opened = open_picture(data)
    assert opened.size == (850, 1200) and not opened.info and not dict(opened.getexif())
    before = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    for side in (16, 84, 256):
        for seen in (opened, least(opened, side, shown=False), least(opened, side, shown=True)):
            far = np.abs(squares([seen], side)[0].astype(int) - to_square(before, side))
            assert far.mean() < 0.6 and far.max() <= 4


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L", "LA", "1", "CMYK", "I;16", "I", "F"])
def test_a_small_picture_is_what_it_was(mode) -> None:
    grey = photo(240, 160).convert("L")
    image = Image.fromarray(np.asarray(grey).astype({"I;16": "<u2", "I": "<i4", "F": "<f4"}.get(mode, "u1")))
    image = image if image.mode == mode else grey.convert("RGB").convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(grey)
    data = saved(image, "TIFF")
    assert np.array_equal(open_picture(data), to_rgb(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize(("mode", "size"), [("RGBA", (1, 300_000)), ("RGB", (300_000, 2)), ("L", (4000, 1600))])
def test_no_shape_stays_large(mode, size) -> None:
    opened = open_picture(saved(Image.new(mode, size, "white"), "PNG"))
    assert opened.width * opened.height < 2_000_000 and opened.getpixel((0, 0)) == (255, 255, 255)
    for side in (16, 84, 224):
        kept = least(opened, side, shown=True)
        assert kept.width * kept.height <= 4 * max(128, 3 * side) ** 2


def test_tiles_leave_no_seams() -> None:
    image = photo(3200, 1700)
    assert np.array_equal(open_picture(saved(image, "PNG", compress_level=1)), image.reduce(2))


def test_what_unpacking_takes_is_known_before() -> None:
    image = Image.new("RGB", (1600, 1600))
    assert unpacking(saved(image, "PNG")) == (2_560_000, 10_240_000)
    assert unpacking(saved(image, "WEBP"))[1] == 16 * 2_560_000
    assert unpacking(saved(image, "JPEG")) == (640_000, 6 * 2_560_000 + 4 * 640_000)  # read at half its size
    assert unpacking(saved(image, "JPEG", progressive=True))[0] == 2_560_000
    with pytest.raises(ModelError, match="at most 1 million"):
        unpacking(saved(image, "PNG"), max_pixels=1_000_000)


@pytest.mark.parametrize("side", [20, 128])  # kept as PNG, as JPEG
def test_pictures_that_a_model_gave_out_are_not_learned_twice(tmp_path, side) -> None:
    torch.manual_seed(0)
    network = get_backbone("tiny", dimension=32).eval()
    sees = BaseModel(network, "linear", torch.zeros(1, 32), torch.zeros(1), None, Evaluate(16, resize=side))
    model = Model.create(tmp_path / "m", FewShotLearner(sees, device="cpu"), side=side)
    mine = {f"{kind}/x": [p.resize((300, 200)) for p in pictures(kind)] for kind in ("cross", "bar", "frame")}
    model.teach_many(mine)
    write_pictures(model, stream := io.BytesIO())
    back: dict[str, list[Image.Image]] = {}
    for name, _, data in read_pictures(stream, 10**6):
        back.setdefault(name, []).append(open_picture(data))
    for same in (back, mine):
        with pytest.raises(ModelError, match="keeps all of these pictures already"):
            model.teach_many(same)
    with pytest.raises(ModelError, match="'new' is the same as one of 'bar/x'"):
        model.teach("new", back["bar/x"])
    assert model.version == 2
    more = model.teach_many({**back, "bar/x": [*back["bar/x"], *pictures("bar", 2, seed=3)]})
    assert [(one.name, one.count, one.again) for one in more] == [("cross/x", 5, 5), ("bar/x", 7, 5), ("frame/x", 5, 5)]
    assert [line["words"] for line in model.history()[4:]] == ["added 2 pictures to 'bar/x'"]
