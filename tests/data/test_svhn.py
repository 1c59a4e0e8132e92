"""SVHN from small MATLAB files, written by SciPy as its authors' are laid out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedfeat.core.errors import DataError
from fedfeat.data import DataSettings, load_dataset
from fedfeat.data.svhn import FILES


def put(folder: Path, **changed: np.ndarray) -> np.ndarray:
    """Write both files with each digit three times; the digit 0 is labelled 10, and images are the last axis."""
    images = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    labels = np.repeat(np.arange(1, 11), 3).astype(np.uint8)
    for name in FILES:
        content = {"X": images.transpose(1, 2, 3, 0), "y": labels[:, None], **changed}
        savemat(folder / name, content, do_compression=name == FILES[0])
    return images


def load(path: Path):
    return load_dataset(DataSettings(name="svhn", path=str(path)))


def test_images_are_upright_and_the_digit_0_is_class_0(tmp_path: Path):
    images = put(tmp_path)
    svhn = load(tmp_path)
    np.testing.assert_array_equal(svhn.train_images, images)
    np.testing.assert_array_equal(svhn.test_images, images)
    assert svhn.train_labels.tolist() == [*np.repeat(np.arange(1, 10), 3), 0, 0, 0]
    assert svhn.class_names[0] == "0"


def test_one_file_alone(tmp_path: Path):
    put(tmp_path)
    (tmp_path / FILES[1]).unlink()
    with pytest.raises(DataError, match=r"test_32x32\.mat is missing; run: fedfeat data get svhn"):
        load(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"X": np.zeros((32, 32, 3, 29), np.uint8)},
        {"X": np.zeros((32, 32, 3, 30))},
        {"y": np.zeros((30, 1), np.uint8)},
        {"y": np.full((30, 1), 11, np.uint8)},
        {"y": np.ones((30, 1))},
    ],
)
def test_what_is_not_svhn_is_one_sentence(tmp_path: Path, changed: dict[str, np.ndarray]):
    put(tmp_path, **changed)
    with pytest.raises(DataError, match=r"train_32x32\.mat: expected X, uint8 \[32, 32, 3, N\].*download it again"):
        load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"<html>moved</html>", None])
def test_damaged_files(tmp_path: Path, data: bytes | None):
    put(tmp_path)
    file = tmp_path / FILES[0]
    file.write_bytes(file.read_bytes()[:20_000] if data is None else data)
    with pytest.raises(DataError, match=r"train_32x32\.mat: this MATLAB file cannot be read"):
        load(tmp_path)
