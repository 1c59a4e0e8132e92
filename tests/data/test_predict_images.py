"""Pictures of any size and kind become a model's input; those that cannot are one sentence."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.core.errors import DataError
from fedfeat.data.images import find_images, fit_image

Image = pytest.importorskip("PIL.Image")


def saved(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def test_a_picture_of_the_right_kind_stays_as_it_is(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grey, colour = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((8, 8), (6, 9, 3)))
    np.testing.assert_array_equal(fit_image(saved(tmp_path / "g.png", grey), (8, 8, 1))[..., 0], grey)
    np.testing.assert_array_equal(fit_image(saved(tmp_path / "c.png", colour), (6, 9, 3)), colour)


def test_grey_becomes_colour_and_colour_grey(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    fitted = fit_image(saved(tmp_path / "g.png", grey), (8, 8, 3))
    assert all(np.array_equal(fitted[..., c], grey) for c in range(3))
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    assert np.unique(fit_image(saved(tmp_path / "r.png", red), (8, 8, 1))).tolist() == [76]  # 0.299 of 255


def test_the_centre_of_a_wide_picture_is_cut_out_without_squeezing(tmp_path: Path) -> None:
    wide = np.zeros((20, 100), np.uint8)
    wide[:, 40:60] = 200
    assert (fit_image(saved(tmp_path / "w.png", wide), (10, 10, 1)) > 150).all()
    tall = np.full((100, 20), 200, np.uint8)
    tall[40:60] = 0
    assert (fit_image(saved(tmp_path / "t.png", tall), (10, 10, 1)) < 50).all()


def test_a_camera_that_was_turned_is_turned_back(tmp_path: Path) -> None:
    lying = np.zeros((8, 8), np.uint8)
    lying[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    upright = fit_image(saved(tmp_path / "e.png", lying, exif=exif), (8, 8, 1))[..., 0]
    np.testing.assert_array_equal(upright, np.rot90(lying, -1))


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"]),
    st.sampled_from([(8, 8, 1), (7, 5, 3)]),
)
def test_every_size_and_mode_gives_the_shape_asked_for(
    width: int, height: int, mode: str, shape: tuple[int, int, int]
) -> None:
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, "TIFF")
    fitted = fit_image(buffer, shape)  # type: ignore[arg-type]  # Pillow opens both
    assert fitted.shape == shape
    assert fitted.dtype == np.uint8


def test_what_is_no_picture_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    saved(tmp_path / "whole.png", np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8))
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    saved(tmp_path / "deep.png", np.full((8, 8), 40_000, np.uint16))
    for name, words in (
        ("text.png", "not an image in a known format"),
        ("cut.png", "cannot be read"),
        ("deep.png", "8 bits"),
        ("gone.png", "no such file"),
    ):
        with pytest.raises(DataError, match=words) as caught:
            fit_image(tmp_path / name, (8, 8, 1))
        assert str(tmp_path / name) in str(caught.value)


def test_folders_are_searched_and_files_taken_as_named(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "notes.txt", "below/c.webp", "odd.dat"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_images([tmp_path / "odd.dat", tmp_path])
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["odd.dat", "a.JPG", "b.png", "below/c.webp"]
