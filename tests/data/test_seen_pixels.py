"""Training and prediction see the same pixels: turned as the camera says, transparent parts on white."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedfeat.core.errors import DataError
from fedfeat.data import Dataset, DataSettings, load_dataset
from fedfeat.data.images import find_images, fit_image


def train_on(path: Path, data: bytes, name: str = "0.png") -> Dataset:
    for i in range(2):
        (path / "a").mkdir(exist_ok=True)
        (path / "a" / f"{i}{name}").write_bytes(data)
    return load_dataset(DataSettings(name="folder", path=str(path)))


def assert_predicted_alike(path: Path, own: Dataset) -> None:
    first = next(find_images([path]))
    np.testing.assert_array_equal(fit_image(first, own.image_shape), own.train_images[0])


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    half = np.zeros((16, 24, 3), np.uint8)
    half[:8] = 255
    return saved(Image.fromarray(half), exif=exif)


def test_training_turns_images_as_prediction_does(tmp_path: Path) -> None:
    own = train_on(tmp_path, turned(6))
    assert own.image_shape == (24, 16, 3)
    assert (own.train_images[0, :, -8:] == 255).all()
    assert (own.train_images[0, :, :8] == 0).all()
    assert_predicted_alike(tmp_path, own)


def test_the_size_that_counts_is_the_one_after_turning(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "000.png").write_bytes(turned(1))
    with pytest.raises(DataError, match=r"000\.png: the size is 24x16 but .*00\.png is 16x24; set data\.image_size"):
        train_on(tmp_path, turned(6))


def test_a_damaged_note_of_the_camera_counts_as_none(tmp_path: Path) -> None:
    turn, width_as_text = b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0", b"\x01\0\0\x02\0\0\0\x03ab\0\0"
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + turn + width_as_text + b"\0\0\0\0"
    own = train_on(tmp_path, saved(Image.new("RGB", (6, 4), 9), "JPEG", exif=exif), "0.jpg")
    assert own.image_shape == (4, 6, 3)
    assert_predicted_alike(tmp_path, own)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_are_white(mode: str, tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:, 1:] = (0, 0, 0, 255)
    pixels[:, 3] = (0, 0, 0, 51)
    image = Image.fromarray(pixels)
    if mode == "P":
        image = Image.fromarray(np.tile(np.array([0, 1, 1, 2], np.uint8), (4, 1))).convert("P")
        image.putpalette([0] * 9)
        own = train_on(tmp_path, saved(image, transparency=bytes([0, 255, 51])))
    else:
        own = train_on(tmp_path, saved(image.convert(mode)))
    assert own.train_images[0, 0, :, 0].tolist() == [255, 0, 0, 204]
    assert own.image_shape[2] == (1 if mode == "LA" else 3)
    assert_predicted_alike(tmp_path, own)


def test_opaque_pixels_stay_what_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 4), dtype=np.uint8)
    pixels[..., 3] = 255
    own = train_on(tmp_path, saved(Image.fromarray(pixels)))
    np.testing.assert_array_equal(own.train_images[0], pixels[..., :3])


def test_prediction_skips_hidden_files_as_training_does(tmp_path: Path) -> None:
    for name in ("a.png", "._a.png", ".trash/b.png", "below/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [p.name for p in find_images([tmp_path])] == ["a.png", "c.png"]
    assert list(find_images([tmp_path / "._a.png"])) == [tmp_path / "._a.png"]
