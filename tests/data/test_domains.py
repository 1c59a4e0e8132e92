"""A folder per domain, and the digits in four domains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import Dataset, DataSettings, fingerprint, load_dataset, subset


def put(folder: Path, shades: list[int], encode) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, shade in enumerate(shades):
        (folder / f"{number}.png").write_bytes(encode(np.full((4, 4, 3), shade, np.uint8)))


def load(path: Path, **options: object) -> Dataset:
    return load_dataset(DataSettings(name="domains", path=str(path), **options))


@pytest.fixture
def folders(tmp_path: Path, encode) -> Path:
    for d, domain in enumerate(["sketch", "photo"]):
        for c, name in enumerate(["dog", "cat"]):
            put(tmp_path / domain / name, [100 * d + 50 * c + i for i in range(10)], encode)
    return tmp_path


def test_domains_and_classes_come_in_the_order_of_their_names(folders: Path) -> None:
    data = load(folders)
    assert (data.class_names, data.domains.names) == (("cat", "dog"), ("photo", "sketch"))
    for images, labels, domains in (
        (data.train_images, data.train_labels, data.domains.train),
        (data.test_images, data.test_labels, data.domains.test),
    ):
        shades = images[:, 0, 0, 0].astype(int)
        assert (labels == 1 - shades % 100 // 50).all()
        assert (domains == 1 - shades // 100).all()
    assert (len(data.train_labels), len(data.test_labels)) == (32, 8)
    assert load(folders).domains.train.tolist() == data.domains.train.tolist(), "from the cache"


def test_a_class_that_a_domain_lacks_is_named(folders: Path, encode) -> None:
    put(folders / "sketch" / "bird", [1, 2], encode)
    with pytest.raises(DataError, match=r"same classes, and 'bird' is only in one of 'photo' and 'sketch'"):
        load(folders)


def test_an_empty_folder_and_a_subset_are_refused(tmp_path: Path, folders: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="one sub-folder per domain"):
        load(tmp_path / "empty")
    (tmp_path / "empty").rmdir()
    with pytest.raises(DataError, match="no subset of a data set with domains"):
        load(folders, subset_classes=1)


def test_what_is_held_out_for_validation_is_of_every_domain(folders: Path) -> None:
    data = load(folders, validation=0.25)
    pairs = set(zip(data.domains.test.tolist(), data.test_labels.tolist(), strict=True))
    assert pairs == {(d, c) for d in range(2) for c in range(2)}
    assert (
        (len(data.domains.train), len(data.domains.test)) == (len(data.train_labels), len(data.test_labels)) == (24, 8)
    )


def test_domains_follow_their_images_into_a_subset(folders: Path) -> None:
    dogs = subset(load(folders), [1])
    assert dogs.domains.train.tolist() == [0] * 8 + [1] * 8


def test_every_digit_is_drawn_in_one_way() -> None:
    plain, drawn = load_dataset(DataSettings()), load_dataset(DataSettings(name="digits-domains"))
    assert drawn.domains.names == ("plain", "inverted", "rotated", "noisy")
    assert (drawn.train_labels == plain.train_labels).all()
    assert (drawn.test_labels == plain.test_labels).all()
    for label in range(10):
        counts = np.bincount(drawn.domains.train[drawn.train_labels == label])
        assert counts.max() - counts.min() <= 1
    for domain, way in enumerate((lambda x: x, lambda x: 255 - x, lambda x: np.rot90(x))):
        row = np.flatnonzero(drawn.domains.test == domain)[7]
        assert (drawn.test_images[row] == way(plain.test_images[row])).all()
    noisy = drawn.domains.train == 3
    moved = drawn.train_images[noisy].astype(int) - plain.train_images[noisy]
    assert 20 < moved.std() < 64
    again = load_dataset(DataSettings(name="digits-domains"))
    assert fingerprint(again) == fingerprint(drawn) != fingerprint(plain)
