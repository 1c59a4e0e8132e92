from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import Dataset, DataSettings, load_dataset

RNG = np.random.default_rng(0)
X, XT = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8), RNG.integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
Y, YT = np.array([0, 1, 2, 0, 1, 2]), np.array([2, 1, 0])


def load(path: Path, **arrays: Any) -> Dataset:
    np.savez(path / "set.npz", **arrays)
    return load_dataset(DataSettings(name="npz", path=str(path / "set.npz")))


KEYS = [
    ("x", "y", "xt", "yt"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
]


@pytest.mark.parametrize("keys", KEYS)
def test_key_names(keys: tuple[str, ...], tmp_path: Path):
    own = load(tmp_path, **dict(zip(keys, (X, Y, XT, YT), strict=True)))
    np.testing.assert_array_equal(own.train_images, X)
    np.testing.assert_array_equal(own.test_labels, YT)
    assert own.class_names == ("0", "1", "2")


def test_channels_first_are_moved_and_grey_gets_a_channel(tmp_path: Path):
    own = load(tmp_path, x=X.transpose(0, 3, 1, 2), y=Y, xt=XT.transpose(0, 3, 1, 2), yt=YT)
    np.testing.assert_array_equal(own.train_images, X)
    grey = load(tmp_path, x=X[..., 0], y=Y, xt=XT[..., 0], yt=YT)
    np.testing.assert_array_equal(grey.test_images, XT[..., :1])


def test_class_names_and_small_label_types(tmp_path: Path):
    names = np.array(["ant", "bee", "cat"])
    own = load(tmp_path, x=X, y=Y.astype(np.uint8)[:, None], xt=XT, yt=YT.astype(np.int16), class_names=names)
    assert own.class_names == tuple(names)
    assert own.train_labels.dtype == np.int64
    np.testing.assert_array_equal(own.train_labels, Y)


def test_class_names_of_bytes_are_decoded(tmp_path: Path):
    names = np.array([name.encode() for name in ("cat", "dog", "bär")])
    assert load(tmp_path, x=X, y=Y, xt=XT, yt=YT, class_names=names).class_names == ("cat", "dog", "bär")


BAD = {
    "keys": ({"x": X, "y": Y}, "expected the arrays train_images.*got x, y"),
    "float images": ({"x": X / 255}, r"set\.npz, x: images must be uint8"),
    "float labels": ({"y": Y / 2}, "set.npz, y: labels must be integers"),
    "one label missing": ({"y": Y[:-1]}, "6 images but 5 labels"),
    "label outside": (
        {"y": Y + 2, "class_names": np.array(["a", "b", "c"])},
        r"index 1 is 3, outside 0\.\.2",
    ),
    "negative label": ({"yt": YT - 1}, r"index 2 is -1, outside"),
    "five channels": ({"x": np.zeros((6, 5, 5, 5), np.uint8)}, "expected 1 or 3 channels"),
    "two axes": ({"x": X.reshape(6, -1)}, r"4 axes.*\(6, 60\)"),
    "nothing": ({"xt": XT[:0], "yt": YT[:0]}, "no images"),
    "labels from 1": ({"y": Y + 1, "yt": YT + 1}, r"class '0' has 0 training and 0 test images; relabel .* 0\.\.2"),
    "gaps": ({"y": Y * 10, "yt": YT * 10}, r"class '1' \(17 more such\) has 0 training.*relabel the images to 0\.\.2"),
    "ids": ({"y": Y + 2024001, "yt": YT + 2024001}, r"number the classes .*, got 2024003; relabel the images to 0\.\."),
    "high ids": ({"y": Y + 10**12}, "got 1000000000002; relabel"),
    "class only in test": ({"yt": np.array([2, 1, 3])}, "class '0' .1 more such. has 2 training and 0 test images"),
    "no test images of a class": ({"yt": np.array([2, 1, 1])}, "class '0' has 2 training and 0 test.*add test images"),
    "no training images of a class": (
        {"y": Y % 2, "yt": np.array([0, 1, 2])},
        "class '2' has 0 training and 1 test images; add more images",
    ),
    "a name without images": ({"class_names": np.array(list("abcd"))}, "class 'd' has 0 .*name only these classes"),
    "names in another encoding": (
        {"class_names": np.array(["b\xe4r".encode("latin-1"), b"b", b"c"])},
        "class_names: expected text in UTF-8.*save the names as str",
    ),
    "mixed sizes": ({"x": np.array([X[0], X[0, :2]], dtype=object)}, "images all of one size"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays(case: str, tmp_path: Path):
    change, message = BAD[case]
    arrays = change if case == "keys" else {"x": X, "y": Y, "xt": XT, "yt": YT, **change}
    with pytest.raises(DataError, match=message):
        load(tmp_path, **arrays)


def test_files_that_are_no_npz(tmp_path: Path):
    text, single = tmp_path / "a.npz", tmp_path / "b.npy"
    text.write_text("hello")
    np.save(single, X)
    picture = tmp_path / "c.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    for path, message in (
        (text, "not a readable .npz"),
        (picture, r"not a readable .npz file \(it is no archive of arrays\)"),
        (single, "got one array"),
        (tmp_path, "holds nothing"),
    ):
        with pytest.raises(DataError, match=message):
            load_dataset(DataSettings(name="npz", path=str(path)))


def test_cut_file(tmp_path: Path):
    load(tmp_path, x=X, y=Y, xt=XT, yt=YT)
    file = tmp_path / "set.npz"
    data = bytearray(file.read_bytes())
    data[300] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(DataError, match="x: the array cannot be read"):
        load_dataset(DataSettings(name="npz", path=str(file)))


def test_a_kept_class_without_training_images(tmp_path: Path):
    np.savez(tmp_path / "set.npz", x=X, y=Y * 0, xt=XT, yt=YT % 2)
    settings = DataSettings(name="npz", path=str(tmp_path / "set.npz"), subset_classes=1)
    seed = next(s for s in range(50) if np.random.RandomState(s).permutation(2)[0] == 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="class '1' has 0 training and 1 test images"):
            load_dataset(settings, seed=seed)


def test_members_that_are_no_arrays(tmp_path: Path):
    file = tmp_path / "raw.npz"
    with zipfile.ZipFile(file, "w") as archive:
        for key in KEYS[2]:
            archive.writestr(key, b"hello")
    with pytest.raises(DataError, match="train_labels: expected an array, got something else"):
        load_dataset(DataSettings(name="npz", path=str(file)))
