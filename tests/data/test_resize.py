"""Images of many sizes become one, in training as in prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedfeat.cli.data import app
from fedfeat.config.config import make_config
from fedfeat.data import DataSettings, load_dataset
from fedfeat.data.images import fit_image
from fedfeat.runs.experiment import start
from fedfeat.runs.trained import load_trained

SIZES = ((20, 30), (30, 20), (9, 50), (16, 16), (40, 40))  # height and width


@pytest.fixture
def photos(tmp_path: Path, encode, pixels) -> Path:
    """ImageNet's layout: train/CLASS/*.JPEG and val/CLASS/*.JPEG, of all sizes."""
    for split, count in (("train", 5), ("val", 2)):
        for wnid in ("n01440764", "n01443537"):
            (tmp_path / "photos" / split / wnid).mkdir(parents=True)
            for i in range(count):
                file = tmp_path / "photos" / split / wnid / f"{wnid}_{i}.JPEG"
                file.write_bytes(encode(pixels(*SIZES[i], 3), "JPEG"))
    return tmp_path / "photos"


def load(path: Path, **options: object):
    return load_dataset(DataSettings(name="folder", path=str(path), **options))


@pytest.mark.parametrize("how", ["crop", "pad"])
def test_training_sees_what_prediction_sees(photos: Path, how: str):
    found = load(photos, image_size=16, resize=how)
    assert found.image_shape == (16, 16, 3)
    files = sorted((photos / "train").rglob("*.JPEG"))
    for image, file in zip(found.train_images, files, strict=True):
        np.testing.assert_array_equal(image, fit_image(file, (16, 16, 3), how))


def test_check_takes_the_size(photos: Path):
    result = CliRunner().invoke(
        app, ["check", "folder", "--path", str(photos), "--image-size", "16", "--resize", "pad"]
    )
    assert result.exit_code == 0, result.output
    assert "2 classes, images 16x16x3" in result.stdout


def test_pad_keeps_all_of_an_image_and_crop_none_of_the_black(tmp_path: Path, encode):
    for name in ("a", "b"):
        for i in range(5):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{i}.png").write_bytes(encode(np.full((10, 40, 3), 200, np.uint8)))
    padded, cropped = (load(tmp_path, image_size=20, resize=how).train_images[0] for how in ("pad", "crop"))
    assert (padded[:7] == 0).all()
    assert (padded[-7:] == 0).all()
    assert (padded[8:12] == 200).all()
    assert (cropped == 200).all()


def test_each_size_and_way_has_an_entry_of_its_own(photos: Path):
    shapes = [load(photos, image_size=side).image_shape for side in (8, 12, 8)]
    assert shapes == [(8, 8, 3), (12, 12, 3), (8, 8, 3)]
    ways = [load(photos, image_size=8, resize=how).train_images for how in ("pad", "crop")]
    assert not np.array_equal(*ways)


def test_grey_stays_one_channel_until_one_image_has_colours(tmp_path: Path, encode, pixels):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(6):
            (tmp_path / name / f"{i}.png").write_bytes(encode(pixels(9, 7 + i)))
    grey = load(tmp_path, image_size=8)
    assert grey.image_shape == (8, 8, 1)
    np.testing.assert_array_equal(grey.train_images[1], fit_image(tmp_path / "a" / "1.png", (8, 8, 1)))
    (tmp_path / "b" / "4.png").write_bytes(encode(pixels(9, 9, 3)))  # a test image, after all of training
    mixed = load(tmp_path, image_size=8)
    assert mixed.image_shape == (8, 8, 3)
    assert (mixed.train_images == grey.train_images).all()  # three equal channels


def test_sets_of_arrays_are_resized_like_files(tmp_path: Path, encode):
    small, large = (load_dataset(DataSettings(image_size=side)) for side in (8, 20))
    assert small.image_shape == (8, 8, 1)
    assert large.image_shape == (20, 20, 1)
    (tmp_path / "one.png").write_bytes(encode(small.train_images[3, ..., 0]))
    np.testing.assert_array_equal(large.train_images[3], fit_image(tmp_path / "one.png", (20, 20, 1)))


def test_owned_images_have_a_shape_instead():
    with pytest.raises(ValueError, match="image_shape states height, width and channels"):
        DataSettings(name="owned", image_shape=(8, 8, 3), image_size=8)


def test_a_model_remembers_how_its_images_were_resized(photos: Path, tmp_path: Path):
    table = {
        "method": "finetune",
        "data": {"name": "folder", "path": str(photos), "image_size": 16, "resize": "pad"},
        "scenario": {"tasks": 2, "clients": 1},
        "train": {"rounds": 1, "batch": 4},
        "model": {"name": "small-cnn", "norm": "group"},
    }
    start(make_config(table), tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    assert (trained.resize, trained.image_shape) == ("pad", (16, 16, 3))
